"""Updates the newest-rows table and the clustered table of a source (`table.follow`).

Large tables are updated by Spark jobs.
"""

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.pandas.types import from_arrow_schema

from s3notify_platform.engine.stage.staging import table_of_task
from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source.source import Source
from s3notify_platform.spark.any_names import map_in_arrow
from s3notify_platform.spark.failures import own_errors
from s3notify_platform.spark.load import columns_of, frame_of
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.spark_versions import to_arrow_schema
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.follow import FollowResult
from s3notify_platform.table.follow_jobs import FollowJobs, InProcess, only, stored, wanted_keys
from s3notify_platform.table.latest.latest_build import BuiltPart, build_part, first_rows
from s3notify_platform.table.latest.latest_definition import Latest, newest_of
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.packs.pack_set import StagedPack
from s3notify_platform.table.row_changes import all_rows
from s3notify_platform.table.snapshot import Snapshot

_Shape = Callable[[pa.RecordBatch], pa.RecordBatch]

SMALL_BYTES: Final = 32 << 20
"""Maximum number of bytes in the packs of a table that this process reads without Spark."""

SMALL_ROWS: Final = 1_000_000
"""Maximum number of rows of such a table, because a few bytes of a pack may have millions of equal rows."""

PART_ROWS: Final = 1_000_000
PART_PACK_BYTES: Final = 128 << 20
"""The approximate maximum work of each task that writes newest rows or clustered rows: the number of rows of the source
table, and the number of bytes in their packs. A task that sorts clustered rows has all its rows in memory.
"""


def follow(
    spark: SparkSession, source: Source, asset: str, *, batch: str = "", rebuild: bool = False
) -> FollowResult:
    """Updates one of the tables of `Source.kinds` to the newest version of the source's table.

    See `FollowingTable.follow`. If a Spark task ended with an error of this package, `follow` raises this error.
    """
    with own_errors():
        return source.following(asset, partial(_jobs, spark, source, asset)).follow(
            batch=batch, rebuild=rebuild
        )


def _jobs(spark: SparkSession, source: Source, asset: str, rows: LogTable, table: LogTable) -> FollowJobs:
    return SparkFollowJobs(spark, source, asset, InProcess(rows, table))


class SparkFollowJobs(FollowJobs):
    """Spark jobs for large tables. For small tables, calls the jobs of `small`, in this process."""

    def __init__(self, spark: SparkSession, source: Source, asset: str, small: FollowJobs) -> None:
        self._spark, self._source, self._asset, self._small = spark, source, asset, small

    def newest(self, latest: Latest, snapshot: Snapshot, label: int) -> Sequence[BuiltPart]:
        """See `FollowJobs`. All rows are shuffled once, and sorted by key and rank."""
        if _is_small(snapshot):
            return self._small.newest(latest, snapshot, label)
        source, slots, name = self._source, latest.slots, self._asset
        parts = min(slots, self._parts(snapshot))

        def run(batches: Batches) -> Batches:
            table, _ = table_of_task(source, name)
            rows = iter(batches)
            first = next((batch for batch in rows if batch.num_rows), None)
            if first is None:
                return
            part = first.column("_slot")[0].as_py() * parts // slots
            of_part = -(-part * slots // parts), -(-(part + 1) * slots // parts)
            done = build_part(table, label, chain([first], rows), of_part, SYSTEM_CLOCK)
            yield pa.record_batch({"part": pa.array([pickle.dumps(done)], pa.binary())})

        ordered = self._ordered(self._frame(latest, snapshot, latest.keyed), latest, parts)
        found = map_in_arrow(ordered, run, "part binary").toArrow()["part"].to_pylist()
        return [pickle.loads(each) for each in found]  # noqa: S301 - our own tasks made it

    def search(self, latest: Latest, snapshot: Snapshot, keys: Mapping[Slot, Collection[str]]) -> pa.Table:
        """See `FollowJobs`. The table is read once. Only the newest row of each of these keys reaches this process."""
        if _is_small(snapshot):
            return self._small.search(latest, snapshot, keys)
        wanted = wanted_keys(keys)
        output = latest.keyed_columns(to_arrow_schema(columns_of(self._source, snapshot)))

        def newest(rows: pa.RecordBatch) -> pa.RecordBatch:
            found = newest_of(pa.Table.from_batches([only(latest.keyed(rows), wanted)]))
            return next(iter(found.combine_chunks().to_batches()), pa.RecordBatch.from_pylist([], output))

        def first(batches: Batches) -> Batches:
            return (batch for rows in first_rows(batches) for batch in rows.to_batches())

        frame = self._frame(latest, snapshot, newest)
        ordered = self._ordered(frame, latest, min(latest.slots, parallelism(self._spark)))
        return newest_of(map_in_arrow(ordered, first, frame.schema).toArrow().cast(output))

    def clustered(self, clustered: Clustered, snapshot: Snapshot, label: int) -> Sequence[StagedPack]:
        """See `FollowJobs`. All rows are shuffled once, by ranges of the table's order; a task sorts each range."""
        if _is_small(snapshot):
            return self._small.clustered(clustered, snapshot, label)
        source, name = self._source, self._asset
        parts = self._parts(snapshot)

        def run(batches: Batches) -> Batches:
            table, _ = table_of_task(source, name)
            rows = pa.Table.from_batches([batch for batch in batches if batch.num_rows] or [none])
            found = stored(table, clustered.in_order(rows), clustered, label) if rows.num_rows else []
            yield pa.record_batch({"packs": pa.array([pickle.dumps(found)], pa.binary())})

        columns = columns_of(source, snapshot)
        none = pa.RecordBatch.from_pylist([], to_arrow_schema(columns))
        shares = all_rows(snapshot, tasks=2 * parallelism(self._spark))
        rows = frame_of(self._spark, source, shares, columns)
        # The order ends with object and offset, so that a range has few rows even if many rows have the same values.
        order = dict.fromkeys((*clustered.columns, "_key", "_offset"))
        spread = rows.repartitionByRange(parts, *(f"`{name.replace('`', '``')}`" for name in order))
        found = map_in_arrow(spread, run, "packs binary").toArrow()["packs"].to_pylist()
        return [pack for each in found for pack in pickle.loads(each)]  # noqa: S301 - our own tasks made it

    def _parts(self, snapshot: Snapshot) -> int:
        """Returns the number of tasks that write all rows."""
        return max(
            parallelism(self._spark), -(-snapshot.rows // PART_ROWS), -(-_size(snapshot) // PART_PACK_BYTES)
        )

    @staticmethod
    def _ordered(keyed: DataFrame, latest: Latest, parts: int) -> DataFrame:
        """Distributes keyed rows to tasks by ranges of slots. In each task, the newest row of a key is the first."""
        spread = keyed.repartitionById(parts, F.expr(f"cast(_slot * {parts} div {latest.slots} as int)"))
        return spread.sortWithinPartitions("_slot", "_key", F.desc("_etag"))

    def _frame(self, latest: Latest, snapshot: Snapshot, shape: _Shape) -> DataFrame:
        ship_package(self._spark)
        shares = all_rows(snapshot, tasks=2 * parallelism(self._spark))
        columns = columns_of(self._source, snapshot)
        keyed = from_arrow_schema(latest.keyed_columns(to_arrow_schema(columns)))
        return frame_of(self._spark, self._source, shares, columns, shape=shape, shaped=keyed)


def _is_small(snapshot: Snapshot) -> bool:
    return _size(snapshot) <= SMALL_BYTES and snapshot.rows <= SMALL_ROWS


def _size(snapshot: Snapshot) -> int:
    return sum(pack.size for pack in snapshot.packs.values())
