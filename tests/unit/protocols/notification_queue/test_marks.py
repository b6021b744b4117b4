"""Marks say which slots have entries. Marks come from the names of segments, so each new entry changes a mark."""

import pytest

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings, marks_of
from s3notify_platform.protocols.notification_queue.entries import queue_partition
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore


@pytest.fixture
def objects():
    return CountingStore(MemoryObjectStore())


@pytest.fixture
def queue(objects):
    queue = NotificationQueue(ObjectRecordStore(objects, "q/"), parallelism=1)
    queue.topics.create("t", TopicSettings())
    return queue


def marks(queue, topic="t"):
    return {slot: sorted(found) for slot, found in marks_of(queue.records, topic).items()}


def keys(count):
    return [f"k{number}" for number in range(count)]


def test_marks_are_read_by_one_list(queue, objects):
    for batch in (["a"], ["a", "b"], keys(8)):
        queue.push_many("t", [Event(key=key) for key in batch])
    objects.counts.clear()
    found = marks(queue)
    assert objects.counts == {"LIST": 1}
    assert found.keys() == {slot_of(key) for key in ("a", "b", *keys(8))}
    assert len(found[slot_of("a")]) == 2


def test_empty_and_missing_topics_have_no_marks(queue):
    assert marks(queue) == marks(queue, "other") == {}


def test_reservations_and_commits_both_add_marks(queue):
    """Otherwise a watcher that has seen the reservation would miss the commit."""
    slot, seen = slot_of("a"), [[]]
    for _ in range(2):
        reservation = queue.reserve("t", Event(key="a"))
        seen.append(marks(queue)[slot])
        queue.commit(reservation)
        seen.append(marks(queue)[slot])
    assert len({str(each) for each in seen}) == 5
    queue.remove(queue.entries("t", [slot]))
    assert slot not in marks(queue)


def test_segments_of_many_slots_are_read(queue, objects):
    """Otherwise a watcher would miss an entry if the key of its segment names no slots, or would mistake a removal of
    entries for a change.
    """
    names = keys(20)
    reservations = queue.reserve_many("t", [Event(key=key) for key in names])
    assert marks(queue) == {}
    queue.commit_many(reservations[:15])
    before = marks(queue)
    assert before.keys() == {slot_of(key) for key in names[:15]}
    queue.commit_many(reservations[15:])
    queue.remove(queue.entries("t", [slot_of(names[0])]))
    objects.counts.clear()
    after = marks(queue)
    assert objects.counts == {"LIST": 1, "GET": 1}
    assert after.keys() == {slot_of(key) for key in names[1:]}
    assert all(after[slot] == before[slot] for slot in before.keys() & after.keys())


def test_a_foreign_record_raises_an_error(queue):
    queue.records.create(queue_partition("t"), "strange", b"{}")
    with pytest.raises(CorruptError, match="strange"):
        marks(queue)
