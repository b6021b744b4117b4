"""Committed slots as one DataFrame, read in tasks by exactly the files that their heads name.

Neither the bucket nor the data is listed, and no s3a is needed. The columns are those of the table's pinned
schema; files written before a column existed give nulls.
"""

import json
import pickle
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from s3notify_platform.errors import CorruptError, NotFoundError
from s3notify_platform.ingest.fetch import windows
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.source import Source
from s3notify_platform.limits import BATCH_BYTES, MAX_CELLS
from s3notify_platform.parallel import readers
from s3notify_platform.ports import StoredObject
from s3notify_platform.slots import Slot
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.versions import to_arrow_schema
from s3notify_platform.table.commit import SlotCommit, SlotTable, TableFile
from s3notify_platform.table.layout import Generation, TableLayout
from s3notify_platform.table.reader import in_slices

LINEAGE: Final = (
    StructType().add("_slot", "integer").add("_key", "string").add("_etag", "string").add("_offset", "long")
)

REQUESTS_IN_FLIGHT: Final = 16
WINDOW_FILES: Final = 64


def load_slots(
    spark: SparkSession,
    source: Source,
    slots: Iterable[Slot],
    *,
    layout: TableLayout | None = None,
    generations: Mapping[Slot, Generation] | None = None,
) -> DataFrame:
    """The live rows of `slots`, with `_slot`, `_key`, `_etag` and `_offset`.

    With `generations`, exactly those (no LIST at all); else each task takes the head of each slot as it reads
    it. `NotFoundError` if nothing was ever committed. Driver: 1 LIST + 1 GET; tasks: for each slot 1 GET
    (and 1 LIST without `generations`), and 1 GET for each file.
    """
    ship_package(spark)
    pickle.dumps(source)  # `UsageError` for keys given by value
    schema = table_schema(source, layout)
    wanted = sorted(set(slots))
    tasks = max(1, min(len(wanted), 2 * parallelism(spark)))
    frame = pa.table(
        {
            "task": pa.array([n % tasks for n in range(len(wanted))], pa.int32()),
            "slot": pa.array(wanted, pa.int32()),
            "generation": pa.array([(generations or {}).get(slot) for slot in wanted], pa.int64()),
        }
    )
    spread = spark.createDataFrame(frame).repartitionById(tasks, "task")
    output = to_arrow_schema(schema)

    def run(batches: Batches) -> Batches:
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from read_slots(source.table(layout), ((r["slot"], r["generation"]) for r in rows), output)

    return spread.mapInArrow(run, schema)


def table_schema(source: Source, layout: TableLayout | None = None) -> StructType:
    """The columns of committed rows; `NotFoundError` if nothing was ever committed. 1 LIST + 1 GET."""
    pinned = source.schemas(layout).head()
    if pinned is None:
        raise NotFoundError(f"the table of source {source.name!r} has no commit yet: materialize it first")
    return StructType(LINEAGE.fields + StructType.fromJson(json.loads(pinned.rows)).fields)


def read_slots(
    table: SlotTable, wanted: Iterable[tuple[Slot, Generation | None]], output: pa.Schema
) -> Batches:
    """The rows of slots, each at a generation or, without one, at its head, with the columns of `output`.

    `BATCH_BYTES` at a time: a JVM takes in a batch as a whole.
    """
    output = pa.schema([field.with_nullable(True) for field in output])

    def commit_of(item: tuple[Slot, Generation | None]) -> SlotCommit | None:
        slot, generation = item
        if generation == 0:
            return None
        return table.head(slot) if generation is None else table.read(slot, generation)

    def body_of(item: tuple[Slot, TableFile]) -> bytes:
        key = table.layout.data(item[0], item[1].name)
        found = table.store.get(key)
        if not isinstance(found, StoredObject):
            raise CorruptError(f"{key}: named by the commit of slot {item[0]} and missing; restore it")
        return found.body

    at_once = max(1, min(50_000, MAX_CELLS // len(output)))
    with readers(REQUESTS_IN_FLIGHT) as pool:
        commits = [commit for commit in pool.map(commit_of, wanted) if commit]
        files = [(commit.slot, file) for commit in commits for file in commit.files]
        for part in windows(files, lambda item: item[1].bytes, most=WINDOW_FILES):
            for (slot, _), body in zip(part, pool.map(body_of, part), strict=True):
                for piece in pq.ParquetFile(pa.BufferReader(body)).iter_batches(batch_size=at_once):
                    given = dict(zip(piece.schema.names, piece.columns, strict=True))
                    given["_slot"] = pa.repeat(pa.scalar(slot, pa.int32()), piece.num_rows)
                    yield from in_slices(shaped(output, piece.num_rows, given), BATCH_BYTES)


def shaped(output: pa.Schema, count: int, given: Mapping[str, Any]) -> pa.RecordBatch:
    """Rows with the columns of `output`: those that are given, cast to its types, and nulls in place of others."""

    def column(wanted: pa.Field) -> pa.Array:
        values = given.get(wanted.name)
        if values is None:
            return pa.nulls(count, wanted.type)
        return values.cast(wanted.type) if isinstance(values, pa.Array) else pa.array(values, wanted.type)

    return pa.RecordBatch.from_arrays([*map(column, output)], schema=output)
