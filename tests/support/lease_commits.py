"""Shared parts of the tests of lease commits: a clock that moves only by calls, and leases whose calls are recorded."""

import secrets
from dataclasses import replace

from s3notify_platform.kernel.ports import ETag
from s3notify_platform.protocols.conditional_commit import (
    EXPECTED,
    CommitLease,
    DynamoCommit,
    Granted,
    Leases,
    LeaseSettings,
)
from s3notify_platform.protocols.updates import WRITER
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.clocks import HandClock
from tests.support.record_leases import RecordLeases

PATH = "commits/1"
TIMEOUT = LeaseSettings().timeout_seconds
NO_CONDITIONS = {"create", "match", "delete", "copy"}


class ManualClock(HandClock):
    """A clock that only calls move. The elapsed time of the clock can run at another rate than the wall-clock time."""

    def __init__(self, rate=1.0):
        super().__init__()
        self.rate = rate

    def monotonic(self):
        return self.now * self.rate

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds / self.rate

    def random_bytes(self, count):
        return secrets.token_bytes(count)


class WatchedLeases:
    """A wrapper of leases. The wrapper records every call. Around each put, the wrapper calls `before` and `after` with
    the number of the put.
    """

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
    """Writes a lease as another client of the table does: without a writer."""
    return CommitLease(
        path=path, etag=etag, generation=generation, timeout_ms=timeout_ms, ttl=1_700_009_999, writer=None
    )


def lease_commit(store, leases, clock, **settings):
    return DynamoCommit(store, leases, settings=LeaseSettings(**settings), clock=clock)


def etag_of(store, path) -> ETag:
    return store.head(path).etag


class HookedStore(CountingStore):
    """A store that calls `before` and `after` around each call, with the call's name.

    The store ignores conditions, like the stores that need leases.
    """

    def __init__(self):
        super().__init__(IgnoringStore(MemoryObjectStore(), NO_CONDITIONS))
        self.before = lambda method: None
        self.after = lambda method: None

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in {"put", "delete", "copy", "head"}:
            return found

        def call(*args, **kwargs):
            self.before(name)
            result = found(*args, **kwargs)
            self.after(name)
            return result

        return call


def once(action):
    """Does `action` at the first call only."""
    todo = [action]
    return lambda *_: todo and todo.pop()()


def on(name, action):
    """Does `action` at the first call of this name only."""
    todo = [action]
    return lambda called: called == name and todo and todo.pop()()


def taken_over_by_another(leases, store=None, body=b"other", etag="*"):
    """Acts as another writer that found an expired lease."""
    found = leases.leases.read(PATH, etag)
    taken = replace(found, generation=found.generation + 1, writer="other")
    assert leases.leases.put(taken, seen=found) == Granted()
    if store:
        store.store.put(PATH, body, metadata={WRITER: "other", EXPECTED: etag})
