"""A round of a derived table on top of another writer's version. The docstring of `table/derived_round.py` has the
cases.
"""

import json
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.arrow_schema import spark_schema
from s3notify_platform.table.check import check_table
from s3notify_platform.table.commit import Committed, NothingLeft
from s3notify_platform.table.delta.actions import LogVersion, MetaData
from s3notify_platform.table.derived_round import CHANGED, DERIVED, MAX_OTHERS
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.pinned_schema import TableSchema, described
from s3notify_platform.table.retype import Wanted, retyped
from tests.support.faults import Fault, FaultyStore, at
from tests.support.log_derived import Derived
from tests.support.log_tables import LAYOUT, foreign

A, B, C = 0, 1, 2


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def derived(request):
    store = MemoryObjectStore()
    return lambda **given: Derived(store=store, vectors=request.param, **given)


def values(slot, name, count=5):
    return sorted(f"{name}-{slot}-{n:04d}" for n in range(count))


def filled(derived, slots=(A, B, C), count=5):
    """Commits slots that share one pack and are made from version 1 of the source's table."""
    held = {slot: values(slot, "first", count) for slot in slots}
    process = derived()
    assert isinstance(process.commit(process.planned(held)), Committed)
    assert process.contents() == held
    return held


def facts(derived, slot):
    return derived().table.opened().manifest.slot(Slot(slot))


def test_slot_is_replaced_as_a_whole_and_others_stay(derived):
    held = filled(derived)
    process = derived()
    planned = process.planned({A: ["new"]}, source=7)
    assert isinstance(process.commit(planned), Committed)
    assert derived().contents() == {**held, A: ["new"]}
    assert (facts(derived, A).source, facts(derived, A).generation) == (7, planned.base.version + 1)
    assert (facts(derived, B).source, facts(derived, B).generation) == (1, planned.base.version)


def test_slot_without_rows_is_noted_as_made(derived):
    """Otherwise each round would make the slot again."""
    held = filled(derived)
    process = derived()
    process.commit(process.planned({A: [], 9: []}, source=7))
    del held[A]
    assert derived().contents() == held
    assert (facts(derived, A).source, facts(derived, 9).source) == (7, 7)


def test_round_goes_on_if_others_changed_other_slots(derived):
    held = filled(derived)
    one, two = derived(), derived()
    second = two.planned({B: ["mine"]}, source=2)
    one.commit(one.planned({A: ["theirs"]}, source=2))
    assert isinstance(two.commit(second), Committed)
    assert not second.done | second.dropped.keys()
    assert derived().contents() == {**held, A: ["theirs"], B: ["mine"]}


@pytest.mark.parametrize("theirs", [5, 6])
def test_slot_is_done_if_others_made_it_from_the_same_or_a_later_source_version(derived, theirs):
    """Otherwise a slot that another run has already made would count as a conflict, or the other slots of its pack
    would not be committed.
    """
    held = filled(derived)
    one, two = derived(), derived()
    second = two.planned({A: ["mine"] * 3, B: ["mine"]}, source=5)
    one.commit(one.planned({A: ["theirs"]}, source=theirs))
    assert isinstance(two.commit(second), Committed)
    assert (second.done, second.dropped) == ({Slot(A)}, {})
    assert derived().contents() == {**held, A: ["theirs"], B: ["mine"]}
    assert facts(derived, A).source == theirs


def test_nothing_is_left_to_commit_if_others_made_all_slots(derived):
    held = filled(derived)
    one, two = derived(), derived()
    second = two.planned({A: ["mine"]}, source=5)
    one.commit(one.planned({A: ["theirs"]}, source=5))
    assert isinstance(two.commit(second), NothingLeft)
    assert second.done == {Slot(A)}
    assert derived().contents() == {**held, A: ["theirs"]}


def test_slot_is_replaced_if_others_made_it_from_an_earlier_source_version(derived):
    held = filled(derived)
    one, two = derived(), derived()
    second = two.planned({A: ["mine"]}, source=5)
    one.commit(one.planned({A: ["theirs"] * 3}, source=4))
    assert isinstance(two.commit(second), Committed)
    assert not second.done
    assert derived().contents() == {**held, A: ["mine"]}
    assert facts(derived, A).source == 5


@pytest.mark.parametrize("theirs", [None, 6])
def test_slot_of_an_unknown_source_version_is_a_conflict_if_others_changed_it(derived, theirs):
    """Otherwise the second of two runs would report its rows as committed although they were dropped."""
    held = filled(derived)
    one, two = derived(), derived()
    second = two.planned({A: ["mine"] * 3, B: ["mine"]}, source=None)
    one.commit(one.planned({A: ["theirs"]}, source=theirs))
    assert isinstance(two.commit(second), Committed)
    assert (second.done, second.dropped) == (frozenset(), {Slot(A): CHANGED})
    assert derived().contents() == {**held, A: ["theirs"], B: ["mine"]}
    assert facts(derived, B).source == 0


def test_slot_that_others_changed_after_the_inputs_were_read_is_a_conflict(derived):
    """Otherwise a slow run would replace newer rows with rows of older inputs. A slot is committed if no other run has
    changed the slot since the inputs were read.
    """
    held = filled(derived)
    before = derived().table.opened()
    one, two = derived(), derived()
    one.commit(one.planned({A: ["theirs"]}))
    second = replace(two.planned({A: ["mine"], B: ["mine"]}, source=None), since=before.version)
    assert second.base.version > before.version
    assert isinstance(two.commit(second), Committed)
    assert second.dropped == {Slot(A): CHANGED}
    assert derived().contents() == {**held, A: ["theirs"], B: ["mine"]}


def test_slot_of_an_unknown_source_version_is_committed_if_its_answer_was_lost():
    """Otherwise a run would take its own commit for a commit of another run, and fail."""
    inner = MemoryObjectStore()
    held = filled(lambda: Derived(store=inner))
    process = Derived(store=(faulty := FaultyStore(inner)))
    second = process.planned({A: ["mine"]}, source=None)
    faulty.schedule = at("put", Fault.LOST, key=LAYOUT.version(second.base.version + 1))
    assert isinstance(process.commit(second), Committed)
    assert not second.done | second.dropped.keys()
    assert Derived(store=inner).contents() == {**held, A: ["mine"]}


def test_slot_is_made_again_from_the_same_source_version(derived):
    """Otherwise a new transform would not change the rows of an unchanged source."""
    held = filled(derived)
    process = derived()
    assert isinstance(process.commit(process.planned({A: ["again"]}, source=1)), Committed)
    assert derived().contents() == {**held, A: ["again"]}


def test_rows_leave_packs_that_others_merged(derived):
    held = filled(derived, slots=(A,))
    one = derived()
    for slot in (B, C):
        one.commit(one.planned({slot: values(slot, "x")}))
        held[slot] = values(slot, "x")
    two = derived()
    second = two.planned({B: ["mine"]}, source=2)
    # With the fourth small pack, a merge is due.
    for slot in (3, 4, 5):
        one.commit(one.planned({slot: values(slot, "x")}))
        held[slot] = values(slot, "x")
    assert len(one.table.opened().packs) < 6
    assert isinstance(two.commit(second), Committed)
    assert derived().contents() == {**held, B: ["mine"]}


def test_rows_leave_packs_that_another_engine_merged(derived):
    """Otherwise the old rows would stay in the engine's file, which is unsorted and does not say which slots it has."""
    held = filled(derived)
    process = derived()
    second = process.planned({B: ["mine"]}, source=2)
    (pack,) = second.base.packs.values()
    rows = pa.concat_tables([*process.whole.data.opened(pack).groups()])
    path = LAYOUT.pack_path("part-1")
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(rows.sort_by([("value", "descending")]), sink)
    process.store.put(LAYOUT.file(path), sink.getvalue().to_pybytes())
    added = replace(
        pack, path=path, since=0, until=2**63 - 1, slots=(0, 2**63 - 1), stats=json.dumps({"numRecords": 15})
    )
    body = LogVersion(
        adds=(replace(added, data_change=False),), removes=(pack.removed(1, data_change=False),)
    )
    foreign(process.store, second.base.version + 1, body)
    assert isinstance(process.commit(second), Committed)
    assert derived().contents() == {**held, B: ["mine"]}


def test_round_fails_if_another_engine_changed_rows(derived):
    """Otherwise the round would be committed on top of a version that no reader of ours accepts."""
    filled(derived)
    process = derived()
    second = process.planned({B: ["mine"]}, source=2)
    refused = LogVersion(removes=tuple(pack.removed(1) for pack in second.base.packs.values()))
    foreign(process.store, second.base.version + 1, refused)
    for _ in range(2):  # a second attempt is refused, too
        with pytest.raises(UsageError, match=rf"changes rows.*rollback NAME --to {second.base.version}"):
            process.commit(second)
    assert process.store.head(LAYOUT.version(second.base.version + 2)) is None


def grown(planned, **columns):
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    planned.metadata = MetaData(id=planned.base.table, schema=schema, created_ms=1)
    return planned


def test_schema_gets_the_columns_of_both_writers(derived):
    one, two = derived(), derived()
    one.table.opened()
    first = grown(one.planned({A: ["a"]}), value="string", x="long")
    second = grown(two.planned({B: ["b"]}), value="string", y="date")
    one.commit(first)
    assert isinstance(two.commit(second), Committed)
    schema = json.loads(derived().table.opened().metadata.schema)
    assert [each["name"] for each in schema["fields"]] == ["value", "x", "y"]
    assert derived().contents() == {A: ["a"], B: ["b"]}


def test_new_column_of_another_type_is_a_conflict_for_slots_with_rows(derived):
    """Otherwise rows of two types would be in one column. A slot without new rows can still be committed."""
    one, two = derived(), derived()
    one.table.opened()
    second = grown(two.planned({B: ["b"], C: []}), x="string")
    one.commit(grown(one.planned({A: ["a"]}), x="long"))
    assert isinstance(two.commit(second), Committed)
    assert second.dropped.keys() == {Slot(B)}
    assert derived().contents() == {A: ["a"]}


def test_changed_type_of_a_column_is_a_conflict_for_rounds_of_the_old_type(derived):
    """Otherwise a round that changes no schema would commit rows of the old type."""
    one, two = derived(), derived()
    one.table.opened()
    first = one.planned({A: ["1"], C: [None]})
    columns = spark_schema(pa.schema([("value", pa.string())]))
    schema = TableSchema(source="{}", rows=columns)
    first.metadata, first.protocol = described(schema, created_ms=1, table=first.base.table, derived=True)
    one.commit(first)
    second = two.planned({B: ["2"]})
    new = Wanted(columns=spark_schema(pa.schema([("value", pa.int64())])), derived=True)
    done, made = retyped(one.whole, one.table.opened(), new)
    assert isinstance(done, Committed)
    assert isinstance(two.commit(second), NothingLeft)
    assert second.dropped.keys() == {Slot(B)}
    assert derived().contents() == {A: [1], C: [None]}
    facts = derived().table.opened().manifest.slots
    assert ({slot: facts[slot].source for slot in (A, C)}, made.doubts.keys) == ({A: 0, C: 1}, {A: None})


def test_round_of_a_restarted_table_has_nothing_left_to_commit(derived):
    filled(derived)
    planned = derived().planned({A: ["x"]}, source=9)
    assert planned.onto(replace(planned.base, table="another")) is None
    assert planned.dropped.keys() == {Slot(A)}


def test_lineage_columns_may_be_null_and_unsorted(derived):
    process = derived()
    schema = {"_key": pa.string(), "_offset": pa.string(), "value": pa.string()}
    held = {A: ["b", None, "a"], B: [None, "z"]}
    process.commit(process.planned(held, **schema))
    process.commit(process.planned({A: ["c"]}, **schema))
    (rows,) = [
        group.to_pylist()
        for pack in process.table.opened().packs.values()
        for group in process.whole.data.opened(pack).groups()
        if B in group["_slot"].to_pylist()
    ]
    assert [row["_key"] for row in rows if row["_slot"] == B] == [None, "z"]


def test_check_compares_the_rows_of_slots_with_the_manifest(derived):
    filled(derived)
    process = derived()
    planned = process.planned({A: ["x", "y"]})
    planned.slots = {Slot(A): replace(planned.slots[Slot(A)], rows=5)}
    process.commit(planned)
    checked = check_table(process.whole, process.table.opened())
    assert checked.problems == ("slot 0 has 2 rows, but the manifest says 5",)
    process.commit(process.planned({A: ["x"]}))
    assert check_table(process.whole, process.table.opened()).ok, "replacing a slot repairs it"


SCALE = 32


def scaled():
    """`DERIVED` with smaller byte sizes."""
    sizes = {
        name: getattr(DERIVED, name) // SCALE for name in ("target", "smallest", "group", "own", "budget")
    }
    return PackSizes(**sizes, fan=DERIVED.fan, by_slot=True)


@pytest.mark.parametrize("seed", range(2))
def test_replacing_one_slot_writes_few_rows_of_others(derived, seed):
    """Otherwise a change of one slot would rewrite much of the table. The rows do not compress."""
    source, sizes = random.Random(seed), scaled()
    process, held = derived(sizes=sizes), {}

    def made():
        return [source.randbytes(60).hex() for _ in range(int(10 ** source.uniform(0, 3.7)))]

    for turn in range(40):
        slots = source.sample(range(40), 1 if turn % 4 else 12)
        new = {slot: made() for slot in slots}
        planned = process.planned(new, source=turn)
        done = process.commit(planned)
        assert isinstance(done, Committed)
        held |= {slot: sorted(rows) for slot, rows in new.items()}
        if len(slots) == 1:
            assert sum(map(len, done.proposal.files.values())) < MAX_OTHERS // SCALE
    assert process.contents() == held
    snapshot = process.table.opened()
    classes = 1 + sizes.class_of(sizes.target - 1)
    assert len(snapshot.packs) <= sum(each.size for each in snapshot.packs.values()) / sizes.target + (
        classes * sizes.in_class
    )


def test_batch_of_half_the_slots_writes_at_most_twice_its_rows(derived):
    """Otherwise a batch of half the slots would rewrite more rows of other slots than it has rows of its own."""
    source, sizes = random.Random(5), scaled()
    process, slots = derived(sizes=sizes), range(100)

    def made(slots):
        return {slot: [source.randbytes(60).hex() for _ in range(150)] for slot in slots}

    process.commit(process.planned(made(slots)))
    for turn in range(2, 8):
        planned = process.planned(made(source.sample(slots, 50)), source=turn)
        done = process.commit(planned)
        assert isinstance(done, Committed)
        own = sum(pack.add.size for pack in planned.rows)
        assert sum(map(len, done.proposal.files.values())) < 1.1 * own
    assert len(process.contents()) == 100
