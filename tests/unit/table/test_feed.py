"""The changes of versions. These changes, applied to the states of an earlier version, give the states of a later
version.
"""

from dataclasses import replace

import pytest
from hypothesis import given

from s3notify_platform.kernel.errors import CorruptError, NotFoundError
from s3notify_platform.kernel.limits import CHANGES_INLINE
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import CHECKPOINT_EVERY, Committed
from s3notify_platform.table.feed import changes_of
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.state_changes import Labels, StateChange, erased, key_hash, state_changes
from s3notify_platform.table.versions import snapshot_of
from tests.support.clocks import HandClock
from tests.support.log_rounds import Rounds
from tests.support.log_steps import committed, steps
from tests.support.log_tables import LAYOUT

ALL = set(map(Slot, range(26)))


def labels_in(process, snapshot):
    """Returns the ETag and the labels of each object, from the object's state."""
    return {
        (slot, key): Labels(etag=state.etag, since=state.since, until=state.until)
        for slot, states in process.states.of_slots(snapshot.manifest.states, ALL)
        for key, state in states.items()
    }


def applied(labels, changes):
    labels = dict(labels)
    for change in changes:
        place = change.slot, change.key
        assert labels.get(place) == change.old
        labels.pop(place, None)
        if change.new is not None:
            labels[place] = change.new
    return labels


def changes_in(process, since, until):
    return [change for each in changes_of(process.table.reader, since, until) for change in each.changes]


@given(steps=steps)
def test_changes_lead_from_any_version_to_any_later_one(steps):
    """Otherwise a consumer would miss changes of rounds that are on top of other rounds, are committed in part, or
    share one version.
    """
    process = committed(steps)
    newest = process.table.opened()
    found = [labels_in(process, snapshot_of(process.table.reader, n)) for n in range(newest.version + 1)]
    for since, start in enumerate(found):
        assert applied(start, changes_in(process, since, newest.version)) == found[-1]
    for version in range(1, newest.version + 1):
        assert applied(found[version - 1], changes_in(process, version - 1, version)) == found[version]


def test_change_has_a_reason_and_labels_before_and_after():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,)), "b1": ("e1", (1,)), "c1": ("e1", ())}))
    process.commit(process.planned({"a1": ("e2", (1,)), "c1": ("e1", ()), "d1": ("e1", (2,))}))
    found = [
        (change.key, change.reason, change.old, change.new)
        for change in sorted(changes_in(process, 1, 2), key=lambda change: change.key)
    ]
    one, two = Labels(etag="e1", since=1, until=1), Labels(etag="e2", since=2, until=2)
    assert found == [
        ("a1", "overwritten", one, two),
        ("b1", "deleted", one, None),
        ("d1", "new", None, Labels(etag="e1", since=2, until=2)),
    ]


STATE = ObjectState(key="k", etag="e", size=1, rows=1, since=3, until=3)


@pytest.mark.parametrize(
    ("state", "before", "reason"),
    [
        (STATE, None, "new"),
        (STATE, replace(STATE, etag="old", since=1, until=1), "overwritten"),
        (STATE, replace(STATE, since=1, until=1), "backfilled"),
        (replace(STATE, until=5), STATE, "continued"),
        (replace(STATE, reason="bad"), replace(STATE, since=1), "quarantined"),
        (replace(STATE, expired=True), STATE, "expired"),
        (replace(STATE, gone=True), STATE, "deleted"),
        (replace(STATE, gone=True), None, None),
        (replace(STATE, again=True), STATE, None),
    ],
)
def test_reason_follows_from_the_states(state, before, reason):
    found = [change.reason for change in state_changes(Slot(1), [(state, before)])]
    assert found == ([reason] if reason else [])


def test_erased_object_is_named_by_the_hash_of_its_key():
    found = erased(Slot(1), "secret", STATE)
    assert found == StateChange.of(found.row())
    assert "secret" not in repr(found)
    assert (found.key, found.reason, found.new) == (key_hash("secret"), "erased", None)


def bucket_of(count, etag="e"):
    return {f"{'abcdefgh'[n % 8]}{n}": (etag, (1,)) for n in range(count)}


def test_few_changes_cost_no_request_and_many_cost_one():
    store = CountingStore(MemoryObjectStore())
    process = Rounds(store=store)
    for count, file in ((CHANGES_INLINE, 0), (CHANGES_INLINE + 1, 1)):
        planned = process.planned(bucket_of(count, f"e{count}"))
        before = store.counts["PUT"]
        process.commit(planned)
        put = store.counts["PUT"] - before
        assert len(store.list(LAYOUT.changes).objects) == file
        store.counts.clear()
        version = process.table.opened().version
        store.counts.clear()
        assert len(changes_in(process, version - 1, version)) == count
        assert store.counts == {"GET": 2 + file}
        assert put >= 3 + file


def test_many_changes_are_streamed(monkeypatch):
    monkeypatch.setattr("s3notify_platform.table.state_changes.GROUP_ROWS", 100)
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned(bucket_of(1000)))
    ((_, changes),) = [(each.version, each.changes) for each in changes_of(process.table.reader, 0, 1)]
    assert next(changes).reason == "new"
    assert len({change.key for change in changes}) == 999


def test_error_names_the_versions_that_are_kept():
    clock = HandClock()
    store = MemoryObjectStore(clock=clock)
    process = Rounds(store=store, clock=clock, more={"max_run_seconds": 100.0})
    for n in range(2 * CHECKPOINT_EVERY + 2):
        process.commit(process.planned(bucket_of(40, f"e{n}")))
        clock.sleep(1)
    files = {meta.key for meta in store.list(LAYOUT.changes).objects}
    for _ in range(3):
        clock.sleep(1100)
        vacuum(process.table.committer, process.table.opened(), retention_seconds=1000, clock=clock)
        process.commit(process.planned(bucket_of(40, f"{clock.now}")))
    newest = process.table.opened().version
    kept = sorted(
        version
        for meta in store.list(LAYOUT.log).objects
        if (version := LAYOUT.version_of(meta.key)) is not None
    )
    assert kept[0] > 0
    with pytest.raises(NotFoundError, match=f"versions {kept[0]} to {newest} are kept"):
        changes_in(process, 0, newest)
    with pytest.raises(NotFoundError, match="changes of version"):
        changes_in(process, newest, newest + 1)
    found = changes_in(process, kept[0], newest)
    start = labels_in(process, snapshot_of(process.table.reader, kept[0]))
    assert applied(start, found) == labels_in(process, process.table.opened())
    left = {meta.key for meta in store.list(LAYOUT.changes).objects}
    assert files - left, "files of versions that were cut are deleted"


def test_missing_file_is_named():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned(bucket_of(100)))
    (file,) = process.store.list(LAYOUT.changes).objects
    process.store.delete(file.key)
    with pytest.raises(CorruptError, match=file.key):
        changes_in(process, 0, 1)


def test_version_that_changes_no_state_has_no_changes():
    class Nothing:
        def onto(self, base):
            return Proposal(operation="NOTHING")

    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned(bucket_of(3)))
    base = process.table.opened()
    assert isinstance(process.table.committer.commit(Nothing(), base), Committed)
    assert changes_in(process, 1, 2) == []
