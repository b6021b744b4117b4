"""Reads the bytes of one object in ranges, and reads a few ranges ahead of the parser."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from s3notify_platform.kernel.parallel import readers

if TYPE_CHECKING:
    from concurrent.futures import Future

CHUNK_BYTES: Final = 8 << 20
"""Number of bytes of a GET. A larger object is read in ranges, because a request has a time limit. All ranges are
pinned to one ETag.
"""

AHEAD: Final = 3
"""Number of reads in flight for one object."""

TAIL_BYTES: Final = 64 << 10
"""Size of the first read behind the end of a split, where the split's last record may end.

Each further read is twice as long, up to the size of a chunk.
"""


class ObjectBytes(Protocol):
    """The bytes of one object version.

    `read` raises `ConflictError` if the object was overwritten, `NotFoundError` if it was deleted, and `RefusedError`
    if the store refuses to return the object. For any other failure, `read` raises `UnavailableError`.
    """

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """Returns all bytes from `start` to before `end`. Thread-safe."""
        ...


class BytesInMemory:
    """An object whose bytes were fetched completely."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    @property
    def size(self) -> int:
        """See `ObjectBytes.size`."""
        return len(self.body)

    def read(self, start: int, end: int) -> bytes:
        """See `ObjectBytes.read`."""
        return self.body[start:end]


def chunks(
    source: ObjectBytes, start: int, end: int, *, chunk_bytes: int = CHUNK_BYTES, ahead: int = AHEAD
) -> Iterator[bytes]:
    """Yields the bytes from `start` to before `end`, in order. Memory: the yielded chunk, and at most `ahead` more
    chunks.

    Even an empty range causes one read, to check that the object exists. If the caller closes the iterator early, reads
    in flight continue in the background.
    """
    if start >= end:
        source.read(0, min(1, source.size))
        return
    pending: deque[Future[bytes]] = deque()
    with readers(ahead, "ranges") as pool:
        for place in range(start, end, chunk_bytes):
            if len(pending) >= ahead:
                yield pending.popleft().result()
            pending.append(pool.submit(source.read, place, min(place + chunk_bytes, end)))
        while pending:
            yield pending.popleft().result()


def chunks_on(
    source: ObjectBytes, start: int, end: int, *, chunk_bytes: int = CHUNK_BYTES, ahead: int = AHEAD
) -> Iterator[bytes]:
    """Yields the result of `chunks`, and then the bytes up to the object's end.

    The bytes behind `end` are read only on demand.
    """
    yield from chunks(source, start, end, chunk_bytes=chunk_bytes, ahead=ahead)
    place, step = end, min(TAIL_BYTES, chunk_bytes)
    while place < source.size:
        upto = min(place + step, source.size)
        yield source.read(place, upto)
        place, step = upto, min(2 * step, chunk_bytes)
