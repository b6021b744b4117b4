"""A source in memory, the data that its writers and runs leave, and the text of `explain` about these data."""

from dataclasses import replace
from itertools import count

import pyarrow as pa

from s3notify_platform.engine.batch.batches import BatchPayload
from s3notify_platform.engine.batch.list_or_follow import topic_epoch
from s3notify_platform.explain import SensorView, explain
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import slot_of
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
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.round import RoundChange, SlotRound
from tests.support.clocks import HandClock
from tests.support.sources import source_of

PLACES = count()
KEY = "raw/a.jsonl"
SLOT = slot_of(KEY, 16)


class ReadOnly(CountingStore):
    """A bucket that refuses everything except reads."""

    def put(self, key, body, *, precondition=None, metadata=None):
        raise UsageError("access denied")

    def delete(self, key, *, precondition=None):
        raise UsageError("access denied")

    def copy(self, source, target, *, precondition=None, metadata=None):
        raise UsageError("access denied")


class Place:
    """A source with its bucket, and the actions of its writers and runs."""

    def __init__(self):
        self.clock = HandClock()
        self.store = MemoryObjectStore(clock=self.clock)
        # A process caches tables by bucket and region. So each test needs another region.
        bucket = S3Config(bucket="b", region=f"region-{next(PLACES)}")
        self.source = source_of(
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
        """Publishes like the platform's publisher (if `queued`), or like a publisher without a queue."""
        publisher = Publisher(
            self.store, prefix=self.source.location.keyspace_prefix, slots=16, clock=self.clock, queued=queued
        )
        publisher.write([change])
        if queued:
            op = "put" if isinstance(change, Put) else "delete"
            for topic in self.queue.topics_of("b", Event(key=change.key)):
                assert isinstance(self.queue.push(topic.name, self.event(change.key, op)), EntryCommitted)
        publisher.signal([change.key], alone=self.source.location.signals == "root")

    def put(self, body=b"one", *, queued=True):
        self.publish(Put(key=KEY, body=body), queued=queued)

    def round(self, *states, slot=SLOT, rejects=(), labelled=True, batch="orders-e-1", **note):
        """A round that commits these states, with the slot's signal.

        If a state is not `gone`, the round has as many rows of the object as the state says. `rejects`: offset and
        reason of each reject.
        """
        table = self.source.table(store=self.store, clock=self.clock)
        base = self.source.open_table(store=self.store).snapshot
        label = base.version + 1
        signal = self.store.head(signal_key(self.source.location.keyspace_prefix, slot))
        known = table.states.lookup(base.manifest.states, {slot: [state.key for state in states]})
        if labelled:
            states = [replace(state, since=label, until=label) for state in states]
        rows = [
            {"_slot": slot, "_key": state.key, "_etag": state.etag, "_offset": n}
            for state in states
            for n in range(0 if state.gone else state.rows)
        ]
        bad = [
            {"_slot": slot, "_key": state.key, "_etag": state.etag, "_offset": at, "reason": why, "raw": b"x"}
            for state in states
            for at, why in (rejects or [(n, "bad") for n in range(state.rejects)])
        ]
        change = SlotRound(
            changes={state.key: state for state in states},
            before=known,
            signal=signal.etag if signal else None,
        )
        return RoundChange(
            base=base,
            slots={slot: change},
            table=table,
            clock=self.clock,
            rows=self._staged(table.data, rows, label),
            rejects=self._staged(table.quarantine, bad, label),
            note={"batch": batch, **note},
        )

    def commit(self, *states, follow=True, **more):
        """Commits the next table version with a `round`. With `follow`, entries that the round has seen leave the
        queue.
        """
        self.commit_to(SLOT, *states, **more)
        if follow:
            self.queue.remove(self.queue.entries("orders", [SLOT]))

    def commit_to(self, slot, *states, **more):
        """Commits the next table version, for any slot."""
        made = self.round(*states, slot=slot, **more)
        assert isinstance(made.table.commit(made, made.base), Committed)
        assert not made.dropped

    def _staged(self, packs, rows, label):
        if not rows:
            return ()
        schema = pa.schema([field for field in REJECT_SCHEMA if field.name in rows[0]])
        rows = sorted(rows, key=lambda row: (row["_key"], row["_offset"]))
        staged, files = packs.staged(write([pa.Table.from_pylist(rows, schema=schema)]), label=label)
        for key, body in files.items():
            self.store.put(key, body)
        return staged

    def state(self, **fields):
        now = self.store.head(KEY)
        return ObjectState(
            **({"key": KEY, "etag": now.etag, "size": now.size, "offset": now.size, "rows": 3} | fields)
        )

    def open_batch(self, number=1, *, slots=(SLOT,), listing=False):
        payload = BatchPayload(slots=tuple(slots), listing=listing)
        self.chains.open_batch(f"orders-e-{number}", [str(slot) for slot in slots], payload=payload.dumps())

    def signal_etag(self):
        return self.store.head(signal_key(self.source.location.keyspace_prefix, SLOT)).etag

    def ask(self, key=KEY, **sensor):
        self.reads.counts.clear()
        place = self.source.location
        epoch = topic_epoch(self.queue, "orders", TopicUser(slots=place.slots), signals=place.signals)
        view = SensorView(**({"seen": b"", "enumerated": epoch} | sensor)) if sensor else None
        return explain(
            self.source, key, sensor=view, objects=self.reads, platform=self.reads, clock=self.clock
        )


def said(answer):
    verdict = answer.verdict
    assert answer.lines[0] == verdict.text
    return verdict.kind, verdict.text
