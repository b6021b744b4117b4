"""Compares a source's declared types with the types in its table, before any run. Pure.

Only types that are known without a run are compared. The types in `schema` and `partition_columns` must equal the
table's types. If the source has a transform, `schema` is compared only with the table's columns whose type is still the
parsed type, and `partition_columns` is not compared. The types in `schema_hints` must equal the types with which the
schema was inferred. The first batch finds all other differences.
"""

import json

from s3notify_platform.source.declared_schema import declared_columns
from s3notify_platform.source.source import Source
from s3notify_platform.table.arrow_schema import spark_schema
from s3notify_platform.table.open_table import OpenTable
from s3notify_platform.table.pinned_schema import TableSchema, schema_of
from s3notify_platform.table.schema_change import check_types
from s3notify_platform.table.type_changes import is_same_type


def check_declared_types(source: Source, opened: OpenTable, *, transformed: bool) -> None:
    """Raises `UsageError` if a declared type of a column differs from the column's type in the table.

    The message has the command that changes the type. `transformed`: the source has a transform. No request.
    """
    known = schema_of(opened.snapshot.metadata) if opened.snapshot is not None else None
    if known is None:
        return
    given = source.input
    declared: list[tuple[str, str, str]] = []
    if given.schema_hints and known.inferred:
        hints = given.table_names(spark_schema(given.hints), known.source)
        declared.append(("schema_hints", hints, known.source))
    if given.schema:
        columns = given.table_names(spark_schema(declared_columns(given.schema)), known.source)
        declared.append(("schema", columns, _unchanged(known) if transformed else known.rows))
    if not transformed:
        declared.append(("partition_columns", spark_schema(given.object_columns.paths), known.rows))
    for setting, wanted, pinned in declared:
        check_types(source.name, pinned, wanted, setting=setting)


def _unchanged(known: TableSchema) -> str:
    """Returns the table's columns that have the type with which they were parsed."""
    parsed = {column["name"]: column["type"] for column in json.loads(known.source).get("fields", ())}
    rows = json.loads(known.rows)
    fields = [
        column
        for column in rows.get("fields", ())
        if column["name"] in parsed and is_same_type(parsed[column["name"]], column["type"])
    ]
    return json.dumps({**rows, "fields": fields})
