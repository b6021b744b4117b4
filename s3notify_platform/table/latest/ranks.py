"""Makes two texts of a row: its key, and its rank. The rank decides which row of a key is newer. Pure.

Ranks are compared character by character, so Arrow, Spark, Parquet and Python give the same order. A rank joins these
parts:

| part | text |
|---|---|
| each column of `order_by` | `1` and a text that sorts like the value, or `0` for null |
| the object's `_modified` | like a column of `order_by` |
| the object's key | like a text value |
| `_offset` | like a whole number |

| value | text |
|---|---|
| a whole number, date, time or boolean | 16 hexadecimal digits: its distance from the least 64-bit integer |
| a decimal | 32 hexadecimal digits: the distance of its unscaled integer from the least 128-bit integer |
| a float | 16 hexadecimal digits; -0.0 equals 0.0, and NaN is last, as in Spark |
| a text | its characters, and an end mark that sorts before all characters |

So null is older than all values. Two rows have the same rank only if a transform made both from one record, with the
same values in `order_by`. In this case, either row may count as the newer row.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES

_TOP: Final = np.uint64(1 << 63)

_END: Final = "\x00"
_NUL: Final = "\x00\x7f"
"""`_END` is the end mark of a text. Inside a text, `_NUL` replaces the character NUL. A digit follows each end mark.
Digits sort before the second character of `_NUL`, so `_NUL` sorts after an end mark.
"""

_HASHED: Final = "blake3:"

Words = npt.NDArray[np.uint64]


def check_key(name: str, kind: pa.DataType) -> None:
    """Raises `UsageError` for a column whose values cannot be keys."""
    if not (pa.types.is_integer(kind) or _is_text(kind) or _is_time(kind) or _is_exact(kind)):
        raise UsageError(
            f"latest: key column {name!r} is {kind}: use whole numbers, decimals, booleans, texts, dates or times"
        )


def check_order(name: str, kind: pa.DataType) -> None:
    """Raises `UsageError` for a column whose values have no order."""
    if _order_of(kind) is None:
        raise UsageError(
            f"latest: order_by column {name!r} is {kind}: use numbers, booleans, texts, dates or times"
        )


def key_texts(columns: Sequence[pa.Array]) -> pa.StringArray:
    """Returns the key of each row, or null if one of the key's columns is null in the row. A key longer than
    `MAX_KEY_BYTES` becomes a hash.

    With one column, the key is the column's value as text. With several columns, the texts of the values are joined by
    `|`. In these texts, a backslash escapes `|` and backslashes.
    """
    texts = [_plain(column) for column in columns]
    if len(texts) > 1:
        escaped = [
            pc.replace_substring(pc.replace_substring(each, "\\", "\\\\"), "|", "\\|") for each in texts
        ]
        texts = [pc.binary_join_element_wise(*escaped, "|")]
    (found,) = texts
    long = pc.fill_null(pc.greater(pc.binary_length(found), MAX_KEY_BYTES), False)
    if pc.any(long).as_py():
        hashed = [
            None
            if text is None or len(text.encode()) <= MAX_KEY_BYTES
            else _HASHED + blake3(text.encode()).hexdigest()
            for text in found.to_pylist()
        ]
        found = pc.if_else(long, pa.array(hashed, pa.string()), found)
    return found


def rank_texts(
    order: Sequence[pa.Array], modified: pa.Array, key: pa.Array, offset: pa.Array
) -> pa.StringArray:
    """Returns the rank of each row. `order`: the columns of `order_by`."""
    parts = [_with_null(each) for each in (*order, modified)]
    return pc.binary_join_element_wise(*parts, _ended(key), _hex(_of_numbers(offset)), "")


def object_key_of(rank: str, kinds: Sequence[pa.DataType]) -> str:
    """Returns the key of the object from which a row with this rank was read. `kinds`: the types of the `order_by`
    columns.
    """
    at = 0
    for kind in (*kinds, pa.timestamp("us", "UTC")):
        if rank[at] == "0":
            at += 1
        elif _is_text(kind):
            at = _end_of(rank, at + 1)
        else:
            at += 1 + (32 if pa.types.is_decimal(kind) else 16)
    return rank[at : _end_of(rank, at) - 1].replace(_NUL, "\x00")


def _end_of(rank: str, start: int) -> int:
    """Returns the position after the text that begins at `start`."""
    at = rank.index(_END, start)
    while rank[at : at + 2] == _NUL:
        at = rank.index(_END, at + 2)
    return at + 1


# Kinds of columns


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(kind) or pa.types.is_boolean(kind))


def _order_of(kind: pa.DataType) -> Callable[[pa.Array], pa.StringArray] | None:
    """Returns a function that converts values without null to sortable texts."""
    if _is_text(kind):
        return _ended
    if pa.types.is_decimal128(kind):
        return _of_decimals
    if pa.types.is_floating(kind):
        return lambda column: _hex(_of_floats(column))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_time(kind):
        return lambda column: _hex(_of_numbers(column))
    return None


def _plain(column: pa.Array) -> pa.StringArray:
    if pa.types.is_timestamp(column.type):
        zone = "Z" if column.type.tz else ""
        return pc.strftime(column.cast(pa.timestamp("us", column.type.tz)), f"%Y-%m-%dT%H:%M:%S{zone}")
    return column.cast(pa.string())


# Order


def _with_null(column: pa.Array) -> pa.StringArray:
    of = _order_of(column.type)
    assert of is not None, "the type was checked when the table was made"
    if column.null_count == len(column):
        return pa.array(["0"] * len(column), pa.string())
    filled = column
    if column.null_count:
        some = column[pc.index(pc.is_valid(column), True).as_py()]
        filled = pc.fill_null(column, some)
    texts = pc.binary_join_element_wise("1", of(filled), "")
    return pc.if_else(pc.is_null(column), "0", texts) if column.null_count else texts


def _ended(column: pa.Array) -> pa.StringArray:
    return pc.binary_join_element_wise(pc.replace_substring(column.cast(pa.string()), "\x00", _NUL), _END, "")


def _of_numbers(column: pa.Array) -> Words:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    elif pa.types.is_date(column.type):
        column = column.cast(pa.date32())
    if _is_time(column.type):
        column = column.view(pa.int64() if pa.types.is_timestamp(column.type) else pa.int32())
    numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers).view(np.uint64) ^ _TOP


def _of_floats(column: pa.Array) -> Words:
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
    values = np.where(np.isnan(values), np.nan, values)
    words = np.ascontiguousarray(values).view(np.uint64)
    return np.where(words & _TOP, ~words, words | _TOP)


def _of_decimals(column: pa.Array) -> pa.StringArray:
    halves = np.frombuffer(column.buffers()[1], dtype="<u8").reshape(-1, 2)
    halves = halves[column.offset : column.offset + len(column)]
    return pc.binary_join_element_wise(_hex(halves[:, 1] ^ _TOP), _hex(halves[:, 0]), "")


def _hex(words: Words) -> pa.StringArray:
    """Returns 16 hexadecimal digits for each 64-bit word."""
    digits = words.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(offsets), pa.py_buffer(digits))
