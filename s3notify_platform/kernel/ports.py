"""The ports through which everything remote is reached, and the outcomes they return.

`ObjectStore` is a bucket, `RecordStore` a small table of conditional records, `MessageQueue` a queue of another
service. Adapters are in `stores/`. One contract suite (`tests/contracts`) tests what each method guarantees.

A write with a precondition has three outcomes. `Written`: it is applied. `Conflict`: the precondition did not
hold, and nothing was applied. `Unknown`: the request may or may not have been applied (a timeout, a 5xx after
sending, a 409); the caller looks before it does anything else. Adapters never retry a conditional write that
may have been applied: the retry would report a conflict with the first attempt.

Reads raise `UnavailableError` after bounded retries, and `UsageError` if only an operator can fix the cause
(no such bucket, credentials refused).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol, overload, runtime_checkable

from s3notify_platform.kernel.limits import MAX_KEY_BYTES

ETag = NewType("ETag", str)
"""As the store returns it, without the surrounding quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Precondition: no object under this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IfMatch:
    """Precondition: the object has this ETag now."""

    etag: ETag


def unaddressable(key: str) -> str:
    """Why S3 clients cannot address an object under `key`: they, or a server between, change it. "" if they can. Pure.

    Such objects exist nevertheless, in stores that take any name.
    """
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        return "it is no UTF-8"
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
    """Applied. `etag` is that of the new object; None after a delete."""

    etag: ETag | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The precondition did not hold; nothing was applied.

    `found`: the record that is there instead, from a store whose refusal contains it; else None, also if none is there.
    """

    found: "Record | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """May or may not have been applied; `cause` is for people."""

    cause: str


WriteOutcome = Written | Conflict | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """What HEAD and LIST return about an object. `metadata` and `version_id` are filled by HEAD and GET only.

    `version_id`: None in a bucket without versions.
    """

    key: str
    etag: ETag
    size: int
    modified_ms: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    version_id: str | None = None


def holds(precondition: Precondition | None, found: ObjectMeta | None) -> bool:
    """Whether a precondition holds for what is there. Pure."""
    match precondition:
        case None:
            return True
        case Absent():
            return found is None
        case IfMatch(etag=etag):
            return found is not None and found.etag == etag


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object's body with its metadata, of one version."""

    meta: ObjectMeta
    body: bytes


Metadata = Mapping[str, str] | None
"""User metadata of an object that is written. Keys are lower-case ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotModified:
    """GET under `if_none_match`: the object still has that ETag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedColumns(Sequence[ObjectMeta]):
    """Objects that were listed, by columns: an object is made where one is looked at."""

    keys: Sequence[str]
    etags: Sequence[ETag]
    sizes: Sequence[int]
    modified_ms: Sequence[int]

    @classmethod
    def of(cls, objects: Sequence[ObjectMeta]) -> "ListedColumns":
        """The objects, by columns."""
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
    """An object that is to be copied, as it was looked at. `headers` are those of its content, for the adapter."""

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
"""As the store returns it."""

UPLOAD_ID_MAX = 1024
"""Characters of one: it is kept in reservations."""


@runtime_checkable
class Uploads(Protocol):
    """Objects that do not fit into memory: multipart uploads. Nothing of one is visible before it is completed."""

    def source(self, bucket: str, key: str) -> CopySource | None:
        """What is to be copied, of any bucket of the same server and credentials (empty: this one). 1 HEAD."""
        ...

    def begin_upload(
        self,
        key: str,
        *,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
        source: CopySource | None = None,
    ) -> UploadId:
        """A new upload, with this metadata, and the content's headers of the `source` that will be copied.

        1 request, sent once.

        `precondition` is what it will be completed under: `UsageError` if the store has no such. `UnknownOutcomeError`:
        there may be an upload, without parts.
        """
        ...

    def send_part(self, key: str, upload: UploadId, number: int, part: bytes | CopyRange) -> ETag:
        """Write part 1 to 10,000; may be repeated. All but the last one have at least 5 MiB. 1 request.

        `NotFoundError`: no such upload, or source. `ConflictError`: the source has changed.
        """
        ...

    def complete_upload(
        self, key: str, upload: UploadId, parts: Sequence[ETag], *, precondition: Precondition | None = None
    ) -> WriteOutcome:
        """Make the object of all its parts, atomically. `NotFoundError`: no such upload, it may be completed already.

        `Conflict` leaves the upload as it is. 1 request, sent once, also without a precondition.
        """
        ...

    def abort_upload(self, key: str, upload: UploadId) -> None:
        """Drop an upload and its parts. After that it cannot be completed. No error if there is none. 1 request."""
        ...

    def empty_uploads(self, key: str) -> tuple[UploadId, ...]:
        """Uploads of this key that have no part yet. 1 LIST, and 1 request for each upload of the key."""
        ...


class Ranged(Protocol):
    """Reads of parts of objects."""

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """The bytes from `start` to below `end` > `start`; None if there is no such object. 1 GET.

        Fewer bytes, or none, if the object ends before. Nothing says that two calls read one version: for objects that
        are never overwritten.
        """
        ...


class ObjectStore(Uploads, Ranged, Protocol):
    """A bucket. Each call is one request (plus bounded retries of reads and of unconditional writes)."""

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        """The object; None if there is none; `Conflict` if it no longer has `if_match`."""
        ...

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, or None."""
        ...

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        """Write the whole object, atomically."""
        ...

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """Delete the object. If there is none: `Written`, or `Conflict` under a precondition."""
        ...

    def copy(
        self,
        source: str | CopySource,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Metadata = None,
    ) -> WriteOutcome:
        """Copy within the bucket, with its metadata; `metadata` overrides that, for one HEAD more.

        `NotFoundError` if `source` does not exist. A `CopySource` may be in another bucket; `metadata` replaces its
        own, without a HEAD. `ConflictError` if it has changed since, where there is no precondition.
        """
        ...

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        """Up to `limit` <= 1000 objects below `prefix`, one page a call."""
        ...


def list_all(store: ObjectStore, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectMeta]:
    """Every object below `prefix`, page by page: one request for each 1000 objects."""
    token: str | None = None
    while True:
        page = store.list(prefix, start_after=start_after, token=token)
        yield from page.objects
        if (token := page.next_token) is None:
            return


Version = NewType("Version", str)
"""Changes with every write of a record; opaque."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A stored record: an opaque value and the version that `replace` and `remove` expect."""

    key: str
    value: bytes
    version: Version


class RecordStore(Protocol):
    """Small records under `(partition, key)`, each changed by compare-and-set. Reads are consistent."""

    def create(self, partition: str, key: str, value: bytes) -> WriteOutcome:
        """Write the record if there is none."""
        ...

    def read(self, partition: str, key: str) -> Record | None:
        """The record, or None."""
        ...

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> WriteOutcome:
        """Write the record if it still has the version `expected`."""
        ...

    def remove(self, partition: str, key: str, *, expected: Version) -> WriteOutcome:
        """Remove the record if it still has the version `expected`."""
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

        `known`: records by key that the caller has read before; one that has not changed need not be read again.
        `keys_only`: of which keys no value is needed; b"" stands for it.
        """
        ...

    def add(
        self, partition: str, key: str, amount: int, *, ceiling: int | None = None
    ) -> int | Conflict | Unknown:
        """Add to a counter (absent: 0) and return its new value; `Conflict` if it would pass `ceiling` or 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message. It is this client's until its visibility timeout ends."""

    id: str
    body: str
    receipt: str
    receives: int
    """How often it was received, this time included; approximate."""


class MessageQueue(Protocol):
    """A queue of messages. Each is received by one client at a time, and again later unless it is deleted.

    `UnavailableError`: try again later. `UsageError`: only an operator can fix the cause.
    """

    batch_size: int
    """Messages of one `receive` at most."""

    def receive(self, *, wait_seconds: int, visibility_seconds: int, limit: int) -> tuple[Message, ...]:
        """Up to `limit` messages, hidden from other clients for `visibility_seconds`.

        Fewer means that there are no more for now. Waits up to `wait_seconds` for the first one. 1 request.
        """
        ...

    def delete(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Delete messages. Returns those that were not deleted."""
        ...

    def hide(self, messages: Sequence[Message], seconds: float) -> tuple[Message, ...]:
        """Hide messages from all clients for this long from now (0: show them). Returns those that it failed for."""
        ...

    def max_receives(self) -> int | None:
        """After how many receives the service moves a message to its own dead letters; None: never. 1 request."""
        ...
