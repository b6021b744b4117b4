"""Rows between the driver and its tasks. Each kind of row is one dataclass, and each of the tables below has rows of
some kinds.

    LISTED    the contents of bucket and queue, to be compared
    WORK      the splits that each task reads
    STAGED    the outcomes and packs of tasks, for the driver

`row_schema` turns rows into columns. The plans of slots reach the driver as `slot_plan.PLANNED`.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.row_schema import Rows, Task
from s3notify_platform.engine.values.unforeseen import described, is_outage, trace_of
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split, UnchosenObject
from s3notify_platform.table.packs.pack_set import StagedPack

# LISTED


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSlot:
    """A slot to compare. `pickled`: the slot's entries of the source's topic."""

    slot: Slot
    pickled: bytes = pickle.dumps(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The number of a task's requests, by kind.

    `overran`: the number of cuts at which the task's chains of LISTs did not stop.
    """

    requests: Mapping[str, int]
    overran: int = 0


Listed = WantedSlot | ObjectVersion | UnchosenObject | Requests
LISTED: Final[Rows[Listed]] = Rows(WantedSlot, ObjectVersion, UnchosenObject, Requests)


# Failures


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSlot:
    """A slot that could not be processed, and the reason.

    `outage`: the store was at fault, not the slot; the slot must be tried again. `trace`: the traceback, if the error
    is not one of this package's own errors.
    """

    slot: Slot
    error: str
    outage: bool = False
    trace: str = ""

    @property
    def by_object(self) -> bool:
        """True if one of the slot's objects may be at fault."""
        return bool(self.trace) and not self.outage

    @classmethod
    def of(cls, slot: Slot, error: Exception) -> "FailedSlot":
        """Returns the slot's failure, which this error has caused."""
        trace = "" if isinstance(error, S3NotifyError) else trace_of(error)
        return cls(slot=slot, error=described(error), outage=is_outage(error), trace=trace)


# WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOfTask:
    """A split that a task reads."""

    task: Task
    split: Split


WORK: Final[Rows[SplitOfTask]] = Rows(SplitOfTask)


# STAGED


LINEAGE_SCHEMA: Final = pa.schema(
    [("_slot", pa.int32()), ("_key", pa.string()), ("_etag", pa.string()), ("_offset", pa.int64())]
)
"""The first columns of each row: the slot, object version and offset from which the row was made."""

LINEAGE_COLUMNS: Final = (*LINEAGE_SCHEMA.names,)
"""The columns that a transform receives in addition to the source's columns. The transform must keep these columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject:
    """The outcome of reading an object, or a part of it."""

    slot: Slot
    key: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPack:
    """A pack that a task has written. `of_rejects`: the pack has rejects in place of rows.

    `key`, `start`: the pack has the rows of this part of a big object. With key "", the pack has rows of whole objects.
    `pack`: the result of `StagedPack.dumps`. `body`: the bytes of a small pack, which the driver writes together with
    the table version; else b"".
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
    """The number of rows that a transform has made of an object version."""

    slot: Slot
    key: str
    etag: str
    rows: int


Staged = ReadObject | WrittenPack | StoredRows | Requests
STAGED: Final[Rows[Staged]] = Rows(ReadObject, WrittenPack, StoredRows, Requests)
