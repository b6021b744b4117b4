"""Objects that do not fit into memory: from files and streams by multipart upload, and copies by the store itself.

Nothing of an upload is visible before it is completed, by one request under the precondition. If that has no answer, a
HEAD tells by the writer's id in the metadata whether it was applied (`updates.resolve`). An upload that does not end in
an object is aborted; one whose process was killed is left over. The reconciler aborts it if the publisher has a queue;
else let a lifecycle rule of the bucket (`AbortIncompleteMultipartUpload`) do so.

Limits. A precondition holds if the store honours it where an upload is completed: some do so for a PUT only, and
`s3notify doctor` says so (`upload_if_absent`). Parts have different sizes if the size is not known; a store that wants
them equal needs the `size`. A stream that hangs is waited for.
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
"""Parts in flight of one upload."""

LOOK_SECONDS: Final = 1.0
"""How often an upload that goes on is looked at, whether there is something to do about it."""

_MIB: Final = 1 << 20

Part = bytes | CopyRange
O_co = TypeVar("O_co", covariant=True)


class Readable(Protocol):
    """A binary stream: what `open(path, "rb")` and `sys.stdin.buffer` are."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A change of a batch: write the object."""

    key: str
    body: bytes
    precondition: Precondition | None = None
    metadata: Metadata = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargePut:
    """A change that is too large for a batch: write the object part by part, or copy `source`. It is used once.

    `size` is None if it is not known before the end.
    """

    key: str
    parts: Iterator[Part]
    size: int | None = None
    source: CopySource | None = None
    precondition: Precondition | None = None
    metadata: Metadata = None
    writer: str = ""
    """An id of its own, which a HEAD of the object will show."""

    @property
    def at_once(self) -> bool:
        """Whether one request copies it."""
        whole = self.source is not None and self.source.meta.size <= COPIED_AT_ONCE_BYTES
        return whole and self.precondition is None

    @property
    def event_name(self) -> str:
        """What S3 calls such a change."""
        return "ObjectCreated:Copy" if self.at_once else "ObjectCreated:CompleteMultipartUpload"


class LargeObjects(Generic[O_co]):
    """The methods of a publisher that write objects which need not fit into memory.

    Up to 5 TiB. At most 256 MiB are in memory, or one part if that is more: 1/10,000 of a size that is known (525 MiB
    of 5 TiB). Without one the parts grow from 8 MiB to 1.1 GiB (151 MiB at 100 GiB). Of a stream that gives less than
    it is asked for, twice a part. An error of the stream is raised, and nothing is written; so is `UsageError` for one
    that does not have the size that was said.
    """

    def put_file(
        self,
        key: str,
        path: str | os.PathLike[str],
        *,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
    ) -> O_co:
        """Write a file as an object. Below 8 MiB as `put`; else 2 requests more, and 1 for each part.

        `UsageError`: it cannot be read, or was changed meanwhile; nothing was written.
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
        """Write all that a stream gives as an object; requests as `put_file`. `size`: its bytes, if known.

        It is read by one thread at a time, not always the same, and not closed. What it gave is gone if the outcome is
        not `Written`.
        """
        if size is not None and not 0 <= size <= MAX_PUBLISHED_BYTES:
            raise UsageError(f"{key!r}: {size} bytes; an object has 0 to {MAX_PUBLISHED_BYTES}")
        parts = _stream_parts(key, stream, size)
        ahead: list[bytes] = []
        if size is None or size < PART_BYTES:
            ahead = list(islice(parts, 1))
            if sum(map(len, ahead)) < PART_BYTES:
                body = b"".join([*ahead, *parts])  # no more, but its size is checked
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
        """Copy an object of any bucket of the same server and credentials (empty: this bucket); no byte comes here.

        With its metadata, over which `metadata` is laid. `NotFoundError`: no such object; `ConflictError`: it was
        changed meanwhile. Nothing was written then. Up to 1 GiB, and without a precondition, it costs as `put`, and 1
        HEAD of the source; else 2 requests more, and 1 for each 128 MiB, instead of the one that copies.
        """
        found = self._source(source_bucket, source_key)
        if found is None:
            raise NotFoundError(
                f"copy to {key!r}: no object {source_key!r} in bucket {source_bucket or 'itself'!r}"
            )
        # What our own writers note down is true of the source only.
        copied = {
            name: text for name, text in found.meta.metadata.items() if not name.startswith("s3notify-")
        }
        meta = {**copied, **(metadata or {})}
        if not found.meta.size:  # a range has at least one byte
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
"""Called once an upload has begun, about each second while it goes on, and right before it is completed.

What it raises ends the upload: it is aborted.
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
    """The outcome of an upload or copy. An error that it raises certainly left no object, except in one case:

    `UnknownOutcomeError` of `Uploads.begin_upload`: there is no object, but perhaps an upload without parts. With
    `at_once` = 1 all is done in this thread, and `keep` not called while a part is being sent. `may_send`: whether a
    copy by one request may be sent again.
    """
    writer = change.writer or unique_name(clock)
    change = replace(change, writer=writer, metadata={**(change.metadata or {}), WRITER: writer})
    if (source := change.source) is not None and change.at_once:

        def copy() -> WriteOutcome:
            try:
                return objects.copy(source, change.key, metadata=change.metadata)
            except (
                UnavailableError
            ) as error:  # without a condition, that does not prove that nothing was applied
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
            f"upload of {change.key!r}: it was aborted by another, or its source is gone; nothing was written, "
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
            raise UnknownOutcomeError("an attempt in doubt, then the object changed")
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
    """What a long call returns, while this thread calls `look`, which can no longer end it."""
    if at_once == 1:
        return call()
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        while not wait([called], LOOK_SECONDS).done:
            with suppress(S3NotifyError):
                look()
        return called.result()


def _sent(
    parts: Iterator[tuple[int, Part]],
    send: Callable[[int, Part], ETag],
    look: Callable[[], None],
    at_once: int,
) -> list[ETag]:
    """Send all parts, while this thread calls `look`: neither a slow stream nor a slow part keeps it from that."""
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
            done, _ = wait(waiting, LOOK_SECONDS, FIRST_COMPLETED)
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
    """Bytes of the parts of an object of this size, so that 10,000 of them are enough. Whole MiB. Pure."""
    return max(least, -(-size // MAX_PARTS // _MIB) * _MIB)


def growing_part_bytes(number: int) -> int:
    """Bytes of part `number`, from 1 on, of an object of unknown size: 10,000 of them have more than 5 TiB. Pure."""
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
                "not written"
            )
        if part:
            yield part
        if len(part) < wanted:
            break
    if size is not None and total != size:
        raise UsageError(
            f"{key!r}: {total} bytes were read, and {size} expected: was it changed? Not written"
        )


def _read(key: str, stream: Readable, size: int) -> bytes:
    pieces: list[bytes] = []
    left = size
    while left:
        piece = stream.read(left)
        if not isinstance(piece, bytes) or len(piece) > left:
            raise UsageError(
                f"{key!r}: the stream gave {type(piece).__name__}, not up to {left} bytes; open it as binary"
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
