"""An object as a file for Arrow's readers, and their errors."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from s3notify_platform.formats.object_bytes import CHUNK_BYTES, BytesInMemory, ObjectBytes, chunks
from s3notify_platform.formats.records import UNKNOWN_FIELD, Target, reason_of
from s3notify_platform.kernel.errors import S3NotifyError


class UnreadableError(Exception):
    """What a format cannot read, for any reason; never leaves it."""


class ArrowFile(io.RawIOBase):
    """The object as a file for pyarrow. The store's error is kept, since pyarrow replaces it by its own."""

    def __init__(self, source: ObjectBytes) -> None:
        super().__init__()
        self._source = source
        self._place = 0
        self.failure: S3NotifyError | None = None

    @property
    def in_memory(self) -> bool:
        """Whether reading it again costs no request."""
        return isinstance(self._source, BytesInMemory)

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """See `io.RawIOBase`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._source.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """See `io.RawIOBase`."""
        end = self._source.size if size < 0 else min(self._place + size, self._source.size)
        try:
            if end - self._place > CHUNK_BYTES:
                body = b"".join(chunks(self._source, self._place, end))
            else:
                body = self._source.read(self._place, end) if end > self._place else b""
        except S3NotifyError as error:
            self.failure = error
            raise
        self._place = max(end, self._place)
        return body


@contextmanager
def reading(file: ArrowFile) -> Iterator[None]:
    """What pyarrow raises as `UnreadableError`, what the store did as it was."""
    try:
        yield
    except Exception as error:
        if file.failure:
            raise file.failure from error
        # A damaged file can raise anything, and must not stop others.
        raise UnreadableError(reason_of(error)) from error


def wanted_columns(names: list[str], target: Target) -> list[str]:
    """The columns of a file that are read: those of the schema that it has, and all if the others matter. Pure.

    `UnreadableError` if it has none of a given schema, or two of one name.
    """
    if len(set(names)) != len(names):
        raise UnreadableError("a column name occurs twice")
    if names and not target.inferred and not set(names) & set(target.schema.names):
        raise UnreadableError(f"column {names[0]!r} {UNKNOWN_FIELD}")
    if target.inferred or target.rescue:
        return names
    named = {*target.schema.names}
    return [name for name in names if name in named]
