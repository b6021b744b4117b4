"""Infers one schema, with Spark's types, from the schemas of sample objects. Pure.

Timestamps without a zone in text formats are UTC.
"""

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from s3notify_platform.formats.base import Format
from s3notify_platform.formats.registry import is_name
from s3notify_platform.formats.text.text_format import TextFormat


def infer(samples: Iterable[tuple[Format, pa.Schema]], taken: Iterable[str] = ()) -> pa.Schema | None:
    """Returns one nullable schema for the schemas that `Format.schemas` returned for sample objects; None if there is
    no column.

    The type of a column is the widest of its types in the samples. If two types have no common type,
    `Format.common_type` decides, and values that do not fit are rejected later. Types that Spark lacks become their
    nearest wider type; columns that are always null become strings. A column is left out if its name is not allowed
    (`registry.is_name`), or is in `taken`, regardless of case. Records with a value in such a column are rejected or
    rescued later.
    """
    return _in_spark_types(_widest(samples, taken))


def new_fields(
    schemas: Iterable[pa.Schema], form: Format | None, taken: Iterable[str] = ()
) -> pa.Schema | None:
    """Returns the fields by which a schema must be widened, with types as in `infer`.

    `schemas`: the fields that were found in objects and are missing from the table's schema. Returns None if there is
    no field with an allowed name. `form`: the objects' format; None for any format.
    """
    return _in_spark_types(_widest(((form, schema) for schema in schemas), taken))


def _widest(schemas: Iterable[tuple[Format | None, pa.Schema]], taken: Iterable[str]) -> dict[str, pa.Field]:
    refused = {name.casefold() for name in taken}
    columns: dict[str, pa.Field] = {}
    for form, schema in schemas:
        for column in schema:
            if not is_name(column.name) or column.name.casefold() in refused:
                continue
            found = column.with_type(_zoned(column.type)) if isinstance(form, TextFormat) else column
            known = columns.get(column.name, found)
            columns[column.name] = known.with_type(_wider(known.type, found.type, form))
    return columns


def _wider(known: pa.DataType, found: pa.DataType, form: Format | None) -> pa.DataType:
    one, other = pa.schema([("_", known)]), pa.schema([("_", found)])
    try:
        return pa.unify_schemas([one, other], promote_options="permissive").field(0).type
    except pa.ArrowException:
        return form.common_type(known, found) if form else known


def _in_spark_types(columns: dict[str, pa.Field]) -> pa.Schema | None:
    fields = [pa.field(name, spark_type(column.type)) for name, column in columns.items()]
    return pa.schema(fields) if fields else None


def _zoned(kind: pa.DataType) -> pa.DataType:
    """Returns the type with a zone in all its timestamps.

    The JSON reader infers timestamps with a zone as timestamps without one.
    """
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_zoned(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_zoned(kind.value_type))
    return kind


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Returns the nearest type that Spark has; string if there is no such type."""
    if isinstance(kind, pa.BaseExtensionType):
        return spark_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_nested(kind):
        return _spark_nested(kind)
    for holds, spark in _SPARK_TYPES:
        if holds(kind):
            return spark or kind
    return pa.string()


def _spark_nested(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        # Parquet has no struct without fields.
        fields = [pa.field(part.name, spark_type(part.type)) for part in kind]
        return pa.struct(fields or [pa.field("_", pa.string())])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(spark_type(kind.key_type), spark_type(kind.item_type))
    return pa.string()


_SPARK_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType | None], ...]] = (
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_unsigned_integer, pa.int64()),
    (lambda kind: bool(pa.types.is_timestamp(kind)) and kind.tz is None, pa.timestamp("us")),
    (pa.types.is_timestamp, pa.timestamp("us", tz="UTC")),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date, pa.date32()),
    (lambda kind: "binary" in str(kind), pa.binary()),
    (pa.types.is_boolean, None),
    (pa.types.is_integer, None),
    (pa.types.is_floating, None),
    (pa.types.is_decimal128, None),
)
"""The type that Spark uses for an Arrow type; None means the type itself."""
