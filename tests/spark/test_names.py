"""Columns may have any name that Spark allows, in every part that handles columns."""

import json
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from s3notify_platform.engine.loop import Round, commit_round
from s3notify_platform.engine.run_state import Run
from s3notify_platform.maintenance.set_types import SetTypes
from s3notify_platform.spark.datasource.query import register
from s3notify_platform.spark.derive import derived_tables
from s3notify_platform.spark.load import load_slots
from s3notify_platform.spark.spark_jobs import SparkJobs
from s3notify_platform.table.column_names import object_names
from s3notify_platform.table.pinned_schema import TableSchema
from tests.support.engines import Place, by_polars
from tests.support.spark import Lake
from tests.support.spark_options import options_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

ROW = {"id": 1, "17.72": 2, "a`b": 3, "a b": 4, "🙂": 5, "a.b": {"c.d": 6}, "a": {"b": 7}, 'say "x"': 8}


def test_any_column_name_is_ingested(lake: Lake) -> None:
    """Columns with unusual names must be inferred, read, transformed, derived and loaded.

    If two names differ only in case, records with the later name must be rejected.
    """
    lake.put("a.jsonl", [ROW])
    lake.put("b.jsonl", [ROW, {"ID": 9}])
    lake.ingest(transform=lambda rows: rows.where("id > 0"))
    lake.put("c.jsonl", [ROW])
    lake.ingest()
    assert lake.values() == [ROW] * 3
    assert [row["reason"] for row in lake.rejects()] == ["field 'ID' is not in the schema"]

    def same(rows: DataFrame) -> DataFrame:
        return rows.drop("_key", "_etag", "_offset")

    source = lake.source
    slots = source.location.all_slots()
    staged = derived_tables(
        lake.spark, source, "same", same, snapshot=lake.snapshot(), slots=slots, batch="b"
    )
    done = Round(tables=staged)
    commit_round(done)
    assert done.bad() == []
    derived = load_slots(lake.spark, source, slots, asset="same").drop("_slot").toArrow()
    assert derived.to_pylist() == [ROW] * 3
    assert lake.snapshot().protocol.writer == 5, "names are mapped"


def test_safe_names_are_readable_by_every_engine(lake_of: Callable[..., Lake]) -> None:
    """Columns with safe names are inferred, transformed, used in rules, and retyped. Each column must keep its name and
    type.
    """
    lake = lake_of(
        column_names="safe", format="auto", expect="order_id > 0", schema_hints="`Amount (EUR)` decimal(9,2)"
    )
    lake.put("a.jsonl", [{"order id": 1, "Amount (EUR)": 1.5, "by": {"first name": "Ann"}}, {"order id": 0}])
    lake.put("b.csv", b"order id,Amount (EUR)\n2,2.25\n")
    lake.ingest(transform=lambda rows: rows.where("order_id < 9 and by.first_name is null or Amount_EUR > 0"))
    first = {"order_id": 1, "Amount_EUR": Decimal("1.50"), "by": {"first_name": "Ann"}}
    second = {"order_id": 2, "Amount_EUR": Decimal("2.25"), "by": None}
    assert lake.values() == [first, second]
    assert [row["reason"] for row in lake.rejects()] == ["breaks the rule order_id > 0"]
    assert lake.snapshot().protocol.writer == 2
    lake.put("c.jsonl", [{"order id": 3, "order_id": "C", "order-id": True}])
    lake.ingest()
    third = {**dict.fromkeys(second), "order_id": 3, "order_id_2": "C", "order_id_3": True}
    assert lake.values()[2] == third
    lake.put("d.jsonl", [{"order id": "D"}])
    lake.ingest()
    assert [row["_key"] for row in lake.rejects() if "order id" in row["reason"]] == ["raw/d.jsonl"]
    lake = lake.with_source(expect="")
    SetTypes(location=lake.source.location, commit=lake.source.commit, columns="order_id string").run()
    lake.ingest()
    assert [row["order_id"] for row in lake.values()] == ["1", "2", "3", "D"]
    config, layout = lake.source.location.platform, lake.source.location.layout
    place = Place(uri=f"s3://{config.bucket}/{layout.prefix}", config=config)
    assert sorted(row["order_id"] for row in by_polars(place)) == ["1", "2", "3", "D"], (
        "no mapping of columns"
    )


def test_rescued_values_of_a_column_with_a_safe_name_are_read_again(lake_of: Callable[..., Lake]) -> None:
    """In `_rescued`, a value has the column's name in the objects, not the safe name. After a retype, a value that now
    fits must leave `_rescued`.
    """
    lake = lake_of(column_names="safe", mismatches="rescue")
    lake.put("a.jsonl", [{"order id": 1}])
    lake.ingest()
    lake.put("b.jsonl", [{"order id": "B"}])
    lake.ingest()
    assert [row["_rescued"] for row in lake.values()] == [None, '{"order id":"B"}']
    SetTypes(location=lake.source.location, commit=lake.source.commit, columns="order_id string").run()
    lake.ingest()
    assert lake.values() == [{"order_id": "1", "_rescued": None}, {"order_id": "B", "_rescued": None}]


def test_safe_names_apply_to_parquet_columns(lake_of: Callable[..., Lake]) -> None:
    """Names of fields in lists must become safe, too. Spark must get safe names even if it reads objects without a
    table.
    """
    lake = lake_of(column_names="safe", format="parquet")
    table = pa.table({"a b": [1], "l": pa.array([[{"c d": 2}]])})
    body = BytesIO()
    pq.write_table(table, body)
    lake.put("a.parquet", body.getvalue())
    lake.ingest()
    row = {"a_b": 1, "l": [{"c_d": 2}]}
    assert lake.values() == [row]
    register(lake.spark)
    objects = (
        lake.spark.read.format("s3notify").options(**options_of(lake.source, column_names="safe")).load()
    )
    assert objects.select("a_b", "l").toArrow().to_pylist() == [row]


def test_names_of_a_batch_stay_when_the_schema_grows(lake_of: Callable[..., Lake]) -> None:
    """If the schema is widened again, columns must keep the names with which rows of the batch are already stored."""
    lake = lake_of(column_names="safe")
    jobs = SparkJobs(lake.spark, lake.source)
    run = Run(batch="b", run="b", signals={}, listing=True, only_found=False, last_attempt=frozenset())
    first = jobs.widen_schema(TableSchema(inferred=True), [field_of("a b")], run, None)
    wider = jobs.widen_schema(first, [field_of("a_b")], run, None)
    assert [column["name"] for column in json.loads(wider.source)["fields"]] == ["a_b", "a_b_2"]
    assert [column["name"] for column in json.loads(object_names(wider.source))["fields"]] == ["a b", "a_b"]


def field_of(name: str) -> str:
    """A field that an object has but the schema lacks, as a task reports such a field."""
    return b64encode(pa.schema([(name, pa.int64())]).serialize().to_pybytes()).decode()
