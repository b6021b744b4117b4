"""Finds out, without a parser, how deep and how large parsed JSON will be. The check is necessary because pyarrow 26
has no limits.

Deep nesting crashes the process. Many objects with different fields become a huge table, with a row for each object and
a column for each field, at any depth.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from s3notify_platform.formats.records import Records
from s3notify_platform.kernel.limits import MAX_CELLS, MAX_DEPTH, MAX_KEYS

_NOT_STRUCTURE: Final = bytes(sorted(set(range(256)) - set(b'[]{}"')))
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_STRING: Final = re.compile(rb'"[^"]*"?')
_STEP: Final = np.zeros(256, np.int64)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1

_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def infinities_in(text: bytes) -> int:
    """Returns the number of infinities that JSON lines contain, outside of strings.

    Raises `ArrowInvalid` for the abbreviation `Inf`.
    """
    if b"I" not in text or b"Inf" not in text:  # the search for one byte is much faster
        return 0
    text = _STRING.sub(b"", _ESCAPE.sub(b"", text))
    if (found := text.count(b"Inf")) > text.count(b"Infinity"):
        raise pa.ArrowInvalid("Inf is not a number: write Infinity")
    return found


def depth_of(text: bytes) -> int:
    """Returns the number of nested levels in a JSON text.

    For a malformed text, the result is at least the depth that a parser reaches.
    """
    if b"\\" in text:
        text = _ESCAPE.sub(b"", text)
    text = text.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in text:
        text = _STRING.sub(b"", text)
    return int(np.cumsum(_STEP[np.frombuffer(text, np.uint8)]).max(initial=0))


def is_deeper(text: bytes, levels: int) -> bool:
    """True if a JSON text has more than `levels` levels."""
    return text.count(b"{") + text.count(b"[") > levels and depth_of(text) > levels


def too_deep(records: Records) -> Iterator[int]:
    """Yields the numbers of the records nested deeper than `MAX_DEPTH`."""
    if not len(records.start):
        return
    low = int(records.start[0])
    octets = np.frombuffer(records.body, np.uint8)[low : int(records.end[-1])]
    # The two opening brackets, `[` and `{`, differ in one bit.
    opening = np.flatnonzero((octets | 32) == ord("{")) + low
    counts = np.searchsorted(opening, records.end) - np.searchsorted(opening, records.start)
    suspects = np.flatnonzero(counts > MAX_DEPTH).tolist()
    yield from (number for number in suspects if depth_of(records.raw(number)) > MAX_DEPTH)


def check_json_lines(records: Records) -> None:
    """Raises if a line is not one object.

    Without this check, pyarrow would make one row of two lines if a record does not end on its own line. A `null` in
    place of the first object, and deep nesting, crash the process inside pyarrow 26.
    """
    octets = np.frombuffer(records.body, np.uint8)
    first, last = octets[records.start], octets[records.end - 1]
    for number in np.flatnonzero((first != ord("{")) | (last != ord("}"))).tolist():
        line = records.body[records.start[number] : records.end[number]].strip(b" \t\r\n")
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise pa.ArrowInvalid("the line is not a JSON object (for documents set the format json)")
    if any(True for _ in too_deep(records)):
        raise pa.ArrowInvalid(f"nested deeper than {MAX_DEPTH} levels, the limit")


_TEXT_OR_BRACE: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+(?:[ \t\r\n]*+:)?+|[{}]', re.DOTALL)
_COLON: Final = ord(":")
_SCANNED_BYTES: Final = 1 << 18
"""Approximate number of bytes whose tokens are in memory together; the maximum is twice this number."""
_Fields = dict[bytes, "_Fields"]
"""The fields of an object by key, each with the fields below it."""


def check_cells(text: bytes, columns: int | None = None) -> None:
    """Raises `ArrowInvalid` if the number of objects in a JSON text, times `columns`, is too large.

    Without `columns`, the factor is the number of different fields in the text, at any depth. Also raises if this
    number of fields is larger than `MAX_KEYS`.
    """
    objects = max(1, text.count(b"{"))
    if columns is None:
        most = text.count(b":")  # the search for the fields themselves takes much longer
        if most <= MAX_KEYS and objects * most <= MAX_CELLS:
            return
        columns = _count_paths(text, min(MAX_KEYS, MAX_CELLS // objects))
        if columns > MAX_KEYS:
            raise pa.ArrowInvalid(
                f"more than {MAX_KEYS} different fields: at most {MAX_KEYS} are read at once"
            )
    if objects * columns > MAX_CELLS:
        raise pa.ArrowInvalid(
            f"{objects} objects with {columns} or more possible fields: at most {MAX_CELLS} values are read at once"
        )


def _count_paths(text: bytes, most: int) -> int:
    """Returns the number of different paths of fields in JSON lines. If there are more than `most` paths, returns some
    number above `most`, because the count ends early.
    """
    count = 0
    top: _Fields = {}
    outer, inner = [], top
    for token in chain.from_iterable(_tokens(text)):
        if token == b"{":
            outer.append(inner)
        elif token == b"}":
            # If another object of the same list follows, its fields are counted together with the fields of this
            # object.
            inner = outer.pop() if outer else top
        elif token[-1] == _COLON and outer:
            fields = outer[-1]
            if token not in fields:
                fields[token] = {}
                count += 1
                if count > most:
                    break
            inner = fields[token]
    return count


def _tokens(text: bytes) -> Iterator[Iterable[bytes]]:
    """Yields the texts, keys and braces of some lines at a time. The tokens of a long line are never in memory
    together.
    """
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + _SCANNED_BYTES) + 1 or len(text)
        if end - begin > 2 * _SCANNED_BYTES:
            yield (token[0] for token in _TEXT_OR_BRACE.finditer(text, begin, end))
        else:
            yield _TEXT_OR_BRACE.findall(text, begin, end)
        begin = end


def value_end(text: str, start: int) -> int:
    """Returns the end of the JSON object or list that begins at `start`, with any depth of nesting.

    Raises `ValueError` if the end is missing.
    """
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth <= 0:
            return token.end()
    raise ValueError("a list or an object has no end")


_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]', re.DOTALL)
_WHITE: Final = b" \t\r\n"


def parts_of(text: bytes, start: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields the parts of a JSON object or list that begins at `start`.

    A part has a key (b"" in a list), and the start and end of the value. The last part is the whole object or list,
    without a key. Any depth is allowed. Raises `ValueError` if the object or list has no end.
    """
    depth, begin, key = 0, start, b""
    for token in _MARK.finditer(text, start):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                begin = token.end() if depth == 1 else begin
            case b"]" | b"}":
                depth -= 1
                if depth == 0:
                    if key or text[begin : token.start()].strip(_WHITE):
                        yield key, *_stripped(text, begin, token.start())
                    yield b"", start, token.end()
                    return
            case b"," if depth == 1:
                yield key, *_stripped(text, begin, token.start())
                begin, key = token.end(), b""
            case b":" if depth == 1 and not key:
                key, begin = text[begin : token.start()].strip(_WHITE), token.end()
            case _:
                pass
    raise ValueError("a list or an object has no end")


def _stripped(text: bytes, begin: int, end: int) -> tuple[int, int]:
    part = text[begin:end]
    return begin + len(part) - len(part.lstrip(_WHITE)), begin + len(part.rstrip(_WHITE))
