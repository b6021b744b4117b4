"""Reads Parquet files by ranges. Several requests are in flight before the decoder needs the bytes. The number of bytes
that are read in advance is limited.

The footer has the positions of the pages that a caller needs. Neighbouring pages are read by one request, up to
`PACK_READ_BYTES`. Other bytes are read when the decoder asks for them.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.kernel.limits import PACK_GAP_BYTES, PACK_READ_BYTES, READ_AHEAD_BYTES

T = TypeVar("T")

Span = tuple[int, int]
"""A range of bytes: the position of its first byte, and the position after its last byte."""

Fetch = Callable[[int, int], bytes]
"""Reads one range. Cost: 1 GET."""

ITEMS_AHEAD: Final = 64


class RangedFile:
    """A file for `pa.PythonFile`. Some byte ranges of the file are in memory.

    `parts`: the byte ranges in memory, in order, each with the position of its first byte. Each read of other bytes
    costs 1 GET.
    """

    closed = False

    def __init__(self, size: int, parts: Sequence[tuple[int, bytes]], fetch: Fetch) -> None:
        self._size = size
        self._parts = parts
        self._starts = [start for start, _ in parts]
        self._fetch = fetch
        self._at = 0

    def read(self, count: int = -1) -> bytes:
        """Returns bytes from the file's position on."""
        end = self._size if count < 0 else min(self._at + count, self._size)
        found = []
        while self._at < end:
            number = bisect_right(self._starts, self._at) - 1
            start, part = self._parts[number] if number >= 0 else (0, b"")
            piece = part[self._at - start : end - start] or self._fetch(self._at, end)
            found.append(piece)
            self._at += len(piece)
        return found[0] if len(found) == 1 else b"".join(found)

    def seek(self, place: int, whence: int = 0) -> int:
        """See `io.IOBase.seek`."""
        self._at = place + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """See `io.IOBase.tell`."""
        return self._at

    def close(self) -> None:
        """Does nothing, because no resource is open."""


def near(spans: Iterable[Span], *, gap: int = PACK_GAP_BYTES, most: int = PACK_READ_BYTES) -> list[Span]:
    """Returns the ranges to request for these spans. Spans with a small gap are joined, and long spans are cut.
    Pure.
    """
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= gap and end - joined[-1][0] <= most:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return [(at, min(at + most, end)) for start, end in joined for at in range(start, end, most)]


def chunks_of(group: pq.RowGroupMetaData, columns: AbstractSet[str] | None) -> list[Span]:
    """Returns the spans of these columns (None: all) in a row group. The name of a struct selects all of its fields.
    Pure.
    """
    found = []
    for number in range(group.num_columns):
        column = group.column(number)
        if columns is None or not columns.isdisjoint(_prefixes(column.path_in_schema)):
            start = start_of(column)
            found.append((start, start + column.total_compressed_size))
    return found


def start_of(column: pq.ColumnChunkMetaData) -> int:
    """Returns the position of the first byte of a column in a row group. Pure."""
    first: int = column.data_page_offset
    dictionary: int | None = column.dictionary_page_offset if column.has_dictionary_page else None
    return min(dictionary or first, first)


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def ahead(
    pool: Executor,
    items: Iterable[T],
    requests_of: Callable[[T], Sequence[Callable[[], bytes]]],
    bytes_of: Callable[[T], int],
    *,
    most_bytes: int = READ_AHEAD_BYTES,
) -> Iterator[tuple[T, list[bytes]]]:
    """Yields the items in order, each with the answers to its requests. Meanwhile, requests for later items are in
    flight.

    Memory holds at most `most_bytes` of answers, and the answers of one more item.
    """
    source = iter(items)
    waiting: deque[tuple[T, list[Future[bytes]], int]] = deque()
    held = 0
    ended = False
    while True:
        while not ended and held < most_bytes and len(waiting) < ITEMS_AHEAD:
            try:
                item = next(source)
            except StopIteration:
                ended = True
                break
            size = bytes_of(item)
            waiting.append((item, [pool.submit(request) for request in requests_of(item)], size))
            held += size
        if not waiting:
            return
        item, futures, size = waiting.popleft()
        yield item, [future.result() for future in futures]
        held -= size


def parquet_file(
    source: RangedFile | bytes, metadata: pq.FileMetaData | None = None, *, buffer: int = 0
) -> pq.ParquetFile:
    """Returns the opened file. `buffer`: the number of bytes of a column that are read at a time, or 0 for the whole
    column.
    """
    opened = pa.BufferReader(source) if isinstance(source, bytes) else pa.PythonFile(source, mode="r")
    return pq.ParquetFile(opened, metadata=metadata, buffer_size=buffer, pre_buffer=False)
