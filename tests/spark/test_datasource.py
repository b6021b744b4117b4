"""`spark.read.format("s3notify")` compared with other ways to read the same bucket. Most tests run without a JVM."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UsageError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.spark.datasource.query import S3NotifyDataSource, register
from s3notify_platform.spark.datasource.read_rows import whole_schema, work_of
from s3notify_platform.table.versions import history
from tests.support.ingested import Place
from tests.support.servers import S3Server
from tests.support.sources import with_settings
from tests.support.spark import Lake
from tests.support.spark_options import named, options_of

pytestmark = [pytest.mark.server]

ID = StructType([StructField("id", LongType())])
ID_V = StructType([*ID.fields, StructField("v", StringType())])

Row = dict[str, Any]


@pytest.fixture
def bare_lake(ministack: S3Server) -> Callable[..., Lake]:
    """Lakes without a Spark session."""
    return lambda **source: Lake.of(None, ministack.config(ministack.make_bucket()), **source)  # type: ignore[arg-type]


def rows_of(lake: Lake, schema: StructType | None, *, plain: bool = False, **options: Any) -> list[Row]:
    """The rows that the tasks of a query return. `plain`: the query has only the columns of `schema`."""
    source = S3NotifyDataSource(options_of(lake.source, **options))  # type: ignore[arg-type]
    if schema is None:
        found = source.schema()
        assert isinstance(found, StructType)
    else:
        found = schema if plain else whole_schema(schema, lake.source)
    reader = source.reader(found)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def sorted_by(rows: list[Row], *columns: str) -> list[Any]:
    return sorted(tuple(row[c] for c in columns) for row in rows)


def parquet(rows: list[Row]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=10)
    return sink.getvalue()


ROWS = [[{"id": n * 100 + i, "v": f"text {i}"} for i in range(25)] for n in range(6)]
BODIES: dict[str, Callable[[list[Row]], bytes]] = {
    "jsonl": lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows),
    "csv": lambda rows: b"id,v\n" + b"".join(b'%d,"%s"\n' % (r["id"], r["v"].encode()) for r in rows),
    "parquet": parquet,
}


@pytest.mark.parametrize("fmt", [*BODIES])
@pytest.mark.parametrize("split_bytes", [100, 1 << 26])
def test_query_returns_each_row_of_the_bucket_once(
    bare_lake: Callable[..., Lake], fmt: str, split_bytes: int
) -> None:
    """Objects are read whole or in parts, with and without a schema. Each row must have its key, ETag and offset."""
    lake = bare_lake(format=fmt)
    lake.put_many({f"{n}.{fmt}": BODIES[fmt](rows) for n, rows in enumerate(ROWS)})
    expected = sorted(
        (f"raw/{n}.{fmt}", row["id"], row["v"], "row") for n, rows in enumerate(ROWS) for row in rows
    )
    for schema in (ID_V, None):
        rows = rows_of(lake, schema, split_bytes=split_bytes)
        assert sorted_by(rows, "_key", "id", "v", "_change") == expected
        assert len({(row["_key"], row["_offset"]) for row in rows}) == len(rows)
        for row in rows:
            assert row["_slot"] == lake.slot(row["_key"].removeprefix("raw/"))
    heads = {key: lake.store.head(key) for key in {row["_key"] for row in rows}}
    assert {(row["_key"], row["_etag"]) for row in rows} == {(k, h.etag) for k, h in heads.items() if h}


def test_query_reads_text_binary_and_mixed_formats(bare_lake: Callable[..., Lake]) -> None:
    """The formats text and binary must have one column. In a bucket with several formats, the suffix of a key must
    decide the format.
    """
    lake = bare_lake(format="auto")
    lake.put_many({"a.txt": b"one\ntwo\n", "b.jsonl": b'{"value": "three"}\n', "c.bin": b"\x00"})
    found = rows_of(lake, StructType([StructField("value", StringType())]))
    assert sorted_by([r for r in found if r["_change"] == "row"], "value") == [
        ("one",),
        ("three",),
        ("two",),
    ]
    assert sorted_by([r for r in found if r["_change"] == "reject"], "_key") == [("raw/c.bin",)]
    assert sorted_by(rows_of(lake, None, format="text", prefix="raw/a"), "value") == [("one",), ("two",)]
    content = StructType([StructField("content", BinaryType())])
    assert sorted_by(rows_of(lake, content, format="binary", prefix="raw/c"), "content") == [(b"\x00",)]


def test_rejects_are_never_lost_silently(bare_lake: Callable[..., Lake]) -> None:
    """By default, rejects must be rows with reason and bytes. With other options, the query must fail instead, or drop
    the rejects.
    """
    lake = bare_lake()
    lake.put("0.jsonl", b'{"id": 1}\nbroken\n{"id": 2}\n')
    found = sorted(rows_of(lake, ID), key=lambda row: row["_offset"])
    assert [(r["id"], r["_change"], r["_offset"], r["_raw"]) for r in found] == [
        (1, "row", 0, None),
        (None, "reject", 10, b"broken"),
        (2, "row", 17, None),
    ]
    assert found[1]["_rejected"]
    with pytest.raises(UsageError, match=r"raw/0\.jsonl' at 10: .* rejects='column'"):
        rows_of(lake, ID, rejects="fail")
    assert sorted_by(rows_of(lake, ID, rejects="drop"), "id") == [(1,), (2,)]
    with pytest.raises(UsageError, match="rejects='column'"):
        rows_of(
            lake, ID, plain=True
        )  # this query is refused, because no column would distinguish rejects from rows
    lake.put("0.jsonl", b'{"id": 1}\n')
    assert rows_of(lake, ID, plain=True) == [{"id": 1}]


def test_query_rescues_values_that_do_not_fit(bare_lake: Callable[..., Lake]) -> None:
    """With `mismatches="rescue"`, the record must be a row, with the values that do not fit in `_rescued`."""
    lake = bare_lake(mismatches="rescue")
    lake.put("0.jsonl", b'{"id": 1}\n{"id": "many"}\n')
    found = sorted(rows_of(lake, ID, mismatches="rescue"), key=lambda row: row["_offset"])
    assert [(r["id"], r["_change"], r["_rescued"]) for r in found] == [
        (1, "row", None),
        (None, "row", '{"id":"many"}'),
    ]
    with pytest.raises(UsageError, match="needs a column _rescued"):
        rows_of(lake, ID, plain=True, mismatches="rescue")


def test_record_with_a_field_unknown_to_inference_is_a_reject(
    bare_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inferred schema comes from a sample of the objects. If a query ignored other fields, their values would be
    lost silently. A user who declares a schema decides to ignore other fields.
    """
    from s3notify_platform.spark.datasource import query as datasource

    monkeypatch.setattr(datasource, "SAMPLED_FROM", 1)
    lake = bare_lake()
    lake.put_many({"0.jsonl": b'{"id": 1}\n', "1.jsonl": b'{"id": 2, "new": 3}\n'})
    assert sorted_by(rows_of(lake, None), "_key", "_change") == [
        ("raw/0.jsonl", "row"),
        ("raw/1.jsonl", "reject"),
    ]
    assert sorted_by(rows_of(lake, ID), "id") == [(1,), (2,)]


@pytest.mark.parametrize("size", [10, 300])
def test_query_fails_if_an_object_changes_meanwhile(bare_lake: Callable[..., Lake], size: int) -> None:
    """Otherwise rows of two object versions would be mixed, or left out. Objects are read whole or in parts."""
    lake = bare_lake()
    body = b'{"id": 1}\n' * size
    lake.put_many({f"{n}.jsonl": body for n in range(4)})
    source = S3NotifyDataSource(options_of(lake.source, split_bytes=1000))  # type: ignore[arg-type]
    reader = source.reader(whole_schema(ID, lake.source))
    for meddle in (lambda: lake.put("1.jsonl", b'{"id": 100}\n'), lambda: lake.delete("2.jsonl")):
        work = reader.partitions()
        meddle()
        with pytest.raises(ConflictError, match=r"was overwritten or deleted.*run the query again"):
            [list(reader.read(part)) for part in work]
    assert len(rows_of(lake, ID)) == 2 * size + 1


def test_query_of_an_empty_bucket_returns_no_rows(bare_lake: Callable[..., Lake]) -> None:
    """The inferred schema must have only the data source's own columns."""
    lake = bare_lake()
    assert rows_of(lake, ID) == rows_of(lake, None) == []
    with pytest.raises(NotFoundError, match="no commit yet"):
        rows_of(lake, None, read="table")


def test_safe_names_need_an_existing_table(bare_lake: Callable[..., Lake]) -> None:
    """The table's safe names are known only after its first commit. With the declared names, a stream that starts
    earlier could have columns that the table lacks.
    """
    lake = bare_lake(schema="`order id` bigint")
    source = S3NotifyDataSource(options_of(lake.source, read="table"))  # type: ignore[arg-type]
    assert "`order id` bigint" in str(source.schema())
    with pytest.raises(NotFoundError, match="no commit yet"):
        rows_of(lake, None, read="table", column_names="safe")


def test_columns_with_reserved_names_are_refused(bare_lake: Callable[..., Lake]) -> None:
    """Ingest uses the column `_staged` itself. If a query accepted a data column with this name, only a later ingest
    would refuse the column.
    """
    with pytest.raises(UsageError, match="_staged"):
        rows_of(bare_lake(), StructType([StructField("_staged", LongType())]))


def test_number_of_tasks_depends_on_the_cores(bare_lake: Callable[..., Lake]) -> None:
    """With one task for each slot or object, a query would be slow."""
    source = bare_lake().source

    def splits(count: int, size: int) -> list[Split]:
        versions = [
            ObjectVersion(slot=Slot(n % 8), key=f"{n}", etag=ETag("e"), size=size) for n in range(count)
        ]
        return [Split(version=v, start=0, end=size) for v in versions]

    assert len(work_of(source, [], 2)) == 0
    assert len(work_of(source, splits(3, 100), 2)) == 1
    assert len(work_of(source, splits(1000, 2000), 2)) == 4
    assert len(work_of(source, splits(1, 1 << 30), 2)) == 16


def read(lake: Lake, **options: Any) -> DataFrame:
    register(lake.spark)
    return lake.spark.read.format("s3notify").options(**options_of(lake.source, **options)).load()


@pytest.mark.thorough
@pytest.mark.spark
def test_query_runs_in_spark(lake: Lake, spark: SparkSession) -> None:
    """Most tests of the format run without a JVM. Without a query in Spark, users would be the first to find errors
    that occur only in Spark. For example, Spark may apply the filters of one query to the next query over the same
    DataFrame.
    """
    lake.put_many({f"{n % 3}/{n}.jsonl": b'{"id": %d, "v": "text"}\n' % n for n in range(30)})
    frame = read(lake, schema="id bigint, v string")
    everything = sorted_by(frame.toArrow().to_pylist(), "_slot", "_key", "id")
    assert sorted(row[2] for row in everything) == [*range(30)]
    assert read(lake).schema.names == frame.schema.names
    for condition, holds in (
        ("_slot in (1, 2) and _key like 'raw/1/%'", lambda row: row[0] in (1, 2) and "raw/1/" in row[1]),
        ("id = 4 or _slot = 3", lambda row: row[0] == 3 or row[2] == 4),
    ):
        found = frame.where(condition).toArrow().to_pylist()
        assert sorted_by(found, "_slot", "_key", "id") == list(filter(holds, everything))
    only = read(lake, schema="id bigint", only="3, 5").toArrow().to_pylist()
    assert sorted_by(only, "_slot", "_key", "id") == [row for row in everything if row[0] in (3, 5)]
    lake.put("bad.jsonl", b"broken\n")
    with pytest.raises(PySparkException, match=r"raw/bad\.jsonl' at 0"):
        read(lake, schema="id bigint", rejects="fail").toArrow()


@pytest.mark.spark
def test_options_with_the_names_of_spark_select_the_objects(lake: Lake) -> None:
    """A query must read exactly the objects that Spark's options select."""
    lake.put_many({"1.jsonl": b'{"id": 1}\n', "2.csv": b"id\n2\n", "3.jsonl": b'{"id": 3}\nno JSON\n'})
    names = {"pathGlobFilter": "*.jsonl", "mode": "DROPMALFORMED", "modifiedAfter": "2020-01-01T00:00:00Z"}
    assert {row.id for row in read(lake, **names, schema="id bigint").collect()} == {1, 3}
    later = {**names, "modifiedAfter": "2090-01-01T00:00:00Z", "schema": "id bigint"}
    assert read(lake, **later).count() == 0


@pytest.fixture
def place(ministack: S3Server) -> Place:
    """A source that is ingested without Spark."""
    return Place(ministack)


def table_rows(place: Place, **options: Any) -> list[Row]:
    bucket = named(place.source.input.bucket)
    source = with_settings(place.source, bucket=bucket, platform=bucket)
    given = S3NotifyDataSource(options_of(source, **{"read": "table"} | options))  # type: ignore[arg-type]
    schema = given.schema()
    assert isinstance(schema, StructType)
    reader = given.reader(schema)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["_key"], row["_offset"]))


def test_query_reads_a_version_of_the_committed_table(place: Place) -> None:
    """A query must read the newest table version, or a table version by number or time, or some slots. The bucket's
    objects must not matter.
    """
    seen, times = [], []
    for n in range(3):
        place.put("a", 10 + n)
        place.put(f"b{n}", n)
        place.run("b")
        seen.append(place.rows())
        (event, *_) = history(place.source.table().reader)
        times.append(datetime.fromtimestamp(event.created_ms / 1000, UTC))
        SYSTEM_CLOCK.sleep(1.1)  # S3's times have whole seconds
    place.put("a", 99)
    assert table_rows(place) == seen[2]
    for version, rows, at in zip(range(1, 4), seen, times, strict=True):
        assert table_rows(place, version=version) == rows
        assert table_rows(place, at=at.isoformat()) == rows
    slot = seen[2][0]["_slot"]
    assert table_rows(place, only=slot) == [row for row in seen[2] if row["_slot"] == slot]
    with pytest.raises(NotFoundError, match="no commit yet"):
        table_rows(place, version=0)
    with pytest.raises(NotFoundError, match=r"version 9 .*: versions 0 to 3 are kept"):
        table_rows(place, version=9)
    with pytest.raises(NotFoundError, match="the oldest version that is kept is 0"):
        table_rows(place, at="2001-01-01T00:00:00Z")


def test_query_reads_changes_between_two_versions(place: Place) -> None:
    """A query must return the rows that were added and removed between two table versions. Without a second version,
    the newest table version is the end.
    """
    place.put("a", 1)
    place.put("b", 2)
    place.run("b")
    place.put("a", 3)
    place.store.delete("raw/b")
    place.run("b")
    place.put("a", 4)
    place.run("b")

    def changes(**options: Any) -> list[tuple[Any, ...]]:
        names = ("_change_type", "_commit_version", "_reason", "_key", "a")
        found = table_rows(place, read="changes", **options)
        return sorted(tuple(row[name] for name in names) for row in found)

    came = [("insert", 1, "new", "raw/a", 1), ("insert", 1, "new", "raw/b", 2)]
    assert changes(since=0, version=1) == came
    second = [
        ("delete", 2, "deleted", "raw/b", 2),
        ("delete", 2, "overwritten", "raw/a", 1),
        ("insert", 2, "overwritten", "raw/a", 3),
    ]
    assert changes(since=1, version=2) == second
    last = ("insert", 3, "overwritten", "raw/a", 4)
    assert changes(since=1) == [*second[:2], last], "without rows that were added and removed in between"
    slot = slot_of("raw/b", 4)
    of_slot = [row for row in (*second[:2], last) if slot_of(row[3], 4) == slot]
    assert changes(since=1, only=slot) == of_slot
    assert changes(since=3) == []
    for wrong in ({}, {"since": "newest"}):
        with pytest.raises(
            UsageError, match="needs the option since: the version after which the changes begin"
        ):
            changes(**wrong)
    place.store.delete(place.source.location.layout.version(1))
    with pytest.raises(NotFoundError, match="changes of version 1 "):
        changes(since=0)


@pytest.mark.spark
def test_query_of_the_table_is_independent_of_the_bucket(lake: Lake, spark: SparkSession) -> None:
    """With `read="table"`, a query must return the committed rows of the newest or a given table version, even if the
    bucket has changed.
    """
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(20)})
    lake.ingest()
    slot = lake.slot("3.jsonl")
    lake.put("3.jsonl", [{"id": 300}])
    lake.ingest()
    lake.put("4.jsonl", [{"id": 400}])
    columns = ("_slot", "_key", "_offset", "id")
    assert sorted_by(read(lake, read="table").toArrow().to_pylist(), *columns) == sorted_by(
        lake.load(), *columns
    )
    assert sorted_by(rows_of(lake, None, read="table", only=slot), *columns) == sorted_by(
        lake.load([slot]), *columns
    )
    first = lake.history(lake.slot("4.jsonl"))[0].version
    assert sorted_by(rows_of(lake, None, read="table", version=first), "id") == [(n,) for n in range(20)]
    changes = read(lake, read="changes", since=first).toArrow().to_pylist()
    assert sorted((row["_change_type"], row["id"]) for row in changes) == [("delete", 3), ("insert", 300)]
