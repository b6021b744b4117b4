"""Columns get another type, with Spark's inference, with hints, with transforms, and while batches run."""

import re

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.maintenance.set_types import SetTypes
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


def set_types(lake: Lake, columns: str, **options: bool) -> None:
    location = lake.source.location
    SetTypes(location=location, commit=lake.source.commit, columns=columns, **options).run()


def test_retype_corrects_a_type_pinned_by_the_first_object(lake: Lake) -> None:
    """The reject must name the command that corrects the type. After this command, valid records that were rejected
    must be ingested. Later records must be ingested, too.
    """
    lake.put("a.jsonl", [{"zip": 501}])
    lake.ingest()
    lake.put("b.jsonl", [{"zip": "K1A"}])
    lake.ingest()
    (reject,) = lake.rejects()
    (command,) = re.findall("`s3notify schema set orders '(.*)'`", reject["reason"])
    assert command == "zip string"
    set_types(lake, command)
    lake.ingest()
    lake.put("c.jsonl", [{"zip": "00501", "city": "Holtsville"}, {"zip": 502}])
    lake.ingest()
    assert [(row["zip"], row["city"]) for row in lake.values()] == [
        ("501", None),
        ("K1A", None),
        ("00501", "Holtsville"),
        ("502", None),
    ]
    assert lake.rejects() == []


def test_retype_that_reads_objects_again_stores_their_original_texts(lake_of) -> None:  # type: ignore[no-untyped-def] # a fixture
    lake = lake_of(format="csv")
    lake.store.put("raw/a.csv", b"zip\n00501\n")
    lake.ingest()
    assert lake.values() == [{"zip": 501}]
    set_types(lake, "zip string", read_again=True)
    assert lake.values() == [{"zip": "501"}]
    lake.ingest()
    assert lake.values() == [{"zip": "00501"}]


def test_error_for_a_different_hint_names_the_retype_command(lake: Lake) -> None:
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    hinted = lake.with_source(schema_hints="id decimal(18,2)")
    hinted.put("b.jsonl", [{"id": 2.5}])
    with pytest.raises(
        UsageError, match=r"schema_hints: .*`s3notify schema set orders 'id decimal\(18,2\)'`"
    ):
        hinted.ingest()
    set_types(lake, "id decimal(18,2)")
    hinted.ingest()
    assert [float(row["id"]) for row in hinted.values()] == [1.0, 2.5]


def test_if_a_transform_returns_changed_types_the_error_names_schema_set(lake: Lake) -> None:
    """The command must be right both for a new column of the transform and for a column that the transform reads."""

    def transform(kind: str) -> "object":
        def run(rows: DataFrame) -> DataFrame:
            return rows.withColumn("id", F.col("id").cast(kind)).withColumn("x", F.col("id").cast(kind))

        return run

    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest(transform=transform("int"))  # type: ignore[arg-type]
    lake.put("b.jsonl", [{"id": 2}])
    with pytest.raises(UsageError) as refused:
        lake.ingest(transform=transform("string"))  # type: ignore[arg-type]
    assert "`s3notify schema set orders 'id string' --of-transform` changes the table's type" in str(
        refused.value
    )
    set_types(lake, "id string", of_transform=True)
    with pytest.raises(UsageError, match="`s3notify schema set orders 'x string'`"):
        lake.ingest(transform=transform("string"))  # type: ignore[arg-type]
    set_types(lake, "x string")
    lake.ingest(transform=transform("string"))  # type: ignore[arg-type]
    assert lake.values() == [{"id": "1", "x": "1"}, {"id": "2", "x": "2"}]


def test_batch_running_during_a_retype_plans_again(lake: Lake) -> None:
    """The batch was planned with the old type, so its rows must not be stored with the new type."""
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.put("b.jsonl", [{"id": 2}, {"id": 2.25}])
    lake.ingest(when_reading=lambda: set_types(lake, "id decimal(18,2)"))
    assert [float(row["id"]) for row in lake.values()] == [1.0, 2.0, 2.25]
    assert lake.rejects() == []
