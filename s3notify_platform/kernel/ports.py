"""The ports to all remote services, and the outcomes that the ports return.

`ObjectStore` is a bucket. `RecordStore` is a small table of records with conditional writes. `MessageQueue` is a queue
of a message service. Adapters are in `stores/`. The tests in `tests/contracts` check the guarantees of each method for
each adapter.

A write with a precondition has three outcomes. `Written`: the write was applied. `Conflict`: the precondition did not
hold, and nothing was applied. `Unknown`: the write may or may not have been applied (a timeout, a 5xx after sending, a
409). The caller must first find out if the write was applied. Adapters never retry a conditional write that may have
been applied, because a retry could report a conflict with its own first attempt.

Reads raise `UnavailableError` after bounded retries, and `UsageError` if only an operator can fix the cause
(no such bucket, credentials refused).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol, overload, runtime_checkable

from s3notify_platform.kernel.limits import MAX_KEY_BYTES

ETag = NewType("ETag", str)
"""An ETag from the store, without the surrounding quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """The precondition that no object exists under this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IfMatch:
    """The precondition that the object has this ETag now."""

    etag: ETag


def unaddressable(key: str) -> str:
    """Returns the reason why S3 clients cannot address an object under `key`, or "" if S3 clients can. Pure.

    Without this check, clients or proxies could change the key. Stores that accept any name may contain objects with
    unaddressable keys.
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
    """The write was applied. `etag`: the ETag of the new object, or None after a delete."""

    etag: ETag | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The precondition did not hold, and nothing was applied.

    `found`: the record that is stored instead, or None if there is no record. `found` is also None if the store's
    refusal does not contain the record.
    """

    found: "Record | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The write may or may not have been applied. `cause` is a text for people."""

    cause: str


WriteOutcome = Written | Conflict | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """The description of an object that HEAD, GET and LIST return. Only HEAD and GET fill `metadata` and `version_id`.

    `version_id` is None in a bucket without versioning.
    """

    key: str
    etag: ETag
    size: int
    modified_ms: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    version_id: str | None = None


def holds(precondition: Precondition | None, found: ObjectMeta | None) -> bool:
    """Returns true if the precondition holds for the object `found`. Pure."""
    match precondition:
        case None:
            return True
        case Absent():
            return found is None
        case IfMatch(etag=etag):
            return found is not None and found.etag == etag


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object's body and metadata, which are from the same version of the object."""

    meta: ObjectMeta
    body: bytes


Metadata = Mapping[str, str] | None
"""User metadata of an object to write. Keys are lower-case ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotModified:
    """The answer of a GET with `if_none_match`: the object has the same ETag as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedColumns(Sequence[ObjectMeta]):
    """Listed objects, stored as columns. An `ObjectMeta` is created only when an object is accessed."""

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
    """An object to copy, in the version that `Uploads.source` found. `headers`: the content headers of the object, for
    the adapter.
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
"""Largest number of characters of an upload id. The limit is needed, because reservations contain the id."""


@runtime_checkable
class Uploads(Protocol):
    """Multipart uploads, for objects that do not fit into memory. No part is visible before the upload is completed."""

    def source(self, bucket: str, key: str) -> CopySource | None:
        """Returns the object to copy, or None if it does not exist. The object's bucket must have the same server and
        credentials as this store. Cost: 1 HEAD.

        An empty `bucket` means the bucket of this store.
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
        support this precondition. `UnknownOutcomeError`: an upload without parts may exist. Cost: 1 request, sent once.
        """
        ...

    def send_part(self, key: str, upload: UploadId, number: int, part: bytes | CopyRange) -> ETag:
        """Writes one part (1 to 10,000). The call may be repeated. All parts except the last have at least 5 MiB. Cost:
        1 request.

        `NotFoundError`: the upload or the source does not exist. `ConflictError`: the source has changed.
        """
        ...

    def complete_upload(
        self, key: str, upload: UploadId, parts: Sequence[ETag], *, precondition: Precondition | None = None
    ) -> WriteOutcome:
        """Creates the object from all its parts, atomically. Cost: 1 request, which is never repeated, even without a
        precondition.

        `NotFoundError`: the upload does not exist, or is already completed. `Conflict` leaves the upload unchanged.
        """
        ...

    def abort_upload(self, key: str, upload: UploadId) -> None:
        """Deletes an upload and its parts, so that it cannot be completed. A missing upload is not an error. Cost: 1
        request.
        """
        ...

    def empty_uploads(self, key: str) -> tuple[UploadId, ...]:
        """Returns the uploads of this key that have no part yet. Cost: 1 LIST, and 1 request for each upload of the
        key.
        """
        ...


class Ranged(Protocol):
    """The port that reads byte ranges of objects."""

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Returns the bytes from `start` to `end` (exclusive), or None if the object does not exist. `end` must be
        greater than `start`. Cost: 1 GET.

        If the object ends before `end`, the result is shorter, or empty. Two calls may read two versions of an object,
        so the object must never be overwritten.
        """
        ...


class ObjectStore(Uploads, Ranged, Protocol):
    """A bucket. Each call makes one request, and bounded retries of reads and of unconditional writes."""

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        """Returns the object, or None if it does not exist, or `Conflict` if its ETag differs from `if_match`."""
        ...

    def head(self, key: str) -> ObjectMeta | None:
        """Returns the object's metadata, or None if the object does not exist."""
        ...

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        """Writes the whole object, atomically."""
        ...

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """Deletes the object. If the object does not exist, returns `Conflict` if there is a precondition, else
        `Written`.
        """
        ...

    def copy(
        self,
        source: str | CopySource,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Metadata = None,
    ) -> WriteOutcome:
        """Copies an object to the key `target`, with the metadata of `source`. If `source` is a key, values in
        `metadata` override the source's metadata, and the call makes 1 HEAD more.

        `NotFoundError`: `source` does not exist. A `CopySource` may be in another bucket. For a `CopySource`,
        `metadata` replaces the source's metadata without a HEAD. If the `CopySource` has changed, the call returns
        `Conflict` if it has a precondition, and otherwise raises `ConflictError`.
        """
        ...

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        """Returns up to `limit` <= 1000 objects whose keys begin with `prefix`. Each call returns one page."""
        ...


def list_all(store: ObjectStore, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectMeta]:
    """Yields every object whose key begins with `prefix`, page by page. Cost: 1 LIST for each 1000 objects."""
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
    """A stored record: an opaque value, and the record's version, which `replace` and `remove` expect."""

    key: str
    value: bytes
    version: Version


class RecordStore(Protocol):
    """A store of small records under `(partition, key)`. A record is changed by compare-and-set, and reads are
    consistent.
    """

    def create(self, partition: str, key: str, value: bytes) -> WriteOutcome:
        """Writes the record if no record exists under this key."""
        ...

    def read(self, partition: str, key: str) -> Record | None:
        """Returns the record, or None if it does not exist."""
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
        """Yields the records of a partition, in key order. Leaves out each record whose key does not begin with
        `prefix`, or for whose key `wanted` returns false.

        `known`: records by key that the caller has read before. If such a record has not changed, the store may return
        the record from `known`, without a read. `keys_only` returns true for keys whose value is not needed. The record
        of such a key has the value b"".
        """
        ...

    def add(
        self, partition: str, key: str, amount: int, *, ceiling: int | None = None
    ) -> int | Conflict | Unknown:
        """Adds to a counter (0 if absent) and returns the new value. Returns `Conflict` if the new value is above
        `ceiling` or below 0.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message. No other client receives the message until its visibility timeout ends."""

    id: str
    body: str
    receipt: str
    receives: int
    """The approximate number of receives, including this one. If the service does not count receives, the adapter
    counts them."""


class MessageQueue(Protocol):
    """A queue of messages. One client at a time receives a message. If this client does not delete the message, other
    clients receive it later.

    The methods are thread-safe: an inlet calls `hide` in a second thread. `PullInletSettings.visibility_seconds`
    permits 12 hours. If a service has a lower limit, the settings of the service's inlet declare this field again.

    `UnavailableError`: the caller may retry later. `UsageError`: only an operator can fix the cause.
    """

    batch_size: int
    """Largest number of messages that one `receive` returns."""

    def receive(self, *, wait_seconds: int, visibility_seconds: int, limit: int) -> tuple[Message, ...]:
        """Returns up to `limit` messages, hidden from other clients for `visibility_seconds`.

        A shorter result suggests, but does not prove, that the queue has no more messages now. Waits up to
        `wait_seconds` for the first message. Cost: 1 request.
        """
        ...

    def delete(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Deletes messages. Returns the messages that could not be deleted."""
        ...

    def hide(self, messages: Sequence[Message], seconds: float) -> tuple[Message, ...]:
        """Hides messages from all clients for `seconds` from now. With 0, the messages are visible again. Returns the
        messages that could not be hidden.
        """
        ...

    def max_receives(self) -> int | None:
        """Returns how often a message is received before the service moves it to the dead letters, or None if there is
        no limit. Cost: 1 request.
        """
        ...
