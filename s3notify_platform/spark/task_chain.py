"""The ack chain of one job: which of its slots have been sealed, said by the tasks that sealed them.

Steps
    1. The driver opens a chain whose children are the job's slots.
    2. A task that has sealed all its slots ends them with one stamp, however many objects they have. Attempts
       that are repeated or speculated stamp the same names, which changes nothing.
    3. The driver commits no slot that is missing from what the tasks have said, and forgets the chain.

What it adds to Spark's own bookkeeping: a row that reaches the driver without its task having come to its end is
not believed, and the progress of a long job is one read away, for anybody. It cannot hang a batch: nobody waits
for it, the batch's own chain does not know of it, and what a run that died has left goes with `forget_ended`.

Requests: 1 to open, 2 for each task (more if several end at the same moment), 1 to check, 3 to forget.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import ConflictError, S3NotifyError, TagNotFound
from s3notify_platform.ports import ObjectStore, RecordStore
from s3notify_platform.protocols.ack_chain import AckChains, AlreadyFailed
from s3notify_platform.slots import Slot
from s3notify_platform.spark.source import Source

TASKS: Final = "tasks"
"""Partition of these chains, beside the batches' own."""

PROGRESS_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChain:
    """The chain of one job. Pickles, and travels to its tasks."""

    source: Source
    tag: str

    @classmethod
    def opened(
        cls, source: Source, run: str, slots: Iterable[Slot], *, clock: Clock = SYSTEM_CLOCK
    ) -> "TaskChain":
        """A new chain of these slots, which belongs to `run`. 1 request."""
        chain = cls(source=source, tag=f"{run}/{unique_name(clock)}")
        chain.chains().open_batch(chain.tag, map(str, slots))
        return chain

    def chains(self, store: ObjectStore | None = None) -> AckChains:
        """The client, through `store` if given."""
        return task_chains(self.source.records(store))

    def stamp(self, slots: Iterable[Slot], store: ObjectStore) -> None:
        """End these slots, in one stamp; called by the task that sealed them, when all of them are. 2 requests.

        Raises what the store raises: the task fails, and Spark tries it again. `ConflictError` if the chain was
        failed, or is gone.
        """
        try:
            outcome = self.chains(store).stamp_children(self.tag, map(str, slots))
        except TagNotFound as error:
            raise ConflictError(f"job {self.tag} was forgotten, as those of runs that ended are") from error
        if isinstance(outcome, AlreadyFailed):
            raise ConflictError(f"job {self.tag} was given up: {outcome.reason}")

    def missing(self) -> frozenset[Slot]:
        """Slots that no task has said to be sealed. 1 request."""
        return frozenset(Slot(int(name)) for name in self.chains().state(self.tag).missing)

    def forget(self) -> None:
        """Remove the chain; what cannot be removed now is for `forget_ended`."""
        with suppress(S3NotifyError):
            self.chains().delete(self.tag)

    @contextmanager
    def watched(
        self, progress: Callable[[str], None], *, seconds: float = PROGRESS_SECONDS
    ) -> Iterator[None]:
        """Tell how far the job is, every `seconds` for as long as the body runs. 1 request each time."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(seconds):
                with suppress(S3NotifyError):  # only the telling is left out
                    state = self.chains().state(self.tag)
                    progress(
                        f"{len(state.children) - len(state.missing)} of {len(state.children)} slots sealed"
                    )

        thread = threading.Thread(target=watch, name="job progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=seconds)


def task_chains(records: RecordStore) -> AckChains:
    """The chains of all jobs of a source."""
    return AckChains(records, partition=TASKS)


def forget_ended(records: RecordStore, ended: Callable[[str], bool]) -> int:
    """Remove the chains that runs that died have left; how many. 2 LISTs, and 1 GET and 3 writes for each."""
    chains = task_chains(records)
    gone = 0
    for state in chains.states():
        if ended(state.tag.partition("/")[0]):
            with suppress(TagNotFound):
                chains.delete(state.tag)
                gone += 1
    return gone
