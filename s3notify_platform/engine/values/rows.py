"""Rows between the driver and its tasks, each declared once: a dataclass for each kind, a table for each way.

    LISTED    what the bucket and the queue hold, on its way to be compared
    PLANNED   what there is to do, on its way to the driver
    WORK      what each task is to read
    SCOUTED   what the parts of CSV objects look like
    STAGED    what tasks have read, and the packs that they have written, on its way to the driver

`row_schema` says how they become columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from s3notify_platform.engine.values.outcome import Outcome
from s3notify_platform.engine.values.row_schema import Rows, Task
from s3notify_platform.engine.values.unforeseen import described, is_outage, trace_of
from s3notify_platform.errors import S3NotifyError
from s3notify_platform.formats.csv_splits import Scout
from s3notify_platform.ports import Version
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.notification_queue.entries import Place, SegmentRead
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.slots import Slot
from s3notify_platform.table.pack_set import StagedPack

# What the bucket and the queue hold, on its way to be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSlot:
    """A slot to compare."""

    slot: Slot


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
    segment_version: str = ""
    """As it was read, if all its entries could be removed (`Entry.read`); else ""."""
    segment_entries: int = 0

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
            segment_version=entry.read.version if entry.read else "",
            segment_entries=entry.read.entries if entry.read else 0,
        )

    def entry(self, topic: str) -> Entry:
        """The entry to remove."""
        return Entry(
            place=Place(topic=topic, epoch=self.epoch, shard=self.shard, key=self.segment, quota=self.quota),
            n=self.n,
            slot=self.slot,
            state="committed",
            event=Event(key=self.key, time_ms=self.time_ms),
            read=SegmentRead(version=Version(self.segment_version), entries=self.segment_entries)
            if self.segment_version
            else None,
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
class PlannedSlot:
    """A slot that was compared. `pickled`: its `SlotPlan`."""

    slot: Slot
    pickled: bytes


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


PLANNED: Final[Rows[PlannedSlot | FailedSlot | Requests]] = Rows(PlannedSlot, FailedSlot, Requests)


# What each task reads


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOfTask:
    """A split that a task reads."""

    task: Task
    split: Split


WORK: Final[Rows[SplitOfTask]] = Rows(SplitOfTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scouted:
    """The quotes of part `number` of CSV objects."""

    number: int
    scout: Scout


SCOUTED: Final[Rows[Scouted]] = Rows(Scouted)


# What tasks have read and written


LINEAGE_SCHEMA: Final = pa.schema(
    [("_slot", pa.int32()), ("_key", pa.string()), ("_etag", pa.string()), ("_offset", pa.int64())]
)
"""The first columns of each row: where it comes from."""

LINEAGE_COLUMNS: Final = (*LINEAGE_SCHEMA.names,)
"""The columns that a transform receives beside the source's, and has to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject:
    """What became of an object, or of a part of it."""

    slot: Slot
    key: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPack:
    """A pack that a task has written: of rows, or `of_rejects`.

    `key`, `start`: the part of a big object that alone is in it; key "": any whole objects are. `pack`: as
    `StagedPack.dumps`. `body`: of a small pack, which the driver writes with the version; else b"".
    """

    of_rejects: bool
    key: str
    start: int
    pack: str
    body: bytes = b""

    @property
    def staged(self) -> StagedPack:
        """The pack."""
        return StagedPack.loads(self.pack, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Rows of an object version that a transform has made."""

    slot: Slot
    key: str
    etag: str
    rows: int


Staged = ReadObject | WrittenPack | StoredRows | Requests
STAGED: Final[Rows[Staged]] = Rows(ReadObject, WrittenPack, StoredRows, Requests)
