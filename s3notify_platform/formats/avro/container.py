"""Reads Avro's object container files, block by block, as rows and rejects.

A split reads the blocks that begin in it. Each block begins behind a sync marker, and a reader can find the next marker
from any place in the file. Bytes that are not a block become one reject, which ends at the next sync marker. If a
record cannot be read, it becomes one reject, together with the rest of its block. A file without a readable header, or
without any column of a given schema, becomes one reject. The split at the file's beginning reports this reject.
`_offset` is the byte where the record's block begins, plus the record's number in the block.

Two things differ from the Avro specification. A union of several types, besides null, is read only if these types are
numbers. A type that contains itself, and arrays whose items take no bytes, are refused.

Fields that are always null are not decoded. Such fields take no bytes, so a small object could contain millions of
nulls.

Memory: several decompressed blocks, which together have fewer than `MAX_AVRO_BLOCK_BYTES` bytes and fewer than `ROWS`
records, and one more block. The records of all these blocks are also in memory as Python values.

Source: https://avro.apache.org/docs/1.12.0/specification/#object-container-files
"""

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

import cramjam
import fastavro
import numpy as np
import pyarrow as pa

from s3notify_platform.formats.arrow_values import count_fields
from s3notify_platform.formats.avro.avro_types import ArrowTypes, as_read, empty_fields, stored, without_nulls
from s3notify_platform.formats.blocks.arrow_file import UnreadableError, wanted_columns
from s3notify_platform.formats.blocks.block_format import BlockFormat
from s3notify_platform.formats.blocks.parquet_values import fit_rows
from s3notify_platform.formats.codecs import new_zstd, snappy_length
from s3notify_platform.formats.object_bytes import CHUNK_BYTES, ObjectBytes
from s3notify_platform.formats.records import (
    Parsed,
    Reject,
    Target,
    no_rows,
    reason_of,
    rejected_whole,
)
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.limits import (
    MAX_AVRO_BLOCK_BYTES,
    MAX_AVRO_BLOCK_ROWS,
    MAX_AVRO_HEADER_BYTES,
    MAX_CELLS,
    MAX_RAW_BYTES,
    MAX_ROW_GROUP_CELLS,
)

ROWS: Final = 8192
"""Number of records that are converted to one Arrow table."""

_ERRORS: Final = "surrogateescape"
"""Error handler for texts that are not UTF-8.

Arrow refuses such a text later, and then only the text's record is rejected.
"""

_WINDOW: Final = 64 << 10
_HEADER_BYTES: Final = 64 << 10
_SYNC: Final = 16
_LONGS: Final = 20
"""Maximum length in bytes of the two numbers before a block."""

_HEADER: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": _SYNC}},
        ],
    }
)


class Avro(BlockFormat):
    """See the module."""

    name = "avro"
    suffixes = frozenset({"avro"})

    def rows(self, source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
        """See `BlockFormat`. Cost: 1 GET for the header, and 1 GET for each `CHUNK_BYTES`."""
        return _rows(source, start, end, target)

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """See `Format`. Reads the header."""
        try:
            yield _header(source).columns
        except UnreadableError:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The header of a file. `each`: the schema of a record as it is read; `all`: the schema of an array of records.

    `columns`: all Arrow columns; `read`: the columns that can have values. `block_bytes`: size limit of a decompressed
    block. `nulls`: number of fields that are always null, at any depth; `nested_nulls`: the number of these fields that
    are nested.
    """

    each: Any
    all: Any
    columns: pa.Schema
    read: pa.Schema
    nulls: int
    nested_nulls: int
    block_bytes: int
    decompress: Callable[[bytes], bytes]
    sync: bytes
    end: int


def _header(source: ObjectBytes) -> _Header:
    size = _HEADER_BYTES
    while True:
        beginning = BytesIO(source.read(0, min(size, source.size)))
        try:
            found: Any = fastavro.schemaless_reader(beginning, _HEADER, None)
            break
        except S3NotifyError:
            raise
        except Exception as error:
            size *= 8
            if size > MAX_AVRO_HEADER_BYTES or beginning.getbuffer().nbytes == source.size:
                raise UnreadableError(f"no header: {reason_of(error)}") from error
    if found["magic"] != b"Obj\x01":
        raise UnreadableError("it does not begin like an Avro file")
    codec = found["meta"].get("avro.codec", b"null").decode("utf-8", "replace")
    if codec not in _CODECS:
        raise UnreadableError(f"codec {codec!r}: use one of {', '.join(_CODECS)}")
    try:
        schema = json.loads(found["meta"]["avro.schema"])
        columns = ArrowTypes().columns(schema)
        schema = as_read(schema)
        each = fastavro.parse_schema(schema)
        every = fastavro.parse_schema({"type": "array", "items": schema})
    except UnreadableError:
        raise
    except Exception as error:
        raise UnreadableError(f"schema: {reason_of(error)}") from error
    read = without_nulls(columns)
    return _Header(
        each=each,
        all=every,
        columns=columns,
        read=read,
        nulls=count_fields(columns) - count_fields(read),
        nested_nulls=sum(
            count_fields(columns.field(column.name).type) - count_fields(column.type) for column in read
        ),
        block_bytes=MAX_AVRO_BLOCK_BYTES // (1 + empty_fields(read)),
        decompress=_CODECS[codec],
        sync=found["sync"],
        end=beginning.tell(),
    )


def _rows(source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
    """Yields the rows of the blocks that begin at or after `start`, and before `end`.

    Returns where the next block begins, or the file's size.
    """
    if source.size == 0:
        source.read(0, 0)
        return 0
    try:
        header = _header(source)
        wanted_columns(header.columns.names, target)
    except UnreadableError as error:
        if start == 0:
            raw = source.read(0, min(source.size, MAX_RAW_BYTES))
            yield rejected_whole(0, raw, f"Avro: {error}", target)
        return min(end, source.size)
    body = _Body(source, end)
    place = header.end
    if start > place:
        place = body.behind(header.sync, start - _SYNC)
    batch = _Batch(header, target)
    while place < min(end, source.size):
        try:
            stored_at, after, count = _block_at(body, place, header.sync)
            records = header.decompress(body.read(stored_at, after - _SYNC))
            rejected = batch.add(_Block(place=place, records=records, count=count))
        except UnreadableError as error:
            after = body.behind(header.sync, place)
            raw = body.read(place, min(after, place + MAX_RAW_BYTES))
            rejected = Reject(index=0, offset=place, reason=f"Avro: {error}", raw=raw)
        if rejected or batch.full:
            yield from batch.take()
        if rejected:
            yield no_rows(target, [rejected])
        place = after
    yield from batch.take()
    return place


class _Body:
    """Reads ranges of the object, and caches the last chunk. A read beyond `end` fetches at most `_WINDOW` bytes."""

    def __init__(self, source: ObjectBytes, end: int) -> None:
        self.size = source.size
        self._source, self._end = source, end
        self._start, self._bytes = 0, b""

    def read(self, start: int, end: int) -> bytes:
        """Returns the bytes from `start` to `end`, or fewer bytes at the object's end."""
        end = min(end, self.size)
        if start >= end:
            return b""
        if not self._start <= start <= end <= self._start + len(self._bytes):
            upto = max(end, min(start + CHUNK_BYTES, max(self._end, start + _WINDOW), self.size))
            self._start, self._bytes = start, self._source.read(start, upto)
        return self._bytes[start - self._start : end - self._start]

    def behind(self, sync: bytes, start: int) -> int:
        """Returns where the next sync marker behind `start` ends, or the object's size if there is no further
        marker.
        """
        while start < self.size:
            window = self.read(start, start + _WINDOW)
            if (found := window.find(sync)) >= 0:
                return start + found + _SYNC
            start += max(1, len(window) - _SYNC + 1)
        return self.size


def _long(stream: BytesIO) -> int:
    found: Any = fastavro.schemaless_reader(stream, "long", None)
    return int(found)


def _block_at(body: _Body, place: int, sync: bytes) -> tuple[int, int, int]:
    """Returns where the block's bytes start, where the next block starts, and the block's number of records."""
    numbers = BytesIO(body.read(place, place + _LONGS))
    try:
        count, size = _long(numbers), _long(numbers)
    except Exception as error:
        raise UnreadableError("a block without its length") from error
    begin = place + numbers.tell()
    if count < 0 or not 0 <= size <= MAX_AVRO_BLOCK_BYTES:
        raise UnreadableError(
            f"a block of {count} records in {size} bytes: at most {MAX_AVRO_BLOCK_BYTES} bytes are allowed"
        )
    if body.read(begin + size, begin + size + _SYNC) != sync:
        raise UnreadableError(f"a block of {size} bytes without a sync marker behind it")
    return begin, begin + size + _SYNC, count


@dataclass(slots=True, kw_only=True)
class _Block:
    """The decompressed records of a block that begins at `place`."""

    place: int
    records: bytes
    count: int
    ends: list[int] = field(default_factory=list)
    """The end of each record; empty before `one_by_one` was called."""

    def together(self, schema: Any) -> list[Any]:
        """Returns all records. Raises the errors of fastavro, or `EOFError` if more bytes follow the last record."""
        body = BytesIO(_bytes_of(self.count) + self.records + b"\0")  # encoded as an array of records
        found: Any = fastavro.schemaless_reader(body, schema, None, handle_unicode_errors=_ERRORS)
        if len(found) != self.count or body.read(1):
            raise EOFError
        return list(found)

    def one_by_one(self, schema: Any) -> tuple[list[Any], str]:
        """Returns the records before the first unreadable record, and the reason why that record is unreadable."""
        values, ends = [], []
        stream = BytesIO(self.records)
        error = ""
        try:
            for _ in range(self.count):
                values.append(fastavro.schemaless_reader(stream, schema, None, handle_unicode_errors=_ERRORS))
                ends.append(stream.tell())
        except Exception as found:  # noqa: BLE001 - a damaged file can raise anything
            error = reason_of(found) or type(found).__name__
        self.ends = ends
        if not error and self.end < len(self.records):
            error = f"{len(self.records) - self.end} bytes behind the block's records"
        return values, error

    @property
    def end(self) -> int:
        """The end of the last readable record."""
        return self.ends[-1] if self.ends else 0

    def raw(self, number: int, schema: Any) -> bytes:
        """Returns the bytes of a record."""
        if not self.ends:
            self.one_by_one(schema)
        begin = self.ends[number - 1] if number else 0
        return self.records[begin : min(self.ends[number], begin + MAX_RAW_BYTES)]


class _Batch:
    """Gathers records of several blocks, and converts the records to one Arrow table."""

    def __init__(self, header: _Header, target: Target) -> None:
        self._header, self._target = header, target
        self._values: list[Any] = []
        self._places: list[tuple[_Block, int]] = []
        self._bytes = self._nulls = 0
        self._rows = max(1, min(ROWS, MAX_CELLS // max(1, count_fields(target.output))))

    @property
    def full(self) -> bool:
        """True if the batch is large enough to become an Arrow table."""
        return len(self._values) >= self._rows or self._bytes >= MAX_AVRO_BLOCK_BYTES

    def add(self, block: _Block) -> Reject | None:
        """Reads a block. If a record is unreadable, returns one reject for it and for the rest of the block."""
        if block.count > min(len(block.records), MAX_AVRO_BLOCK_ROWS):
            raise UnreadableError(
                f"a block of {block.count} records in {len(block.records)} bytes: at most {MAX_AVRO_BLOCK_ROWS} "
                "records are allowed"
            )
        header = self._header
        self._nulls += block.count * header.nulls
        # Each item of a list takes at least one byte, so a list cannot have more items than the block has bytes.
        if max(self._nulls, len(block.records) * header.nested_nulls) > MAX_ROW_GROUP_CELLS:
            raise UnreadableError(f"more than {MAX_ROW_GROUP_CELLS} values of fields that are always null")
        if len(block.records) > header.block_bytes:
            raise UnreadableError(
                f"a block of {len(block.records)} bytes is too large: at most {header.block_bytes} are allowed, "
                "because some fields of its records take no bytes"
            )
        error = ""
        try:
            values = block.together(self._header.all) if block.records else []
        except MemoryError as found:
            raise UnreadableError(
                f"a block of {block.count} records needs more memory than there is"
            ) from found
        except Exception:  # noqa: BLE001 - a damaged file can raise anything
            values, error = block.one_by_one(self._header.each)
        self._values += values
        self._places += [(block, number) for number in range(len(values))]
        self._bytes += len(block.records)
        if not error:
            return None
        reason = f"Avro: record {len(values)} of {block.count} in its block: {error}"
        raw = block.records[block.end : block.end + MAX_RAW_BYTES]
        return Reject(index=0, offset=block.place + len(values), reason=reason, raw=raw)

    def take(self) -> Iterator[Parsed]:
        """Yields the rows of the batch, and a reject for each record with a value that does not fit."""
        values, places = self._values, self._places
        self._values, self._places, self._bytes = [], [], 0
        for low in range(0, len(values), self._rows):
            yield from self._fitted(values[low : low + self._rows], places[low : low + self._rows])

    def _fitted(self, values: list[Any], places: list[tuple[_Block, int]]) -> Iterator[Parsed]:
        try:
            table = pa.Table.from_pylist(values, schema=stored(self._header.read))
            table = table.cast(self._header.read)
        except Exception as error:  # noqa: BLE001 - a value may raise any error
            if len(values) == 1:
                yield no_rows(self._target, [self._reject(places[0], reason_of(error))])
                return
            half = len(values) // 2
            yield from self._fitted(values[:half], places[:half])
            yield from self._fitted(values[half:], places[half:])
            return
        found = fit_rows(table, self._target)
        offsets = np.array([block.place + number for block, number in places], np.int64)
        found.offset = offsets[found.offset]
        found.rejects = [self._reject(places[reject.offset], reject.reason) for reject in found.rejects]
        yield found

    def _reject(self, at: tuple[_Block, int], reason: str) -> Reject:
        block, number = at
        raw = block.raw(number, self._header.each)
        return Reject(index=0, offset=block.place + number, reason=f"Avro: {reason}", raw=raw)


def _bytes_of(number: int) -> bytes:
    sink = BytesIO()
    fastavro.schemaless_writer(sink, "long", number)
    return sink.getvalue()


def _limited(new: Callable[[], Any]) -> Callable[[bytes], bytes]:
    def decompress(data: bytes) -> bytes:
        try:
            found: bytes = new().decompress(data, MAX_AVRO_BLOCK_BYTES + 1)
        except Exception as error:
            raise UnreadableError(reason_of(error)) from error
        if len(found) > MAX_AVRO_BLOCK_BYTES:
            raise UnreadableError(f"a block of more than {MAX_AVRO_BLOCK_BYTES} bytes, decompressed")
        return found

    return decompress


class _Snappy:
    """Decompresses a block of raw snappy, without frames, and checks the checksum behind the data."""

    def decompress(self, data: bytes, _: int) -> bytes:
        if (length := snappy_length(data)) > MAX_AVRO_BLOCK_BYTES:
            raise UnreadableError(f"a block of {length} bytes, decompressed")
        found = bytes(cramjam.snappy.decompress_raw(data[:-4]))
        if zlib.crc32(found) != int.from_bytes(data[-4:]):
            raise UnreadableError("a block whose checksum is wrong")
        return found


_CODECS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": bytes,
    "deflate": _limited(lambda: zlib.decompressobj(wbits=-15)),
    "snappy": _limited(_Snappy),
    "zstandard": _limited(new_zstd),
    "bzip2": _limited(bz2.BZ2Decompressor),
    "xz": _limited(lzma.LZMADecompressor),
}
