"""Rounds: what a run has staged, and the one place where it is committed, for Dagster and the Spark-only driver alike.

A round takes some slots through all tables of the run, table by table: first the source's, then those that are
derived from it, each staged on top of what the one before has committed. Whoever takes the rounds of a run calls
`commit_round` for each, and then reports it: the rounds that follow depend on how this one ended.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, assert_never

from s3notify_platform.errors import S3NotifyError
from s3notify_platform.ingest.results import Progress, SlotResult
from s3notify_platform.ingest.wire import FailedSlot, StagedSlot
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotTable
from s3notify_platform.table.known import OpenTable
from s3notify_platform.table.layout import Generation

COMMITS_IN_FLIGHT: Final = 48

Results = dict[Slot, SlotResult]


@dataclass(slots=True, kw_only=True)
class StagedTable:
    """What a round has staged for one table, whose asset is `name`.

    `unchanged`: the result of each slot of the round if nothing is committed for it. `planned_at`: the monotonic time
    when the heads were read, or seen if they were recalled. `made_from`: of a derived table, the source generation of
    each slot.
    """

    name: str
    table: SlotTable
    planned_at: float
    unchanged: Mapping[Slot, SlotResult]
    staged: Sequence[StagedSlot | FailedSlot] = ()
    made_from: Mapping[Slot, Generation] = field(default_factory=dict)
    settle: Callable[[Results], Results] = field(default=lambda results: results)
    """Called once with the results of the commits; what is to be reported of the slots that the run is done with."""


@dataclass(slots=True, kw_only=True)
class Round:
    """Slots on their way through the tables of a run.

    `entries`, by slot that the run is done with, were in the queue before the bucket was looked at. `unqueued` slots
    wait for a rescan; `unannounced` changes were found by a listing, and no entry names them. `heads`: the generations
    that slots of the source's table have now. `results`, by table, are of the slots that the run is done with, once
    all tables are committed.
    """

    tables: Iterator[StagedTable]
    entries: Mapping[Slot, Sequence[Entry]] = field(default_factory=dict)
    unqueued: frozenset[Slot] = frozenset()
    unannounced: int = 0
    heads: Mapping[Slot, Generation] = field(default_factory=dict)
    results: dict[str, Results] = field(default_factory=dict)

    @property
    def _first(self) -> Results:
        """The results of the table that the others follow: what becomes of them never holds up a slot of it."""
        return next(iter(self.results.values()), {})

    def bad(self) -> list[Slot]:
        """The slots that failed."""
        return sorted(slot for slot, each in self._first.items() if not each.ok)

    def good(self) -> list[Slot]:
        """The slots that are committed, or found unchanged."""
        return sorted(slot for slot, each in self._first.items() if each.ok)

    def incomplete(self) -> set[Slot]:
        """The good slots that the run had no time to take in whole: they are asked for again."""
        return {slot for slot in self.good() if not self._first[slot].complete}

    def failed(self) -> dict[str, Results]:
        """What failed in each table."""
        return {
            name: {slot: each for slot, each in results.items() if not each.ok}
            for name, results in self.results.items()
        }

    def done_entries(self) -> list[Entry]:
        """The entries of slots that were taken in whole; those of all others stay."""
        left = {*self.bad(), *self.incomplete()}
        return [entry for slot, of_slot in self.entries.items() if slot not in left for entry in of_slot]


def commit_round(staged: Round) -> None:
    """Commit what is staged, table by table, each slot if its next generation is still free.

    Ordinary contention is a result, and so is an error: nothing is raised for one slot. 1 PUT for each commit, 1 HEAD
    for a slot that turned out to have none.
    """
    for table in staged.tables:
        with ThreadPoolExecutor(COMMITS_IN_FLIGHT) as pool:
            outcomes = pool.map(partial(_commit, table), table.staged)
            committed = {**table.unchanged, **{result.slot: result for result in outcomes}}
        results = table.settle(committed)
        staged.results.setdefault(table.name, {}).update(results)


def merge_known(table: OpenTable, staged: Round, progress: Progress = lambda _: None) -> None:
    """Note the slots' generations, so that it is noticed if their commits go missing.

    Low after a crash or an error, never high: the next run that finds a head notes it. Requests of `OpenTable.merge`.
    """
    try:
        table.merge(staged.heads)
    except S3NotifyError as error:
        progress(f"did not note the generations of {len(staged.heads)} slots, the next run will: {error}")


def _commit(staged: StagedTable, slot: StagedSlot | FailedSlot) -> SlotResult:
    result = staged.unchanged[slot.slot]
    if isinstance(slot, FailedSlot):
        staged.table.memory.drop(slot.slot)
        return replace(result, status="failed", error=slot.error, outage=slot.outage, trace=slot.trace)
    found = slot.result
    result = replace(
        result,
        failed_objects=found.failed_objects,
        traces=found.traces,
        unavailable=found.unavailable,
        superseded=found.superseded,
    )
    commit = slot.commit
    try:
        if commit is None:
            stands = staged.table.stands(slot.slot, result.generation, seen_at=staged.planned_at)
            return result if stands else _conflict(result)
        outcome = staged.table.commit(commit, planned_at=staged.planned_at)
    except S3NotifyError as error:
        failed = FailedSlot.of(slot.slot, error)
        return replace(result, status="failed", error=failed.error, outage=failed.outage)
    match outcome:
        case Conflict():
            if not _is_made(staged, slot.slot):
                return _conflict(result)
        case Written():
            pass
        case _ as unreachable:
            assert_never(unreachable)
    return replace(
        found,
        generation=commit.generation,
        live_objects=result.live_objects,
        live_rows=commit.rows,
        live_files=commit.files,
        live_rejects=commit.rejects,
        live_failing=commit.failing,
    )


def _conflict(result: SlotResult) -> SlotResult:
    return replace(result, status="conflict", error="another run committed this slot first")


def _is_made(staged: StagedTable, slot: Slot) -> bool:
    """Whether another run has made a derived slot from the same generation of its source, or a later one."""
    wanted = staged.made_from.get(slot)
    head = staged.table.head(slot) if wanted else None
    return bool(wanted) and head is not None and head.source_generation >= (wanted or 0)
