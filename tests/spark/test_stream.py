"""`readStream.format("s3notify")`: every change once, whatever is killed. Most of it without a JVM."""

import json
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from s3notify_platform.channels.publisher import QueuedPublisher
from s3notify_platform.errors import ConflictError, CorruptError, UnavailableError, UsageError
from s3notify_platform.ingest import source as sources
from s3notify_platform.ports import list_all
from s3notify_platform.protocols.keyspace import Delete, Publisher, Put
from s3notify_platform.protocols.notification_queue import Entry, NotificationQueue, TopicSettings
from s3notify_platform.spark.datasource import stream as streaming
from s3notify_platform.stores.counting import CountingStore
from tests.support.servers import S3Server
from tests.support.spark import Lake
from tests.support.stream_query import Killed, Query, changes_reader, rows_of_work

pytestmark = [pytest.mark.server]


@pytest.fixture
def lake(ministack: S3Server) -> Lake:
    """A JSONL source without a Spark session."""
    schema = "id bigint, v string"
    return Lake.of(None, ministack.config(ministack.make_bucket()), schema=schema)  # type: ignore[arg-type]


def publish(lake: Lake, *changes: Put | Delete) -> None:
    Publisher(
        lake.store, prefix=lake.source.location.keyspace_prefix, slots=lake.source.location.slots
    ).publish(changes)


def put(name: str, *ids: int) -> Put:
    return Put(key=f"raw/{name}.jsonl", body=b"".join(b'{"id": %d}\n' % n for n in ids))


def changes_of(rows: list[dict[str, Any]]) -> list[tuple[str, str, Any]]:
    return sorted((row["_change"], row["_key"], row["id"] or 0) for row in rows)


def test_what_was_there_then_what_changes(lake: Lake) -> None:
    """The first batch has all objects, signalled or not; then rows of what is new, and a row for what has gone."""
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(12)})
    query = Query(lake)
    (first,) = query.drain()
    assert changes_of(first) == sorted(("row", f"raw/{n}.jsonl", n) for n in range(12))
    assert query.drain() == []
    old = lake.store.head("raw/2.jsonl")
    publish(lake, put("2", 20, 21), Delete(key="raw/3.jsonl"), put("new", 99))
    changes = [row for rows in query.drain() for row in rows]
    assert changes_of(changes) == [
        ("gone", "raw/2.jsonl", 0),
        ("gone", "raw/3.jsonl", 0),
        ("row", "raw/2.jsonl", 20),
        ("row", "raw/2.jsonl", 21),
        ("row", "raw/new.jsonl", 99),
    ]
    assert old is not None
    assert [r["_etag"] for r in changes if r["_change"] == "gone" and "2" in r["_key"]] == [old.etag]
    publish(lake, put("empty"))
    query.drain()
    publish(lake, put("empty", 5), Put(key="raw/bad.jsonl", body=b"broken\n"))
    later = [row for rows in query.drain() for row in rows]
    assert changes_of(later) == [
        ("gone", "raw/empty.jsonl", 0),
        ("reject", "raw/bad.jsonl", 0),
        ("row", "raw/empty.jsonl", 5),
    ]
    query.check()


def test_an_idle_poll_is_one_head(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no LIST, of the keyspace or of the bucket; none at all if it comes too soon after another."""
    publish(lake, *(put(str(n), n) for n in range(5)))
    counted = CountingStore(lake.store)
    for module in (streaming, sources):
        monkeypatch.setattr(module, "shared_store", lambda _: counted)
    query = Query(lake)
    query.drain()
    for _ in range(3):
        counted.counts.clear()
        assert query.batch() is None
        assert dict(counted.counts) == {"HEAD": 1}
    publish(lake, put("1", 11))
    counted.counts.clear()
    assert query.batch()
    # The slot's head is remembered, to plan and to settle.
    assert counted.counts == Counter(HEAD=1 + 2, LIST=2, PUT=2, GET=2, DELETE=1), (
        "root, does the head stand; keyspace, bucket; plan, state"
    )
    lazy = Query(lake, options={"poll_seconds": 3600})
    lazy.drain()
    counted.counts.clear()
    assert lazy.batch() is None
    assert not counted.counts


def test_entries_of_a_topic_take_the_place_of_listings(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when there is the topic, and for as long as all writers queue; and they are removed."""
    source = lake.source
    queue = source.location.queue()
    settings = TopicSettings(
        slots=source.location.slots, shards=2, bucket=source.input.bucket.bucket, prefix=source.input.prefix
    )
    queue.topics.create("own", settings)
    plain = Publisher(lake.store, prefix=source.location.keyspace_prefix, slots=source.location.slots)
    writer = QueuedPublisher(plain, queue, bucket=source.input.bucket.bucket)
    counted = CountingStore(lake.store)
    for module in (streaming, sources):
        monkeypatch.setattr(module, "shared_store", lambda _: counted)
    query = Query(lake, options={"topic": "own"})

    def published(*changes: Put | Delete) -> list[tuple[str, str]]:
        writer.publish(changes)
        batches = query.drain()
        assert len(batches) <= 1, "nor does a signal without an entry make two of them"
        rows = [row for rows in batches for row in rows]
        assert not queue.entries("own", source.location.all_slots()), "what is done is removed"
        return sorted((row["_change"], row["_key"]) for row in rows)

    lake.put("old.jsonl", b'{"id": 1}\n')
    assert published(put("a", 1)) == [("row", "raw/a.jsonl"), ("row", "raw/old.jsonl")]
    neighbour = next(f"n{n}.jsonl" for n in range(999) if lake.slot(f"n{n}.jsonl") == lake.slot("a.jsonl"))
    lake.put(neighbour, b'{"id": 3}\n')
    counted.counts.clear()
    assert published(put("a", 2)) == [("gone", "raw/a.jsonl"), ("row", "raw/a.jsonl")], "nothing was listed"
    # HEADs: the root, twice; the slot's signal; whether its head stands, to plan and to settle. LIST: the keyspace.
    assert (counted.counts["HEAD"], counted.counts["LIST"]) == (5, 1)
    assert published(Delete(key="raw/a.jsonl"), put("b", 4)) == [
        ("gone", "raw/a.jsonl"),
        ("row", "raw/b.jsonl"),
    ]
    counted.counts.clear()
    assert published() == []
    assert dict(counted.counts) == {"HEAD": 1}, "an idle poll"
    publish(lake, Put(key=f"raw/{neighbour}", body=b'{"id": 5}\n'))
    assert published() == [("row", f"raw/{neighbour}")], "somebody does not queue, so it was listed"
    publish(lake, Put(key=f"raw/{neighbour}", body=b'{"id": 7}\n'))
    hidden = published(put("a", 8))
    assert ("row", f"raw/{neighbour}") in hidden, "though a later signal of its slot was of one who queues"
    query.check()
    queue.topics.delete("own")
    publish(lake, put("c", 6))
    assert [row["id"] for rows in query.drain() for row in rows] == [6]
    query.check()


@pytest.mark.parametrize(
    ("slots", "tables", "why"), [(1000, (), "has 1000 slots"), (8, ("t",), "serves table t")]
)
def test_a_topic_that_is_not_for_the_stream_is_refused(
    lake: Lake, slots: int, tables: tuple[str, ...], why: str
) -> None:
    """By name: of other slots, or of a table."""
    lake.source.location.queue().topics.create("own", TopicSettings(slots=slots), tables=tables)
    with pytest.raises(UsageError, match=f"topic 'own' {why}"):
        Query(lake, options={"topic": "own"}).drain()


@pytest.mark.parametrize("force", [False, True], ids=["gone", "made again"])
def test_a_topic_that_goes_while_its_entries_are_read_loses_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    """What they would have announced is compared by the next micro-batch."""
    source = lake.source
    queue = source.location.queue()
    settings = TopicSettings(
        slots=source.location.slots, shards=2, bucket=source.input.bucket.bucket, prefix=source.input.prefix
    )
    queue.topics.create("own", settings)
    plain = Publisher(lake.store, prefix=source.location.keyspace_prefix, slots=source.location.slots)
    writer = QueuedPublisher(plain, queue, bucket=source.input.bucket.bucket)
    query = Query(lake, options={"topic": "own"})
    writer.publish([put("a", 1)])
    query.drain()
    entries = NotificationQueue.entries

    def just_then(
        self: NotificationQueue, topic: str, slots: Iterable[int], **given: Any
    ) -> tuple[Entry, ...]:
        monkeypatch.undo()
        queue.topics.delete("own")
        if force:
            queue.topics.create("own", settings)
        return entries(self, topic, slots, **given)

    writer.publish([put("b", 2)])
    monkeypatch.setattr(NotificationQueue, "entries", just_then)
    assert query.batch() is None
    found = [row["id"] for rows in query.drain() for row in rows]
    assert 2 in found
    query.check()


@pytest.mark.thorough
def test_limits_of_a_micro_batch(lake: Lake) -> None:
    """What does not fit waits for the next one, also where one slot alone is too much; an object is never divided."""
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(40)})
    query = Query(lake, options={"max_objects": 3})
    sizes = [len(rows) for rows in query.drain() if rows]
    assert max(sizes) == 3
    assert sum(sizes) == 40
    query.check()
    by_bytes = Query(lake, options={"max_bytes": 25, "max_objects": 1000})
    assert max(len({row["_key"] for row in rows}) for rows in by_bytes.drain()) <= 8
    by_bytes.check()
    whole = Query(lake, options={"max_objects": 3})
    assert len(whole.batch(ReadAllAvailable()) or ()) == 40


def test_a_repeated_batch_has_the_same_rows(lake: Lake) -> None:
    """After a sink that failed, and in a new driver: the plan is pinned, whatever is in the bucket by now."""
    publish(lake, *(put(str(n), n) for n in range(10)))
    query = Query(lake, dies=lambda point: point == "read")
    with pytest.raises(Killed):
        query.batch()
    publish(lake, put("added", 50))
    end = query.offsets[0]
    reader = changes_reader(lake)
    work = reader.partitions(reader.initialOffset(), json.loads(end))
    assert sorted(row["id"] for row in rows_of_work(reader, work)) == [*range(10)]
    query.dies = lambda _: False
    assert sorted(row["id"] for row in query.batch() or ()) == [*range(10)]
    assert [row["id"] for rows in query.drain() for row in rows] == [50]
    query.check()


def test_overwritten_or_deleted_after_the_plan(lake: Lake) -> None:
    """No row of a version that is no longer there, and none is missing in the end."""
    publish(lake, *(put(str(n), n) for n in range(6)))

    def meddle(point: str) -> bool:
        if point == "planned" and not query.applied:
            publish(lake, put("1", 100), Delete(key="raw/2.jsonl"))
        return False

    query = Query(lake, dies=meddle)
    assert {row["id"] for row in query.batch() or ()} == {0, 3, 4, 5}
    query.drain()
    query.check()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 6))])
def test_killed_anywhere_every_row_is_there_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random changes, kills between any two steps, writes whose answers are lost: the sink equals the bucket."""
    random = Random(seed)
    lake.source.settle_commit_mode(lake.store)
    store = Flaky(lake.store, random)
    for module in (streaming, sources):
        monkeypatch.setattr(module, "shared_store", lambda _: store)
    query = Query(lake, options={"max_objects": random.choice([2, 5, 100])})

    def dies(point: str) -> bool:
        if random.random() < 0.2:
            change(lake, random)
        return random.random() < 0.06

    query.dies = dies
    for _ in range(25):
        for _ in range(random.randrange(4)):
            change(lake, random)
        store.rate = 0.03
        try:
            query.batch()
        except (Killed, UnavailableError):
            query.reader = None
    query.dies, store.rate = lambda _: False, 0.0
    query.drain()
    query.check()
    assert query.applied


def change(lake: Lake, random: Random) -> None:
    name = f"{random.randrange(10)}"
    if random.random() < 0.3:
        publish(lake, Delete(key=f"raw/{name}.jsonl"))
    else:
        # Few contents, so that earlier versions come back.
        publish(lake, put(name, *(random.randrange(4) for _ in range(random.randrange(4)))))


class Flaky(CountingStore):
    """Fails now and then, before or after the call took effect."""

    def __init__(self, store: Any, random: Random) -> None:
        super().__init__(store)
        self.random = random
        self.rate = 0.0

    def put(self, key: str, body: bytes, **arguments: Any) -> Any:
        if self.random.random() < self.rate:
            raise UnavailableError("not sent")
        outcome = super().put(key, body, **arguments)
        if self.random.random() < self.rate:
            raise UnavailableError("answer lost")
        return outcome


def test_an_older_checkpoint_is_refused(lake: Lake) -> None:
    """A copy from before what the state says was given would lose rows in silence."""
    publish(lake, put("0", 1))
    query = Query(lake)
    query.drain()
    publish(lake, put("0", 2))
    query.drain()
    stale = Query(lake, offsets=query.offsets[:1], committed=1)
    with pytest.raises(CorruptError, match="begin with a new checkpoint"):
        stale.batch()
    again = Query(lake)
    assert [changes_of(rows) for rows in again.drain()] == [[("row", "raw/0.jsonl", 2)]], (
        "a new one reads everything"
    )


@pytest.mark.parametrize("folder", ["commits/", "plans/"])
def test_a_state_that_is_gone_is_refused(lake: Lake, folder: str) -> None:
    """Never a second reading of everything, and never a gap."""
    publish(lake, put("0", 1))
    query = Query(lake, dies=lambda point: folder == "plans/" and point == "offset logged")
    if folder == "plans/":
        with pytest.raises(Killed):
            query.batch()
    else:
        query.drain()
        publish(lake, put("0", 2))
    stream = json.loads(query.offsets[0])["stream"]
    for meta in list(
        list_all(lake.store, f"{lake.source.location.platform_prefix}streams/{stream}/{folder}")
    ):
        lake.store.delete(meta.key)
    query.dies, query.reader = lambda _: False, None
    with pytest.raises(CorruptError, match="restore it"):
        query.batch()


def test_two_queries_on_one_checkpoint(lake: Lake) -> None:
    """The one that lost notices, instead of giving rows that the other has given."""
    publish(lake, put("0", 1))
    query = Query(lake)
    query.drain()
    other = Query(lake, offsets=[*query.offsets], committed=1)
    publish(lake, put("0", 2))
    query.drain()
    with pytest.raises((CorruptError, ConflictError)):
        other.batch()


def test_offsets_of_another_keyspace_are_refused(lake: Lake) -> None:
    """The number of slots is part of the offset."""
    reader = changes_reader(lake)
    start = reader.initialOffset()
    other = changes_reader(lake, slots=9)
    with pytest.raises(UsageError, match="of 8 slots, the source has 9"):
        other.latestOffset(start, ReadMaxFiles(1))
    with pytest.raises(CorruptError, match="not an offset"):
        reader.latestOffset({"v": 1}, ReadMaxFiles(1))


def test_available_now_ends_though_writers_go_on(lake: Lake) -> None:
    """All that was signalled at the start is taken, in as many batches as it needs, and then the query ends."""
    publish(lake, *(put(str(n), n) for n in range(10)))
    query = Query(lake, options={"max_objects": 4})
    query.reader = changes_reader(lake, max_objects=4)
    query.reader.prepareForTriggerAvailableNow()
    batches = 0
    while query.batch() is not None:
        publish(lake, put("busy", batches))
        batches += 1
        assert batches < 20
    assert {row["id"] for row in query.table.values()} >= {*range(10)}
    query.reader = None
    query.drain()
    query.check()
