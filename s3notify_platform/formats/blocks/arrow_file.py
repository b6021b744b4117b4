"""Presents an object as a file to Arrow's readers, and converts the errors of these readers."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from s3notify_platform.formats.object_bytes import CHUNK_BYTES, BytesInMemory, ObjectBytes, chunks
from s3notify_platform.formats.records import UNKNOWN_FIELD, Target, reason_of
from s3notify_platform.kernel.errors import S3NotifyError


class UnreadableError(Exception):
    """A file, or a part of it, that a format cannot read. A format never passes this error to its caller."""


class ArrowFile(io.RawIOBase):
    """The object as a file for pyarrow.

    Keeps each error of the store, because pyarrow replaces it by an error of its own.
    """

    def __init__(self, source: ObjectBytes) -> None:
        super().__init__()
        self._source = source
        self._place = 0
        self.failure: S3NotifyError | None = None

    @property
    def in_memory(self) -> bool:
        """True if reading the file again costs no request."""
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
    """Raises pyarrow's errors as `UnreadableError`, and the store's errors unchanged."""
    try:
        yield
    except Exception as error:
        if file.failure:
            raise file.failure from error
        # A damaged file can raise any error, and must not stop the read of other files.
        raise UnreadableError(reason_of(error)) from error


def wanted_columns(names: list[str], target: Target) -> list[str]:
    """Returns the columns to read from a file: the schema's columns, or all columns if the target also needs columns
    that the schema lacks. Pure.

    Raises `UnreadableError` if the file has no column of a given schema, or has two columns with the same name.
    """
    if len(set(names)) != len(names):
        raise UnreadableError("a column name occurs twice")
    if names and not target.inferred and not set(names) & set(target.schema.names):
        raise UnreadableError(f"column {names[0]!r} {UNKNOWN_FIELD}")
    if target.inferred or target.rescue:
        return names
    named = {*target.schema.names}
    return [name for name in names if name in named]
