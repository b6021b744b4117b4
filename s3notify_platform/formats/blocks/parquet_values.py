"""Casts the columns of Parquet files to the schema's types, by column name. Finds mismatches, and fields without a
column.

Times are cut to microseconds, the precision of Spark. A cast that requires a guess, like the cast of a number to a
time, is refused.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.arrow_values import (
    check_finite,
    check_years,
    infinities,
    timestamps,
    unnamed_columns,
)
from s3notify_platform.formats.records import Parsed, Reject, Target, no_rows, reason_of
from s3notify_platform.formats.rescue import (
    Rescued,
    Tally,
    accepting,
    below,
    count,
    fitted,
    kinds_of,
    shortened,
    text_of,
    unnamed_in,
)
from s3notify_platform.formats.sql_types import sql_type


def fit_rows(table: pa.Table, target: Target) -> Parsed:
    """Casts the rows of an Arrow table to the target, as rows of object 0.

    If a value does not fit, returns one reject for the whole table. Never raises for bad data.
    """
    found = no_rows(target, [])
    try:
        found.table = _fit(table, target, found)
    except Exception as error:  # noqa: BLE001 - values may raise any error, even for lack of memory
        reason = reason_of(error) or type(error).__name__
        found.rejects.append(Reject(index=0, offset=0, reason=reason, raw=b""))
        return found
    found.index, found.offset = np.zeros(table.num_rows, np.int64), np.arange(table.num_rows)
    return found


def _fit(table: pa.Table, target: Target, found: Parsed) -> pa.Table:
    """Returns the rows in the target's columns. Adds the counts of mismatches and of unnamed values to `found`."""
    schema = target.schema
    unnamed, new_fields = unnamed_columns(table, schema)
    for path, places in unnamed.items():
        count(found.unnamed, 0, [path], len(places))
    if target.inferred and new_fields is not None:
        found.new_fields.append(new_fields)
    rescued: dict[int, Rescued] = {}
    if unnamed and target.inferred and not target.rescue:
        raise pa.ArrowInvalid(target.unknown(next(iter(unnamed))))
    columns = [_column(table, column, rescued, target, found.mismatches) for column in schema]
    if target.rescue:
        _rescue_unnamed(table, unnamed, schema, rescued)
    texts = [rescued.get(row) for row in range(table.num_rows)] if rescued else None
    return target.rows(pa.Table.from_arrays(columns, schema=schema), texts)


def fit_by_halves(table: pa.Table, target: Target) -> Iterator[tuple[int, Parsed]]:
    """Yields the rows of an Arrow table in parts, and with each part the number of its first row.

    A row that does not fit is a reject.
    """
    waiting = [(0, table)]
    while waiting:
        first, part = waiting.pop()
        found = fit_rows(part, target)
        if not found.rejects or part.num_rows == 1:
            yield first, found
        else:
            half = part.num_rows // 2
            waiting += [(first + half, part.slice(half)), (first, part.slice(0, half))]


def _column(
    table: pa.Table, column: pa.Field, rescued: dict[int, Rescued], target: Target, mismatches: Tally
) -> pa.Array:
    if table.schema.get_field_index(column.name) < 0:
        return pa.nulls(table.num_rows, column.type)
    values, path = table[column.name].combine_chunks(), below("", column.name)

    def single(number: int) -> pa.Array:
        if not values[number].is_valid:  # a null fits, even if no value of this type can be cast
            return pa.nulls(1, column.type)
        count(mismatches, 0, [path])
        rescued.setdefault(number, Rescued()).mismatches[path] = text_of(_plain(values[number]))
        return pa.nulls(1, column.type)

    try:
        return _cast(values, column.type)
    except pa.ArrowException as error:
        if not target.rescue:
            count(mismatches, 0, [path])
            # No text stands for a struct, a list or bytes in a column of texts, so no type is certain to accept them.
            scalar = not any(
                pa.types.is_nested(kind) or _is_bytes(kind) for kind in (values.type, column.type)
            )
            fraction = pa.types.is_floating(values.type)
            remedy = accepting(path if scalar else "", target.schema, target.name, fraction)
            raise pa.ArrowInvalid(
                f"column {column.name!r} does not fit {sql_type(column.type)}: {shortened(str(error))}{remedy}"
            ) from error
    return fitted(values, column.type, _cast, single)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    found = values.type
    if pa.types.is_string(found) and pa.types.is_timestamp(kind):
        return timestamps(values, kind)
    if (pa.types.is_temporal(kind) and not (pa.types.is_temporal(found) or _is_text(found))) or (
        pa.types.is_boolean(kind) and not (pa.types.is_boolean(found) or _is_text(found))
    ):
        raise pa.ArrowInvalid(f"{sql_type(found)} is not a {sql_type(kind)}")  # a cast would have to guess
    if pa.types.is_integer(found) and pa.types.is_decimal(kind):
        # A cast compares the digits that the two types allow, not the digits of the values.
        values = pc.cast(values, pa.decimal128(20, 0))
    if pa.types.is_float32(kind):
        check_finite(infinities(pc.cast(values, kind)), lambda: infinities(values))
    if pa.types.is_nested(found) and (twin := _twin_in(found)):
        raise pa.ArrowInvalid(f"field {twin!r} occurs twice")  # pyarrow's cast drops one of the two fields
    fit = pc.cast(values, options=pc.CastOptions(target_type=kind, allow_time_truncate=True))
    check_years(fit)
    return fit


def _twin_in(kind: pa.DataType) -> str:
    """Returns a name that two fields of the same struct have, at any depth; "" if there is none."""
    if not pa.types.is_nested(kind):
        return ""
    parts = [kind.field(number) for number in range(kind.num_fields)]
    names = [part.name for part in parts] if pa.types.is_struct(kind) else []
    twin = next((name for name in names if names.count(name) > 1), "") if len({*names}) < len(names) else ""
    return twin or next(filter(None, (_twin_in(part.type) for part in parts)), "")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _rescue_unnamed(
    table: pa.Table, unnamed: dict[str, np.ndarray], schema: pa.Schema, rescued: dict[int, Rescued]
) -> None:
    """Adds to `rescued` all values of fields that `schema` lacks."""
    rows = np.unique(np.concatenate(list(unnamed.values()))).tolist() if unnamed else []
    kinds = kinds_of(schema)
    for column in table.schema:
        if column.name in kinds and not pa.types.is_nested(column.type):
            continue
        values = table[column.name].combine_chunks()
        for row in rows:
            found = unnamed_in({column.name: _plain(values[row])}, kinds, "")
            rescued.setdefault(row, Rescued()).unnamed |= {path: text_of(value) for path, value in found}


def _plain(value: pa.Scalar) -> Any:
    """Converts an Arrow scalar to a Python value.

    Times become texts: Python has fewer years, zones and digits. A struct in which two fields have the same name
    becomes a list of pairs.
    """
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_temporal(kind):
        return _text_of_time(value)
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar | pa.UnionScalar | pa.RunEndEncodedScalar):
        return _plain(value.value)
    if pa.types.is_struct(kind):
        pairs = [(part.name, _plain(value[number])) for number, part in enumerate(kind)]
        return dict(pairs) if len({name for name, _ in pairs}) == len(pairs) else pairs
    if pa.types.is_nested(kind):
        items = [_plain(item) for item in value.values]
        return [[*pair.values()] for pair in items] if pa.types.is_map(kind) else items
    return value.as_py()


def _text_of_time(value: pa.Scalar) -> str:
    try:
        return str(value.cast(pa.string()))
    except pa.ArrowException:  # an unknown zone
        if not pa.types.is_timestamp(value.type):
            return str(value)
        return f"{pa.scalar(value.value, pa.timestamp(value.type.unit)).cast(pa.string())} {value.type.tz}"
