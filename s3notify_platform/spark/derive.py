"""Downstream slot tables: a function of the committed rows of a slot, committed the same way.

The function gets the rows of the wanted slots as one DataFrame and keeps the `_slot` column; what it returns
for a slot replaces that slot of the derived table as a whole, under the next generation. A derived commit
names the source generation it was made from, so that making it twice changes nothing.
"""

import io
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from s3notify_platform.clock import SYSTEM_CLOCK, unique_name
from s3notify_platform.errors import S3NotifyError, UnavailableError, UsageError
from s3notify_platform.ingest.results import SlotResult
from s3notify_platform.ingest.rounds import StagedTable
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.run_state import Progress
from s3notify_platform.ingest.slot_writer import slot_pieces
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import WRITTEN, FailedSlot, StagedSlot, WrittenFile
from s3notify_platform.ports import Written
from s3notify_platform.slots import Slot
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.jobs import MAX_FAILED_JOBS, MAX_SPLIT_JOBS
from s3notify_platform.spark.load import LINEAGE, load_slots
from s3notify_platform.spark.session import parallelism
from s3notify_platform.table.commit import SlotCommit, TableFile
from s3notify_platform.table.layout import Generation


def derived_tables(
    spark: SparkSession,
    source: Source,
    asset: str,
    function: Transform,
    generations: Mapping[Slot, Generation],
    *,
    batch: str,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[StagedTable]:
    """What the slot asset `asset` makes of exactly these source generations, in one piece, or more if it fails.

    A slot that was made from its generation, or a later one, is left as it is, unless `force`: for runs that a person
    asked for, since the function may have become another one. A function that raises or loses `_slot` is tried again
    with halves of the slots, so that a slot at fault fails alone. Requests for each slot: 1 LIST and 2 GETs or more to
    read, 1 PUT or more to write.
    """
    todo = [generations] if generations else []
    jobs = failed = 0
    while todo:
        part = todo.pop()
        jobs += 1
        try:
            staged = _derived(spark, source, asset, function, part, batch=batch, force=force)
        except S3NotifyError as error:
            failed += 1
            hopeless = failed == jobs >= MAX_FAILED_JOBS or jobs >= MAX_SPLIT_JOBS
            if len(part) > 1 and not hopeless:
                progress(f"{asset} of {len(part)} slots failed, trying halves: {error}")
                both = list(part.items())
                todo += [dict(both[len(both) // 2 :]), dict(both[: len(both) // 2])]
                continue
            staged = StagedTable(
                name=asset,
                table=source.table(source.location.derived_layout(asset)),
                planned_at=SYSTEM_CLOCK.monotonic(),
                unchanged={slot: SlotResult(slot=slot, status="unchanged") for slot in part},
                staged=[FailedSlot(slot=slot, error=f"{asset}: {error}") for slot in part],
            )
        yield staged


def _derived(
    spark: SparkSession,
    source: Source,
    asset: str,
    function: Transform,
    generations: Mapping[Slot, Generation],
    *,
    batch: str,
    force: bool,
) -> StagedTable:
    planned_at = SYSTEM_CLOCK.monotonic()
    table = source.table(source.location.derived_layout(asset))
    heads = table.heads(generations)
    wanted = {
        slot: generation
        for slot, generation in generations.items()
        if generation and (force or (head := heads[slot]) is None or head.source_generation < generation)
    }
    unchanged = {slot: _unchanged(slot, head) for slot, head in heads.items()}
    if not wanted:
        return StagedTable(name=asset, table=table, planned_at=planned_at, unchanged=unchanged)
    try:
        frame = function(load_slots(spark, source, wanted, generations=wanted))
        names = frame.columns
    except S3NotifyError:
        raise
    except Exception as error:
        raise UsageError(f"slot asset {asset!r} raised {type(error).__name__}: {error}") from error
    if "_slot" not in names:
        raise UsageError(f"slot asset {asset!r} drops _slot, which says where a row belongs: keep it")
    staged = staged_frame(spark, source, asset, frame, wanted, batch=batch)
    staged.unchanged = unchanged
    return staged


def staged_frame(
    spark: SparkSession,
    source: Source,
    asset: str,
    frame: DataFrame,
    slots: Mapping[Slot, Generation],
    *,
    batch: str,
) -> StagedTable:
    """Stage `frame`, which has a `_slot` column, as the whole content of `slots` in the derived table `asset`.

    `slots` gives for each the source generation it was made from, 0 if that is not known. Rows of other slots
    are refused with `UsageError`: nothing becomes visible.
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

    def staged(slot: Slot) -> StagedSlot:
        files = tuple(written.get(slot, ()))
        commit = SlotCommit.after(
            heads[slot],
            slot,
            batch=batch,
            clock=SYSTEM_CLOCK,
            files=files,
            schema=pinned.generation,
            source_generation=slots[slot],
        )
        size = sum(file.bytes for file in files)
        return StagedSlot(slot=slot, commit=commit.staged(), rows=commit.rows, bytes=size)

    return StagedTable(
        name=asset,
        table=table,
        planned_at=planned_at,
        unchanged={slot: _unchanged(slot, head) for slot, head in heads.items()},
        staged=[*map(staged, slots)],
        made_from=slots,
    )


def _unchanged(slot: Slot, head: SlotCommit | None) -> SlotResult:
    return SlotResult(slot=slot, status="unchanged", generation=Generation(head.generation if head else 0))


def _write(frame: DataFrame, source: Source, asset: str, tasks: int) -> dict[Slot, list[TableFile]]:
    written: dict[Slot, list[TableFile]] = {}
    staged = (
        frame.repartition(tasks, "_slot")
        .sortWithinPartitions("_slot")
        .mapInArrow(_writer(source, asset), WRITTEN.ddl)
    )
    try:
        found = staged.toArrow()
    except PySparkException as error:
        lines = [line for line in str(error.getMessage() or error).splitlines() if line.strip()]
        raise UsageError(f"slot asset {asset!r} failed: {lines[-1] if lines else error}") from error
    for row in WRITTEN.read(found.to_batches()):
        written.setdefault(row.slot, []).append(row.file)
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
            file = TableFile(name=name, rows=rows.num_rows, bytes=len(body))
            yield WRITTEN.batch([WrittenFile(slot=current, file=file)])

        for slot, piece in slot_pieces(batches):
            if slot != current:
                yield from flush()
                current, waiting = slot, []
            waiting.append(piece)
        yield from flush()

    return run
