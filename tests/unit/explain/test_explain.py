"""`explain` over a bucket in memory: each verdict, from what writers, inlets, sensor and runs leave behind."""

import io
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3notify_platform.errors import UsageError
from s3notify_platform.explain import BatchView, SensorView, explain
from s3notify_platform.explain.look import CHAINS_MAX, ENTRIES_MAX
from s3notify_platform.ingest.batches import EVERYTHING, BatchPayload, Failing
from s3notify_platform.ingest.follow import topic_epoch
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import Written
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Delete, Publisher, Put, digest_of, signal_key
from s3notify_platform.protocols.notification_queue import (
    DeadLettered,
    EntryCommitted,
    Event,
    NotificationQueue,
    Reservation,
    ShardConsumer,
    TopicSettings,
    WillRetry,
    Worker,
)
from s3notify_platform.protocols.source_enumerator import ObjectState, RescanBacklog
from s3notify_platform.slots import slot_of
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import SlotCommit, TableFile
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reader import REJECT_SCHEMA
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
            for topic in self.queue.topics_of("b", change.key):
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
            self.table.commit(commit.staged(), planned_at=self.table._clock.monotonic()), Written
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
        epoch = topic_epoch(self.queue, "orders")
        view = SensorView(**({"seen": b"", "enumerated": epoch} | sensor)) if sensor else None
        return explain(
            self.source, key, sensor=view, objects=self.reads, platform=self.reads, clock=self.clock
        )


@pytest.fixture
def place():
    return Place().with_topic()


def told(answer):
    verdict = answer.verdict
    assert answer.lines[0] == verdict.text
    return verdict.kind, verdict.text


def test_committed(place):
    """The state's ETag is the object's: in which generation, when, how many rows, where they lie."""
    place.put()
    place.commit(place.state())
    place.pass_time(60)
    answer = place.ask()
    assert told(answer) == ("committed", "committed in generation 1, 60 s ago: 3 records")
    assert answer.verdict.settled
    assert f"data file: _s3notify/orders/table/data/slot={SLOT}/f.parquet" in answer.lines


def test_quarantined(place):
    """Given up, because; whether it was sent again; and what of it is committed."""
    place.put()
    place.commit(place.state(rows=0, offset=0, reach_end=False, reason="403 AccessDenied"), failing=(KEY,))
    answer = place.ask()
    assert told(answer) == ("quarantined", "quarantined because it could not be read: 403 AccessDenied")
    assert not answer.verdict.settled
    (line,) = [line for line in answer.lines if line.startswith("quarantine: ")]
    assert line.endswith("s3notify quarantine retry orders")
    state = place.state(reach_end=False, reason="timed out")
    place.commit(state, failing=(KEY,), pending=(KEY,))
    text = told(place.ask())[1]
    assert text == (
        "quarantined because it could not be read: timed out; 3 records of it are committed; a retry is "
        "requested: the slot's next batch reads it"
    )


def test_read_in_part(place):
    """A big object on its way is not committed, though its ETag is in the table."""
    place.put()
    place.commit(place.state(reach_end=False), pending=(KEY,))
    kind, text = told(place.ask())
    assert kind == "reading"
    assert text.startswith("read in part: 3 records are committed in generation 1, ")


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 1), (5, 0), (5, 1), (20, 37)])
def test_the_generation_that_took_it_in(place, before, after):
    """Not the slot's newest, which may be about other objects."""
    place.put()
    other = ObjectState(key="raw/other", etag="x", size=1)
    for _ in range(before):
        place.commit(other)
    place.commit(place.state())
    for _ in range(after):
        place.commit(other)
    answer = place.ask()
    assert (answer.committed.generation, answer.committed.head) == (before + 1, before + 1 + after)
    assert answer.committed.exact


def test_the_generation_that_took_it_in_went_with_vacuum(place):
    """Said as what it is: this one or an older one."""
    place.put()
    for _ in range(6):
        place.commit(place.state())
    for number in (1, 2, 3):
        place.store.delete(place.source.location.layout.commit(SLOT, number))
    answer = place.ask()
    assert told(answer)[1].startswith("committed in generation 4 or before")


def test_rejected(place):
    """How many of how many records, and the first ones with offset and reason; not those of another object."""
    place.put()
    rows = [
        {"_key": KEY, "_etag": "old", "_offset": 1, "reason": "old version's", "raw": b""},
        {"_key": KEY, "_etag": place.state().etag, "_offset": 250, "reason": "bad\namount", "raw": b"x" * 99},
        {"_key": "raw/b", "_etag": "e", "_offset": 2, "reason": "another object's", "raw": b""},
        {"_key": KEY, "_etag": place.state().etag, "_offset": 120, "reason": "not JSON", "raw": b"{"},
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=REJECT_SCHEMA), sink)
    place.store.put(place.source.location.layout.quarantine(SLOT, "q"), sink.getvalue())
    place.commit(
        place.state(rows=7, rejects=3),
        rejects=[TableFile(name="q", rows=4, bytes=len(sink.getvalue()), since=1, until=1)],
    )
    answer = place.ask()
    kind, text = told(answer)
    assert kind == "rejected"
    assert text.startswith(
        "rejected: 3 of 10 records, first at offset 120: not JSON; the others are committed"
    )
    assert not answer.verdict.settled
    assert answer.lines[-3:] == (
        "reject at offset 120: not JSON",
        "reject at offset 250: bad amount",
        "rejects: 1 more in the quarantine",
    )


def test_waiting(place):
    """An entry names it; the version before it is said to be committed."""
    place.put()
    place.commit(place.state())
    place.put(b"two")
    place.pass_time(12)
    assert told(place.ask()) == (
        "waiting",
        "waiting in the queue for 12 s; an older version is committed, in generation 1",
    )


def test_waiting_for_a_signal(place):
    """Its writer died after the entry, so that the sensor has no reason to look."""
    place.put()
    assert "reconciler" not in told(place.ask(seen=b"another"))[1]
    kind, text = told(place.ask(seen=digest_of(place.signal_etag())))
    assert kind == "waiting"
    assert "not signalled yet: its writer or the reconciler will do that" in text


def test_being_written(place):
    """Reserved, and neither committed nor aborted: with and without the object."""
    assert isinstance(place.queue.reserve("orders", place.event()), Reservation)
    place.pass_time(3)
    kind, text = told(place.ask())
    assert kind == "writing"
    assert "reserved in the queue for 3 s" in text
    place.store.put(KEY, b"one")
    assert place.ask().verdict.kind == "writing"


def test_in_an_open_batch_by_the_chains(place):
    """Without a Dagster instance: the chain that misses its slot; not one that is about others, or done with it."""
    place.put()
    place.open_batch(1, slots=[SLOT, 15 - SLOT])
    place.open_batch(2, slots=[15 - SLOT])
    kind, text = told(place.ask())
    assert kind == "in_batch"
    assert text.startswith("in batch orders-e-1, open for 0 s; nothing of it")
    place.chains.stamp_children("orders-e-1", [str(SLOT)], operation_id="r")
    assert place.ask().verdict.kind == "waiting"


def test_in_an_open_batch_by_the_sensor(place):
    """With the run; only as long as the batch's chain misses the slot."""
    place.put()
    place.open_batch()
    batch = BatchView(
        id="orders-e-1", opened_ms=place.clock.wall_ms(), listing=False, runs=("run-7 (STARTED)",)
    )
    assert told(place.ask(batches=(batch,)))[1].startswith(
        "in batch orders-e-1, open for 0 s, run run-7 (STARTED)"
    )
    place.chains.fail("orders-e-1", "gone")
    assert place.ask(batches=(batch,)).verdict.kind == "waiting"
    assert place.ask(batches=(replace(batch, id="orders-e-9"),)).verdict.kind == "waiting"


def test_an_open_batch_that_reads_entries_does_not_take_in_what_has_none(place):
    """One that lists does."""
    place.put(queued=False)
    place.open_batch(1)
    assert place.ask().verdict.kind == "signalled"
    place.open_batch(2, listing=True)
    assert place.ask().verdict.kind == "in_batch"


def test_in_the_first_batch(place):
    """Whose only child stands for everything."""
    place.store.put(KEY, b"one")
    place.open_batch(0, slots=[EVERYTHING], listing=True)
    assert place.ask().verdict.kind == "in_batch"


@pytest.mark.parametrize(
    ("parked", "words"),
    [
        (False, "requested again in 30 s"),
        (True, "parked, requested again in 30 s or as soon as the slot changes"),
    ],
)
def test_failing(place, parked, words):
    """The sensor knows why, and when it comes again."""
    place.put()
    again_ms = place.clock.wall_ms() + 30_000
    failing = Failing(attempts=2, reason="no such column", parked=parked, not_before_ms=again_ms)
    kind, text = told(place.ask(failing=failing))
    assert kind == "failing"
    assert text == f"failing: 2 attempts, {words}: no such column; nothing of it is committed"


def test_waiting_for_a_rescan(place):
    """A plain writer's slot that waits for a listing."""
    place.put(queued=False)
    assert told(place.ask())[1].startswith(
        "signalled 0 s ago without an entry: the next batch lists its slot"
    )
    place.backlog.add([SLOT], unqueued=True)
    kind, text = told(place.ask())
    assert kind == "rescan"
    assert text.startswith(f"waits for a rescan: the next batch that lists compares slot {SLOT}")


def test_the_source_is_still_to_be_listed():
    """No topic yet, or the sensor says so: nothing that is there is lost."""
    place = Place()
    place.store.put(KEY, b"one")
    assert place.ask().verdict.kind == "rescan"
    place.with_topic()
    assert place.ask().verdict.kind == "unseen"
    assert place.ask(enumerated="an earlier topic").verdict.kind == "rescan"


def test_never_seen(place):
    """No entry and no signal, an older signal, or one that was about another key."""
    place.store.put(KEY, b"one")
    assert "was never signalled" in told(place.ask())[1]
    place.put()
    place.commit(place.state())
    place.pass_time(5)
    place.store.put(KEY, b"two")
    kind, text = told(place.ask())
    assert kind == "unseen"
    assert text.startswith(
        "not announced: no entry, and the slot's signal is older than the object: its writer does not signal, or an"
    )
    place.pass_time(5)
    other = next(key for n in range(999) if slot_of(key := f"raw/{n}", 16) == SLOT)
    place.publish(Put(key=other, body=b""))
    assert "for another key, since its writer queues" in told(place.ask())[1]
    place.publish(Put(key=other, body=b""), queued=False)
    assert place.ask().verdict.kind == "signalled"
    assert place.ask(seen=digest_of(place.signal_etag())).verdict.kind == "unseen"
    place.commit(ObjectState(key=other, etag="x", size=0))
    assert "the batch of the slot's signal did not find it" in told(place.ask())[1]


def test_where_plain_writers_are_about_every_signal_leads_to_a_listing(place):
    """So one of a writer that queues does, too."""
    place.store.put(KEY, b"one")
    other = next(key for n in range(999) if slot_of(key := f"raw/{n}", 16) == SLOT)
    place.publish(Put(key=other, body=b""))
    assert place.ask().verdict.kind == "unseen"
    place.backlog.add((), unqueued=True)
    assert place.ask().verdict.kind == "signalled"


def test_deleted(place):
    """Told and not taken in; taken in; and then it is as settled as a committed object."""
    place.put()
    place.commit(place.state())
    place.publish(Delete(key=KEY))
    assert told(place.ask()) == (
        "waiting",
        "waiting in the queue for 0 s; the deleted object is committed, in generation 1",
    )
    place.commit(ObjectState(key=KEY, etag="", size=0, gone=True))
    answer = place.ask()
    assert told(answer) == ("deleted", "deleted: its rows were removed, in generation 2 or before")
    assert answer.verdict.settled


def test_unknown(place):
    """Nothing under the key anywhere."""
    answer = place.ask("raw/nobody")
    assert told(answer) == (
        "unknown",
        "unknown: no object, no rows and no entry under this key of source 'orders'",
    )
    assert not answer.verdict.settled


def test_other_topics_that_take_it(place):
    """Attempts and last error of an entry in delivery, and why it became a dead letter; the verdict is the source's."""
    place.queue.topics.create(
        "push", TopicSettings(shards=1, endpoint='{"url": "https://x"}', max_attempts=2)
    )
    place.queue.topics.create("elsewhere", TopicSettings(shards=1, prefix="other/"))
    place.put()
    place.commit(place.state())
    (consumer,) = consumers(place, "push")
    (entry,) = consumer.take(10)
    assert isinstance(consumer.failed(entry, "503 from x"), WillRetry)
    answer = place.ask()
    assert answer.verdict.kind == "committed"
    (line,) = [line for line in answer.lines if line.startswith("topic 'push' (pushed)")]
    assert "put queued for 0 s" in line
    assert "1 attempts" in line
    assert "last error: 503 from x" in line
    assert not [line for line in answer.lines if "elsewhere" in line]
    place.pass_time(2)
    (entry,) = consumer.take(10)
    assert "taken by" in "".join(place.ask().lines)
    assert isinstance(consumer.failed(entry, "503 again"), DeadLettered)
    answer = place.ask()
    assert answer.verdict.kind == "committed"
    (line,) = [line for line in answer.lines if line.startswith("topic 'push' (pushed)")]
    assert "dead letter because:" in line
    assert "503 again" in line


def test_dead_letter_of_the_sources_own_topic():
    """If somebody drained it as if it were to be pushed: said, with the reason."""
    place = Place().with_topic(max_attempts=1)
    place.put()
    for consumer in consumers(place, "orders"):
        for entry in consumer.take(10):
            assert isinstance(consumer.failed(entry, "no such endpoint"), DeadLettered)
    kind, text = told(place.ask())
    assert kind == "dead"
    assert "no such endpoint" in text


def consumers(place, topic):
    worker = Worker(place.queue, serves=lambda found: found.name == topic)
    worker.balance()
    worker.balance()
    return [ShardConsumer(worker, lease) for lease in worker.leases if lease.topic == topic]


def test_a_key_of_no_source(place):
    """Bad input is an error, and costs no request."""
    for key in ("elsewhere/a", "", "raw/" + "x" * 1024):
        with pytest.raises(UsageError):
            place.ask(key)
    assert not place.reads.counts


def test_an_object_that_changes_under_the_question(place):
    """Looked at again, so that old facts are not held against a new object."""
    place.put()
    place.commit(place.state())
    moved = []

    class Moving(ReadOnly):
        def head(self, key):
            if key == KEY and not moved:
                found = super().head(key)
                moved.append(1)
                place.put(b"two")
                place.commit(place.state())
                return found
            return super().head(key)

    store = Moving(place.store)
    answer = explain(place.source, KEY, objects=store, platform=store, clock=place.clock)
    assert answer.verdict.kind == "committed"
    assert answer.committed.generation == 2


def test_it_works_beside_tombstones_with_read_permission_only(place):
    """A record that was removed where its object could not be deleted: read as absent, left as it is."""
    place.put()
    path = next(meta.key for meta in place.store.list("_s3notify/queue/queue").objects)
    place.store.put(path, b"1 dead token\n")
    assert place.ask().verdict.kind == "unseen"
    assert place.store.get(path) is not None


def test_only_its_slot_is_looked_at(place):
    """Entries of the shard's other slots cost nothing, and hide nothing."""
    place.put()
    place.ask()
    before = dict(place.reads.counts)
    others = [key for n in range(400) if slot_of(key := f"raw/{n}", 16) != SLOT]
    assert all(
        isinstance(made, EntryCommitted) for made in place.queue.push_many("orders", map(place.event, others))
    )
    assert place.ask().verdict.kind == "waiting"
    assert dict(place.reads.counts) == before


def test_requests_are_bounded(place):
    """Whatever bucket, queue, chains and the slot's history hold."""
    place.put()
    place.commit(place.state(), follow=False)
    for number in range(300):
        place.commit(ObjectState(key=f"raw/o{number % 9}", etag="x", size=1), follow=False)
    in_slot = [key for n in range(16 * (ENTRIES_MAX + 150)) if slot_of(key := f"raw/{n}", 16) == SLOT]
    assert len(in_slot) > ENTRIES_MAX
    for key in in_slot:
        assert isinstance(place.queue.push("orders", place.event(key)), EntryCommitted)
    for number in range(CHAINS_MAX + 50):
        place.open_batch(number, slots=[(SLOT + 1) % 16])
    for number in range(3000):
        place.store.put(f"raw/many/{number}", b"")
    answer = place.ask()
    assert answer.verdict.kind == "committed"
    assert answer.committed.generation == 1
    assert answer.batches_cut
    assert answer.topics[0].cut
    counts = place.reads.counts
    assert counts["HEAD"] == 3
    assert counts["LIST"] <= 6
    read_ahead = 16
    assert counts["GET"] <= ENTRIES_MAX + CHAINS_MAX + read_ahead + 40


def test_the_document_is_json(place):
    """The verdict, and the facts by name."""
    place.put()
    place.commit(place.state())
    failing = Failing(attempts=1, not_before_ms=0, reason="r", parked=True)
    document = json.loads(json.dumps(place.ask(failing=failing, seen=b"12345678").document()))
    assert (document["verdict"], document["slot"], document["committed"]["rows"]) == ("committed", SLOT, 3)
    assert document["failing"]["parked"]
