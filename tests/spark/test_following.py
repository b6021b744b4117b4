"""Spark updates the derived tables of a source, if they are too large for one process. `s3notify ingest` updates
derived tables after each batch.
"""

import io
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.window import Window

from s3notify_platform.explain.source_status import SourceLook
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.erasure import erase
from s3notify_platform.spark import following
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.spark.load import load_slots
from s3notify_platform.table.check import check_table
from s3notify_platform.table.follow import FollowResult
from s3notify_platform.table.latest.latest_definition import Latest, newest_of
from s3notify_platform.table.snapshot import Snapshot
from tests.support.documents import block
from tests.support.raw_search import holding
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]

SETTINGS = {
    "schema": "id bigint, at timestamp, amount decimal(9,2), note string",
    "latest_key": "id",
    "latest_order_by": "at",
}

Newest = dict[str, tuple[Any, ...]]


@pytest.fixture
def newest_lake(lake_of: Callable[..., Lake]) -> Lake:
    return lake_of(**SETTINGS)


@pytest.fixture(params=["here", "spark"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice. In one run this process does the work on the whole table, and in the other run Spark."""
    if request.param == "spark":
        monkeypatch.setattr(following, "SMALL_BYTES", -1)
    return str(request.param)


def line(key: int, at: int, note: str = "") -> dict[str, Any]:
    return {"id": key, "at": f"2026-01-01T00:00:{at:02d}Z", "amount": at / 4, "note": note}


def follow(lake: Lake) -> FollowResult:
    return following.follow(lake.spark, lake.source, "orders_latest")


def shown(lake: Lake) -> Newest:
    """The newest rows by key, as Spark reads them. The table of newest rows is checked, too."""
    name = lake.source.location.latest_name
    table = lake.source.table(name)
    found = table.newest()
    assert isinstance(found, Snapshot)
    assert not check_table(table, found).problems
    rows = load_slots(lake.spark, lake.source, None, asset=name).toArrow().to_pylist()
    assert len({row["_key"] for row in rows}) == len(rows)
    return {
        row["_key"]: (row["_source_key"], row["_source_offset"], row["at"], row["amount"], row["note"])
        for row in rows
    }


def window(lake: Lake) -> Newest:
    """The newest rows by key, by a window function of Spark over all rows."""
    rows = load_slots(lake.spark, lake.source, None)
    newest_first = [F.desc(name) for name in ("at", "_modified", "_key", "_offset")]
    numbered = rows.withColumn("n", F.row_number().over(Window.partitionBy("id").orderBy(*newest_first)))
    found = numbered.where("n = 1 and id is not null").toArrow().to_pylist()
    return {
        str(row["id"]): (row["_key"], row["_offset"], row["at"], row["amount"], row["note"]) for row in found
    }


def test_newest_rows_equal_a_window_of_spark(newest_lake: Lake, anywhere: str) -> None:
    """Otherwise a key would keep the row of a deleted or overwritten object, or would disappear although another
    object still has a row of the key. Many objects share keys, and then half of the objects with the newest rows are
    deleted, and the other half overwritten.
    """
    lake = newest_lake
    lake.put_many(
        {
            f"{n}.jsonl": b"".join(
                json.dumps(line(key, (n * 7 + key) % 20, f"{n}")).encode() + b"\n" for key in range(n % 9)
            )
            for n in range(40)
        }
    )
    lake.put("null.jsonl", [{"id": None, "at": "2026-01-01T00:00:00Z"}, {"id": 77}])
    lake.ingest()
    assert follow(lake).rebuilt == "the table was never built"
    first = shown(lake)
    assert first == window(lake)
    assert {*first} == {*map(str, range(8)), "77"}
    holders = sorted({source.removeprefix("raw/") for source, *_ in first.values()})
    for holder in holders[::2]:  # each key loses its newest row
        lake.delete(holder)
    for holder in holders[1::2]:
        lake.put(holder, [line(5, 1, "overwritten")])
    lake.put("late.jsonl", [line(3, 0), line(100, 5)])
    lake.ingest()
    done = follow(lake)
    assert (done.rebuilt, done.rows) == ("", len(window(lake)))
    assert shown(lake) == window(lake)
    assert follow(lake).changed == 0


def test_newest_rows_of_a_change_stream_equal_the_database(lake_of: Callable[..., Lake]) -> None:
    """Otherwise a row that the database has deleted would stay in the table, or a row that was inserted again would be
    missing. The rows are in the format of AWS DMS, with a letter for each operation.
    """
    lake = lake_of(
        schema="Op string, id bigint, name string, ts timestamp",
        latest_key="id",
        latest_order_by="ts",
        latest_deleted_when="Op = 'D'",
    )

    def row(op: str, key: int, name: str, second: int) -> dict[str, Any]:
        return {"Op": op, "id": key, "name": name, "ts": f"2026-01-01T00:00:{second:02d}Z"}

    lake.put("load.jsonl", [row("I", 1, "a", 0), row("I", 2, "b", 0), row("I", 3, "c", 0)])
    lake.put("1.jsonl", [row("U", 1, "a2", 1), row("D", 2, "b", 2)])
    lake.ingest()
    follow(lake)

    def names() -> dict[int, str]:
        rows = load_slots(lake.spark, lake.source, None, asset="orders_latest").toArrow().to_pylist()
        return {row["id"]: row["name"] for row in rows}

    assert names() == {1: "a2", 3: "c"}
    lake.put("2.jsonl", [row("I", 2, "again", 3), row("D", 3, "c", 4), row("U", 3, "late", 1)])
    lake.ingest()
    follow(lake)
    assert names() == {1: "a2", 2: "again"}
    lake.delete("2.jsonl")
    lake.ingest()
    follow(lake)
    assert names() == {1: "a2", 3: "c"}


def _parquet(rows: str) -> bytes:
    """The same rows as Parquet, with the columns of the CSV header."""
    sink = io.BytesIO()
    pq.write_table(csv.read_csv(io.BytesIO(rows.encode())), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        pytest.param(
            {
                "LOAD00000001.csv": (
                    b"I,1,a,2026-01-01 00:00:00\nI,2,b,2026-01-01 00:00:00\nI,3,c,2026-01-01 00:00:00\n"
                ),
                "20260101-1.csv": b"U,1,a2,2026-01-01 00:00:01\nD,2,b,2026-01-01 00:00:02\n",
            },
            {"format": "csv", "csv_names": "Op,id,name,ts"},
            id="no-header",
        ),
        pytest.param(
            {
                "LOAD00000001.csv": (
                    b"id,name,ts\n1,a,2026-01-01 00:00:00\n2,b,2026-01-01 00:00:00\n3,c,2026-01-01 00:00:00\n"
                ),
                "20260101-1.csv": b"Op,id,name,ts\nU,1,a2,2026-01-01 00:00:01\nD,2,b,2026-01-01 00:00:02\n",
            },
            {"format": "csv"},
            id="header",
        ),
        pytest.param(
            {
                "LOAD00000001.parquet": _parquet(
                    "id,name,ts\n1,a,2026-01-01 00:00:00\n2,b,2026-01-01 00:00:00\n3,c,2026-01-01 00:00:00\n"
                ),
                "20260101-1.parquet": _parquet(
                    "Op,id,name,ts\nU,1,a2,2026-01-01 00:00:01\nD,2,b,2026-01-01 00:00:02\n"
                ),
            },
            {"format": "parquet"},
            id="parquet",
        ),
    ],
)
def test_newest_rows_of_dms_files_equal_the_database(
    lake_of: Callable[..., Lake], files: dict[str, bytes], settings: dict[str, str]
) -> None:
    """Otherwise a row that the database has deleted would stay in the table, or a row of the full load that was never
    changed would be missing. AWS DMS writes the operation in the first column. Files of the full load lack this column,
    unless DMS is configured to write it.
    """
    lake = lake_of(
        schema="Op string, id bigint, name string, ts timestamp",
        latest_key="id",
        latest_order_by="ts",
        latest_deleted_when="Op = 'D'",
        **settings,
    )
    for name, body in files.items():
        lake.store.put(f"raw/{name}", body)
    lake.ingest()
    follow(lake)
    rows = load_slots(lake.spark, lake.source, None, asset="orders_latest").toArrow().to_pylist()
    assert {row["id"]: row["name"] for row in rows} == {1: "a2", 3: "c"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_newest_rows_of_debezium_events_equal_the_database(
    lake_of: Callable[..., Lake], wrapped: bool
) -> None:
    """The guide's transforms must open Debezium's envelope, and the wrapper of Kafka's JSON converter. A tombstone
    (`null`) goes to quarantine.
    """
    lake = lake_of(schema=None, latest_key="id", latest_order_by="ts_ms", latest_deleted_when="op = 'd'")
    guide: dict[str, Any] = {}
    exec(block("transform of Debezium"), guide)

    def event(op: str, at: int, before: Any, after: Any) -> dict[str, Any]:
        found = {
            "before": before,
            "after": after,
            "source": {
                "version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": at,
                "snapshot": "true" if op == "r" else "false", "db": "shop", "sequence": '["1","2"]',
                "schema": "public", "table": "customers", "txId": 7, "lsn": 24023128, "xmin": None,
            },
            "transaction": None,
            "op": op,
            "ts_ms": at,
        }  # fmt: skip
        described = {"type": "struct", "name": "shop.public.customers.Envelope", "optional": False}
        return {"schema": described, "payload": found} if wrapped else found

    def row(key: int, name: str) -> dict[str, Any]:
        return {"id": key, "name": name}

    lake.put("0.jsonl", [event("r", 1, None, row(1, "a")), event("r", 1, None, row(2, "b"))])
    lake.put(
        "1.jsonl",
        [
            event("u", 2, row(1, "a"), row(1, "a2")),
            event("d", 3, row(2, "b"), None),
            None,
            event("c", 4, None, row(3, "c")),
        ],
    )
    result = lake.ingest(transform=guide["unwrapped_payload" if wrapped else "unwrapped"])
    assert sum(slot.rejects for slot in result.slots.values()) == 1
    follow(lake)
    rows = load_slots(lake.spark, lake.source, None, asset="orders_latest").toArrow().to_pylist()
    assert {row["id"]: row["name"] for row in rows} == {1: "a2", 3: "c"}


def test_newest_rows_get_columns_that_are_added_later(newest_lake: Lake) -> None:
    lake = newest_lake.with_source(schema=None)
    lake.put("1.jsonl", [line(1, 1)])
    lake.ingest()
    follow(lake)
    lake.put("2.jsonl", [line(1, 2) | {"colour": "red"}])
    lake.ingest()
    follow(lake)
    rows = load_slots(lake.spark, lake.source, None, asset="orders_latest").toArrow().to_pylist()
    assert [(row["_key"], row["colour"]) for row in rows] == [("1", "red")]


def test_rows_of_an_erased_object_leave_the_newest_rows(newest_lake: Lake) -> None:
    """After the erasure of an object, the newest rows of its keys must be built again from the remaining objects."""
    lake = newest_lake
    lake.put("keep.jsonl", [line(1, 1), line(2, 1)])
    lake.put("person4711.jsonl", [line(1, 5, "secret4712")])
    lake.ingest()
    follow(lake)
    lake.delete("person4711.jsonl")
    done = erase(lake.source, "raw/person4711.jsonl")
    assert "orders_latest" in done.cleared

    def left() -> set[str]:
        """The files of the table `orders_latest` that contain the erased object's key or data."""
        prefix = lake.source.location.table_layout("orders_latest").prefix
        return {key for key in holding(lake.store, "person4711", "secret4712") if key.startswith(prefix)}

    assert left() == set()
    follow(lake)
    assert {*shown(lake)} == {"1", "2"}
    assert shown(lake) == window(lake)
    assert left() == set()


def test_derived_tables_have_columns_with_any_names(
    lake_of: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Spark would take the dot for a field access, and tables that are too large for one process would never
    be built.
    """
    monkeypatch.setattr(following, "SMALL_BYTES", -1)
    lake = lake_of(
        schema="id bigint, `http.status` bigint, `a``b c` string",
        latest_key="id",
        latest_order_by="http.status",
        cluster_by="http.status",
    )
    rows = [{"id": n % 2, "http.status": n, "a`b c": f"{n}"} for n in range(4)]
    lake.put("1.jsonl", rows[:2])
    lake.put("2.jsonl", rows[2:])
    lake.ingest()

    def values(asset: str) -> set[tuple[Any, ...]]:
        assert following.follow(lake.spark, lake.source, asset).changed
        found = load_slots(lake.spark, lake.source, None, asset=asset).toArrow().to_pylist()
        return {tuple(row[name] for name in rows[0]) for row in found}

    assert values("orders_latest") == {(0, 2, "2"), (1, 3, "3")}
    assert values("orders_clustered") == {tuple(row.values()) for row in rows}
    lake.delete("2.jsonl")
    lake.ingest()
    assert values("orders_latest") == {(0, 0, "0"), (1, 1, "1")}
    assert values("orders_clustered") == {tuple(row.values()) for row in rows[:2]}


def test_a_search_brings_only_the_newest_rows_to_the_driver(
    newest_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the driver would run out of memory if keys with many rows lose their newest row."""
    monkeypatch.setattr(following, "SMALL_BYTES", -1)
    lake, found = newest_lake, list[int]()
    for number in range(4):
        lake.put(f"{number}.jsonl", [line(1, number), line(2, number)])
        lake.ingest()
    follow(lake)
    lake.delete("3.jsonl")
    lake.ingest()

    def counted(rows: pa.Table) -> pa.Table:
        found.append(rows.num_rows)
        return newest_of(rows)

    monkeypatch.setattr(following, "newest_of", counted)
    assert follow(lake).rebuilt == ""
    assert shown(lake) == window(lake)
    assert found == [2]


def test_newest_rows_are_updated_after_each_batch(newest_lake: Lake) -> None:
    """Newest rows must be built even if the source did not have them before. A failure must be reported, and the next
    poll must retry.
    """
    lake, said = newest_lake, list[str]()
    ingest = ContinuousIngest(spark=lake.spark, source=lake.source, progress=said.append)
    lake.put("1.jsonl", [line(1, 1)])
    lake.ingest()
    ingest.run(threading.Event(), every_seconds=None)
    assert {*shown(lake)} == {"1"}
    lake.put("2.jsonl", [line(1, 2), line(2, 1)])
    lake.source.location.slot_signals().signal_slots([lake.slot("2.jsonl")])
    ingest.run(threading.Event(), every_seconds=None)
    assert shown(lake) == window(lake)
    assert (ingest.behind, ingest.counts()["followed"]) == ("", 3)
    wrong = lake.with_source(latest=Latest(key=("no",), order_by=("at",), slots=8))
    other = ContinuousIngest(spark=lake.spark, source=wrong.source, progress=said.append)
    other.run(threading.Event(), every_seconds=None)
    assert "the table has no column 'no'" in other.behind
    assert any("orders_latest is behind" in each for each in said)


def test_derived_tables_lack_no_version_after_a_merge_of_files(newest_lake: Lake) -> None:
    """Otherwise `status` would say after each nightly compaction that a derived table lacks versions."""
    lake = newest_lake
    for number in range(2):
        lake.put(f"{number}.jsonl", [line(number, 1)])
        lake.ingest()
    follow(lake)

    looking = SourceLook(lake.source)

    def behind() -> list[int]:
        return [each.behind for each in looking.read().following]

    assert compact(lake.source.table()).versions
    assert behind() == [0]
    lake.put("2.jsonl", [line(2, 1)])
    lake.ingest()
    assert behind() == [1]
    follow(lake)
    assert behind() == [0]


def test_clustered_table_holds_all_rows_in_order(lake_of: Callable[..., Lake], anywhere: str) -> None:
    """The clustered table must have all rows, including rows without a value, after changes and after a compaction. Its
    files must have separate ranges.
    """
    lake = lake_of(schema="id bigint, day date, note string", cluster_by="day, id", cluster_file_bytes=4096)
    lake.put_many(
        {
            f"{n}.jsonl": b"".join(
                json.dumps(
                    {"id": n * 10 + k, "day": f"2026-01-{(n * 7 + k) % 28 + 1:02d}", "note": "x" * k}
                ).encode()
                + b"\n"
                for k in range(20)
            )
            for n in range(30)
        }
    )
    lake.put("null.jsonl", [{"id": 1}, {"day": "2026-01-01"}])
    lake.ingest()

    def follow_clustered() -> FollowResult:
        return following.follow(lake.spark, lake.source, "orders_clustered")

    def clustered() -> list[dict[str, Any]]:
        table = lake.source.table("orders_clustered")
        found = table.newest()
        assert isinstance(found, Snapshot)
        assert not check_table(table, found).problems
        rows = load_slots(lake.spark, lake.source, None, asset="orders_clustered").toArrow().to_pylist()
        return sorted(rows, key=lambda row: (row["_key"], row["_offset"]))

    assert follow_clustered().rebuilt == "the table was never built"
    assert clustered() == lake.load()
    lake.delete("3.jsonl")
    lake.put("4.jsonl", [{"id": 4, "day": "2026-01-04"}])
    lake.ingest()
    assert follow_clustered().rebuilt == ""
    assert lake.source.clustered is not None
    larger = replace(lake.source.clustered, file_bytes=1 << 20)
    lake = replace(lake, source=replace(lake.source, clustered=larger))
    lake.put("new.jsonl", [{"id": 999, "day": "2027-01-01"}])
    lake.ingest()
    assert follow_clustered().rebuilt == ""
    assert clustered() == lake.load()
    table = lake.source.table("orders_clustered")
    before = table.newest()
    compact(table)
    after = lake.source.table("orders_clustered").newest()
    assert isinstance(before, Snapshot)
    assert isinstance(after, Snapshot)
    assert len(after.packs) < len(before.packs)
    assert clustered() == lake.load()
