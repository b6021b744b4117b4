"""The loop of a run: the only place that commits rounds, with the order of everything that follows a commit.

A round brings some slots through all tables of the run, table by table: first the source's table, then the derived
tables. The rows of each derived table are staged from the version that was just committed to the table before it.
Sensor runs, backfills and `s3notify ingest` take the rounds of a run from `commit_rounds`. The next round depends on
the results of the previous one.
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
    """A round's work for one table. `name`: the table's asset.

    `commit` commits it as one version, and returns the results of the slots that the run has finished. Call it only
    once. A slot that fails raises no error.
    """

    name: str
    commit: Callable[[], Results]


@dataclass(slots=True, kw_only=True)
class Round:
    """Slots on their way through the tables of a run.

    `entries`: the entries of each finished slot; they were in the queue before the bucket was looked at. `unannounced`
    counts changes that a listing found and no entry names. `results`: for each table, the results of the finished
    slots; complete once all tables are committed.
    """

    tables: Iterator[StagedTable]
    entries: Mapping[Slot, Sequence[Entry]] = field(default_factory=dict)
    unannounced: int = 0
    results: dict[str, Results] = field(default_factory=dict)

    @property
    def _first(self) -> Results:
        """The results of the source's table: a failure in a derived table never delays a slot of the source."""
        return next(iter(self.results.values()), {})

    def bad(self) -> list[Slot]:
        """The slots that failed."""
        return sorted(slot for slot, each in self._first.items() if not each.ok)

    def good(self) -> list[Slot]:
        """The slots that are committed, or were found unchanged."""
        return sorted(slot for slot, each in self._first.items() if each.ok)

    def incomplete(self) -> set[Slot]:
        """The slots that did not fail, but that the run had no time to read completely: they are requested again."""
        return {slot for slot in self.good() if not self._first[slot].complete}

    def failed(self) -> dict[str, Results]:
        """The failures in each table."""
        return {
            name: {slot: each for slot, each in results.items() if not each.ok}
            for name, results in self.results.items()
        }

    def done_entries(self) -> list[Entry]:
        """The entries of slots that were read completely. The entries of all other slots stay."""
        left = {*self.bad(), *self.incomplete()}
        return [entry for slot, of_slot in self.entries.items() if slot not in left for entry in of_slot]


def commit_round(staged: Round) -> None:
    """Commits a round as one version of each table, table by table; `known` then has each version.

    A slot that fails raises no error.
    """
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
    """Commits the rounds of a run one after the other, and does everything that follows a commit, in a safe order.

    Yields each round when all of it is done. Every driver of a run takes its rounds from here.

    Once a round is committed, its rows are visible, and `known` has the version. Then these steps follow: `report` the
    round; remove its entries from the queue; let the next batch look at slots that were not read completely
    (`ask_again`); `settle` the rescan backlog, and stamp the batch's chain.

    A crash at any step loses nothing: the batch stays open, and its slots are requested again, found unchanged, and
    reported. The reverse order could leave a committed slot unreported forever.

    `beside` frees the space of the removed entries in the background; nothing waits for it.

    Requests of a round: those of `commit_round`, those of `NotificationQueue.remove` for the entries, and those of the
    given functions.
    """
    for each in rounds:
        commit_round(each)
        report(each)
        queue.remove(each.done_entries(), beside=beside)
        ask_again(each.incomplete())
        settle(each)
        yield each
