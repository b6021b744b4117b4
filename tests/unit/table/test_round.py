"""A round on top of what another writer has committed meanwhile: each cell of the table in `table.round`."""

import json
from dataclasses import replace

import pytest

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed, NothingLeft
from s3notify_platform.table.delta.actions import LogVersion, MetaData
from tests.support.log_rounds import Rounds
from tests.support.log_tables import LAYOUT

A, B = 0, 1


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def rounds(request):
    store = MemoryObjectStore()
    return lambda: Rounds(store=store, vectors=request.param)


def etag(number):
    return f"e{number}"


def filled(rounds, count=6):
    """Objects of two slots, in one pack."""
    bucket = {f"{letter}{n}": (etag(n), (1, 2, 3, 4 + n)) for letter in "ab" for n in range(count)}
    process = rounds()
    assert isinstance(process.commit(process.planned(bucket)), Committed)
    assert process.contents() == bucket
    return bucket


def test_what_is_overwritten_and_deleted_leaves_with_its_rejects(rounds):
    bucket = filled(rounds)
    bucket["a1"] = ("new", (7, 8))
    bucket["b2"] = ("empty", ())
    del bucket["a2"]
    process = rounds()
    assert isinstance(process.commit(process.planned(bucket)), Committed)
    assert rounds().contents() == bucket


def test_nothing_to_do_is_nothing_left(rounds):
    bucket = filled(rounds)
    process = rounds()
    assert isinstance(process.commit(process.planned(bucket)), NothingLeft)


def test_others_changed_other_slots(rounds):
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    bucket |= {"a1": ("x", (1,)), "b1": ("y", (2, 3))}
    first, second = one.planned(bucket, {A}), two.planned(bucket, {B})
    assert isinstance(one.commit(first), Committed)
    assert isinstance(two.commit(second), Committed)
    assert not second.dropped
    assert rounds().contents() == bucket


def test_others_changed_one_of_the_slots(rounds):
    """Nothing of that slot stays: no row, no reject, no state, no count."""
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    mine = {**bucket, "a1": ("mine", (1, 3)), "a9": ("mine", (3, 3)), "b1": ("mine", (2, 3))}
    theirs = {**bucket, "a1": ("theirs", (5,))}
    second = two.planned(mine)
    assert isinstance(one.commit(one.planned(theirs, {A})), Committed)
    assert isinstance(two.commit(second), Committed)
    assert second.dropped.keys() == {Slot(A)}
    assert rounds().contents() == {**theirs, "b1": mine["b1"]}


def test_others_changed_all_of_the_slots(rounds):
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    theirs, mine = {**bucket, "a1": ("theirs", (5,))}, {**bucket, "a2": ("mine", (6,))}
    second = two.planned(mine, {A})
    one.commit(one.planned(theirs))
    assert isinstance(two.commit(second), NothingLeft)
    assert rounds().contents() == theirs


def test_others_replaced_the_packs_that_rows_are_withdrawn_from(rounds):
    """The rows leave the packs that took their place."""
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    second = two.planned({**bucket, "a1": ("mine", (7, 9))}, {A})
    theirs = {key: found for key, found in bucket.items() if key != "b1"}
    one.commit(one.planned(theirs, {B}))
    assert isinstance(two.commit(second), Committed)
    assert rounds().contents() == {**theirs, "a1": ("mine", (7, 9))}


def test_many_small_rounds_leave_few_files(rounds):
    bucket, process = {}, rounds()
    for n in range(60):
        bucket[f"{'abcdefgh'[n % 8]}{n}"] = (etag(n), (1, 2, 4))
        assert isinstance(process.commit(process.planned(bucket)), Committed)
    assert rounds().contents() == bucket
    snapshot = process.table.opened()
    assert len(snapshot.packs) <= 12
    assert len(snapshot.manifest.rejects) <= 12


def test_both_would_merge_the_same_packs(rounds):
    bucket, process = {}, rounds()
    for n in range(7):
        bucket[f"a{n}"] = (etag(n), (1, 2, 4))
        process.commit(process.planned(bucket))
    one, two = rounds(), rounds()
    mine = {**bucket, "b1": ("b", (1,)), "c1": ("c", (2,))}
    first, second = one.planned(mine, {1}), two.planned(mine, {2})
    assert isinstance(one.commit(first), Committed)
    assert isinstance(two.commit(second), Committed)
    assert rounds().contents() == mine


def test_another_engine_merged_the_packs(rounds):
    """Its file is in another order, and says nothing of labels, slots and keys."""
    bucket, process = filled(rounds), rounds()
    bucket["c1"] = ("c", (1, 2))
    second = process.planned({**bucket, "a1": ("mine", (7, 8, 9))})
    base = second.base
    packs = [pack for pack in base.packs.values() if not pack.vector]
    version = LogVersion(
        adds=tuple(process.compacted(packs)),
        removes=tuple(each.removed(1, data_change=False) for each in packs),
    )
    lines = version.dumps().splitlines(keepends=True)
    process.store.put(
        LAYOUT.version(base.version + 1), b"".join(line for line in lines if b'"txn"' not in line)
    )
    assert isinstance(process.commit(second), Committed)
    assert rounds().contents() == {**bucket, "a1": ("mine", (7, 8, 9))}


def schema(**columns):
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def grown(process, bucket, slots, **columns):
    planned = process.planned(bucket, slots)
    planned.metadata = MetaData(id=planned.base.table, schema=schema(**columns), created_ms=1)
    return planned


def columns_of(rounds):
    return {
        each["name"]: each["type"] for each in json.loads(rounds().table.opened().metadata.schema)["fields"]
    }


def test_others_let_the_schema_grow_too(rounds):
    bucket = {"a1": ("a", (1,)), "b1": ("b", (2,))}
    one, two = rounds(), rounds()
    one.table.opened()
    first, second = grown(one, bucket, {A}, x="long", y="string"), grown(two, bucket, {B}, x="long", z="date")
    one.commit(first)
    assert isinstance(two.commit(second), Committed)
    assert columns_of(rounds) == {"x": "long", "y": "string", "z": "date"}
    assert rounds().contents() == bucket


def test_others_gave_a_new_column_another_type(rounds):
    bucket = {"a1": ("a", (1,)), "b1": ("b", (2,))}
    one, two = rounds(), rounds()
    one.table.opened()
    first, second = grown(one, bucket, {A}, x="long"), grown(two, bucket, {B}, x="string")
    one.commit(first)
    assert isinstance(two.commit(second), NothingLeft)
    assert second.dropped.keys() == {Slot(B)}
    assert columns_of(rounds) == {"x": "long"}


def test_the_table_began_anew(rounds):
    bucket = filled(rounds)
    process = rounds()
    planned = process.planned({**bucket, "a1": ("x", (1,))})
    other = replace(planned.base, table="another")
    assert planned.onto(other) is None
    assert planned.dropped.keys() == {Slot(A)}


def test_a_slot_whose_rows_are_not_those_of_its_states_fails_alone(rounds):
    bucket = filled(rounds)
    process = rounds()
    planned = process.planned({**bucket, "a1": ("x", (1,)), "b1": ("y", (2,))})
    one = planned.slots[Slot(A)]
    wrong = {**planned.slots, Slot(A): replace(one, before={"a1": replace(one.before["a1"], rows=99)})}
    planned.slots = wrong
    assert isinstance(process.commit(planned), Committed)
    assert "table check" in planned.dropped[Slot(A)]
    assert rounds().contents() == {**bucket, "b1": ("y", (2,))}


def test_a_round_of_many_slots_takes_a_few_requests(rounds):
    """None for each slot, and none for each object."""
    store = CountingStore(MemoryObjectStore())
    process = Rounds(store=store)
    bucket = {f"{letter}{n}": (etag(n), (1, 2)) for letter in "abcdefghijklmnopqrstuvwxyz" for n in range(30)}
    planned = process.planned(bucket)
    store.counts.clear()
    assert isinstance(process.commit(planned), Committed)
    # A state file, the changes, the manifest, the version, known; and the packs that travelled with the round.
    assert store.counts == {"PUT": 5 + len(planned.rows) + len(planned.rejects)}


def test_files_that_are_dropped_are_named_by_nothing(rounds):
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    second = two.planned({**bucket, "a1": ("mine", (1,)), "b1": ("mine", (2,))})
    one.commit(one.planned({**bucket, "a1": ("theirs", (5,))}, {A}))
    done = two.commit(second)
    named = {LAYOUT.file(path) for path in done.snapshot.packs}
    assert not named & {LAYOUT.file(each.add.path) for each in second.rows}, "it held both slots"


def test_an_object_was_erased_that_an_own_pack_holds(rounds):
    """The pack is gone, which other slots share: they are left out, too, and a new plan takes them in."""
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    mine = {**bucket, "a1": ("mine", (1,)), "b1": ("mine", (2,)), "c1": ("mine", (3,))}
    second = two.planned(mine)
    one.commit(one.planned({**bucket, "a1": ("theirs", (5,))}, {A}))
    (own,) = second.rows
    two.store.delete(LAYOUT.file(own.add.path))
    assert isinstance(two.commit(second), Committed)
    assert second.dropped.keys() == {Slot(A), Slot(B)}
    assert rounds().contents() == {**bucket, "a1": ("theirs", (5,)), "c1": mine["c1"]}
