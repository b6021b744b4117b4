"""Ranged reads of one object version: each GET under If-Match, a few ahead of what is being parsed.

A range is read whole or not at all. That the object is another one now, or gone, is `ConflictError` and
`NotFoundError`, in whichever GET it shows; `UnavailableError` after bounded retries.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

import obstore
from obstore.exceptions import PreconditionError

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.errors import ConflictError, NotFoundError, UnavailableError
from s3notify_platform.ports import Conflict, NotModified
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.stores.s3.obstore_client import fits_obstore, obstore_store

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

CHUNK_BYTES: Final = 8 << 20
AHEAD: Final = 3
"""GETs in flight for one split."""

TAIL_BYTES: Final = 64 << 10
"""The first read beyond a split, for the end of its last record; each further one is twice as long."""

ATTEMPTS: Final = 4

WHOLE_BYTES: Final = 512 << 20
"""Objects whose keys obstore cannot express are read whole, and no larger ones."""


class ObjectBytes(Protocol):
    """The bytes of one object version."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """Bytes from `start` to before `end`, all of them. Thread-safe."""
        ...


class BytesInMemory:
    """An object that was fetched whole."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    @property
    def size(self) -> int:
        """See `ObjectBytes.size`."""
        return len(self.body)

    def read(self, start: int, end: int) -> bytes:
        """See `ObjectBytes.read`."""
        return self.body[start:end]


class RemoteBytes:
    """An object in a bucket. Nothing is sent before the first read; one GET each, and its retries."""

    def __init__(self, config: S3Config, version: ObjectVersion, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config = config
        self._version = version
        self._clock = clock
        self._whole: bytes | None = None
        self._lock = Lock()
        self.gets = 0
        """GETs that were sent so far."""

    @property
    def size(self) -> int:
        """See `ObjectBytes.size`."""
        return self._version.size

    def read(self, start: int, end: int) -> bytes:
        """See `ObjectBytes.read`."""
        if not fits_obstore(self._version.key):
            return self._read_whole()[start:end]
        failure: Exception = UnavailableError("never tried")
        for attempt in range(ATTEMPTS):
            if attempt:
                self._clock.sleep(backoff_seconds(attempt, self._clock))
            try:
                return self._get(start, end)
            except PreconditionError as error:
                raise ConflictError(f"{self._version.key}: another version now") from error
            except FileNotFoundError as error:
                raise NotFoundError(f"{self._version.key}: gone") from error
            except Exception as error:  # noqa: BLE001 - obstore and what is below it raise many kinds
                failure = error
        raise UnavailableError(f"{type(failure).__name__}: {str(failure)[:300]}") from failure

    def _get(self, start: int, end: int) -> bytes:
        options: GetOptions = {"if_match": f'"{self._version.etag}"'}
        if end > start:
            options["range"] = (start, end)
        self._count()
        body = bytes(obstore.get(_store(self._config), self._version.key, options=options).bytes())
        if len(body) != end - start:
            raise UnavailableError(f"{len(body)} bytes came in place of {end - start}")
        return body

    def _count(self) -> None:
        with self._lock:
            self.gets += 1

    def _read_whole(self) -> bytes:
        if self._whole is None:
            if self._version.size > WHOLE_BYTES:
                raise UnavailableError(
                    f"larger than {WHOLE_BYTES} bytes, under a key that can be read as a whole only"
                )
            self._count()
            found = shared_store(self._config).get(self._version.key, if_match=self._version.etag)
            match found:
                case None:
                    raise NotFoundError(f"{self._version.key}: gone")
                case Conflict() | NotModified():
                    raise ConflictError(f"{self._version.key}: another version now")
                case _:
                    self._whole = found.body
        return self._whole


@lru_cache(maxsize=8)
def _store(config: S3Config) -> "S3Store":
    return obstore_store(config)


def chunks(
    source: ObjectBytes, start: int, end: int, *, chunk_bytes: int = CHUNK_BYTES, ahead: int = AHEAD
) -> Iterator[bytes]:
    """Bytes from `start` to before `end`, in order; at most `ahead` chunks wait besides the one given out.

    Without any bytes, one read all the same: that the object is still there is known only then.
    """
    if start >= end:
        source.read(0, min(1, source.size))
        return
    with ThreadPoolExecutor(ahead, thread_name_prefix="ranges") as pool:
        pending: deque[Future[bytes]] = deque()
        try:
            for place in range(start, end, chunk_bytes):
                if len(pending) >= ahead:
                    yield pending.popleft().result()
                pending.append(pool.submit(source.read, place, min(place + chunk_bytes, end)))
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def chunks_on(
    source: ObjectBytes, start: int, end: int, *, chunk_bytes: int = CHUNK_BYTES, ahead: int = AHEAD
) -> Iterator[bytes]:
    """The same, and then on to the end of the object for as long as it is asked for more, nothing ahead."""
    yield from chunks(source, start, end, chunk_bytes=chunk_bytes, ahead=ahead)
    place, step = end, min(TAIL_BYTES, chunk_bytes)
    while place < source.size:
        upto = min(place + step, source.size)
        yield source.read(place, upto)
        place, step = upto, min(2 * step, chunk_bytes)
