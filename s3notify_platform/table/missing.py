"""Missing commits: find the slots concerned, and start them again once a person accepts the loss."""

from typing import Final

from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import RecordStore
from s3notify_platform.protocols.source_enumerator import CommittedSlots, RescanBacklog
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotTable

IN_FLIGHT: Final = 16


def slots_without_commits(table: SlotTable, records: RecordStore) -> frozenset[Slot]:
    """Slots of a source that had a commit and have none.

    Requests: 1 GET, those of `SlotTable.newest`, and 1 LIST for each slot that it leaves open.
    """
    # In this order, a slot that is committed in between does not count as missing.
    committed = CommittedSlots(records).read()
    newest = table.newest(committed)

    def empty(slot: Slot) -> bool:
        return not table.store.list(table.layout.commits(slot), limit=1).objects

    unsure = [slot for slot, generation in newest.items() if generation is None]
    are_empty = in_parallel(empty, unsure, IN_FLIGHT)
    found = {slot for slot, is_empty in zip(unsure, are_empty, strict=True) if is_empty}
    return frozenset(found | {slot for slot, generation in newest.items() if generation == 0})


def forget_slots(table: SlotTable, records: RecordStore, slots: frozenset[Slot]) -> frozenset[Slot]:
    """Start those of `slots` again whose commits are missing: add them to the rescan backlog. Returns these slots.

    Requests as `slots_without_commits`, and 2 reads and 2 writes.
    """
    missing = slots_without_commits(table, records) & slots
    # The backlog first: after a crash in between the slots are still refused, and the command can be repeated.
    RescanBacklog(records).add(missing)
    CommittedSlots(records).forget(missing)
    return missing
