"""The queue as pulling consumers use it, and the requests for an entry, from its reservation to its removal."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UsageError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    Reconciler,
    TopicSettings,
    TopicUser,
    keys_recur,
)
from s3notify_platform.protocols.notification_queue.entries import Claim
from s3notify_platform.protocols.notification_queue.segments import committed_in
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.counted import CountedRecords
from tests.support.faults import Fault
from tests.unit.protocols.notification_queue.helpers import ONE_SHARD, all_entries, events, keys, over

# Pull


def test_a_consumer_gets_only_entries_of_the_wanted_slots(records, clock):
    """Otherwise a run would get entries of slots that it does not process, or miss entries of its own slots."""
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", TopicSettings(capacity=400, shards=4))
    pushed = events(60)
    queue.push_many("t", pushed)
    for wanted in (range(1000), range(250), range(125), range(20), range(200, 600), [slot_of("k7")], []):
        found = queue.entries("t", wanted)
        assert keys(found) == sorted(event.key for event in pushed if slot_of(event.key) in set(wanted))
        assert [entry.slot for entry in found] == sorted(entry.slot for entry in found)
    with pytest.raises(UsageError, match="1000"):
        queue.entries("t", [1000])


def test_the_age_of_the_oldest_entry_needs_no_full_scan(clock):
    """Otherwise a freshness check would read all entries of a topic."""
    counting = CountingStore(MemoryObjectStore())
    queue = NotificationQueue(ObjectRecordStore(counting, "queue/"), clock=clock)
    queue.topics.create("t", TopicSettings(capacity=400, shards=2))
    assert queue.oldest_age_seconds("t") is None
    for event in events(8):
        queue.push("t", replace(event, time_ms=clock.wall_ms()))
        clock.sleep(5)
    before = counting.counts["GET"]
    age = queue.oldest_age_seconds("t")
    reads = counting.counts["GET"] - before
    assert age == 40 == queue.stats("t").oldest_age_seconds
    assert reads <= 2 + 2


def test_a_removal_affects_only_its_entries_and_may_be_repeated(queue):
    """Otherwise a repeated removal would free room twice, or remove other entries of the segment."""
    queue.push_many("t", events(3))
    first, second, third = all_entries(queue)
    assert first.place == third.place
    assert queue.remove([first, third]) == 2
    assert queue.remove([first, third]) == 0
    assert all_entries(queue) == (second,)
    assert queue.stats("t").counted == 1


def test_a_segment_that_changed_since_the_read_is_read_again(queue):
    """Otherwise the removal of a whole segment would also free the room of entries that other processes have already
    removed.
    """
    queue.push_many("t", events(3))
    entries = all_entries(queue)
    assert queue.remove(entries[:1]) == 1
    assert queue.remove(entries) == 2
    assert queue.remove(entries) == 0
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (0, 0)


def test_claimed_entries_are_not_removed(queue, clock):
    """Otherwise a puller would remove an entry that an owner is delivering."""
    queue.topics.update("t", replace(ONE_SHARD, endpoint="{}"))
    queue.push_many("t", events(3))
    before = all_entries(queue)
    claim = Claim(worker="w", generation=1)
    first = before[0]
    queue.shards.edit(
        first.place,
        lambda found: (found.edited(lambda e: replace(e, claim=claim) if e.n == first.n else e), None),
    )
    assert queue.remove(before) == 2
    claimed = all_entries(queue)
    assert queue.remove(claimed) == 0
    assert queue.stats("t").depth == 1


def test_a_removal_that_fails_is_reported(queue, records, clock):
    """Otherwise a caller would not learn that some entries are left, or could not repeat their removal."""
    for event in events(3):
        queue.push("t", event)
    entries = all_entries(queue)
    failing = f"queue.t/{entries[1].place.key}"
    faulty = over(
        records,
        clock,
        lambda call: Fault.THROTTLED if call.method == "remove" and call.key == failing else Fault.NONE,
    )
    with pytest.raises(UnavailableError):
        faulty.remove(entries)
    assert queue.remove(entries) == 1
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (0, 0)


@pytest.mark.parametrize("again", [False, True])
def test_a_user_of_a_deleted_topic_gets_not_found(records, clock, again):
    """Otherwise a consumer would conclude from the missing entries of a deleted topic that nothing has changed."""
    queue, other = (NotificationQueue(records, clock=clock) for _ in range(2))
    topic = queue.topics.create("t", ONE_SHARD)
    queue.push_many("t", events(3))

    class DeletedMeanwhile:
        def __getattr__(self, method):
            if method == "scan" and other.topics.find("t") == topic:
                other.topics.delete("t")
                if again:
                    other.topics.create("t", ONE_SHARD)
            return getattr(records, method)

    reading = NotificationQueue(DeletedMeanwhile(), clock=clock)
    assert committed_in(reading.segments("t", range(1000)), range(1000), epoch=topic.epoch) == ()
    with pytest.raises(NotFoundError):
        reading.check_topic("t", TopicUser(slots=1000, epoch=topic.epoch))


# Costs


def test_each_operation_sends_only_the_documented_requests(clock):
    """Otherwise an operation would cost more requests than documented."""
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    cost = records.cost
    assert cost(lambda: queue.topics.create("t", TopicSettings(shards=8))) == {
        "create": 1,
        "scan": 1,
        "replace": 1,
    }
    assert cost(lambda: queue.topics.get("t")) == {"read": 1}
    queue.reserve("t", Event(key="warm"))
    held = []
    assert cost(lambda: held.append(queue.reserve("t", Event(key="a")))) == {"add": 1, "create": 1}
    assert cost(lambda: queue.commit(held[0])) == {"replace": 1}
    assert cost(lambda: held.extend(queue.reserve_many("t", events(200)))) == {
        "add": 1,
        "create": 1,
    }
    assert cost(lambda: queue.settle(held[1:200], held[200:])) == {"replace": 1, "add": 1}
    entries = []
    assert cost(lambda: entries.extend(all_entries(queue))) == {"read": 1, "scan": 1}
    assert len(entries) == 200
    assert cost(lambda: queue.remove(entries[:100])) == {"read": 1, "replace": 1, "remove": 1, "add": 1}
    left = all_entries(queue)
    assert cost(lambda: queue.remove(left)) == {"remove": 1, "add": 1}
    last = queue.reserve("t", Event(key="z"))
    assert cost(lambda: queue.abort_many([last])) == {"remove": 1, "add": 1}
    reconciler = Reconciler(queue)
    assert cost(lambda: reconciler.resolve_stale("t", lambda _: None)) == {"read": 1 + 8, "scan": 8}


def test_a_queue_on_a_bucket_sends_only_the_documented_requests(clock):
    """Otherwise an operation on a bucket would cost more requests than documented, or leave objects behind."""
    store = CountingStore(MemoryObjectStore())
    queue = NotificationQueue(ObjectRecordStore(store, "r/", keys_recur=keys_recur), clock=clock)

    def cost(work):
        store.counts.clear()
        work()
        return dict(store.counts)

    queue.topics.create("t", ONE_SHARD)
    queue.commit(queue.reserve("t", Event(key="warm")))
    held = []
    assert cost(lambda: held.append(queue.reserve("t", Event(key="a")))) == {"PUT": 2}
    assert cost(lambda: queue.commit(held[0])) == {"PUT": 1}
    entries = []
    assert cost(lambda: entries.extend(all_entries(queue))) == {"GET": 1 + 2, "LIST": 1}
    assert cost(lambda: queue.remove(entries[:1])) == {"PUT": 1 + 1, "DELETE": 2 + 1}, (
        "one request more to try a conditional DELETE"
    )
    assert cost(lambda: queue.remove(entries[1:])) == {"PUT": 1, "DELETE": 1}
    assert store.store.list("r/queue").objects == ()
    queue.push("t", Event(key="other"))
    assert cost(lambda: queue.entries("t", [slot_of("a")])) == {"GET": 1, "LIST": 1}


def test_a_batch_costs_few_requests_if_the_queue_is_on_a_bucket(clock):
    """Otherwise each of 200 changes on 8 shards would cost 0.1 requests or more, from its reservation to its
    removal.
    """
    store = CountingStore(MemoryObjectStore())
    queue = NotificationQueue(ObjectRecordStore(store, "r/", keys_recur=keys_recur), clock=clock)
    queue.topics.create("t", TopicSettings(capacity=2000))
    for _ in range(2):
        store.counts.clear()
        queue.push_many("t", events(200))
        entries = all_entries(queue)
        assert queue.remove(entries) == 200
    assert sum(store.counts.values()) <= 22
