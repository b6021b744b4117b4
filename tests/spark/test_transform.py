"""The user's transform: what it can do, and the result if it fails."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.spark import failures
from s3notify_platform.spark.spark_jobs import spark_ingest
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


def test_transform_may_change_drop_and_multiply_rows(lake: Lake) -> None:
    """The transform must get rows and nothing else. Outcomes of objects, and rejects, must not pass through the
    transform.
    """
    lake.put("a.jsonl", b'{"id": 1, "a.b": "x"}\n{"id": 2, "a.b": "y"}\nbad\n')
    lake.put("b.jsonl", [{"id": 3, "a.b": "z"}])

    def transform(rows: DataFrame) -> DataFrame:
        assert rows.columns == ["_slot", "_key", "_etag", "_offset", "id", "a.b"]
        kept = rows.where("id < 3").withColumn("n", F.explode(F.array(F.lit(1), F.lit(2))))
        return kept.select("n", "*").drop("a.b") if kept.columns[-1] != "n" else kept.drop("a.b")

    result = lake.ingest(transform=transform)
    assert sum(r.rows for r in result.slots.values()) == 3, "records read, before the transform"
    assert sum(r.live_rows for r in result.slots.values()) == 4
    assert sum(r.rejects for r in result.slots.values()) == 1
    assert lake.snapshot().rows == 4, "the check of the table accepts several rows of one record"
    assert sorted((row["id"], row["n"]) for row in lake.load()) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert lake.ingest(transform=transform).slots[lake.slot("b.jsonl")].status == "unchanged"
    lake.put("a.jsonl", [{"id": 0, "a.b": "w"}])
    lake.delete("b.jsonl")
    lake.ingest(transform=transform)
    assert [row["id"] for row in lake.load()] == [0, 0]


def test_column_added_by_a_transform_is_null_in_old_rows(lake: Lake) -> None:
    """A new column of a transform must widen the table. Rows in earlier files must have null in this column."""
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest(transform=lambda rows: rows)
    lake.put("b.jsonl", [{"id": 2}])
    lake.ingest(transform=lambda rows: rows.withColumn("twice", F.col("id") * 2))
    assert lake.values() == [{"id": 1, "twice": None}, {"id": 2, "twice": 4}]


def _raises(_rows: DataFrame) -> DataFrame:
    raise KeyError("my own bug")


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (_raises, "raised KeyError: 'my own bug'"),
        (lambda rows: rows.select("no_such_column"), "fails: .*no_such_column"),
        (lambda rows: rows.select("id"), "drops or changes the lineage column '_slot'"),
        (lambda rows: rows.drop("_etag"), "drops or changes the lineage column '_etag'"),
        (lambda rows: rows.withColumn("_offset", F.lit("x")), ".*lineage column '_offset'"),
        (lambda rows: rows.withColumn("_staged", F.lit(1)), "makes a duplicate or reserved column '_staged'"),
        (lambda rows: rows.select("*", "id"), "makes a duplicate or reserved column 'id'"),
        (lambda _rows: None, "raised AttributeError"),
    ],
)
def test_defective_transform_is_refused_before_any_write(
    lake: Lake, transform: Callable[[DataFrame], DataFrame], reason: str
) -> None:
    """The error must name the defect of the transform. Nothing may be written, because readers would see a wrong
    table.
    """
    lake.put("a.jsonl", [{"id": 1}])
    with pytest.raises(UsageError, match=f"transform of source 'orders' {reason}"):
        lake.ingest(transform=transform)
    assert not lake.is_committed(lake.slot("a.jsonl"))
    assert lake.schema() is None


@pytest.mark.thorough
def test_transform_that_changes_a_type_is_refused(lake: Lake) -> None:
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest(transform=lambda rows: rows.withColumn("x", F.lit(1)))
    lake.put("a.jsonl", [{"id": 2}])
    with pytest.raises(UsageError, match="column 'x' is int in the table and now string"):
        lake.ingest(transform=lambda rows: rows.withColumn("x", F.lit("1")))
    lake.ingest(transform=lambda rows: rows.withColumn("x", F.lit(2)))
    assert lake.values() == [{"id": 2, "x": 2}]


def test_object_for_which_a_transform_fails_is_left_out(lake_of: Callable[..., Lake]) -> None:
    """All other objects must be committed immediately. The object at fault must be committed after the transform is
    corrected.
    """
    lake = lake_of(slots=5)
    for number in range(24):
        lake.put(f"{number}.jsonl", [{"id": number}])
    bad = lake.slot("5.jsonl")

    def transform(rows: DataFrame) -> DataFrame:
        return rows.withColumn("x", F.when(F.col("id") == 5, F.raise_error(F.lit("no fives"))).otherwise(1))

    result = lake.ingest(transform=transform)
    assert [s for s, r in result.slots.items() if not r.ok] == [bad]
    assert [*result.slots[bad].failed_objects] == ["raw/5.jsonl"]
    assert "no fives" in result.slots[bad].failed_objects["raw/5.jsonl"]
    assert {row["_key"] for row in lake.load()} == {f"raw/{n}.jsonl" for n in range(24) if n != 5}
    again = lake.ingest(transform=lambda rows: rows.withColumn("x", F.lit(1)))
    assert [s for s, r in again.slots.items() if r.status == "committed"] == [bad]
    assert len(lake.load()) == 24


@pytest.mark.thorough
def test_transform_that_fails_for_all_rows_ends_after_few_jobs(
    lake_of: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots must fail, after a bounded number of Spark jobs."""
    monkeypatch.setattr(failures, "MAX_FAILED_JOBS", 4)
    lake = lake_of(slots=40)
    for number in range(60):
        lake.put(f"{number}.jsonl", [{"id": number}])
    messages: list[str] = []
    ingest = spark_ingest(
        lake.spark,
        lake.source,
        transform=lambda rows: rows.withColumn("x", F.raise_error(F.lit("never"))),
        progress=messages.append,
    )
    result = ingest.run(lake.source.location.all_slots(), batch="b")
    assert {r.status for s, r in result.slots.items() if s == lake.slot("0.jsonl")} == {"failed"}
    assert all("never" in r.error for r in result.slots.values() if r.status == "failed")
    assert sum("trying halves" in message for message in messages) == 3
    assert not any(r.status == "committed" for r in result.slots.values())


@pytest.mark.thorough
def test_transform_that_changes_lineage_fails_the_slot(lake: Lake) -> None:
    """Otherwise rows would be assigned to another object, object version or slot."""
    for number in range(6):
        lake.put(f"{number}.jsonl", [{"id": number}])
    for column, value in (("_key", "raw/other"), ("_etag", "other")):
        result = lake.ingest(
            transform=lambda rows, c=column, v=value: rows.withColumn(
                c, F.when(F.col("id") == 1, v).otherwise(F.col(c))
            )
        )
        failed = [s for s, r in result.slots.items() if r.status == "failed"]
        assert failed == [lake.slot("1.jsonl")]
        assert "must keep _slot, _key, _etag and _offset" in result.slots[failed[0]].error
    assert lake.ingest(transform=lambda rows: rows).slots[lake.slot("1.jsonl")].ok
    lake.check()


@pytest.mark.thorough
@pytest.mark.parametrize("slot", [None, 1000])
def test_transform_that_changes_slots_fails_the_slot(lake_of: Callable[..., Lake], slot: int | None) -> None:
    lake = lake_of(slots=4)
    for number in range(6):
        lake.put(f"{number}.jsonl", [{"id": number}])
    result = lake.ingest(
        transform=lambda rows: rows.withColumn(
            "_slot", F.when(F.col("id") == 1, F.lit(slot).cast("int")).otherwise(F.col("_slot"))
        )
    )
    assert [s for s, r in result.slots.items() if r.status == "failed"] == [lake.slot("1.jsonl")]
    assert "_slot" in result.slots[lake.slot("1.jsonl")].error


@pytest.mark.thorough
def test_object_overwritten_during_a_transform_counts_with_its_rows(lake: Lake) -> None:
    """Rows and outcomes must come from one read. Otherwise an object could count as read, although its rows are
    missing.
    """
    lake.put("a.jsonl", [{"id": 1}, {"id": 2}])
    store, key = lake.source.input.bucket, "raw/a.jsonl"

    def overwrite(rows: DataFrame) -> DataFrame:
        def run(batches):  # type: ignore[no-untyped-def]
            from s3notify_platform.stores.s3 import S3ObjectStore

            S3ObjectStore(store).put(key, b'{"id": 3}\n')
            yield from batches

        return rows.mapInArrow(run, rows.schema)

    lake.ingest(transform=overwrite)
    assert [row["id"] for row in lake.load()] == [1, 2]
    lake.ingest(transform=lambda rows: rows)
    lake.check()
