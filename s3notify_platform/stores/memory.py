"""The ports in memory: the model with which other adapters are compared, and the store of simulations.

Every call is atomic under one lock. An ETag is the MD5 of the body, as on S3: writing equal content does not
change it.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import ConflictError, NotFoundError
from s3notify_platform.kernel.ports import (
    Absent,
    Conflict,
    CopyRange,
    CopySource,
    ETag,
    IfMatch,
    Metadata,
    NotModified,
    ObjectMeta,
    Page,
    Precondition,
    Record,
    StoredObject,
    Unknown,
    UploadId,
    Version,
    WriteOutcome,
    Written,
    holds,
)
from s3notify_platform.stores.rules import (
    MAX_PAGE,
    check_copy,
    check_key,
    check_metadata,
    check_page_limit,
    counter_sum,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upload:
    metadata: Mapping[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class MemoryObjectStore:
    """A bucket in memory. Thread-safe; each call is atomic, and no call has an unknown outcome."""

    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, buckets: "Mapping[str, MemoryObjectStore] | None" = None
    ) -> None:
        """`buckets`: the other buckets, by name, from which objects can be copied."""
        self._clock = clock
        self._buckets = buckets or {}
        self._lock = Lock()
        self._objects: dict[str, StoredObject] = {}
        self._uploads: dict[tuple[str, str], _Upload] = {}
        self._begun = 0

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        with self._lock:
            found = self._objects.get(check_key(key))
        if found is None:
            return None
        if if_match is not None and found.meta.etag != if_match:
            return Conflict()
        return NotModified() if found.meta.etag == if_none_match else found

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        with self._lock:
            found = self._objects.get(check_key(key))
        return found.body[start:end] if found else None

    def head(self, key: str) -> ObjectMeta | None:
        with self._lock:
            found = self._objects.get(check_key(key))
        return found.meta if found else None

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        etag = ETag(hashlib.md5(body, usedforsecurity=False).hexdigest())
        meta = ObjectMeta(
            key=check_key(key),
            etag=etag,
            size=len(body),
            modified_ms=self._clock.wall_ms(),
            metadata=check_metadata(key, metadata),
        )
        with self._lock:
            return self._write(meta, body, precondition)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        with self._lock:
            if not self._holds(check_key(key), precondition):
                return Conflict()
            self._objects.pop(key, None)
        return Written(etag=None)

    def copy(
        self,
        source: str | CopySource,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Metadata = None,
    ) -> WriteOutcome:
        if isinstance(source, str):
            check_copy(check_key(source), check_key(target))
            found = self.get(source)
            kept = found.meta.metadata if isinstance(found, StoredObject) else {}
        else:
            found = self._version(source)
            kept = found.meta.metadata if metadata is None else {}
        if not isinstance(found, StoredObject):
            raise NotFoundError(f"copy: no object {source!r}")
        meta = replace(
            found.meta,
            key=target,
            modified_ms=self._clock.wall_ms(),
            metadata=check_metadata(target, {**kept, **(metadata or {})}),
        )
        with self._lock:
            return self._write(meta, found.body, precondition)

    def source(self, bucket: str, key: str) -> CopySource | None:
        store = self._buckets[bucket] if bucket else self
        found = store.head(key)
        return CopySource(bucket=bucket, meta=found) if found is not None else None

    def begin_upload(
        self,
        key: str,
        *,
        precondition: Precondition | None = None,  # noqa: ARG002 - every condition is supported
        metadata: Metadata = None,
        source: CopySource | None = None,  # noqa: ARG002 - objects have no other headers
    ) -> UploadId:
        with self._lock:
            self._begun += 1
            upload = UploadId(str(self._begun))
            self._uploads[check_key(key), upload] = _Upload(metadata=check_metadata(key, metadata))
        return upload

    def send_part(self, key: str, upload: UploadId, number: int, part: bytes | CopyRange) -> ETag:
        if isinstance(part, CopyRange):
            body = self._version(part.source).body[part.start : part.start + part.size]
        else:
            body = bytes(part)
        with self._lock:
            self._upload(key, upload).parts[number] = body
        return ETag(hashlib.md5(body, usedforsecurity=False).hexdigest())

    def complete_upload(
        self, key: str, upload: UploadId, parts: Sequence[ETag], *, precondition: Precondition | None = None
    ) -> WriteOutcome:
        with self._lock:
            found = self._upload(key, upload)
            bodies = [found.parts[number] for number in range(1, len(parts) + 1)]
            digests = [hashlib.md5(body, usedforsecurity=False) for body in bodies]
            assert list(parts) == [digest.hexdigest() for digest in digests], "the ETags that were returned"
            whole = hashlib.md5(b"".join(digest.digest() for digest in digests), usedforsecurity=False)
            meta = ObjectMeta(
                key=key,
                etag=ETag(f"{whole.hexdigest()}-{len(parts)}"),
                size=sum(map(len, bodies)),
                modified_ms=self._clock.wall_ms(),
                metadata=found.metadata,
            )
            outcome = self._write(meta, b"".join(bodies), precondition)
            if isinstance(outcome, Written):
                del self._uploads[key, upload]
        return outcome

    def abort_upload(self, key: str, upload: UploadId) -> None:
        with self._lock:
            self._uploads.pop((key, upload), None)

    def empty_uploads(self, key: str) -> tuple[UploadId, ...]:
        with self._lock:
            return tuple(
                UploadId(upload)
                for (owner, upload), found in self._uploads.items()
                if owner == key and not found.parts
            )

    def _version(self, source: CopySource) -> StoredObject:
        store = self._buckets[source.bucket] if source.bucket else self
        found = store.get(source.meta.key, if_match=source.meta.etag)
        if not isinstance(found, StoredObject):
            error = NotFoundError if found is None else ConflictError
            raise error(f"copy: {source.meta.key!r} does not exist, or has changed")
        return found

    def _upload(self, key: str, upload: UploadId) -> "_Upload":
        if (found := self._uploads.get((key, upload))) is None:
            raise NotFoundError(f"no upload {upload!r} of {key!r}")
        return found

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = MAX_PAGE
    ) -> Page:
        """See `ObjectStore.list`. The token is the last key of the previous page."""
        check_page_limit(limit)
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix))
            after = token if token is not None else start_after
            keys = keys[bisect_right(keys, after) if after is not None else 0 :]
            # LIST returns no user metadata.
            objects = tuple(replace(self._objects[key].meta, metadata={}) for key in keys[:limit])
        return Page(objects=objects, next_token=keys[limit - 1] if len(keys) > limit else None)

    def _write(self, meta: ObjectMeta, body: bytes, precondition: Precondition | None) -> WriteOutcome:
        if not self._holds(meta.key, precondition):
            return Conflict()
        self._objects[meta.key] = StoredObject(meta=meta, body=bytes(body))
        return Written(etag=meta.etag)

    def _holds(self, key: str, precondition: Precondition | None) -> bool:
        found = self._objects.get(key)
        return holds(precondition, found.meta if found else None)


class MemoryRecordStore:
    """Records in memory. Thread-safe; no version is used twice, even if a key is created again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._records: dict[tuple[str, str], Record] = {}
        self._writes = 0

    def create(self, partition: str, key: str, value: bytes) -> WriteOutcome:
        with self._lock:
            return Conflict() if (partition, key) in self._records else self._write(partition, key, value)

    def read(self, partition: str, key: str) -> Record | None:
        with self._lock:
            return self._records.get((partition, key))

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> WriteOutcome:
        with self._lock:
            if not self._has(partition, key, expected):
                return Conflict()
            return self._write(partition, key, value)

    def remove(self, partition: str, key: str, *, expected: Version) -> WriteOutcome:
        with self._lock:
            if not self._has(partition, key, expected):
                return Conflict()
            del self._records[partition, key]
        return Written(etag=None)

    def scan(
        self,
        partition: str,
        *,
        prefix: str = "",
        known: Mapping[str, Record] | None = None,  # noqa: ARG002 - a scan reads all records anyway
        keys_only: Callable[[str], bool] | None = None,
        wanted: Callable[[str], bool] | None = None,
    ) -> Iterator[Record]:
        """See `RecordStore.scan`. The scan is a snapshot; `known` is ignored."""
        with self._lock:
            records = [
                replace(record, value=b"") if keys_only is not None and keys_only(key) else record
                for (owner, key), record in self._records.items()
                if owner == partition and key.startswith(prefix) and (wanted is None or wanted(key))
            ]
        yield from sorted(records, key=lambda record: record.key)

    def add(
        self, partition: str, key: str, amount: int, *, ceiling: int | None = None
    ) -> int | Conflict | Unknown:
        """See `RecordStore.add`. The counter's value is a decimal number."""
        with self._lock:
            found = self._records.get((partition, key))
            total = counter_sum(found.value if found else None, amount, ceiling)
            if isinstance(total, int):
                self._write(partition, key, b"%d" % total)
            return total

    def _has(self, partition: str, key: str, expected: Version) -> bool:
        found = self._records.get((partition, key))
        return found is not None and found.version == expected

    def _write(self, partition: str, key: str, value: bytes) -> Written:
        self._writes += 1
        version = Version(str(self._writes))
        self._records[partition, key] = Record(key=key, value=bytes(value), version=version)
        return Written(etag=ETag(version))
