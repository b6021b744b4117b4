"""`s3notify inlet` as people run it, and the smallest policy that it needs."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest

from s3notify_platform.channels.inlets.intake import intake_of
from s3notify_platform.channels.service import ServiceContext, SourceKeyspace
from s3notify_platform.deploy import Places, Tables, policy
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.process import free_ports
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.contracts.test_sqs_events import SIGNALS, World
from tests.support.iam import ACCOUNT, needs, refused, unused
from tests.support.intake_site import event
from tests.support.tables import create_record_table
from tests.support.waiting import until

pytestmark = pytest.mark.server

SECRET = "a-secret-of-some-length"


class Command:
    """`s3notify inlet …`, ended by SIGINT."""

    def __init__(self, world, *arguments, **environment):
        keys = world.server.config("")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "s3notify_platform.cli", "inlet", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "AWS_ACCESS_KEY_ID": keys.access_key_id,
                "AWS_SECRET_ACCESS_KEY": keys.secret_access_key,
                **environment,
            },
        )

    def printed(self, pattern):
        """The first line that matches the pattern."""
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} was never printed")

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, err
        return out, err


def place(world):
    return [
        "--platform-bucket", world.platform, "--endpoint-url", world.server.endpoint_url, "--bucket", world.bucket,
    ]  # fmt: skip


def test_sqs_inlet_runs_from_the_command_line(ministack):
    """Without the printed counts, an operator could not see whether the inlet works. If Ctrl-C ended the command
    with an error, a supervisor would report a failure. Without `inlet poison`, nobody could inspect or remove an
    invalid message.
    """
    world = World(ministack)
    world.store.put("raw/a", b"1")
    world.sqs.send_message(QueueUrl=world.url, MessageBody="hello")
    queue = ["--queue-url", world.url, "--queue-endpoint-url", world.server.endpoint_url]
    command = Command(world, "sqs", *place(world), *queue, "--keyspace", SIGNALS, "raw/")
    try:
        assert command.printed("queued=1")
        world.settle({("put", "raw/a")})
        _, err = command.stop()
    finally:
        command.process.kill()
    assert "messages_poison=1" in err
    listed = Command(world, "poison", *place(world), "--json")
    out, _ = listed.process.communicate(timeout=30)
    (kept,) = json.loads(out)
    assert kept["origin"] == "sqs"
    shown = Command(world, "poison", *place(world), "--show", kept["id"])
    assert shown.process.communicate(timeout=30)[0] == "hello"
    removed = Command(world, "poison", *place(world), "--discard", kept["id"])
    assert removed.process.communicate(timeout=30)[0] == "removed 1\n"


def test_http_inlet_runs_from_the_command_line(ministack):
    """If the log had the secret, every reader of the log could post false events. Without the metrics, monitoring
    would not notice that no events arrive.
    """
    world = World(ministack)
    (shown,) = free_ports(1, SYSTEM_CLOCK)
    command = Command(
        world, "http", *place(world), "--port", "0", "--secret-env", "MY_SECRET",
        "--keyspace", SIGNALS, "raw/", "--metrics", f"127.0.0.1:{shown}", MY_SECRET=SECRET,
    )  # fmt: skip
    try:
        port = int(command.printed(r"listening on 127\.0\.0\.1:(\d+)").group(1))
        _report(port, world, "raw/a")
        assert world.entries().keys() == {("put", "raw/a")}
        with urllib.request.urlopen(f"http://127.0.0.1:{shown}/metrics") as answer:
            assert b"s3notify_http_posts_ok_total 1.0" in answer.read()
        _, err = command.stop()
    finally:
        command.process.kill()
    assert "posts_ok=1" in err
    assert SECRET not in err


def _report(port, world, *keys):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    records = [
        {
            "eventSource": "ceph:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": world.bucket}, "object": {"key": key, "sequencer": "01"}},
        }
        for key in keys
    ]
    connection.request("POST", "/", json.dumps({"Records": records}), {"authorization": SECRET})
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize("place", ["YAML", "options"])
def test_inlet_ignores_the_platforms_own_writes(ministack, tmp_path, place):
    """Otherwise, if the source is the whole bucket, each batch would cause the next batch, forever.

    If the platform's own prefixes are unknown, the command refuses to start.
    """
    world = World(ministack)
    queue = NotificationQueue(queue_records(ministack.config(world.bucket)))
    queue.topics.create("orders", TopicSettings(bucket=world.bucket))
    defs = tmp_path / "defs.yaml"
    s3 = {"endpoint_url": world.server.endpoint_url}
    text = {"name": "orders", "bucket": world.bucket, "platform_prefix": "own/", "s3": s3}
    text["other_platform_prefixes"] = "of/another/project/"
    defs.write_text(f"type: s3notify_platform.S3NotifyComponent\nattributes: {json.dumps(text)}\n")
    arguments = ["http", "--port", "0", "--secret-env", "MY_SECRET"]
    if place == "YAML":
        arguments += ["--defs", str(tmp_path)]
    else:
        arguments += ["--bucket", world.bucket, "--endpoint-url", world.server.endpoint_url]
        arguments += ["--keyspace", "own/keyspace/", ""]
        refused = Command(world, *arguments, MY_SECRET=SECRET)
        try:
            _, err = refused.process.communicate(timeout=30)
        finally:
            refused.process.kill()
        assert refused.process.returncode == 1, err
        assert "--own-prefix" in err
        arguments += ["--own-prefix", "own/", "--own-prefix", "of/another/project/"]
    command = Command(world, *arguments, MY_SECRET=SECRET)
    try:
        port = int(command.printed(r"listening on 127\.0\.0\.1:(\d+)").group(1))
        ours = (
            "own/table/commits/7/1",
            "own/keyspace/_",
            "_s3notify/queue/topics/orders",
            "_s3notify-known/own%2F",
            "of/another/project/keyspace/_",
        )
        _report(port, world, *ours, "raw/a")
        assert [entry.event.key for entry in queue.pending("orders")] == ["raw/a"]
        command.stop()
    finally:
        command.process.kill()


def test_missing_secret_is_named(ministack):
    """If the command listened without a secret, everybody could post false events. Without the variable's name in
    the error, an operator would not know what to set.
    """
    command = Command(World(ministack), "http", "--bucket", "b")
    _, err = command.process.communicate(timeout=30)
    assert command.process.returncode == 1
    assert "S3NOTIFY_RECEIVER_SECRET" in err


@pytest.mark.parametrize("table", [False, True], ids=["bucket alone", "table"])
def test_inlet_needs_exactly_what_its_policy_allows(ministack, table):
    """Without a needed permission, an inlet on AWS could not queue events, move signals or keep poison. With an
    unneeded permission, an intruder in the inlet could read or change other data of the platform.
    """
    source, platform = ministack.make_bucket(), ministack.make_bucket()
    records = ministack.table_config() if table else None
    if records is not None:
        create_record_table(records)
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = replace(ministack.config(platform), endpoint_url=proxy.url)
        through = replace(records, endpoint_url=proxy.url) if records is not None else None
        queue = NotificationQueue(queue_records(config, table=through))
        queue.topics.create("orders", TopicSettings())
        intake = intake_of(
            ServiceContext(
                name="sqs",
                queue=queue,
                platform=config,
                bucket=source,
                keyspaces=(SourceKeyspace(signals=SIGNALS),),
            )
        )
        announced = replace(event("raw/a"), bucket=source)
        large = replace(event("x" * 2000), bucket=source)
        assert intake.accept([announced, large]).outcomes == ("queued", "failed")
        assert intake.poison.discard() == 1
        reservation = queue.reserve("orders", announced)
        queue.abort_many([reservation])
        wanted = needs(proxy.answered)
    places = Places(
        bucket=source,
        prefix="raw/",
        platform_bucket=platform,
        platform_prefix="_s3notify/orders/",
        keyspace_prefix=SIGNALS,
        tables=Tables(records=records.table if records else None),
        account=ACCOUNT,
    )
    assert refused(policy("inlet", places), wanted) == set()
    assert unused(policy("inlet", places), wanted) == set()


def test_inlet_uses_the_number_of_slots_of_the_source(ministack):
    """With another number of slots, the inlet would move the signals of wrong slots, and the source would not look
    for the changed objects. If the inlet queued the platform's own writes, each entry would cause another entry.
    """
    config = ministack.config(ministack.make_bucket())
    queue = NotificationQueue(queue_records(config))
    queue.topics.create("all", TopicSettings(slots=7, shards=1))
    intake = intake_of(
        ServiceContext(
            name="sqs",
            queue=queue,
            platform=config,
            bucket=config.bucket,
            keyspaces=(SourceKeyspace(signals="k/", slots=7),),
            excluded=("own/",),
        )
    )
    announced = [replace(event(key), bucket=config.bucket) for key in ("a", "own/a", "k/3")]
    assert intake.accept(announced).outcomes == ("queued", "ignored", "ignored")
    names = {meta.key for meta in list_all(S3ObjectStore(config), "k/")}
    assert names == {signal_key("k/", slot_of("a", 7)), "k/_"}


@pytest.mark.thorough
def test_inlet_waits_during_an_outage(ministack):
    """If the inlet deleted its messages during an outage, changes would be lost. If the inlet ended with an error,
    changes would wait until somebody starts the inlet again.
    """
    world = World(ministack)
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = replace(ministack.config(world.platform), endpoint_url=proxy.url)
        world.queue = NotificationQueue(queue_records(config))
        world.config = lambda _: config
        inlet = world.inlet()
        proxy.faults.extend(["503", "lose_response", "500", "lose_request"] * 4)
        world.store.put("raw/a", b"1")
        world.store.put("raw/b", b"1")
        with world.running(inlet):
            until(lambda: not world.left(), seconds=60)
        assert not proxy.faults
        assert world.entries().keys() == {("put", "raw/a"), ("put", "raw/b")}
