"""What the tests of the table share."""

from typing import Any

from s3notify_platform.ports import Written
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable
from tests.support.slot_writer import (
    SLOT,
)


def commit_of(generation: int, slot: Slot = SLOT, **fields: Any) -> SlotCommit:
    given = {"commit_id": f"c{generation}", "parent_id": f"c{generation - 1}" if generation > 1 else None}
    given |= {"slot": slot, "generation": generation, "batch": "b", "created_ms": 0}
    return SlotCommit(**(given | fields))


def write(table: SlotTable, *commits: SlotCommit) -> None:
    for commit in commits:
        assert isinstance(table.commit(commit.staged(), planned_at=table.clock.monotonic()), Written)
