"""Bytes of one object, in ranges. A few ranges are read ahead of the parser."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from s3notify_platform.kernel.parallel import readers

if TYPE_CHECKING:
    from concurrent.futures import Future

CHUNK_BYTES: Final = 8 << 20
AHEAD: Final = 3
"""Number of reads in flight for one object."""

TAIL_BYTES: Final = 64 << 10
"""Size of the first read beyond a split, for the end of its last record. Each further read is twice as long."""


class ObjectBytes(Protocol):
    """The bytes of one object version.

    `read` raises `ConflictError` if the object is another version now, `NotFoundError` if it is gone, and
    `RefusedError` if the store refuses it. If none of these is known, it raises `UnavailableError`.
    """

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """All bytes from `start` to before `end`. Thread-safe."""
        ...


class BytesInMemory:
    """An object that was fetched completely."""

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
    """Bytes from `start` to before `end`, in order. Besides the returned chunk, at most `ahead` chunks are held.

    An empty range still sends one read, to check that the object exists. If the iterator is closed before its end,
    reads in flight continue, and nobody waits for them.
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
    """The result of `chunks`, and then the bytes up to the object's end.

    These are read only when the caller asks for them.
    """
    yield from chunks(source, start, end, chunk_bytes=chunk_bytes, ahead=ahead)
    place, step = end, min(TAIL_BYTES, chunk_bytes)
    while place < source.size:
        upto = min(place + step, source.size)
        yield source.read(place, upto)
        place, step = upto, min(2 * step, chunk_bytes)
