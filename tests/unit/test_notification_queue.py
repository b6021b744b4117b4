"""The notification queue, writers' and pullers' side: room before the write, outcomes after it, topics, costs."""

import pytest

from s3notify_platform.errors import (
    ConflictError,
    CorruptError,
    NotFoundError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.ports import ABSENT, IfMatch, ObjectMeta
from s3notify_platform.protocols.notification_queue import (
    Caretaker,
    Committed,
    Event,
    Expired,
    NoRoom,
    NotificationQueue,
    Reservation,
    Tended,
    TopicSettings,
    Undecided,
    keys_recur,
    resolve,
)
from s3notify_platform.protocols.notification_queue.entries import (
    decode_entry,
    decode_topic,
    encode_entry,
    shard_capacity,
    shard_of,
    shard_slots,
)
from s3notify_platform.slots import slot_of
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.stores.records import ObjectRecordStore
from tests.support.clocks import HandClock
from tests.support.counted import CountedRecords
from tests.support.faults import CrashedError, Fault, FaultyStore, at, never

ONE_SHARD = TopicSettings(capacity=3, shards=1)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def records():
    return MemoryRecordStore()


@pytest.fixture
def queue(records, clock):
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", ONE_SHARD)
    return queue


def over(records, clock, schedule=never, **kwargs):
    """A queue whose records fail on schedule."""
    return NotificationQueue(FaultyStore(records, schedule), clock=clock, parallelism=1, **kwargs)


def room(queue, topic="t"):
    """How many more reservations are granted."""
    return sum(isinstance(item, Reservation) for item in queue.reserve_many(topic, events(50, "room")))


def events(count, prefix="k"):
    return [Event(key=f"{prefix}{number}") for number in range(count)]


def keys(entries):
    return sorted(entry.event.key for entry in entries)


def all_entries(queue, topic="t"):
    return queue.entries(topic, range(1000))


# Reserve, commit, abort


def test_a_reservation_is_seen_once_it_is_committed(queue):
    """Before that a consumer sees nothing; after that it has all that was announced and found out."""
    reservation = queue.reserve("t", Event(key="a/b c", bucket="b", writer="w1", precondition=ABSENT))
    assert all_entries(queue) == ()
    assert queue.commit(reservation.wrote(etag="e1", size=0)) == Committed()
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
    before = {record.key for record in records.scan("queue.t.000")}
    refused = queue.reserve("t", Event(key="late"))
    assert isinstance(refused, NoRoom)
    assert refused.retry_after_seconds > 0
    assert {record.key for record in records.scan("queue.t.000")} == before
    queue.abort(held[0])
    queue.commit(held[1])
    queue.remove(all_entries(queue))
    assert room(queue) == 2


def test_a_batch_gets_what_room_there_is(queue):
    """The first ones of a shard are granted, the others told; a second call gets nothing."""
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


@pytest.mark.parametrize(("shards", "slots"), [(1, 1000), (8, 1000), (7, 1000), (3, 7), (64, 1000)])
def test_shards_are_contiguous_and_hold_every_slot_once(shards, slots):
    """Whatever the division leaves over."""
    settings = TopicSettings(shards=shards, slots=slots)
    dealt = [slot for shard in range(shards) for slot in shard_slots(shard, settings)]
    assert dealt == list(range(slots))
    assert all(slot in shard_slots(shard_of(slot, settings), settings) for slot in range(slots))


def test_an_event_too_large_is_refused(queue, records):
    """Before anything is written, and naming the setting."""
    queue.topics.create("small", TopicSettings(max_event_bytes=300))
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
    assert queue.commit(reservation) == Committed()
    assert queue.commit(reservation) == Committed()
    assert len(all_entries(queue)) == 1


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
def test_a_commit_in_doubt_is_looked_for(queue, records, clock, fault):
    """Each unknown outcome ends as what it was."""
    reservation = queue.reserve("t", Event(key="a"))
    faulty = over(records, clock, at("replace", fault))
    assert faulty.commit(reservation) == Committed()
    assert keys(all_entries(queue)) == ["a"]


def test_a_commit_without_an_answer_is_undecided(queue, records, clock):
    """Nothing is raised after the object is there; the reservation stays for the resolver."""
    reservation = queue.reserve("t", Event(key="a"))
    faulty = over(records, clock, lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE)
    assert isinstance(faulty.commit(reservation), Undecided)
    assert queue.commit(reservation) == Committed()


def test_a_commit_of_what_is_gone_is_expired(queue):
    """Aborted by a resolver, or consumed: the writer is told to announce anew."""
    reservation = queue.reserve("t", Event(key="a"))
    queue.abort(reservation)
    assert queue.commit(reservation) == Expired()
    assert queue.push("t", reservation.entry.event) == Committed()
    assert keys(all_entries(queue)) == ["a"]


@pytest.mark.parametrize("method", ["add", "create"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.THROTTLED])
def test_a_reservation_in_doubt_is_made_sure_of(queue, records, clock, method, fault):
    """One entry is granted; room that was lost on the way comes back by counting anew."""
    faulty = over(records, clock, at(method, fault))
    reservation = faulty.reserve("t", Event(key="a"))
    faulty.records.settle()
    assert queue.commit(reservation) == Committed()
    caretaker = Caretaker(queue, leak_seconds=0)
    caretaker.resolve_stale("t", lambda _: None)
    clock.now += queue.stale_seconds + 1
    caretaker.resolve_stale("t", lambda _: None)
    caretaker.resolve_stale("t", lambda _: None)
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
    other = Caretaker(queue)
    other.resolve_stale("t", lambda _: None)
    calls = []

    def schedule(call):
        calls.append(call.method)
        if call.method == "create":
            return Fault.LOST if calls.count("create") == 1 else Fault.NONE
        if call.method == "read" and calls.count("create") == 1 and calls[-2] == "create":
            # The writer sleeps before it looks, for long enough to be taken for dead.
            other.resolve_stale("t", lambda _: None)
            clock.now += queue.stale_seconds + 1
            other.resolve_stale("t", lambda _: None)
        return Fault.NONE

    reservation = over(records, clock, schedule).reserve("t", Event(key="a"))
    assert isinstance(reservation, Reservation)
    assert len(list(records.scan("queue.t.000"))) == 1
    Caretaker(queue, leak_seconds=0).resolve_stale("t", lambda _: None)
    assert queue.stats("t").counted == 1


def test_a_reservation_that_took_too_long_is_not_granted(queue, records, clock):
    """A writer that slept within `reserve` starts anew: its first entry may be resolved by now."""
    slow = []

    def schedule(call):
        if call.method == "create" and not slow:
            slow.append(call)
            clock.now += queue.stale_seconds + 1
        return Fault.NONE

    reservation = over(records, clock, schedule).reserve("t", Event(key="a"))
    assert over(records, clock).fresh(reservation)
    assert len(list(records.scan("queue.t.000"))) == 1


def test_room_of_a_reservation_that_took_too_long_is_not_given_back_twice(queue, records, clock):
    """A store that sends a creation again by itself brings back what a resolver had aborted and given back."""
    queue.reserve("t", Event(key="other"))
    asleep = []

    class Resending(FaultyStore):
        def create(self, partition, key, value):
            outcome = records.create(partition, key, value)
            if not asleep:
                asleep.append(key)
                caretaker = Caretaker(queue, leak_seconds=1e9)
                caretaker.resolve_stale("t", lambda _: None)
                clock.now += queue.stale_seconds + 1
                other = next(entry for entry in queue.scan(queue.topics.get("t"), 0) if entry.key != key)
                records.remove(partition, key, expected=records.read(partition, key).version)
                queue.give_back([other])
                outcome = records.create(partition, key, value)
            return outcome

    NotificationQueue(Resending(records), clock=clock, parallelism=1).reserve("t", Event(key="a"))
    stats = queue.stats("t")
    assert stats.depth == 2
    assert stats.counted >= 2


def test_fresh_for_a_third_of_the_timeout(queue, clock):
    """So that a resolver's clock may run three times as fast."""
    reservation = queue.reserve("t", Event(key="a"))
    clock.now += queue.stale_seconds / 3 - 0.1
    assert queue.fresh(reservation)
    clock.now += 0.2
    assert not queue.fresh(reservation)


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
    assert queue.push_many("t", events(4)) == (Committed(),) * 3 + (NoRoom(retry_after_seconds=1.0),)
    assert keys(all_entries(queue)) == ["k0", "k1", "k2"]
    queue.remove(all_entries(queue))
    faulty = over(records, clock, lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE)
    with pytest.raises(UnknownOutcomeError, match="push it again"):
        faulty.push("t", Event(key="x"))


# The bound


def test_a_crash_between_counting_and_creating_loses_no_room_for_good(queue, records, clock):
    """And the room that is lost meanwhile is never given twice."""
    for _ in range(2):
        with pytest.raises(CrashedError):
            over(records, clock, at("create", Fault.CRASH_BEFORE)).reserve("t", Event(key="a"))
    assert queue.stats("t").counted == 2
    caretaker = Caretaker(queue, leak_seconds=30)
    assert caretaker.resolve_stale("t", lambda _: None).recounted == 0
    clock.now += 31
    assert caretaker.resolve_stale("t", lambda _: None).recounted == 1
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (0, 0)
    assert room(queue) == 3


def test_a_writer_asleep_while_it_was_counted_anew_is_not_granted_old_room(queue, records, clock):
    """It counted under the old meter, and wakes with an entry that nobody counts: it takes room anew."""
    woken = []

    def schedule(call):
        if call.method == "create" and not woken:
            woken.append(call)
            caretaker = Caretaker(queue, leak_seconds=0)
            assert caretaker.resolve_stale("t", lambda _: None).recounted == 1
            assert len(queue.reserve_many("t", events(3, "other"))) == 3
        return Fault.NONE

    refused = over(records, clock, schedule).reserve("t", Event(key="asleep"))
    assert isinstance(refused, NoRoom)
    assert len(list(records.scan("queue.t.000"))) == 3


def test_room_given_back_late_is_not_given_twice(queue, records, clock):
    """A remover sleeps before it gives back; the room is counted anew meanwhile, and its own does nothing."""
    queue.push_many("t", events(3))

    def schedule(call):
        if call.method == "add" and "depth" in call.key:
            Caretaker(queue, leak_seconds=0).resolve_stale("t", lambda _: None)
        return Fault.NONE

    (first, *_) = all_entries(queue)
    assert over(records, clock, schedule).remove([first]) == 1
    assert room(queue) == 1


def test_a_recount_cut_short_is_finished_by_the_next_pass(queue, records, clock):
    """Until then the shard refuses rather than to promise what may be taken."""
    queue.push("t", Event(key="there"))
    with pytest.raises(CrashedError):
        over(records, clock, at("create", Fault.CRASH_BEFORE)).reserve("t", Event(key="a"))
    faulty = over(records, clock, at("replace", Fault.CRASH_AFTER, key="topics/t"))
    with pytest.raises(CrashedError):
        Caretaker(faulty, leak_seconds=0).resolve_stale("t", lambda _: None)
    assert isinstance(queue.reserve("t", Event(key="b")), NoRoom)
    Caretaker(queue).resolve_stale("t", lambda _: None)
    assert room(queue) == 2


def test_old_entries_leave_the_base_as_they_go(queue, clock):
    """After counting anew, entries from before hold their room until they are removed, and no longer."""
    queue.push_many("t", events(2))
    queue.records.add("depth.t", next(queue.records.scan("depth.t")).key, 1)
    Caretaker(queue, leak_seconds=0).resolve_stale("t", lambda _: None)
    assert queue.stats("t").counted == 2
    queue.remove(all_entries(queue))
    assert queue.stats("t").counted == 2
    Caretaker(queue).resolve_stale("t", lambda _: None)
    assert queue.stats("t").counted == 0


# Stale reservations


def meta(etag, *, writer=None):
    metadata = {"s3notify-writer": writer} if writer else {}
    return ObjectMeta(key="k", etag=etag, size=5, metadata=metadata)


PUT = Event(key="k", writer="w", etag="mine")
REPLACE = Event(key="k", writer="w", precondition=IfMatch(etag="old"))


@pytest.mark.parametrize(
    ("event", "found", "happened"),
    [
        (PUT, None, False),
        (PUT, meta("mine"), True),
        (PUT, meta("other", writer="w"), True),
        (
            PUT,
            meta("other", writer="x"),
            True,
        ),  # overwritten, or never written: told, since twice is harmless
        (REPLACE, meta("old"), False),
        (REPLACE, meta("new"), True),
        (REPLACE, meta("old", writer="w"), True),  # an equal body brings the ETag back
        (Event(key="k", op="delete"), None, True),
        (Event(key="k", op="delete"), meta("x"), False),
    ],
)
def test_resolve(event, found, happened):
    """What HEAD proves; the event then describes what was found."""
    resolved = resolve(event, found)
    assert (resolved is not None) == happened
    if resolved and found:
        assert (resolved.etag, resolved.size) == (found.etag, 5)


def test_a_writer_that_died_after_its_put_loses_nothing(queue, clock):
    """Its reservation is committed with what HEAD found; that of one who died before the PUT is freed."""
    objects = MemoryObjectStore()
    queue.reserve_many("t", [Event(key="written"), Event(key="not written")])
    etag = objects.put("written", b"12345").etag
    caretaker = Caretaker(queue)
    assert caretaker.resolve_stale("t", objects.head) == Tended(waiting=2)
    clock.now += queue.stale_seconds - 1
    assert caretaker.resolve_stale("t", objects.head) == Tended(waiting=2)
    clock.now += 1
    assert caretaker.resolve_stale("t", objects.head) == Tended(committed=1, aborted=1)
    (entry,) = all_entries(queue)
    assert (entry.event.key, entry.event.etag, entry.event.size) == ("written", etag, 5)
    assert queue.stats("t").counted == 1


def test_a_new_caretaker_waits_anew(queue, clock):
    """Only what it saw itself, on its own clock, is old."""
    queue.reserve("t", Event(key="a"))
    Caretaker(queue).resolve_stale("t", lambda _: None)
    clock.now += 10 * queue.stale_seconds
    assert Caretaker(queue).resolve_stale("t", lambda _: None) == Tended(waiting=1)


def test_what_another_resolved_first_is_given_back_once(queue, records, clock):
    """Two caretakers on one stale reservation: one removal, one room."""
    first, _ = queue.reserve_many("t", events(2))

    def schedule(call):
        if call.method == "remove" and call.key.endswith(first.entry.key):
            queue.abort(first)
        return Fault.NONE

    caretaker = Caretaker(over(records, clock, schedule), leak_seconds=1e9)
    caretaker.resolve_stale("t", MemoryObjectStore().head)
    clock.now += queue.stale_seconds + 1
    assert caretaker.resolve_stale("t", lambda key: None if key == "k0" else meta("e")).aborted == 0
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (1, 1)


def test_a_head_that_fails_leaves_the_reservation(queue, clock):
    """It is resolved by the pass after that."""
    queue.reserve("t", Event(key="a"))
    caretaker = Caretaker(queue)

    def failing(_key):
        raise UnavailableError("503")

    caretaker.resolve_stale("t", failing)
    clock.now += queue.stale_seconds + 1
    assert caretaker.resolve_stale("t", failing).waiting == 1
    assert caretaker.resolve_stale("t", lambda _: None).aborted == 1


def test_a_writer_that_wakes_late(queue, clock):
    """Committed meanwhile is success, aborted meanwhile is told."""
    objects = MemoryObjectStore()
    early, late = queue.reserve_many("t", [Event(key="early"), Event(key="late")])
    objects.put("early", b"1")
    caretaker = Caretaker(queue)
    caretaker.resolve_stale("t", objects.head)
    clock.now += queue.stale_seconds + 1
    caretaker.resolve_stale("t", objects.head)
    objects.put("late", b"1")
    assert not queue.fresh(early)
    assert queue.commit(early) == Committed()
    assert queue.commit(late) == Expired()


# Pull


def test_entries_of_some_slots(records, clock):
    """Exactly those of the slots asked for, whole shards or not, in order of slot."""
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", TopicSettings(capacity=400, shards=4))
    pushed = events(60)
    queue.push_many("t", pushed)
    for wanted in (range(1000), range(250), range(200, 600), [slot_of("k7")], []):
        found = queue.entries("t", wanted)
        assert keys(found) == sorted(event.key for event in pushed if slot_of(event.key) in set(wanted))
        assert [entry.slot for entry in found] == sorted(entry.slot for entry in found)
    with pytest.raises(UsageError, match="1000"):
        queue.entries("t", [1000])


def test_removal_is_by_entry_and_idempotent(queue):
    """A second removal, or one by another consumer, removes and frees nothing more."""
    queue.push_many("t", events(3))
    first, second, third = all_entries(queue)
    assert queue.remove([first, third]) == 2
    assert queue.remove([first, third]) == 0
    assert all_entries(queue) == (second,)
    assert queue.stats("t").counted == 1


def test_a_removal_that_fails_is_told(queue, records, clock):
    """What could be removed is, and the rest may be removed again."""
    queue.push_many("t", events(3))
    entries = all_entries(queue)
    failing = f"queue.t.000/{entries[1].key}"
    faulty = over(
        records,
        clock,
        lambda call: Fault.THROTTLED if call.method == "remove" and call.key == failing else Fault.NONE,
    )
    with pytest.raises(UnavailableError):
        faulty.remove(entries)
    assert queue.remove(entries) == 1
    stats = queue.stats("t")
    assert (stats.depth, stats.counted, stats.delivered) == (0, 0, 3)


# Topics


def test_topics_are_created_once(queue):
    """Again with the same settings: the same topic. With others: an error that says what to do."""
    topic = queue.topics.create("t", ONE_SHARD)
    assert topic == queue.topics.get("t")
    with pytest.raises(ConflictError, match="update or delete"):
        queue.topics.create("t", TopicSettings(capacity=4, shards=1))
    queue.topics.create("a", TopicSettings())
    assert [topic.name for topic in queue.topics.all()] == ["a", "t"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("", TopicSettings()),
        ("a.b", TopicSettings()),
        ("A", TopicSettings()),
        ("t", TopicSettings(shards=0)),
        ("t", TopicSettings(shards=65)),
        ("t", TopicSettings(capacity=4, shards=5)),
        ("t", TopicSettings(slots=1001)),
        ("t", TopicSettings(slots=4, shards=5)),
        ("t", TopicSettings(max_attempts=0)),
        ("t", TopicSettings(ttl_seconds=0)),
        ("t", TopicSettings(max_event_bytes=0)),
    ],
)
def test_topics_that_cannot_be(records, clock, name, settings):
    """Refused before anything is written."""
    with pytest.raises(UsageError):
        NotificationQueue(records, clock=clock).topics.create(name, settings)
    assert list(records.scan("topics")) == []


def test_settings_change_shards_do_not(queue):
    """A larger capacity is used by writers that knew the smaller one."""
    assert room(queue) == 3
    queue.topics.update("t", TopicSettings(capacity=5, shards=1, endpoint="{}"))
    assert room(queue) == 2
    with pytest.raises(UsageError, match="shards"):
        queue.topics.update("t", TopicSettings(capacity=5, shards=2))


def test_deleting_a_topic_drops_what_is_pending(queue, records):
    """Entries, dead letters, counters, owners; and the name may be used anew."""
    held = queue.reserve("t", Event(key="held"))
    queue.push("t", Event(key="a"))
    records.create("dead.t", "001.x", encode_entry(held.entry))
    queue.remove(all_entries(queue))
    queue.topics.delete("t")
    for partition in ("queue.t.000", "dead.t", "depth.t", "counts.t", "owners", "topics"):
        assert list(records.scan(partition)) == []
    assert queue.commit(held) == Expired()
    with pytest.raises(NotFoundError):
        queue.reserve("t", Event(key="b"))
    with pytest.raises(NotFoundError):
        queue.topics.delete("t")
    queue.topics.create("t", ONE_SHARD)
    assert room(queue) == 3


@pytest.mark.parametrize("nth", range(12))
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_deletion_that_died_is_finished_by_the_next_creation(queue, records, clock, nth, fault):
    """Wherever it died, nothing of the old topic is in the new one."""
    queue.push_many("t", events(2))
    held = queue.reserve("t", Event(key="held"))

    def schedule(call):
        return fault if call.number == nth else Fault.NONE

    try:
        over(records, clock, schedule).topics.delete("t")
    except CrashedError:
        pass
    else:
        assert nth >= 8
    if nth > 1 or (nth == 1 and fault is Fault.CRASH_AFTER):
        with pytest.raises(NotFoundError):
            queue.topics.get("t")
        queue.topics.create("t", ONE_SHARD)
        assert queue.commit(held) == Expired()
        assert all_entries(queue) == ()
        assert room(queue) == 3


def test_a_writer_that_knew_the_old_topic_reserves_in_the_new(queue, records, clock):
    """Also if the topic was made anew while it reserved; what it left of the old epoch is swept."""
    made = []

    def schedule(call):
        if call.method == "create" and not made:
            made.append(call)
            queue.topics.delete("t")
            queue.topics.create("t", ONE_SHARD)
        return Fault.NONE

    writer = over(records, clock, schedule)
    reservation = writer.reserve("t", Event(key="a"))
    assert reservation.entry.epoch == queue.topics.get("t").epoch
    assert queue.commit(reservation) == Committed()
    assert keys(all_entries(queue)) == ["a"]


def test_garbage_of_another_epoch_is_swept_and_never_seen(queue, records):
    """An entry of a deleted topic that landed late."""
    reservation = queue.reserve("t", Event(key="old"))
    queue.commit(reservation)
    (record,) = records.scan("queue.t.000")
    queue.topics.delete("t")
    queue.topics.create("t", ONE_SHARD)
    records.create("queue.t.000", record.key, record.value)
    assert all_entries(queue) == ()
    assert queue.stats("t").depth == 0
    assert Caretaker(queue).resolve_stale("t", lambda _: None).swept == 1
    assert list(records.scan("queue.t.000")) == []


def once(method, key, action):
    """A schedule that does something else right before the first call of a method on a key."""
    done = []

    def schedule(call):
        if call.method == method and call.key == key and not done:
            done.append(call)
            action()
        return Fault.NONE

    return schedule


def test_a_slow_deleter_leaves_the_next_topic_alone(queue, records, clock):
    """Another finished the deletion, and created the topic anew, while the first was at it."""

    def overtake():
        queue.topics.create("t", ONE_SHARD)
        queue.push("t", Event(key="new"))

    over(records, clock, once("scan", "queue.t.000", overtake)).topics.delete("t")
    assert keys(all_entries(queue)) == ["new"]


def test_a_caretaker_with_an_old_topic_sweeps_nothing_new(queue, records, clock):
    """The topic was made anew after it had been read, and before its entries were."""

    def overtake():
        queue.topics.delete("t")
        queue.topics.create("t", ONE_SHARD)
        queue.push("t", Event(key="new"))

    caretaker = Caretaker(over(records, clock, once("scan", "queue.t.000", overtake)))
    assert caretaker.resolve_stale("t", lambda _: None).swept == 0
    assert keys(all_entries(queue)) == ["new"]


def test_foreign_bytes_are_told(queue, records):
    """Not taken for an entry, nor overwritten."""
    records.create("queue.t.000", "001.x", b"text")
    with pytest.raises(CorruptError):
        all_entries(queue)
    records.create("topics", "bad", b"{}")
    with pytest.raises(CorruptError):
        decode_topic(records.read("topics", "bad"))


def test_entries_survive_their_encoding(queue, records):
    """Every field, empty or not."""
    full = Event(
        key="日本 語/🙂",
        op="delete",
        bucket="b",
        etag="e",
        size=0,
        precondition=IfMatch(etag="x"),
        writer="w",
        sequencer="0A",
        time_ms=5,
    )
    for event in (full, Event(key="k")):
        entry = queue.reserve("t", event).entry
        assert decode_entry("t", 0, records.read("queue.t.000", entry.key)) == entry
    assert queue.reserve("t", full).entry.event == full


# Costs


def test_requests(clock):
    """As the docstrings say, on a record store whose calls are one request each."""
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    cost = records.cost
    assert cost(lambda: queue.topics.create("t", TopicSettings(shards=8))) == {"create": 1}
    assert cost(lambda: queue.topics.get("t")) == {"read": 1}
    queue.reserve("t", Event(key="warm"))
    held = []
    assert cost(lambda: held.append(queue.reserve("t", Event(key="a")))) == {"add": 1, "create": 1, "read": 1}
    assert cost(lambda: queue.commit(held[0])) == {"replace": 1}
    many = events(100)
    shards = len({shard_of(slot_of(event.key), TopicSettings()) for event in many})
    assert cost(lambda: held.extend(queue.reserve_many("t", many))) == {
        "add": shards,
        "create": 100,
        "read": 1,
    }
    assert cost(lambda: queue.commit_many(held[1:])) == {"replace": 100}
    entries = []
    assert cost(lambda: entries.extend(all_entries(queue))) == {"read": 1, "scan": 8}
    assert cost(lambda: queue.entries("t", [3, 4, 999])) == {"read": 1, "scan": 3}
    assert cost(lambda: queue.remove(entries)) == {"remove": 101, "add": 2 * shards}
    last = queue.reserve("t", Event(key="z"))
    assert cost(lambda: queue.abort(last)) == {"remove": 1, "add": 1}
    caretaker = Caretaker(queue)
    assert cost(lambda: caretaker.resolve_stale("t", lambda _: None)) == {"read": 1 + 8, "scan": 8}


def test_requests_on_a_bucket_alone(clock):
    """What the docstrings say of it; and nothing stays behind once an entry is gone."""
    store = CountingStore(MemoryObjectStore())
    queue = NotificationQueue(ObjectRecordStore(store, "r/", keys_recur=keys_recur), clock=clock)

    def cost(work):
        store.counts.clear()
        work()
        return dict(store.counts)

    queue.topics.create("t", ONE_SHARD)
    queue.commit(queue.reserve("t", Event(key="warm")))
    held = []
    assert cost(lambda: held.append(queue.reserve("t", Event(key="a")))) == {"GET": 2, "PUT": 2}
    assert cost(lambda: queue.commit(held[0])) == {"PUT": 1}
    entries = []
    assert cost(lambda: entries.extend(all_entries(queue))) == {"GET": 1 + 2, "LIST": 1}
    assert cost(lambda: queue.remove(entries)) == {"GET": 2, "PUT": 2 + 2, "DELETE": 2}
    assert store.store.list("r/queue").objects == ()
