"""A state file: object states sorted by (slot, key), in pages, each with a filter of its keys. Pure.

The file is Parquet, and any reader of Parquet can open it. The row groups of the file are the pages. The filters come
after the last page, where readers of Parquet do not look. Then comes the footer. The footer's metadata has the position
of each page. The filters and the footer together are called the *tail*. A process needs only the tail to find the page
that may have a key. `StateFile`, in the manifest, has the tail's length and checksum. Pages have Parquet's checksums.

The place of a state is (slot, key). The places in a file are from `first` to `end` (exclusive). Each bound is the
beginning of a slot, or is made from a key of the file. So if a file is rewritten without an erased key, the file's
bounds do not show this key.
"""

import io
import json
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import STATE_PAGE, STATE_PAGE_BYTES
from s3notify_platform.table.states.state_columns import (
    FIELDS,
    STATE_SCHEMA,
    Place,
    failing_in,
    pending_in,
    place_at,
    trimmed,
)
from s3notify_platform.table.states.state_filter import KeyHash, filter_bytes, filter_of, may_hold

_DISTINCT: Final = ("key", "etag", "size")
_BOOLEAN: Final = tuple(name for name, kind in FIELDS.items() if pa.types.is_boolean(kind))

_PAGES: Final = b"s3notify.pages"
_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A state file, as the manifest describes it. `states`: the number of all states.

    `gone`: the number of `gone` marks, for keys whose objects have left. `tail`: the length of the tail in bytes.
    `check`: the CRC-32 of the tail.
    """

    name: str
    level: int
    states: int
    bytes: int
    tail: int
    check: int
    first: Place
    end: Place
    failing: int = 0
    pending: int = 0
    gone: int = 0

    def row(self) -> list[object]:
        """Returns the file in the manifest's format: a short list."""
        own = [self.name, self.level, self.states, self.bytes, self.tail, self.check, *self.first, *self.end]
        return [*own, *trimmed([self.failing, self.pending, self.gone], [0, 0, 0])]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "StateFile":
        """Decodes the result of `row`. Raises `ValueError` for any other list."""
        if not isinstance(row, list) or not 10 <= len(row) <= 13:
            raise ValueError(f"not a state file: {str(row)[:200]}")
        name, level, states, size, tail, check, slot, key, end_slot, end_key, *counts = row
        numbers = (level, states, size, tail, check, slot, end_slot, *counts)
        keys = (key, end_key)
        if (
            not all(type(n) is int and 0 <= n < 2**63 for n in numbers)
            or not all(isinstance(each, str) for each in (name, *keys))
            or not _NAME.fullmatch(name)
            or tail > size
            or (slot, key) >= (end_slot, end_key)
        ):
            raise ValueError(f"not a state file: {str(row)[:200]}")
        failing, pending, gone = [*counts, 0, 0, 0][:3]
        return cls(
            name=name,
            level=level,
            states=states,
            bytes=size,
            tail=tail,
            check=check,
            first=(slot, key),
            end=(end_slot, end_key),
            failing=failing,
            pending=pending,
            gone=gone,
        )

    def touches(self, first: Place, end: Place) -> bool:
        """Returns true if the file may have a state at a place from `first` to `end` (exclusive)."""
        return self.first < end and first < self.end

    def corrupt(self, error: object) -> CorruptError:
        """Returns the error for a file that is missing, or whose bytes were changed after the write."""
        return CorruptError(
            f"state file {self.name}.parquet: {error}; restore the object as it was written, or roll the table back "
            "to a version that does not name it"
        )


# Writing


def state_files(
    columns: Iterable[pa.RecordBatch],
    *,
    level: int,
    name: Callable[[], str],
    file_bytes: int,
    hull: tuple[Place, Place] = ((0, ""), (1 << 31, "")),
    cuts: Sequence[Place] = (),
) -> Iterator[tuple[StateFile, bytes]]:
    """Makes files of sorted states, and yields each file with its body.

    A file ends after about `file_bytes`, or near one of the `cuts`. The end of a file is the end of a slot, except if
    the file would otherwise exceed about 1.5 times `file_bytes`. `hull`: a range of places in which the other files of
    the level have no states.
    """
    writer, cut, (start, end) = _Writer(), 0, hull
    for page in _pages_of(columns):
        rest = page
        if writer.pages and (writer.size >= file_bytes or (cut < len(cuts) and writer.last >= cuts[cut])):
            of_slot = int(np.searchsorted(page.column("slot").to_numpy(), writer.last[0], "right"))
            if of_slot < page.num_rows:
                if of_slot:
                    writer.add(page.slice(0, of_slot))
                rest = page.slice(of_slot)
            if rest is not page or not of_slot or writer.size >= file_bytes * 3 // 2:
                file, body = writer.finish(name(), level, (start, place_at(rest, 0)))
                yield file, body
                writer, start = _Writer(), file.end
        while cut < len(cuts) and cuts[cut] <= place_at(rest, 0):
            cut += 1
        writer.add(rest)
    if writer.pages:
        yield writer.finish(name(), level, (start, end))


def _pages_of(columns: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in columns:
        each = max(1, -(-batch.nbytes // max(1, batch.num_rows)))
        step = max(1, min(STATE_PAGE, STATE_PAGE_BYTES // each))
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, min(step, STATE_PAGE - rows, batch.num_rows - start))
            start += part.num_rows
            waiting.append(part)
            rows += part.num_rows
            size += part.num_rows * each
            if rows == STATE_PAGE or size + each > STATE_PAGE_BYTES:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


class _Writer:
    """Makes one file, page by page."""

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            STATE_SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=["slot", *(name for name in FIELDS if name not in (*_DISTINCT, *_BOOLEAN))],
            column_encoding={"key": "DELTA_BYTE_ARRAY", "size": "DELTA_BINARY_PACKED"},
            write_statistics=["slot"],
            store_schema=False,
            write_page_checksum=True,
        )
        self.pages: list[list[object]] = []
        self._filters: list[bytes] = []
        self._first: Place = (0, "")
        self.last: Place = (0, "")
        self._counts = np.zeros(4, np.int64)

    @property
    def size(self) -> int:
        """The number of bytes of all pages that are written."""
        return int(self._sink.tell())

    def add(self, page: pa.RecordBatch) -> None:
        """Appends a page. All places of the page must come after the places of earlier pages."""
        first, last = place_at(page, 0), place_at(page, page.num_rows - 1)
        assert not self.pages or self.last < first, "states out of order"
        failing, pending, gone = (
            pc.sum(each).as_py() for each in (failing_in(page), pending_in(page), page.column("gone"))
        )
        self._first = self._first if self.pages else first
        self.last = last
        self.pages.append([self.size, page.num_rows, *first, last[0], failing, pending])
        self._filters.append(filter_of(page.column("key").to_pylist()))
        self._counts += (page.num_rows, failing, pending, gone)
        self._writer.write_batch(page, row_group_size=page.num_rows)

    def finish(self, name: str, level: int, hull: tuple[Place, Place]) -> tuple[StateFile, bytes]:
        """Ends the file, and returns its description and its body."""
        pages_end = self.size
        for each in self._filters:
            self._sink.write(each)
        about = json.dumps({"end": pages_end, "pages": self.pages}, separators=(",", ":"))
        self._writer.add_key_value_metadata({_PAGES: about.encode()})
        self._writer.close()
        body = self._sink.getvalue().to_pybytes()
        (slot, key), (last_slot, last_key) = self._first, self.last
        states, failing, pending, gone = map(int, self._counts)
        file = StateFile(
            name=name,
            level=level,
            states=states,
            bytes=len(body),
            tail=len(body) - pages_end,
            check=zlib.crc32(memoryview(body)[pages_end:]),
            first=(slot, "") if (slot, "") >= hull[0] else (slot, key),
            end=(last_slot + 1, "") if (last_slot + 1, "") <= hull[1] else (last_slot, f"{last_key}\0"),
            failing=failing,
            pending=pending,
            gone=gone,
        )
        return file, body


# Reading

_UNREADABLE: Final = (ValueError, KeyError, TypeError, IndexError, OSError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class PageEntry:
    """The description of a page: its first place, its last slot, its bytes from `start` to `end` (exclusive), and its
    counts.
    """

    first: Place
    last_slot: int
    start: int
    end: int
    states: int
    failing: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The tail of a file, decoded."""

    file: StateFile
    pages: tuple[PageEntry, ...]
    firsts: tuple[Place, ...]
    filters: tuple[memoryview, ...] = field(repr=False)
    metadata: pq.FileMetaData = field(repr=False)

    @property
    def memory(self) -> int:
        """The approximate number of bytes that the tail takes in memory."""
        return 4 * self.file.tail

    def page_of(self, place: Place, key: KeyHash) -> int | None:
        """Returns the number of the page that may have a state at the place, or None if the file has no state there."""
        number = bisect_right(self.firsts, place) - 1
        return number if number >= 0 and may_hold(self.filters[number], key) else None

    def pages_of_slots(self, slots: Sequence[int]) -> list[int]:
        """Returns the numbers of the pages whose range of slots includes some of these sorted slots."""
        found = []
        for number, page in enumerate(self.pages):
            at = bisect_left(slots, page.first[0])
            if at < len(slots) and slots[at] <= page.last_slot:
                found.append(number)
        return found


def tail_of(file: StateFile, body: bytes) -> Tail:
    """Decodes the tail: the last `file.tail` bytes. `CorruptError`: the bytes were changed after the write."""
    if len(body) != file.tail or zlib.crc32(body) != file.check:
        raise file.corrupt(f"its last {file.tail} bytes differ from the bytes that were written")
    try:
        return _tail_of(file, body)
    except _UNREADABLE as error:
        raise file.corrupt(f"{type(error).__name__}: {error}") from error


def _tail_of(file: StateFile, body: bytes) -> Tail:
    start = file.bytes - file.tail
    metadata = pq.read_metadata(pa.BufferReader(body))
    about = json.loads(metadata.metadata[_PAGES])
    rows: list[list[Any]] = about["pages"]
    if about["end"] != start or len(rows) != metadata.num_row_groups:
        raise ValueError("its pages are not at the positions in the footer")
    ends = [*(row[0] for row in rows[1:]), start]
    pages = tuple(
        PageEntry((slot, key), last, at, end, states, failing, pending)
        for (at, states, slot, key, last, failing, pending), end in zip(rows, ends, strict=True)
    )
    view, filters, at = memoryview(body), [], 0
    for page in pages:
        size = filter_bytes(page.states)
        filters.append(view[at : at + size])
        at += size
    return Tail(
        file=file,
        pages=pages,
        firsts=tuple(page.first for page in pages),
        filters=tuple(filters),
        metadata=metadata,
    )


def page_of(tail: Tail, number: int, body: bytes | memoryview, start: int) -> pa.RecordBatch:
    """Decodes a page from bytes that begin at `start` in the file.

    `CorruptError`: the bytes were changed after the write.
    """
    page, file = tail.pages[number], tail.file
    try:
        opened = pq.ParquetFile(
            pa.PythonFile(_Window(body, start, file.bytes), mode="r"),
            metadata=tail.metadata,
            page_checksum_verification=True,
        )
        found = opened.read_row_group(number, use_threads=False).combine_chunks()
        columns = pa.record_batch([each.chunk(0) for each in found.columns], schema=STATE_SCHEMA)
        if columns.num_rows != page.states or place_at(columns, 0) != page.first:
            raise ValueError("its states do not match the tail")
    except _UNREADABLE as error:
        raise file.corrupt(f"page {number}: {type(error).__name__}: {str(error)[:300]}") from error
    return columns


class _Window(io.RawIOBase):
    """A file of which only some bytes are in memory."""

    def __init__(self, body: bytes | memoryview, start: int, size: int) -> None:
        super().__init__()
        self._body, self._start, self._size, self._at = memoryview(body), start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if not self._start <= self._at <= end <= self._start + len(self._body):
            _not_there(self._at, end)
        found = bytes(self._body[self._at - self._start : end - self._start])
        self._at = end
        return found


def _not_there(at: int, end: int) -> NoReturn:
    raise OSError(f"its bytes {at} to {end} were not read")
