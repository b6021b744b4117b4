"""State on which a writer relies without a read: the topics that it knows, and the room that it holds."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.limits import CLOCK_SKEW, ROOM_HELD, TOPICS_KNOWN_SECONDS
from s3notify_platform.protocols.notification_queue import (
    Event,
    Expired,
    NotificationQueue,
    QuotaExceeded,
    Reconciler,
    Reservation,
    TopicSettings,
    TopicUser,
)
from s3notify_platform.protocols.notification_queue.entries import shard_capacity
from s3notify_platform.protocols.notification_queue.reconciler import IDLE_LEAKS, LEAK_SECONDS
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.clocks import SlowClock
from tests.support.counted import CountedRecords
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.unit.protocols.notification_queue.helpers import ONE_SHARD, events, once, over, recount, room

OUTDATED = TOPICS_KNOWN_SECONDS * CLOCK_SKEW


def granted(outcomes):
    return [outcome for outcome in outcomes if isinstance(outcome, Reservation)]


def there(queue, topic="t"):
    return {entry.id for entry in queue.pending(topic)}


# Recounts


@pytest.mark.parametrize("passes", [(0.0,), (0.0, 0.0), (0.0, 1.0), (0.0, OUTDATED - 0.01), (0.0, OUTDATED)])
def test_the_creation_of_an_entry_during_a_recount_keeps_the_bound(queue, records, clock, passes):
    """Otherwise an entry whose creation is answered after the recount would exceed the capacity, or be lost."""
    others = []

    def meanwhile():
        reconciler = Reconciler(queue, leak_seconds=0)
        for seconds in passes:
            clock.now += seconds
            reconciler.resolve_stale("t", lambda _: None)
        others.extend(granted(queue.reserve_many("t", events(3, "other"))))

    writer = over(records, SlowClock(clock), once("create", None, meanwhile))
    own = granted(writer.reserve_many("t", events(2)))
    assert len(own) + len(others) <= 3
    assert {one.entry.id for one in [*own, *others]} <= there(queue)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_writer_that_knows_the_former_quota_gets_no_room_from_it(queue, records, clock, passes):
    """Otherwise a writer that still relies on the former quota would exceed the capacity."""
    writer = over(records, clock)
    assert isinstance(writer.reserve("t", Event(key="first")), Reservation)
    with pytest.raises(CrashedError):
        over(records, clock, at("create", Fault.CRASH_BEFORE)).reserve("t", Event(key="lost"))
    reconciler = Reconciler(queue, leak_seconds=0)
    for _ in range(passes):
        reconciler.resolve_stale("t", lambda _: None)
    assert len(granted(over(records, clock).reserve_many("t", events(3, "other")))) == 1
    assert isinstance(writer.reserve("t", Event(key="second")), QuotaExceeded)
    assert len(there(queue)) == 2


def test_no_writer_is_refused_during_a_recount(queue, records, clock):
    """Otherwise a recount would stop all writers of a topic for a while."""
    with pytest.raises(CrashedError):
        over(records, clock, at("create", Fault.CRASH_BEFORE)).reserve("t", Event(key="lost"))
    reconciler = Reconciler(queue, leak_seconds=0)
    assert reconciler.resolve_stale("t", lambda _: None).recounted == 1
    assert room(queue) == 2
    clock.now += OUTDATED
    reconciler.resolve_stale("t", lambda _: None)
    assert room(queue) == 1


# Deletion, change and creation of topics


def test_a_reservation_in_a_topic_under_deletion_is_removed_with_the_topic(queue, records, clock):
    """Otherwise an entry of a deleted topic would appear in a new topic of the same name."""
    writer = over(records, SlowClock(clock))
    writer.reserve("t", Event(key="first"))
    held = []

    class Sleeping:
        def __getattr__(self, name):
            return getattr(clock, name)

        def sleep(self, seconds):
            held.append(writer.reserve("t", Event(key="during")))
            clock.sleep(seconds)

    NotificationQueue(records, clock=Sleeping()).topics.delete("t")
    assert len(granted(held)) == 1
    assert list(records.scan("queue.t")) == []
    queue.topics.create("t", ONE_SHARD)
    assert writer.commit(held[0]) == Expired()
    assert room(queue) == 3


def test_a_consumer_finishes_the_creation_of_a_topic(queue, records, clock):
    """Otherwise, if the creator of a topic was killed, the topic's consumer would miss changes of writers that do not
    know the topic.
    """
    for other, seconds in (("t", OUTDATED), (None, 0.0)):
        if other is None:
            queue.topics.delete("t")
            queue.topics.delete("late")
        with pytest.raises(CrashedError):
            over(records, clock, at("scan", Fault.CRASH_BEFORE)).topics.create("late", TopicSettings())
        before = clock.now
        topic = queue.topics.serve(queue.topics.get("late"), TopicUser(slots=1000))
        assert (clock.now - before, topic.phase) == (seconds, "known")
        assert queue.topics.serve(queue.topics.get("late"), TopicUser(slots=1000)) == topic
        assert clock.now - before == seconds


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        (TopicSettings(bucket="b", prefix="raw/"), True),
        (TopicSettings(bucket="b", prefix="raw/more/"), True),
        (TopicSettings(prefix="r"), True),
        (TopicSettings(bucket="b", prefix="else/"), False),
        (TopicSettings(bucket="c", prefix="raw/"), False),
    ],
)
def test_create_waits_if_another_topic_receives_the_same_keys(records, clock, settings, waits):
    """Otherwise writers with a reservation would not announce their changes to a new topic, or each creation would take
    6 s.
    """
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("raw", TopicSettings(bucket="b", prefix="raw/"))
    before = clock.now
    queue.topics.create("new", settings)
    assert clock.now - before == (OUTDATED if waits else 0)


def test_create_waits_if_the_keys_of_another_topic_have_just_changed(records, clock):
    """Otherwise a writer that made its reservation while a topic had another prefix would not announce its change to
    the new topic.
    """
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("raw", TopicSettings(prefix="raw/"))
    before = clock.now
    queue.topics.update("raw", TopicSettings(prefix="raw/", capacity=8))
    assert clock.now == before
    queue.topics.update("raw", TopicSettings(prefix="else/"))
    assert clock.now == before + OUTDATED
    with pytest.raises(CrashedError):
        over(records, clock, at("replace", Fault.CRASH_AFTER)).topics.update("raw", TopicSettings())
    with pytest.raises(CrashedError):
        over(records, clock, at("replace", Fault.CRASH_AFTER)).topics.update(
            "raw", TopicSettings(prefix="x/")
        )
    before = clock.now
    queue.topics.create("new", TopicSettings(prefix="raw/"))
    assert clock.now == before + OUTDATED
    queue.topics.update("raw", TopicSettings(prefix="x/"))
    before = clock.now
    queue.topics.create("newer", TopicSettings(prefix="y/"))
    assert clock.now == before


def test_update_waits_if_it_adds_a_queue_to_a_topic_without_one(records, clock):
    """Otherwise a writer that does not know yet that the topic has a queue would lose a change."""
    queue = NotificationQueue(records, clock=clock)
    direct = TopicSettings(prefix="raw/", endpoint="{}", persistent=False)
    queue.topics.create("raw", direct)
    before = clock.now
    queue.topics.update("raw", replace(direct, persistent=True))
    assert clock.now == before + OUTDATED


def test_a_process_knows_its_own_changes_of_topics(queue):
    """Otherwise a process would not announce its changes to a topic that it has just created."""
    queue.reserve("t", Event(key="a"))
    queue.topics.create("new", TopicSettings(prefix="new/"))
    assert [topic.name for topic in queue.topics_of("b", Event(key="new/a"))] == ["new", "t"]


def test_a_writer_is_refused_only_if_the_current_settings_require_it(queue, records, clock):
    """Otherwise a writer would be refused although another process has just raised the capacity."""
    writer = over(records, clock)
    assert len(granted(writer.reserve_many("t", events(3)))) == 3
    queue.topics.update("t", TopicSettings(capacity=4, shards=1))
    assert isinstance(writer.reserve("t", Event(key="a")), Reservation)
    assert isinstance(writer.reserve("t", Event(key="b")), QuotaExceeded)


# Room


@pytest.fixture
def large(clock):
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("large", TopicSettings(capacity=1000, shards=1))
    return queue


def counted(queue, topic="large"):
    return queue.stats(topic).counted


def test_room_is_taken_for_many_puts_at_a_time(large):
    """Otherwise each put would cost a request for room, or a process that writes once would hold spare room."""
    held = []
    for number in range(100):
        large.reserve("large", Event(key=f"k{number}"))
        held.append(counted(large) - number - 1)
    assert held[0] == 0
    assert max(held) == ROOM_HELD
    assert large.records.counts["add"] == 8


def test_spare_room_of_many_processes_is_bounded(large, clock):
    """Otherwise spare room of idle processes would fill a topic."""
    writers = [NotificationQueue(large.records, clock=clock) for _ in range(100)]
    number = 0
    for _ in range(7):
        for writer in writers:
            writer.reserve("large", Event(key=f"k{number}"))
            number += 1
        assert counted(large) <= max(250, number + sum(range(ROOM_HELD)))
    assert counted(large) - number < 250
    left = 1000 - counted(large)
    assert len(granted(large.reserve_many("large", events(1000, "more")))) >= left


def test_spare_room_of_another_quota_is_not_used(large, clock):
    """Otherwise a process would use room of a former quota or capacity, and exceed the bound."""
    for number in range(4):
        large.reserve("large", Event(key=f"k{number}"))
    assert counted(large) == 7
    recount(NotificationQueue(large.records, clock=clock), clock, "large")
    assert counted(large) == 4
    large.reserve("large", Event(key="recounted"))
    large.reserve("large", Event(key="again"))
    assert counted(large) == len(there(large, "large")) + 6
    large.topics.update("large", TopicSettings(capacity=12, shards=1))
    assert len(granted(large.reserve_many("large", events(30, "lowered")))) == 0
    assert len(there(large, "large")) == 6


def test_spare_room_is_used_before_a_refusal(large):
    """Otherwise a batch would be refused although its process still holds room."""
    for number in range(4):
        large.reserve("large", Event(key=f"k{number}"))
    held = counted(large) - 4
    assert held == 3
    NotificationQueue(large.records, clock=large.clock).reserve_many("large", events(993, "other"))
    assert counted(large) == 1000
    assert len(granted(large.reserve_many("large", events(9, "late")))) == held


def test_an_outage_costs_no_spare_room(large):
    """Otherwise a process would lose its spare room at each outage."""
    for number in range(4):
        large.reserve("large", Event(key=f"k{number}"))
    before = counted(large)
    kept = large.records.records
    large.records.records = FaultyStore(kept, lambda _: Fault.THROTTLED)
    with pytest.raises(UnavailableError):
        large.reserve_many("large", events(9, "more"))
    large.records.records = kept
    for number in range(3):
        large.reserve("large", Event(key=f"l{number}"))
    assert counted(large) == before


def test_idle_room_is_left_to_its_holder_while_the_counter_of_the_topic_changes(large, clock):
    """Otherwise processes would lose spare room that no other writer needs, or room of ended processes would never come
    back.
    """
    for number in range(4):
        large.reserve("large", Event(key=f"k{number}"))
    reconciler = Reconciler(NotificationQueue(large.records, clock=clock))

    def recounted():
        return reconciler.resolve_stale("large", lambda _: None).recounted

    def passes(seconds, *, moving):
        """Runs passes that are 15 s apart, and returns the number of recounts."""
        found = 0
        for _ in range(int(seconds / 15)):
            if moving:
                large.push("large", Event(key="x"))
                large.remove(large.entries("large", range(1000))[1:])
            found += recounted()
            clock.now += 15
        return found

    assert passes(3 * IDLE_LEAKS * LEAK_SECONDS, moving=True) == 0
    assert passes(IDLE_LEAKS * LEAK_SECONDS / 2, moving=False) == 0
    assert passes(IDLE_LEAKS * LEAK_SECONDS, moving=False) == 1
    assert counted(large) == len(there(large, "large"))


def test_scarce_room_is_recounted_soon(large, clock):
    """Otherwise writers would be refused for a long time because a crashed process holds room."""
    for number in range(4):
        large.reserve("large", Event(key=f"k{number}"))
    large.push_many("large", events(shard_capacity(0, TopicSettings(capacity=1000, shards=1)) // 4))
    with pytest.raises(CrashedError):
        over(large.records, clock, at("create", Fault.CRASH_BEFORE)).reserve_many("large", events(5))
    reconciler = Reconciler(NotificationQueue(large.records, clock=clock))
    assert reconciler.resolve_stale("large", lambda _: None).recounted == 0
    clock.now += LEAK_SECONDS
    assert reconciler.resolve_stale("large", lambda _: None).recounted == 1
    clock.now += OUTDATED
    reconciler.resolve_stale("large", lambda _: None)
    assert counted(large) == len(there(large, "large"))
