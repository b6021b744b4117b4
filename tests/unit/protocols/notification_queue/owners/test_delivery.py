"""Delivery by an owner: each entry once, and failed entries again after a backoff."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.protocols.notification_queue import (
    Event,
    Failure,
    NotificationQueue,
    ShardConsumer,
    TopicSettings,
    WillRetry,
    Worker,
)
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.counted import CountedRecords
from tests.support.faults import Fault, at
from tests.unit.protocols.notification_queue.helpers import keys, over
from tests.unit.protocols.notification_queue.owners.helpers import PUSHED, owner, push


def test_entries_are_taken_delivered_and_removed_once(queue):
    """Otherwise an entry would be delivered twice or never, or the totals would be wrong."""
    push(queue, *"abc")
    _, consumer = owner(queue)
    first = consumer.take(2)
    assert [entry.attempts for entry in first] == [1, 1]
    assert queue.stats("t").in_flight == 2
    assert consumer.busy
    assert consumer.done(first) == 2
    second = consumer.take(5)
    assert keys((*first, *second)) == ["a", "b", "c"]
    consumer.done(second)
    assert not consumer.busy
    assert consumer.take(5) == ()
    stats = queue.stats("t")
    assert (stats.depth, stats.counted, stats.delivered, stats.failed) == (0, 0, 3, 0)


def test_a_failing_entry_does_not_delay_others(queue, clock):
    """Otherwise one entry that fails would block the entries behind it, or lose its error and attempts."""
    push(queue, *"abcd")
    worker, consumer = owner(queue)
    seen = []
    for _ in range(30):
        clock.now += 1
        worker.balance()
        for entry in consumer.take(1):
            seen.append(entry.event.key)
            if entry.event.key == "a" and entry.attempts < 3:
                assert isinstance(consumer.failed(entry, "503 try later"), WillRetry)
            else:
                consumer.done([entry])
    assert sorted(seen) == ["a", "a", "a", "b", "c", "d"]
    assert queue.stats("t").failed == 2


def test_the_next_owner_restarts_the_backoff(queue, clock):
    """Otherwise a wall clock would decide when an entry is retried."""
    push(queue, "a")
    worker, consumer = owner(queue)
    (entry,) = consumer.take(1)
    outcome = consumer.failed(entry, "down")
    assert consumer.take(1) == () or outcome.after_seconds == 0
    worker.stop()
    second, consumer = owner(queue)
    waited = 0.0
    while not (taken := consumer.take(1)):
        waited += 0.1
        clock.now += 0.1
        second.balance()
    assert waited <= 2.1
    assert (taken[0].attempts, taken[0].last_error) == (2, "down")


def test_the_next_owner_does_not_retry_without_a_backoff(queue):
    """Otherwise a receiver that is down would get all failed entries again at each change of owner."""
    push(queue, "a")
    worker, consumer = owner(queue)
    (entry,) = consumer.take(1)
    consumer.failed(entry, "down")
    worker.stop()
    queue.topics.update("t", replace(PUSHED, retry_seconds=86_400, retry_max_seconds=86_400))
    second = Worker(queue)
    (lease,) = second.balance()
    consumer = ShardConsumer(second, lease)
    assert consumer.take(1) == ()
    assert consumer.take(1) == ()


def test_the_time_that_an_entry_waited_adds_up_over_owners(queue, clock):
    """Otherwise the time to live would start again with each owner."""
    push(queue, "a")
    queue.topics.update("t", replace(PUSHED, retry_seconds=0))
    for _ in range(2):
        worker = Worker(queue)
        (lease,) = worker.balance()
        consumer = ShardConsumer(worker, lease)
        (entry,) = consumer.take(1)
        clock.now += 4
        consumer.failed(entry, "down")
        worker.stop()
    (entry,) = queue.entries("t", range(1000))
    assert entry.waited_seconds == 8
    assert entry.attempts == 2


def test_an_attempt_that_the_receiver_did_not_begin_is_not_counted(queue, clock):
    """Otherwise entries would be dead-lettered because their receiver is down for long."""
    push(queue, "a", "b")
    worker, consumer = owner(queue)
    for _ in range(10):
        clock.now += 4
        worker.balance()
        refused = Failure(entries=consumer.take(2), error="refused", begun=False)
        for outcome in consumer.settle((), [refused]):
            assert isinstance(outcome, WillRetry)
    entries = queue.entries("t", range(1000))
    assert [(entry.attempts, entry.last_error) for entry in entries] == [(0, "refused")] * 2
    assert all(entry.waited_seconds >= 30 for entry in entries)
    assert not consumer.busy


def test_a_claim_without_a_delivery_counts_as_one_attempt(queue, records, clock):
    """Otherwise an entry would use up its attempts while the owners' record cannot be read."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, "a")
    away = []
    schedule = lambda call: Fault.THROTTLED if away and call.method == "read" else Fault.NONE
    _, consumer = owner(over(records, clock, schedule))
    away.append(True)
    for _ in range(3):
        with pytest.raises(UnavailableError):
            consumer.take(1)
    away.clear()
    (entry,) = consumer.take(1)
    assert entry.attempts == 1


def test_released_entries_are_taken_again(queue):
    """Otherwise entries that were neither delivered nor failed would wait for the next owner."""
    push(queue, "a", "b")
    _, consumer = owner(queue)
    taken = consumer.take(2)
    assert consumer.take(2) == ()
    consumer.release(taken)
    assert keys(consumer.take(2)) == ["a", "b"]


def test_a_delivered_entry_is_not_delivered_again_while_removals_fail(queue, records, clock):
    """Otherwise a store that refuses removals would make an owner deliver the same entry again and again."""
    refusing = [True]
    schedule = lambda call: Fault.THROTTLED if call.method == "remove" and refusing[0] else Fault.NONE
    worker, consumer = owner(over(records, clock, schedule))
    push(queue, "a")
    entries = consumer.take(1)
    assert consumer.done(entries) == 0
    assert consumer.busy
    worker.balance()
    assert consumer.take(1) == ()
    refusing[0] = False
    worker.balance()
    assert consumer.take(1) == ()
    assert not consumer.busy
    assert queue.stats("t").depth == 0


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.THROTTLED])
@pytest.mark.parametrize("method", ["replace", "remove", "add", "read", "scan"])
@pytest.mark.parametrize("nth", range(3))
def test_every_entry_is_delivered_despite_one_fault(queue, clock, method, fault, nth):
    """Otherwise one lost or refused answer of the store would lose an entry, or deliver it twice."""
    push(queue, *"abc")
    worker = Worker(over(queue.records, clock, at(method, fault, nth=nth)))
    sent = []
    consumer = None
    for _ in range(12):
        try:
            for lease in worker.balance():
                consumer = consumer if consumer and consumer.lease == lease else ShardConsumer(worker, lease)
                for entry in consumer.take(2):
                    sent.append(entry.event.key)
                    consumer.done([entry])
        except UnavailableError:
            pass
        clock.now += 1
    assert sorted(sent) == ["a", "b", "c"]
    assert queue.stats("t").depth == 0


def test_a_worker_and_a_consumer_send_only_the_documented_requests(clock):
    """Otherwise delivery would cost more requests than documented."""
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", PUSHED)
    push(queue, *"abcde")
    worker = Worker(queue)
    cost = records.cost
    assert cost(worker.balance) == {"create": 2, "read": 1, "scan": 4}
    assert cost(worker.balance) == {"replace": 1, "scan": 3}
    consumer = ShardConsumer(worker, worker.leases[0])
    taken = []
    assert cost(lambda: taken.extend(consumer.take(5))) == {"scan": 1, "replace": 1, "read": 1}
    assert cost(lambda: consumer.done(taken)) == {"remove": 1, "add": 2}
    # This call ends the first pass over the entries.
    consumer.take(5)
    assert cost(lambda: consumer.take(5)) == {"scan": 1}
    push(queue, "f")
    (entry,) = consumer.take(5)
    assert cost(lambda: consumer.failed(entry, "no")) == {"replace": 1, "add": 1}
    assert cost(worker.stop) == {"read": 1, "replace": 1, "remove": 1}


def test_deliveries_and_failures_of_a_segment_are_stored_by_one_write(clock):
    """Otherwise each outcome would cost a write, or overwrite what a writer commits in the same segment."""
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", PUSHED)
    *held, late = queue.reserve_many("t", [Event(key=key) for key in "abcd"])
    queue.commit_many(held)
    _, consumer = owner(queue)
    first, second, third = consumer.take(5)
    queue.commit(late)
    outcomes = []
    failures = [Failure(entries=(second,), error="no"), Failure(entries=(third,), error="down", begun=False)]
    cost = records.cost(lambda: outcomes.extend(consumer.settle([first], failures)))
    # One conflict costs a second `replace` and the `read`.
    assert cost == {"replace": 2, "read": 1, "add": 3}
    assert all(isinstance(outcome, WillRetry) for outcome in outcomes)
    found = {entry.event.key: (entry.attempts, entry.last_error) for entry in queue.entries("t", range(1000))}
    assert found == {"b": (1, "no"), "c": (0, "down"), "d": (0, "")}
    assert queue.stats("t").in_flight == 0


def test_the_topics_settings_bound_the_backoff(queue, clock):
    """Otherwise an entry would be retried earlier or later than its topic allows."""
    queue.topics.update("t", replace(PUSHED, max_attempts=99, retry_seconds=0))
    push(queue, "a")
    worker, consumer = owner(queue)
    for _ in range(5):
        assert consumer.failed(consumer.take(1)[0], "down") == WillRetry(after_seconds=0)
    queue.topics.update("t", replace(PUSHED, max_attempts=99, retry_seconds=40, retry_max_seconds=60))
    worker.balance()
    waits = []
    for _ in range(30):
        waits.append(consumer.failed(consumer.take(1)[0], "down").after_seconds)
        clock.now += 60
        worker.balance()
        clock.now += 0
    assert 30 < max(waits) <= 60
