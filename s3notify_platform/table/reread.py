"""Requests that unchanged objects of a table are read again: a commit with the request, then a signal.

Steps
    1. Commit the slot unchanged, with the request: keys (`pending`, by `quarantine`), or all rows that were ingested
       before this commit (`backfill`).
    2. Move the slots' signals, marked as queued, then the root: the next batch reads these slots.
    3. The batch reads what is requested although its ETag is the same. The commit that ingests it removes the request.

Invariants
    - Rows leave only in the commit that holds the rows which replace them.
    - A request that is made twice, or killed between steps 1 and 2 and repeated, is signalled again, and read once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from s3notify_platform.clock import backoff_seconds
from s3notify_platform.errors import ConflictError, S3NotifyError
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.heads import NONE_KNOWN
from s3notify_platform.table.layout import Generation

BACKFILL: Final = "backfill"
"""The batch name of commits that request a backfill."""

ATTEMPTS: Final = 8
SLOTS_IN_FLIGHT: Final = 16


Failed = Callable[[Slot, S3NotifyError], None]
"""Takes the error of one slot."""


class Asked(Protocol):
    """What is requested; `slots` is empty if nothing is."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that are signalled."""
        ...


A = TypeVar("A", bound=Asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What is, or would be, read again: slots, their objects, and the rows that these have now."""

    slots: tuple[Slot, ...] = ()
    objects: int = 0
    rows: int = 0


def backfill(
    table: SlotTable,
    slots: Iterable[Slot],
    signals: Publisher | None,
    *,
    known: Mapping[Slot, Generation] = NONE_KNOWN,
    batch: str = BACKFILL,
    dry_run: bool = False,
    failed: Failed = lambda _, error: _raise(error),
) -> Backfilled:
    """Have all objects of `slots` read again by the source's next batches, and their rows replaced.

    Failing objects stay in quarantine. Slots without a commit are left out. A slot with more than one batch reads at
    once takes several commits, none of which reads an object twice. Safe to repeat. 1 LIST and 1 GET for each slot,
    1 PUT of a commit, 1 PUT for its signal, and 1 for the root. With `dry_run` nothing is written. An error of one slot
    is raised after all other slots are done, or given to `failed`.

    `known`: generations that the slots had (`OpenTable.heads`); one that misses commits is left out, as batches refuse
    it. `signals`: None for a run that reads the slots itself; `batch` is its own then, and a retry requests nothing of
    slots that it has read. If such a run is killed and never retried, its requests stay: the next batch of a slot, of
    whatever cause, reads what is left; until then the slot keeps its rows, and nothing signals it.
    """

    def decide(slot: Slot) -> tuple[Backfilled, SlotCommit | None]:
        head = table.head(slot)
        if head is None or head.objects <= len(head.failing) or head.generation < known.get(slot, 0):
            return Backfilled(), None
        found = Backfilled(slots=(slot,), objects=head.objects - len(head.failing), rows=head.rows)
        if head.batch == batch != BACKFILL:
            return found if head.backfill else Backfilled(), None
        if head.backfill == head.generation:
            return found, None  # it was requested just now
        return found, SlotCommit.after(
            head, slot, batch=batch, clock=table.clock, backfill=head.generation + 1
        )

    done = ask_again(table, slots, signals, decide, dry_run=dry_run, failed=failed)
    return Backfilled(
        slots=tuple(slot for one in done for slot in one.slots),
        objects=sum(one.objects for one in done),
        rows=sum(one.rows for one in done),
    )


def backfilled_keys(head: SlotCommit | None, states: Mapping[str, ObjectState]) -> frozenset[str]:
    """The objects that a backfill requests and that have not been read since. Pure."""
    if head is None:
        return frozenset()
    return frozenset(key for key, s in states.items() if s.since < head.backfill and not s.reason)


def ask_again(
    table: SlotTable,
    slots: Iterable[Slot],
    signals: Publisher | None,
    decide: Callable[[Slot], tuple[A, SlotCommit | None]],
    *,
    dry_run: bool,
    failed: Failed = lambda _, error: _raise(error),
) -> list[A]:
    """Commit the request that `decide` returns for each slot, and signal the slots. Returns the requests, by slot.

    `decide` reads the slot's head; its commit, if any, follows that head. It is called again if another commit was
    first. An error of one slot is raised after all other slots are done, or given to `failed`.
    """
    clock = table.clock

    def ask(slot: Slot) -> A | S3NotifyError:
        try:
            for attempt in range(ATTEMPTS):
                if attempt:
                    clock.sleep(backoff_seconds(attempt, clock))
                planned_at = clock.monotonic()
                asked, commit = decide(slot)
                # In conflict a run was first: what it ingested is not requested.
                if dry_run or commit is None:
                    return asked
                if isinstance(table.commit(commit.staged(), planned_at=planned_at), Written):
                    return asked
        except S3NotifyError as error:
            return error
        return ConflictError(f"slot {slot}: other commits were first {ATTEMPTS} times; try again")

    wanted = sorted(set(slots))
    outcomes = in_parallel(ask, wanted, SLOTS_IN_FLIGHT)
    done = [one for one in outcomes if not isinstance(one, S3NotifyError) and one.slots]
    if signals is not None and not dry_run:
        signals.signal_slots(slot for one in done for slot in one.slots)
    for slot, one in zip(wanted, outcomes, strict=True):
        if isinstance(one, S3NotifyError):
            failed(slot, one)
    return done


def _raise(error: S3NotifyError) -> None:
    raise error
