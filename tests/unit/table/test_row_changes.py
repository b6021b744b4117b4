"""Rows that were added or withdrawn between two versions. Each row occurs once, with the version of the change, despite
later rewrites.
"""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.change_columns import CHANGE_COLUMNS
from s3notify_platform.table.commit import CHECKPOINT_EVERY, Wanted
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.row_changes import all_rows, row_changes, sizes_of
from s3notify_platform.table.state_changes import key_hash
from s3notify_platform.table.versions import created_ms, kept_versions, snapshot_of
from tests.support.clocks import HandClock
from tests.support.feed_copy import FeedCopy
from tests.support.log_rounds import SCHEMA, Rounds, slot_of_key
from tests.support.log_steps import committed, steps
from tests.support.log_tables import LAYOUT

OUTPUT = pa.schema([*SCHEMA, *CHANGE_COLUMNS])


def read_all(process, shares, output=OUTPUT):
    return [
        row
        for share in shares
        for rows in share.read(process.store, LAYOUT, output)
        for row in rows.to_pylist()
    ]


def came(process, since, until):
    """Returns key, ETag and number of each added row, in the order of versions."""
    found = row_changes(process.table.reader, since, until, deletes=False).inserts()
    return [(row["_key"], row["_etag"], row["n"]) for row in read_all(process, found, SCHEMA)]


def changed(process, since, until, slots=None, tasks=1):
    """Returns, for each change, its type, version and reason, and the key, ETag and number of its row."""
    found = row_changes(process.table.reader, since, until)
    shares = [*found.deletes(slots, tasks=tasks), *found.inserts(slots, tasks=tasks)]
    names = ("_change_type", "_commit_version", "_reason", "_key", "_etag", "n")
    return sorted((tuple(row[name] for name in names) for row in read_all(process, shares)), key=str)


def expected(history, since, until):
    """Returns the expected changes, computed from the contents of each version."""
    found = []
    for n in range(since + 1, until + 1):
        before, now = history[n - 1], history[n]
        for key in before.keys() | now.keys():
            was, is_ = before.get(key), now.get(key)
            if was == is_:
                continue
            if was and history[since].get(key) == was and was == _always(history, key, since, n - 1):
                reason = "overwritten" if is_ else "deleted"
                found += [("delete", n, reason, key, was[0], number) for number in was[1] if number % 3]
            if is_ and is_ == _always(history, key, n, until):
                reason = "overwritten" if was else "new"
                found += [("insert", n, reason, key, is_[0], number) for number in is_[1] if number % 3]
    return sorted(found, key=str)


def _always(history, key, first, last):
    """Returns the object if it is the same in all of these versions, or None if it changes."""
    (found, *others) = {
        str(history[n].get(key)): history[n].get(key) for n in range(first, last + 1)
    }.values()
    return None if others else found


@pytest.mark.parametrize("vectors", [False, True])
@given(steps=steps)
def test_changes_between_any_two_versions_are_complete(vectors, steps):
    """Otherwise a reader would miss rows of rounds that are on top of other rounds, are committed in part, or share one
    version.
    """
    process = committed(steps, vectors=vectors)
    newest = process.table.opened().version
    reader = process.table.reader
    history = [process.contents(snapshot_of(reader, n)) for n in range(newest + 1)]
    for since, until in {*((n, newest) for n in range(newest + 1)), *((n, n + 1) for n in range(newest))}:
        wanted = expected(history, since, until)
        assert changed(process, since, until) == wanted
        rows = sorted(each[3:] for each in wanted if each[0] == "insert")
        assert sorted(came(process, since, until)) == rows


def test_change_has_the_time_of_its_version():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,)), "b1": ("e1", (2,))}))
    process.commit(process.planned({"a1": ("e1", (1,))}))
    found = row_changes(process.table.reader, 1, 2)
    (row,) = read_all(process, [*found.deletes(), *found.inserts()])
    assert (row["_change_type"], row["_key"], row["n"]) == ("delete", "b1", 2)
    at = row["_commit_timestamp"]
    assert round(at.timestamp() * 1000) == created_ms(process.table.reader, 2)


def test_changes_of_some_slots_are_read_in_several_tasks():
    """Otherwise a reader of some slots would get rows of other slots, or rows would depend on the number of tasks."""
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({f"{c}1": ("e1", (1,)) for c in "abcdef"}))
    process.commit(process.planned({f"{c}1": ("e2", (2,)) for c in "abcdx"}))
    of_b = [
        ("delete", 2, "overwritten", "b1", "e1", 1),
        ("insert", 2, "overwritten", "b1", "e2", 2),
    ]
    assert changed(process, 1, 2, [slot_of_key("b")]) == of_b
    assert changed(process, 1, 2, [slot_of_key("z")]) == []
    every = changed(process, 1, 2)
    assert len(every) == 6 + 5
    assert changed(process, 1, 2, tasks=8) == every


def test_columns_of_the_changes_and_of_the_keys_may_be_left_out():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,)), "b1": ("e1", (2,))}))
    process.commit(process.planned({"b1": ("e2", (2,))}))
    process.commit(process.planned({}))
    found = row_changes(process.table.reader, 0, 2)
    assert read_all(process, found.inserts(), pa.schema([SCHEMA.field("n")])) == [{"n": 2}]
    left = row_changes(process.table.reader, 2, 3).deletes()
    assert read_all(process, left, pa.schema([CHANGE_COLUMNS.field("_reason")])) == [{"_reason": "deleted"}]


def test_all_rows_of_a_version_are_read_as_inserts():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,))}))
    process.commit(process.planned({"a1": ("e2", (2,))}))
    snapshot = process.table.opened()
    (row,) = read_all(process, all_rows(snapshot, at_ms=1000))
    assert (row["_change_type"], row["_commit_version"], row["_reason"], row["n"]) == ("insert", 2, "new", 2)
    assert row["_commit_timestamp"].timestamp() == 1


def test_rows_that_came_and_left_again_are_omitted():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1, 2)), "a2": ("e1", (4,))}))
    process.commit(process.planned({"a1": ("e2", (5,)), "a2": ("e1", (4,))}))
    assert came(process, 0, 1) == [("a1", "e1", 1), ("a1", "e1", 2), ("a2", "e1", 4)]
    assert came(process, 1, 2) == [("a1", "e2", 5)]
    assert came(process, 0, 2) == [("a2", "e1", 4), ("a1", "e2", 5)]
    process.commit(process.planned({}))
    assert came(process, 0, 3) == []


def test_merged_packs_add_no_rows():
    process = Rounds(store=MemoryObjectStore())
    bucket = {}
    for n in range(12):
        bucket[f"a{n}"] = ("e", (1,))
        process.commit(process.planned(bucket))
    newest = process.table.opened()
    assert any(pack.since < pack.until for pack in newest.packs.values()), "some packs were merged"
    assert came(process, 0, newest.version) == [(f"a{n}", "e", 1) for n in range(12)]


def test_rounds_of_one_version_do_not_merge_each_others_packs():
    """Otherwise new rows would be in a pack that is not marked as a change of data, and streams would skip this
    pack.
    """
    for count in range(1, 8):
        process = Rounds(store=MemoryObjectStore())
        bucket = {f"a{n}": ("e", (1,)) for n in range(count)}
        for n in range(1, count + 1):
            process.commit(process.planned({key: bucket[key] for key in sorted(bucket)[:n]}))
        base = process.table.opened()
        rounds = [process.planned({f"{c}0": ("e", (1,))}, {slot_of_key(c)}, base) for c in "bcdefg"]
        process.table.committer.commit_together([Wanted(change=each, base=base) for each in rounds])
        version = process.table.opened().version
        assert version == base.version + 1
        assert sorted(came(process, base.version, version)) == [(f"{c}0", "e", 1) for c in "bcdefg"]
        process.contents()


@pytest.mark.parametrize("vectors", [False, True])
def test_rows_of_a_pack_that_another_round_of_the_version_rewrites_are_not_added_again(vectors):
    """Otherwise a consumer would get rows twice. One round is planned before a pack is committed, and another round of
    the same version rewrites this pack.
    """
    process = Rounds(store=MemoryObjectStore(), vectors=vectors)
    bucket = {"a0": ("e", (1, 2)), "a1": ("e", (1, 2))}
    base = process.table.opened()
    slow = process.planned({"b0": ("e", (4, 5))}, {slot_of_key("b")}, base)
    process.commit(process.planned(bucket))
    newer = process.table.opened()
    fast = process.planned({**bucket, "a0": ("n", (4,))}, {slot_of_key("a")}, newer)
    wanted = [Wanted(change=slow, base=base), Wanted(change=fast, base=newer)]
    process.table.committer.commit_together(wanted)
    assert process.table.opened().version == 2
    added = [("a0", "n", 4), ("b0", "e", 4), ("b0", "e", 5)]
    assert sorted(came(process, 1, 2)) == added
    assert sorted(came(process, 0, 2)) == sorted([*added, ("a1", "e", 1), ("a1", "e", 2)])
    of_b = [("insert", 2, "new", "b0", "e", n) for n in (4, 5)]
    assert changed(process, 1, 2, [slot_of_key("b")]) == of_b


def test_parts_of_an_object_are_added_one_after_the_other():
    """Otherwise a reader would get earlier parts again, or keep the parts of an older ETag."""
    process = Rounds(store=MemoryObjectStore())
    slot = slot_of_key("a1")
    state = None
    for part in range(3):
        base = process.table.opened()
        label = base.version + 1
        rows = [(slot, "a1", "e", at, 1 + 3 * at) for at in range(part * 2, part * 2 + 2)]
        after = ObjectState(
            key="a1",
            etag="e",
            size=6,
            rows=2 * part + 2,
            since=state.since if state else label,
            until=label,
            reach_end=part == 2,
            offset=2 * part + 2,
        )
        of_slot = SlotRound(changes={"a1": after}, before={"a1": state} if state else {})
        packs = process._staged(process.data, rows, label)
        process.commit(
            RoundChange(
                base=base, slots={slot: of_slot}, table=process.whole, clock=process.clock, rows=packs
            )
        )
        state = after
    numbers = [("a1", "e", 1 + 3 * at) for at in range(6)]
    assert came(process, 0, 3) == numbers
    assert came(process, 1, 3) == numbers[2:]
    assert came(process, 1, 2) == numbers[2:4]
    continued = [("insert", 3, "continued", *row) for row in numbers[4:]]
    assert changed(process, 2, 3) == continued, "earlier parts stay"
    process.commit(process.planned({"a1": ("f", (7,))}))
    assert came(process, 0, 4) == [("a1", "f", 7)]
    gone = [("delete", 4, "overwritten", *row) for row in numbers[:4]]
    assert changed(process, 2, 4) == sorted([*gone, ("insert", 4, "overwritten", "a1", "f", 7)], key=str)


def test_sizes_count_objects_and_bytes():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,)), "b1": ("e1", (1,))}))
    process.commit(process.planned({"a1": ("e1", (1,)), "b1": ("e2", (1,))}))
    found = [*sizes_of(process.table.reader, 0, 2)]
    assert [(version, changed) for version, changed, _ in found] == [(1, 2), (2, 1)]
    assert all(size > 0 for *_, size in found)


def test_rollback_gives_all_rows_of_changed_slots():
    """Otherwise a reader would not notice that some rows were withdrawn, and that earlier rows are back."""
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,)), "a2": ("e1", (4,)), "b1": ("e1", (5,))}))
    process.commit(process.planned({"a1": ("e2", (2,)), "a2": ("e1", (4,)), "b1": ("e1", (5,))}))
    roll_back(process.whole, 1)
    replaced = [("a1", "e2", 2), ("a2", "e1", 4)], [("a1", "e1", 1), ("a2", "e1", 4)]
    found = [
        (kind, 3, "rolled back", *row)
        for kind, rows in zip(("delete", "insert"), replaced, strict=True)
        for row in rows
    ]
    assert changed(process, 2, 3) == found
    assert changed(process, 2, 3, [slot_of_key("b")]) == []
    assert changed(process, 2, 3, tasks=8) == found
    process.commit(process.planned({"a1": ("e3", (4,)), "b1": ("e2", (7,))}))
    of_b = [("delete", 4, "overwritten", "b1", "e1", 5), ("insert", 4, "overwritten", "b1", "e2", 7)]
    assert [each for each in changed(process, 2, 4) if each[3] == "b1"] == of_b
    assert came(process, 3, 4) == [("a1", "e3", 4), ("b1", "e2", 7)]


def test_reader_of_inserts_alone_ends_at_a_rollback():
    """Otherwise such a reader would keep rows that were withdrawn, and would get earlier rows again."""
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,))}))
    process.commit(process.planned({"a1": ("e2", (2,))}))
    roll_back(process.whole, 1)
    with pytest.raises(UsageError, match=r"version 3 went back to version 1: .*, or after version 3"):
        came(process, 1, 3)
    assert came(process, 3, 3) == []


@pytest.mark.parametrize("vectors", [False, True])
@given(first=steps, second=steps, back=st.integers(0, 9))
def test_copy_of_the_table_stays_equal_across_a_rollback(vectors, first, second, back):
    """Otherwise a consumer would differ from the table after a rollback, whatever was committed before or after it."""
    store = MemoryObjectStore()
    process = committed(first, vectors=vectors, store=store)
    roll_back(process.whole, back % (process.table.opened().version + 1))
    process = committed(second, vectors=vectors, store=store)
    newest = process.table.opened().version
    for since in range(newest + 1):
        copy = FeedCopy(lambda: process.whole, SCHEMA)
        for version in (since, min(since + 1, newest), newest):
            assert not copy.differences(snapshot_of(process.table.reader, version))


@pytest.mark.parametrize("vectors", [False, True])
def test_erased_object_is_one_deletion_without_its_rows(vectors):
    """Otherwise an up-to-date reader would stop at an erasure, because the object's files no longer exist."""
    clock = HandClock()
    process = Rounds(
        store=MemoryObjectStore(clock=clock), clock=clock, vectors=vectors, more={"max_run_seconds": 100.0}
    )
    bucket = dict.fromkeys(("a1", "a2", "b1"), ("e1", (1, 2)))
    process.commit(process.planned(bucket))
    process.commit(process.planned({**bucket, "b1": ("e2", (4,))}))
    done = erase(process.whole, slot_of_key("a"), "a1", clock=clock)
    process.commit(process.planned({"b1": ("e2", (4,))}))
    erased = ("delete", done.version, "erased", key_hash("a1"), None, None)
    assert changed(process, done.version - 1, done.version) == [erased]
    later = [("delete", done.version + 1, "deleted", "a2", "e1", n) for n in (1, 2)]
    assert changed(process, done.version - 1, done.version + 1) == sorted([erased, *later], key=str)
    assert changed(process, done.version, done.version + 1) == later
    with pytest.raises(NotFoundError, match=f"versions {done.version} to"):
        row_changes(process.table.reader, 1, done.version)


def test_deleted_rows_need_the_version_that_had_them():
    """Otherwise a reader would fail only after some changes have been read. Removed files are kept only as long as the
    last version that names them.
    """
    clock = HandClock()
    process = Rounds(store=MemoryObjectStore(clock=clock), clock=clock, more={"max_run_seconds": 100.0})
    for n in range(2 * CHECKPOINT_EVERY + 2):
        process.commit(process.planned({"a1": (f"e{n}", (1,))}))
        clock.sleep(1)
    for n in range(3):
        clock.sleep(1100)
        vacuum(process.table.committer, process.table.opened(), retention_seconds=1000, clock=clock)
        process.commit(process.planned({"a1": (f"f{n}", (1,))}))
    oldest = min(kept_versions(process.table.reader))
    assert oldest > 0
    assert [row[0] for row in changed(process, oldest, oldest + 1)] == ["delete", "insert"]
    assert len(came(process, oldest - 1, oldest + 1)) == 1
    with pytest.raises(NotFoundError, match=f"versions {oldest} to"):
        row_changes(process.table.reader, oldest - 1, oldest + 1)


def test_missing_versions_are_named():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,))}))
    with pytest.raises(NotFoundError, match="versions 0 to 1 are kept"):
        row_changes(process.table.reader, 1, 2)
