"""Delivery to real brokers, RabbitMQ and Kafka. An entry leaves the queue after the broker has acknowledged it."""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from s3notify_platform.channels.delivery.delivery_worker import Delivery
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Down, connect
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    TopicSettings,
    decode_events,
)
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.brokers import Broker, Kafka, RabbitMQ, running_broker
from tests.support.pushing import entry
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

EGRESS = Egress.of(["127.0.0.0/8"], allow_http=True, kafka_hosts=["127.0.0.1"])


@pytest.fixture(scope="module", params=[RabbitMQ, Kafka], ids=["rabbitmq", "kafka"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(request.param, tmp_path_factory.mktemp("broker")) as found:
        yield found


@pytest.fixture
def queue() -> NotificationQueue:
    return NotificationQueue(MemoryRecordStore())


def create(queue: NotificationQueue, name: str, url: str, **fields: object) -> None:
    endpoint = Endpoint(url=url, **{"batch_size": 20, "timeout_seconds": 10.0} | fields)
    queue.topics.create(name, TopicSettings(shards=4, endpoint=endpoint.dumps()))


def push(queue: NotificationQueue, name: str, count: int, first: int = 0) -> set[str]:
    keys = [f"raw/ä {n:04}" for n in range(first, first + count)]
    queue.push_many(name, [Event(key=key, bucket="b") for key in keys])
    return {*keys}


def decode_all(messages: Iterable[bytes]) -> set[str]:
    return {event.key for message in messages for event in decode_events(message).events}


@contextmanager
def delivering(queue: NotificationQueue) -> Iterator[list[str]]:
    stop, reports = threading.Event(), []
    delivery = Delivery(queue, egress=EGRESS, beat_seconds=0.2)
    thread = threading.Thread(target=delivery.run, args=(stop, reports.append))
    thread.start()
    try:
        yield reports
    finally:
        stop.set()
        thread.join(15)
        assert not thread.is_alive()


def test_each_event_arrives_once(broker: Broker, queue: NotificationQueue) -> None:
    """Each event must be a single message, in each format. Otherwise a consumer would miss events, or would process
    an event twice. If a message had another id than its entry, a consumer could not recognise a repeated delivery.
    """
    for name in ("s3", "cloudevents"):
        create(queue, name, broker.make(name), format=name)
        keys = push(queue, name, 100)
        ids = {found.id for found in queue.entries(name, map(Slot, range(1000)))}
        with delivering(queue):
            until(lambda name=name: queue.stats(name).depth == 0, seconds=60)
        received = broker.received(name)
        assert sorted(event_id for event_id, _ in received) == sorted(ids)
        messages = [json.loads(body) for _, body in received]
        if name == "s3":
            assert all(len(message["Records"]) == 1 for message in messages)
        else:
            assert {message["subject"] for message in messages} == keys
            assert {message["id"] for message in messages} == ids
            assert {message["type"] for message in messages} == {"com.amazonaws.s3.ObjectCreated:Put"}


def test_killed_broker_loses_no_event(broker: Broker, queue: NotificationQueue) -> None:
    """If an entry left the queue before the broker has confirmed the message, a kill of the broker would lose the
    event. If an outage used up attempts, events would become dead letters, although their endpoint is correct.
    """
    create(queue, "kills", broker.make("kills"), timeout_seconds=5.0)
    broker.restart()
    keys = set()
    with delivering(queue) as reports:
        for turn in range(3):
            keys |= push(queue, "kills", 300, first=300 * turn)
            until(lambda: queue.stats("kills").depth < 300, seconds=60, why=lambda: str(reports))
            broker.kill()
            broker.start()
        until(lambda: queue.stats("kills").depth == 0, seconds=120, why=lambda: str(reports))
    assert queue.stats("kills").dead == 0
    arrived = decode_all(body for _, body in broker.received("kills"))
    assert arrived == keys


def test_unreachable_broker_does_not_count_as_an_attempt(broker: Broker) -> None:
    """Otherwise an outage of the broker would use up the attempts of an entry."""
    url = broker.make("there")
    broker.restart()
    push = connect(Endpoint(url=url, timeout_seconds=5.0), EGRESS)
    try:
        assert push.post_many("there", [[entry(1)], [entry(2)]]) == [Delivered(), Delivered()]
        broker.kill()
        (answer,) = push.post_many("there", [[entry(3)]])
        assert isinstance(answer, Down)
        (answer,) = push.post_many("there", [[entry(3)]])
        assert isinstance(answer, Down)
        assert not answer.reached
    finally:
        push.close()
        broker.start()
    assert {event_id for event_id, _ in broker.received("there")} == {"id.1", "id.2"}


def test_missing_topic_is_an_outage(broker: Broker) -> None:
    """Otherwise, events for this topic would become dead letters."""
    url = broker.make("made").replace("made", "unmade")
    push = connect(Endpoint(url=url, timeout_seconds=5.0), EGRESS)
    try:
        (answer,) = push.post_many("t", [[entry(1), entry(2)]])
    finally:
        push.close()
    assert isinstance(answer, Down)


def test_broker_logins_and_certificates(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the broker's certificate were not checked, another server could get the password and the events. If a wrong
    login counted as an attempt, events would become dead letters. A password in an error would appear in the
    worker's output.
    """
    broker.make("secured")
    right, wrong = f"{broker.user}:{broker.password}", f"{broker.user}:wrong-password"
    egress = replace(EGRESS, allow_http=False, ca_folder=broker.folder)
    given = {"url": broker.secured("secured"), "login_env": "S3NOTIFY_SEND_BROKER", "timeout_seconds": 5.0}
    for login, more in ((right, {}), (wrong, {"ca_file": broker.ca_file.name})):
        monkeypatch.setenv("S3NOTIFY_SEND_BROKER", f"127.0.0.1 basic {login}")
        made = connect(Endpoint(**given, **more), egress)
        (answer,) = made.post_many("t", [[entry(1)]])
        made.close()
        assert isinstance(answer, Down)
        assert not answer.reached
        assert "wrong-password" not in repr(answer)
    assert broker.received("secured") == []
    monkeypatch.setenv("S3NOTIFY_SEND_BROKER", f"127.0.0.1 basic {right}")
    made = connect(Endpoint(**given, ca_file=broker.ca_file.name), egress)
    assert made.post_many("t", [[entry(1)]]) == [Delivered()]
    made.close()
    assert [event_id for event_id, _ in broker.received("secured")] == ["id.1"]


def test_kafka_brokers_are_named_by_the_operator() -> None:
    """The list of permitted networks does not apply to Kafka, so an operator must permit each broker by its name."""
    with pytest.raises(UsageError, match=r"--allow-kafka kafka\.example\.com"):
        connect(Endpoint(url="kafkas://kafka.example.com/t"), EGRESS)


def test_messages_arrive_at_each_acknowledgement_level(broker: Broker) -> None:
    """Without an error at the level `routable`, an event for which RabbitMQ has no queue would be lost unnoticed.
    With an error at another level, the endpoint would count as down, although its topic permits the loss.
    """
    url, rabbit = broker.make("levels"), isinstance(broker, RabbitMQ)
    levels = ("none", "broker", "routable") if rabbit else ("none", "broker")
    for number, ack in enumerate(levels):
        at = f"{url}{'&' if '?' in url else '?'}ack={ack}"
        made = connect(Endpoint(url=at, timeout_seconds=10.0), EGRESS)
        assert made.post_many("levels", [[entry(2 * number), entry(2 * number + 1)]]) == [Delivered()]
        made.close()
        if rabbit:
            made = connect(Endpoint(url=at.replace("levels", "nowhere"), timeout_seconds=5.0), EGRESS)
            (answer,) = made.post_many("nowhere", [[entry(9)]])
            made.close()
            assert isinstance(answer, Down) == (ack == "routable")
    received: set[str] = set()
    until(
        lambda: len(received.update(i for i, _ in broker.received("levels")) or received) == 2 * len(levels),
        seconds=20,
    )
    assert received == {f"id.{n}" for n in range(2 * len(levels))}


@pytest.mark.parametrize("broker", [Kafka], indirect=True, ids=["kafka"])
def test_second_broker_is_used_if_the_first_is_unreachable(broker: Kafka) -> None:
    """Otherwise nothing would be delivered until the first broker works again."""
    url = broker.make("further")
    there = f"127.0.0.1:{broker.port}"
    made = connect(
        Endpoint(url=f"{url.replace(there, '127.0.0.1:9')}?brokers={there}", timeout_seconds=20.0), EGRESS
    )
    assert made.post_many("further", [[entry(1)]]) == [Delivered()]
    made.close()


@pytest.mark.parametrize("broker", [RabbitMQ], indirect=True, ids=["rabbitmq"])
def test_full_queue_is_an_outage(broker: RabbitMQ, queue: NotificationQueue) -> None:
    """RabbitMQ refuses messages for a full queue (nack). Otherwise, waiting entries would become dead letters."""
    url = broker.make("full", **{"x-max-length": 30, "x-overflow": "reject-publish"})
    create(queue, "full", url, concurrency=1)
    keys = push(queue, "full", 100)
    with delivering(queue) as reports:
        until(lambda: any("down: not confirmed: the broker refused" in text for text in reports))
        attempts = [entry.attempts for entry in queue.entries("full", map(Slot, range(1000)))]
        assert sum(attempts) < 50
        messages = broker.received("full")
        until(lambda: messages.extend(broker.received("full")) or queue.stats("full").depth == 0, seconds=120)
    assert queue.stats("full").dead == 0
    assert decode_all(body for _, body in messages + broker.received("full")) == keys
