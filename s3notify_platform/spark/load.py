"""Reads committed rows of slots as one DataFrame: the packs of one snapshot, distributed to tasks.

No LIST of the bucket or of the data files is needed, and no task reads the log. Hadoop's s3a is not needed. The columns
are the same as in the table. A column is null in the rows of packs that are older than the column.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.engine.values.row_schema import Batches, numbers_of
from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source.source import Source
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.spark_versions import to_arrow_schema
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.change_columns import CHANGE_COLUMNS, with_changes
from s3notify_platform.table.pinned_schema import schema_of
from s3notify_platform.table.row_changes import Share, all_rows
from s3notify_platform.table.snapshot import Absent, Snapshot

LINEAGE: Final = (
    StructType().add("_slot", "integer").add("_key", "string").add("_etag", "string").add("_offset", "long")
)


def load_slots(
    spark: SparkSession,
    source: Source,
    slots: Iterable[Slot] | None,
    *,
    asset: str | None = None,
    snapshot: Snapshot | None = None,
) -> DataFrame:
    """Returns the committed rows of `slots` (None: of all slots), with `_slot`, `_key`, `_etag` and `_offset`, as of
    one snapshot. `asset`: reads the table of this slot asset. This table always has `_slot`, but has `_key`, `_etag`
    and `_offset` only if the asset's function keeps these columns. `snapshot`: by default the newest snapshot. Raises
    `NotFoundError` if the table has no commit yet. Cost: the requests of `LogTable.newest`, and of `reading.read` in
    tasks.
    """
    ship_package(spark)
    pickle.dumps(source)  # raises `UsageError` if the source holds access keys instead of their names
    found = snapshot if snapshot is not None else newest(source, asset)
    wanted = None if slots is None else sorted(set(slots))
    shares = all_rows(found, wanted, tasks=2 * parallelism(spark))
    return frame_of(spark, source, shares, columns_of(source, found, asset), asset=asset)


def frame_of(
    spark: SparkSession,
    source: Source,
    shares: Sequence[Share],
    columns: StructType,
    *,
    asset: str | None = None,
    shape: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    shaped: StructType | None = None,
) -> DataFrame:
    """Returns the rows of `shares` with these columns. One task reads each share, a part of the table's packs.

    `shape`: converts each batch of rows to the columns `shaped`.
    """
    output, found = to_arrow_schema(columns), shaped or columns
    if not shares:
        return spark.createDataFrame([], found)
    layout = source.location.table_layout(asset)

    def run(batches: Batches) -> Batches:
        store = open_store(source.location.platform)
        for number in numbers_of(batches):
            rows = shares[number].read(store, layout, output)
            yield from map(shape, rows) if shape else rows

    numbers = pa.table({"task": pa.array(range(len(shares)), pa.int32())})
    spread = spark.createDataFrame(numbers).repartitionById(len(shares), "task")
    return spread.mapInArrow(run, found)


def newest(source: Source, asset: str | None = None) -> Snapshot:
    """Returns the newest snapshot of the source's table, or of the table of a slot asset.

    Raises `NotFoundError` without a table.
    """
    found = source.location.table(asset).newest()
    if isinstance(found, Absent):
        raise _nothing(source, asset)
    return found


def columns_of(source: Source, snapshot: Snapshot, asset: str | None = None) -> StructType:
    """Returns the columns of committed rows. Raises `NotFoundError` if the table has no commit of rows yet."""
    derived = source.location.is_derived(asset)
    pinned = schema_of(snapshot.metadata, derived=derived)
    if pinned is None:
        raise _nothing(source, asset)
    own = LINEAGE.fields[: 1 if derived else None]
    return StructType(own + StructType.fromJson(json.loads(pinned.rows)).fields)


def columns_of_changes(table: StructType) -> StructType:
    """Returns the columns of a table, and the additional columns of its changes.

    Raises the errors of `row_changes.with_changes`.
    """
    with_changes(pa.schema([(name, pa.null()) for name in table.names]))
    return StructType([*table.fields, *from_arrow_schema(CHANGE_COLUMNS).fields])


def _nothing(source: Source, asset: str | None) -> NotFoundError:
    what = f"the table of slot asset {asset!r}" if asset else f"the table of source {source.name!r}"
    return NotFoundError(f"{what} has no commit yet: materialize it first")
