"""Which object versions a round reads: what the tasks that compare have found, collected by the driver.

What reaches the driver is the batch: at most `max_objects` splits and keys that left (and one more for each
slot), and the entries that are to be removed, which the topic's capacity bounds. The bucket's other objects
pass through Spark's own shuffle, which spills, and never through the driver.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from s3notify_platform.ingest.wire import (
    Before,
    ComparedSlot,
    FailedSlot,
    Gone,
    Planned,
    QueuedEntry,
    Requests,
    ToRead,
)
from s3notify_platform.limits import WITHDRAWN_OBJECTS
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import ObjectState, SlotChanges
from s3notify_platform.slots import Slot
from s3notify_platform.source.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """The changes of one slot, with the committed states of their keys."""

    changes: SlotChanges
    before: Mapping[str, ObjectState] = field(default_factory=dict)

    @property
    def slot(self) -> Slot:
        """The slot."""
        return self.changes.slot


@dataclass(slots=True, kw_only=True)
class Plan:
    """A round's work, by slot, and what finding it cost.

    `listed` counts the objects of each slot; `errors` are of slots whose bucket or state could not be read, and which
    therefore have no plan: for those in `outages` the store was at fault. `entries` were there before the bucket was
    looked at: remove them when their slot is committed. `unannounced` are the changed keys that a listing found and no
    entry names.
    `unaddressable` objects have keys that S3 clients cannot address; some of them by name.
    `held`: objects that a listing was compared with, of which it found `withdrawn` no more.
    `chains`: in how many the bucket was listed, and how many of the places where one was to end it `overran`, because
    the server does not list on from there as it should.
    """

    slots: dict[Slot, SlotPlan] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    listed: dict[Slot, int] = field(default_factory=dict)
    errors: dict[Slot, str] = field(default_factory=dict)
    outages: set[Slot] = field(default_factory=set)
    entries: dict[Slot, tuple[Entry, ...]] = field(default_factory=dict)
    unannounced: dict[Slot, frozenset[str]] = field(default_factory=dict)
    unaddressable: int = 0
    unaddressable_keys: list[str] = field(default_factory=list)
    held: Counter[Slot] = field(default_factory=Counter)
    withdrawn: Counter[Slot] = field(default_factory=Counter)
    chains: int = 0
    overran: int = 0

    def overdue(self, now_ms: int, seconds: float) -> dict[str, float]:
        """The changes that entries have named for longer than that, by key, and for how many seconds. Pure."""
        found: dict[str, float] = {}
        for slot, planned in self.slots.items():
            changed = {split.version.key for split in planned.changes.read} | {*planned.changes.gone}
            for event in (entry.event for entry in self.entries.get(slot, ())):
                waited = (now_ms - event.time_ms) / 1000
                if event.key in changed and event.time_ms and waited > seconds:
                    found[event.key] = max(waited, found.get(event.key, 0.0))
        return found

    def refuse(self, slot: Slot, error: str) -> None:
        """Give the slot an error instead of its plan."""
        for by_slot in (self.slots, self.listed, self.entries, self.unannounced):
            by_slot.pop(slot, None)
        self.errors[slot] = error


def refuse_withdrawals(found: Plan, confirmed: Collection[Slot], source: Source) -> str:
    """If a listing would withdraw too much, an error for the slots concerned, except `confirmed` ones. Why, or ""."""
    gone, held = found.withdrawn.total(), found.held.total()
    slots = {slot for slot, count in found.withdrawn.items() if count and slot in found.slots} - {*confirmed}
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


def collected(topic: str, rows: Iterable[Planned]) -> Plan:
    """The plan that the rows of tasks come to, in whatever order. `topic`: whose entries they name. Pure."""
    result = Plan()
    by_slot: dict[Slot, list[Planned]] = {}
    for row in rows:
        if isinstance(row, Requests):
            result.overran += row.overran
            result.requests.update(row.requests)
        else:
            slot = row.split.version.slot if isinstance(row, ToRead) else row.slot
            by_slot.setdefault(slot, []).append(row)
    for slot, of_slot in sorted(by_slot.items()):
        _collect(result, slot, of_slot, topic)
    return result


def _collect(result: Plan, slot: Slot, rows: Sequence[Planned], topic: str) -> None:
    read = [row for row in rows if isinstance(row, ToRead)]
    gone = [row for row in rows if isinstance(row, Gone)]
    unannounced = {row.split.version.key for row in read if not row.announced}
    unannounced |= {row.key for row in gone if not row.announced}
    if unannounced:
        result.unannounced[slot] = frozenset(unannounced)
    for row in rows:
        match row:
            case FailedSlot():
                result.errors[slot] = row.error
                if row.outage:
                    result.outages.add(slot)
            case ComparedSlot():
                changes = SlotChanges(
                    slot=slot,
                    read=tuple(each.split for each in read),
                    gone=tuple(each.key for each in gone),
                    expired=frozenset(each.key for each in gone if each.expired),
                    complete=row.complete,
                    beyond=row.beyond,
                )
                before = {each.state.key: each.state for each in rows if isinstance(each, Before)}
                result.slots[slot] = SlotPlan(changes=changes, before=before)
                result.listed[slot] = row.objects
                result.held[slot], result.withdrawn[slot] = row.held, row.withdrawn
                result.unaddressable += row.unaddressable
                result.unaddressable_keys += row.unaddressable_keys
                entries = (each for each in rows if isinstance(each, QueuedEntry))
                result.entries[slot] = tuple(each.entry(topic) for each in entries)
            case _:
                pass
