"""The loop of a run: the one place where its rounds are committed, and the order of all that follows a commit.

A round takes some slots through all tables of the run, table by table: first the source's, then those that are
derived from it, each staged on top of the version that the one before has committed. Sensor runs, backfills and
`s3notify ingest` take the rounds of a run through `commit_rounds`. The next round depends on how the one before ended.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, NotificationQueue

Results = dict[Slot, SlotResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """A round's work for one table, whose asset is `name`.

    `commit`: commits it as one version, and returns the results of the slots that the run is done with. It is called
    once, and raises nothing for one slot.
    """

    name: str
    commit: Callable[[], Results]


@dataclass(slots=True, kw_only=True)
class Round:
    """Slots on their way through the tables of a run.

    `entries`, by slot that the run is done with, were in the queue before the bucket was looked at. `unannounced`
    changes were found by a listing, and no entry names them. `results`, by table, are of the slots that the run is done
    with, once all tables are committed.
    """

    tables: Iterator[StagedTable]
    entries: Mapping[Slot, Sequence[Entry]] = field(default_factory=dict)
    unannounced: int = 0
    results: dict[str, Results] = field(default_factory=dict)

    @property
    def _first(self) -> Results:
        """The results of the table that the others follow: a derived table never holds up a slot of it."""
        return next(iter(self.results.values()), {})

    def bad(self) -> list[Slot]:
        """The slots that failed."""
        return sorted(slot for slot, each in self._first.items() if not each.ok)

    def good(self) -> list[Slot]:
        """The slots that are committed, or found unchanged."""
        return sorted(slot for slot, each in self._first.items() if each.ok)

    def incomplete(self) -> set[Slot]:
        """The good slots that the run had no time to read whole: they are asked for again."""
        return {slot for slot in self.good() if not self._first[slot].complete}

    def failed(self) -> dict[str, Results]:
        """The failures in each table."""
        return {
            name: {slot: each for slot, each in results.items() if not each.ok}
            for name, results in self.results.items()
        }

    def done_entries(self) -> list[Entry]:
        """The entries of slots that were read whole; those of all others stay."""
        left = {*self.bad(), *self.incomplete()}
        return [entry for slot, of_slot in self.entries.items() if slot not in left for entry in of_slot]


def commit_round(staged: Round) -> None:
    """Commit a round, table by table: one version of each. Nothing is raised for one slot; `known` has the version."""
    for table in staged.tables:
        staged.results.setdefault(table.name, {}).update(table.commit())


def commit_rounds(
    rounds: Iterable[Round],
    *,
    queue: NotificationQueue,
    beside: Executor,
    report: Callable[[Round], None] = lambda _: None,
    ask_again: Callable[[Iterable[Slot]], None] = lambda _: None,
    settle: Callable[[Round], None] = lambda _: None,
) -> Iterator[Round]:
    """Commit the rounds of a run, one after the other, and do all that follows a commit, in the one order that loses
    nothing. Yields each round when all of it is done. Whatever drives a run takes its rounds from here.

    Rows are visible, and `known` has the version, when a round is committed. Then: `report` it; remove the entries;
    have slots that were not read whole taken up by the next batch (`ask_again`); `settle` the rescan backlog and stamp
    the batch's chain.

    The order decides what a crash costs. It leaves the batch open: its slots are asked for again, found unchanged, and
    reported. The other way round a committed slot could stay unreported for good.

    `beside` frees the room of the removed entries meanwhile; nothing waits for it.

    Requests of a round: those of `commit_round`, of `NotificationQueue.remove` for the entries, and of the functions
    that are given.
    """
    for each in rounds:
        commit_round(each)
        report(each)
        queue.remove(each.done_entries(), beside=beside)
        ask_again(each.incomplete())
        settle(each)
        yield each
