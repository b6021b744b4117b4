"""A source's declared types against those of its table, before anything runs. Pure.

Types are compared where nothing has to be run for it: those of `schema` and `partition_columns` are the table's unless
a transform makes its columns, those of `schema_hints` are what an inferred schema reads by. All else is found out by
the first batch.
"""

from s3notify_platform.source.declared_schema import declared_columns
from s3notify_platform.source.source import Source
from s3notify_platform.table.arrow_schema import spark_schema
from s3notify_platform.table.open_table import OpenTable
from s3notify_platform.table.pinned_schema import schema_of
from s3notify_platform.table.schema_change import check_types


def check_declared_types(source: Source, opened: OpenTable, *, transformed: bool) -> None:
    """`UsageError`: the source declares another type for a column than its table has, with the command that changes it.

    `transformed`: it has a transform. No request.
    """
    known = schema_of(opened.snapshot.metadata) if opened.snapshot is not None else None
    if known is None:
        return
    given = source.input
    declared: list[tuple[str, str, str]] = []
    if given.schema_hints and known.inferred:
        hints = given.table_names(spark_schema(given.hints), known.source)
        declared.append(("schema_hints", hints, known.source))
    if not transformed:
        if given.schema:
            columns = spark_schema(declared_columns(given.schema))
            declared.append(("schema", given.table_names(columns, known.source), known.rows))
        declared.append(("partition_columns", spark_schema(given.object_columns.paths), known.rows))
    for setting, wanted, pinned in declared:
        check_types(source.name, pinned, wanted, setting=setting)
