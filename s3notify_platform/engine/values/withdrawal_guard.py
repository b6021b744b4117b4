"""Refuses withdrawals if a listing lacks too many of the objects that have a committed state: the listing may be of a
wrong prefix, or the bucket may have been emptied by mistake.

A refusal is recorded in the table's record (`Known.refused`). From then on, a listing of only some slots may withdraw
nothing. The refusal ends when a listing of all slots has nearly all objects again, or when a person confirms the
withdrawals. Without this rule, retries would withdraw all missing objects: the refused slots would be retried in
smaller groups, and each group lacks fewer objects.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from s3notify_platform.engine.values.slot_plan import Plan
from s3notify_platform.kernel.limits import WITHDRAWN_OBJECTS
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source.source import Source
from s3notify_platform.table.known import KnownRecord
from s3notify_platform.table.snapshot import Snapshot

_REFUSED: Final = "UsageError: more objects are missing than the setting withdraw_share"


def is_refusal(reason: str) -> bool:
    """True if this is the reason of a slot whose withdrawals were refused. Such slots are retried together, since
    smaller groups would be refused, too.
    """
    return reason.startswith(_REFUSED)


def guard_withdrawals(
    found: Plan,
    snapshot: Snapshot,
    record: KnownRecord,
    source: Source,
    confirmed: set[Slot],
    *,
    listed: bool,
    now_ms: int,
) -> str:
    """Fails all slots with withdrawals if the plan may not withdraw. Adds the slots that a person has confirmed to
    `confirmed`: these slots may withdraw any number of objects. `listed`: the plan compares all its slots with a
    listing. A plan by entries ends no refusal, because it does not look for missing objects.

    Returns the reason of the failure; "" if no slot fails. Cost: 1 write if a refusal begins or ends.
    """
    facts, known = snapshot.manifest.slot, snapshot.known
    if known is not None:
        confirmed |= {slot for slot in found.slots if known.confirms(facts(slot).generation, now_ms)}
    whole = listed and len(found.slots) + len(found.failed) == source.location.slots
    before = known is not None and known.refused
    reason = refuse_withdrawals(found, confirmed, source, refused=before and not whole)
    if bool(reason) != before and (reason or whole):
        record.change(lambda now: now and replace(now, refused=bool(reason)))
    return reason


def refuse_withdrawals(
    found: Plan, confirmed: Collection[Slot], source: Source, *, refused: bool = False
) -> str:
    """Fails all slots with withdrawals, except those in `confirmed`, if a listing lacks too many objects. Pure.

    `refused`: an earlier listing was refused, so this listing may withdraw nothing. Returns the reason of the failure;
    "" if no slot fails.
    """
    gone, held = found.total("withdrawn"), found.total("held")
    slots = {slot for slot, each in found.slots.items() if each.withdrawn} - {*confirmed}
    if not slots:
        return ""
    if not refused and (held < WITHDRAWN_OBJECTS or gone <= held * source.input.withdraw_share):
        return ""
    reason = (
        f"{_REFUSED} ({source.input.withdraw_share:g}) allows: {'after an earlier refusal, ' if refused else ''}a "
        f"listing of {source.input.prefix!r} in bucket {source.input.bucket.bucket!r} lacks {gone} of {held} objects: "
        f"restore them, or confirm that their rows may leave the table: {source.location.command('confirm')}"
    )
    for slot in slots:
        found.refuse(slot, reason)
    return reason.removeprefix("UsageError: ")
