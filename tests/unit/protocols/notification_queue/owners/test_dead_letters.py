"""Dead letters: entries whose attempts or time are used up, and which may be sent again."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import FencedError
from s3notify_platform.protocols.notification_queue import (
    DeadLettered,
    NotificationQueue,
    QuotaExceeded,
    TopicSettings,
    WillRetry,
)
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.counted import CountedRecords
from tests.support.faults import CrashedError, Fault, at
from tests.unit.protocols.notification_queue.helpers import keys, over
from tests.unit.protocols.notification_queue.owners.helpers import PUSHED, owner, push, succeed


def test_expire_makes_dead_letters_only_of_exhausted_entries(queue, clock):
    """Otherwise an outage would dead-letter entries too early, or a fenced owner would dead-letter its successor's
    entries.
    """
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, ttl_seconds=60, endpoint="{}"))
    push(queue, *"abcd")
    worker, consumer = owner(queue)
    (held,) = consumer.take(1)
    assert consumer.expire() == 0
    for _ in range(35):
        clock.now += 2
        worker.balance()
    push(queue, "new")
    assert consumer.expire() == 3
    assert len(queue.dead("t")) == 3
    assert queue.stats("t").depth == 2
    assert consumer.done([held]) == 1
    assert keys((*consumer.take(5), *consumer.take(5))) == ["new"]
    succeed(queue, clock)
    with pytest.raises(FencedError):
        consumer.expire()


def test_expire_reads_each_segment_once_on_a_bucket(clock):
    """Otherwise an outage of an endpoint would cost a read of each waiting segment every 30 s."""
    objects = CountedRecords(MemoryObjectStore())
    queue = NotificationQueue(ObjectRecordStore(objects, "q/", clock=clock), clock=clock)
    queue.topics.create("t", PUSHED)
    for key in "abcde":
        push(queue, key)
    _, consumer = owner(queue)
    assert objects.cost(consumer.expire) == {"list": 1, "get": 5}
    assert objects.cost(consumer.expire) == {"list": 1}
    push(queue, "f")
    assert objects.cost(consumer.expire) == {"list": 1, "get": 1}


def test_an_entry_without_attempts_left_becomes_a_dead_letter(queue, clock):
    """Otherwise an entry would be retried for ever, would still take room in the topic, or could not be sent again."""
    push(queue, "a")
    worker, consumer = owner(queue)
    outcome = None
    while not isinstance(outcome, DeadLettered):
        clock.now += 4
        worker.balance()
        for entry in consumer.take(1):
            outcome = consumer.failed(entry, "400 " + "x" * 1000)
    assert outcome.reason.startswith("3 attempts: 400")
    (letter,) = queue.dead("t")
    assert (letter.attempts, letter.state) == (3, "dead")
    assert len(letter.last_error) == 500
    stats = queue.stats("t")
    assert (stats.depth, stats.counted, stats.dead, stats.failed) == (0, 0, 1, 3)
    assert queue.redrive("t", keys=["other"]) == (0, ())
    assert queue.redrive("t") == (1, ())
    assert queue.dead("t") == ()
    (entry,) = consumer.take(1)
    assert entry.attempts == 1


def test_redrive_stops_if_the_topic_is_full(queue, clock):
    """Otherwise a dead letter would be lost because the topic is full."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, *"abc")
    _, consumer = owner(queue)
    for entry in consumer.take(3):
        assert isinstance(consumer.failed(entry, "no"), DeadLettered)
    queue.topics.update("t", TopicSettings(capacity=2, shards=1, max_attempts=1, endpoint="{}"))
    assert isinstance(queue.redrive("t"), QuotaExceeded)
    assert len(queue.dead("t")) == 1
    assert queue.stats("t").depth == 2


def test_redrive_leaves_only_the_letters_that_are_too_large_now(queue):
    """Otherwise one letter would prevent a second delivery of all letters behind it."""
    settings = TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}")
    queue.topics.update("t", settings)
    push(queue, "a", "b" * 500, "c")
    _, consumer = owner(queue)
    for entry in consumer.take(3):
        consumer.failed(entry, "no")
    large = [letter for letter in queue.dead("t") if len(letter.event.key) > 1]
    queue.topics.update("t", replace(settings, max_event_bytes=400))
    assert queue.redrive("t") == (2, tuple(large))
    assert keys(consumer.take(3)) == ["a", "c"]
    assert queue.dead("t") == tuple(large)
    queue.topics.update("t", settings)
    assert queue.redrive("t") == (1, ())


def test_an_entry_without_time_left_becomes_a_dead_letter(queue, clock):
    """Otherwise the time to live would include time without an owner, or would start again with each owner."""
    settings = TopicSettings(capacity=20, shards=1, max_attempts=99, ttl_seconds=60, endpoint="{}")
    queue.topics.update("t", settings)
    push(queue, "a")
    clock.now += 1000  # without an owner, this time does not count
    for rounds in (12, 40):
        worker, consumer = owner(queue)
        for _ in range(rounds):
            for entry in consumer.take(1):
                assert not isinstance(consumer.failed(entry, "down"), DeadLettered)
            clock.now += 3
            worker.balance()
        worker.stop()
    (letter,) = queue.dead("t")
    assert letter.reason == "older than 60 s: down"
    assert 60 <= letter.waited_seconds < 64


def test_an_exhausted_entry_is_not_tried_by_the_next_owner(queue, clock):
    """Otherwise an entry would get one delivery more than allowed if its owner died at the last attempt."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, "a")
    _, consumer = owner(queue)
    assert keys(consumer.take(1)) == ["a"]
    clock.now += 1
    _, successor = succeed(queue, clock)
    clock.now += 2
    assert successor.take(1) == ()
    assert keys(queue.dead("t")) == ["a"]


@pytest.mark.parametrize("method", ["create", "remove"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_an_interrupted_dead_lettering_is_finished_by_the_next_owner(queue, records, clock, method, fault):
    """Otherwise an entry would get two dead letters or none, would be delivered again, or would use room in the topic
    for ever.
    """
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, "a")
    nth = {"create": 2, "remove": 0}[method]  # the records of the worker and the owners are created first
    _, consumer = owner(over(records, clock, at(method, fault, nth=nth)))
    (entry,) = consumer.take(1)
    with pytest.raises(CrashedError):
        consumer.failed(entry, "no")
    _, successor = succeed(queue, clock)
    assert successor.take(1) == ()
    assert keys(queue.dead("t")) == ["a"]
    assert queue.stats("t").depth == 0


def test_an_entry_stays_in_the_queue_until_its_dead_letter_is_written(queue, records, clock):
    """Otherwise an entry would be lost, because neither the queue nor a dead letter would have it."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, "a")
    down = []

    def schedule(call):
        return Fault.THROTTLED if down and call.method == "create" else Fault.NONE

    worker, consumer = owner(over(records, clock, schedule))
    (entry,) = consumer.take(1)
    down.append(True)
    assert isinstance(consumer.failed(entry, "no"), WillRetry)
    assert (queue.dead("t"), queue.stats("t").depth) == ((), 1)
    down.clear()
    worker.balance()
    clock.now += 2
    worker.balance()
    assert consumer.take(1) == ()
    assert keys(queue.dead("t")) == ["a"]
    assert (queue.stats("t").depth, queue.stats("t").counted) == (0, 0)
