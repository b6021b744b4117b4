"""What tests of lease commits share: a clock that moves only by calls, and leases that are watched."""

import secrets

from s3notify_platform.ports import ETag
from s3notify_platform.protocols.conditional_commit import CommitLease, DynamoCommit, Leases, LeaseSettings
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.record_leases import RecordLeases


class ManualClock:
    """Sleeping moves it, and whoever sets `now`."""

    def __init__(self, rate=1.0):
        self.now = 1000.0
        self.rate = rate

    def monotonic(self):
        return self.now * self.rate

    def wall_ms(self):
        return 1_700_000_000_000 + int(self.now * 1000)

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds / self.rate

    def random_bytes(self, count):
        return secrets.token_bytes(count)


class WatchedLeases:
    """Other leases, with every call noted; `before` and `after` are called with the number of each put."""

    def __init__(self, leases: Leases | None = None):
        self.leases = leases or RecordLeases(MemoryRecordStore())
        self.puts: list[tuple[CommitLease, CommitLease | None]] = []
        self.reads = 0
        self.before = lambda number: None
        self.after = lambda number: None

    def put(self, lease, *, seen):
        number = len(self.puts)
        self.puts.append((lease, seen))
        self.before(number)
        outcome = self.leases.put(lease, seen=seen)
        self.after(number)
        return outcome

    def read(self, path, etag):
        self.reads += 1
        return self.leases.read(path, etag)


def foreign_lease(path, etag="*", *, generation=0, timeout_ms=2000):
    """As another client of the table puts it: without a writer."""
    return CommitLease(
        path=path, etag=etag, generation=generation, timeout_ms=timeout_ms, ttl=1_700_009_999, writer=None
    )


def lease_commit(store, leases, clock, **settings):
    return DynamoCommit(store, leases, settings=LeaseSettings(**settings), clock=clock)


def etag_of(store, path) -> ETag:
    return store.head(path).etag
