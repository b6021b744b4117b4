"""The delivery worker with threads and real sockets: slow, dead and returning endpoints at the same time."""

import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from s3notify_platform.channels.delivery.delivery_worker import Delivery
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, Rule, TopicSettings
from s3notify_platform.stores.memory import MemoryRecordStore
from s3notify_platform.stores.open_store import queue_records
from tests.support.endpoints import Receiver, hang, raw_endpoint
from tests.support.http_inlet import SECRET, ceph, post, running
from tests.support.waiting import until

LOOPBACK = Egress.of(["127.0.0.0/8"], allow_http=True)


@pytest.fixture
def queue():
    return NotificationQueue(MemoryRecordStore())


def create(queue, name, url, **fields):
    endpoint = Endpoint(url=url, **{"batch_size": 10, "timeout_seconds": 5.0} | fields)
    queue.topics.create(name, TopicSettings(shards=4, endpoint=endpoint.dumps()))


def push(queue, name, count, first=0):
    queue.push_many(name, [Event(key=f"k{n:04}") for n in range(first, first + count)])


@contextmanager
def delivering(queue, egress=LOOPBACK):
    """Runs a delivery worker and yields its messages; stops it cleanly within seconds."""
    stop, reports = threading.Event(), []
    delivery = Delivery(queue, egress=egress, beat_seconds=0.2)
    thread = threading.Thread(target=delivery.run, args=(stop, reports.append))
    thread.start()
    try:
        yield reports
    finally:
        stopped = time.monotonic()
        stop.set()
        thread.join(10)
        assert time.monotonic() - stopped < 6
        assert not thread.is_alive()


@pytest.mark.thorough
def test_slow_and_dead_endpoints_do_not_delay_others(queue):
    """Otherwise a single hanging endpoint would hold back the events of all other topics. Without a circuit
    breaker, a dead endpoint would get requests without a pause, and its events would become dead letters.
    """
    with (
        Receiver().serving() as fast,
        Receiver(delay=0.5).serving() as slow,
        Receiver(lambda _: 500).serving() as broken,
        raw_endpoint(hang) as hanging,
    ):
        create(queue, "hanging", f"http://127.0.0.1:{hanging}/", timeout_seconds=20.0)
        create(queue, "broken", broken.url)
        create(queue, "refusing", "http://127.0.0.1:9/")
        create(queue, "forbidden", "http://169.254.169.254/latest/meta-data/")
        create(queue, "slow", slow.url, concurrency=2)
        create(queue, "fast", fast.url)
        for name in ("hanging", "broken", "refusing", "forbidden", "slow", "fast"):
            push(queue, name, 200)
        started = time.monotonic()
        with delivering(queue) as reports:
            fast.wait(lambda server: len(server.keys) == 200, seconds=3)
            taken = time.monotonic() - started
            assert len(slow.keys) < 200
            slow.wait(lambda server: len(server.keys) == 200, seconds=20)
        assert taken < 3
        assert slow.most_in_flight <= 2
        assert set(fast.seen.values()) == set(slow.seen.values()) == {1}
        assert broken.tries < 80
        assert any("'forbidden': down" in text and "is not public" in text for text in reports)
    assert queue.stats("broken").depth == queue.stats("hanging").depth == 200
    assert queue.stats("broken").dead == 0


def test_endpoint_that_returns_gets_everything_once(queue):
    """If probes of a refusing endpoint were rare, events would arrive long after the end of the outage. If refused
    connections counted as attempts, events would become dead letters.
    """
    with Receiver().serving() as probe:
        port = probe.port
        create(queue, "t", probe.url)
    push(queue, "t", 300)
    with delivering(queue) as reports:
        until(lambda: any("down" in text for text in reports))
        assert queue.stats("t").depth == 300
        with Receiver(port=port).serving() as back:
            started = time.monotonic()
            back.wait(lambda server: len(server.keys) == 300, seconds=20)
            assert time.monotonic() - started < 15
            until(lambda: queue.stats("t").depth == 0)
            assert set(back.seen.values()) == {1}
    assert queue.stats("t").dead == 0


def test_clean_stop_ends_requests_in_flight(queue):
    """If the worker waited for a hanging endpoint, a clean stop could take a minute. If unfinished entries left the
    queue, the next worker could not deliver their events.
    """
    seen = threading.Event()

    def notice(connection):
        connection.recv(65536)
        seen.set()
        hang(connection)

    with raw_endpoint(notice) as port:
        create(queue, "t", f"http://127.0.0.1:{port}/", timeout_seconds=60.0)
        push(queue, "t", 20)
        with delivering(queue):
            assert seen.wait(10)
    with Receiver().serving() as server:
        queue.topics.update("t", TopicSettings(shards=4, endpoint=Endpoint(url=server.url).dumps()))
        with delivering(queue):
            server.wait(lambda s: len(s.keys) == 20, seconds=15)


def test_refused_event_does_not_block_its_batch(queue):
    """If a refused batch were not split, a single bad event would delay all other events of its batch by a failed
    attempt.
    """

    def answer(keys):
        return 400 if "k0042" in keys else 200

    with Receiver(answer).serving() as server:
        create(queue, "t", server.url)
        push(queue, "t", 200)
        with delivering(queue):
            server.wait(lambda s: len(s.keys) == 199, seconds=15)
    assert set(server.seen.values()) == {1}
    assert [entry.event.key for entry in queue.entries("t", range(1000))] == ["k0042"]


@pytest.mark.server
def test_ceph_events_are_delivered_unchanged(ministack, monkeypatch):
    """The path is a real inlet, a queue on a real bucket, and a real endpoint.

    Event name, version, sequencer, configuration and the topic's opaque data must arrive unchanged. Only events that
    match a rule arrive, and none while the topic is paused.
    """
    monkeypatch.setenv("RECEIVER_SECRET", SECRET)
    config = ministack.config(ministack.make_bucket())
    queue = NotificationQueue(queue_records(config))
    rules = (
        Rule(suffix=".csv", events=("ObjectCreated:*",)),
        Rule(regex=r"raw/\d+/.*", events=("ObjectRemoved:*",)),
    )
    posts = [
        ("raw/a b.csv", "ObjectCreated:CompleteMultipartUpload"),
        ("raw/a.txt", "ObjectCreated:Put"),
        ("raw/12/x", "ObjectRemoved:DeleteMarkerCreated"),
        ("raw/no/x", "ObjectRemoved:DeleteMarkerCreated"),
        ("raw/b.csv", "ObjectRemoved:Delete"),
    ]
    site = SimpleNamespace(intake=Intake(queue, (), bucket="b"))
    with Receiver().serving() as server, running(site) as inlet:
        endpoint = Endpoint(url=server.url, opaque_data="for me").dumps()
        queue.topics.create("hooks", TopicSettings(shards=2, endpoint=endpoint, rules=rules))
        queue.topics.pause("hooks")
        with delivering(queue):
            for number, (key, name) in enumerate(posts):
                message = json.loads(ceph(key, sequencer=f"0{number}"))
                record = message["Records"][0]
                record["eventName"] = name
                record["s3"]["configurationId"] = "mine"
                record["s3"]["object"]["versionId"] = f"v{number}"
                assert post(inlet, json.dumps(message))[0] == 200
            assert (queue.stats("hooks").depth, server.tries) == (2, 0)
            queue.topics.pause("hooks", paused=False)
            server.wait(lambda found: len(found.keys) == 2)
    records = [record for _, body in server.requests for record in json.loads(body)["Records"]]
    found = sorted((record["s3"]["object"]["versionId"], record["eventName"]) for record in records)
    assert found == [("v0", posts[0][1]), ("v2", posts[2][1])]
    assert {record["s3"]["configurationId"] for record in records} == {"mine"}
    assert {record["opaqueData"] for record in records} == {"for me"}
    assert {record["s3"]["object"]["sequencer"] for record in records} == {"00", "02"}
