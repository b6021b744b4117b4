"""Damaged logs, and logs whose newest checkpoint is not named, or is named wrongly."""

import json

import pytest

from s3notify_platform.kernel.errors import CorruptError, UnavailableError
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import CHECKPOINT_EVERY, Committed
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.log_tables import LAYOUT, Counts, Table


@pytest.fixture
def store():
    """A table with two checkpoints, and two versions after the second checkpoint."""
    made = MemoryObjectStore()
    grow(made, 2 * CHECKPOINT_EVERY + 2)
    return made


def grow(store, versions):
    table = Table(store=store)
    base = table.opened()
    for _ in range(versions):
        done = table.committer.commit(Counts(base=base, slots=(1,)), base)
        assert isinstance(done, Committed)
        base = done.snapshot
    return base


def checkpoints(store):
    found = (LAYOUT.checkpoint_of(meta.key) for meta in store.list(LAYOUT.log).objects)
    return [version for version in found if version is not None]


def named(store):
    return Table(store=store).reader.last_checkpoint()


def cut(store, version):
    for number in range(version):
        store.delete(LAYOUT.version(number))


def test_checkpoint_is_enough_without_older_versions(store):
    assert named(store) == 2 * CHECKPOINT_EVERY
    cut(store, named(store))
    assert Table(store=store).counted() == {1: 2 * CHECKPOINT_EVERY + 2}
    grow(store, CHECKPOINT_EVERY)
    assert Table(store=store).counted() == {1: 3 * CHECKPOINT_EVERY + 2}
    assert named(store) == 3 * CHECKPOINT_EVERY


@pytest.mark.parametrize("is_cut", [False, True])
def test_newest_checkpoint_is_used_if_none_is_named(store, is_cut):
    store.delete(LAYOUT.last_checkpoint)
    if is_cut:
        cut(store, 2 * CHECKPOINT_EVERY)
    assert Table(store=store).opened().checkpoint == 2 * CHECKPOINT_EVERY
    grow(store, CHECKPOINT_EVERY)
    assert Table(store=store).counted() == {1: 3 * CHECKPOINT_EVERY + 2}
    assert named(store) == 3 * CHECKPOINT_EVERY


def test_older_checkpoint_leads_to_the_same_table(store):
    last = json.loads(store.get(LAYOUT.last_checkpoint).body)
    store.put(LAYOUT.last_checkpoint, json.dumps(last | {"version": CHECKPOINT_EVERY}).encode())
    assert Table(store=store).counted() == {1: 2 * CHECKPOINT_EVERY + 2}


@pytest.mark.parametrize("key", [LAYOUT.checkpoint(3 * CHECKPOINT_EVERY), LAYOUT.last_checkpoint])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_crash_at_a_checkpoint_keeps_the_commit(store, key, fault):
    """Otherwise the commit would be lost, or no later writer would write the checkpoint."""
    with pytest.raises(CrashedError):
        grow(FaultyStore(store, at("put", fault, key=key)), CHECKPOINT_EVERY)
    grow(store, CHECKPOINT_EVERY)
    assert named(store) >= 3 * CHECKPOINT_EVERY
    assert Table(store=store).counted() == {1: 4 * CHECKPOINT_EVERY}


@pytest.mark.parametrize(
    ("key", "body"),
    [
        *(
            (LAYOUT.version(2 * CHECKPOINT_EVERY + 1), body)
            for body in (b"", b"x", b"[]", b"{}", b'{"add":1}')
        ),
        (LAYOUT.last_checkpoint, b"{}"),
        (LAYOUT.last_checkpoint, b'{"version": 99, "size": 1}'),
        (LAYOUT.checkpoint(2 * CHECKPOINT_EVERY), b"PAR1"),
    ],
)
def test_damage_is_never_ignored(store, key, body):
    """Otherwise a cold or warm process would commit on top of a damaged log."""
    store.put(key, body)
    before = {meta.key: meta.etag for meta in store.list("").objects}
    with pytest.raises(CorruptError):
        grow(store, 1)
    assert {meta.key: meta.etag for meta in store.list("").objects} == before


@pytest.mark.parametrize("body", [None, b"", b"{}", b"x"])
def test_missing_or_damaged_manifest_is_named(store, body):
    key = LAYOUT.manifest(Table(store=store).opened().number)
    if body is None:
        store.delete(key)
    else:
        store.put(key, body)
    with pytest.raises(CorruptError, match=key):
        Table(store=store).opened()


def test_unavailable_store_is_not_taken_for_damage(store):
    with pytest.raises(UnavailableError):
        Table(store=FaultyStore(store, at("get", Fault.REFUSED, key=LAYOUT.last_checkpoint))).opened()
