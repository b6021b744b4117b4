"""Downstream slot tables: a function of the committed rows of a slot, committed the same way.

The function gets the rows of the wanted slots as one DataFrame and keeps the `_slot` column; what it returns
for a slot replaces that slot of the derived table as a whole, under the next generation. A derived commit
names the source generation it was made from, so that making it twice changes nothing.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from s3notify_platform.clock import SYSTEM_CLOCK, unique_name
from s3notify_platform.errors import S3NotifyError, UnavailableError, UsageError
from s3notify_platform.ingest.results import SlotResult
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.slots import Slot
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.ingest import COMMITS_IN_FLIGHT
from s3notify_platform.spark.load import LINEAGE, load_slots
from s3notify_platform.spark.session import parallelism
from s3notify_platform.spark.stage import slot_pieces
from s3notify_platform.table.commit import SlotCommit, SlotTable, TableFile
from s3notify_platform.table.layout import Generation

_WRITTEN: Final = "slot int, name string, rows bigint, bytes bigint"

Batches = Iterator[pa.RecordBatch]


def derive(
    spark: SparkSession,
    source: Source,
    asset: str,
    function: Transform,
    generations: Mapping[Slot, Generation],
    *,
    batch: str,
    force: bool = False,
) -> dict[Slot, SlotResult]:
    """Commit the derived table `asset` for the slots of `generations`, from exactly these source generations.

    A slot that was made from its generation, or a later one, is left as it is, unless `force`. `UsageError` if
    the function raises or loses `_slot`. Requests for each slot: 1 LIST and 2 GETs or more to read, 2 PUTs to
    write.
    """
    table = source.table(source.location.derived_layout(asset))
    heads = table.heads(generations)
    wanted = {
        slot: generation
        for slot, generation in generations.items()
        if generation and (force or (head := heads[slot]) is None or head.source_generation < generation)
    }
    results = {
        slot: SlotResult(slot=slot, status="unchanged", generation=Generation(head.generation if head else 0))
        for slot, head in heads.items()
    }
    if not wanted:
        return results
    try:
        frame = function(load_slots(spark, source, wanted, generations=wanted))
        names = frame.columns
    except S3NotifyError:
        raise
    except Exception as error:
        raise UsageError(f"slot asset {asset!r} raised {type(error).__name__}: {error}") from error
    if "_slot" not in names:
        raise UsageError(f"slot asset {asset!r} drops _slot, which says where a row belongs: keep it")
    return results | replace_slots(spark, source, asset, frame, wanted, batch=batch)


def replace_slots(
    spark: SparkSession,
    source: Source,
    asset: str,
    frame: DataFrame,
    slots: Mapping[Slot, Generation],
    *,
    batch: str,
) -> dict[Slot, SlotResult]:
    """Make `frame`, which has a `_slot` column, the whole content of `slots` in the derived table `asset`.

    `slots` gives for each the source generation it was made from, 0 if that is not known. Rows of other slots
    are refused with `UsageError` before anything is visible.
    """
    planned_at = SYSTEM_CLOCK.monotonic()
    layout = source.location.derived_layout(asset)
    table = source.table(layout)
    heads = table.heads(slots)
    rows_schema = StructType([f for f in frame.schema if f.name not in LINEAGE.names])
    written = _write(frame, source, asset, min(parallelism(spark), len(slots)))
    if foreign := sorted(written.keys() - slots.keys()):
        raise UsageError(
            f"slot asset {asset!r} made rows of slot {foreign[0]}, which is not of this run: keep _slot as it "
            "is"
        )
    pinned = source.schemas(layout).pin(source="{}", rows=rows_schema.json(), inferred=False, batch=batch)
    assert pinned is not None, "only an inferred source has to be pinned again"

    def commit(slot: Slot) -> SlotResult:
        head = heads[slot]
        files = tuple(
            TableFile(name=f["name"], rows=f["rows"], bytes=f["bytes"]) for f in written.get(slot, ())
        )
        commit = SlotCommit.after(
            head,
            slot,
            batch=batch,
            clock=SYSTEM_CLOCK,
            files=files,
            schema=pinned.generation,
            source_generation=slots[slot],
        )
        try:
            outcome = table.commit(commit.staged(), planned_at=planned_at)
        except S3NotifyError as error:
            return SlotResult(slot=slot, status="failed", error=f"{type(error).__name__}: {error}")
        if isinstance(outcome, Conflict) and not (slots[slot] and _made_from(table, slot, slots[slot])):
            return SlotResult(slot=slot, status="failed", error="another run committed this slot first")
        return SlotResult(
            slot=slot,
            status="committed",
            generation=commit.generation,
            rows=commit.rows,
            bytes=sum(file.bytes for file in files),
            live_rows=commit.rows,
            live_files=len(files),
        )

    with ThreadPoolExecutor(COMMITS_IN_FLIGHT) as pool:
        return dict(zip(slots, pool.map(commit, slots), strict=True))


def _made_from(table: SlotTable, slot: Slot, generation: Generation) -> bool:
    head = table.head(slot)
    return head is not None and head.source_generation >= generation


def _write(frame: DataFrame, source: Source, asset: str, tasks: int) -> dict[Slot, list[dict[str, Any]]]:
    written: dict[Slot, list[dict[str, Any]]] = {}
    staged = (
        frame.repartition(tasks, "_slot")
        .sortWithinPartitions("_slot")
        .mapInArrow(_writer(source, asset), _WRITTEN)
    )
    try:
        rows = staged.toArrow().to_pylist()
    except PySparkException as error:
        lines = [line for line in str(error.getMessage() or error).splitlines() if line.strip()]
        raise UsageError(f"slot asset {asset!r} failed: {lines[-1] if lines else error}") from error
    for row in rows:
        written.setdefault(Slot(row["slot"]), []).append(row)
    return written


def _writer(source: Source, asset: str) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        table = source.table(source.location.derived_layout(asset))
        current: Slot | None = None
        waiting: list[pa.RecordBatch] = []

        def flush() -> Batches:
            if current is None or not waiting:
                return
            rows = pa.Table.from_batches(waiting).drop_columns(["_slot"])
            sink = io.BytesIO()
            pq.write_table(rows, sink, compression="zstd")
            name, body = unique_name(SYSTEM_CLOCK), sink.getvalue()
            if not isinstance(table.store.put(table.layout.data(current, name), body), Written):
                raise UnavailableError(f"slot {current} of {asset!r}: the store did not confirm a write")
            yield pa.record_batch(
                {
                    "slot": pa.array([current], pa.int32()),
                    "name": pa.array([name]),
                    "rows": pa.array([rows.num_rows], pa.int64()),
                    "bytes": pa.array([len(body)], pa.int64()),
                }
            )

        for slot, piece in slot_pieces(batches):
            if slot != current:
                yield from flush()
                current, waiting = slot, []
            waiting.append(piece)
        yield from flush()

    return run
