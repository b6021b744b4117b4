"""Reads committed rows and rejects without Spark, for the command line, checks and small tools.

Requests: 1 LIST + 1 GET for each slot, 1 GET for each live file. Memory: the rows of one slot.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.errors import CorruptError
from s3notify_platform.ports import StoredObject
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable, TableFile
from s3notify_platform.table.layout import Generation

Sliced = TypeVar("Sliced", pa.Table, pa.RecordBatch)

REJECT_SCHEMA = pa.schema(
    [
        pa.field("_key", pa.string()),
        pa.field("_etag", pa.string()),
        pa.field("_offset", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("raw", pa.binary()),
    ]
)
"""A rejected record: its place, the reason, and its bytes (at most `MAX_RAW_BYTES`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRows:
    """The live rows or rejects of one slot, of the generation `commit`."""

    slot: Slot
    commit: SlotCommit
    table: pa.Table


def in_slices(rows: Sliced, most_bytes: int) -> Iterator[Sliced]:
    """The rows in their order, up to so many bytes at a time; a row that has more is alone. Pure."""
    waiting = [rows]
    while waiting:
        part = waiting.pop()
        if part.nbytes <= most_bytes or part.num_rows <= 1:
            yield part
        else:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]


def read_slots(
    table: SlotTable,
    slots: Iterable[Slot],
    *,
    rejects: bool = False,
    generations: Mapping[Slot, Generation] | None = None,
) -> Iterator[SlotRows]:
    """The live rows (or rejects) of each committed slot; slots without a commit are left out.

    Of the heads, or of `generations`, where 0 means no commit.
    """
    for slot in slots:
        if generations is None:
            commit = table.head(slot)
        else:
            commit = table.read(slot, generations[slot]) if generations.get(slot) else None
        if commit is None:
            continue
        files = commit.rejects if rejects else commit.files
        parts = [read_file(table, slot, file, rejects=rejects) for file in files]
        whole = pa.concat_tables(parts, promote_options="default") if parts else pa.table({})
        yield SlotRows(slot=slot, commit=commit, table=whole)


def read_file(
    table: SlotTable, slot: Slot, file: TableFile, *, rejects: bool, columns: Sequence[str] | None = None
) -> pa.Table:
    """A file of rows (or of rejects) that a commit names, or some columns of it. 1 GET."""
    key = table.layout.quarantine(slot, file.name) if rejects else table.layout.data(slot, file.name)
    found = table.store.get(key)
    if not isinstance(found, StoredObject):
        raise CorruptError(f"{key}: named by the head of slot {slot} and missing; restore it")
    # ParquetFile, not read_table: read_table would turn "slot=…" of a path into a column.
    return pq.ParquetFile(pa.BufferReader(found.body)).read(columns=columns)
