"""Patterns for the texts that pyarrow reads as values of a type.

A matching text may still be invalid, like a number that is too large, or a day that a month does not have.
"""

from typing import Final

import pyarrow as pa

_DAY: Final = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME: Final = r"([01]\d|2[0-3])(:?[0-5]\d(:?[0-5]\d(\.\d*)?)?)?(Z|[+-]\d\d(:?\d\d)?)?"
_NUMBER: Final = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"


def _form(pattern: str) -> str:
    return rf"^[ \t]*({pattern})[ \t]*$"


DATE: Final = _form(_DAY)
TIMESTAMP: Final = _form(rf"{_DAY}([T ]{_TIME})?")
NOTHING: Final = "^$"

FORMS: Final = {
    **dict.fromkeys(
        (pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id), _form(r"[+-]?\d+|0[xX][0-9a-fA-F]+")
    ),
    **dict.fromkeys(
        (pa.float32().id, pa.float64().id),
        _form(rf"{_NUMBER}|[+-]?([nN][aA][nN](\(.*\))?|[iI][nN][fF]([iI][nN][iI][tT][yY])?)"),
    ),
    pa.decimal128(1).id: _form(_NUMBER),
    pa.bool_().id: _form("[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|0|1"),
    pa.date32().id: DATE,
    pa.timestamp("us").id: TIMESTAMP,
    **dict.fromkeys((pa.list_(pa.null()).id, pa.struct([]).id, pa.map_(pa.string(), pa.null()).id), NOTHING),
}
"""The pattern of each type, by the type's id. A type without a pattern accepts any text."""
