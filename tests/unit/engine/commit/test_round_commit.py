"""The commit of a staged round beside other writers."""

from types import SimpleNamespace

import pytest

from s3notify_platform.engine.commit.new_states import Settled
from s3notify_platform.engine.commit.round_commit import RoundCommit
from s3notify_platform.engine.commit.staged import Base, StagedRound
from s3notify_platform.engine.run_state import Run
from s3notify_platform.engine.stage.collect import StagedPart
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.engine.values.slot_plan import Plan, SlotPlan
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.protocols.source_enumerator import SlotChanges
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.pinned_schema import TableSchema
from tests.support.clocks import HandClock
from tests.support.log_rounds import Rounds

A, B, D = Slot(0), Slot(1), Slot(3)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def rounds(clock):
    store = MemoryObjectStore(clock=clock)
    return lambda: Rounds(store=store, clock=clock, small=False)


def committed(process, planned, slots):
    """Commits the staged slots `slots` of a round. The other slots have failed, or wait for a wider schema."""
    part = StagedPart(plans=(), rows=planned.rows, rejects=planned.rejects)
    staged = StagedRound(schema=TableSchema(source="{}", rows='{"type": "struct", "fields": []}'))
    settled = {
        slot: Settled(round=planned.slots[slot], result=SlotResult(slot=slot, status="committed"))
        for slot in slots
    }
    staged.take(part, settled)
    plans = {
        slot: SlotPlan(changes=SlotChanges(slot=slot, read=(), gone=(), complete=True)) for slot in slots
    }
    commit = RoundCommit(
        source=SimpleNamespace(input=SimpleNamespace(overwrites="rewrite")),
        base=Base(table=process.whole, snapshot=planned.base),
        plan=Plan(slots=plans),
        run=Run(batch="b", run="r", signals={}, listing=True, only_found=False, last_attempt=frozenset()),
        staged=staged,
        clock=process.clock,
    )
    return {slot: each.status for slot, each in commit.committed().items()}


def test_slot_that_is_left_out_loses_no_rows_of_other_slots(rounds):
    bucket = {"a1": ("e", (1, 2)), "b1": ("e", (4, 5)), "d1": ("e", (7, 8))}
    process = rounds()
    planned = process.planned(bucket)
    assert [pack.slots.keys() for pack in planned.rows] == [{A, B, D}]
    assert committed(process, planned, (A, B)) == {A: "committed", B: "committed"}
    assert rounds().contents() == {key: bucket[key] for key in ("a1", "b1")}


def test_slots_of_a_pack_that_an_erasure_has_deleted_are_a_conflict(rounds, clock):
    """Otherwise the states of these slots would be committed without their rows, which would never be read again."""
    bucket = {"a-person": ("e", (1, 2)), "b0": ("e", (1, 2))}
    process = rounds()
    assert isinstance(process.commit(process.planned(bucket)), Committed)
    clock.sleep(60)
    mine = {"a-person": ("new", (1, 2, 4)), "b0": ("e", (1, 2)), "b1": ("new", (4, 5)), "d1": ("new", (7, 8))}
    planned = process.planned(mine)
    assert [pack.slots.keys() for pack in planned.rows] == [{A, B, D}]
    clock.sleep(60)
    assert erase(rounds().whole, A, "a-person", clock=clock).files
    del mine["a-person"]
    assert committed(process, planned, (A, B)) == {A: "conflict", B: "conflict"}
    again = rounds()
    assert committed(again, again.planned(mine), (B, D)) == {B: "committed", D: "committed"}
    assert rounds().contents() == mine
