"""The ports to everything remote, and the outcomes that they return.

`ObjectStore` is a bucket, `RecordStore` a small table of conditional records, `MessageQueue` a queue of a message
service. Adapters are in `stores/`. One contract suite (`tests/contracts`) tests what each method guarantees.

A write with a precondition has three outcomes. `Written`: the write was applied. `Conflict`: the precondition did not
hold, and nothing was applied. `Unknown`: the write may or may not have been applied (a timeout, a 5xx after sending, a
409); the caller must look before it does anything else. Adapters never retry a conditional write that may have been
applied, because the retry would report a conflict with the first attempt.

Reads raise `UnavailableError` after bounded retries, and `UsageError` if only an operator can fix the cause
(no such bucket, credentials refused).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol, overload, runtime_checkable

from s3notify_platform.kernel.limits import MAX_KEY_BYTES

ETag = NewType("ETag", str)
"""An ETag as the store returns it, without the surrounding quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Precondition: no object exists under this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IfMatch:
    """Precondition: the object has this ETag now."""

    etag: ETag


def unaddressable(key: str) -> str:
    """Returns why S3 clients cannot address an object under `key`, or "" if they can. Pure.

    Clients, or a server between, would change such a key. Stores that accept any name may still contain such objects.
    """
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if not 1 <= size <= MAX_KEY_BYTES:
        return f"it has {size} bytes, and 1 to {MAX_KEY_BYTES} are allowed"
    if "\0" in key:
        return "it holds NUL"
    return "one of its segments is . or .." if _DOTS.search(key) else ""


_DOTS = re.compile(r"(?:^|/)\.\.?(?:/|$)")

Precondition = Absent | IfMatch
ABSENT = Absent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The write was applied. `etag` is the ETag of the new object; None after a delete."""

    etag: ETag | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The precondition did not hold; nothing was applied.

    `found`: the record that is stored instead, if the store's refusal contains it. None if it does not, or if there is
    no record.
    """

    found: "Record | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The write may or may not have been applied; `cause` is a text for people."""

    cause: str


WriteOutcome = Written | Conflict | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """An object as HEAD and LIST describe it. Only HEAD and GET fill `metadata` and `version_id`.

    `version_id` is None in a bucket without versioning.
    """

    key: str
    etag: ETag
    size: int
    modified_ms: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    version_id: str | None = None


def holds(precondition: Precondition | None, found: ObjectMeta | None) -> bool:
    """True if the precondition holds for the object found. Pure."""
    match precondition:
        case None:
            return True
        case Absent():
            return found is None
        case IfMatch(etag=etag):
            return found is not None and found.etag == etag


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object's body and metadata, both of the same version."""

    meta: ObjectMeta
    body: bytes


Metadata = Mapping[str, str] | None
"""User metadata of an object to write. Keys are lower-case ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotModified:
    """The answer of a GET with `if_none_match`: the object still has that ETag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedColumns(Sequence[ObjectMeta]):
    """Listed objects, stored by columns; an `ObjectMeta` is created only when an object is accessed."""

    keys: Sequence[str]
    etags: Sequence[ETag]
    sizes: Sequence[int]
    modified_ms: Sequence[int]

    @classmethod
    def of(cls, objects: Sequence[ObjectMeta]) -> "ListedColumns":
        """Converts objects to columns."""
        if isinstance(objects, ListedColumns):
            return objects
        return cls(
            keys=[meta.key for meta in objects],
            etags=[meta.etag for meta in objects],
            sizes=[meta.size for meta in objects],
            modified_ms=[meta.modified_ms for meta in objects],
        )

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> ObjectMeta: ...
    @overload
    def __getitem__(self, place: slice) -> "ListedColumns": ...
    def __getitem__(self, place: int | slice) -> "ObjectMeta | ListedColumns":
        if isinstance(place, slice):
            return ListedColumns(
                keys=self.keys[place],
                etags=self.etags[place],
                sizes=self.sizes[place],
                modified_ms=self.modified_ms[place],
            )
        return ObjectMeta(
            key=self.keys[place],
            etag=self.etags[place],
            size=self.sizes[place],
            modified_ms=self.modified_ms[place],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One LIST response. `next_token` is None on the last page."""

    objects: Sequence[ObjectMeta]
    next_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """An object to copy, in the version that `Uploads.source` found. `headers` describe its content, for the
    adapter.
    """

    bucket: str
    meta: ObjectMeta
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRange:
    """The part of a multipart upload that the store copies: `size` > 0 bytes of `source` from `start` on."""

    source: CopySource
    start: int
    size: int


UploadId = NewType("UploadId", str)
"""An upload's id as the store returns it."""

UPLOAD_ID_MAX = 1024
"""Most characters of an upload id: reservations contain it."""


@runtime_checkable
class Uploads(Protocol):
    """Multipart uploads, for objects that do not fit into memory. No part is visible before the upload is completed."""

    def source(self, bucket: str, key: str) -> CopySource | None:
        """The object to copy, or None. It may be in any bucket of the same server and credentials. 1 HEAD.

        An empty `bucket` is this bucket.
        """
        ...

    def begin_upload(
        self,
        key: str,
        *,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
        source: CopySource | None = None,
    ) -> UploadId:
        """Begins an upload with this metadata, and with the content headers of the `source` that will be copied.

        `precondition`: the precondition under which the upload will be completed. `UsageError`: the store does not
        support it. `UnknownOutcomeError`: there may be an upload, without parts. 1 request, sent once.
        """
        ...

    def send_part(self, key: str, upload: UploadId, number: int, part: bytes | CopyRange) -> ETag:
        """Writes part 1 to 10,000; may be repeated. All parts but the last have at least 5 MiB. 1 request.

        `NotFoundError`: the upload or the source does not exist. `ConflictError`: the source has changed.
        """
        ...

    def complete_upload(
        self, key: str, upload: UploadId, parts: Sequence[ETag], *, precondition: Precondition | None = None
    ) -> WriteOutcome:
        """Creates the object from all its parts, atomically. 1 request, sent once, also without a precondition.

        `NotFoundError`: there is no such upload; it may be completed already. `Conflict` leaves the upload unchanged.
        """
        ...

    def abort_upload(self, key: str, upload: UploadId) -> None:
        """Deletes an upload and its parts; it cannot be completed afterwards. No error if it is missing. 1 request."""
        ...

    def empty_uploads(self, key: str) -> tuple[UploadId, ...]:
        """Uploads of this key that have no part yet. 1 LIST, and 1 request for each upload of the key."""
        ...


class Ranged(Protocol):
    """Reads of byte ranges of objects."""

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """The bytes from `start` to before `end` > `start`; None if the object does not exist. 1 GET.

        The result is shorter, or empty, if the object ends before. Two calls may read two versions: use this only for
        objects that are never overwritten.
        """
        ...


class ObjectStore(Uploads, Ranged, Protocol):
    """A bucket. Each call is one request, plus bounded retries of reads and of unconditional writes."""

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        """The object; None if it does not exist; `Conflict` if it no longer has the ETag `if_match`."""
        ...

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, or None."""
        ...

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        """Writes the whole object, atomically."""
        ...

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """Deletes the object. If it does not exist: `Written`, or `Conflict` if there is a precondition."""
        ...

    def copy(
        self,
        source: str | CopySource,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Metadata = None,
    ) -> WriteOutcome:
        """Copies within the bucket, with the source's metadata. `metadata` overrides it, which costs one more HEAD.

        `NotFoundError`: `source` does not exist. A `CopySource` may be in another bucket; then `metadata` replaces the
        source's metadata without a HEAD. `ConflictError`: the `CopySource` has changed since, and there is no
        precondition.
        """
        ...

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        """Up to `limit` <= 1000 objects whose keys begin with `prefix`. One page for each call."""
        ...


def list_all(store: ObjectStore, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectMeta]:
    """Every object whose key begins with `prefix`, page by page. One request for each 1000 objects."""
    token: str | None = None
    while True:
        page = store.list(prefix, start_after=start_after, token=token)
        yield from page.objects
        if (token := page.next_token) is None:
            return


Version = NewType("Version", str)
"""An opaque value that changes with every write of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A stored record: an opaque value and the version that `replace` and `remove` expect."""

    key: str
    value: bytes
    version: Version


class RecordStore(Protocol):
    """Small records under `(partition, key)`, each changed by compare-and-set. Reads are consistent."""

    def create(self, partition: str, key: str, value: bytes) -> WriteOutcome:
        """Writes the record if it does not exist."""
        ...

    def read(self, partition: str, key: str) -> Record | None:
        """The record, or None if it does not exist."""
        ...

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> WriteOutcome:
        """Writes the record if it still has the version `expected`."""
        ...

    def remove(self, partition: str, key: str, *, expected: Version) -> WriteOutcome:
        """Removes the record if it still has the version `expected`."""
        ...

    def scan(
        self,
        partition: str,
        *,
        prefix: str = "",
        known: Mapping[str, Record] | None = None,
        keys_only: Callable[[str], bool] | None = None,
        wanted: Callable[[str], bool] | None = None,
    ) -> Iterator[Record]:
        """Every record of a partition whose key begins with `prefix` and is `wanted` (default: all), in key order.

        `known`: records by key that the caller has read before; the store may reuse those that have not changed.
        `keys_only`: true for keys whose value is not needed; such a record has the value b"".
        """
        ...

    def add(
        self, partition: str, key: str, amount: int, *, ceiling: int | None = None
    ) -> int | Conflict | Unknown:
        """Adds to a counter (0 if absent) and returns the new value; `Conflict` if it would exceed `ceiling` or drop
        below 0.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message. It belongs to this client until its visibility timeout ends."""

    id: str
    body: str
    receipt: str
    receives: int
    """Number of times that the message was received, including this time; approximate."""


class MessageQueue(Protocol):
    """A queue of messages. One client at a time receives a message; if it does not delete the message, others receive
    it later.

    `UnavailableError`: retry later. `UsageError`: only an operator can fix the cause.
    """

    batch_size: int
    """Most messages that one `receive` returns."""

    def receive(self, *, wait_seconds: int, visibility_seconds: int, limit: int) -> tuple[Message, ...]:
        """Up to `limit` messages, hidden from other clients for `visibility_seconds`.

        Fewer messages mean that the queue has no more for now. Waits up to `wait_seconds` for the first. 1 request.
        """
        ...

    def delete(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Deletes messages. Returns the messages that could not be deleted."""
        ...

    def hide(self, messages: Sequence[Message], seconds: float) -> tuple[Message, ...]:
        """Hides messages from all clients for `seconds` from now; 0 shows them. Returns the messages for which this
        failed.
        """
        ...

    def max_receives(self) -> int | None:
        """Receives of a message after which the service moves it to its own dead letters; None: never. 1 request."""
        ...
