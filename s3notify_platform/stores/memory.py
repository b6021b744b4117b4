"""The ports in memory: the model that other adapters are compared with, and the store of simulations.

Every call is atomic under one lock. ETags are the MD5 of the body, as on S3: writing equal content does not
change them.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import Lock

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, NotFoundError, UsageError
from s3notify_platform.limits import MAX_KEY_BYTES
from s3notify_platform.ports import (
    Absent,
    Conflict,
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
    Version,
    WriteOutcome,
    Written,
    holds,
)

MAX_PAGE = 1000


def check_page_limit(limit: int) -> int:
    """Return `limit` if a LIST may have that many keys; `UsageError` otherwise."""
    if not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit={limit}: a page has 1 to {MAX_PAGE} objects")
    return limit


def check_key(key: str) -> str:
    """Return `key` if S3 can hold an object under it; `UsageError` otherwise."""
    if not 1 <= len(key.encode("utf-8")) <= MAX_KEY_BYTES:
        raise UsageError(
            f"key {key[:60]!r} has {len(key.encode('utf-8'))} bytes: 1 to {MAX_KEY_BYTES} are allowed"
        )
    return key


def check_copy(source: str, target: str) -> None:
    """`UsageError` if an object would be copied onto itself, as S3 refuses that."""
    if source == target:
        raise UsageError(f"copy of {source!r} onto itself: name another target")


class MemoryObjectStore:
    """A bucket in memory. Thread-safe; each call is atomic, and none has an unknown outcome."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = Lock()
        self._objects: dict[str, StoredObject] = {}

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
            metadata=dict(metadata or {}),
        )
        with self._lock:
            if not self._holds(key, precondition):
                return Conflict()
            self._objects[key] = StoredObject(meta=meta, body=bytes(body))
        return Written(etag=etag)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        with self._lock:
            if not self._holds(check_key(key), precondition):
                return Conflict()
            self._objects.pop(key, None)
        return Written(etag=None)

    def copy(
        self, source: str, target: str, *, precondition: Absent | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        check_copy(check_key(source), check_key(target))
        with self._lock:
            found = self._objects.get(source)
            if found is None:
                raise NotFoundError(f"copy: no object {source!r}")
            if not self._holds(target, precondition):
                return Conflict()
            meta = replace(
                found.meta,
                key=target,
                modified_ms=self._clock.wall_ms(),
                metadata={**found.meta.metadata, **(metadata or {})},
            )
            self._objects[target] = StoredObject(meta=meta, body=found.body)
        return Written(etag=meta.etag)

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = MAX_PAGE
    ) -> Page:
        """See `ObjectStore.list`. The token is the last key of the page before."""
        check_page_limit(limit)
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix))
            after = token if token is not None else start_after
            keys = keys[bisect_right(keys, after) if after is not None else 0 :]
            # LIST returns no user metadata.
            objects = tuple(replace(self._objects[key].meta, metadata={}) for key in keys[:limit])
        return Page(objects=objects, next_token=keys[limit - 1] if len(keys) > limit else None)

    def _holds(self, key: str, precondition: Precondition | None) -> bool:
        found = self._objects.get(key)
        return holds(precondition, found.meta if found else None)


def counter_sum(value: bytes | None, amount: int, ceiling: int | None) -> int | Conflict:
    """A counter's next value; `Conflict` if it would fall below 0, or rise above `ceiling`.

    A counter that already stands above a lowered ceiling may still be lowered.
    """
    try:
        total = amount + (int(value) if value is not None else 0)
    except ValueError:
        raise CorruptError(f"counter holds {value!r}, not a number") from None
    return Conflict() if total < 0 or (amount > 0 and ceiling is not None and total > ceiling) else total


class MemoryRecordStore:
    """Records in memory. Thread-safe; a version is never used twice, even if a key is created again."""

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
        known: Mapping[str, Record] | None = None,  # noqa: ARG002 - a scan reads all there is anyway
        keys_only: Callable[[str], bool] | None = None,
        wanted: Callable[[str], bool] | None = None,
    ) -> Iterator[Record]:
        """See `RecordStore.scan`. A snapshot; what is known is of no use to it."""
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
