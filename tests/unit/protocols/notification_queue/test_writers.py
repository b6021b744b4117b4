"""The queue as writers use it: room before the write, and outcomes in doubt."""

from collections import Counter

import pytest

from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import ABSENT
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    Expired,
    NotificationQueue,
    QuotaExceeded,
    Reconciler,
    Reservation,
    TopicSettings,
    Undecided,
)
from s3notify_platform.protocols.notification_queue.entries import shard_capacity
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from tests.support.faults import Fault, FaultyStore, at
from tests.unit.protocols.notification_queue.helpers import (
    all_entries,
    events,
    keys,
    over,
    recount,
    room,
)


def test_a_reservation_is_visible_once_it_is_committed(queue):
    """Otherwise a consumer would see a change before the object is written, or a change without its ETag and size."""
    reservation = queue.reserve("t", Event(key="a/b c", bucket="b", writer="w1", precondition=ABSENT))
    assert all_entries(queue) == ()
    assert queue.commit(reservation.wrote(etag="e1", size=0)) == EntryCommitted()
    (entry,) = all_entries(queue)
    event = entry.event
    assert (event.key, event.bucket, event.etag, event.size) == ("a/b c", "b", "e1", 0)
    assert (event.writer, event.precondition, event.op) == ("w1", ABSENT, "put")
    assert event.sequencer
    assert event.time_ms
    assert entry.slot == slot_of("a/b c")


def test_a_full_shard_refuses_a_change_before_any_write(queue, records):
    """Otherwise a writer would write an object that cannot be announced, or a full topic would stay full."""
    held = queue.reserve_many("t", events(3))
    before = {record.key for record in records.scan("queue.t")}
    refused = queue.reserve("t", Event(key="late"))
    assert isinstance(refused, QuotaExceeded)
    assert refused.retry_after_seconds > 0
    assert {record.key for record in records.scan("queue.t")} == before
    queue.abort_many([held[0]])
    queue.commit(held[1])
    queue.remove(all_entries(queue))
    assert room(queue) == 2


def test_a_batch_gets_the_available_room(queue):
    """Otherwise a batch would be refused as a whole although there is room for some of its changes."""
    outcomes = queue.reserve_many("t", events(5))
    assert [isinstance(item, Reservation) for item in outcomes] == [True] * 3 + [False] * 2
    assert [item.entry.event.key for item in outcomes[:3]] == ["k0", "k1", "k2"]
    assert room(queue) == 0


def test_a_full_shard_does_not_prevent_reservations_in_other_shards(records, clock):
    """Otherwise writers would be refused although other shards have room."""
    queue = NotificationQueue(records, clock=clock)
    settings = TopicSettings(capacity=5, shards=2)
    queue.topics.create("t", settings)
    assert [shard_capacity(shard, settings) for shard in (0, 1)] == [3, 2]
    outcomes = queue.reserve_many("t", events(40))
    for shard in (0, 1):
        mine = [item for item in outcomes if isinstance(item, Reservation) and item.entry.shard == shard]
        assert len(mine) == shard_capacity(shard, settings)


def test_a_batch_is_stored_in_one_segment_of_one_shard(queue, records):
    """Otherwise a batch would cost a request for each entry or each shard."""
    queue.topics.create("wide", TopicSettings(capacity=12, shards=4))
    batches = [queue.reserve_many("wide", events(2, f"{n}.")) for n in range(4)]
    shards = [{item.entry.shard for item in batch} for batch in batches]
    assert sorted(shard for (shard,) in shards) == [0, 1, 2, 3]
    assert all(len({item.entry.place for item in batch}) == 1 for batch in batches)
    rest = queue.reserve_many("wide", events(5, "rest"))
    assert [isinstance(item, Reservation) for item in rest] == [True] * 4 + [False]
    assert sum(1 for _ in records.scan("queue.wide")) == 8


def test_a_large_reservation_has_several_segments(queue):
    """Otherwise a large batch would exceed the size of a record, or lose an entry."""
    queue.topics.create("large", TopicSettings(capacity=2000, shards=2))
    held = queue.reserve_many("large", events(600))
    assert sorted(Counter(item.entry.place for item in held).values()) == [88, 256, 256]
    assert queue.commit_many(held) == (EntryCommitted(),) * 600
    assert keys(all_entries(queue, "large")) == sorted(event.key for event in events(600))
    long = [Event(key=f"{n}" * 900) for n in range(10, 99)]
    held = queue.reserve_many("large", long)
    assert sorted(Counter(item.entry.place for item in held).values()) == [19, 70]


def test_threads_that_share_a_segment_do_not_wait_for_each_other(queue):
    """Otherwise a thread that settles its reservation would change the reservations of other threads."""
    first, second, third = queue.reserve_many("t", events(3))
    assert queue.settle([first.wrote(etag="e")], [second]) == (EntryCommitted(),)
    assert keys(all_entries(queue)) == ["k0"]
    assert queue.stats("t").reserved == 1
    assert queue.remove(all_entries(queue)) == 1
    assert queue.settle([second, third]) == (Expired(), EntryCommitted())
    assert keys(all_entries(queue)) == ["k2"]
    assert queue.stats("t").counted == 1


def test_an_event_that_is_too_large_is_refused(queue, records):
    """Otherwise a writer would write an object whose event cannot be stored, or would not learn which setting limits
    the size of an event.
    """
    queue.topics.create("small", TopicSettings(max_event_bytes=200))
    with pytest.raises(UsageError, match="max_event_bytes") as refused:
        queue.reserve("small", Event(key="x" * 300))
    assert "xxx" not in str(refused.value), (
        "an inlet logs this text, and `erase` cannot remove keys from logs"
    )
    assert isinstance(queue.reserve("small", Event(key="x")), Reservation)
    assert sum(1 for _ in records.scan("depth.small")) == 1


def test_a_missing_topic_raises_not_found(queue):
    """Otherwise a writer would write an object that is announced to nobody."""
    with pytest.raises(NotFoundError, match="nope"):
        queue.reserve("nope", Event(key="a"))
    with pytest.raises(NotFoundError):
        queue.entries("nope", [1])


def test_a_commit_may_be_repeated(queue):
    """Otherwise a retry after a lost answer would fail, or add a second entry."""
    reservation = queue.reserve("t", Event(key="a"))
    assert queue.commit(reservation) == EntryCommitted()
    assert queue.commit(reservation) == EntryCommitted()
    assert len(all_entries(queue)) == 1


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
def test_a_commit_in_doubt_is_resolved(queue, records, clock, fault):
    """Otherwise a commit whose answer was lost would be reported as failed."""
    reservation = queue.reserve("t", Event(key="a"))
    faulty = over(records, clock, at("replace", fault))
    assert faulty.commit(reservation) == EntryCommitted()
    assert keys(all_entries(queue)) == ["a"]


def test_a_commit_without_an_answer_is_undecided(queue, records, clock):
    """Otherwise a writer would get an error although its object is written."""
    reservation = queue.reserve("t", Event(key="a"))
    faulty = over(records, clock, lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE)
    assert isinstance(faulty.commit(reservation), Undecided)
    assert queue.commit(reservation) == EntryCommitted()


def test_a_commit_of_a_missing_entry_is_expired(queue):
    """Otherwise a writer would not learn that it must announce its change again."""
    reservation = queue.reserve("t", Event(key="a"))
    queue.abort_many([reservation])
    assert queue.commit(reservation) == Expired()
    assert queue.push("t", reservation.entry.event) == EntryCommitted()
    assert keys(all_entries(queue)) == ["a"]


@pytest.mark.parametrize("method", ["add", "create"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.THROTTLED])
def test_a_reservation_in_doubt_is_confirmed(queue, records, clock, method, fault):
    """Otherwise a lost answer would lead to two granted entries, or to a permanent loss of room."""
    faulty = over(records, clock, at(method, fault))
    reservation = faulty.reserve("t", Event(key="a"))
    faulty.records.settle()
    assert queue.commit(reservation) == EntryCommitted()
    reconciler = Reconciler(queue, leak_seconds=0)
    reconciler.resolve_stale("t", lambda _: None)
    clock.now += STALE_SECONDS + 1
    reconciler.resolve_stale("t", lambda _: None)
    recount(queue, clock)
    assert keys(all_entries(queue)) == ["a"]
    assert room(queue) == 2


def test_an_entry_whose_creation_is_applied_late_was_counted(queue, records, clock):
    """Otherwise an entry that appears long after its request would exceed the capacity."""
    faulty = FaultyStore(records, at("create", Fault.LATE), late_by_calls=1000)
    reservation = NotificationQueue(faulty, clock=clock).reserve("t", Event(key="a"))
    queue.commit(reservation)
    queue.remove(all_entries(queue))
    faulty.settle()
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (1, 1)


def test_a_reservation_that_is_resolved_during_its_creation_is_not_created_again(queue, records, clock):
    """Otherwise a writer that slept after a lost answer would create its entry a second time."""
    other = Reconciler(queue)
    other.resolve_stale("t", lambda _: None)
    calls = []

    def schedule(call):
        calls.append(call.method)
        if call.method == "create":
            return Fault.LOST if calls.count("create") == 1 else Fault.NONE
        if call.method == "read" and calls.count("create") == 1 and calls[-2] == "create":
            # Before this read, the writer sleeps until the reconciler considers it dead.
            other.resolve_stale("t", lambda _: None)
            clock.now += STALE_SECONDS + 1
            other.resolve_stale("t", lambda _: None)
        return Fault.NONE

    reservation = over(records, clock, schedule).reserve("t", Event(key="a"))
    assert isinstance(reservation, Reservation)
    assert len(list(records.scan("queue.t"))) == 1
    recount(queue, clock)
    assert queue.stats("t").counted == 1


def test_a_reservation_that_took_too_long_is_not_granted(queue, records, clock):
    """Otherwise a writer would write its object after a reconciler has aborted its reservation."""
    slow = []

    def schedule(call):
        if call.method == "create" and not slow:
            slow.append(call)
            clock.now += STALE_SECONDS + 1
        return Fault.NONE

    reservation = over(records, clock, schedule).reserve("t", Event(key="a"))
    assert over(records, clock).fresh_since(reservation.since)
    assert len(list(records.scan("queue.t"))) == 1


def test_room_of_a_slow_reservation_is_not_given_back_twice(queue, records, clock):
    """Otherwise a reconciler and the writer would both free the room of a reservation whose creation is sent twice."""
    queue.reserve("t", Event(key="other"))
    asleep = []

    class Resending(FaultyStore):
        def create(self, partition, key, value):
            outcome = records.create(partition, key, value)
            if not asleep:
                asleep.append(key)
                reconciler = Reconciler(queue, leak_seconds=1e9)
                reconciler.resolve_stale("t", lambda _: None)
                clock.now += STALE_SECONDS + 1
                other = next(
                    entry
                    for segment in queue.shards.scan(queue.topics.get("t"), 0)
                    for entry in segment.entries
                    if segment.place.key != key
                )
                records.remove(partition, key, expected=records.read(partition, key).version)
                queue.shards.give_back([other])
                outcome = records.create(partition, key, value)
            return outcome

    NotificationQueue(Resending(records), clock=clock, parallelism=1).reserve("t", Event(key="a"))
    stats = queue.stats("t")
    assert stats.depth == 2
    assert stats.counted >= 2


def test_a_reservation_is_fresh_for_a_third_of_the_stale_time(queue, clock):
    """Otherwise a reconciler whose clock runs three times as fast as the writer's clock would abort a reservation
    before its write.
    """
    reservation = queue.reserve("t", Event(key="a"))
    clock.now += STALE_SECONDS / 3 - 0.1
    assert queue.fresh_since(reservation.since)
    clock.now += 0.2
    assert not queue.fresh_since(reservation.since)


def test_an_unavailable_store_reserves_nothing(queue, records, clock):
    """Otherwise a writer would write its object without a reservation, or lose room for ever."""
    for method in ("add", "create"):
        faulty = over(
            records, clock, lambda call, m=method: Fault.THROTTLED if call.method == m else Fault.NONE
        )
        with pytest.raises(UnavailableError):
            faulty.reserve("t", Event(key="a"))
    assert room(queue) == 3


def test_push_is_durable_or_raises_an_error(queue, records, clock):
    """Otherwise an inlet would acknowledge a message whose changes are not in the queue."""
    assert queue.push_many("t", events(4)) == (EntryCommitted(),) * 3 + (
        QuotaExceeded(retry_after_seconds=1.0),
    )
    assert keys(all_entries(queue)) == ["k0", "k1", "k2"]
    queue.remove(all_entries(queue))
    faulty = over(records, clock, lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE)
    with pytest.raises(UnknownOutcomeError, match="push it again"):
        faulty.push("t", Event(key="x"))
