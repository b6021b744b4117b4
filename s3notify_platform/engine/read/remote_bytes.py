"""Reads ranges of one object version in a bucket. Each GET is under If-Match, and so pinned to the object version.

A range is read completely or not at all. Each GET may raise `ConflictError` if the object was overwritten, or
`NotFoundError` if the object was deleted. After a bounded number of retries, a GET raises `RefusedError` if the object
is at fault, else `UnavailableError` (`read_errors`).
"""

from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import PreconditionError

from s3notify_platform.engine.read.read_errors import unread
from s3notify_platform.engine.values.unforeseen import is_unforeseen
from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, RefusedError, UnavailableError
from s3notify_platform.kernel.limits import MAX_WHOLE_BYTES
from s3notify_platform.kernel.ports import Conflict, NotModified, ObjectMeta
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.obstore_answers import fits_obstore, is_unreadable, meta_of
from s3notify_platform.stores.open_store import open_reader, open_store

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

READ_ATTEMPTS: Final = 4


class RemoteBytes:
    """An object in a bucket. No request is sent before the first read.

    Each read takes one GET, and possibly retries.
    """

    def __init__(
        self, config: S3Config, version: ObjectVersion, *, prefix: str = "", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`prefix`: the source's prefix."""
        self._config = config
        self._prefix = prefix
        self._version = version
        self._clock = clock
        self._in_ranges = fits_obstore(version.key)
        self._whole: bytes | None = None
        self._lock = RLock()
        self.gets = 0
        """Number of GETs sent so far."""
        self.meta: ObjectMeta | None = None
        """The object's metadata from the first GET that was answered."""

    @property
    def size(self) -> int:
        """See `ObjectBytes.size`."""
        return self._version.size

    def read(self, start: int, end: int) -> bytes:
        """See `ObjectBytes.read`."""
        in_ranges = self._in_ranges and _reader(self._config) is not None
        if not in_ranges and self._version.size > MAX_WHOLE_BYTES:
            raise RefusedError(
                f"larger than {MAX_WHOLE_BYTES} bytes, and cannot be read in parts because of its key, its metadata "
                "that is not ASCII, or its kind of store"
            )
        get = self._get if in_ranges else self._of_whole
        failure: Exception = UnavailableError("never tried")
        for _ in attempts(self._clock, READ_ATTEMPTS):
            try:
                return get(start, end)
            except (ConflictError, NotFoundError):
                raise
            except PreconditionError as error:
                raise ConflictError(f"{self._version.key}: the object has another version now") from error
            except FileNotFoundError as error:
                raise NotFoundError(f"{self._version.key}: gone") from error
            except Exception as error:  # noqa: BLE001 - obstore and its libraries raise many kinds
                if in_ranges and is_unreadable(error):
                    self._in_ranges = False
                    return self.read(start, end)
                failure = error
        if is_unforeseen(failure):
            raise failure
        why = unread(
            self._config,
            self._version.key,
            f"{type(failure).__name__}: {str(failure)[:300]}",
            prefix=self._prefix,
        )
        raise (UnavailableError if why.outage else RefusedError)(why.reason) from failure

    def _get(self, start: int, end: int) -> bytes:
        options: GetOptions = {"if_match": f'"{self._version.etag}"'}
        if end > start:
            options["range"] = (start, end)
        self._count()
        reader = _reader(self._config)
        assert reader is not None, "looked at before"
        found = obstore.get(reader, self._version.key, options=options)
        body = bytes(found.bytes())
        if len(body) != end - start:
            raise UnavailableError(f"{len(body)} bytes arrived instead of {end - start}")
        self.meta = self.meta or meta_of(self._version.key, found)
        return body

    def _count(self) -> None:
        with self._lock:
            self.gets += 1

    def _of_whole(self, start: int, end: int) -> bytes:
        with self._lock:  # several threads read ahead, but only one of them fetches the object
            if self._whole is None:
                self._count()
                found = open_store(self._config).get(self._version.key, if_match=self._version.etag)
                match found:
                    case None:
                        raise NotFoundError(f"{self._version.key}: gone")
                    case Conflict() | NotModified():
                        raise ConflictError(f"{self._version.key}: the object has another version now")
                    case _:
                        self._whole, self.meta = found.body, found.meta
            return self._whole[start:end]


@lru_cache(maxsize=8)
def _reader(config: S3Config) -> "S3Store | None":
    return open_reader(config)
