"""Checks JSON records quickly: one pattern for a schema is matched with many records together.

The check only finds suspect records. In rare cases, the check suspects a record that the JSON reader accepts, or
accepts a record that the reader refuses, for example with surplus commas or February 30.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.notation import USUAL, Notation
from s3notify_platform.formats.records import Records
from s3notify_platform.formats.rescue import below
from s3notify_platform.formats.value_patterns import DATE, TIMESTAMP

_AT_ONCE: Final = 50
"""Maximum number of columns in one pattern: a larger pattern is slower than several small ones."""

_W: Final = r"[ \t\r\n]*"
_STRING: Final = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'
_PLAIN: Final = r'[^"\\\x00-\x1f]'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"


class Checker:
    """Checks that the values of records have the types of `schema`.

    `commas`: true if the columns that `decimal_comma` names have texts like `"1,5"`, and false if these columns have
    JSON numbers.
    """

    def __init__(self, schema: pa.Schema, notation: Notation = USUAL, *, commas: bool = False) -> None:
        fields, values = list(schema), _Values(notation=notation, commas=commas)
        groups = [fields[low : low + _AT_ONCE] for low in range(0, len(fields), _AT_ONCE)]
        self._patterns = [rf"^{_W}{values.struct(group, '')}{_W}$" for group in groups or [[]]]

    def unfit(self, records: Records) -> npt.NDArray[np.int64]:
        """Returns the numbers of the records that have a value of a wrong type."""
        # Parts 0, 2, 4, … are records; the other parts are line ends.
        bounds = np.column_stack([records.start, records.end]).ravel()
        parts = pa.Array.from_buffers(
            pa.large_string(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(records.body)]
        )
        lines = parts.take(pa.array(np.arange(0, len(bounds), 2)))
        unfit = np.zeros(len(lines), bool)
        for pattern in self._patterns:
            unfit |= ~_matching(lines, pattern)
        return np.flatnonzero(unfit)


def probably_fit(
    texts: Sequence[str | None], kind: pa.DataType, path: str, notation: Notation
) -> npt.NDArray[np.bool_]:
    """Returns, for each JSON text, true if the text probably is a value of this type at `path`.

    The result for None is true.
    """
    value = _Values(notation=notation, commas=True).value(kind, path)
    return _matching(pa.array(texts, pa.large_string()), rf"^{_W}(?:{value}|null){_W}$")


def _matching(texts: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    try:
        found = pc.match_substring_regex(texts, pattern).fill_null(True)
    except pa.ArrowInvalid:  # the pattern is too large
        return np.ones(len(texts), bool)
    matching: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return matching


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _object(member: str) -> str:
    return rf"\{{{_W}(?:(?:{member}){_W},?{_W})*\}}"


def _list(item: str) -> str:
    return rf"\[{_W}(?:(?:{item}){_W},?{_W})*\]"


def _other(names: set[str]) -> str:
    """Returns a pattern that matches every key outside of `names`, except keys with escapes."""
    tails: dict[str, set[str]] = {}
    for name in names - {""}:
        tails.setdefault(name[0], set()).add(name[1:])
    first = "".join(f"\\x{{{ord(one):x}}}" for one in sorted(tails))
    found = [rf"{_PLAIN[:-1]}{first}]{_PLAIN}*"]
    found += [re.escape(one) + _other(rest) for one, rest in sorted(tails.items())]
    return f"(?:{'|'.join(found)}){'?' if '' not in names else ''}"


_SCALAR: Final = rf"{_STRING}|{_NUMBER}|true|false|null"
_FLAT: Final = rf"{_SCALAR}|{_list(_SCALAR)}|{_object(f'{_STRING}{_W}:{_W}(?:{_SCALAR})')}"
_ANY: Final = rf"(?:{_SCALAR}|{_list(_FLAT)}|{_object(f'{_STRING}{_W}:{_W}(?:{_FLAT})')})"
"""Matches most values, for fields that the schema lacks."""

_INTEGERS: Final = {
    8: "[1-9]?[0-9]|1[01][0-9]",
    16: "0|[1-9][0-9]{0,3}|[12][0-9]{4}",
    32: "0|[1-9][0-9]{0,8}|1[0-9]{9}|20[0-9]{8}",
    64: "0|[1-9][0-9]{0,17}|[1-8][0-9]{18}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """Makes the patterns of values in a notation."""

    notation: Notation
    commas: bool

    def struct(self, fields: Iterable[pa.Field], path: str) -> str:
        """Returns the pattern of an object with some of these fields, and possibly with other fields."""
        members = [
            rf'"{re.escape(_key(field.name))}"{_W}:{_W}(?:{self.value(field.type, below(path, field.name))}|null)'
            for field in fields
        ]
        members.append(rf'"{_other({_key(field.name) for field in fields})}"{_W}:{_W}{_ANY}')
        return _object("|".join(members))

    def value(self, kind: pa.DataType, path: str) -> str:
        """Returns the pattern of a value of this type at a path."""
        if pa.types.is_struct(kind):
            return self.struct(list(kind), path)
        if pa.types.is_list(kind):
            return _list(f"{self.value(kind.value_type, path)}|null")
        if pa.types.is_integer(kind):
            return f"-?(?:{_INTEGERS[kind.bit_width]})"
        written = self.notation.written(path, kind)
        if written and written.form and (self.commas or not written.comma):
            return f'"(?:{written.form[1:-1]})"'
        return _VALUES.get(kind.id, _ANY)


_VALUES: Final = {
    pa.bool_().id: "true|false",
    pa.float32().id: rf"{_NUMBER}|NaN|-?Infinity",
    pa.float64().id: rf"{_NUMBER}|NaN|-?Infinity",
    pa.string().id: _STRING,
    pa.binary().id: _STRING,
    pa.date32().id: f'"{DATE[1:-1]}"',
    pa.timestamp("us").id: f'"{TIMESTAMP[1:-1]}"',
    pa.decimal128(1).id: rf"{_NUMBER}|{_STRING}",
}
