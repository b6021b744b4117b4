"""The work on a whole table that newest rows take now and then: as a port, and done in this process.

In this process all rows of the table are in memory: for small tables.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.latest.definition import Latest, newest_of
from s3notify_platform.table.latest.latest_build import BuiltPart, build_part
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot


class LatestJobs(Protocol):
    """Work on all rows of a snapshot of the source's table."""

    def build(self, latest: Latest, snapshot: Snapshot, label: int) -> Sequence[BuiltPart]:
        """Write the newest row of each key, under this label. See `build_part`."""
        ...

    def search(self, latest: Latest, snapshot: Snapshot, keys: Mapping[Slot, Collection[str]]) -> pa.Table:
        """The newest rows of some keys, as `newest_of` gives them."""
        ...


class InProcess(LatestJobs):
    """In this process. `source`, `table`: the table that is followed, and that of the newest rows."""

    def __init__(self, source: LogTable, table: LogTable, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._source, self._table, self._clock = source, table, clock

    def build(self, latest: Latest, snapshot: Snapshot, label: int) -> Sequence[BuiltPart]:
        """See `LatestJobs`."""
        rows = newest_of(latest.keyed_table(arrow_schema(snapshot.metadata.schema), self._rows(snapshot)))
        return [build_part(self._table, label, rows.to_batches(), (0, latest.slots), self._clock)]

    def search(self, latest: Latest, snapshot: Snapshot, keys: Mapping[Slot, Collection[str]]) -> pa.Table:
        """See `LatestJobs`."""
        wanted, columns = wanted_keys(keys), arrow_schema(snapshot.metadata.schema)
        found = (only(latest.keyed(rows), wanted) for rows in self._rows(snapshot))
        return newest_of(pa.Table.from_batches(found, latest.keyed_columns(columns)))

    def _rows(self, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        columns = arrow_schema(snapshot.metadata.schema)
        return read_slots(
            self._source.reader.store, self._source.layout, snapshot.packs.values(), None, columns
        )


def wanted_keys(keys: Mapping[Slot, Collection[str]]) -> pa.StringArray:
    """Keys as a column. Pure."""
    return pa.array([key for some in keys.values() for key in some], pa.string())


def only(rows: pa.RecordBatch, keys: pa.StringArray) -> pa.RecordBatch:
    """The rows on their way that have one of these keys. Pure."""
    return rows.filter(pc.is_in(rows.column("_key"), keys))
