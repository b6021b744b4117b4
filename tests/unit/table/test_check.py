"""`check_table` finds each kind of damage, and accepts rows that a transform has multiplied."""

from dataclasses import replace

import pytest

from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.check import check_table
from s3notify_platform.table.code_versions import NO_TRANSFORM
from tests.support.keyed_rounds import CLUSTERED, KeyedRounds, following
from tests.support.log_rounds import Rounds

BUCKET = {"a1": ("e", (1, 2, 3, 4)), "b1": ("f", (5, 7))}


@pytest.fixture(params=["", NO_TRANSFORM, "v2"])
def rounds(request):
    found = Rounds(store=MemoryObjectStore())
    found.commit(found.planned(BUCKET))
    return found if not request.param else Coded(found, request.param)


class Coded:
    """Rounds whose table has this code version in each slot."""

    def __init__(self, rounds, code):
        self.rounds, self.code, self.table = rounds, code, self

    def opened(self):
        found = self.rounds.table.opened()
        slots = {slot: replace(facts, code_version=self.code) for slot, facts in found.manifest.slots.items()}
        return replace(found, manifest=replace(found.manifest, slots=slots))

    def __getattr__(self, name):
        return getattr(self.rounds, name)


def problems(table, snapshot):
    return check_table(table, snapshot).problems


def transformed(planned):
    """A staged round, with the mark that a transform has made its rows."""
    planned.slots = {slot: replace(each, transformed=True) for slot, each in planned.slots.items()}
    return planned


def doubled(rounds):
    """The newest snapshot of a table with one pack, to which a copy of this pack is added."""
    snapshot = rounds.table.opened()
    ((path, pack),) = snapshot.packs.items()
    copy = path.replace(".parquet", "-copy.parquet")
    rounds.store.put(rounds.whole.layout.file(copy), rounds.store.get(rounds.whole.layout.file(path)).body)
    return replace(snapshot, packs={**snapshot.packs, copy: replace(pack, path=copy)})


def test_a_lost_pack_is_found(rounds):
    snapshot = rounds.table.opened()
    (pack,) = snapshot.packs
    rounds.store.delete(rounds.whole.layout.file(pack))
    assert any(pack in problem for problem in problems(rounds.whole, snapshot))


def test_an_object_without_its_rows_is_found(rounds):
    found = problems(rounds.whole, replace(rounds.table.opened(), packs={}))
    assert "'a1' of slot 0 has 0 rows, but its state says 3" in found


def test_rows_that_two_packs_have_are_found(rounds):
    """Otherwise queries would count records twice, and the check would still find no problem. Each record of the copied
    pack must be reported, and each object whose number of rows is wrong.
    """
    found = problems(rounds.whole, doubled(rounds))
    assert "'a1' of slot 0 has 6 rows, but its state says 3" in found
    assert "'b1' of slot 1 has 4 rows, but its state says 2" in found
    assert "the record at 0 of 'a1' is in two packs" in found
    (pack,) = rounds.table.opened().packs.values()
    assert sum("is in two packs" in problem for problem in found) == pack.rows


@pytest.mark.parametrize("lost", [True, False])
def test_a_clustered_table_with_too_few_rows_is_found(lost):
    source = KeyedRounds(store=MemoryObjectStore())
    source.commit(source.planned(BUCKET))
    ours = following(CLUSTERED, source)
    ours.follow()
    snapshot = ours.table.newest()
    damaged = replace(snapshot, packs={}) if lost else snapshot
    said = ("the table has 0 rows, but the manifest says 5",) if lost else ()
    assert problems(ours.table, damaged) == said


def test_a_transform_may_distribute_the_rows_of_a_record():
    """Otherwise a table without a code version would be reported as damaged if its transform makes several rows of a
    record. More rows than the object's state says are damage nevertheless.
    """
    rounds = Rounds(store=MemoryObjectStore())
    rounds.commit(transformed(rounds.planned(BUCKET)))
    found = problems(rounds.whole, doubled(rounds))
    assert "'a1' of slot 0 has 6 rows, but its state says 3" in found
    assert not any("is in two packs" in problem for problem in found)


class Multiplied(Rounds):
    """Rounds with a transform that makes all rows of an object from its first record."""

    def shaped(self, rows):
        offsets = rows["_offset"].to_pylist()
        place = rows.schema.get_field_index("_offset")
        return rows.set_column(place, "_offset", [[0 for _ in offsets]]).cast(rows.schema)


def test_several_rows_of_one_record_are_no_damage():
    """Otherwise each table with a transform that multiplies rows would be reported as damaged."""
    rounds = Multiplied(store=MemoryObjectStore())
    rounds.commit(transformed(rounds.planned(BUCKET)))
    assert problems(rounds.whole, rounds.table.opened()) == ()


class Repeated(Rounds):
    """Rounds that store the first record of each object twice, and not the second record."""

    def shaped(self, rows):
        keys = rows["_key"].to_pylist()
        firsts = [keys.index(key) for key in keys]
        return rows.take([firsts[n] if n == firsts[n] + 1 else n for n in range(len(keys))])


def test_a_record_that_a_pack_has_twice_instead_of_another_record_is_found():
    """Otherwise the check would accept a lost record, because the number of the object's rows is right."""
    rounds = Repeated(store=MemoryObjectStore())
    rounds.commit(rounds.planned(BUCKET))
    snapshot = rounds.table.opened()
    (path,) = snapshot.packs
    assert set(problems(rounds.whole, snapshot)) == {
        f"the record at 0 of 'a1' is twice in {path}",
        f"the record at 0 of 'b1' is twice in {path}",
    }
