"""Reads Parquet files by ranges. Several requests run ahead of the decoder, within a limit of bytes.

The footer says where the pages are that a caller needs. Neighbouring pages are read by one request, up to
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
"""A range: its first byte, and the byte after its last one."""

Fetch = Callable[[int, int], bytes]
"""Reads one range. 1 GET."""

ITEMS_AHEAD: Final = 64


class RangedFile:
    """A file for `pa.PythonFile`. Some of its parts are in memory.

    `parts`: these parts in order, each with the position of its first byte. Each read outside these parts takes 1 GET.
    """

    closed = False

    def __init__(self, size: int, parts: Sequence[tuple[int, bytes]], fetch: Fetch) -> None:
        self._size = size
        self._parts = parts
        self._starts = [start for start, _ in parts]
        self._fetch = fetch
        self._at = 0

    def read(self, count: int = -1) -> bytes:
        """Bytes from the file's position."""
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
        """Does nothing: there is nothing to close."""


def near(spans: Iterable[Span], *, gap: int = PACK_GAP_BYTES, most: int = PACK_READ_BYTES) -> list[Span]:
    """The ranges to request for these spans: near spans are joined, long spans are cut. Pure."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= gap and end - joined[-1][0] <= most:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return [(at, min(at + most, end)) for start, end in joined for at in range(start, end, most)]


def chunks_of(group: pq.RowGroupMetaData, columns: AbstractSet[str] | None) -> list[Span]:
    """The spans of these columns (None: all) in a row group. The name of a struct selects all of its fields. Pure."""
    found = []
    for number in range(group.num_columns):
        column = group.column(number)
        if columns is None or not columns.isdisjoint(_prefixes(column.path_in_schema)):
            start = start_of(column)
            found.append((start, start + column.total_compressed_size))
    return found


def start_of(column: pq.ColumnChunkMetaData) -> int:
    """The position of the first byte of a column in a row group. Pure."""
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
    """The items in order, each with the answers to its requests. Requests for later items are in flight meanwhile.

    Held in memory: `most_bytes`, and one item.
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
    """The opened file. `buffer`: the number of bytes of a column that are read at a time; 0: the whole column."""
    opened = pa.BufferReader(source) if isinstance(source, bytes) else pa.PythonFile(source, mode="r")
    return pq.ParquetFile(opened, metadata=metadata, buffer_size=buffer, pre_buffer=False)
