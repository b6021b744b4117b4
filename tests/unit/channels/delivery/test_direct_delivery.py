"""Topics that are not persistent: the publisher sends each change once, and the write succeeds even if the
sending fails.
"""

import json
import logging
import threading
from dataclasses import replace

import pytest

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint, verify_signature
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ABSENT, Conflict, Unknown, Written
from s3notify_platform.protocols.keyspace import Delete, Put
from s3notify_platform.protocols.notification_queue import Event, Rule
from tests.support.endpoints import Receiver, hang, raw_endpoint, read_request
from tests.support.faults import Fault, at
from tests.support.pushing import LOOPBACK
from tests.support.queued_publisher import World
from tests.support.waiting import until


@pytest.fixture
def world():
    return World()


@pytest.fixture
def publishing(world):
    """A publisher whose connections are closed after the test."""
    made = []

    def publisher(egress=LOOPBACK, **faults):
        made.append(world.publisher(egress=egress, **faults))
        return made[-1]

    yield publisher
    for each in made:
        each.direct.close()


def topic(world, url, name="now", *, settings=None, **endpoint):
    """Creates a topic that is not persistent."""
    text = Endpoint(url=url, **endpoint).dumps()
    world.topic(name, persistent=False, endpoint=text, **(settings or {}))


def records_of(receiver):
    return [record for _, body in receiver.requests for record in json.loads(body)["Records"]]


def test_a_change_is_sent_before_the_call_returns(world, publishing, monkeypatch):
    """Otherwise a caller could not rely on the notification, or receivers could not parse or verify it. Nothing is
    queued, so the signal does not have the mark of queued writers, and consumers list the bucket.
    """
    monkeypatch.setenv("S3NOTIFY_PUSH_KEY", "0123456789abcdef")
    publisher = publishing()
    with Receiver().serving() as server:
        rule = Rule(id="mine", suffix=".csv")
        topic(world, server.url, settings={"rules": (rule,)}, secret_env="S3NOTIFY_PUSH_KEY", opaque_data="o")
        written = publisher.put("a.csv", b"12345", metadata={"team": "sales"})
        assert server.keys == {"a.csv": 1}
        publisher.delete("a.csv")
        publisher.put("a.txt", b"1")
        put, deletion = records_of(server)
        assert server.connections == 1
        headers, body = server.requests[0]
    assert verify_signature(
        headers["s3notify-signature"],
        body,
        event_ids=headers["s3notify-event-ids"],
        secrets=[b"0123456789abcdef"],
        now_seconds=world.clock.wall_ms() / 1000,
    )
    assert (put["eventName"], deletion["eventName"]) == ("ObjectCreated:Put", "ObjectRemoved:Delete")
    found = put["s3"]["object"]
    assert (found["eTag"], found["size"], put["opaqueData"]) == (written.etag, 5, "o")
    assert put["s3"]["configurationId"] == "mine"
    assert {"key": "x-amz-meta-team", "val": "sales"} in found["metadata"]
    assert int(found["sequencer"], 16) > 0
    assert publisher.direct.counts() == {"sent": 2, "unsent": 0}
    assert (world.announced("now"), world.queue.stats("now").counted) == ([], 0)
    assert world.mark("a.csv") is None


def test_changes_of_large_objects_are_sent_too(world, publishing, tmp_path):
    """Otherwise the endpoint would get no notification of an upload in many parts."""
    file = tmp_path / "large"
    file.write_bytes(b"x" * 20)
    publisher = publishing()
    with Receiver().serving() as server:
        topic(world, server.url)
        publisher.put_file("large", file)
        (record,) = records_of(server)
    assert (record["s3"]["object"]["key"], record["s3"]["object"]["size"]) == ("large", 20)


def test_persistent_topics_get_their_entries_although_another_topic_has_no_queue(world, publishing):
    """Otherwise one topic without a queue would change the events that the other topics get."""
    world.topic()
    publisher = publishing()
    with Receiver(lambda _: 500).serving() as server:
        topic(world, server.url)
        publisher.put("a", b"1")
        assert server.tries == 1
    assert [key for _, key, _ in world.announced("t")] == ["a"]
    assert world.mark("a") == "1"


def test_changes_that_did_not_happen_are_not_sent(world, publishing):
    """Otherwise a receiver would learn of a change that was refused, or that may never happen."""
    publisher = publishing(objects=at("put", Fault.REFUSED, key="lost"))
    world.objects.put("old", b"1")
    with Receiver().serving() as server:
        topic(world, server.url)
        assert publisher.put("old", b"2", precondition=ABSENT) == Conflict()
        assert isinstance(publisher.put("lost", b"1"), Unknown)
        publisher.put("new", b"1")
        assert server.keys == {"new": 1}


@pytest.mark.parametrize("status", [500, 429, 302])
def test_a_refused_notification_is_lost_and_counted(world, publishing, caplog, status):
    """Otherwise a refusal would make the write fail, would cause a second attempt, or would not be noticed."""
    publisher = publishing()
    with Receiver(lambda _: status, body=b"no\x1b[31m").serving() as server, caplog.at_level(logging.WARNING):
        topic(world, server.url)
        assert isinstance(publisher.put("a", b"1"), Written)
        assert isinstance(publisher.put("b", b"1"), Written)
        assert server.tries == 2
    assert publisher.direct.counts() == {"sent": 0, "unsent": 2}
    (line,) = caplog.messages  # the log must not have a line for each change
    assert f"topic 'now' is not persistent, and 1 of its events were not sent: HTTP {status}" in line
    assert line.isprintable()


def test_a_silent_endpoint_delays_the_call_by_one_timeout(world, publishing):
    """Otherwise a batch, or a second topic, would multiply the time that a writer waits."""
    publisher = publishing()
    with raw_endpoint(hang) as port, Receiver().serving() as server:
        for name in ("one", "two"):
            topic(world, f"http://127.0.0.1:{port}/", name, timeout_seconds=0.5, batch_size=1)
        topic(world, server.url)
        began = SYSTEM_CLOCK.monotonic()
        outcomes = publisher.publish([Put(key=f"k{n}", body=b"1") for n in range(20)])
        assert SYSTEM_CLOCK.monotonic() - began < 5
        assert len(server.keys) == 20
    assert {type(outcome) for outcome in outcomes} == {Written}
    assert publisher.direct.counts() == {"sent": 20, "unsent": 40}


def test_each_thread_of_a_writer_waits_at_most_one_timeout(world, publishing):
    """Otherwise each thread would wait for the timeouts of all earlier threads, or requests would wait in memory, and
    would be sent long after the calls have returned.
    """
    publisher = publishing()
    begun = []

    def silent(connection):
        begun.append(connection)
        hang(connection)

    with raw_endpoint(silent) as port:
        topic(world, f"http://127.0.0.1:{port}/", timeout_seconds=0.5, concurrency=1)
        began = SYSTEM_CLOCK.monotonic()
        threads = [threading.Thread(target=publisher.put, args=(f"k{n}", b"1")) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert SYSTEM_CLOCK.monotonic() - began < 5
        until(lambda: all(each.name != "direct delivery" for each in threading.enumerate()))
        assert len(begun) < 8
    assert publisher.direct.counts() == {"sent": 0, "unsent": 16}


def test_a_request_without_an_answer_is_not_repeated(world, publishing):
    """Otherwise an endpoint that took an event, and then closed its kept connection, would get the event twice."""
    publisher = publishing()
    got = []

    def closes_after_the_second(connection):
        for _ in range(2):
            _, body = read_request(connection)
            got.append(json.loads(body)["Records"][0]["s3"]["object"]["key"])
            if got[-1] != "b":
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with raw_endpoint(closes_after_the_second) as port:
        topic(world, f"http://127.0.0.1:{port}/")
        for key in ("a", "b", "c"):
            publisher.put(key, b"1")
    assert got == ["a", "b", "c"]
    assert publisher.direct.counts() == {"sent": 2, "unsent": 1}


@pytest.mark.parametrize(
    ("egress", "named", "why"),
    [
        (LOOPBACK, {"secret_env": "S3NOTIFY_PUSH_ABSENT"}, "set S3NOTIFY_PUSH_ABSENT, the HMAC key"),
        (LOOPBACK, {"login_env": "S3NOTIFY_SEND_ABSENT"}, "S3NOTIFY_SEND_ABSENT"),
        (None, {}, "does not allow http"),
        (Egress.of([], allow_http=True), {}, "is not public"),
    ],
    ids=["secret", "login", "encryption", "network"],
)
def test_an_endpoint_that_this_process_may_not_use_gets_nothing(  # noqa: PLR0917 - fixtures
    world, publishing, caplog, egress, named, why
):
    """Otherwise the creator of a topic could make a writer send to a host that only the writer can reach. The creator
    could also stop all writers, by an endpoint that names an environment variable which the writers do not have.
    """
    publisher = publishing(egress=egress)
    with Receiver().serving() as server, caplog.at_level(logging.WARNING):
        topic(world, server.url, **named)
        assert isinstance(publisher.put("a", b"1"), Written)
        assert server.tries == 0
    assert publisher.direct.counts() == {"sent": 0, "unsent": 1}
    assert why in caplog.text


def test_a_refused_request_does_not_stop_the_next_one(world, publishing):
    """Otherwise all events of a large batch would be lost because of one bad event."""
    publisher = publishing()
    with Receiver(lambda keys: 400 if "k1" in keys else 200).serving() as server:
        topic(world, server.url, batch_size=2)
        publisher.publish([Put(key=f"k{n}", body=b"1") for n in range(5)] + [Delete(key="gone")])
        assert server.keys == {"k2": 1, "k3": 1, "k4": 1, "gone": 1}
        assert server.tries == 3
    assert publisher.direct.counts() == {"sent": 4, "unsent": 2}


def test_the_new_endpoint_of_a_changed_topic_is_used_without_a_restart(world, publishing):
    """Otherwise a writer would still use a former endpoint or a deleted topic, until the writer is restarted."""
    queue = world.queue
    publisher = publishing(queue=queue)
    with Receiver().serving() as old, Receiver().serving() as new:
        topic(world, old.url)
        publisher.put("a", b"1")
        moved = Endpoint(url=new.url).dumps()
        queue.topics.revise("now", lambda topic: replace(topic.settings, endpoint=moved))
        publisher.put("b", b"1")
        queue.topics.delete("now")
        publisher.put("c", b"1")
        assert (old.keys, new.keys) == ({"a": 1}, {"b": 1})


def test_an_outage_of_the_queue_after_the_write_loses_the_notification(world, publishing):
    """Otherwise a written object would be reported as failed. The loss is counted only if the publisher knew before the
    outage that a topic has no queue.
    """
    down = []
    publisher = publishing(records=lambda call: Fault.THROTTLED if call.method in down else Fault.NONE)
    event = Event(key="b", bucket="b")
    with Receiver().serving() as server:
        topic(world, server.url)
        publisher.put("a", b"1")
        down.append("scan")
        world.clock.now += 60
        assert publisher.direct.send("b", [event]) == [False]
        assert server.keys == {"a": 1}
    assert publisher.direct.counts() == {"sent": 1, "unsent": 1}
    plain = publishing(records=lambda _: Fault.THROTTLED)
    assert plain.direct.send("b", [event]) == [False]
    assert plain.direct.counts() == {"sent": 0, "unsent": 0}


def test_a_topic_without_a_queue_needs_an_endpoint_and_cannot_be_paused(world):
    """Otherwise changes of the topic would be neither sent nor kept."""
    with pytest.raises(UsageError, match="needs an endpoint"):
        world.topic("bad", persistent=False)
    topic(world, "https://hooks.example.com/")
    topics = world.queue.topics
    with pytest.raises(UsageError, match="no queue would keep its changes"):
        topics.pause("now")
    topics.revise("now", lambda topic: replace(topic.settings, persistent=True))
    topics.pause("now")
    with pytest.raises(UsageError, match="resume it first"):
        topics.revise("now", lambda topic: replace(topic.settings, persistent=False))
