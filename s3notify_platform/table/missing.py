"""Missing commits: find the slots concerned, and go on without them once a person accepts the loss."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from s3notify_platform.errors import UsageError
from s3notify_platform.parallel import in_parallel
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotTable
from s3notify_platform.table.known import Known, TableSides
from s3notify_platform.table.layout import Generation, generation_of

IN_FLIGHT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was accepted: slots whose commits were missing; and the table's new id, if nothing was left of it."""

    slots: frozenset[Slot] = frozenset()
    table: str = ""
    restored: bool = False
    """The side of the table that was missing was made from the other."""


def slots_without_commits(table: SlotTable, heads: Mapping[Slot, Generation]) -> dict[Slot, Generation]:
    """Slots whose newest commit is older than in `heads`, with the generation that they have; 0: none.

    `heads` was read before. Requests: those of `SlotTable.newest`, and 1 LIST for each slot that it leaves open.
    """
    found = _newest(table, heads)
    return {slot: found[slot] for slot in sorted(heads) if found[slot] < heads[slot]}


def slots_of_older_copy(table: SlotTable, known: Known) -> dict[Slot, Generation]:
    """Slots that miss commits since the table was restored from a copy that is older than `known`.

    Found by the last commit that is known: 1 HEAD, and only if that is gone the requests of `slots_without_commits`,
    since vacuum may have removed it.
    """
    last = Slot(known.last)
    if not (newest := known.heads.get(last)) or table.store.head(table.layout.commit(last, newest)):
        return {}
    return slots_without_commits(table, known.heads)


def _newest(table: SlotTable, slots: Mapping[Slot, Generation] | range) -> dict[Slot, Generation]:
    def of(slot: Slot) -> Generation:
        objects = table.store.list(table.layout.commits(slot), limit=1).objects
        return generation_of(objects[0].key) if objects else Generation(0)

    newest = table.newest(map(Slot, slots))
    unsure = [slot for slot, generation in newest.items() if generation is None]
    looked = dict(zip(unsure, in_parallel(of, unsure, IN_FLIGHT), strict=True))
    return {slot: looked[slot] if generation is None else generation for slot, generation in newest.items()}


def forget_slots(
    sides: TableSides, table: SlotTable, backlog: RescanBacklog, slots: frozenset[Slot], *, every: int
) -> Forgotten:
    """Accept that commits of these slots are missing; their objects are compared with what is left by a listing.

    With all slots (`every` is their number, if it is not known) also that a side of the table is missing: `known` is
    made from the commits that are there. If there are none, another table takes its place, with all slots in the rescan
    backlog. A slot that has its commits is not changed. Safe to repeat. Requests as `slots_without_commits`, and up
    to 8 more.
    """
    known, beside = sides.known(), sides.beside()
    every = known.identity.slots if known is not None and known.identity is not None else every
    whole = slots >= {Slot(slot) for slot in range(every)}
    intact = known is not None and beside == known.table
    if not (intact or whole):
        raise UsageError(
            f"one side of the table of source {sides.source!r} is missing, which concerns all its slots: {sides.forget}"
        )
    heads = _newest(table, range(every))
    if whole and not any(heads.values()):
        if not beside and (known is None or known.identity is None):
            return Forgotten()  # there is no table
        return _start_over(sides, backlog, known or Known(table=beside), every)
    before = known.heads if known is not None else {}
    missing = {slot for slot in before.keys() & slots if heads.get(slot, 0) < before[slot]}
    # The backlog first: after a crash in between the slots are still refused, and the command can be repeated.
    backlog.add(missing)

    def accepted(now: Known | None) -> Known:
        now = now or Known(table=beside or sides.new_id(), heads=heads)
        left = {slot: heads[slot] if slot in missing else n for slot, n in now.heads.items()}
        return replace(now, heads={slot: n for slot, n in left.items() if n})

    if missing or known is None:
        known = sides.change(accepted)
    assert known is not None
    if beside != known.table:
        sides.put_beside(known.table)
    return Forgotten(slots=frozenset(missing), restored=not intact)


def _start_over(sides: TableSides, backlog: RescanBacklog, was: Known, every: int) -> Forgotten:
    backlog.add(map(Slot, range(every)))
    fresh = sides.new_id()
    # What other side there is goes first: after a crash in between, it is missing, and the command can be repeated.
    sides.store.delete(sides.layout.id)
    sides.change(lambda now: (now or was).follower(fresh))
    return Forgotten(slots=frozenset(was.heads), table=fresh)
