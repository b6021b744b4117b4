"""Some changes of a derived table need work on all rows of its source. `FollowJobs` is the port for this work, and
`InProcess` does the work in this process.

`InProcess` loads all rows of the source into memory, so it suits small tables.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.clustered.cluster_files import files
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.clustered.clustered_rows import ClusterJobs
from s3notify_platform.table.latest.latest_build import BuiltPart, build_part
from s3notify_platform.table.latest.latest_definition import Latest, newest_of
from s3notify_platform.table.latest.newest_rows import NewestJobs
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.packs.pack_set import StagedPack, put
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot


class FollowJobs(NewestJobs, ClusterJobs, Protocol):
    """The work that needs all rows of the source's table, as of a snapshot."""


class InProcess(FollowJobs):
    """Does the work in this process. `source`: the table that is read. `table`: the derived table."""

    def __init__(self, source: LogTable, table: LogTable, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._source, self._table, self._clock = source, table, clock

    def newest(self, latest: Latest, snapshot: Snapshot, label: int) -> Sequence[BuiltPart]:
        """See `NewestJobs`."""
        rows = newest_of(latest.keyed_table(arrow_schema(snapshot.metadata.schema), self._rows(snapshot)))
        return [build_part(self._table, label, rows.to_batches(), (0, latest.slots), self._clock)]

    def search(self, latest: Latest, snapshot: Snapshot, keys: Mapping[Slot, Collection[str]]) -> pa.Table:
        """See `NewestJobs`."""
        wanted, columns = wanted_keys(keys), arrow_schema(snapshot.metadata.schema)
        found = (only(latest.keyed(rows), wanted) for rows in self._rows(snapshot))
        return newest_of(pa.Table.from_batches(found, latest.keyed_columns(columns)))

    def clustered(self, clustered: Clustered, snapshot: Snapshot, label: int) -> Sequence[StagedPack]:
        """See `ClusterJobs`."""
        rows = pa.Table.from_batches(self._rows(snapshot), arrow_schema(snapshot.metadata.schema))
        return stored(self._table, clustered.in_order(rows), clustered, label)

    def _rows(self, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        columns = arrow_schema(snapshot.metadata.schema)
        return read_slots(
            self._source.reader.store, self._source.layout, snapshot.packs.values(), None, columns
        )


def stored(table: LogTable, rows: pa.Table, clustered: Clustered, label: int) -> list[StagedPack]:
    """Stores these sorted rows as packs, and returns the packs. Cost: 1 PUT for each pack."""
    found: list[StagedPack] = []
    for each in files(rows, clustered):
        staged, bodies = table.data.staged([each], label=label)
        for key, body in bodies.items():
            put(table.reader.store, key, body)
        found += staged
    return found


def wanted_keys(keys: Mapping[Slot, Collection[str]]) -> pa.StringArray:
    """Returns the keys of all slots as one column. Pure."""
    return pa.array([key for some in keys.values() for key in some], pa.string())


def only(rows: pa.RecordBatch, keys: pa.StringArray) -> pa.RecordBatch:
    """Returns the rows whose key is one of these keys. Pure."""
    return rows.filter(pc.is_in(rows.column("_key"), keys))
