"""A writer with an expired lease has replaced versions. Every reader notices replaced versions, and a command restores
them.
"""

import pytest

from s3notify_platform.kernel.errors import ConflictError, CorruptError, FencedError
from s3notify_platform.maintenance.put_back import PutBack, put_back
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from tests.support.clocks import HandClock
from tests.support.log_tables import LAYOUT, Counts, Table, versions


@pytest.fixture
def store():
    return MemoryObjectStore()


def by_leases(store, **given):
    """A committer that uses leases. The test itself decides which writer overwrites which version."""
    return Table(store=store, adopt=False, **given)


def commit(table, *slots, base=None):
    base = base or table.opened()
    done = table.committer.commit(Counts(base=base, slots=slots), base)
    assert isinstance(done, Committed)
    return done.snapshot


def overrun(store, version, *slots, **given):
    """Prepares `version` on top of the previous version, for a writer that then sleeps. The returned function writes
    `version` later.
    """
    kept = {}

    class Sleeping(DelegatingStore):
        def put(self, key, body, **given):
            if key == LAYOUT.version(version):
                kept["body"] = body
                raise KeyboardInterrupt
            return self.store.put(key, body, **given)

    with pytest.raises(KeyboardInterrupt):
        commit(by_leases(Sleeping(store), **given), *slots)
    return lambda: store.put(LAYOUT.version(version), kept["body"])


def test_body_of_a_version_is_staged_only_with_leases(store):
    table = by_leases(CountingStore(store))
    base = table.opened()
    table.store.counts.clear()
    snapshot = commit(table, 1, base=base)
    assert table.store.counts == {"PUT": 1 + 3 + 1}
    staged = store.get(LAYOUT.staged_version(snapshot.number)).body
    assert staged == store.get(LAYOUT.version(1)).body
    commit(Table(store=(other := MemoryObjectStore())), 1)
    assert not other.list(LAYOUT.staged).objects


def test_replaced_version_is_restored(store):
    table = by_leases(store)
    base = table.opened()
    wakes = overrun(store, 1, 5)
    kept = commit(table, 1, base=base)
    wakes()
    for read in (by_leases(store).reader.open, lambda: table.reader.refresh(kept)):
        with pytest.raises(CorruptError, match=r"not the one that was committed.*`s3notify table put-back`"):
            read()
    assert put_back(table.committer) == PutBack(put_back=(1,))
    assert table.counted() == {1: 1}
    commit(table, 1)
    assert by_leases(store).counted() == {1: 2}
    assert put_back(table.committer) == PutBack()


def test_replaced_version_far_below_the_newest_is_restored(store):
    table = by_leases(store)
    commit(table, 1)
    wakes = overrun(store, 2, 5)
    for _ in range(4):
        commit(table, 1)
    wakes()
    with pytest.raises(CorruptError, match="put-back"):
        by_leases(store).opened()
    assert put_back(table.committer) == PutBack(put_back=(2,))
    assert by_leases(store).counted() == {1: 5}


def test_versions_that_followed_a_replaced_one_are_removed(store):
    """A late write replaces a version, and another writer commits a further version on top of the late write.
    If the further version stayed, its parent would not be the version that is put back, and readers would
    still refuse the table.
    """
    base = by_leases(store).opened()
    wakes = overrun(store, 1, 5)

    class Noting(DelegatingStore):
        """Lets the sleeping writer write its late version just before the first update of `known`. Then lets another
        writer plan its commit on top of the late version.
        """

        planned = ()

        def put(self, key, body, **given):
            if "known" in key and not self.planned:
                wakes()
                other = by_leases(store)
                self.planned = (other, other.opened())
            return self.store.put(key, body, **given)

    noting = Noting(store)
    commit(by_leases(noting), 1, base=base)
    other, wrong = noting.planned
    with pytest.raises(FencedError, match="replaced"):
        commit(other, 7, base=wrong)
    assert len(versions(store)) == 3
    for read in (by_leases(store).reader.open, lambda: other.reader.refresh(wrong)):
        with pytest.raises(CorruptError, match="version 1 is not the one that was committed"):
            read()
    assert put_back(other.committer) == PutBack(put_back=(1,), removed=(2,))
    assert by_leases(store).counted() == {1: 1}


def test_version_that_was_replaced_before_it_was_in_known_is_not_restored(store):
    """Another writer has committed on top of the late version, and has reported its commit as successful. So the late
    version must stay.
    """
    base = by_leases(store).opened()
    wakes = overrun(store, 1, 5)

    class Noting(DelegatingStore):
        def put(self, key, body, **given):
            if "known" in key:
                wakes()
                commit(by_leases(store), 7)
            return self.store.put(key, body, **given)

    with pytest.raises(FencedError, match="replaced"):
        commit(by_leases(Noting(store)), 1, base=base)
    assert by_leases(store).counted() == {5: 1, 7: 1}
    assert put_back(by_leases(store).committer) == PutBack()


def test_version_that_is_not_in_known_because_of_a_crash_stays(store):
    table = by_leases(store)
    commit(table, 1)

    class Dying(DelegatingStore):
        def put(self, key, body, **given):
            if "known" in key:
                raise KeyboardInterrupt
            return self.store.put(key, body, **given)

    with pytest.raises(KeyboardInterrupt):
        commit(by_leases(Dying(store)), 2)
    assert put_back(table.committer) == PutBack()
    assert by_leases(store).counted() == {1: 1, 2: 1}


def test_put_back_fails_without_the_staged_body(store):
    table = by_leases(store)
    base = table.opened()
    wakes = overrun(store, 1, 5)
    kept = commit(table, 1, base=base)
    wakes()
    store.delete(LAYOUT.staged_version(kept.number))
    before = store.get(LAYOUT.version(1)).body
    with pytest.raises(CorruptError, match="is missing: restore"):
        put_back(table.committer)
    assert store.get(LAYOUT.version(1)).body == before


def test_vacuum_keeps_staged_bodies_and_refuses_a_replaced_log():
    clock = HandClock()
    store = MemoryObjectStore(clock=clock)
    table = by_leases(store, clock=clock, more={"max_run_seconds": 100.0})
    kept = commit(table, 1)
    commit(table, 1)
    clock.sleep(200)
    vacuum(table.committer, table.opened(), retention_seconds=1000, clock=clock)
    assert store.head(LAYOUT.staged_version(kept.number))
    store.put(LAYOUT.manifest(7), b"x")
    wakes = overrun(store, table.opened().version + 1, 5)
    for _ in range(2):
        commit(table, 1)
    clock.sleep(200)
    snapshot = table.opened()
    wakes()
    files = {meta.key for meta in store.list(LAYOUT.prefix).objects}
    with pytest.raises(CorruptError, match="put-back"):
        vacuum(table.committer, snapshot, retention_seconds=1000, clock=clock)
    assert files <= {meta.key for meta in store.list(LAYOUT.prefix).objects}
    put_back(table.committer)
    assert table.counted() == {1: 4}


def test_two_concurrent_put_backs_restore_the_version(store):
    table = by_leases(store)
    base = table.opened()
    wakes = overrun(store, 1, 5)
    commit(table, 1, base=base)
    wakes()

    class Late(DelegatingStore):
        def put(self, key, body, **given):
            if key == LAYOUT.version(1) and not getattr(self, "done", False):
                self.done = True
                put_back(table.committer)
            return self.store.put(key, body, **given)

    with pytest.raises(ConflictError, match="repeat"):
        put_back(by_leases(Late(store)).committer)
    assert put_back(table.committer) == PutBack()
    assert by_leases(store).counted() == {1: 1}
