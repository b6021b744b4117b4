"""How deep JSON is nested, found without a parser: deep nesting ends the process inside of pyarrow 26."""

import re
from typing import Final

import numpy as np

from s3notify_platform.formats.records import Records
from s3notify_platform.limits import MAX_DEPTH

_OPENING: Final = np.isin(np.arange(256), np.frombuffer(b"[{", np.uint8))
_NOT_STRUCTURE: Final = bytes(sorted(set(range(256)) - set(b'[]{}"')))
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_STRING: Final = re.compile(rb'"[^"]*"?')
_STEP: Final = np.zeros(256, np.int64)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1

_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def depth_of(text: bytes) -> int:
    """Levels of objects and lists in a JSON text; of one that is malformed, at least those that a parser enters."""
    if b"\\" in text:
        text = _ESCAPE.sub(b"", text)
    text = text.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in text:
        text = _STRING.sub(b"", text)
    return int(np.cumsum(_STEP[np.frombuffer(text, np.uint8)]).max(initial=0))


def first_too_deep(records: Records) -> int | None:
    """The first record nested deeper than `MAX_DEPTH`, by its number."""
    if not len(records.start):
        return None
    low = int(records.start[0])
    octets = np.frombuffer(records.body, np.uint8)[low : int(records.end[-1])]
    opening = np.flatnonzero(_OPENING[octets]) + low
    counts = np.searchsorted(opening, records.end) - np.searchsorted(opening, records.start)
    suspects = np.flatnonzero(counts > MAX_DEPTH).tolist()
    return next((number for number in suspects if depth_of(records.raw(number)) > MAX_DEPTH), None)


def value_end(text: str, start: int) -> int:
    """Where a JSON object or list ends that begins at `start`, however deep. `ValueError` if it has no end."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth <= 0:
            return token.end()
    raise ValueError("a list or an object has no end")
