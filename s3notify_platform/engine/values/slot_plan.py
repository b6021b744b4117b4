"""The object versions that a round reads. Tasks find these object versions by comparison, and the driver collects the
results.

The driver receives only the changes of a batch: the splits, the removed keys, and the entries to remove. The number of
splits and removed keys together is at most `max_objects` plus the number of slots. The topic's capacity limits the
number of entries. All other objects of the bucket never pass through the driver, but only through Spark's own shuffle,
which spills to disk.
"""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from s3notify_platform.engine.values.task_rows import FailedSlot, Requests
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import ObjectState, SlotChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """The changes of one slot, the committed states of the changed keys, and other facts about the slot.

    `entries`: the slot's entries that were in the queue before the bucket was looked at. These entries are removed
    after the commit of the slot. `unannounced`: the changed keys without an entry. `objects`: the slot's number of
    objects. `held`: the number of objects with a committed state. `withdrawn`: the number of objects that have a
    committed state, but are missing from the listing. `unaddressable`: the number of objects whose keys S3 clients
    cannot address; `unaddressable_keys`: the first keys of these objects.
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
"""The Spark schema of a task's results for the driver: one column of pickled values."""


def planned_rows(found: Iterable[Planned]) -> pa.RecordBatch:
    """Converts a task's results to rows of `PLANNED`."""
    return pa.record_batch({"pickled": pa.array([pickle.dumps(each) for each in found], pa.binary())})


def planned_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Planned]:
    """Inverse of `planned_rows`.

    Unpickling is unsafe for unknown data: pass only rows that tasks of this package have made.
    """
    for batch in batches:
        yield from map(pickle.loads, batch.column("pickled").to_pylist())


@dataclass(slots=True, kw_only=True)
class Plan:
    """A round's work, by slot, and the requests that were needed to find it.

    Slots in `failed` have no plan, because their bucket or state could not be read. `chains`: the number of chains in
    which the bucket was listed. `overran`: the number of cuts at which a chain of LISTs did not stop. If a chain does
    not stop, the server has a defect: it does not list correctly after a given key.
    """

    slots: dict[Slot, SlotPlan] = field(default_factory=dict)
    failed: dict[Slot, FailedSlot] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    chains: int = 0
    overran: int = 0

    @classmethod
    def of(cls, found: Iterable[Planned], *, chains: int = 0) -> "Plan":
        """Makes a plan from the results of tasks, in any order."""
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
        """By slot, the changed keys that a listing found and that have no entry."""
        return {slot: each.unannounced for slot, each in self.slots.items() if each.unannounced}

    def total(self, name: str) -> int:
        """Returns the sum of the field `name` over all slots, for example of `objects`."""
        return sum(getattr(each, name) for each in self.slots.values())

    def overdue(self, now_ms: int, seconds: float) -> dict[str, float]:
        """Returns the changed keys that have an entry older than `seconds`, with the entry's age in seconds. Pure."""
        found: dict[str, float] = {}
        for planned in self.slots.values():
            changed = {split.version.key for split in planned.changes.read} | {*planned.changes.gone}
            for event in (entry.event for entry in planned.entries):
                waited = (now_ms - event.time_ms) / 1000
                if event.key in changed and event.time_ms and waited > seconds:
                    found[event.key] = max(waited, found.get(event.key, 0.0))
        return found

    def refuse(self, slot: Slot, error: str) -> None:
        """Replaces the slot's plan by an error."""
        self.slots.pop(slot, None)
        self.failed[slot] = FailedSlot(slot=slot, error=error)
