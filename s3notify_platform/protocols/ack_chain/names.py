"""The names of children, and their compact forms. Pure.

`pack_names` gives JSON: 7 for "7", [3, 5] for "3" to "5", ["7", 0, [2, 9]] for "7/0" and "7/2" to "7/9". `key_text`
encodes bytes as a part of a key: it deflates them, and writes the result as base64 that needs no quoting.
"""

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_UNPACKED_BYTES

RAW_DEFLATE: Final = -15


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts names: numbers first, ascending, then the other names."""
    return sorted(names, key=lambda name: (0, int(name), "") if is_number(name) else (1, 0, name))


def is_number(name: str) -> bool:
    """True if a name is a decimal number as Python prints it."""
    return name.isascii() and name.isdecimal() and (name == "0" or name[0] != "0")


def pack_names(names: Iterable[str]) -> list[object]:
    """Names as compact JSON. Only numbers, and names that end in "/" and a number, are packed. Other names stay
    unchanged.
    """
    ordered = in_order(names)
    numbers = [int(name) for name in ordered if is_number(name)]
    packed = _runs(numbers)
    below: dict[str, list[int]] = {}
    for name in ordered[len(numbers) :]:
        parent, slash, last = name.rpartition("/")
        if slash and is_number(last):
            below.setdefault(parent, []).append(int(last))
        else:
            packed.append(name)
    for parent, found in below.items():
        packed.append([parent, *_runs(sorted(found))] if len(found) > 1 else f"{parent}/{found[0]}")
    return packed


def _runs(numbers: Sequence[int]) -> list[object]:
    packed: list[object] = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        packed.append(found[0] if len(found) == 1 else [found[0], found[-1]])
    return packed


def unpack_names(packed: Iterable[object]) -> frozenset[str]:
    """The names that `pack_names` packed."""
    names: set[str] = set()
    for item in packed:
        match item:
            case str():
                names.add(item)
            case [str(parent), *runs]:
                names.update(f"{parent}/{number}" for number in _numbers(runs))
            case _:
                names.update(map(str, _numbers([item])))
    return frozenset(names)


def _numbers(runs: Iterable[object]) -> Iterator[int]:
    for run in runs:
        match run:
            case int():
                yield run
            case [int(first), int(last)]:
                yield from range(first, last + 1)
            case _:
                raise CorruptError(f"{run!r} is not a packed name")


def dump_names(names: Iterable[str]) -> str:
    """Packed names as JSON text."""
    return json.dumps(pack_names(names), separators=(",", ":"))


def load_names(text: str) -> frozenset[str]:
    """Decodes the result of `dump_names`; raises `CorruptError` for any other text."""
    try:
        return unpack_names(json.loads(text))
    except (ValueError, TypeError) as error:
        raise CorruptError(f"{text[:80]!r} are not packed names") from error


@lru_cache(maxsize=64)
def places(names: str) -> dict[str, int]:
    """The index, from 0, of each name in the order of `in_order`. `names` is a result of `dump_names`.

    The result is shared: do not change it.
    """
    return {name: place for place, name in enumerate(in_order(load_names(names)))}


def bits_of(numbers: Iterable[int]) -> int:
    """One integer in which the bits with these numbers are set."""
    bits = bytearray()
    for number in numbers:
        bits.extend(bytes(max(0, number // 8 + 1 - len(bits))))
        bits[number // 8] |= 1 << number % 8
    return int.from_bytes(bits, "little")


def key_text(data: bytes) -> str:
    """Encodes bytes as part of a record's key; empty bytes give an empty text."""
    if not data:
        return ""
    deflate = zlib.compressobj(9, zlib.DEFLATED, RAW_DEFLATE)
    return urlsafe_b64encode(deflate.compress(data) + deflate.flush()).rstrip(b"=").decode("ascii")


def of_key_text(text: str) -> bytes:
    """Decodes the result of `key_text`; raises `CorruptError` for any other text."""
    if not text:
        return b""
    try:
        inflate = zlib.decompressobj(RAW_DEFLATE)
        data = inflate.decompress(urlsafe_b64decode(text + "=" * (-len(text) % 4)), MAX_UNPACKED_BYTES)
        if not inflate.eof:
            raise CorruptError(
                f"{text[:80]!r}: this part of a record's key is truncated, or too long when decoded"
            )
        return data
    except (Error, ValueError, zlib.error) as error:
        raise CorruptError(f"{text[:80]!r} is not part of a record's key") from error
