"""Keyspace, notification queue and its reconciler on a bucket of Ceph RGW, with real concurrency."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import Delete, Publisher, Put, Watcher
from s3notify_platform.protocols.notification_queue import (
    DeadLettered,
    EntryCommitted,
    Event,
    NotificationQueue,
    QuotaExceeded,
    Reconciler,
    Reservation,
    ShardConsumer,
    TopicSettings,
    WillRetry,
    Worker,
)
from s3notify_platform.protocols.updates import WRITER
from s3notify_platform.stores.config import QUEUE_PREFIX
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.support.waiting import until

pytestmark = pytest.mark.ceph

SLOTS = 16
WRITERS = 8


@pytest.fixture
def bucket(rgw):
    return rgw.config(rgw.make_bucket())


@pytest.fixture
def queue(bucket):
    return NotificationQueue(queue_records(bucket))


def settings(**fields):
    return TopicSettings(**{"capacity": 200, "shards": 2, "slots": SLOTS} | fields)


def remaining(bucket):
    """The objects of entries and dead letters that still exist, including tombstones."""
    found = list_all(S3ObjectStore(bucket), QUEUE_PREFIX)
    names = [meta.key.removeprefix(QUEUE_PREFIX) for meta in found]
    return [name for name in names if name.startswith(("queue", "dead"))]


def test_a_poll_finds_changed_slots_with_two_requests(bucket):
    """Otherwise a poll would miss a change, or cost more than 1 HEAD and 1 LIST."""
    counting = CountingStore(FastObjectStore(bucket))
    publisher = Publisher(counting, prefix="k/", slots=SLOTS)
    watcher = Watcher(counting, prefix="k/", slots=SLOTS)
    watcher.poll()
    for changes in (
        [Put(key="a", body=b"1"), Put(key="b", body=b"1")],
        [Put(key="a", body=b"2")],
        [Delete(key="b")],
    ):
        publisher.publish(changes)
        counting.counts.clear()
        assert set(watcher.poll().changed) == {slot_of(change.key, SLOTS) for change in changes}
        assert counting.counts == {"HEAD": 1, "LIST": 1}
    counting.counts.clear()
    assert not watcher.poll().changed
    assert counting.counts == {"HEAD": 1}


def test_the_quota_is_strict_and_no_reserved_space_is_lost(bucket, queue):
    """RGW answers half of the conflicts with 500. Without a check of the outcome, reserved space would be counted
    twice, or would be lost.
    """
    queue.topics.create("t", settings(capacity=40, shards=1))

    def write(number):
        mine = NotificationQueue(queue_records(bucket))
        return [mine.reserve("t", Event(key=f"{number}.{n}")) for n in range(10)]

    def put_back(mine):
        for reservation in mine:
            queue.abort_many([reservation])

    with ThreadPoolExecutor(WRITERS) as pool:
        parts = [[r for r in part if isinstance(r, Reservation)] for part in pool.map(write, range(WRITERS))]
        stats = queue.stats("t")
        assert sum(map(len, parts)) == stats.depth == stats.counted == 40
        assert isinstance(queue.reserve("t", Event(key="late")), QuotaExceeded)
        granted = [reservation for part in parts for reservation in part]
        list(pool.map(put_back, (granted[n::WRITERS] for n in range(WRITERS))))
    assert queue.stats("t").counted == 0


def test_each_change_is_pulled_once_and_leaves_no_object(bucket, queue):
    """Otherwise removed entries would leave tombstones, since this store ignores conditions on DELETE."""
    queue.topics.create("t", settings())
    keys = [f"raw/{n}" for n in range(60)]

    def write(part):
        reservations = queue.reserve_many("t", [Event(key=key) for key in part])
        return queue.commit_many(r.wrote(size=1) for r in reservations)

    with ThreadPoolExecutor(4) as pool:
        outcomes = [o for part in pool.map(write, (keys[n::4] for n in range(4))) for o in part]
    assert outcomes == [EntryCommitted()] * 60
    some = queue.entries("t", [3])
    assert sorted(e.event.key for e in some) == sorted(key for key in keys if slot_of(key, SLOTS) == 3)
    entries = queue.entries("t", range(SLOTS))
    assert sorted(entry.event.key for entry in entries) == sorted(keys)
    with ThreadPoolExecutor(2) as pool:  # two consumers of the same entries
        removed = list(pool.map(queue.remove, (entries, entries)))
    assert sum(removed) == 60
    assert remaining(bucket) == []
    assert queue.stats("t").counted == 0


def test_two_workers_deliver_each_entry_once(bucket, queue):
    """Otherwise both workers would deliver an entry, or a failed entry would be lost instead of becoming a
    dead letter.
    """
    queue.topics.create("t", settings(endpoint="{}", max_attempts=2, retry_seconds=0))
    keys = [f"raw/{n}" for n in range(40)]
    queue.push_many("t", [Event(key=key) for key in keys])
    workers = [Worker(NotificationQueue(queue_records(bucket))) for _ in range(2)]
    for _ in range(2):
        for worker in workers:
            worker.balance()
    assert [len(worker.leases) for worker in workers] == [1, 1]

    def serve(worker):
        delivered, outcomes = [], []
        consumer = ShardConsumer(worker, worker.leases[0])
        while taken := consumer.take(8):
            worker.balance()
            bad = [entry for entry in taken if entry.event.key.endswith("7")]
            good = [entry for entry in taken if entry not in bad]
            outcomes += [consumer.failed(entry, "no") for entry in bad]
            delivered += [entry.event.key for entry in good]
            consumer.done(good)
        return delivered, outcomes

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(serve, workers))
    bad = sorted(key for key in keys if key.endswith("7"))
    assert sorted(key for delivered, _ in results for key in delivered) == sorted(set(keys) - set(bad))
    outcomes = [outcome for _, part in results for outcome in part]
    assert sum(isinstance(outcome, WillRetry) for outcome in outcomes) == len(bad)
    assert sum(isinstance(outcome, DeadLettered) for outcome in outcomes) == len(bad)
    assert sorted(letter.event.key for letter in queue.dead("t")) == bad
    assert queue.redrive("t") == (len(bad), ())
    queue.remove(queue.entries("t", range(SLOTS)))
    assert remaining(bucket) == []
    for worker in workers:
        worker.stop()


def test_reservations_of_a_killed_writer_are_resolved_by_head(bucket, queue):
    """Without a HEAD of the object, a written object would not be announced, or the space that a killed writer had
    reserved would be lost.
    """
    store = FastObjectStore(bucket)
    queue.topics.create("t", settings())
    old = store.put("raw/old", b"1").etag
    for key, op in (
        ("raw/written", "put"),
        ("raw/not", "put"),
        ("raw/gone", "delete"),
        ("raw/old", "delete"),
    ):
        assert isinstance(queue.reserve("t", Event(key=key, op=op, writer=f"w {key}")), Reservation)
    written = store.put("raw/written", b"12", metadata={WRITER: "w raw/written"}).etag
    # A killed writer had added 5 entries to the shard's counter, and never wrote these entries.
    partition, key = "depth.t", f"{queue.topics.get('t').epoch}.000.0"
    counted = queue.shards.counted(queue.topics.get("t"), 0)
    assert queue.records.add(partition, key, 5) == counted + 5

    hasty = NotificationQueue(queue_records(bucket), stale_seconds=0.0)
    reconciler = Reconciler(hasty, leak_seconds=0.0)
    reconciled = reconciler.resolve_stale("t", store.head)
    assert (reconciled.committed, reconciled.aborted) == (2, 2)
    events = {entry.event.key: entry.event for entry in queue.entries("t", range(SLOTS))}
    assert set(events) == {"raw/written", "raw/gone"}
    assert (events["raw/written"].etag, events["raw/written"].size) == (written, 2)
    assert store.head("raw/old").etag == old

    def counted_again() -> bool:
        reconciler.resolve_stale("t", store.head)
        return queue.stats("t").counted == 2

    until(counted_again, seconds=60)  # the recount waits for writers that rely on the former count
    stats = queue.stats("t")
    assert (stats.depth, stats.reserved) == (2, 0)


def test_a_deleted_topic_leaves_no_objects(bucket, queue):
    """Otherwise a new topic with the same name would begin with old entries or a wrong count."""
    queue.topics.create("t", settings())
    queue.push_many("t", [Event(key=f"raw/{n}") for n in range(30)])
    queue.topics.delete("t")
    assert remaining(bucket) == []
    queue.topics.create("t", settings())
    assert queue.stats("t").counted == 0
