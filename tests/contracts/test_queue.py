"""The notification queue on real servers: the quota under concurrent writers, and every step of an entry's life."""

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.channels.reconcile.reconciler_service import ReconcilerService, shared_reconciler
from s3notify_platform.channels.service import SourceKeyspace
from s3notify_platform.kernel.ports import Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, Delete, Publisher, Put, Watcher
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    QuotaExceeded,
    Reconciler,
    Reservation,
    TopicSettings,
)
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.tables import create_record_table

pytestmark = pytest.mark.server

WRITERS = 8
CAPACITY = 21
EVERYTHING = range(1000)


@pytest.fixture(params=["seaweed", "ministack", "dynamo"])
def place(request):
    """A bucket, and the place of its queue."""
    server = request.getfixturevalue("seaweed" if request.param == "seaweed" else "ministack")
    config = server.config(server.make_bucket())
    table = None
    if request.param == "dynamo":
        table = server.table_config()
        create_record_table(table)
    return config, table


@pytest.fixture
def new_queue(place):
    """Returns a function that makes a queue with its own state, like a queue of a separate process. Only the store's
    client is shared by all queues.
    """
    config, table = place

    def make(**settings):
        return NotificationQueue(queue_records(config, table=table), **settings)

    return make


def test_quota_is_strict_among_writers(new_queue):
    """If concurrent writers got more quota than the capacity, the queue would grow beyond its bound. If returned
    quota were lost, the topic would refuse writes, although the topic has room.
    """
    first = new_queue()
    first.topics.create("t", TopicSettings(capacity=CAPACITY, shards=2))

    holding, lock = [0], Lock()

    def hold(count):
        # The count rises after a grant, and falls before an abort, so it is never higher than the granted quota.
        with lock:
            holding[0] += count
            assert holding[0] <= CAPACITY

    def write(number):
        queue, held = new_queue(), []
        for step in range(4):
            batch = [Event(key=f"{number}.{step}.{n}") for n in range(3)]
            granted = [r for r in queue.reserve_many("t", batch) if isinstance(r, Reservation)]
            hold(len(granted))
            hold(-len(granted[1:]))
            queue.abort_many(granted[1:])
            held += granted[:1]
        return held

    with ThreadPoolExecutor(WRITERS) as pool:
        held = [reservation for part in pool.map(write, range(WRITERS)) for reservation in part]
    assert len(held) <= CAPACITY
    stats = first.stats("t")
    assert stats.depth == len(held)
    # Without faults, no quota is lost. A lost answer makes some quota unusable until the next count.
    assert stats.depth <= stats.counted <= CAPACITY
    Reconciler(first, leak_seconds=0).resolve_stale("t", lambda _: None)
    rest = first.reserve_many("t", [Event(key=f"rest {n}") for n in range(60)])
    assert sum(isinstance(outcome, Reservation) for outcome in rest) == CAPACITY - len(held)
    assert isinstance(rest[-1], QuotaExceeded)
    first.abort_many([*held, *(outcome for outcome in rest if isinstance(outcome, Reservation))])
    assert first.stats("t").depth == 0


def test_concurrent_writers_never_exceed_the_quota(new_queue):
    """If two writers got the same part of the quota, the topic would hold more entries than its capacity. If
    a part of the quota were lost, writes would be refused, although the topic has room.
    """
    new_queue().topics.create("t", TopicSettings(capacity=5, shards=1))

    def write(number):
        return new_queue().reserve("t", Event(key=f"k{number}"))

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = list(pool.map(write, range(2 * WRITERS)))
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 5


def test_entry_goes_from_the_writer_to_the_consumer(place, new_queue):
    """If one step lost an entry, the consumer would miss a changed object. If a refused publication wrote its
    object, the object would be in the bucket without an entry.
    """
    config, table = place
    store = S3ObjectStore(config)
    queue = new_queue()
    queue.topics.create("t", TopicSettings(capacity=40, shards=1))
    publisher = QueuedPublisher(Publisher(store, prefix="ks/"), queue, bucket=config.bucket)
    keyspaces = (SourceKeyspace(signals="ks/"), SourceKeyspace(signals="other/", prefix="x"))
    reconciler = shared_reconciler(config, config, keyspaces=keyspaces[:1], table=table)
    assert reconciler is shared_reconciler(config, config, keyspaces=keyspaces, table=table)
    batch = [Put(key=f"raw/{n} é+", body=b"%d" % n) for n in range(30)]
    assert all(isinstance(outcome, Written) for outcome in publisher.publish(batch))
    assert isinstance(publisher.publish([Delete(key="raw/3 é+")])[0], Written)
    watcher = Watcher(store, prefix="ks/")
    changed = watcher.poll().changed
    entries = new_queue().entries("t", changed)
    assert {(e.event.op, e.event.key) for e in entries} == {
        *(("put", put.key) for put in batch),
        ("delete", "raw/3 é+"),
    }
    for entry in entries:
        found = store.head(entry.event.key)
        assert entry.event.op == "delete" or found is None or found.etag == entry.event.etag
    refused = publisher.publish([Put(key=f"more/{n}", body=b"1") for n in range(10)])
    assert isinstance(refused[-1], Refused)
    assert store.head("more/9") is None
    assert queue.remove(entries) == 31
    assert len(queue.entries("t", EVERYTHING)) == 9
    reconciled = reconciler.reconcile_when_due()
    assert (reconciled.topics, reconciled.signalled, reconciled.errors) == (1, 0, ())
    store.close()


def test_reconciler_resolves_a_dead_writers_reservation(place, new_queue):
    """The reconciler sends a HEAD for the object of an old reservation. Without the HEAD, a written object
    would never be announced, and the reservation of an unwritten object would use up the topic's quota.
    Without the signal, the consumer would not look for the entry.
    """
    config, _ = place
    store = S3ObjectStore(config)
    queue = new_queue(stale_seconds=0.2)
    queue.topics.create("t", TopicSettings(shards=1))
    reserved = queue.reserve_many("t", [Event(key="written", bucket=config.bucket), Event(key="not written")])
    assert all(isinstance(outcome, Reservation) for outcome in reserved)
    store.put("written", b"12345")
    publisher = Publisher(store, prefix="ks/")
    reconciler = ReconcilerService(queue, store, [Keyspace(publisher=publisher)], bucket=config.bucket)
    reconciler.reconcile()
    queue.clock.sleep(0.3)
    reconciled = reconciler.reconcile()
    assert (reconciled.committed, reconciled.aborted, reconciled.signalled) == (1, 1, 1)
    (entry,) = queue.entries("t", [slot_of("written")])
    assert (entry.event.size, entry.event.etag) == (5, store.head("written").etag)
    assert store.head(f"ks/{slot_of('written')}").metadata == {QUEUED: "1"}
    store.close()
