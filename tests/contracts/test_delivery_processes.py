"""`s3notify topics` and `s3notify deliver` as real processes on a real S3 server: kill -9, clean stops, takeover."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue
from s3notify_platform.stores.open_store import queue_records
from tests.support.endpoints import Receiver
from tests.support.waiting import until

pytestmark = pytest.mark.server

KEY = "0123456789abcdef0123456789abcdef"


class Place:
    """A bucket, its queue, and the commands for it."""

    def __init__(self, server):
        self.bucket = server.make_bucket()
        self.options = ["--bucket", self.bucket, "--endpoint-url", server.endpoint_url]
        self.queue = NotificationQueue(queue_records(server.config(self.bucket)))

    def run(self, *arguments, code=0):
        result = CliRunner().invoke(main, [*arguments, *self.options])
        assert result.exit_code == code, result.output
        return result.output

    def typed(self, *arguments, code=0):
        """Runs a command about topics in a separate process without a terminal; returns its output."""
        command = [sys.executable, "-m", "s3notify_platform.cli", "topics", *arguments, *self.options]
        ran = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout

    def stats(self, name):
        return json.loads(self.run("topics", "stats", name, "--json"))[0]

    def push(self, name, count, first=0):
        events = [Event(key=f"k{n:04}", bucket=self.bucket) for n in range(first, first + count)]
        for start in range(0, count, 10):  # all entries of a batch go to one shard
            self.queue.push_many(name, events[start:][:10])

    def owned(self, name):
        """The number of shards of each worker."""
        record = self.queue.records.read("owners", name)
        owners = [worker for worker, *_ in json.loads(record.value)["shards"]] if record else []
        return {worker: owners.count(worker) for worker in owners if worker}

    @contextmanager
    def deliver(self, *extra):
        command = [sys.executable, "-m", "s3notify_platform.cli", "deliver", *self.options]
        environment = os.environ | {"S3NOTIFY_PUSH_KEY": KEY}
        with subprocess.Popen(
            [*command, "--allow-network", "127.0.0.0/8", "--allow-http", *extra],
            env=environment, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                process.stderr.close()


@pytest.fixture
def place(ministack, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return Place(ministack)


@pytest.mark.thorough
def test_delivery_continues_within_15_seconds_of_kill_9(place):
    """Otherwise the events of the killed worker's shards would wait until somebody starts a worker again. If entries
    left the queue before their delivery, the events that the killed worker was delivering would be lost.
    """
    with Receiver(secret=KEY.encode(), delay=0.05).serving() as server:
        place.run("topics", "create", "t", "--url", server.url, "--secret-env", "S3NOTIFY_PUSH_KEY")
        with place.deliver() as first, place.deliver():
            until(lambda: sorted(place.owned("t").values()) == [4, 4])
            place.push("t", 400)
            server.wait(lambda s: len(s.keys) > 40)
            first.kill()
            killed = time.monotonic()
            first.wait()
            place.push("t", 100, first=400)
            server.wait(lambda s: len(s.keys) == 500, seconds=20)
            taken = time.monotonic() - killed
            assert taken < 15 + 2, taken
            until(lambda: place.stats("t")["depth"] == 0)
        print(f"all entries arrived after {taken:.1f} s, {sum(server.seen.values()) - 500} of them twice")
    assert sum(server.seen.values()) - 500 <= 8 * 256
    assert place.stats("t")["dead"] == 0


@pytest.mark.thorough
def test_delivery_continues_at_once_after_a_clean_stop(place):
    """If a stopped worker kept its shards, each restart would delay events until the worker's leases expire. If
    requests in flight were cut off, endpoints would get some events twice.
    """
    with Receiver().serving() as server:
        place.run("topics", "create", "t", "--url", server.url)
        with place.deliver() as first, place.deliver():
            until(lambda: sorted(place.owned("t").values()) == [4, 4])
            place.push("t", 50)
            server.wait(lambda s: len(s.keys) > 10)
            first.terminate()
            stopped = time.monotonic()
            assert first.wait(10) == 0
            assert time.monotonic() - stopped < 6
            said = first.stderr.read()
            place.push("t", 50, first=50)
            server.wait(lambda s: len(s.keys) == 100, seconds=8)
        assert set(server.seen.values()) == {1}
        assert "deliver: delivered=" in said
        assert KEY not in said


def test_topics_are_managed_by_command(place):
    """If `create` changed an existing topic, or `update` lost settings that its arguments do not name, an operator
    would change deliveries unknowingly. Without the exit code 1, a script would continue after a wrong argument.
    """
    assert "pulled" in place.run("topics", "create", "plain", "--prefix", "raw/")
    place.run("topics", "create", "plain", "--prefix", "raw/")
    assert "other settings" in place.run("topics", "create", "plain", "--prefix", "other/", code=1)
    url = "https://hooks.example.com/a"
    made = place.run(
        "topics", "create", "hook", "--url", url, "--shards", "2", "--batch-size", "7", "--ttl-hours", "0",
        "--max-attempts", "1", "--capacity", "50",
    )  # fmt: skip
    assert url in made
    listed = {topic["name"]: topic for topic in json.loads(place.run("topics", "list", "--json"))}
    assert listed["plain"]["bucket"] == place.bucket
    assert listed["plain"]["endpoint"] is None
    assert listed["hook"]["endpoint"] == {"url": url, "batch_size": 7}
    assert (listed["hook"]["ttl_seconds"], listed["hook"]["shards"], listed["hook"]["capacity"]) == (
        None,
        2,
        50,
    )
    shown = place.run("topics", "list")
    assert "hook" in shown
    assert "…" not in shown  # long cells are folded, not truncated

    place.run("topics", "update", "hook", "--timeout-seconds", "3", "--max-attempts", "2")
    listed = {topic["name"]: topic for topic in json.loads(place.run("topics", "list", "--json"))}
    assert listed["hook"]["endpoint"] == {"url": url, "batch_size": 7, "timeout_seconds": 3.0}
    assert listed["hook"]["max_attempts"] == 2
    place.run("topics", "update", "hook", "--url", "")
    listed = {topic["name"]: topic for topic in json.loads(place.run("topics", "list", "--json"))}
    assert listed["hook"]["endpoint"] is None
    assert "needs --url" in place.run("topics", "update", "hook", "--batch-size", "3", code=1)

    for arguments in (
        ["create", "x", "--url", "ftp://example.com/"],
        ["create", "x", "--url", url, "--secret-env", "AWS_SECRET_ACCESS_KEY"],
        ["create", "Not A Name"],
        ["update", "nothing"],
        ["stats", "nothing"],
        ["dead", "nothing"],
        ["redrive", "nothing"],
        ["delete", "nothing", "--yes"],
    ):
        place.run("topics", *arguments, code=1)

    place.push("plain", 3)
    assert place.stats("plain")["depth"] == 3
    assert "plain" in place.run("topics", "stats")
    place.run("topics", "delete", "plain", "--yes")
    assert [topic["name"] for topic in json.loads(place.run("topics", "list", "--json"))] == ["hook"]


def test_paused_topic_is_inspected_and_purged(place):
    """If a worker that starts during the pause delivered the topic, its endpoint would get events that an operator
    holds back. If `purge` deleted waiting entries, or worked without a confirmation, a mistake would lose events.
    """
    broken = [True]
    with Receiver(lambda _: 400 if broken[0] else 200).serving() as server:
        hook = ["--url", server.url, "--shards", "2", "--max-attempts", "1"]
        place.run("topics", "create", "t", *hook)
        place.push("t", 3)
        with place.deliver() as first:
            until(lambda: place.stats("t")["dead"] == 3)
            first.terminate()
            assert first.wait(10) == 0
        broken[0] = False
        place.run("topics", "create", "other", *hook)
        assert place.typed("pause", "t") == "topic 't': paused\n"
        place.push("t", 5, first=3)
        with place.deliver():
            until(lambda: [*place.owned("t").values()] == [2])
            place.push("other", 5, first=100)
            server.wait(lambda s: len(s.keys) == 5)

            waiting = [f"k{n:04}" for n in range(3, 8)]
            lines = [json.loads(line) for line in place.typed("dump", "t").splitlines()]
            assert sorted(line["key"] for line in lines) == waiting
            assert {(line["state"], line["bucket"], line["attempts"]) for line in lines} == {
                ("committed", place.bucket, 0)
            }
            some = [json.loads(line)["id"] for line in place.typed("dump", "t", "--limit", "2").splitlines()]
            assert some == [line["id"] for line in lines[:2]]

            shown = json.loads(place.typed("show", "t", "--json"))
            assert (shown["paused"], shown["depth"], shown["dead"]) == (True, 5, 3)
            assert shown["endpoint"]["url"] == server.url
            assert [shard["worker"] for shard in shown["shards"]] == [*place.owned("t")] * 2
            assert sum(shard["depth"] for shard in shown["shards"]) == 5
            assert place.typed("show", "t").splitlines()[0].endswith("; paused")

            assert "3 dead letters\n" in place.typed("purge", "t", code=1)
            assert place.stats("t")["dead"] == 3
            assert place.typed("purge", "t", "--yes").endswith("3 dead letters deleted\n")
            assert (place.stats("t")["dead"], place.stats("t")["depth"]) == (0, 5)
            assert sorted(server.keys) == [f"k{n:04}" for n in range(100, 105)]

            assert place.typed("resume", "t") == "topic 't': resumed\n"
            server.wait(lambda s: set(waiting) <= set(s.keys))
            until(lambda: place.typed("dump", "t") == "")
    assert set(server.seen.values()) == {1}
    place.run("topics", "create", "pulled")
    for arguments in (["pause", "pulled"], *([name, "none"] for name in ("show", "dump", "pause", "purge"))):
        place.typed(*arguments, code=1)


def test_dead_letters_are_shown_and_redriven(place):
    """Without the endpoint's answer in the list, an operator would not know what to correct. Without `redrive`,
    events that a wrong endpoint has refused would never arrive.
    """
    broken = [True]
    with Receiver(lambda _: 400 if broken[0] else 200, body=b"no such column").serving() as server:
        place.run("topics", "create", "t", "--url", server.url, "--max-attempts", "1")
        place.push("t", 3)
        with place.deliver():
            until(lambda: place.stats("t")["dead"] == 3)
            letters = json.loads(place.run("topics", "dead", "t", "--json"))
            assert {letter["reason"] for letter in letters} == {"1 attempts: HTTP 400 no such column"}
            assert "no such column" in place.run("topics", "dead", "t")
            broken[0] = False
            assert "1 dead letters" in place.run("topics", "redrive", "t", "k0001")
            assert "2 dead letters" in place.run("topics", "redrive", "t")
            server.wait(lambda s: len(s.keys) == 3)
            until(lambda: place.stats("t")["depth"] == 0)
