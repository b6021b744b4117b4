"""A round on top of versions that another writer has committed meanwhile. The docstring of `table/round.py` has the
cases.
"""

import json
from dataclasses import replace

import pytest

from s3notify_platform.kernel.ports import StoredObject
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed, NothingLeft, Wanted
from s3notify_platform.table.delta.actions import MetaData
from s3notify_platform.table.packs import pack_set
from s3notify_platform.table.packs.round_packs import Withdrawal
from tests.support.log_rounds import Rounds
from tests.support.log_tables import LAYOUT, versions

A, B, C = 0, 1, 2


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def rounds(request):
    store = MemoryObjectStore()
    return lambda: Rounds(store=store, vectors=request.param)


def etag(number):
    return f"e{number}"


def filled(rounds, count=6):
    """Commits objects of two slots, in one pack."""
    bucket = {f"{letter}{n}": (etag(n), (1, 2, 3, 4 + n)) for letter in "ab" for n in range(count)}
    process = rounds()
    assert isinstance(process.commit(process.planned(bucket)), Committed)
    assert process.contents() == bucket
    return bucket


def test_overwritten_and_deleted_objects_leave_with_their_rejects(rounds):
    bucket = filled(rounds)
    bucket["a1"] = ("new", (7, 8))
    bucket["b2"] = ("empty", ())
    del bucket["a2"]
    process = rounds()
    assert isinstance(process.commit(process.planned(bucket)), Committed)
    assert rounds().contents() == bucket


def test_round_without_changes_has_nothing_left_to_commit(rounds):
    bucket = filled(rounds)
    process = rounds()
    assert isinstance(process.commit(process.planned(bucket)), NothingLeft)


def test_round_goes_on_if_others_changed_other_slots(rounds):
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    bucket |= {"a1": ("x", (1,)), "b1": ("y", (2, 3))}
    first, second = one.planned(bucket, {A}), two.planned(bucket, {B})
    assert isinstance(one.commit(first), Committed)
    assert isinstance(two.commit(second), Committed)
    assert not second.dropped
    assert rounds().contents() == bucket


def test_slot_that_others_changed_is_left_out(rounds):
    """Otherwise rows, rejects, states or counts of the conflicting slot would be committed twice."""
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    mine = {**bucket, "a1": ("mine", (1, 3)), "a9": ("mine", (3, 3)), "b1": ("mine", (2, 3))}
    theirs = {**bucket, "a1": ("theirs", (5,))}
    second = two.planned(mine)
    assert isinstance(one.commit(one.planned(theirs, {A})), Committed)
    assert isinstance(two.commit(second), Committed)
    assert second.dropped.keys() == {Slot(A)}
    assert rounds().contents() == {**theirs, "b1": mine["b1"]}


def test_nothing_is_left_to_commit_if_others_changed_all_slots(rounds):
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    theirs, mine = {**bucket, "a1": ("theirs", (5,))}, {**bucket, "a2": ("mine", (6,))}
    second = two.planned(mine, {A})
    one.commit(one.planned(theirs))
    assert isinstance(two.commit(second), NothingLeft)
    assert rounds().contents() == theirs


def test_rows_leave_packs_that_others_replaced(rounds):
    """Otherwise overwritten rows would stay, because other packs have replaced the packs of the plan."""
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    second = two.planned({**bucket, "a1": ("mine", (7, 9))}, {A})
    theirs = {key: found for key, found in bucket.items() if key != "b1"}
    one.commit(one.planned(theirs, {B}))
    assert isinstance(two.commit(second), Committed)
    assert rounds().contents() == {**theirs, "a1": ("mine", (7, 9))}


def test_rounds_of_one_version_withdraw_rows_of_the_same_pack(rounds):
    """Otherwise the second round would not find its rows in the new pack of the first round, and would fail."""
    bucket = filled(rounds)
    new = dict.fromkeys(bucket, ("new", (7, 8)))
    process = rounds()
    base = process.table.opened()
    assert len(base.packs) == 1
    planned = [process.planned(new, {slot}, base) for slot in (A, B)]
    done = process.table.committer.commit_together([Wanted(change=each, base=base) for each in planned])
    assert [type(each) for each in done] == [Committed, Committed]
    assert not planned[0].dropped | planned[1].dropped
    assert rounds().contents() == new
    assert rounds().table.opened().version == base.version + 1


def test_merge_changes_data_if_the_same_version_withdraws_rows_of_the_merged_pack(rounds):
    """Otherwise the version would add a pack as a change of data, but remove the merged packs without a change of data.
    Readers of the version's changes would get the rows of the pack again.
    """
    process, bucket = rounds(), {}
    for n in range(4):
        bucket[f"a{n}"] = (etag(n), (1, 2, 4))
        process.commit(process.planned(bucket))
    base = process.table.opened()
    new = {**bucket, "a0": ("new", (7, 8)), "c1": ("new", (5,))}
    planned = [process.planned(new, {slot}, base) for slot in (C, A)]
    process.table.committer.commit_together([Wanted(change=each, base=base) for each in planned])
    assert rounds().contents() == new
    version = versions(process.store)[-1]
    assert len(version.removes) > 1, "the first round merged packs"
    assert all(each.data_change for each in (*version.adds, *version.removes))


def test_many_small_rounds_leave_few_files(rounds):
    bucket, process = {}, rounds()
    for n in range(60):
        bucket[f"{'abcdefgh'[n % 8]}{n}"] = (etag(n), (1, 2, 4))
        assert isinstance(process.commit(process.planned(bucket)), Committed)
    assert rounds().contents() == bucket
    snapshot = process.table.opened()
    assert len(snapshot.packs) <= 12
    assert len(snapshot.manifest.rejects) <= 12


def test_two_rounds_do_not_merge_the_same_packs_twice(rounds):
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


def test_rows_leave_packs_that_another_engine_merged(rounds):
    """Otherwise overwritten rows would stay in the engine's file, which is unsorted and has no labels or bounds."""
    bucket, process = filled(rounds), rounds()
    bucket["c1"] = ("c", (1, 2))
    second = process.planned({**bucket, "a1": ("mine", (7, 8, 9))})
    rounds().optimized()
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


def test_schema_gets_the_columns_of_both_writers(rounds):
    bucket = {"a1": ("a", (1,)), "b1": ("b", (2,))}
    one, two = rounds(), rounds()
    one.table.opened()
    first, second = grown(one, bucket, {A}, x="long", y="string"), grown(two, bucket, {B}, x="long", z="date")
    one.commit(first)
    assert isinstance(two.commit(second), Committed)
    assert columns_of(rounds) == {"x": "long", "y": "string", "z": "date"}
    assert rounds().contents() == bucket


def test_new_column_of_another_type_is_a_conflict(rounds):
    bucket = {"a1": ("a", (1,)), "b1": ("b", (2,))}
    one, two = rounds(), rounds()
    one.table.opened()
    first, second = grown(one, bucket, {A}, x="long"), grown(two, bucket, {B}, x="string")
    one.commit(first)
    assert isinstance(two.commit(second), NothingLeft)
    assert second.dropped.keys() == {Slot(B)}
    assert columns_of(rounds) == {"x": "long"}


def test_round_of_a_restarted_table_has_nothing_left_to_commit(rounds):
    bucket = filled(rounds)
    process = rounds()
    planned = process.planned({**bucket, "a1": ("x", (1,))})
    other = replace(planned.base, table="another")
    assert planned.onto(other) is None
    assert planned.dropped.keys() == {Slot(A)}


def test_damaged_slot_fails_alone(rounds):
    bucket = filled(rounds)
    process = rounds()
    planned = process.planned({**bucket, "a1": ("x", (1,)), "b1": ("y", (2,))})
    one = planned.slots[Slot(A)]
    wrong = {**planned.slots, Slot(A): replace(one, before={"a1": replace(one.before["a1"], rows=99)})}
    planned.slots = wrong
    assert isinstance(process.commit(planned), Committed)
    assert "table check" in planned.dropped[Slot(A)]
    assert rounds().contents() == {**bucket, "b1": ("y", (2,))}


def test_round_of_many_slots_takes_few_requests(rounds):
    """Otherwise a round would make a request for each slot or object."""
    store = CountingStore(MemoryObjectStore())
    process = Rounds(store=store)
    bucket = {f"{letter}{n}": (etag(n), (1, 2)) for letter in "abcdefghijklmnopqrstuvwxyz" for n in range(30)}
    planned = process.planned(bucket)
    store.counts.clear()
    assert isinstance(process.commit(planned), Committed)
    # Each of these takes one PUT: a state file, the changes, the manifest, the version, `known`, and each pack of the
    # round.
    assert store.counts == {"PUT": 5 + len(planned.rows) + len(planned.rejects)}


def test_version_does_not_name_packs_with_rows_of_a_dropped_slot(rounds):
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    second = two.planned({**bucket, "a1": ("mine", (1,)), "b1": ("mine", (2,))})
    one.commit(one.planned({**bucket, "a1": ("theirs", (5,))}, {A}))
    done = two.commit(second)
    named = {LAYOUT.file(path) for path in done.snapshot.packs}
    assert not named & {LAYOUT.file(each.add.path) for each in second.rows}, "the pack held both slots"


def test_slots_of_an_erased_pack_are_left_out(rounds):
    """Otherwise the whole round would fail if `erase` has removed one of its packs."""
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


def test_memory_holds_a_limited_number_of_bytes_of_rewritten_packs(rounds, monkeypatch):
    """Otherwise a driver runs out of memory if a batch overwrites objects in most packs of a large table."""
    bucket, process = {}, rounds()
    for letter in "ab":
        bucket |= {f"{letter}{n}": (etag(n), (1, 2, 4)) for n in range(3)}
        process.commit(process.planned(bucket))
    base = process.table.opened()
    leaving = [Withdrawal(slot=slot, key=f"{'ab'[slot]}1", since=0, until=9) for slot in (A, B)]

    def bodies(limit):
        monkeypatch.setattr(pack_set, "HELD_PACK_BYTES", limit)
        changes = process.data.fresh(vectors=False).changed(base.packs.values(), leaving, [])
        assert len(changes.adds) == len(base.packs) == 2
        for each in changes.adds:
            key = LAYOUT.file(each.path)
            assert (key in changes.files) != isinstance(process.store.get(key), StoredObject)
        return [len(body) for body in changes.files.values()]

    first, second = bodies(1 << 20)
    assert bodies(first + second) == [first, second]
    assert bodies(first + second - 1) == [first]
    assert bodies(0) == []


def test_rows_are_complete_if_memory_holds_no_rewritten_pack(rounds, monkeypatch):
    monkeypatch.setattr(pack_set, "HELD_PACK_BYTES", 0)
    bucket = filled(rounds)
    one, two = rounds(), rounds()
    second = two.planned({**bucket, "a1": ("mine", (7, 9)), "b1": ("mine", (3,))})
    theirs = {key: found for key, found in bucket.items() if key != "b1"}
    one.commit(one.planned(theirs, {B}))
    assert isinstance(two.commit(second), Committed)
    assert second.dropped.keys() == {Slot(B)}
    assert rounds().contents() == {**theirs, "a1": ("mine", (7, 9))}
