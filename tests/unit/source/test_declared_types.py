"""Differences between declared types and the table's types are found without a run."""

import json
from typing import Any

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.declared_types import check_declared_types
from s3notify_platform.source.source import Source
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.delta.actions import Protocol
from s3notify_platform.table.known import Known
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.open_table import OpenTable, TableName
from s3notify_platform.table.pinned_schema import NO_SCHEMA, TableSchema, described
from s3notify_platform.table.snapshot import Snapshot
from tests.support.sources import source_of


def columns(**kinds: Any) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def opened(schema: TableSchema) -> OpenTable:
    metadata, _ = described(schema, created_ms=1, table="t")
    manifest = Manifest(table="t", version=1, number=1)
    snapshot = Snapshot(
        version=1, number=1, table="t", manifest=manifest, protocol=Protocol(), metadata=metadata
    )
    name = TableName(source="orders", command=lambda *_: "")
    return OpenTable(name=name, known=Known(table="t"), snapshot=snapshot)


def source(**settings: Any) -> Source:
    return source_of(bucket=S3Config(bucket="b"), name="orders", **settings)


TABLE = TableSchema(source=columns(a="long", b="double"), rows=columns(a="long", b="double", dt="date"))


@pytest.mark.parametrize(
    "settings",
    [
        {"schema": "a bigint NOT NULL, b double COMMENT 'x', c string"},
        {"schema": "a bigint, b interval day"},
        {"schema": "a string -- text"},
        {"schema": "a long", "partition_columns": "dt date"},
        {},
    ],
)
def test_equal_types_and_types_that_only_spark_knows_are_accepted(settings: dict[str, Any]) -> None:
    check_declared_types(source(**settings), opened(TABLE), transformed=False)


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"schema": "a string, b double"}, "schema set orders 'a string'"),
        ({"schema": "a decimal(18,2), b float"}, "schema set orders 'a decimal(18,2), b float'"),
        ({"schema": "a bigint", "partition_columns": "dt string"}, "schema set orders 'dt string'"),
    ],
)
def test_different_types_are_refused_with_the_command(settings: dict[str, Any], command: str) -> None:
    """The message must contain the exact command. If a transform makes the columns, their types may differ from the
    declared types.
    """
    with pytest.raises(UsageError) as refused:
        check_declared_types(source(**settings), opened(TABLE), transformed=False)
    assert f"`s3notify {command}`" in str(refused.value)
    made = TableSchema(source=TABLE.source, rows=columns(a="date", b="string", dt="date"))
    check_declared_types(source(**settings), opened(made), transformed=True)


@pytest.mark.parametrize("before", ["a bigint", "a bigint, b double"])
def test_a_transform_does_not_hide_a_changed_column_that_it_leaves_as_it_is(before: str) -> None:
    """Otherwise each run would fail, and nobody would see it before an object changes. In the table, column `b` has the
    type that the transform makes.
    """
    table = opened(TableSchema(source=TABLE.source, rows=columns(a="long", b="string")))
    check_declared_types(source(schema=before), table, transformed=True)
    with pytest.raises(UsageError, match="`s3notify schema set orders 'a string'`"):
        check_declared_types(source(schema="a string, b float"), table, transformed=True)


@pytest.mark.parametrize("transformed", [False, True])
def test_hints_are_compared_with_the_types_of_the_input(transformed: bool) -> None:
    """If hints were compared with the types of the rows, a transform could hide a changed hint. Then the user
    would not see the error before the first batch.
    """
    table = opened(TableSchema(source=TABLE.source, rows=columns(other="long"), inferred=True))
    check_declared_types(source(schema_hints="a bigint, new date"), table, transformed=transformed)
    with pytest.raises(UsageError, match="schema_hints: column 'a' is bigint in the table and now string"):
        check_declared_types(source(schema_hints="a string"), table, transformed=transformed)


def test_a_table_without_columns_accepts_any_schema() -> None:
    check_declared_types(source(schema="a string"), opened(NO_SCHEMA), transformed=False)
    none = OpenTable(name=TableName(source="orders", command=lambda *_: ""), known=Known(table="t"))
    check_declared_types(source(schema="a string"), none, transformed=False)
