"""The erasure of an object beside a run of a slot asset, whose packs are stored, but not committed yet."""

import random
from base64 import b85encode

import pyarrow as pa
import pytest

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.table.commit import Committed, NothingLeft
from s3notify_platform.table.derived_round import CHANGED
from tests.support.log_derived import Derived
from tests.support.raw_search import holding

A, B, C = Slot(0), Slot(1), Slot(2)
KEY = "b-person4711"
KEYED = {"_key": pa.string(), "value": pa.string()}
HELD = {A: ["x"], B: ["y"], C: ["z"]}
ALONE = sorted(b85encode(random.Random(n).randbytes(80)).decode() for n in range(60))
"""The rows of one slot. These rows fill one pack, because they do not compress."""


@pytest.fixture
def derived(store, clock, vectors):
    return lambda: Derived(store=store, clock=clock, vectors=vectors)


@pytest.fixture(params=[False, True], ids=["by key", "whole slot"])
def whole_slot(request):
    return request.param


@pytest.fixture
def columns(whole_slot):
    return {} if whole_slot else KEYED


def filled(derived, clock, columns):
    """Commits three slots that are made from version 1 of the source's table."""
    process = derived()
    assert isinstance(process.commit(process.planned(HELD, **columns)), Committed)
    clock.sleep(60)
    return process


def erased(derived, clock, whole_slot):
    return erase(derived().whole, B, KEY, whole_slot=whole_slot, clock=clock)


def held(whole_slot, **slots):
    """The contents of the table after the erasure, with these slots replaced. The erased object has no committed
    rows.
    """
    found = {**HELD, **{{"A": A, "B": B, "C": C}[name]: rows for name, rows in slots.items()}}
    if whole_slot and "B" not in slots:
        del found[B]
    return found


def test_slots_of_a_pack_that_an_erasure_has_deleted_are_made_again(
    derived, store, clock, whole_slot, columns
):
    """Otherwise the table would name a deleted pack: no reader could read it, and no run could replace its slots. Slots
    in other packs are committed.
    """
    filled(derived, clock, columns)
    process = derived()
    planned = process.planned({A: ALONE, B: [KEY], C: ["z5"]}, source=5, **columns)
    assert [pack.slots.keys() for pack in planned.rows] == [{A}, {B, C}]
    clock.sleep(60)
    assert erased(derived, clock, whole_slot).files
    assert isinstance(process.commit(planned), Committed)
    assert (planned.dropped, planned.done) == ({B: CHANGED, C: CHANGED}, frozenset())
    assert derived().contents() == held(whole_slot, A=ALONE)
    assert holding(store, KEY) == set()
    facts = derived().table.opened().manifest.slot
    assert (facts(B).source < 5, facts(C).source < 5) == (True, True), "a later run makes these slots"
    again = derived()
    assert isinstance(again.commit(again.planned({B: ["y6"], C: ["z6"]}, source=6, **columns)), Committed)
    assert derived().contents() == held(whole_slot, A=ALONE, B=["y6"], C=["z6"])


def test_rows_of_an_erased_object_do_not_come_back(derived, clock, whole_slot, columns):
    """A run that made its rows before the erasure must not bring the erased data back into the table. The erasure keeps
    the run's pack, because the pack is young. If the pack's other slots were not committed, a later run would have to
    make them again.
    """
    filled(derived, clock, columns)
    process = derived()
    planned = process.planned({A: ["x5"], B: [KEY], C: ["z5"]}, source=5, **columns)
    assert erased(derived, clock, whole_slot).left
    assert isinstance(process.commit(planned), Committed)
    assert (planned.dropped, planned.done) == ({B: CHANGED}, frozenset())
    assert derived().contents() == held(whole_slot, A=["x5"], C=["z5"])


def test_run_from_an_unknown_source_version_leaves_out_a_deleted_pack(derived, clock, whole_slot, columns):
    filled(derived, clock, columns)
    process = derived()
    planned = process.planned({A: ALONE, B: [KEY], C: ["z5"]}, source=None, **columns)
    clock.sleep(60)
    assert erased(derived, clock, whole_slot).files
    assert isinstance(process.commit(planned), Committed)
    assert planned.dropped == {B: CHANGED, C: CHANGED}
    assert derived().contents() == held(whole_slot, A=ALONE)


@pytest.mark.parametrize("whole_slot", [False])
def test_slot_is_not_done_if_the_other_writer_was_an_erasure(derived, clock, whole_slot, columns):
    """Otherwise a run that makes the slot with new code, from the same source version, would report rows that were not
    committed.
    """
    filled(derived, clock, columns)
    process = derived()
    planned = process.planned({B: ["new code"]}, source=1, **columns)
    erased(derived, clock, whole_slot)
    assert isinstance(process.commit(planned), NothingLeft)
    assert (planned.dropped, planned.done) == ({B: CHANGED}, frozenset())


@pytest.mark.parametrize("theirs", [4, 5, 6])
def test_slot_that_others_made_after_the_erasure_is_not_replaced(derived, clock, whole_slot, columns, theirs):
    """Otherwise the erased rows, or a deleted pack, would come back. The slot is done if it is made from the same
    source version, or a later one.
    """
    filled(derived, clock, columns)
    process, other = derived(), derived()
    planned = process.planned({B: [KEY]}, source=5, **columns)
    clock.sleep(60)
    erased(derived, clock, whole_slot)
    other.commit(other.planned({B: ["theirs"]}, source=theirs, **columns))
    assert isinstance(process.commit(planned), NothingLeft)
    assert (planned.done, planned.dropped) == (({B}, {}) if theirs >= 5 else (frozenset(), {B: CHANGED}))
    assert derived().contents() == held(whole_slot, B=["theirs"])


def test_erased_rows_do_not_come_back_after_a_rollback(derived, clock, whole_slot, columns):
    """Otherwise a rollback to a version before the erasure would let an earlier run commit the erased rows."""
    before = filled(derived, clock, columns).table.opened()
    process = derived()
    planned = process.planned({B: [KEY]}, source=5, **columns)
    clock.sleep(60)
    erased(derived, clock, whole_slot)
    if not whole_slot:  # an erasure of the whole slot has cut the log
        roll_back(derived().whole, before.version)
    assert isinstance(process.commit(planned), NothingLeft)
    assert planned.dropped == {B: CHANGED}
    assert derived().contents() == held(whole_slot)
