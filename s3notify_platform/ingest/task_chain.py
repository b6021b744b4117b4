"""The ack chain of one job: which of its slots and objects are done, said by the tasks that did them.

Steps
    1. The driver opens a chain whose children are the job's slots: "7". Where other tasks read than stage (big
       objects, a slot with much more to read than others, a transform), also the objects to read, below their slots:
       "7/0", "7/1", in the order of the slot's changes.
    2. Big objects that are cut into parts end, and their parts begin, "7/0/0", "7/0/1" and so on, all in one stamp.
    3. A task that has read all its objects and parts, or has said what hinders it, ends them with one stamp; one
       that has staged all its slots, these. Attempts that are repeated or speculated stamp the same names, which
       changes nothing.
    4. The driver commits no slot that is missing from what the tasks have said, or of which an object or a part is,
       and forgets the chain.

Where one task reads and stages a slot, the objects of the slot would begin and end in the very stamp that ends it:
they leave no trace, and are not named. Nor are they in a job with more than `CHILDREN_MAX` children, so that a
stamp stays small: its chain knows slots alone.

What it adds to Spark's own bookkeeping: a row that reaches the driver without the tasks behind it having come to
their end is not believed, and the progress of a long job is one LIST away, for anybody. It cannot hang a batch:
nobody waits for it, the batch's own chain does not know of it, and what a run that died has left goes with
`forget_ended`.

Requests: 1 to open, 2 if objects are cut, 2 for each task, however many end at the same moment (3 if it read parts), 1
to close, 2 to check; to forget 1 and 2 for each of these records, several at once.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import ConflictError, S3NotifyError, TagNotFound
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import ObjectStore, RecordStore
from s3notify_platform.protocols.ack_chain import ACK, AckChains, AlreadyFailed, Chain, ChainState
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.slots import Slot

TASKS: Final = f"{ACK}.tasks"
"""Partition of these chains, beside the batches' own."""

CHILDREN_MAX: Final = 8_000
"""Slots, objects and parts that one chain names."""

PROGRESS_SECONDS: Final = 10.0

PARALLELISM: Final = 8
"""Records of a chain that are removed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChain:
    """The chain of one job. Pickles, and travels to its tasks."""

    source: Source
    chain: Chain

    @classmethod
    def opened(
        cls,
        source: Source,
        run: str,
        slots: Iterable[Slot],
        objects: Iterable[str] = (),
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> "TaskChain":
        """A new chain of these slots and objects (`object_children`), which belongs to `run`. 1 request."""
        chains = task_chains(source.location.records())
        chain = chains.open_batch(f"{run}/{unique_name(clock)}", [*map(str, slots), *objects])
        return cls(source=source, chain=chain)

    def chains(self, store: ObjectStore | None = None) -> AckChains:
        """The client, through `store` if given."""
        return task_chains(self.source.location.records(store))

    def stamp(
        self, children: Iterable[str], store: ObjectStore | None = None, *, starts: Iterable[str] = ()
    ) -> None:
        """End these children, and begin `starts`, in one stamp; called when all of them are done. 2 requests.

        Raises what the store raises: the task fails, and Spark tries it again. `ConflictError` if the chain was
        failed, or is gone.
        """
        try:
            outcome = self.chains(store).stamp_children(self.chain, children, starts=starts)
        except TagNotFound as error:
            raise ConflictError(
                f"job {self.chain.tag} was forgotten, as those of runs that ended are"
            ) from error
        if isinstance(outcome, AlreadyFailed):
            raise ConflictError(f"job {self.chain.tag} was failed: {outcome.reason}")

    def cut(self, objects: Mapping[str, str], work: Sequence[Split]) -> list[str]:
        """The child that each split of `work` is: one of `objects`, or a part of one. 2 requests if any is a part.

        Objects that were cut end, and their parts begin, in one stamp. Raises what `stamp` does.
        """
        count = Counter(split.version.key for split in work)
        parts = {key: iter(range(count[key])) for key in count if count[key] > 1}
        children = [
            f"{objects[key]}/{next(parts[key])}" if key in parts else objects[key]
            for key in (split.version.key for split in work)
        ]
        if parts:
            starts = (
                child for child, split in zip(children, work, strict=True) if split.version.key in parts
            )
            self.stamp([objects[key] for key in parts], starts=starts)
        return children

    def missing(self) -> frozenset[Slot]:
        """Slots that no task has said to be staged, or something of which none has said to be read. 1 or 2 requests."""
        return frozenset(Slot(int(_path(name)[0])) for name in self.chains().state(self.chain).missing)

    def forget(self) -> None:
        """Remove the chain; what cannot be removed now is for `forget_ended`."""
        with suppress(S3NotifyError):
            self.chains().delete(self.chain)

    @contextmanager
    def watched(
        self, progress: Callable[[str], None], *, seconds: float = PROGRESS_SECONDS
    ) -> Iterator[None]:
        """Tell how far the job is, every `seconds` for as long as the body runs. 1 request each time."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(seconds):
                with suppress(S3NotifyError):  # only the telling is left out
                    progress(progress_of(self.chains().state(self.chain)))

        thread = threading.Thread(target=watch, name="job progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=seconds)


def object_children(splits: Iterable[Split]) -> dict[str, str]:
    """The child that each object is, by its key: "7/0", "7/1" and so on of slot 7. Pure."""
    count: Counter[Slot] = Counter()
    names: dict[str, str] = {}
    for split in splits:
        slot = split.version.slot
        names[split.version.key] = f"{slot}/{count[slot]}"
        count[slot] += 1
    return names


def progress_of(state: ChainState) -> str:
    """How far the job of a chain is, in words; an object that was cut is not counted, its parts are. Pure."""
    missing = frozenset(state.missing)
    slots = [name for name in state.children if len(_path(name)) == 1]
    parts = [name for name in state.children if len(_path(name)) == 3]
    cut = {name.rpartition("/")[0] for name in parts}
    read = [name for name in state.children if len(_path(name)) > 1 and name not in cut]
    said = f"{len(slots) - len(missing.intersection(slots))} of {len(slots)} slots staged"
    if read:
        what = "objects and parts of big ones" if parts else "objects"
        said += f", {len(read) - len(missing.intersection(read))} of {len(read)} {what} read"
    return said


def _path(child: str) -> list[str]:
    """Slot, object and part."""
    return child.split("/")


def task_chains(records: RecordStore) -> AckChains:
    """The chains of all jobs of a source."""
    return AckChains(records, partition=TASKS, parallelism=PARALLELISM)


def forget_ended(records: RecordStore, ended: Callable[[str], bool]) -> int:
    """Remove the chains that runs that died have left; how many.

    2 LISTs for each 1000 records; for each chain 1 GET and 1 LIST, and 2 requests for each record.
    """
    chains = task_chains(records)
    gone = 0
    for tag in chains.tags():
        if ended(tag.partition("/")[0]):
            with suppress(TagNotFound):
                chains.delete(tag)
                gone += 1
    chains.purge()
    return gone
