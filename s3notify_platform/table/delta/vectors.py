"""Encodes and decodes deletion vectors, which hide rows of a pack. Pure.

A vector is a set of row numbers, counted from 0 over the whole file. Small vectors are in the log itself. All larger
vectors of a round are in one file, so that a round writes at most one further object. The folder of these files has a
name that begins with `_`. In other folders, `vacuum(full=True)` of delta-rs would remove the files, because this vacuum
ignores vectors.

    - A vector begins with magic (4 bytes, little endian) and the number of bitmaps (8 bytes). The bitmaps follow. Each
      bitmap consists of the high 32 bits of its row numbers (4 bytes), and a Roaring bitmap in the portable format.
    - In the log, a vector is encoded as Z85, and padded by zeros to a multiple of four bytes.
    - A file begins with the version of its format (1 byte). Each vector has its size before it (4 bytes, big endian),
      and its CRC-32 after it (4 bytes, big endian).

Each vector is checked when it is read: its magic, checksum and counts, and whether its row numbers are in the file. A
vector is expanded only after these checks.

Sources: Delta Transaction Log Protocol, "Deletion Vector Format"; ZeroMQ RFC 32 (Z85); RoaringFormatSpec.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pyroaring import BitMap

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.table.delta.actions import Vector

INLINE_BYTES: Final = 1024
"""The largest number of bytes of a vector in the log itself. Larger vectors are in a file."""

_MAGIC: Final = 1681511377
_HEADER: Final = struct.Struct("<IQI")
_VERSION: Final = b"\x01"
_FILE_SIZE: Final = struct.Struct(">I")
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES: Final = {char: value for value, char in enumerate(_Z85)}
_UUID_CHARS: Final = 20

FOLDER: Final = "_s3notify/vector"
"""The folder of the vectors' files, below the table's prefix. In the log, the folder is a prefix of the vectors'
ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedVectors:
    """The vectors of a round. `vectors`: the vectors by the path of their pack.

    `body`: the file of large vectors, or None if all vectors are small.
    """

    vectors: Mapping[str, Vector]
    body: bytes | None


def encode(rows: Mapping[str, Iterable[int]], *, file: UUID) -> EncodedVectors:
    """Returns the vectors that hide `rows`: row numbers (below 2^32), by the path of their pack.

    `file`: the id of the new file (`path_of(file)`).
    """
    vectors = {}
    body = bytearray(_VERSION)
    for path, hidden in rows.items():
        bitmap = BitMap(hidden)
        bitmap.run_optimize()
        data = _HEADER.pack(_MAGIC, 1, 0) + bitmap.serialize()
        if len(data) <= INLINE_BYTES:
            vectors[path] = Vector(storage="i", body=_z85(data), size=len(data), rows=len(bitmap))
            continue
        vectors[path] = Vector(
            storage="u", body=FOLDER + _z85(file.bytes), size=len(data), rows=len(bitmap), offset=len(body)
        )
        body += _FILE_SIZE.pack(len(data)) + data + _FILE_SIZE.pack(zlib.crc32(data))
    return EncodedVectors(vectors=vectors, body=bytes(body) if len(body) > len(_VERSION) else None)


def path_of(file: UUID) -> str:
    """Returns the path of a file of vectors, relative to the table's prefix."""
    return f"{FOLDER}/{_name(file)}"


def _name(file: UUID) -> str:
    return f"deletion_vector_{file}.bin"


def file_of(vector: Vector) -> str | None:
    """Returns the path of the file with the vector, relative to the table's prefix. Returns None if the vector is in
    the log itself.

    `CorruptError`: the vector is stored in a way that this platform does not read.
    """
    match vector.storage:
        case "i":
            return None
        case "u":
            folder, name = vector.body[:-_UUID_CHARS], vector.body[-_UUID_CHARS:]
            with suppress(ValueError):
                return (f"{folder}/" if folder else "") + _name(UUID(bytes=_from_z85(name)))
    raise CorruptError(
        f"deletion vector {vector.id!r}: its storage type is neither `u` nor `i`. Let the engine that wrote "
        "the vector rewrite its file (REORG … APPLY (PURGE))"
    )


def span(vector: Vector) -> tuple[int, int]:
    """Returns the byte range of the vector in its file: the first byte, and the byte after the last byte."""
    start = vector.offset or 0
    return start, start + _FILE_SIZE.size + vector.size + _FILE_SIZE.size


def decode(vector: Vector, *, rows: int, stored: bytes = b"", where: str) -> BitMap:
    """Returns the bitmap of the rows that a vector hides in a file of `rows` rows. The operator `|` unites two bitmaps.

    `stored`: the bytes of the vector's `span`, if the vector is in a file. `CorruptError`, with `where` in its message:
    the vector is damaged, or belongs to another file.
    """
    try:
        data = _stored(vector, stored) if vector.storage != "i" else _from_z85(vector.body)[: vector.size]
        found = _bitmap(data)
    except (ValueError, IndexError, struct.error) as error:
        raise CorruptError(f"{where}: damaged deletion vector ({error}): restore it") from error
    if len(found) != vector.rows or (found and found.max() >= rows):
        last = found.max() if found else None
        raise CorruptError(
            f"{where}: the deletion vector hides {len(found)} rows, the last of which is row {last}, but by the "
            f"log it hides {vector.rows} of {rows} rows: restore the vector"
        )
    return found


def _stored(vector: Vector, stored: bytes) -> bytes:
    start, end = _FILE_SIZE.size, _FILE_SIZE.size + vector.size
    if len(stored) != end + _FILE_SIZE.size:
        raise ValueError(f"{len(stored)} bytes instead of {end + _FILE_SIZE.size}")
    data = stored[start:end]
    if stored[:start] != _FILE_SIZE.pack(vector.size) or stored[end:] != _FILE_SIZE.pack(zlib.crc32(data)):
        raise ValueError("size or checksum differ")
    return data


def _bitmap(data: bytes) -> BitMap:
    magic, count, key = _HEADER.unpack_from(data.ljust(_HEADER.size, b"\0"))
    if magic != _MAGIC:
        raise ValueError(f"begins with {magic}, not with {_MAGIC}")
    if count > 1 or key:
        raise ValueError("hides rows from 2^32 on")
    # pyroaring itself checks bounds, order and counts.
    return BitMap.deserialize(data[_HEADER.size :]) if count else BitMap()


def _z85(data: bytes) -> str:
    padded = data + b"\0" * (-len(data) % 4)
    chars = []
    for at in range(0, len(padded), 4):
        number = int.from_bytes(padded[at : at + 4])
        chars += [_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(chars)


def _from_z85(text: str) -> bytes:
    if len(text) % 5:
        raise ValueError(f"{len(text)} characters of Z85, not a multiple of 5")
    data = bytearray()
    for at in range(0, len(text), 5):
        number = 0
        for char in text[at : at + 5]:
            if char not in _VALUES:
                raise ValueError(f"{char!r} is not a character of Z85")
            number = number * 85 + _VALUES[char]
        if number >= 1 << 32:
            raise ValueError(f"{text[at : at + 5]!r} is not Z85")
        data += number.to_bytes(4)
    return bytes(data)
