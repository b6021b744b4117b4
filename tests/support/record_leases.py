"""`Leases` over any `RecordStore`: in memory, or on a bucket with conditional writes. The leases are for another
bucket, which has no conditional writes.

    record (`lease`, digest of path and ETag)     JSON: v, path, etag, generation, timeout_ms, ttl, writer

Guarantees. A lease is replaced by compare-and-set on the record that was read. If several clients replace a lease at
the same time, only one client succeeds. Leases do not expire by themselves: `purge` removes leases whose TTL is over.

A read of a lease takes 1 request to the record store. A put takes 1 request, or 2 to 3 requests if it replaces a lease
or is refused.
"""

import json
from dataclasses import asdict
from typing import Final, assert_never

from blake3 import blake3

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import Conflict, Record, RecordStore, Unknown, Written
from s3notify_platform.protocols.conditional_commit import CommitLease, Granted, LeaseOutcome, Occupied

PARTITION: Final = "lease"
FORMAT: Final = 1


class RecordLeases:
    """The leases of one bucket. Thread-safe, because it has no state."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def put(self, lease: CommitLease, *, seen: CommitLease | None) -> LeaseOutcome:
        """See `Leases.put`."""
        key, value = _key(lease.path, lease.etag), _encode(lease)
        if seen is None:
            outcome = self._records.create(PARTITION, key, value)
        else:
            record = self._records.read(PARTITION, key)
            found = _decode(record) if record else None
            if record is None or found is None or _name(found) != _name(seen):
                return Occupied(found=found)
            outcome = self._records.replace(PARTITION, key, value, expected=record.version)
        match outcome:
            case Written():
                return Granted()
            case Conflict():
                return Occupied(found=self.read(lease.path, lease.etag))
            case Unknown() as unknown:
                return unknown
            case _ as unreachable:
                assert_never(unreachable)

    def read(self, path: str, etag: str) -> CommitLease | None:
        """See `Leases.read`."""
        record = self._records.read(PARTITION, _key(path, etag))
        return _decode(record) if record else None

    def purge(self, *, now_ms: int) -> int:
        """Removes the leases whose TTL is over at the wall-clock time `now_ms`. Returns the number of removed leases. A
        purge only saves space.

        A purge costs one scan.
        """
        purged = 0
        for record in self._records.scan(PARTITION):
            if _decode(record).ttl * 1000 <= now_ms:
                outcome = self._records.remove(PARTITION, record.key, expected=record.version)
                purged += isinstance(outcome, Written)
        return purged


def _name(lease: CommitLease) -> tuple[int, str | None]:
    return lease.generation, lease.writer


def _key(path: str, etag: str) -> str:
    # An ETag contains no space, and a digest keeps long paths within the limit of a record's key.
    digest: str = blake3(f"{etag} {path}".encode()).hexdigest(length=16)
    return digest


def _encode(lease: CommitLease) -> bytes:
    return json.dumps({"v": FORMAT, **asdict(lease)}, ensure_ascii=False).encode("utf-8")


def _decode(record: Record) -> CommitLease:
    try:
        fields = json.loads(record.value)
        if fields.pop("v") != FORMAT:
            raise CorruptError(f"lease {record.key!r} has another format: {record.value[:80]!r}")
        return CommitLease(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"lease {record.key!r} holds {record.value[:80]!r}") from error
