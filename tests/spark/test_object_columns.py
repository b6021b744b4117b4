"""Columns from keys and from the store's metadata, and type hints: in queries, tables and transforms."""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom
from pyspark.sql.types import StructType

from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.source.declared_schema import arrow_columns
from s3notify_platform.spark.datasource.query import S3NotifyDataSource
from s3notify_platform.spark.spark_versions import to_arrow_schema
from s3notify_platform.table.reread import backfill
from tests.support.engines import Place, by_delta_rs
from tests.support.servers import S3Server
from tests.support.spark import Lake
from tests.support.spark_options import options_of

pytestmark = [pytest.mark.server]

PARTS = {"partition_columns": "dt date, region string", "metadata_columns": "_modified, _size, _version"}
DAY = dt.date(2026, 1, 1)
EU = "dt=2026-01-01/region=eu/"


@pytest.fixture
def bare_lake(ministack: S3Server) -> Callable[..., Lake]:
    """Lakes without a Spark session."""
    return lambda **source: Lake.of(None, ministack.config(ministack.make_bucket()), **source)  # type: ignore[arg-type]


def modified(lake: Lake, name: str) -> dt.datetime:
    found = lake.store.head(f"raw/{name}")
    assert found is not None
    return dt.datetime.fromtimestamp(found.modified_ms / 1000, dt.UTC)


def query_rows(lake: Lake, **options: str) -> tuple[StructType, list[dict[str, Any]]]:
    """The rows of a batch query with an inferred schema."""
    source = S3NotifyDataSource(options_of(lake.source, **options))  # type: ignore[arg-type]
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    return schema, [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]


# Queries, without a JVM


def test_query_has_columns_from_keys_and_hints(bare_lake: Callable[..., Lake]) -> None:
    """Columns from keys must come after the columns of the data. Hinted columns must have the hinted types. Other
    columns must have inferred types.
    """
    lake = bare_lake()
    lake.put(f"{EU}a.jsonl", [{"id": 1, "Amount": 1.25}])
    schema, (row,) = query_rows(lake, schema_hints="AMOUNT decimal(12,2), note string", **PARTS)
    assert schema.simpleString() == (
        "struct<_slot:int,_key:string,_etag:string,_offset:bigint,_change:string,id:bigint,Amount:decimal(12,2),"
        "note:string,dt:date,region:string,_modified:timestamp,_size:bigint,_version:string,_rejected:string,"
        "_raw:binary>"
    )
    assert (row["id"], row["Amount"], row["note"]) == (1, Decimal("1.25"), None)
    assert (row["dt"], row["region"], row["_version"]) == (DAY, "eu", None)
    assert (row["_modified"], row["_size"]) == (
        modified(lake, f"{EU}a.jsonl"),
        len('{"id": 1, "Amount": 1.25}\n'),
    )


def test_query_rejects_records_with_a_column_from_keys(bare_lake: Callable[..., Lake]) -> None:
    """If a field of a record has the name of a column from keys, the record must be a reject, as in a table. A declared
    or hinted column with the name of a column from keys must be refused.
    """
    lake = bare_lake()
    lake.put(f"{EU}a.jsonl", [{"id": 1, "Region": "x"}, {"id": 2}])
    _, rows = query_rows(lake, rejects="column", **PARTS)
    assert [(row["id"], row["region"], row["_rejected"]) for row in rows] == [
        (2, "eu", None),
        (None, None, "field 'Region' is not in the schema"),
    ]
    with pytest.raises(
        UsageError,
        match=r"'Region' is a data column, and also in partition_columns.*or declare a schema without it",
    ):
        query_rows(lake, schema_hints="Region string", **PARTS)


def test_query_with_a_declared_schema_has_columns_from_keys(bare_lake: Callable[..., Lake]) -> None:
    """The schema of the columns must have Spark's names of types, because Spark parses this schema."""
    parts = "`a day` date, n decimal(5,1), at timestamp_ntz"
    options = options_of(bare_lake(schema="id bigint").source, partition_columns=parts)
    found = S3NotifyDataSource(options).schema()  # type: ignore[arg-type]
    assert ", id bigint, `a day` date, `n` decimal(5,1), `at` timestamp_ntz, _rejected" in str(found)


# Tables


@pytest.mark.spark
def test_table_has_columns_from_keys(lake_of: Callable[..., Lake], ministack: S3Server) -> None:
    """The columns from keys must be in the schema and in the rows. Other engines must see these columns, and a
    transform must get them.
    """
    lake = lake_of(schema="id bigint", **PARTS)
    lake.put(f"{EU}a.jsonl", [{"id": 1}])
    lake.put("dt=2026-01-02/b.jsonl", [{"id": 2}])
    lake.put("dt=no/c.jsonl", [{"id": 3}, {"id": 4}])
    result = lake.ingest()
    assert sum(r.rejects for r in result.slots.values()) == 1
    (reject,) = lake.rejects()
    assert (reject["_key"], reject["reason"]) == (
        "raw/dt=no/c.jsonl",
        "dt: 'no' does not fit date, in its key",
    )
    seconds = [modified(lake, f"{EU}a.jsonl"), modified(lake, "dt=2026-01-02/b.jsonl")]
    of_store = [{"_modified": at, "_size": 10, "_version": None} for at in seconds]
    expected = [
        {"id": 1, "dt": DAY, "region": "eu"} | of_store[0],
        {"id": 2, "dt": dt.date(2026, 1, 2), "region": None} | of_store[1],
    ]
    assert sorted(lake.values(), key=lambda row: int(row["id"])) == expected
    place, prefix = lake.source.location.platform.bucket, lake.source.location.layout.prefix
    shown = by_delta_rs(Place(uri=f"s3://{place}/{prefix}", config=ministack.config(place)))
    names = expected[0].keys()
    assert sorted(({n: row[n] for n in names} for row in shown), key=lambda row: int(row["id"])) == expected

    def transform(rows: DataFrame) -> DataFrame:
        own = rows.where("region is null or _size > 0").withColumn("month", F.month("dt"))
        return own.drop("_modified", "_version", "region")

    lake.put(f"{EU}d.jsonl", [{"id": 5}])
    lake.ingest(transform=transform)
    row = next(row for row in lake.values() if row["id"] == 5)
    assert (row["month"], row["dt"], row["region"], row["_size"], row["_modified"]) == (
        1,
        DAY,
        None,
        10,
        None,
    )


@pytest.mark.spark
def test_columns_from_keys_are_part_of_the_schema(lake_of: Callable[..., Lake]) -> None:
    """A column that is added later must be null in earlier rows until their objects are read again. No column may
    disappear.
    """
    plain = lake_of()
    plain.put(f"{EU}a.jsonl", [{"id": 1}])
    plain.ingest()
    lake = plain.with_source(partition_columns="dt date")
    lake.put(f"{EU}b.jsonl", [{"id": 2}])
    result = lake.ingest([lake.slot(f"{EU}b.jsonl")])
    assert result.schema_added == {"dt": "date"}
    backfill(lake.source.table(), lake.source.location.all_slots(), None)
    lake.ingest()
    assert [(row["id"], row["dt"]) for row in lake.values()] == [(1, DAY), (2, DAY)]
    # A record with a field of this name is a reject, since the schema cannot have two columns with the name.
    lake.put("c.jsonl", [{"id": 3}, {"id": 4, "dt": "2026-01-01"}])
    lake.ingest()
    assert [row["reason"] for row in lake.rejects()] == ["field 'dt' is not in the schema"]
    assert [row["id"] for row in lake.values() if row["dt"] is None] == [3]
    lake.put(f"{EU}d.jsonl", [{"id": 5}])
    with pytest.raises(UsageError, match="column 'dt' is date in the table and now string"):
        lake.with_source(partition_columns="dt string").ingest()
    with pytest.raises(UsageError, match="'id' is a data column, and also in partition_columns"):
        lake.with_source(partition_columns="id string").ingest()


@pytest.mark.spark
@pytest.mark.parametrize("mismatches", ["quarantine", "rescue"])
def test_first_batch_rejects_records_with_a_column_from_keys(
    lake_of: Callable[..., Lake], mismatches: str
) -> None:
    """A record with a field of this name must be one reject, or the field's value must be rescued, as in an existing
    table. All other records must be ingested.
    """
    lake = lake_of(partition_columns="dt date", mismatches=mismatches)
    lake.put(f"{EU}a.jsonl", [{"id": 1}, {"id": 2, "DT": "2026-01-02"}])
    lake.put(f"{EU}b.jsonl", [{"id": 3}])
    result = lake.ingest()
    assert all(each.ok for each in result.slots.values())
    found = sorted((row["id"], row["dt"], row.get("_rescued")) for row in lake.values())
    if mismatches == "rescue":
        assert found == [(1, DAY, None), (2, DAY, '{"DT":"2026-01-02"}'), (3, DAY, None)]
        assert lake.rejects() == []
    else:
        assert found == [(1, DAY, None), (3, DAY, None)]
        assert [row["reason"] for row in lake.rejects()] == ["field 'DT' is not in the schema"]


@pytest.mark.spark
def test_first_batch_with_only_rejects_does_not_fail(lake_of: Callable[..., Lake]) -> None:
    """All records of the first batch must be rejects. Later objects with other fields must add columns."""
    lake = lake_of(partition_columns="dt date")
    lake.put(f"{EU}a.jsonl", [{"dt": "2026-01-02"}])
    assert all(each.ok for each in lake.ingest().slots.values())
    assert [row["reason"] for row in lake.rejects()] == ["field 'dt' is not in the schema"]
    lake.put(f"{EU}b.jsonl", [{"id": 3}])
    assert all(each.ok for each in lake.ingest().slots.values())
    assert [(row["id"], row["dt"]) for row in lake.values()] == [(3, DAY)]


KINDS = """
boolean byte tinyint short smallint int integer long bigint real float double string binary date
timestamp timestamp_ltz timestamp_ntz dec decimal(7) numeric(9,3) array<int> map<string,double> struct<a:int,b:date>
"""


@pytest.mark.spark
def test_types_of_the_columns_equal_those_of_spark(spark: SparkSession) -> None:
    """Tasks derive the types of the columns from the settings, without Spark. Other types than Spark's would not fit
    the table.
    """
    declared = ", ".join(f"c{n} {kind}" for n, kind in enumerate(KINDS.split()))
    parsed = StructType.fromDDL(declared)
    assert isinstance(parsed, StructType)
    assert arrow_columns("x", declared).types == to_arrow_schema(parsed).types


@pytest.mark.spark
def test_hints_set_the_types_of_inferred_columns(lake: Lake) -> None:
    """Hinted types must be pinned together with inferred types. A later hint must only add its column."""
    hinted = lake.with_source(schema_hints="amount decimal(12,2), o struct<x: int>")
    hinted.put(
        "a.jsonl", b'{"id": 1, "amount": 1.5, "o": {"x": 1, "y": true}}\n{"id": 2, "amount": "many"}\n'
    )
    hinted.ingest()
    head = hinted.schema()
    assert head is not None
    assert head.inferred
    types = {column["name"]: column["type"] for column in json.loads(head.source)["fields"]}
    assert (types["id"], types["amount"]) == ("long", "decimal(12,2)")
    assert hinted.values() == [{"id": 1, "amount": Decimal("1.50"), "o": {"x": 1, "y": True}}]
    assert len(hinted.rejects()) == 1
    more = hinted.with_source(schema_hints="Amount decimal(12,2), o struct<x: int>, later date")
    more.put("b.jsonl", [{"id": 3, "later": "2026-01-01"}])
    more.ingest()
    assert more.values()[1] == {"id": 3, "amount": None, "o": None, "later": DAY}
    more.put("c.jsonl", [{"id": 4}])
    with pytest.raises(
        UsageError,
        match=r"schema_hints: column 'id' is bigint in the table and now string: .*remove the column",
    ):
        more.with_source(schema_hints="id string").ingest()


@pytest.mark.spark
@pytest.mark.parametrize("read", ["table", "changes"])
@pytest.mark.parametrize("form", ["jsonl", "text"])
def test_stream_that_begins_before_its_table_has_the_columns_of_the_table(
    lake_of: Callable[..., Lake], form: str, read: str
) -> None:
    """Otherwise the stream lacks the columns from keys, the metadata and the rescued values until it is restarted."""
    settings = {**PARTS, "payload_column": "line", "mismatches": "rescue", "format": form}
    settings |= {} if form == "text" else {"schema": "id bigint, n struct<x: int> NOT NULL"}
    lake = lake_of(**settings)
    options = options_of(lake.source, read=read, **settings)
    before = S3NotifyDataSource(options).schema()  # type: ignore[arg-type]
    lake.put(f"{EU}a.jsonl", [{"id": 1}])
    lake.ingest()
    found = S3NotifyDataSource(options).schema()  # type: ignore[arg-type]
    assert isinstance(found, StructType)
    expected = before if isinstance(before, StructType) else StructType.fromDDL(before)
    assert [(c.name, c.dataType) for c in expected] == [(c.name, c.dataType) for c in found]


def test_stream_without_fixed_columns_does_not_begin_before_its_table(
    bare_lake: Callable[..., Lake],
) -> None:
    lake = bare_lake()
    for settings in ({}, {"schema": "id bigint", "column_names": "safe"}):
        source = S3NotifyDataSource(options_of(lake.source, read="table", **settings))  # type: ignore[arg-type]
        with pytest.raises(NotFoundError, match=r"no commit yet: .*; or give the option schema, without"):
            source.schema()
