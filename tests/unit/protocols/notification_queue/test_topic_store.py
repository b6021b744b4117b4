"""Topics that are created, changed and deleted while writers use them; and the stored form of topics."""

import gc
import weakref
from contextlib import suppress
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import ConflictError, CorruptError, NotFoundError, UsageError
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    Expired,
    NotificationQueue,
    Reconciler,
    TopicSettings,
)
from s3notify_platform.protocols.notification_queue.entries import decode_topic
from s3notify_platform.protocols.notification_queue.segments import encode_letter
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import CrashedError, Fault, at
from tests.unit.protocols.notification_queue.helpers import (
    ONE_SHARD,
    all_entries,
    events,
    keys,
    once,
    over,
    room,
)


def test_topics_are_created_once(queue):
    """Otherwise a second creation with other settings would change the topic silently."""
    topic = queue.topics.create("t", ONE_SHARD)
    assert topic == queue.topics.get("t")
    with pytest.raises(ConflictError, match=r"settings: capacity is 3, not 4; `s3notify topics update`"):
        queue.topics.create("t", TopicSettings(capacity=4, shards=1))
    with pytest.raises(ConflictError, match=r"shards is 1, not 2; delete it first"):
        queue.topics.create("t", TopicSettings(capacity=3, shards=2))
    assert queue.topics.get("t") == topic
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
        ("t", TopicSettings(max_attempts=0)),
        ("t", TopicSettings(ttl_seconds=0)),
        ("t", TopicSettings(max_event_bytes=0)),
        ("t", TopicSettings(max_event_bytes=65_537)),
        ("t", TopicSettings(capacity=0)),
        ("t", TopicSettings(retry_seconds=-1)),
        ("t", TopicSettings(retry_max_seconds=float("nan"))),
        ("t", TopicSettings(stale_seconds=0.5)),
    ],
)
def test_impossible_topics_are_refused(records, clock, name, settings):
    """Otherwise a wrong topic would be stored, and fail its writers later."""
    with pytest.raises(UsageError):
        NotificationQueue(records, clock=clock).topics.create(name, settings)
    assert list(records.scan("topics")) == []


def test_settings_can_be_changed_but_not_shards(queue):
    """Otherwise a higher capacity would not be used by running writers, or entries of a removed shard would be lost."""
    assert room(queue) == 3
    queue.topics.update("t", TopicSettings(capacity=5, shards=1, endpoint="{}"))
    assert room(queue) == 2
    with pytest.raises(UsageError, match="shards"):
        queue.topics.update("t", TopicSettings(capacity=5, shards=2))


def test_a_deleted_topic_leaves_nothing(queue, records):
    """Otherwise entries or counters of a deleted topic would appear in a new topic of the same name."""
    held = queue.reserve("t", Event(key="held"))
    queue.push("t", Event(key="a"))
    records.create("dead.t", "001.x", encode_letter(held.entry))
    queue.remove(all_entries(queue))
    queue.topics.delete("t")
    for partition in ("queue.t", "dead.t", "depth.t", "counts.t", "owners", "topics"):
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
def test_an_interrupted_deletion_is_finished_by_the_next_creation(queue, records, clock, nth, fault):
    """Otherwise a new topic would contain entries of the old topic, or could not be created."""
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
    else:
        assert queue.topics.get("t").settings == ONE_SHARD
        assert len(all_entries(queue)) == 2


WIDE = replace(ONE_SHARD, capacity=5, endpoint="{}")


def widened(settings):
    return replace(settings, capacity=5)


@pytest.mark.parametrize("nth", range(14))
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("by", ["repetition", "creation"])
def test_an_interrupted_renewal_keeps_the_settings(records, clock, nth, fault, by):
    """Otherwise a topic whose renewal was killed would be lost with its endpoint and capacity. A repetition of the
    renewal, or a creation of the topic, finishes the renewal.
    """
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", replace(ONE_SHARD, endpoint="{}"))
    queue.topics.pause("t")
    before = queue.topics.get("t")
    queue.push_many("t", events(2))
    held = queue.reserve("t", Event(key="held"))
    try:
        over(records, clock, lambda call: fault if call.number == nth else Fault.NONE).topics.renew(
            "t", widened
        )
    except CrashedError:
        pass
    else:
        assert nth >= 9
    if by == "repetition":
        queue.topics.renew("t", widened)
    elif queue.topics.find("t") is None:
        queue.topics.create("t", WIDE)
    elif queue.topics.get("t").epoch == before.epoch:
        assert queue.topics.get("t") == before
        assert nth <= 1
        return
    renewed = queue.topics.get("t")
    assert (renewed.settings, renewed.paused) == (WIDE, True)
    assert queue.commit(held) == Expired()
    assert all_entries(queue) == ()
    assert room(queue) == 5


def test_a_renewed_topic_has_waited_like_a_deleted_one(queue, clock):
    """Otherwise a writer that knows the old topic could reserve an entry that nobody finds."""
    began = clock.now
    renewed = queue.topics.renew("t", widened)
    assert clock.now - began >= queue.topics.outdated_seconds
    assert renewed == queue.topics.get("t")
    assert renewed.phase == "known"


def test_a_topic_that_is_being_deleted_is_not_renewed(queue, records, clock):
    """Otherwise a topic that a person has deleted would come back. A deletion also ends an interrupted renewal."""
    for task in (lambda topics: topics.renew("t", widened), lambda topics: topics.delete("t")):
        with suppress(CrashedError):
            task(over(records, clock, at("scan", Fault.CRASH_BEFORE, key="queue.t")).topics)
    with pytest.raises(NotFoundError):
        queue.topics.renew("t", widened)
    with pytest.raises(NotFoundError):
        queue.topics.get("t")
    queue.topics.delete("t")
    assert list(records.scan("topics")) == []
    queue.topics.create("t", ONE_SHARD, tables=("one",))
    with suppress(CrashedError):
        over(records, clock, at("scan", Fault.CRASH_BEFORE, key="queue.t")).topics.renew("t", widened)
    with pytest.raises(UsageError, match="serves table one"):
        queue.topics.delete("t", served=False)


def test_a_creation_of_other_keys_waits_for_an_interrupted_renewal(queue, records, clock):
    """Otherwise a writer that still knows the former prefix would not announce its change to the new topic."""
    queue.topics.create("u", TopicSettings(prefix="a/"))
    with suppress(CrashedError):
        topics = over(records, clock, at("scan", Fault.CRASH_BEFORE, key="queue.u")).topics
        topics.renew("u", lambda found: replace(found, prefix="a/b/"))
    queue.topics.delete("t")
    began = clock.now
    queue.topics.create("v", TopicSettings(prefix="a/c/"))
    assert clock.now - began >= queue.topics.outdated_seconds


def test_a_writer_that_knew_the_old_topic_reserves_in_the_new_one(queue, records, clock):
    """Otherwise a reservation would be made in the old topic, although this topic was deleted meanwhile."""
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
    assert queue.commit(reservation) == EntryCommitted()
    assert keys(all_entries(queue)) == ["a"]


def test_segments_of_another_epoch_are_removed_and_never_seen(queue, records):
    """Otherwise a late segment of a deleted topic would be delivered in the new topic."""
    reservation = queue.reserve("t", Event(key="old"))
    queue.commit(reservation)
    (record,) = records.scan("queue.t")
    queue.topics.delete("t")
    queue.topics.create("t", ONE_SHARD)
    records.create("queue.t", record.key, record.value)
    assert all_entries(queue) == ()
    assert queue.stats("t").depth == 0
    assert Reconciler(queue).resolve_stale("t", lambda _: None).swept == 1
    assert list(records.scan("queue.t")) == []


def test_a_slow_deleter_leaves_the_next_topic_unchanged(queue, records, clock):
    """Otherwise a deletion would remove entries of a topic that was created again meanwhile."""

    def overtake():
        queue.topics.create("t", ONE_SHARD)
        queue.push("t", Event(key="new"))

    over(records, clock, once("scan", "queue.t", overtake)).topics.delete("t")
    assert keys(all_entries(queue)) == ["new"]


def test_a_reconciler_with_an_old_topic_removes_no_new_entries(queue, records, clock):
    """Otherwise a reconciler that read the old topic would remove entries of the new topic."""

    def overtake():
        queue.topics.delete("t")
        queue.topics.create("t", ONE_SHARD)
        queue.push("t", Event(key="new"))

    reconciler = Reconciler(over(records, clock, once("scan", "queue.t", overtake)))
    assert reconciler.resolve_stale("t", lambda _: None).swept == 0
    assert keys(all_entries(queue)) == ["new"]


def test_foreign_bytes_raise_an_error(queue, records):
    """Otherwise foreign bytes would be read as entries, or overwritten."""
    records.create("queue.t", "001.x", b"text")
    with pytest.raises(CorruptError):
        all_entries(queue)
    records.create("topics", "bad", b"{}")
    with pytest.raises(CorruptError):
        decode_topic(records.read("topics", "bad"))


def test_an_unused_queue_is_freed_with_its_threads():
    """Otherwise a process that lives for days would keep the threads of all its queues."""
    gc.collect()
    gc.disable()
    try:
        queue = NotificationQueue(ObjectRecordStore(MemoryObjectStore(), "q/", parallelism=4))
        queue.topics.create("t", TopicSettings())
        queue.stats("t")
        gone = weakref.ref(queue)
        del queue
        assert gone() is None
    finally:
        gc.enable()
