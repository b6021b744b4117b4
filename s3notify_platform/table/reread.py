"""Asking for objects of a table to be read again although they have not changed: a commit that says so, then a signal.

Steps
    1. A commit of the slot, the same but that it names what is to be read again: keys (`pending`, by `quarantine`), or
       all rows that were taken in before it (`backfill`).
    2. The slots' signals move, marked as queued, then the root: the next batch takes these slots up.
    3. It reads what is asked for although its ETag is the same. The commit that takes it in does not ask for it any
       more.

Invariants
    - Rows leave in the commit that holds the rows which replace them.
    - Asked for twice, or killed between steps 1 and 2 and repeated: signalled again, and read once.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.errors import ConflictError, S3NotifyError
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable

BACKFILL: Final = "backfill"
"""In place of a batch's name, in commits that ask for all of a slot."""

ATTEMPTS: Final = 8
SLOTS_IN_FLIGHT: Final = 16

T = TypeVar("T")


class Asked(Protocol):
    """What is asked for; `slots` is empty if nothing is."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that are signalled."""
        ...


A = TypeVar("A", bound=Asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What is, or would be, read again: the objects of slots, with the rows that they have now."""

    slots: tuple[Slot, ...] = ()
    objects: int = 0
    rows: int = 0


def backfill(
    table: SlotTable,
    slots: Iterable[Slot],
    signals: Publisher,
    *,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Backfilled:
    """Have all objects of `slots` read again by the source's next batches, and their rows replaced.

    What is in quarantine as a whole stays there. Slots without a commit have nothing to be read again, and are left
    out. A slot with more than a batch reads at once takes several commits, none of which reads an object twice.
    Safe to repeat. 1 LIST and 1 GET for each slot, 1 PUT of a commit, 1 PUT for its signal, and 1 for the root. With
    `dry_run` nothing is written. Raises the error of a slot after all others have been asked for.
    """

    def decide(slot: Slot) -> tuple[Backfilled, SlotCommit | None]:
        head = table.head(slot)
        if head is None or head.objects <= len(head.failing):
            return Backfilled(), None
        found = Backfilled(slots=(slot,), objects=head.objects - len(head.failing), rows=head.rows)
        if head.backfill == head.generation:
            return found, None  # it was asked for just now
        return found, SlotCommit.after(head, slot, batch=BACKFILL, clock=clock, backfill=head.generation + 1)

    done = ask_again(table, slots, signals, decide, dry_run=dry_run, clock=clock)
    return Backfilled(
        slots=tuple(slot for one in done for slot in one.slots),
        objects=sum(one.objects for one in done),
        rows=sum(one.rows for one in done),
    )


def backfilled_keys(head: SlotCommit | None, states: Mapping[str, ObjectState]) -> frozenset[str]:
    """Of the objects with these states, those that a backfill asks for and that have not been read since. Pure."""
    if head is None:
        return frozenset()
    return frozenset(key for key, s in states.items() if s.since < head.backfill and not s.reason)


def ask_again(
    table: SlotTable,
    slots: Iterable[Slot],
    signals: Publisher,
    decide: Callable[[Slot], tuple[A, SlotCommit | None]],
    *,
    dry_run: bool,
    clock: Clock,
) -> list[A]:
    """Commit what `decide` says of each slot, and signal what it asks for; what was asked for, by slot.

    `decide` reads the slot's head; its commit, if there is one to be made, follows that. It is asked again if
    another commit was first. Raises the error of a slot after all others have been asked for.
    """

    def ask(slot: Slot) -> A | S3NotifyError:
        try:
            return _committed(table, slot, decide, dry_run=dry_run, clock=clock)
        except S3NotifyError as error:
            return error

    outcomes = in_parallel(ask, slots)
    done = [one for one in outcomes if not isinstance(one, S3NotifyError) and one.slots]
    if not dry_run:
        signals.signal_slots(slot for one in done for slot in one.slots)
    for one in outcomes:
        if isinstance(one, S3NotifyError):
            raise one
    return done


def _committed(
    table: SlotTable,
    slot: Slot,
    decide: Callable[[Slot], tuple[A, SlotCommit | None]],
    *,
    dry_run: bool,
    clock: Clock,
) -> A:
    for attempt in range(ATTEMPTS):
        if attempt:
            clock.sleep(backoff_seconds(attempt, clock))
        planned_at = clock.monotonic()
        asked, commit = decide(slot)
        if dry_run or commit is None:
            return asked
        match table.commit(commit.staged(), planned_at=planned_at):
            case Written():
                return asked
            case Conflict():
                continue  # a run was first: what it took in is not asked for
            case _ as unreachable:
                assert_never(unreachable)
    raise ConflictError(f"slot {slot}: other commits were first {ATTEMPTS} times; ask again")


def in_parallel(function: Callable[[Slot], T], slots: Iterable[Slot]) -> list[T]:
    """The results of a function for slots, in the slots' order; several at once."""
    with ThreadPoolExecutor(SLOTS_IN_FLIGHT) as pool:
        return list(pool.map(function, sorted(set(slots))))
