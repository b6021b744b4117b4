"""The loop of a run. Only this module commits rounds, and defines the order of all steps that follow a commit.

Before a round is committed, `engine.driver` plans it on one snapshot of the table, reads its objects, and stages packs.

The steps in order, and the reasons for this order
    1. `commit_round`: the rows are visible, because `table.commit` has created the version. The table's record
       (`known`) has the version, too.
    2. `report` reports the results to Dagster. After a crash before this step, the entries are still in the queue, so
       the slots are requested and reported again.
    3. The round's entries leave the queue. The entries are no longer needed, because the table has the state of the
       objects.
    4. `Steps.ask_again` requests the slots that were not read completely.
    5. `close`, for each round, or once for the whole batch:
       `note_writers` notes a writer that does not queue, before the slots count as done;
       `note_open` notes the slots that failed or are unfinished, before they could leave the rescan backlog;
       `settle` removes from the rescan backlog the slots that a listing has settled;
       `acknowledge` notes that the work is done: by a stamp on the batch's chain, or by the topic's epoch in the
       backlog.

A crash at any step loses nothing: the batch stays open, and its slots are requested again, found unchanged, and
reported. With the reverse order of steps, a crash could have the effect that a committed slot is never reported, or
that a failed slot is never retried.

A round commits some slots to all tables of the run, one table after the other: first the source's table, then the
derived tables. The rows of each derived table are made from the table version that was just committed to the preceding
table. Sensor runs, backfills and `s3notify ingest` take the rounds of a run from `commit_rounds`. The next round
depends on the results of the previous one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, NotificationQueue

Results = dict[Slot, SlotResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """A round's work for one table. `name`: the name of the table's asset.

    `commit` commits the work as one table version, and returns the results of the slots that the run has finished. Call
    `commit` only once. The failure of a slot raises no error. A version may be created even if the results contain no
    slot. `engine.driver` makes the `commit` of the source's table from `RoundCommit`.
    """

    name: str
    commit: Callable[[], Results]


@dataclass(slots=True, kw_only=True)
class Round:
    """The slots of one round, which are committed to each table of a run.

    `entries`: for each finished slot, the entries that were in the queue before the bucket was looked at.
    `unannounced`: the number of changes that a listing found, but no entry names. `results`: for each table, the
    results of the finished slots. The results are complete after the commit of all tables.
    """

    tables: Iterator[StagedTable]
    entries: Mapping[Slot, Sequence[Entry]] = field(default_factory=dict)
    unannounced: int = 0
    results: dict[str, Results] = field(default_factory=dict)

    def add(self, other: "Round") -> None:
        """Adds the results of a later round of the same batch."""
        self.unannounced += other.unannounced
        for name, results in other.results.items():
            self.results.setdefault(name, {}).update(results)

    @property
    def _first(self) -> Results:
        """The results of the source's table. Only these results decide which slots count as failed, because a failure
        in a derived table never delays a slot of the source.
        """
        return next(iter(self.results.values()), {})

    def bad(self) -> list[Slot]:
        """Returns the slots that failed."""
        return sorted(slot for slot, each in self._first.items() if not each.ok)

    def good(self) -> list[Slot]:
        """Returns the slots that are committed, or that are unchanged."""
        return sorted(slot for slot, each in self._first.items() if each.ok)

    def incomplete(self) -> set[Slot]:
        """Returns the slots that did not fail, but were not read completely for lack of time.

        These slots are requested again.
        """
        return {slot for slot in self.good() if not self._first[slot].complete}

    def failed(self) -> dict[str, Results]:
        """Returns the failed slots of each table."""
        return {
            name: {slot: each for slot, each in results.items() if not each.ok}
            for name, results in self.results.items()
        }

    def done_entries(self) -> list[Entry]:
        """Returns the entries of slots that were read completely.

        The entries of all other slots remain in the queue.
        """
        left = {*self.bad(), *self.incomplete()}
        return [entry for slot, of_slot in self.entries.items() if slot not in left for entry in of_slot]


def commit_round(staged: Round) -> None:
    """Commits a round as one version of each table, one table after the other.

    Afterwards these table versions are noted in `known`. The failure of a slot raises no error.
    """
    for table in staged.tables:
        staged.results.setdefault(table.name, {}).update(table.commit())


class Steps(Protocol):
    """The steps of a driver after a commit. Only `commit_rounds` and `close` call them, in the order of the module
    docstring.
    """

    def ask_again(self, slots: Iterable[Slot]) -> None:
        """Requests these slots again, because they were not read completely."""
        ...

    def note_writers(self, done: Round) -> None:
        """Notes a writer that does not queue, if `done` has unannounced changes."""
        ...

    def note_open(self, done: Round) -> None:
        """Notes the slots that failed or are unfinished, so that a later process requests them."""
        ...

    def settle(self, done: Round) -> None:
        """Removes from the rescan backlog the slots that a listing has settled."""
        ...

    def acknowledge(self, done: Round) -> None:
        """Notes that the work is done."""
        ...


def commit_rounds(
    rounds: Iterable[Round],
    *,
    queue: NotificationQueue,
    beside: Executor,
    steps: Steps,
    report: Callable[[Round], None] = lambda _: None,
    closes: bool = True,
) -> Iterator[Round]:
    """Commits the rounds of a run one after the other, each with all steps that follow a commit, in a safe order (see
    the module docstring).

    Yields each round after its last step. Every driver of a run takes its rounds from this function.

    `closes`: True if `close` is called for each round. If False, the driver calls `close` for the whole batch after the
    last round. `beside` runs a background task, which returns the space of the removed entries to the queue. No step
    waits for this task.

    Cost of a round: the requests of `commit_round`, of `NotificationQueue.remove` for the entries, and of the given
    functions.
    """
    for each in rounds:
        commit_round(each)
        report(each)
        queue.remove(each.done_entries(), beside=beside)
        steps.ask_again(each.incomplete())
        if closes:
            close(each, steps)
        yield each


def close(done: Round, steps: Steps) -> None:
    """The last steps of a round, or of all rounds of a batch together. Cost: the requests of the steps."""
    steps.note_writers(done)
    steps.note_open(done)
    steps.settle(done)
    steps.acknowledge(done)
