"""Converts schemas that a source declares as Spark DDL."""

import json
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from s3notify_platform.formats.registry import check_schema
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.source import Source
from s3notify_platform.spark.failures import JOB_ERRORS, reason_of
from s3notify_platform.spark.spark_versions import to_arrow_schema


def parse_schema(declared: str, source: Source) -> StructType:
    """Parses a declared schema. Raises `UsageError` for invalid DDL, and for types that the format does not support."""
    whose = f"schema {declared!r} of source {source.name!r}"
    try:
        schema = StructType.fromDDL(declared)
        if not isinstance(schema, StructType):
            raise UsageError(f"{whose}: give columns, like 'id bigint, name string'")
        columns = to_arrow_schema(schema)
        if any(_has_variant(column.dataType) for column in schema):
            raise UsageError(f"{whose}: a variant is not supported; declare string")
    except JOB_ERRORS as error:
        raise UsageError(f"{whose} does not parse: {reason_of(error)}") from error
    check_schema(columns, source.input.format)
    return schema


def hinted(found: StructType, source: Source) -> StructType:
    """Returns the inferred columns with the types of the source's hints, then hinted columns that were not inferred.

    If no column was inferred, returns no columns.
    """
    hints = {column.name.casefold(): column for column in from_arrow_schema(source.input.hints)}
    columns = [StructField(c.name, hints.pop(c.name.casefold(), c).dataType) for c in found]
    return StructType([*columns, *hints.values()]) if columns else found


def object_columns(source: Source, data: Iterable[StructField]) -> list[StructField]:
    """Returns the columns that rows get from their object (`source.object_columns`).

    Raises `UsageError` if `data` has a column with one of these names.
    """
    own = source.input.object_columns
    own.check_apart(column.name for column in data)
    said = {name: f"From the part {name}=... of the key" for name in own.paths.names}
    said |= dict.fromkeys(own.payload.names, "The record that the row is from, as it stands in its object")
    return [
        StructField(c.name, c.dataType, metadata={"comment": said[c.name]}) if c.name in said else c
        for c in from_arrow_schema(own.schema)
    ]


def json_schema(text: str) -> StructType:
    """Parses a Spark schema from its JSON."""
    return StructType.fromJson(json.loads(text))


def arrow_schema(columns: StructType) -> pa.Schema:
    """Returns the Arrow schema of records that are parsed with these columns."""
    data = to_arrow_schema(columns, check_names=True)
    return pa.schema([column.with_nullable(True) for column in data])


def _has_variant(kind: DataType) -> bool:
    match kind:
        case VariantType():
            return True
        case StructType():
            return any(_has_variant(part.dataType) for part in kind)
        case ArrayType():
            return _has_variant(kind.elementType)
        case MapType():
            return _has_variant(kind.keyType) or _has_variant(kind.valueType)
        case _:
            return False
