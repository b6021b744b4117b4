"""`spark.read.format("s3notify")` against reading the same bucket by other means."""

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from s3notify_platform.spark.datasource import register, work_of
from s3notify_platform.spark.options import reading_of
from tests.support.spark import Lake
from tests.support.spark_options import options_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

SCHEMA = "id bigint, v string"


def read(lake: Lake, **options: Any) -> DataFrame:
    register(lake.spark)
    return lake.spark.read.format("s3notify").options(**options_of(lake.source, **options)).load()


def rows_of(frame: DataFrame, *columns: str) -> list[Any]:
    return sorted(tuple(row[c] for c in columns) for row in frame.toArrow().to_pylist())


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=10)
    return sink.getvalue()


ROWS = [[{"id": n * 100 + i, "v": f"text {i}"} for i in range(25)] for n in range(6)]
BODIES: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "jsonl": lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows),
    "csv": lambda rows: b"id,v\n" + b"".join(b'%d,"%s"\n' % (r["id"], r["v"].encode()) for r in rows),
    "parquet": parquet,
}


@pytest.mark.parametrize("fmt", [*BODIES])
@pytest.mark.parametrize("split_bytes", [100, 1 << 26])
def test_rows_are_those_of_the_bucket(lake_of: Callable[..., Lake], fmt: str, split_bytes: int) -> None:
    """Of whole objects and of objects in parts, with and without a schema, each row once and where it came from."""
    lake = lake_of(format=fmt, split_bytes=split_bytes)
    lake.put_many({f"{n}.{fmt}": BODIES[fmt](rows) for n, rows in enumerate(ROWS)})
    expected = sorted(
        (f"raw/{n}.{fmt}", row["id"], row["v"], "row") for n, rows in enumerate(ROWS) for row in rows
    )
    for schema in (SCHEMA, None):
        frame = read(lake, schema=schema, split_bytes=split_bytes)
        assert rows_of(frame, "_key", "id", "v", "_change") == expected
        places = rows_of(frame, "_key", "_offset")
        assert len(set(places)) == len(places)
    etags = {f"raw/{n}.{fmt}": lake.store.head(f"raw/{n}.{fmt}").etag for n in range(6)}  # type: ignore[union-attr]
    slots = [(lake.slot(key.removeprefix("raw/")), key, etag) for key, etag in etags.items()]
    assert sorted(set(rows_of(frame, "_slot", "_key", "_etag"))) == sorted(slots)


def test_text_binary_and_a_format_by_suffix(lake_of: Callable[..., Lake]) -> None:
    """The formats with one column, and a bucket of several formats."""
    lake = lake_of(format="auto")
    lake.put_many({"a.txt": b"one\ntwo\n", "b.jsonl": b'{"value": "three"}\n', "c.bin": b"\x00"})
    frame = read(lake, schema="value string")
    assert rows_of(frame.where("_change = 'row'"), "value") == [("one",), ("three",), ("two",)]
    assert rows_of(frame.where("_change = 'reject'"), "_key") == [("raw/c.bin",)]
    frame = read(lake, format="text", prefix="raw/a", schema=None)
    assert rows_of(frame, "value") == [("one",), ("two",)]
    frame = read(lake, format="binary", prefix="raw/c", schema=None)
    assert rows_of(frame, "content") == [(b"\x00",)]


def test_rejects_are_never_lost_in_silence(lake: Lake) -> None:
    """By default they are rows with their reason and bytes; else the query fails, or somebody said to drop them."""
    lake.put("0.jsonl", b'{"id": 1}\nbroken\n{"id": 2}\n')
    found = read(lake, schema="id bigint").orderBy("_offset").toArrow().to_pylist()
    assert [(r["id"], r["_change"], r["_offset"], r["_raw"]) for r in found] == [
        (1, "row", 0, None),
        (None, "reject", 10, b"broken"),
        (2, "row", 17, None),
    ]
    assert found[1]["_rejected"]
    with pytest.raises(PySparkException, match=r"raw/0\.jsonl' at 10: .* rejects='column'"):
        read(lake, schema="id bigint", rejects="fail").toArrow()
    assert rows_of(read(lake, schema="id bigint", rejects="drop"), "id") == [(1,), (2,)]
    # A schema of Spark's own has only the columns it names, so rejects would look like rows.
    options = options_of(lake.source)
    reader = lake.spark.read.format("s3notify").schema("_key string, id bigint").options(**options)
    with pytest.raises(PySparkException, match=r"raw/0\.jsonl"):
        reader.load().toArrow()
    lake.put("0.jsonl", b'{"id": 1}\n')
    assert reader.load().toArrow().to_pylist() == [{"_key": "raw/0.jsonl", "id": 1}]


def test_filters_and_the_option_only(lake: Lake) -> None:
    """One DataFrame with several filters, in turn; and slots that are not wanted are not read."""
    lake.put_many({f"{n % 3}/{n}.jsonl": b'{"id": %d}\n' % n for n in range(30)})
    frame = read(lake, schema="id bigint")
    everything = rows_of(frame, "_slot", "_key", "id")
    for condition, holds in (
        ("_slot = 3", lambda row: row[0] == 3),
        ("_slot in (1, 2) and _key like 'raw/1/%'", lambda row: row[0] in (1, 2) and "raw/1/" in row[1]),
        ("_key like 'other/%'", lambda _: False),
        ("id = 4 or _slot = 3", lambda row: row[0] == 3 or row[2] == 4),
    ):
        assert rows_of(frame.where(condition), "_slot", "_key", "id") == list(filter(holds, everything))
    only = read(lake, schema="id bigint", only="3, 5")
    assert rows_of(only, "_slot", "_key", "id") == [row for row in everything if row[0] in (3, 5)]


def test_an_object_that_changes_under_the_query_ends_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a listed version are never mixed with those of a later one, nor left out."""
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(4)})
    frame = read(lake, schema="id bigint").select("id")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "id" in plan
    lake.put("1.jsonl", b'{"id": 100}\n')
    with pytest.raises(PySparkException, match=r"raw/1\.jsonl' was overwritten or deleted.*run it again"):
        frame.toArrow()
    lake.delete("2.jsonl")
    assert rows_of(read(lake, schema="id bigint"), "id") == [(0,), (3,), (100,)]


def test_the_committed_table(lake: Lake) -> None:
    """`read="table"`: the committed rows, of the newest or of given generations, whatever the bucket holds by now."""
    with pytest.raises(PySparkException, match="no commit yet"):
        read(lake, read="table")
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(20)})
    lake.ingest()
    slot = lake.slot("3.jsonl")
    lake.put("3.jsonl", [{"id": 300}])
    lake.ingest()
    lake.put("4.jsonl", [{"id": 400}])
    table = read(lake, read="table")
    assert rows_of(table, "_slot", "_key", "_offset", "id") == sorted(
        (r["_slot"], r["_key"], r["_offset"], r["id"]) for r in lake.load()
    )
    one = read(lake, read="table", only=slot)
    assert rows_of(one, "_key", "id") == [(r["_key"], r["id"]) for r in lake.load([slot])]
    earlier = read(lake, read="table", generations=json.dumps({str(slot): 1}))
    assert rows_of(earlier, "id") == [(n,) for n in range(20)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckt": "b"}, "option 'buckt': there is none"),
        ({"prefix": "raw/"}, "option 'bucket' is missing"),
        ({"bucket": "b", "prefix": "raw/", "slots": "many"}, "slots='many': give a number"),
        ({"bucket": "b", "prefix": "raw/", "access_key_id_env": "NO_SUCH"}, "no environment variable"),
        ({"bucket": "b", "prefix": "raw/", "read": "it"}, "read='it': use one of objects, table, slots"),
        ({"bucket": "b", "prefix": "raw/", "rejects": "hide"}, "rejects='hide'"),
        ({"bucket": "b", "prefix": "raw/", "generations": "[1]"}, "give JSON like"),
        ({"path": "http://b/raw/"}, "give s3://bucket/prefix"),
        ({"bucket": "b"}, "which holds the platform's own objects"),
    ],
)
def test_options_that_make_no_sense_say_so(options: dict[str, str], message: str) -> None:
    """Before any request."""
    with pytest.raises(Exception, match=message):
        reading_of(options)


def test_a_path_names_bucket_and_prefix() -> None:
    """As people write it."""
    source = reading_of({"path": "s3a://acme/raw/orders/", "platform_bucket": "own"}).source
    assert (source.bucket.bucket, source.prefix, source.platform.bucket) == ("acme", "raw/orders/", "own")


def test_columns_with_taken_names_are_refused(lake: Lake) -> None:
    """A column of the data cannot be one of ours."""
    lake.put("0.jsonl", b'{"id": 1}\n')
    with pytest.raises(PySparkException, match="_kind"):
        read(lake, schema="id bigint, _kind int").toArrow()


def test_tasks_are_a_few_times_the_cores(lake: Lake) -> None:
    """Never one for each slot, nor for each object."""
    from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split

    def splits(count: int, size: int) -> list[Split]:
        versions = [ObjectVersion(slot=n % 8, key=f"k{n}", etag="e", size=size) for n in range(count)]  # type: ignore[arg-type]
        return [Split(version=v, start=0, end=size) for v in versions]

    assert len(work_of(lake.source, [], 2)) == 0
    assert len(work_of(lake.source, splits(3, 100), 2)) == 1
    assert len(work_of(lake.source, splits(1000, 2000), 2)) == 4
    assert len(work_of(lake.source, splits(1, 1 << 30), 2)) == 16
