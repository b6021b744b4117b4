"""Which object versions a round reads: what the tasks that compare have found, collected by the driver.

What reaches the driver is the batch: at most `max_objects` splits and keys that left (and one more for each
slot), and the entries that are to be removed, which the topic's capacity bounds. The bucket's other objects
pass through Spark's own shuffle, which spills, and never through the driver.
"""

import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from s3notify_platform.engine.values.rows import FailedSlot, Requests
from s3notify_platform.kernel.limits import WITHDRAWN_OBJECTS
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import ObjectState, SlotChanges
from s3notify_platform.source.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """The changes of one slot, with the committed states of their keys, and what else was found of it.

    `entries` were there before the bucket was looked at: remove them when the slot is committed. `unannounced` are the
    changed keys that no entry names. `objects`: how many the slot has. `held`: how many it had, of which a listing
    found `withdrawn` no more. `unaddressable`: how many objects have keys that S3 clients cannot address, the first
    ones by name.
    """

    changes: SlotChanges
    before: Mapping[str, ObjectState] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    unannounced: frozenset[str] = frozenset()
    objects: int = 0
    held: int = 0
    withdrawn: int = 0
    unaddressable: int = 0
    unaddressable_keys: tuple[str, ...] = ()

    @property
    def slot(self) -> Slot:
        """The slot."""
        return self.changes.slot


Planned = SlotPlan | FailedSlot | Requests


PLANNED: Final = "pickled binary"
"""The column in which a task's findings reach the driver, as Spark declares it."""


def planned_rows(found: Iterable[Planned]) -> pa.RecordBatch:
    """What a task has found, as rows of `PLANNED`."""
    return pa.record_batch({"pickled": pa.array([pickle.dumps(each) for each in found], pa.binary())})


def planned_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Planned]:
    """Inverse of `planned_rows`. Of rows that tasks of this package have made, and of no others."""
    for batch in batches:
        yield from map(pickle.loads, batch.column("pickled").to_pylist())


@dataclass(slots=True, kw_only=True)
class Plan:
    """A round's work, by slot, and what finding it cost.

    `failed` are slots whose bucket or state could not be read, and which therefore have no plan. `chains`: in how many
    the bucket was listed, and how many of the places where one was to end it `overran`, because the server does not
    list on from there as it should.
    """

    slots: dict[Slot, SlotPlan] = field(default_factory=dict)
    failed: dict[Slot, FailedSlot] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    chains: int = 0
    overran: int = 0

    @classmethod
    def of(cls, found: Iterable[Planned], *, chains: int = 0) -> "Plan":
        """What tasks have found, in whatever order."""
        plan = cls(chains=chains)
        for each in found:
            match each:
                case SlotPlan():
                    plan.slots[each.slot] = each
                case FailedSlot():
                    plan.failed[each.slot] = each
                case Requests():
                    plan.requests.update(each.requests)
                    plan.overran += each.overran
        plan.slots = dict(sorted(plan.slots.items()))
        return plan

    @property
    def unannounced(self) -> dict[Slot, frozenset[str]]:
        """By slot, the changed keys that a listing found and no entry names."""
        return {slot: each.unannounced for slot, each in self.slots.items() if each.unannounced}

    def total(self, name: str) -> int:
        """The sum of a number of all slots, like `objects`."""
        return sum(getattr(each, name) for each in self.slots.values())

    def overdue(self, now_ms: int, seconds: float) -> dict[str, float]:
        """The changes that entries have named for longer than that, by key, and for how many seconds. Pure."""
        found: dict[str, float] = {}
        for planned in self.slots.values():
            changed = {split.version.key for split in planned.changes.read} | {*planned.changes.gone}
            for event in (entry.event for entry in planned.entries):
                waited = (now_ms - event.time_ms) / 1000
                if event.key in changed and event.time_ms and waited > seconds:
                    found[event.key] = max(waited, found.get(event.key, 0.0))
        return found

    def refuse(self, slot: Slot, error: str) -> None:
        """Give the slot an error instead of its plan."""
        self.slots.pop(slot, None)
        self.failed[slot] = FailedSlot(slot=slot, error=error)


def refuse_withdrawals(found: Plan, confirmed: Collection[Slot], source: Source) -> str:
    """If a listing would withdraw too much, an error for the slots concerned, except `confirmed` ones. Why, or ""."""
    gone, held = found.total("withdrawn"), found.total("held")
    slots = {slot for slot, each in found.slots.items() if each.withdrawn} - {*confirmed}
    if not slots or held < WITHDRAWN_OBJECTS or gone <= held * source.input.withdraw_share:
        return ""
    reason = (
        f"a listing of {source.input.prefix!r} in bucket {source.input.bucket.bucket!r} lacks {gone} of {held} "
        f"objects, more than the setting withdraw_share ({source.input.withdraw_share:g}) allows: restore them, or "
        f"confirm that they are to leave the table: {source.location.command('confirm')}"
    )
    for slot in slots:
        found.refuse(slot, f"UsageError: {reason}")
    return reason
