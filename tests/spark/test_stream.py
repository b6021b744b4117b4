"""`readStream.format("s3notify")` returns each added row once, after any kill. Most tests run without a JVM."""

import json
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import StructType

from s3notify_platform.kernel.errors import CorruptError, NotFoundError, UsageError
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.spark.datasource.query import S3NotifyDataSource, register
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.table.change_columns import CHANGE_COLUMNS
from tests.support.ingested import Place
from tests.support.servers import S3Server
from tests.support.sources import with_settings
from tests.support.spark import Lake
from tests.support.spark_options import named, options_of
from tests.support.stream_query import COLUMNS, Killed, Query, changes_reader, rows_of_work

pytestmark = [pytest.mark.server]


@pytest.fixture
def place(ministack: S3Server) -> Place:
    """A source that is ingested without Spark."""
    return Place(ministack)


def query_of(place: Place, **options: Any) -> Query:
    return Query(place.source, options)


def ingest(place: Place, *keys: str, **values: tuple[int, ...]) -> None:
    """Deletes the objects `keys`, writes the objects `values`, and commits all changes in one version."""
    for key in keys:
        place.store.delete(f"raw/{key}")
    for key, some in values.items():
        place.put(key, *some)
    place.run("b")


def test_stream_returns_existing_rows_and_then_added_ones(place: Place) -> None:
    """Rows of new and overwritten objects must be returned when the stream reaches their table version. Removed rows
    must not be reported.
    """
    ingest(place, **{f"o{n}": (n,) for n in range(12)})
    query = query_of(place)
    (first,) = query.drain()
    assert sorted(row["a"] for row in first) == [*range(12)]
    assert sorted(first, key=str) == sorted(place.rows(), key=str), "with key, ETag and offset"
    assert query.drain() == []
    ingest(place, "o3", o2=(20, 21), new=(99,))
    (second,) = query.drain()
    assert sorted(row["a"] for row in second) == [20, 21, 99]
    ingest(place, "o4")
    assert query.drain() == [[]]
    query.check(place.rows())


def test_stream_of_changes_returns_removed_rows(place: Place) -> None:
    """Removed rows must have the version, time and reason of their removal. Rows at the stream's beginning must have a
    version, too.
    """
    ingest(place, o1=(1,), o2=(2,), o3=(3, 4))
    query = query_of(place, read="changes")
    (first,) = query.drain()
    assert {(row["_change_type"], row["_commit_version"], row["_reason"]) for row in first} == {
        ("insert", 1, "new")
    }
    ingest(place, "o1", o2=(22,), o4=(5,))
    (second,) = query.drain()
    assert {(row["_change_type"], row["_reason"], row["_key"], row["a"]) for row in second} == {
        ("delete", "deleted", "raw/o1", 1),
        ("delete", "overwritten", "raw/o2", 2),
        ("insert", "overwritten", "raw/o2", 22),
        ("insert", "new", "raw/o4", 5),
    }
    assert {row["_commit_version"] for row in second} == {2}
    times = sorted({row["_commit_timestamp"] for row in first + second})
    assert len(times) == 2
    query.check(place.rows())


def test_versions_are_returned_in_order(place: Place) -> None:
    """A micro-batch may have many table versions in few tasks, but rows must come in the order of versions."""
    query = query_of(place)
    ingest(place, o=(0,))
    query.drain()
    for n in range(1, 20):
        ingest(place, **{f"o{n}": (n,)})
    start = json.loads(query.offsets[-1])
    reader = changes_reader(place.source)
    end = reader.latestOffset(start, ReadAllAvailable())
    work = reader.partitions(start, end)
    assert [row["a"] for row in rows_of_work(reader, work)] == [*range(1, 20)]
    assert len(work) <= 5
    assert query.values() == [*range(1, 20)]


def test_row_added_and_removed_within_a_micro_batch_is_not_returned(place: Place) -> None:
    """With smaller micro-batches, the stream must return the added row, and then the row that replaces this row."""
    ingest(place, o=(0,))
    whole, single = query_of(place), query_of(place, max_objects=1)
    for query in (whole, single):
        query.drain()
    ingest(place, p=(1,))
    ingest(place, p=(2,), q=(3,))
    ingest(place, "q")
    assert whole.values() == [2]
    found = single.values()
    assert (found[0], sorted(found)) == (1, [1, 2, 3])
    for query in (whole, single):
        query.check(place.rows())


def test_rewritten_packs_do_not_repeat_rows(place: Place) -> None:
    """Packs are rewritten and merged all the time. If rows were repeated, a copy of the table would get duplicates."""
    query = query_of(place)
    for n in range(30):
        ingest(place, **{f"o{n}": (n, n)})
        if n % 7 == 0:
            query.drain()
    query.drain()
    query.check(place.rows())
    assert sum(map(len, query.applied)) == 60


def test_idle_poll_needs_two_requests(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll too soon after another poll must send no request."""
    ingest(place, **{f"o{n}": (n,) for n in range(5)})
    query = query_of(place)
    query.drain()
    counted = CountingStore(place.store)
    for module in ("source.location", "spark.datasource.stream"):
        monkeypatch.setattr(f"s3notify_platform.{module}.open_store", lambda _: counted)
    for _ in range(3):
        counted.counts.clear()
        assert query.batch() is None
        assert dict(counted.counts) == {"LIST": 1, "GET": 1}
    ingest(place, o1=(11,))
    counted.counts.clear()
    assert query.batch()
    # Some of these requests read the version, and look for the next version. Other requests read the manifest with its
    # contents and its changes, and the version's pack.
    assert counted.counts == {"LIST": 2, "GET": 3 + 1 + 2 + 2 + 1}
    lazy = query_of(place, poll_seconds=3600)
    lazy.drain()
    counted.counts.clear()
    assert lazy.batch() is None
    assert not counted.counts


def test_micro_batch_is_limited(place: Place) -> None:
    """Rows beyond the limit must wait for the next micro-batch. At the stream's beginning, a micro-batch must have
    whole slots. Later, a micro-batch must have whole versions.
    """
    ingest(place, **{f"o{n}": (n,) for n in range(40)})
    query = query_of(place, max_objects=3)
    sizes = [len(rows) for rows in query.drain()]
    assert len(sizes) == place.source.location.slots
    assert sum(sizes) == 40
    ingest(place, a=(1,), b=(2,))
    ingest(place, c=(3,))
    ingest(place, d=(4,), e=(5,), f=(6,), g=(7,))
    assert [sorted(row["a"] for row in rows) for rows in query.drain()] == [[1, 2, 3], [4, 5, 6, 7]]
    ingest(place, h=(8,))
    ingest(place, i=(9,))
    by_bytes = Query(place.source, {"max_bytes": 1}, offsets=[*query.offsets], committed=query.committed)
    by_bytes.applied = [*query.applied]
    assert len(by_bytes.drain()) == 2
    query.options = {"max_objects": 1}
    query.reader = None
    assert len(query.batch(ReadAllAvailable()) or ()) == 2
    assert len(query_of(place, max_objects=1).batch(ReadAllAvailable()) or ()) == 49
    query.check(place.rows())


def test_repeated_micro_batch_has_the_same_rows(place: Place) -> None:
    """Spark repeats a micro-batch if its sink has failed. The rows must be the same in a new driver, and after other
    commits.
    """
    query = query_of(place)
    for changes in ({f"o{n}": (n,) for n in range(10)}, {"p": (100,), "q": (101,)}):
        ingest(place, **changes)
        query.dies = lambda point: point == "read"
        with pytest.raises(Killed):
            query.batch()
        ingest(place, "o1", o2=(50,), r=(51 + len(changes),))
        query.dies = lambda _: False
        assert sorted(row["a"] for row in query.batch() or ()) == sorted(
            value for some in changes.values() for value in some
        )
        query.drain()
        query.check(place.rows())


@pytest.mark.parametrize("read", ["table", "changes"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 8))])
def test_stream_killed_anywhere_returns_every_row_once(place: Place, seed: int, read: str) -> None:
    """Otherwise the sink of a restarted query would lack rows, or would have rows twice. Changes and batches are
    random, and kills come between any two steps.
    """
    random, numbers = Random(seed), count()
    query = query_of(place, max_objects=random.choice([1, 3, 100]), read=read)

    def change() -> None:
        name = f"o{random.randrange(10)}"
        if random.random() < 0.3:
            ingest(place, name)
        else:
            ingest(place, **{name: tuple(next(numbers) for _ in range(random.randrange(4)))})

    def dies(point: str) -> bool:
        if point == "planned" and random.random() < 0.2:
            change()
        return random.random() < 0.08

    query.dies = dies
    for _ in range(15):
        for _ in range(random.randrange(3)):
            change()
        try:
            query.batch()
        except Killed:
            query.reader = None
    query.dies = lambda _: False
    query.drain()
    query.check(place.rows())
    assert query.applied


def test_query_with_the_trigger_available_now_ends_while_batches_continue(place: Place) -> None:
    """The query must return all rows that were committed before its start, in several micro-batches, and must then
    end.
    """
    ingest(place, **{f"o{n}": (n,) for n in range(10)})
    query = query_of(place, max_objects=2)
    for number in range(2):
        query.reader = changes_reader(place.source, max_objects=2)
        query.reader.prepareForTriggerAvailableNow()
        batches = 0
        while query.batch() is not None:
            ingest(place, busy=(1000 * number + 1000 + batches,))
            batches += 1
            assert batches < 30
        found = {row["a"] for rows in query.applied for row in rows}
        assert found >= {*range(10)}
        assert 1000 * number + 1000 + batches - 1 not in found
    query.reader = None
    query.drain()
    query.check(place.rows())


def test_stream_begins_after_a_version(place: Place) -> None:
    """The stream must begin after a given version or after the newest version. If the first micro-batch is repeated,
    "the newest version" must still mean the same version.
    """
    ingest(place, o=(1,))
    ingest(place, p=(2,))
    assert query_of(place, since=1).values() == [2]
    query = query_of(place, since="newest")
    query.dies = lambda point: point == "offset logged"
    with pytest.raises(Killed):
        query.batch()
    query.dies = lambda _: False
    ingest(place, q=(3,))
    assert query.values() == [3]
    with pytest.raises(NotFoundError, match="the table has no version 9"):
        query_of(place, since=9).batch()


@pytest.mark.parametrize("read", ["table", "changes"])
@pytest.mark.parametrize("available_now", [False, True])
def test_stream_that_begins_before_its_table_exists_returns_all_rows(
    place: Place, read: str, *, available_now: bool
) -> None:
    """Otherwise the rows that are committed between the stream's start and its next poll are lost."""
    query = query_of(place, since="newest", read=read)
    if available_now:
        query.reader = changes_reader(place.source, since="newest", read=read)
        query.reader.prepareForTriggerAvailableNow()
    assert query.drain() == [[]]
    query.reader = None
    assert query.drain() == []
    ingest(place, o=(1,))
    ingest(place, p=(2,))
    assert query.values() == [1, 2]
    ingest(place, q=(3,))
    assert query.values() == [3]
    query.check(place.rows())


def test_stream_returns_chosen_slots_and_columns(place: Place) -> None:
    """A stream without the column `_key` must work, although removed rows are found by this column."""
    ingest(place, **{f"o{n}": (n,) for n in range(12)})
    reader = changes_reader(place.source, columns=pa.schema([COLUMNS.field("a")]), only="1,3")
    offset = reader.initialOffset()
    wanted = {row["a"] for row in place.rows() if row["_slot"] in (1, 3)}
    found: set[int] = set()
    for changes in ({}, {"o13": (13,), "o14": (14,), "o15": (15,)}, {f"o{n}": (100 + n,) for n in range(15)}):
        if changes:
            ingest(place, **changes)
        if len(changes) == 3:
            continue
        end = reader.latestOffset(offset, ReadMaxFiles(1000))
        rows = [*rows_of_work(reader, reader.partitions(offset, end))]
        assert all(row.keys() == {"a"} for row in rows)
        found |= {row["a"] for row in rows}
        offset = end
    assert found == wanted | {row["a"] for row in place.rows() if row["_slot"] in (1, 3)}


def test_stream_waits_for_its_table(place: Place) -> None:
    """If the table does not exist yet, the stream's columns must be declared."""
    bucket = named(place.source.input.bucket)
    options = options_of(
        with_settings(place.source, bucket=bucket, platform=bucket), read="table", schema="a bigint"
    )
    declared = "_slot int, _key string, _etag string, _offset bigint, a bigint"
    assert S3NotifyDataSource(options).schema() == declared  # type: ignore[arg-type]
    query = query_of(place)
    assert query.batch() is None
    query.reader = None
    query.reader = changes_reader(place.source)
    query.reader.prepareForTriggerAvailableNow()
    ingest(place, o=(1,))
    assert query.batch() is None, "that query returns the existing rows only"
    query.reader = None
    assert query.values() == [1]


def test_stream_fails_if_another_table_replaces_its_table(place: Place) -> None:
    """Without a failure, the stream would mix two tables: the versions of the other table have the same numbers, and
    other content.
    """
    ingest(place, o=(1,))
    query = query_of(place)
    query.drain()
    place.empty(place.source.location.layout.prefix)
    place.forget()
    for again in ("warm", "cold"):
        with pytest.raises((UsageError, NotFoundError), match="use a new checkpoint"):
            query.batch()
        ingest(place, **{again: (2,)})
        query.reader = None
    with pytest.raises(UsageError, match=r"but the table's id is now .*use a new checkpoint"):
        query.batch()
    assert sorted(query_of(place).values()) == [1, 2, 2]


def test_stream_fails_at_versions_that_are_not_kept(place: Place) -> None:
    """Otherwise a stream that was stopped for too long would miss changes silently."""
    ingest(place, o=(1,))
    query, half = query_of(place), query_of(place, max_objects=1)
    query.drain()
    half.batch()
    ingest(place, p=(2,))
    ingest(place, q=(3,))
    layout = place.source.location.layout
    place.source.table().committer.checkpoint(place.snapshot())
    for version in range(3):
        place.store.delete(layout.version(version))
    for each in (query, half):
        with pytest.raises(NotFoundError, match=r"was stopped for longer .*use a new checkpoint"):
            each.batch()


def test_stream_of_inserts_fails_at_a_rollback(place: Place) -> None:
    """The error must name the remedy. A stream that begins after the rollback must not fail, and a stream of changes
    goes on: it gets the rows that left and the rows that are back.
    """
    ingest(place, o=(1,))
    query, both = query_of(place), query_of(place, read="changes")
    query.drain()
    ingest(place, o=(2,))
    both.drain()
    roll_back(place.source.table(), 1)
    with pytest.raises(UsageError, match="version 3 went back to version 1"):
        query.batch()
    (changes,) = both.drain()
    assert [(row["_change_type"], row["_reason"], row["_commit_version"], row["a"]) for row in changes] == [
        ("delete", "rolled back", 3, 2),
        ("insert", "rolled back", 3, 1),
    ]
    assert query_of(place).values() == [1]
    place.run("b")
    assert query_of(place, since=3).values() == [2]


def test_invalid_offsets_are_refused(place: Place) -> None:
    """Otherwise a stream would begin at a wrong place. The offsets are from another program, or from an earlier version
    of the platform.
    """
    ingest(place, o=(1,))
    reader = changes_reader(place.source)
    for body in (
        {"v": 1},
        {"table": 1, "version": 0, "slots": None},
        {"table": "", "version": "0", "slots": 0},
    ):
        with pytest.raises(CorruptError, match=r"not an offset.*use a new checkpoint"):
            reader.latestOffset(body, ReadMaxFiles(1))


def test_stream_of_objects_is_refused(place: Place) -> None:
    """A stream needs a committed table. The options `version` and `at` must be refused for streams, too."""
    options = {"bucket": "b", "prefix": "raw/"}
    with pytest.raises(UsageError, match=r"s3notify ingest.*give read='table'"):
        S3NotifyDataSource(options).streamReader(StructType())  # type: ignore[arg-type]
    for more in ({"version": "1"}, {"at": "2026-01-01T00:00:00Z"}):
        with pytest.raises(UsageError, match="use the option since for a stream"):
            S3NotifyDataSource({**options, "read": "table", **more}).streamReader(StructType())  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.parametrize("read", ["table", "changes"])
def test_stream_runs_in_spark(
    lake: Lake, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, read: str
) -> None:
    """The query runs twice. The query's rows must have the table's columns, and in a stream of changes also the columns
    of changes.
    """
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(20)})
    lake.ingest()
    register(spark)
    checkpoint = str(tmp_path_factory.mktemp("checkpoint"))
    found: list[list[dict[str, Any]]] = []
    for name in ("20.jsonl", "3.jsonl"):
        options = options_of(lake.source, read=read)
        stream = spark.readStream.format("s3notify").options(**options).load()
        more = CHANGE_COLUMNS.names if read == "changes" else []
        assert stream.schema.names == ["_slot", "_key", "_etag", "_offset", "id", *more]
        writer = stream.writeStream.foreachBatch(lambda rows, _: found.append(rows.toArrow().to_pylist()))
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        lake.put(name, [{"id": 100 + len(found)}])
        lake.ingest()
    first, second = found
    assert sorted(row["id"] for row in first) == [*range(20)]
    assert [row["id"] for row in second] == [101], "the second round came after the query had ended"
