"""Committed slots as one DataFrame, read in tasks by exactly the files that their heads name.

Neither the bucket nor the data is listed, and no s3a is needed. The columns are those of the table's pinned
schema; files written before a column existed give nulls.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.errors import CorruptError, NotFoundError
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import StoredObject
from s3notify_platform.slots import Slot
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.table.commit import SlotCommit, TableFile
from s3notify_platform.table.layout import Generation, TableLayout

LINEAGE: Final = (
    StructType().add("_slot", "integer").add("_key", "string").add("_etag", "string").add("_offset", "long")
)

REQUESTS_IN_FLIGHT: Final = 16
WINDOW_BYTES: Final = 32 << 20
WINDOW_FILES: Final = 64

Batches = Iterator[pa.RecordBatch]


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
    pinned = source.schemas(layout).head()
    if pinned is None:
        raise NotFoundError(f"the table of source {source.name!r} has no commit yet: materialize it first")
    schema = StructType(LINEAGE.fields + StructType.fromJson(json.loads(pinned.rows)).fields)
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
    return spread.mapInArrow(loader(source, layout, to_arrow_schema(schema, timezone="UTC")), schema)


def loader(source: Source, layout: TableLayout | None, output: pa.Schema) -> Callable[[Batches], Batches]:
    """The function of a task that loads slots, each at a generation or, without one, at its head."""
    output = pa.schema([field.with_nullable(True) for field in output])

    def run(batches: Batches) -> Batches:
        table = source.table(layout)
        wanted = [(Slot(row["slot"]), row["generation"]) for batch in batches for row in batch.to_pylist()]

        def commit_of(item: tuple[Slot, int | None]) -> SlotCommit | None:
            slot, generation = item
            if generation == 0:
                return None
            return table.head(slot) if generation is None else table.read(slot, Generation(generation))

        def body_of(item: tuple[Slot, TableFile]) -> bytes:
            key = table.layout.data(item[0], item[1].name)
            found = table.store.get(key)
            if not isinstance(found, StoredObject):
                raise CorruptError(f"{key}: named by the commit of slot {item[0]} and missing; restore it")
            return found.body

        with ThreadPoolExecutor(REQUESTS_IN_FLIGHT) as pool:
            commits = [commit for commit in pool.map(commit_of, wanted) if commit]
            files = [(commit.slot, file) for commit in commits for file in commit.files]
            for part in _windows(files):
                for (slot, _), body in zip(part, pool.map(body_of, part), strict=True):
                    for piece in pq.ParquetFile(pa.BufferReader(body)).iter_batches(batch_size=50_000):
                        yield _conformed(piece, slot, output)

    return run


def _windows(files: list[tuple[Slot, TableFile]]) -> Iterator[list[tuple[Slot, TableFile]]]:
    """Files that are fetched together: many small ones, or a large one alone."""
    part: list[tuple[Slot, TableFile]] = []
    for item in files:
        if part and sum(file.bytes for _, file in [*part, item]) > WINDOW_BYTES:
            yield part
            part = []
        part.append(item)
        if len(part) == WINDOW_FILES:
            yield part
            part = []
    if part:
        yield part


def _conformed(piece: pa.RecordBatch, slot: Slot, output: pa.Schema) -> pa.RecordBatch:
    count = piece.num_rows
    columns = []
    for field in output:
        if field.name == "_slot":
            columns.append(pa.repeat(pa.scalar(slot, pa.int32()), count))
        elif field.name in piece.schema.names:
            columns.append(pc.cast(piece.column(field.name), field.type))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=output)
