"""Lets the next batches read unchanged objects of a table again.

Steps
    1. Commit one version with the request for all slots. A retry (`quarantined`) marks the states of objects (`again`).
       A backfill marks slots (`backfill`): all objects whose rows were planned before this version must be read again.
    2. Change the slots' signals, and then the root. So the next batch reads these slots. No listing follows, because
       the signals say that the changes are queued.
    3. The batch reads the requested objects even if their ETags are unchanged. The version that the batch commits
       removes the request.

| after the request was planned, another writer … | then the request … |
|---|---|
| changed other slots, merged packs or state files, added columns | is committed on top of that version |
| changed a slot of the request | uses the slot's new state: objects that the other writer has read are not requested |
| made the same request for a slot | leaves this slot unchanged, and signals the slot |
| began the table again, under another id | uses the present table |

Invariants
    - Old rows leave the table only in the version that adds the new rows.
    - If a call was killed between steps 1 and 2, it can be repeated. The slots are then signalled again, but are read
      only once.
    - A request counts as a change of its slots. So a round that was planned before the request leaves out these slots
      (`round`). The slots are planned again on top of the request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.proposal import Change, Proposal
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.versions import note_of

BACKFILL: Final = "backfill"
"""The batch name of versions that request a backfill."""


class Request(Change, Protocol):
    """A change of the table that requests a new read of some slots."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that have a new or an earlier request. These slots are signalled."""
        ...


def ask_again(
    table: LogTable, base: Snapshot, request: Request, signals: Publisher | None, *, dry_run: bool
) -> Snapshot:
    """Commits the request, and signals its slots. Returns the snapshot after the commit. Raises the errors of
    `Committer.commit`.

    The request never shares a version with other changes, because a backfill stores the number of this version.
    """
    if dry_run:
        request.onto(base)
        return base
    done = table.committer.commit_alone(request, base)
    table.noted(done)
    if signals is not None:
        signals.signal_slots(request.slots)
    return done.snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """The slots that are read again. `objects`: the number of objects in these slots, without failing objects. `rows`:
    the number of current rows in these slots.
    """

    slots: tuple[Slot, ...] = ()
    objects: int = 0
    rows: int = 0


@dataclass(slots=True, kw_only=True)
class _Backfill:
    """The request of a backfill for some slots."""

    table: LogTable
    wanted: frozenset[Slot]
    batch: str
    found: Backfilled = Backfilled()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """See `Request`."""
        return self.found.slots

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`."""
        every = {slot: base.manifest.slot(slot) for slot in sorted(self.wanted)}
        every = {slot: facts for slot, facts in every.items() if facts.objects > facts.failing}
        own = self._own(every)
        done = {slot for slot in own if not every[slot].backfill}
        left = {slot: facts for slot, facts in every.items() if slot not in done}
        self.found = Backfilled(
            slots=tuple(left),
            objects=sum(facts.objects - facts.failing for facts in left.values()),
            rows=sum(facts.rows for facts in left.values()),
        )
        asked = {
            slot: replace(facts, backfill=base.version + 1)
            for slot, facts in left.items()
            if slot not in own
            and facts.backfill != facts.generation  # if both are equal, the slot's last change was a request
        }
        if not asked:
            return None
        return Proposal(slots=asked, note={"batch": self.batch, "request": BACKFILL, "slots": [*asked]})

    def _own(self, every: Mapping[Slot, SlotFacts]) -> set[Slot]:
        """Returns the slots whose last change is this run's request, or this run's read of the slots."""
        return set() if self.batch == BACKFILL else changed_last_by(self.table, every, self.batch)


def changed_last_by(table: LogTable, slots: Mapping[Slot, SlotFacts], batch: str) -> set[Slot]:
    """Returns the slots whose last change was made by this batch, or by the command that has this batch name. Slots
    whose last change is no longer kept are left out.

    Cost: 1 GET for each version that was the last change of a slot.
    """
    versions = sorted({facts.generation for facts in slots.values()})
    bodies = in_parallel(table.reader.version, versions, REQUESTS_IN_FLIGHT)
    found = dict(zip(versions, bodies, strict=True))
    return {
        slot
        for slot, facts in slots.items()
        if (body := found[facts.generation]) is not None and note_of(body, slot).get("batch") == batch
    }


def stale_slots(table: LogTable, code: str) -> list[Slot]:
    """Returns the slots with rows that code other than `code` has made. The list is empty if `code` is "".

    The call makes the requests of `LogTable.newest`.
    """
    found = table.newest() if code else None
    slots = found.manifest.slots if isinstance(found, Snapshot) else {}
    return [slot for slot, facts in slots.items() if facts.is_stale(code)]


def backfill(
    table: LogTable,
    slots: Iterable[Slot],
    signals: Publisher | None,
    *,
    batch: str = BACKFILL,
    dry_run: bool = False,
) -> Backfilled:
    """Lets the source's next batches read all objects of `slots` again, and replace the rows of these objects.

    Failing objects stay in quarantine. Slots that no batch has committed are left out. A slot that is too large for one
    batch takes several commits, but each object is read only once. The call may be repeated. Cost: the requests of
    `LogTable.newest`, 3 PUTs for the version of all slots, 1 PUT for each signal, and 1 PUT for the root. With
    `dry_run`, nothing is written. Raises the errors of `LogTable.newest` and `Committer.commit`.

    `signals`: None for a run that reads the slots itself. For such a run, `batch` is the run's own batch. A retry of
    the run requests nothing for slots that the batch has already read. To find these slots, the retry makes 1 GET for
    each version that was the last change of a slot. If the run is killed and never retried, its requests stay, but no
    signal of the slots changes. The old rows of a slot stay until the next batch of the slot reads the objects again.
    """
    base = table.newest()
    if isinstance(base, Absent):
        return Backfilled()
    request = _Backfill(table=table, wanted=frozenset(slots), batch=batch)
    ask_again(table, base, request, signals, dry_run=dry_run)
    return request.found


def backfilled_keys(facts: SlotFacts, states: Mapping[str, ObjectState]) -> frozenset[str]:
    """Returns the objects of a slot that must still be read for a backfill. Pure.

    `facts.backfill` is the version with the request. Rows that were planned on top of this version, or of a later
    version, have a greater label.
    """
    return frozenset(key for key, s in states.items() if s.since <= facts.backfill and not s.reason)
