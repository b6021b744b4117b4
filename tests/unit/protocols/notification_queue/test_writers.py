"""The writers' side: room before the write, and what becomes of an outcome in doubt."""

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


def test_a_reservation_is_seen_once_it_is_committed(queue):
    """Before that a consumer sees nothing; after that it has all that was announced and found out."""
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


def test_a_full_shard_refuses_before_anything_is_written(queue, records):
    """The typed outcome says when to come again; room comes back by abort and by removal."""
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


def test_a_batch_gets_what_room_there_is(queue):
    """The first ones of a shard are granted, the others refused; a second call gets nothing."""
    outcomes = queue.reserve_many("t", events(5))
    assert [isinstance(item, Reservation) for item in outcomes] == [True] * 3 + [False] * 2
    assert [item.entry.event.key for item in outcomes[:3]] == ["k0", "k1", "k2"]
    assert room(queue) == 0


def test_one_full_shard_does_not_refuse_another(records, clock):
    """Capacity is split over the shards, exactly."""
    queue = NotificationQueue(records, clock=clock)
    settings = TopicSettings(capacity=5, shards=2)
    queue.topics.create("t", settings)
    assert [shard_capacity(shard, settings) for shard in (0, 1)] == [3, 2]
    outcomes = queue.reserve_many("t", events(40))
    for shard in (0, 1):
        mine = [item for item in outcomes if isinstance(item, Reservation) and item.entry.shard == shard]
        assert len(mine) == shard_capacity(shard, settings)


def test_a_batch_is_one_segment_of_one_shard(queue, records):
    """Reservations take shards in turn; what one shard has no space for goes to the next."""
    queue.topics.create("wide", TopicSettings(capacity=12, shards=4))
    batches = [queue.reserve_many("wide", events(2, f"{n}.")) for n in range(4)]
    shards = [{item.entry.shard for item in batch} for batch in batches]
    assert sorted(shard for (shard,) in shards) == [0, 1, 2, 3]
    assert all(len({item.entry.place for item in batch}) == 1 for batch in batches)
    rest = queue.reserve_many("wide", events(5, "rest"))
    assert [isinstance(item, Reservation) for item in rest] == [True] * 4 + [False]
    assert sum(1 for _ in records.scan("queue.wide")) == 8


def test_a_large_reservation_is_several_segments(queue):
    """At most 256 entries and 128 KB each; all are committed together, and none is lost."""
    queue.topics.create("large", TopicSettings(capacity=2000, shards=2))
    held = queue.reserve_many("large", events(600))
    assert sorted(Counter(item.entry.place for item in held).values()) == [88, 256, 256]
    assert queue.commit_many(held) == (EntryCommitted(),) * 600
    assert keys(all_entries(queue, "large")) == sorted(event.key for event in events(600))
    long = [Event(key=f"{n}" * 900) for n in range(10, 99)]
    held = queue.reserve_many("large", long)
    assert sorted(Counter(item.entry.place for item in held).values()) == [19, 70]


def test_threads_that_share_a_segment_do_not_wait_for_each_other(queue):
    """Each settles its own reservations; the others stay reserved."""
    first, second, third = queue.reserve_many("t", events(3))
    assert queue.settle([first.wrote(etag="e")], [second]) == (EntryCommitted(),)
    assert keys(all_entries(queue)) == ["k0"]
    assert queue.stats("t").reserved == 1
    assert queue.remove(all_entries(queue)) == 1
    assert queue.settle([second, third]) == (Expired(), EntryCommitted())
    assert keys(all_entries(queue)) == ["k2"]
    assert queue.stats("t").counted == 1


def test_an_event_too_large_is_refused(queue, records):
    """Before anything is written, and naming the setting."""
    queue.topics.create("small", TopicSettings(max_event_bytes=200))
    with pytest.raises(UsageError, match="max_event_bytes"):
        queue.reserve("small", Event(key="x" * 300))
    assert isinstance(queue.reserve("small", Event(key="x")), Reservation)
    assert sum(1 for _ in records.scan("depth.small")) == 1


def test_no_topic(queue):
    """A typed error, and nothing is written."""
    with pytest.raises(NotFoundError, match="nope"):
        queue.reserve("nope", Event(key="a"))
    with pytest.raises(NotFoundError):
        queue.entries("nope", [1])


def test_a_commit_may_be_repeated(queue):
    """Also after the answer of the first was lost, and also once the resolver has committed."""
    reservation = queue.reserve("t", Event(key="a"))
    assert queue.commit(reservation) == EntryCommitted()
    assert queue.commit(reservation) == EntryCommitted()
    assert len(all_entries(queue)) == 1


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
def test_a_commit_in_doubt_is_looked_for(queue, records, clock, fault):
    """Each unknown outcome ends as what it was."""
    reservation = queue.reserve("t", Event(key="a"))
    faulty = over(records, clock, at("replace", fault))
    assert faulty.commit(reservation) == EntryCommitted()
    assert keys(all_entries(queue)) == ["a"]


def test_a_commit_without_an_answer_is_undecided(queue, records, clock):
    """Nothing is raised after the object is there; the reservation stays for the resolver."""
    reservation = queue.reserve("t", Event(key="a"))
    faulty = over(records, clock, lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE)
    assert isinstance(faulty.commit(reservation), Undecided)
    assert queue.commit(reservation) == EntryCommitted()


def test_a_commit_of_what_is_gone_is_expired(queue):
    """Aborted by a resolver, or consumed: the writer has to announce again."""
    reservation = queue.reserve("t", Event(key="a"))
    queue.abort_many([reservation])
    assert queue.commit(reservation) == Expired()
    assert queue.push("t", reservation.entry.event) == EntryCommitted()
    assert keys(all_entries(queue)) == ["a"]


@pytest.mark.parametrize("method", ["add", "create"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.THROTTLED])
def test_a_reservation_in_doubt_is_made_sure_of(queue, records, clock, method, fault):
    """One entry is granted; room that was lost on the way comes back by counting again."""
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


def test_a_creation_that_lands_late_was_counted(queue, records, clock):
    """However late: the entry that was made in its stead has come and gone."""
    faulty = FaultyStore(records, at("create", Fault.LATE), late_by_calls=1000)
    reservation = NotificationQueue(faulty, clock=clock).reserve("t", Event(key="a"))
    queue.commit(reservation)
    queue.remove(all_entries(queue))
    faulty.settle()
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (1, 1)


def test_a_reservation_resolved_under_its_writer_does_not_come_back(queue, records, clock):
    """Its answer was lost, and the writer slept before it looked: one entry is granted, and counted."""
    other = Reconciler(queue)
    other.resolve_stale("t", lambda _: None)
    calls = []

    def schedule(call):
        calls.append(call.method)
        if call.method == "create":
            return Fault.LOST if calls.count("create") == 1 else Fault.NONE
        if call.method == "read" and calls.count("create") == 1 and calls[-2] == "create":
            # The writer sleeps before it looks, for long enough to be taken for dead.
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
    """A writer that slept within `reserve` starts again: its first entry may be resolved by now."""
    slow = []

    def schedule(call):
        if call.method == "create" and not slow:
            slow.append(call)
            clock.now += STALE_SECONDS + 1
        return Fault.NONE

    reservation = over(records, clock, schedule).reserve("t", Event(key="a"))
    assert over(records, clock).fresh_since(reservation.since)
    assert len(list(records.scan("queue.t"))) == 1


def test_room_of_a_reservation_that_took_too_long_is_not_given_back_twice(queue, records, clock):
    """A store that sends a creation again by itself brings back what a resolver had aborted and given back."""
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


def test_fresh_for_a_third_of_the_timeout(queue, clock):
    """So that a resolver's clock may run three times as fast."""
    reservation = queue.reserve("t", Event(key="a"))
    clock.now += STALE_SECONDS / 3 - 0.1
    assert queue.fresh_since(reservation.since)
    clock.now += 0.2
    assert not queue.fresh_since(reservation.since)


def test_a_store_that_is_gone_reserves_nothing(queue, records, clock):
    """Unavailable: the caller must not write its object; room is not lost for good."""
    for method in ("add", "create"):
        faulty = over(
            records, clock, lambda call, m=method: Fault.THROTTLED if call.method == m else Fault.NONE
        )
        with pytest.raises(UnavailableError):
            faulty.reserve("t", Event(key="a"))
    assert room(queue) == 3


def test_push_is_durable_or_raises(queue, records, clock):
    """For inlets: committed when it returns; refused when there is no room."""
    assert queue.push_many("t", events(4)) == (EntryCommitted(),) * 3 + (
        QuotaExceeded(retry_after_seconds=1.0),
    )
    assert keys(all_entries(queue)) == ["k0", "k1", "k2"]
    queue.remove(all_entries(queue))
    faulty = over(records, clock, lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE)
    with pytest.raises(UnknownOutcomeError, match="push it again"):
        faulty.push("t", Event(key="x"))
