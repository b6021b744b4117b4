"""Rows that came between two versions: each once, from the version that brought it, whatever was rewritten since."""

import pytest
from hypothesis import given

from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.arrivals import arrivals, sizes_of
from s3notify_platform.table.commit import Wanted
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.versions import snapshot_of
from tests.support.log_rounds import SCHEMA, Rounds, slot_of_key
from tests.support.log_steps import committed, steps
from tests.support.log_tables import LAYOUT


def came(process, since, until):
    """Key, ETag and number of each row, in the order of versions."""
    reader = process.table.reader
    found = []
    for each in arrivals(reader, since, until):
        for rows in read_slots(process.store, LAYOUT, each.packs, None, SCHEMA):
            found += [
                (row["_key"], row["_etag"], row["n"])
                for row in rows.to_pylist()
                if row["_key"] not in each.without
            ]
    return found


def expected(history, since, until):
    """The same from the contents of each version: of the objects that are there, those that came last in between."""
    found = []
    for key, (etag, numbers) in history[until].items():
        last = next(n for n in range(until, 0, -1) if history[n - 1].get(key) != (etag, numbers))
        if last > since:
            found += [(key, etag, number) for number in numbers if number % 3]
    return sorted(found)


@pytest.mark.parametrize("vectors", [False, True])
@given(steps=steps)
def test_between_any_two_versions(vectors, steps):
    """Also where rounds were committed on top of others, without some slots, or several in one version."""
    process = committed(steps, vectors=vectors)
    newest = process.table.opened().version
    reader = process.table.reader
    history = [process.contents(snapshot_of(reader, n)) for n in range(newest + 1)]
    for since, until in {*((n, newest) for n in range(newest + 1)), *((n, n + 1) for n in range(newest))}:
        assert sorted(came(process, since, until)) == expected(history, since, until)


def test_rows_that_left_again_are_left_out():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1, 2)), "a2": ("e1", (4,))}))
    process.commit(process.planned({"a1": ("e2", (5,)), "a2": ("e1", (4,))}))
    assert came(process, 0, 1) == [("a1", "e1", 1), ("a1", "e1", 2), ("a2", "e1", 4)]
    assert came(process, 1, 2) == [("a1", "e2", 5)]
    assert came(process, 0, 2) == [("a2", "e1", 4), ("a1", "e2", 5)]
    process.commit(process.planned({}))
    assert came(process, 0, 3) == []


def test_packs_that_are_merged_bring_nothing():
    process = Rounds(store=MemoryObjectStore())
    bucket = {}
    for n in range(12):
        bucket[f"a{n}"] = ("e", (1,))
        process.commit(process.planned(bucket))
    newest = process.table.opened()
    assert any(pack.since < pack.until for pack in newest.packs.values()), "some were merged"
    assert came(process, 0, newest.version) == [(f"a{n}", "e", 1) for n in range(12)]


def test_rounds_of_one_version_do_not_merge_each_others_packs():
    """Else their rows would be in a pack without a change of data, which a stream passes over."""
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


def test_parts_of_an_object_come_one_after_the_other():
    """The rows of the next part alone, also if it is in one pack with those before; an older ETag gives them up."""
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
        changed = SlotRound(changes={"a1": after}, before={"a1": state} if state else {})
        packs = process._staged(process.data, rows, label)
        process.commit(
            RoundChange(
                base=base, slots={slot: changed}, table=process.whole, clock=process.clock, rows=packs
            )
        )
        state = after
    numbers = [("a1", "e", 1 + 3 * at) for at in range(6)]
    assert came(process, 0, 3) == numbers
    assert came(process, 1, 3) == numbers[2:]
    assert came(process, 1, 2) == numbers[2:4]
    process.commit(process.planned({"a1": ("f", (7,))}))
    assert came(process, 0, 4) == [("a1", "f", 7)]


def test_sizes():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,)), "b1": ("e1", (1,))}))
    process.commit(process.planned({"a1": ("e1", (1,)), "b1": ("e2", (1,))}))
    found = [*sizes_of(process.table.reader, 0, 2)]
    assert [(version, changed) for version, changed, _ in found] == [(1, 2), (2, 1)]
    assert all(size > 0 for *_, size in found)


def test_a_rollback_is_named():
    """Rows that came before have left, and others are back: whoever goes on would not know."""
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,))}))
    process.commit(process.planned({"a1": ("e2", (2,))}))
    roll_back(process.whole, 1)
    for look in (
        lambda: arrivals(process.table.reader, 1, 3),
        lambda: [*sizes_of(process.table.reader, 1, 3)],
    ):
        with pytest.raises(UsageError, match=r"version 3 went back to version 1: .*, or after version 3"):
            look()
    process.commit(process.planned({"a1": ("e3", (4,))}))
    assert came(process, 3, 4) == [("a1", "e3", 4)]


def test_versions_that_are_not_there():
    process = Rounds(store=MemoryObjectStore())
    process.commit(process.planned({"a1": ("e1", (1,))}))
    with pytest.raises(NotFoundError, match="versions 0 to 1 are kept"):
        arrivals(process.table.reader, 1, 2)
