"""Objects that do not fit into memory: multipart uploads of files and streams, and copies by the store itself.

No part is visible before the upload is completed, by one request under the precondition. If the request gets no answer,
a HEAD shows whether the upload was completed. After the completion, the object's metadata has the writer id
(`updates.resolve`). An upload that does not become an object is aborted. If the uploading process is killed, the
unfinished upload stays in the bucket. If the publisher has a queue, the reconciler aborts such an upload. Otherwise,
the bucket's lifecycle needs a rule that aborts such uploads (`AbortIncompleteMultipartUpload`).

Limits. A precondition holds only if the store honours it when an upload is completed. Some stores honour a precondition
for a PUT only; `s3notify doctor` reports such stores (`upload_if_absent`). If the size is unknown, parts have different
sizes. So pass the `size` if the store requires equal parts. If a stream hangs, the upload waits for the stream without
a timeout.
"""

import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from s3notify_platform.kernel.attempts import answered
from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.errors import (
    NotFoundError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.kernel.limits import (
    COPIED_AT_ONCE_BYTES,
    COPIED_PART_BYTES,
    MAX_PARTS,
    MAX_PUBLISHED_BYTES,
    PART_BYTES,
    PARTS_BYTES,
)
from s3notify_platform.kernel.ports import (
    CopyRange,
    CopySource,
    ETag,
    Metadata,
    ObjectMeta,
    ObjectStore,
    Precondition,
    Unknown,
    UploadId,
    WriteOutcome,
    Written,
    holds,
)
from s3notify_platform.protocols.updates import WRITER, resolve, written_by

PARTS_AT_ONCE: Final = 4
"""The number of parts of one upload that are in flight at the same time."""

KEEP_CALL_SECONDS: Final = 1.0
"""Seconds between two calls of `keep` while an upload continues."""

_MIB: Final = 1 << 20

Part = bytes | CopyRange
O_co = TypeVar("O_co", covariant=True)


class Readable(Protocol):
    """A binary stream, like `open(path, "rb")` or `sys.stdin.buffer`."""

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes; b"" at the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """One change of a batch: writes the object."""

    key: str
    body: bytes
    precondition: Precondition | None = None
    metadata: Metadata = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargePut:
    """A change that is too large for a batch: writes the object part by part, or copies `source`. A `LargePut` can be
    used only once.

    `size` is None if the size is unknown before the end.
    """

    key: str
    parts: Iterator[Part]
    size: int | None = None
    source: CopySource | None = None
    precondition: Precondition | None = None
    metadata: Metadata = None
    writer: str = ""
    """A unique id, which a HEAD of the written object will show."""

    @property
    def at_once(self) -> bool:
        """True if one request copies the object."""
        whole = self.source is not None and self.source.meta.size <= COPIED_AT_ONCE_BYTES
        return whole and self.precondition is None

    @property
    def event_name(self) -> str:
        """The name that S3's events give to this kind of change."""
        return "ObjectCreated:Copy" if self.at_once else "ObjectCreated:CompleteMultipartUpload"


class LargeObjects(Generic[O_co]):
    """The methods of a publisher that write objects of up to 5 TiB, which need not fit into memory.

    Memory: at most 256 MiB, or one part if that is larger. If the size is known, each part has 1/10,000 of the size
    (525 MiB for 5 TiB), but at least 8 MiB. If the size is unknown, parts grow from 8 MiB to 1.1 GiB; after 100 GiB, a
    part has 151 MiB. A stream whose reads return fewer bytes than requested needs twice the memory of a part. An error
    of the stream is raised, and nothing is written. `UsageError` is raised, and nothing is written, if the stream does
    not have the given size.
    """

    def put_file(
        self,
        key: str,
        path: str | os.PathLike[str],
        *,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
    ) -> O_co:
        """Writes a file as an object. Requests for a file below 8 MiB: as for `put`. Requests for a larger file: as for
        `put`, with 2 requests and 1 for each part instead of the object's PUT.

        `UsageError`: the file cannot be read, or changed meanwhile; nothing was written.
        """
        try:
            with Path(path).open("rb") as file:
                found = os.fstat(file.fileno())
                size = found.st_size if stat.S_ISREG(found.st_mode) else None
                return self.put_stream(key, file, size=size, precondition=precondition, metadata=metadata)
        except OSError as error:
            raise UsageError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error

    def put_stream(
        self,
        key: str,
        stream: Readable,
        *,
        size: int | None = None,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
    ) -> O_co:
        """Writes all bytes of a stream as an object. Cost: the requests of `put_file`. `size`: the number of bytes, if
        known.

        Only one thread at a time reads the stream, but this may be a different thread each time. The stream is not
        closed. If the outcome is not `Written`, the bytes read so far are lost.
        """
        if size is not None and not 0 <= size <= MAX_PUBLISHED_BYTES:
            raise UsageError(f"{key!r}: size is {size}; an object has 0 to {MAX_PUBLISHED_BYTES} bytes")
        parts = _stream_parts(key, stream, size)
        ahead: list[bytes] = []
        if size is None or size < PART_BYTES:
            ahead = list(islice(parts, 1))
            if sum(map(len, ahead)) < PART_BYTES:
                body = b"".join([*ahead, *parts])  # `parts` has no more bytes, but checks the size at its end
                return self._large(Put(key=key, body=body, precondition=precondition, metadata=metadata))
        change = LargePut(
            key=key, parts=chain(ahead, parts), size=size, precondition=precondition, metadata=metadata
        )
        return self._large(change)

    def copy(
        self,
        key: str,
        source_bucket: str,
        source_key: str,
        *,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
    ) -> O_co:
        """Copies an object of any bucket of the same server and credentials. No byte passes through this process.

        An empty `source_bucket` is this bucket. The copy keeps the source's metadata; `metadata` overrides it.
        `NotFoundError`: the source does not exist. `ConflictError`: the source changed meanwhile. After each of these
        errors, nothing was written. Requests of a copy of up to 1 GiB without a precondition: as for `put`, and 1
        HEAD of the source. Any other copy takes 2 requests, and 1 for each 128 MiB, instead of the one request that
        copies.
        """
        found = self._source(source_bucket, source_key)
        if found is None:
            raise NotFoundError(
                f"copy to {key!r}: no object {source_key!r} in bucket {source_bucket or 'itself'!r}"
            )
        # Metadata of our own writers (`s3notify-…`) is not copied, because it describes only the source object.
        copied = {
            name: text for name, text in found.meta.metadata.items() if not name.startswith("s3notify-")
        }
        meta = {**copied, **(metadata or {})}
        if not found.meta.size:  # a copy by ranges needs at least one byte
            return self._large(Put(key=key, body=b"", precondition=precondition, metadata=meta))
        return self._large(
            LargePut(
                key=key,
                parts=_copy_parts(found),
                size=found.meta.size,
                source=found,
                precondition=precondition,
                metadata=meta,
            )
        )

    def _source(self, bucket: str, key: str) -> CopySource | None:
        raise NotImplementedError

    def _large(self, change: Put | LargePut) -> O_co:
        raise NotImplementedError


Keep = Callable[[UploadId], None]
"""A function that is called when an upload has begun, about once a second while it continues, and right before it is
completed.

If the call raises an error, the upload ends and is aborted.
"""


def written(
    objects: ObjectStore,
    change: LargePut,
    *,
    keep: Keep = lambda _: None,
    may_send: Callable[[], bool] = lambda: True,
    clock: Clock,
    at_once: int = PARTS_AT_ONCE,
) -> WriteOutcome:
    """The outcome of an upload or copy. An error means that certainly no object was written.

    One error needs care: after `UnknownOutcomeError` of `Uploads.begin_upload` there may be an upload without parts.
    If `at_once` is 1, all work is done in this thread. `keep` is then not called while a part is sent. `may_send`: true
    if a copy by one request may be sent again.
    """
    writer = change.writer or unique_name(clock)
    change = replace(change, writer=writer, metadata={**(change.metadata or {}), WRITER: writer})
    if (source := change.source) is not None and change.at_once:

        def copy() -> WriteOutcome:
            try:
                return objects.copy(source, change.key, metadata=change.metadata)
            except (
                UnavailableError
            ) as error:  # the copy has no condition, so it may have been applied despite this error
                return Unknown(cause=str(error))

        return _resolved(objects, change, copy, clock, may_send=may_send)
    upload = objects.begin_upload(
        change.key, precondition=change.precondition, metadata=change.metadata, source=source
    )
    look = partial(keep, upload)

    def send(number: int, part: Part) -> ETag:
        return answered(lambda: objects.send_part(change.key, upload, number, part), clock)

    def complete() -> WriteOutcome:
        look()
        return _looked_at(
            lambda: objects.complete_upload(change.key, upload, etags, precondition=change.precondition),
            look,
            at_once,
        )

    def abort() -> None:
        with suppress(S3NotifyError):
            answered(lambda: objects.abort_upload(change.key, upload), clock)

    try:
        look()
        etags = _sent(enumerate(change.parts, 1), send, look, at_once)
        outcome = _resolved(objects, change, complete, clock, give_up=abort)
    except NotFoundError as error:
        abort()
        raise UnavailableError(
            f"upload of {change.key!r}: it was aborted by another client, or its source is gone; nothing was written, "
            f"try again: {error}"
        ) from error
    except Exception:
        abort()
        raise
    if not isinstance(outcome, Written):
        abort()
    return outcome


def _resolved(
    objects: ObjectStore,
    change: LargePut,
    send: Callable[[], WriteOutcome],
    clock: Clock,
    *,
    give_up: Callable[[], None] = lambda: None,
    may_send: Callable[[], bool] = lambda: True,
) -> WriteOutcome:
    def look() -> Written | None:
        found = objects.head(change.key)
        if (ours := _ours(found, change.writer)) is not None:
            return ours
        if not holds(change.precondition, found):
            raise UnknownOutcomeError("the outcome of an attempt is unknown, and then the object changed")
        return None

    try:
        return resolve(
            send,
            look,
            clock=clock,
            subject=f"upload of {change.key!r}",
            may_resend=may_send,
            retry_unavailable=True,
        )
    except UnknownOutcomeError as error:
        give_up()
        with suppress(S3NotifyError):
            if (ours := _ours(objects.head(change.key), change.writer)) is not None:
                return ours
        return Unknown(cause=str(error))


def _ours(found: ObjectMeta | None, writer: str) -> Written | None:
    return Written(etag=found.etag) if found is not None and written_by(found, writer) else None


def _looked_at(call: Callable[[], WriteOutcome], look: Callable[[], None], at_once: int) -> WriteOutcome:
    """Runs `call`, which may take long. Unless `at_once` is 1, `call` runs in another thread. Meanwhile this thread
    calls `look`, and ignores the errors of `look`.
    """
    if at_once == 1:
        return call()
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        while not wait([called], KEEP_CALL_SECONDS).done:
            with suppress(S3NotifyError):
                look()
        return called.result()


def _sent(
    parts: Iterator[tuple[int, Part]],
    send: Callable[[int, Part], ETag],
    look: Callable[[], None],
    at_once: int,
) -> list[ETag]:
    """Sends all parts. Meanwhile this thread calls `look`, even if the stream or a part is slow."""
    etags: dict[int, ETag] = {}
    if at_once == 1:
        for number, part in parts:
            etags[number] = send(number, part)
            look()
        return list(etags.values())
    sending: dict[Future[ETag], tuple[int, int]] = {}
    reading: Future[tuple[int, Part] | None] | None = None
    ended = False
    held = largest = 0
    with ThreadPoolExecutor(at_once) as pool:
        while sending or not ended:
            if (
                reading is None
                and not ended
                and len(sending) < at_once
                and (not sending or held + largest <= PARTS_BYTES)
            ):
                reading = pool.submit(next, parts, None)
            waiting: set[Future[Any]] = {*sending, *([reading] if reading else [])}
            done, _ = wait(waiting, KEEP_CALL_SECONDS, FIRST_COMPLETED)
            for future in done & set(sending):
                number, size = sending.pop(future)
                held -= size
                etags[number] = future.result()
            if reading is not None and reading in done:
                found, reading = reading.result(), None
                if found is None:
                    ended = True
                else:
                    number, part = found
                    size = len(part) if not isinstance(part, CopyRange) else 0
                    held, largest = held + size, max(largest, size)
                    sending[pool.submit(send, number, part)] = number, size
                    del found, part
            look()
    return [etags[number] for number in sorted(etags)]


def part_bytes(size: int, least: int) -> int:
    """Bytes of each part of an object of this size, so that 10,000 parts suffice. Whole MiB. Pure."""
    return max(least, -(-size // MAX_PARTS // _MIB) * _MIB)


def growing_part_bytes(number: int) -> int:
    """Bytes of part `number` (from 1) of an object of unknown size: 10,000 such parts have more than 5 TiB. Pure."""
    return PART_BYTES + number // 9 * _MIB


def _stream_parts(key: str, stream: Readable, size: int | None) -> Iterator[bytes]:
    total = 0
    for number in count(1):
        wanted = part_bytes(size, PART_BYTES) if size is not None else growing_part_bytes(number)
        part = _read(key, stream, wanted)
        total += len(part)
        if total > (MAX_PUBLISHED_BYTES if size is None else size):
            raise UsageError(
                f"{key!r}: the stream has more than {MAX_PUBLISHED_BYTES if size is None else size} bytes; "
                "nothing was written"
            )
        if part:
            yield part
        if len(part) < wanted:
            break
    if size is not None and total != size:
        raise UsageError(
            f"{key!r}: {total} bytes were read, but {size} expected: did the file change? Nothing was written"
        )


def _read(key: str, stream: Readable, size: int) -> bytes:
    pieces: list[bytes] = []
    left = size
    while left:
        piece = stream.read(left)
        if not isinstance(piece, bytes) or len(piece) > left:
            raise UsageError(
                f"{key!r}: a read returned {type(piece).__name__}, not up to {left} bytes: open the stream as binary"
            )
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _copy_parts(source: CopySource) -> Iterator[CopyRange]:
    size = source.meta.size
    step = part_bytes(size, COPIED_PART_BYTES)
    for start in range(0, size, step):
        yield CopyRange(source=source, start=start, size=min(step, size - start))
