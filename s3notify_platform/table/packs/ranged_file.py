"""Parquet files that are read by ranges: several requests ahead of what is being decoded, bounded in bytes.

The pages that a caller wants are known from the footer. Those that lie near each other are read by one request, up to
`PACK_READ_BYTES`. Whatever else a decoder asks for is read when it asks.
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
"""From a byte on, to below another one."""

Fetch = Callable[[int, int], bytes]
"""Reads a span. 1 GET."""

ITEMS_AHEAD: Final = 64


class RangedFile:
    """A file of which some parts are there, for `pa.PythonFile`. `parts`: each with its first byte, in order.

    1 GET more for each read that goes beyond them.
    """

    closed = False

    def __init__(self, size: int, parts: Sequence[tuple[int, bytes]], fetch: Fetch) -> None:
        self._size = size
        self._parts = parts
        self._starts = [start for start, _ in parts]
        self._fetch = fetch
        self._at = 0

    def read(self, count: int = -1) -> bytes:
        """Bytes from where the file is."""
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
        """As files have it."""
        self._at = place + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """As files have it."""
        return self._at

    def close(self) -> None:
        """Nothing is open."""


def near(spans: Iterable[Span], *, gap: int = PACK_GAP_BYTES, most: int = PACK_READ_BYTES) -> list[Span]:
    """Spans as they are read: joined where they lie near each other, cut where they are long. Pure."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= gap and end - joined[-1][0] <= most:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return [(at, min(at + most, end)) for start, end in joined for at in range(start, end, most)]


def chunks_of(group: pq.RowGroupMetaData, columns: AbstractSet[str] | None) -> list[Span]:
    """Where the columns of a row group are (None: all). Pure. A name stands for all that begins with it and a dot."""
    found = []
    for number in range(group.num_columns):
        column = group.column(number)
        if columns is None or not columns.isdisjoint(_prefixes(column.path_in_schema)):
            start = start_of(column)
            found.append((start, start + column.total_compressed_size))
    return found


def start_of(column: pq.ColumnChunkMetaData) -> int:
    """The first byte of a column of a row group. Pure."""
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
    """The items in their order, each with the answers to its requests, of which those of later items are under way.

    In memory: `most_bytes`, and one item.
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
    """The file, opened. `buffer`: columns are read so many bytes at a time; 0: as a whole."""
    opened = pa.BufferReader(source) if isinstance(source, bytes) else pa.PythonFile(source, mode="r")
    return pq.ParquetFile(opened, metadata=metadata, buffer_size=buffer, pre_buffer=False)
