"""A source in memory, what its parties leave behind, and what `explain` says of it."""

from s3notify_platform.errors import UsageError
from s3notify_platform.explain import SensorView, explain
from s3notify_platform.ingest.batches import BatchPayload
from s3notify_platform.ingest.follow import topic_epoch
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import Written
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Publisher, Put, signal_key
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    NotificationQueue,
    TopicSettings,
    TopicUser,
)
from s3notify_platform.protocols.source_enumerator import ObjectState, RescanBacklog
from s3notify_platform.slots import slot_of
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import SlotCommit, TableFile
from s3notify_platform.table.layout import Generation
from tests.support.clocks import HandClock

KEY = "raw/a.jsonl"
SLOT = slot_of(KEY, 16)


class ReadOnly(CountingStore):
    """A bucket that may be read, and nothing else."""

    def put(self, key, body, *, precondition=None, metadata=None):
        raise UsageError("access denied")

    def delete(self, key, *, precondition=None):
        raise UsageError("access denied")

    def copy(self, source, target, *, precondition=None, metadata=None):
        raise UsageError("access denied")


class Place:
    """A source with its bucket, and what its parties do to it."""

    def __init__(self):
        self.clock = HandClock()
        self.store = MemoryObjectStore(clock=self.clock)
        bucket = S3Config(bucket="b")
        self.source = Source.of(
            name="orders",
            bucket=bucket,
            platform=bucket,
            prefix="raw/",
            format="jsonl",
            slots=16,
            commit="native",
        )
        self.queue = NotificationQueue(self.source.location.queue(self.store).records, clock=self.clock)
        self.chains = AckChains(self.source.location.records(self.store), clock=self.clock)
        self.backlog = RescanBacklog(self.source.location.records(self.store), clock=self.clock)
        self.table = self.source.table(store=self.store)
        self.reads = ReadOnly(self.store)

    def with_topic(self, **settings):
        self.queue.topics.create(
            "orders", TopicSettings(slots=16, bucket="b", prefix="raw/", shards=2, **settings)
        )
        return self

    def pass_time(self, seconds):
        self.clock.now += seconds

    def event(self, key=KEY, op="put"):
        return Event(key=key, op=op, bucket="b", time_ms=self.clock.wall_ms())

    def publish(self, change, *, queued=True):
        """As the platform's publisher (`queued`), or as one that knows of no queue."""
        publisher = Publisher(
            self.store, prefix=self.source.location.keyspace_prefix, slots=16, clock=self.clock, queued=queued
        )
        publisher.write([change])
        if queued:
            op = "put" if isinstance(change, Put) else "delete"
            for topic in self.queue.topics_of("b", Event(key=change.key)):
                assert isinstance(self.queue.push(topic.name, self.event(change.key, op)), EntryCommitted)
        publisher.signal([change.key])

    def put(self, body=b"one", *, queued=True):
        self.publish(Put(key=KEY, body=body), queued=queued)

    def commit(self, *deltas, rejects=(), follow=True, **fields):
        """The next generation of the key's slot; the entries that it has seen leave the queue (`follow`)."""
        head = self.table.head(SLOT)
        signal = self.store.head(signal_key(self.source.location.keyspace_prefix, SLOT))
        known = {state.key: state for state in head.deltas} if head else {}
        commit = SlotCommit(
            slot=SLOT,
            generation=Generation((head.generation if head else 0) + 1),
            commit_id=f"c{head.generation + 1 if head else 1}",
            parent_id=head.commit_id if head else None,
            batch="orders-e-1",
            created_ms=self.clock.wall_ms(),
            signal=signal.etag if signal else None,
            files=(TableFile(name="f", rows=3, bytes=9, since=1, until=1),),
            rejects=tuple(rejects),
            deltas=tuple((known | {delta.key: delta for delta in deltas}).values()),
            **fields,
        )
        assert isinstance(
            self.table.commit(commit.staged(), planned_at=self.table.clock.monotonic()), Written
        )
        if follow:
            self.queue.remove(self.queue.entries("orders", [SLOT]))

    def state(self, **fields):
        now = self.store.head(KEY)
        known = {
            "key": KEY,
            "etag": now.etag,
            "size": now.size,
            "offset": now.size,
            "rows": 3,
            "since": 1,
            "until": 1,
        }
        return ObjectState(**(known | fields))

    def open_batch(self, number=1, *, slots=(SLOT,), listing=False):
        payload = BatchPayload(slots=tuple(slots), listing=listing)
        self.chains.open_batch(f"orders-e-{number}", [str(slot) for slot in slots], payload=payload.dumps())

    def signal_etag(self):
        return self.store.head(signal_key(self.source.location.keyspace_prefix, SLOT)).etag

    def ask(self, key=KEY, **sensor):
        self.reads.counts.clear()
        epoch = topic_epoch(self.queue, "orders", TopicUser(slots=self.source.location.slots))
        view = SensorView(**({"seen": b"", "enumerated": epoch} | sensor)) if sensor else None
        return explain(
            self.source, key, sensor=view, objects=self.reads, platform=self.reads, clock=self.clock
        )


def said(answer):
    verdict = answer.verdict
    assert answer.lines[0] == verdict.text
    return verdict.kind, verdict.text
