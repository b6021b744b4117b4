"""Converts texts to typed columns.

The results equal the results of pyarrow's CSV reader, but values that fit are kept even if other values do not fit.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.arrow_values import check_held, timestamps
from s3notify_platform.formats.notation import Written
from s3notify_platform.formats.records import ColumnMismatches
from s3notify_platform.formats.rescue import below, fitted
from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.formats.value_patterns import FORMS

_INFINITE: Final = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_BOOLEANS: Final = ("true", "True", "TRUE", "1", "false", "False", "FALSE", "0")


def infinite(texts: pa.Array | pa.ChunkedArray) -> int:
    """Returns the number of infinities among these texts."""
    return pc.sum(pc.match_substring_regex(texts, _INFINITE)).as_py() or 0


def values_of(
    texts: pa.Array, kind: pa.DataType, nulls: Sequence[str], written: Written | None = None
) -> pa.Array:
    """Converts texts to `kind`. `nulls`: texts that are null, except in a string column. `written`: the notation of the
    texts, if it is not the usual one.

    Raises pyarrow's errors if any text does not fit.
    """
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return texts.cast(kind)
    if pa.types.is_nested(kind):
        if pc.any(pc.not_equal(texts, "")).as_py():
            raise pa.ArrowInvalid(f"a text is not a {sql_type(kind)}")
        return pa.nulls(len(texts), kind)
    if pa.types.is_timestamp(kind):
        texts = pc.utf8_trim_whitespace(texts)
    null = pc.is_in(texts, pa.array(nulls, pa.string()))
    if pc.any(null).as_py():
        texts = pc.if_else(null, pa.scalar(None, pa.string()), texts)
    if pa.types.is_timestamp(kind):
        return written.values(texts, kind) if written else timestamps(texts, kind)
    return _parsed(written.plain(texts, kind) if written else texts, kind)


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        if pc.any(pc.invert(pc.is_in(texts.drop_null(), pa.array(_BOOLEANS)))).as_py():
            raise pa.ArrowInvalid("a text is not a boolean")
        return texts.cast(kind)
    if pa.types.is_null(kind):
        if texts.null_count < len(texts):
            raise pa.ArrowInvalid("a text is not null")
        return pa.nulls(len(texts))
    try:
        values = texts.cast(kind)
    except pa.ArrowInvalid:
        values = pc.ascii_trim(texts, " \t").cast(kind)
    check_held([values], lambda: infinite(texts))
    return values


def most_values(
    texts: pa.Array, column: pa.Field, nulls: Sequence[str], written: Written | None = None
) -> tuple[pa.Array, ColumnMismatches | None]:
    """Converts texts to the values of a column. A text that does not fit becomes null and counts as a mismatch.

    Tries the cheaper conversions first. The first conversion reads all texts together. The second conversion leaves out
    each text whose first character cannot begin a value. The last conversion leaves out texts that do not match the
    type's pattern, and finds other mismatches by halving.
    """
    kind, form = column.type, (written.form if written else "") or FORMS.get(column.type.id)
    rest, odd = texts, np.zeros(len(texts), bool)

    def read(some: pa.Array, kind: pa.DataType) -> pa.Array:
        return values_of(some, kind, nulls, written)

    def single(number: int) -> pa.Array:
        odd[number] = True
        return pa.nulls(1, kind)

    def without(looked_at: npt.NDArray[np.int64]) -> pa.Array:
        odd[looked_at[_odd(texts.take(pa.array(looked_at)), form, nulls)]] = True
        return pc.if_else(pa.array(odd), pa.scalar(None, pa.string()), texts)

    try:
        return read(texts, kind), None
    except pa.ArrowException:
        rest = texts if written and written.form else without(_odd_beginnings(texts, kind))
    try:
        values = read(rest, kind)
    except pa.ArrowException:
        rest = without(np.arange(len(texts)))
        values = pa.nulls(len(texts), kind) if pa.types.is_nested(kind) else fitted(rest, kind, read, single)
    if not odd.any():
        return values, None
    found = texts.filter(pa.array(odd)).to_numpy(zero_copy_only=False).tolist()
    return values, ColumnMismatches(path=below("", column.name), places=np.flatnonzero(odd), texts=found)


_BEGINNINGS: Final = np.isin(np.arange(256), list(b"0123456789+-. "))


def _odd_beginnings(texts: pa.Array, kind: pa.DataType) -> npt.NDArray[np.int64]:
    """Returns the numbers of the texts whose first character is unusual for values of this type."""
    if kind.id not in FORMS or pa.types.is_boolean(kind) or pa.types.is_nested(kind):
        return np.zeros(0, np.int64)
    _, bounds, data = texts.buffers()
    bounds = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    filled = np.flatnonzero(bounds[1:] > bounds[:-1])
    first = np.frombuffer(data, np.uint8)[bounds[filled]] if len(filled) else np.zeros(0, np.uint8)
    return filled[~_BEGINNINGS[first]]


def _odd(texts: pa.Array, form: str | None, nulls: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Returns, for each text, true if it does not match the pattern `form`. A `form` of None matches all texts."""
    if form is None:
        return np.zeros(len(texts), bool)
    fitting = pc.or_(pc.match_substring_regex(texts, form), pc.is_in(texts, pa.array(nulls, pa.string())))
    found: npt.NDArray[np.bool_] = ~fitting.fill_null(True).to_numpy(zero_copy_only=False)
    return found
