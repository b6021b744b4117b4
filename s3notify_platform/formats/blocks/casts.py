"""Casts columns of binary formats to the schema's types, at any depth, and finds the values that do not fit.

A value fits if the cast loses nothing: a number must not be rounded to a decimal or an integer, and a time must be
midnight to become a date. The value of a floating point number is that of its shortest decimal text, like 0.1. There
are two exceptions, as in texts: a cast to floating point may round decimals, and times are cut to microseconds, the
precision of Spark. A cast that requires a guess, like the cast of a number to a time, is refused. String and binary
columns accept lists, structs and maps as JSON texts: maps as lists of pairs, and bytes in hexadecimal.
"""

from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.arrow_values import (
    check_finite,
    check_years,
    entries,
    entry_of,
    has_items,
    infinities,
    is_bytes,
    list_offsets,
    plain,
)
from s3notify_platform.formats.rescue import fitted, text_of
from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.formats.text_values import most_values, values_of
from s3notify_platform.kernel.limits import MAX_DECODED_BYTES

Odd = npt.NDArray[np.bool_]
"""True for each value that does not fit."""

_ROUNDED_EXACTLY: Final = {np.dtype("f8"): (2.0**50, 22), np.dtype("f4"): (2.0**21, 8)}
"""Two limits for each floating point type. A number is rounded exactly to a decimal if the decimal's digits, read as an
integer, are below the first limit, and the decimal's scale is at most the second limit.
"""


def cast_most(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Odd]:
    """Casts a column. If any part of a value does not fit, the whole value is null in the result.

    The common mismatches are found for a whole column at once. Other mismatches are found by halving, which costs about
    50 µs for each value that does not fit.
    """
    fit, odd = _cast_most(values, kind)
    return _without(fit, odd), odd


def _cast_most(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Odd]:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    found = values.type
    if pa.types.is_struct(found) and pa.types.is_struct(kind) and kind.num_fields:
        return _of_structs(values, kind)
    if pa.types.is_map(found) and pa.types.is_map(kind):
        lists, odd = cast_most(entries(values), pa.list_(entry_of(kind)))
        keys, items = lists.flatten().flatten()
        mask = lists.is_null()
        return pa.MapArray.from_arrays(list_offsets(lists), keys, items, type=kind, mask=mask), odd
    if has_items(found) and pa.types.is_list(kind):
        items, odd_items = _cast_most(values.flatten(), kind.value_type)
        odd = _none_of(values)
        odd[pc.list_parent_indices(values).to_numpy(zero_copy_only=False)[odd_items]] = True
        return pa.ListArray.from_arrays(list_offsets(values), items, type=kind, mask=values.is_null()), odd
    return _of_scalars(values, kind)


def _of_structs(values: pa.Array, kind: pa.StructType) -> tuple[pa.Array, Odd]:
    """Casts structs by the names of their fields. If a name occurs twice, no struct fits."""
    names = [part.name for part in values.type]
    if len({*names}) < len(names):
        return pa.nulls(len(values), kind), _valid(values)
    children, odd, parts = dict(zip(names, values.flatten(), strict=True)), _none_of(values), []
    for part in kind:
        if part.name not in children:
            parts.append(pa.nulls(len(values), part.type))
            continue
        fit, odd_parts = _cast_most(children[part.name], part.type)
        parts.append(fit)
        odd |= odd_parts
    return pa.StructArray.from_arrays(parts, fields=[*kind], mask=values.is_null()), odd


def _of_scalars(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Odd]:
    if pa.types.is_binary(kind) and not is_bytes(values.type):
        texts, odd = _of_scalars(values, pa.string())
        return texts.cast(kind), odd
    if pa.types.is_string(kind) and (pa.types.is_nested(values.type) or _has_unknown_zone(values.type)):
        return _as_texts(values)
    try:
        return _cast(values, kind), _none_of(values)
    except pa.ArrowException:
        valid = _valid(values)
    try:
        _cast(values.slice(0, 0), kind)
    except pa.ArrowException:
        return pa.nulls(len(values), kind), valid  # no value of this type fits
    if _is_text(values.type):
        fit, mismatches = most_values(values.cast(pa.string()), pa.field("", kind), ())
        odd = _none_of(values)
        odd[mismatches.places if mismatches else []] = True
        return fit, odd
    odd = _changed(values, kind)

    def single(number: int) -> pa.Array:
        odd[number] = valid[number]
        return pa.nulls(1, kind)

    return fitted(_without(values, odd), kind, _cast, single), odd


def _as_texts(values: pa.Array) -> tuple[pa.Array, Odd]:
    """Converts values to texts. The values beyond `MAX_DECODED_BYTES` of text do not fit: a text has the names of all
    fields, so the texts of a small file may need much memory.
    """
    odd, texts, left = _valid(values), list[str | None](), MAX_DECODED_BYTES
    for number, value in enumerate(values):
        text = text_of(plain(value)) if value.is_valid else None
        left -= len(text or "")
        if left < 0:
            break
        odd[number] = False
        texts.append(text)
    return pa.array(texts + [None] * (len(values) - len(texts)), pa.string()), odd


def _has_unknown_zone(kind: pa.DataType) -> bool:
    if not pa.types.is_timestamp(kind):
        return False
    try:
        pa.array([0], kind).cast(pa.string())
    except pa.ArrowException:
        return True
    return False


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts all values, or raises."""
    found = values.type
    if pa.types.is_null(found):
        return pa.nulls(len(values), kind)
    if found == kind:
        check_years(values)
        return values
    if _is_text(found) and not pa.types.is_nested(kind):
        return values_of(values.cast(pa.string()), kind, ())
    if not pa.types.is_string(kind) and (
        pa.types.is_temporal(kind) != pa.types.is_temporal(found)
        or (pa.types.is_boolean(kind) and not pa.types.is_boolean(found))
    ):
        raise pa.ArrowInvalid(f"{sql_type(found)} is not a {sql_type(kind)}")  # a cast would have to guess
    by_text = pa.types.is_floating(found) and pa.types.is_decimal(kind)
    if (by_text or pa.types.is_date(kind)) and _changed(values, kind).any():
        raise pa.ArrowInvalid(f"a cast to {sql_type(kind)} would change a value")
    if by_text:
        return values_of(values.cast(pa.string()), kind, ())
    if pa.types.is_integer(found) and pa.types.is_decimal(kind):
        # A cast compares the digits that the two types allow, not the digits of the values.
        values = pc.cast(values, pa.decimal128(20, 0))
    fit = pc.cast(values, options=pc.CastOptions(target_type=kind, allow_time_truncate=True))
    if pa.types.is_float32(kind):
        check_finite(infinities(fit), lambda: infinities(values))
    check_years(fit)
    return fit


def _changed(values: pa.Array, kind: pa.DataType) -> Odd:
    """Returns which values a cast to `kind` surely changes. Some of the other values may not fit, either."""
    read = values.type
    try:
        if pa.types.is_floating(read) and pa.types.is_decimal(kind):
            return _rounded(values.to_numpy(zero_copy_only=False), kind) & _valid(values)
        if pa.types.is_timestamp(read) and pa.types.is_date(kind):
            values = pc.local_timestamp(values) if read.tz else values
        elif pa.types.is_integer(read):
            values = values.cast(pa.decimal128(20, 0))
        elif not (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
            return _none_of(values)
        there = pc.cast(values, options=pc.CastOptions.unsafe(kind))
        back = pc.cast(there, options=pc.CastOptions.unsafe(values.type))
        changed = pc.not_equal(back, values)
        if pa.types.is_decimal(values.type) and pa.types.is_decimal(kind):
            limit = pa.scalar(Decimal(10) ** (kind.precision - kind.scale))
            changed = pc.or_(changed, pc.greater_equal(pc.abs(values), limit))
    except pa.ArrowException:
        return _none_of(values)
    found: Odd = changed.fill_null(False).to_numpy(zero_copy_only=False)
    return found.copy()


def _rounded(numbers: npt.NDArray[np.floating], kind: pa.Decimal128Type) -> Odd:
    """Returns which numbers surely have more digits than `kind`."""
    wide = numbers.astype(np.float64)
    size = np.abs(wide)
    found: Odd = ~(size < 10.0 ** (kind.precision - kind.scale))
    digits, scale = _ROUNDED_EXACTLY.get(numbers.dtype, (0.0, 0))
    if kind.scale <= scale:
        with np.errstate(invalid="ignore", over="ignore"):
            found |= (size * 10.0**kind.scale < digits) & (
                np.round(wide, kind.scale).astype(numbers.dtype) != numbers
            )
    return found


def _without(values: pa.Array, odd: Odd) -> pa.Array:
    """Returns the values, with null in place of each value that `odd` marks."""
    return values.take(pa.array(np.arange(len(values)), mask=odd)) if odd.any() else values


def _valid(values: pa.Array) -> Odd:
    found: Odd = values.is_valid().to_numpy(zero_copy_only=False).copy()
    return found


def _none_of(values: pa.Array) -> Odd:
    return np.zeros(len(values), bool)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
