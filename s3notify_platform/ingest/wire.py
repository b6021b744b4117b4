"""Rows between the driver and its tasks, each declared once: a dataclass for each kind, a table for each way.

    LISTED    what the bucket and the queue hold, on its way to be compared
    PLANNED   what there is to do, on its way to the driver
    WORK      what each task is to read
    SCOUTED   what the parts of CSV objects look like
    READ      what was read, in front of the columns of the data
    STAGED    what was staged, on its way to the driver
    WRITTEN   files of a derived table

`row_schema` says how they become columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from s3notify_platform.errors import S3NotifyError, UsageError
from s3notify_platform.formats.csv_splits import Scout
from s3notify_platform.ingest.outcome import Outcome
from s3notify_platform.ingest.results import SlotResult
from s3notify_platform.ingest.row_schema import AS_JSON, Rows, Task, runs_of
from s3notify_platform.ingest.unforeseen import described, is_outage, trace_of
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.notification_queue.entries import Place
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import StagedCommit, TableFile
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reader import REJECT_SCHEMA

# What the bucket and the queue hold, on its way to be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSlot:
    """A slot to compare, and its newest generation: None if it is still to be asked for; or a recalled one."""

    slot: Slot
    generation: Generation | None
    recalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedEntry:
    """As much of an entry of the source's topic as finding its object, and removing it, takes."""

    slot: Slot
    key: str
    shard: int
    epoch: str
    segment: str
    quota: int
    n: int
    time_ms: int
    expiry: bool
    of_version: bool

    @classmethod
    def of(cls, entry: Entry) -> "QueuedEntry":
        """From an entry that was read."""
        return cls(
            slot=Slot(entry.slot),
            key=entry.event.key,
            shard=entry.shard,
            epoch=entry.epoch,
            segment=entry.place.key,
            quota=entry.place.quota,
            n=entry.n,
            time_ms=entry.event.time_ms,
            expiry=entry.event.is_expiry,
            of_version=entry.event.is_of_version,
        )

    def entry(self, topic: str) -> Entry:
        """The entry to remove."""
        return Entry(
            place=Place(topic=topic, epoch=self.epoch, shard=self.shard, key=self.segment, quota=self.quota),
            n=self.n,
            slot=self.slot,
            state="committed",
            event=Event(key=self.key, time_ms=self.time_ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests that a task has made, by kind, and cuts that its chains of LISTs passed over."""

    requests: Mapping[str, int]
    overran: int = 0


Listed = WantedSlot | ObjectVersion | QueuedEntry | Requests
LISTED: Final[Rows[Listed]] = Rows(WantedSlot, ObjectVersion, QueuedEntry, Requests)


# What there is to do


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRead:
    """An object to read. `announced`: an entry names the change, or there is none: it is read on, or again."""

    split: Split
    announced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The key of an object that has left. `announced`: an entry names it. `expired`: its rows stay."""

    slot: Slot
    key: str
    announced: bool
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSlot:
    """A slot that was compared with this generation of its table. `objects`: how many it has. `held`: how many it had,
    of which a listing found `withdrawn` no more.

    `complete`: all that has changed is in rows of the other kinds; else `beyond` changes are not. `unaddressable`: how
    many objects that were found have keys that S3 clients cannot address, the first ones by name.
    """

    slot: Slot
    generation: Generation
    objects: int
    held: int
    withdrawn: int
    complete: bool
    beyond: int
    unaddressable: int = 0
    unaddressable_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSlot:
    """A slot that cannot be dealt with, and why. `outage`: nothing is known of the slot itself; try it again.

    `trace`: the traceback of an error that is not this package's.
    """

    slot: Slot
    error: str
    outage: bool = False
    trace: str = ""

    @property
    def by_object(self) -> bool:
        """Whether one of its objects may be at fault."""
        return bool(self.trace) and not self.outage

    @classmethod
    def of(cls, slot: Slot, error: Exception) -> "FailedSlot":
        """By the error that it met."""
        trace = "" if isinstance(error, S3NotifyError) else trace_of(error)
        return cls(slot=slot, error=described(error), outage=is_outage(error), trace=trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnqueuedSlot:
    """A slot that was last signalled by a writer that does not queue."""

    slot: Slot


Planned = ToRead | Gone | ComparedSlot | FailedSlot | UnqueuedSlot | QueuedEntry | Requests
PLANNED: Final[Rows[Planned]] = Rows(
    ToRead, Gone, ComparedSlot, FailedSlot, UnqueuedSlot, QueuedEntry, Requests
)


# What each task reads


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOfTask:
    """A slot that a task has to do with, whether there is something to read of it or not."""

    task: Task
    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOfTask:
    """A split that a task reads. `child`: its name in the job's chain, if it is named there."""

    task: Task
    split: Split
    child: str | None


Work = SlotOfTask | SplitOfTask
WORK: Final[Rows[Work]] = Rows(SlotOfTask, SplitOfTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scouted:
    """The quotes of part `number` of CSV objects."""

    number: int
    scout: Scout


SCOUTED: Final[Rows[Scouted]] = Rows(Scouted)


# What was read: in front of the columns of the data


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlot:
    """A slot of the job, so that one with nothing to read is staged too."""

    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject:
    """What became of an object, or of a part of it."""

    slot: Slot
    key: str
    outcome: Outcome = field(metadata=AS_JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFiles:
    """Files that a task has written, with rows and rejects of several whole objects of a slot."""

    slot: Slot
    data_files: tuple[TableFile, ...]
    reject_files: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A record that could not be taken in."""

    slot: Slot
    key: str
    etag: str
    offset: int | None
    reason: str
    raw: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a row comes from. The data's columns follow."""

    slot: Slot
    key: str
    etag: str
    offset: int


Read = ReadSlot | ReadObject | SharedFiles | Reject | Lineage
READ: Final[Rows[Read]] = Rows(ReadSlot, ReadObject, SharedFiles, Reject, Lineage, prefix="_")
LINEAGE_COLUMNS: Final = ("_slot", "_key", "_etag", "_offset")
"""What a transform receives beside the source's columns and has to keep."""

KIND_REJECT: Final = READ.kind(Reject)
KIND_ROW: Final = READ.kind(Lineage)


def slot_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Slot, pa.RecordBatch]]:
    """Batches sorted by `_slot`, cut at each new slot."""
    for batch in batches:
        if batch.column("_slot").null_count:
            raise UsageError("rows without _slot: a transform must keep _slot, _key, _etag and _offset")
        for slot, piece in runs_of(batch, "_slot"):
            yield Slot(slot), piece


def of_kinds(piece: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch, pa.Table | None]]:
    """A piece of one slot by kinds, in their order: the kind, its records, and what is to be stored of them if any."""
    for kind, part in runs_of(piece, "_kind"):
        if kind == KIND_REJECT:
            columns = [part.column(name) for name in ("_key", "_etag", "_offset", "_reason", "_raw")]
            yield kind, part, pa.Table.from_arrays(columns, schema=REJECT_SCHEMA)
        elif kind == KIND_ROW:
            dropped = {*READ.schema.names} - {"_key", "_etag", "_offset"}
            names = [name for name in part.schema.names if name not in dropped]
            yield kind, part, pa.Table.from_batches([part]).select(names)
        else:
            yield kind, part, None


# What was staged


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSlot:
    """A slot whose files are written; its commit, None if there is nothing to commit, and what comes of that."""

    commit: StagedCommit | None
    result: SlotResult

    @property
    def slot(self) -> Slot:
        """The slot."""
        return self.result.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderSlot:
    """A slot that was not staged, because its objects have fields that the schema lacks: Arrow schemas in base64."""

    slot: Slot
    new_fields: tuple[str, ...]


Staged = StagedSlot | WiderSlot | FailedSlot
STAGED: Final[Rows[Staged | Requests]] = Rows(StagedSlot, WiderSlot, FailedSlot, Requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file of a derived table."""

    slot: Slot
    file: TableFile


WRITTEN: Final[Rows[WrittenFile]] = Rows(WrittenFile)
