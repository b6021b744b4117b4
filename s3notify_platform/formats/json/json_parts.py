"""Cuts JSON objects and lists into the texts of their fields and items, and finds the fields that a schema lacks."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.formats.json.json_bounds import is_deeper, value_end
from s3notify_platform.formats.rescue import below, kinds_of
from s3notify_platform.kernel.limits import MAX_DEPTH

WHITE: Final = " \t\r\n"


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a key occurs twice")
    return found


DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Decodes JSON, but returns each number as a text, unchanged."""

STRICT_DECODER: Final = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_unique
)
"""Like `DECODER`, but raises `ValueError` if a JSON object has the same key twice."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PLAIN: Final = r'"[^"\\\x00-\x1f]*+"'
_SCALAR: Final = (
    rf"({_PLAIN}|-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null)[ \t\r\n]*+([,}}\]])"
)
_ITEM: Final = re.compile(rf"[ \t\r\n]*+{_SCALAR}", re.ASCII)
_MEMBER: Final = re.compile(rf"[ \t\r\n]*+({_PLAIN})[ \t\r\n]*+:[ \t\r\n]*+{_SCALAR}", re.ASCII)
"""Matches most members of JSON objects: a key and a value, if the value is not nested and no string has an escape."""


def unnamed_parts(
    split: dict[str, str], kinds: dict[str, pa.DataType], path: str
) -> Iterator[tuple[str, str]]:
    """Yields the path and text of each value for which `kinds` has no field, at any depth, except nulls."""
    for name, raw in split.items():
        place = below(path, name)
        if name not in kinds:
            if raw.strip(WHITE) != "null":
                yield place, text_of_json(raw)
        elif pa.types.is_nested(kinds[name]):
            yield from _within(raw.strip(WHITE), kinds[name], place)


def _within(raw: str, kind: pa.DataType, path: str) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind) and raw.startswith("{"):
        yield from unnamed_parts(split_object(raw), kinds_of(kind), path)
    elif pa.types.is_list(kind) and pa.types.is_nested(kind.value_type) and raw.startswith("["):
        for place, item in enumerate(split_array(raw)):
            yield from _within(item.strip(WHITE), kind.value_type, f"{path}[{place}]")


def text_of_json(raw: str) -> str:
    """Returns the content of a JSON string, or the unchanged text of any other JSON value."""
    raw = raw.strip(WHITE)
    return str(json.loads(raw)) if raw.startswith('"') else raw


def split_object(text: str) -> dict[str, str]:
    """Returns the fields of a JSON object with the texts of their values.

    Raises `ValueError` for any other text, and for a repeated key.
    """
    found: dict[str, str] = {}
    for key, value in _pieces(text, "{}"):
        name = json.loads(key) if "\\" in key else key[1:-1]
        if name in found:
            raise ValueError(f"key {name!r} occurs twice")
        found[name] = value
    return found


_VALUE: Final = r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null|" + _PLAIN
_S: Final = r"[ \t\r\n]*+"


def _listed(item: str, borders: str) -> str:
    first, last = map(re.escape, borders)
    return rf"{first}{_S}(?:(?:{item}){_S}(?:,{_S}(?!{last})|(?={last})))*{last}"


_OBJECT: Final = _listed(f"{_PLAIN}{_S}:{_S}(?:{_VALUE})", "{}")
_FLAT: Final = f"{_VALUE}|{_OBJECT}|{_listed(f'{_VALUE}|{_OBJECT}', '[]')}"
"""Matches most JSON values: scalars, flat objects, and lists of scalars and flat objects, if no string has an
escape.
"""


class ObjectSplitter:
    """Does the same as `split_object`. The splitter is faster for objects that have the same keys in the same order."""

    def __init__(self) -> None:
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._last: tuple[str, ...] = ()

    def __call__(self, text: str) -> dict[str, str]:
        """See `split_object`."""
        pattern = self._patterns.get(self._last)
        if pattern and (found := pattern.fullmatch(text)):
            return dict(zip(self._last, found.groups(), strict=True))
        parts = split_object(text)
        names = tuple(parts)
        again = names == self._last and names not in self._patterns
        if again and len(names) <= _MANY_KEYS and len(self._patterns) < _PATTERNS:
            self._patterns[names] = _pattern_of(names)
        self._last = names
        return parts


_PATTERNS: Final = 16
_MANY_KEYS: Final = 64


def _pattern_of(names: Sequence[str]) -> re.Pattern[str]:
    keys = (re.escape(json.dumps(name, ensure_ascii=False)) for name in names)
    members = (rf"{_S}{key}{_S}:{_S}({_FLAT}){_S}" for key in keys)
    return re.compile(rf"{_S}\{{{','.join(members)}\}}{_S}", re.ASCII)


def halves(raw: bytes) -> list[bytes]:
    """Returns two JSON objects or lists that together have all fields or items of this object or list. A single field
    or item is halved itself. The result is empty for any other value, for malformed or deep JSON, and for a repeated
    key.
    """
    try:
        return [] if is_deeper(raw, MAX_DEPTH) else [half.encode() for half in _halves(raw.decode())]
    except ValueError:
        return []


def _halves(text: str) -> Iterator[str]:
    text = text.strip(WHITE)
    if text[:1] == "{":
        parts = [(f"{json.dumps(name)}:", value) for name, value in split_object(text).items()]
    else:
        parts = [("", value) for value in split_array(text)]
    if len(parts) == 1:
        ((key, value),) = parts
        yield from (f"{text[0]}{key}{half}{text[-1]}" for half in _halves(value))
    middle = len(parts) // 2
    for some in (parts[:middle], parts[middle:]) if middle else ():
        yield f"{text[0]}{','.join(key + value for key, value in some)}{text[-1]}"


def split_array(text: str) -> list[str]:
    """Returns the texts of the items of a JSON array. Raises `ValueError` for any other text."""
    return [value for _, value in _pieces(text, "[]")]


def _pieces(text: str, borders: str) -> Iterator[tuple[str, str]]:
    """Yields each key (in a list, "") with its value, as unchanged texts."""
    end = _past_space(text, 0)
    if text[end : end + 1] != borders[0]:
        raise ValueError("not a JSON object")
    end = _past_space(text, end + 1)
    closed = text[end : end + 1] == borders[1]
    fast = (_MEMBER if borders == "{}" else _ITEM).match
    while not closed:
        key = ""
        if plain := fast(text, end):
            *named, value, border = plain.groups()
            yield named[0] if named else key, value
            closed = border == borders[1]
            if not closed and border != ",":
                raise ValueError("not a JSON object")
            end = plain.end() - closed
            continue
        end = _past_space(text, end)
        if borders == "{}":
            start, end = end, _value_end(text, end)
            key = text[start:end]
            end = _past_space(text, end)
            if key[:1] != '"' or text[end : end + 1] != ":":
                raise ValueError("not a JSON object")
            end = _past_space(text, end + 1)
        start, end = end, _value_end(text, end)
        yield key, text[start:end]
        end = _past_space(text, end)
        closed = text[end : end + 1] == borders[1]
        if not closed and text[end : end + 1] != ",":
            raise ValueError("not a JSON object")
        end += not closed
    if _past_space(text, end + 1) != len(text):
        raise ValueError("something follows the JSON object")


def _value_end(text: str, start: int) -> int:
    try:
        return DECODER.raw_decode(text, start)[1]
    except RecursionError:
        return value_end(text, start)


def _past_space(text: str, start: int) -> int:
    if text[start : start + 1] not in WHITE:
        return start
    found = _SPACE.match(text, start)
    return found.end() if found else start


_INTEGER: Final = re.compile(r"[ \t\r\n]*(?:-?\d+|null)[ \t\r\n]*\Z")
_NUMBER: Final = re.compile(r"[ \t\r\n]*[-\dNIn]")
_STRING: Final = re.compile(r'[ \t\r\n]*["n]')
_TIME: Final = re.compile(r'[ \t\r\n]*(n|"(\d{4}-|\\))')
FITTING: Final = {
    **dict.fromkeys((pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id), _INTEGER),
    **dict.fromkeys((pa.float32().id, pa.float64().id), _NUMBER),
    **dict.fromkeys((pa.string().id, pa.binary().id), _STRING),
    **dict.fromkeys((pa.date32().id, pa.timestamp("us").id), _TIME),
}
"""Patterns for the values of each type. A text that matches may still be invalid."""

_PRIMARY: Final = re.compile(
    r"[ \t\r\n]*+(-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|NaN|-?Infinity)[ \t\r\n]*+",
    re.ASCII,
)


def as_string(raw: str | None) -> str | None:
    """Prepares a JSON text for a string column: any value except strings and null becomes a JSON string of its text.

    Other texts, and nested values in which a key occurs twice, are returned unchanged.
    """
    if not raw:
        return raw
    if found := _PRIMARY.fullmatch(raw):
        return f'"{found[1]}"'
    text = raw.strip(WHITE)
    if text[:1] not in ("[", "{"):
        return raw
    with suppress(ValueError):
        STRICT_DECODER.decode(text)
        return json.dumps(text, ensure_ascii=False)
    return raw


NOTED: Final = re.compile(r'[ \t\r\n]*["n\-\d]')
"""Pattern for the beginnings of values in a column that has a notation: strings, null, and JSON numbers."""
