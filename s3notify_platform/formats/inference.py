"""Infers one schema, with Spark's types, from the schemas of sample objects. Pure.

The types form a join-semilattice. So the type of a column depends neither on the order of the objects nor on their
grouping into tasks. (Columns, and the fields of a struct, are in the order in which they are found.) The rules:

- Any type wins over null.
- Two lists, structs or maps are joined part by part.
- Integers become the wider integer. Integers and decimals become a decimal with all digits of both.
- All numbers beside floating point numbers become double. But decimals with more digits than `_DIGITS_IN_DOUBLE` become
  string, because a double would lose digits.
- Dates become timestamps, and timestamps without a zone become timestamps in UTC.
- Any other two types become string, or binary if one of them is binary. So a list beside a text becomes string. Such a
  column accepts all values, as JSON texts: one object with unusual values must not make other objects' rows rejects.
"""

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from s3notify_platform.formats.registry import is_name
from s3notify_platform.kernel.limits import MAX_DECIMAL_DIGITS, MAX_DEPTH


def infer(schemas: Iterable[pa.Schema], taken: Iterable[str] = ()) -> pa.Schema | None:
    """Returns one nullable schema for the schemas of sample objects (`Format.schemas`), or for results of `joined`;
    None if there is no column.

    The types that a column has in `schemas` are joined to one type by the rules of this module. A type that Spark lacks
    becomes the nearest wider type of Spark. Columns that are always null become strings. A column is left out if it is
    nested too deeply, if its name is not allowed (`registry.is_name`), or if its name is in `taken`, regardless of
    case. Records with a value in such a column are rejected or rescued later.
    """
    found = joined(schemas, taken)
    return found and pa.schema([column.with_type(_filled(column.type)) for column in found])


def joined(schemas: Iterable[pa.Schema], taken: Iterable[str] = ()) -> pa.Schema | None:
    """Returns one schema that can take the place of these schemas in `infer`; None if there is no column."""
    refused = {name.casefold() for name in taken}
    fields = _joined_fields(
        column.with_type(_spark_type(column.type))
        for schema in schemas
        for column in schema
        if is_name(column.name) and column.name.casefold() not in refused and not _is_deep(column.type)
    )
    return pa.schema(fields) if fields else None


def _is_deep(kind: pa.DataType) -> bool:
    """True if a type has so many levels that a recursive function could fail. A map has two levels in Arrow."""
    levels, inner = 0, [kind]
    while inner and levels <= 2 * MAX_DEPTH:
        inner = [
            each.field(n).type for each in inner if pa.types.is_nested(each) for n in range(each.num_fields)
        ]
        levels += 1
    return bool(inner)


def _joined_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    found: dict[str, pa.DataType] = {}
    for part in fields:
        found[part.name] = _join(found.get(part.name, pa.null()), part.type)
    return [pa.field(name, kind) for name, kind in found.items()]


def _join(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one.equals(other):
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_join(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(_joined_fields([*one, *other]))
    if pa.types.is_map(one) and pa.types.is_map(other):
        return pa.map_(_join(one.key_type, other.key_type), _join(one.item_type, other.item_type))
    if _is_number(one) and _is_number(other):
        return _join_numbers(one, other)
    if one in _TIMES and other in _TIMES:
        return max(one, other, key=_TIMES.index)
    return pa.binary() if pa.binary() in (one, other) else pa.string()


def _join_numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    exact = [kind for kind in (one, other) if not pa.types.is_floating(kind)]
    if all(map(pa.types.is_integer, exact)):
        return max(exact, key=lambda kind: kind.bit_width) if len(exact) == 2 else pa.float64()
    before, after = map(max, zip(*map(_digits, exact), strict=True))
    if len(exact) == 2:
        return pa.decimal128(before + after, after) if before + after <= MAX_DECIMAL_DIGITS else pa.string()
    fits = before <= _DIGITS_IN_DOUBLE[0] and after <= _DIGITS_IN_DOUBLE[1]
    return pa.float64() if fits else pa.string()


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Returns the numbers of digits before and after the point."""
    if pa.types.is_integer(kind):
        return len(str(1 << (kind.bit_width - 1))), 0
    return kind.precision - kind.scale, kind.scale


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


_TIMES: Final = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"))

_DIGITS_IN_DOUBLE: Final = (20, 18)
"""Maximum numbers of digits before and after the point. A decimal within these limits becomes double beside a double.

An integer of 64 bits is also within the limits, and also becomes double beside a double. So the order in which these
three types are joined does not matter.
"""


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """Returns the nearest type that Spark has; string if there is no such type. Null, and a struct without fields, stay
    as they are.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _spark_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pa.types.is_nested(kind):
        return _spark_nested(kind)
    for holds, spark in _SPARK_TYPES:
        if holds(kind):
            return spark or kind
    return pa.string()


def _spark_nested(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _spark_type(part.type)) for part in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    return pa.string()


_SPARK_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType | None], ...]] = (
    (pa.types.is_null, None),
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


def _filled(kind: pa.DataType) -> pa.DataType:
    """Replaces null by string, and adds a string field to each struct without fields: Parquet has neither."""
    if pa.types.is_struct(kind):
        parts = [pa.field(part.name, _filled(part.type)) for part in kind]
        return pa.struct(parts or [pa.field("_", pa.string())])
    if pa.types.is_list(kind):
        return pa.list_(_filled(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_filled(kind.key_type), _filled(kind.item_type))
    return pa.string() if pa.types.is_null(kind) else kind
