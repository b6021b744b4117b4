"""Downstream slot tables: a function of the committed rows of a slot, committed the same way.

The function gets the rows of the wanted slots as one DataFrame and keeps the `_slot` column; what it returns
for a slot replaces that slot of the derived table as a whole, under the next generation. A derived commit
names the source generation it was made from, so that making it twice changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import S3NotifyError, UsageError
from s3notify_platform.ingest.results import Progress, SlotResult
from s3notify_platform.ingest.rounds import StagedTable
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.slot_files import new_files
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.unforeseen import trace_of
from s3notify_platform.ingest.wire import WRITTEN, FailedSlot, StagedSlot, WrittenFile, slot_pieces
from s3notify_platform.slots import Slot
from s3notify_platform.spark.any_names import map_in_arrow
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.failures import in_halves, reason_of
from s3notify_platform.spark.load import LINEAGE, load_slots
from s3notify_platform.spark.session import parallelism
from s3notify_platform.table.commit import SlotCommit, SlotTable, TableFile
from s3notify_platform.table.heads import NONE_KNOWN
from s3notify_platform.table.layout import Generation


def derived_tables(
    spark: SparkSession,
    source: Source,
    asset: str,
    function: Transform,
    generations: Mapping[Slot, Generation],
    *,
    batch: str,
    table_id: str = "",
    force: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[StagedTable]:
    """What the slot asset `asset` makes of exactly these source generations, in one piece, or more if it fails.

    A slot that was made from its generation, or a later one, is left as it is, unless `force`: for runs that a person
    asked for, since the function may have become another one. A function that raises or loses `_slot` is tried again
    with halves of the slots, so that a slot at fault fails alone. `table_id`: of the source's table.

    Requests for each slot: 1 LIST (or 1 HEAD, if its head is remembered) and 2 GETs or more to read, 1 PUT or more to
    write.
    """
    table = source.table(source.location.table_layout(asset), table_id=table_id)

    def derived(slots: Sequence[Slot]) -> StagedTable:
        base = _Base.read(asset, table, slots)
        wanted = {
            slot: generations[slot]
            for slot in slots
            if generations[slot]
            and (force or (head := base.heads[slot]) is None or head.source_generation < generations[slot])
        }
        if not wanted:
            return base.staged()
        try:
            frame = function(load_slots(spark, source, wanted, generations=wanted))
            names = frame.columns
        except S3NotifyError:
            raise
        except Exception as error:
            raise UsageError(f"slot asset {asset!r} raised {type(error).__name__}: {error}") from error
        if "_slot" not in names:
            raise UsageError(f"slot asset {asset!r} drops _slot, which says where a row belongs: keep it")
        return _staged(spark, source, base, frame, wanted, batch=batch)

    def failed(slots: Sequence[Slot], error: Exception) -> StagedTable:
        trace = trace_of(error.__cause__) if error.__cause__ else ""
        if trace:
            progress(f"{asset} of slot {slots[0]}: {trace}")
        rows = [FailedSlot(slot=slot, error=f"{asset}: {reason_of(error)}", trace=trace) for slot in slots]
        return _Base(asset=asset, table=table, heads=dict.fromkeys(slots)).staged(rows)

    return in_halves(
        [[*generations]], derived, failed, errors=(S3NotifyError,), what=asset, progress=progress
    )


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
    base = _Base.read(asset, source.table(source.location.table_layout(asset)), slots)
    return _staged(spark, source, base, frame, slots, batch=batch)


@dataclass(frozen=True, kw_only=True)
class _Base:
    """What the commits to a derived table are made on top of, read at a monotonic time."""

    asset: str
    table: SlotTable
    heads: Mapping[Slot, SlotCommit | None]
    planned_at: float = field(default_factory=SYSTEM_CLOCK.monotonic)

    @classmethod
    def read(cls, asset: str, table: SlotTable, slots: Iterable[Slot]) -> Self:
        planned_at = SYSTEM_CLOCK.monotonic()
        return cls(asset=asset, table=table, heads=table.heads(slots), planned_at=planned_at)

    def staged(
        self, rows: Sequence[StagedSlot | FailedSlot] = (), made_from: Mapping[Slot, Generation] = NONE_KNOWN
    ) -> StagedTable:
        return StagedTable(
            name=self.asset,
            table=self.table,
            planned_at=self.planned_at,
            unchanged={slot: _unchanged(slot, head) for slot, head in self.heads.items()},
            staged=rows,
            made_from=made_from,
        )


def _staged(
    spark: SparkSession,
    source: Source,
    base: _Base,
    frame: DataFrame,
    slots: Mapping[Slot, Generation],
    *,
    batch: str,
) -> StagedTable:
    asset = base.asset
    rows_schema = StructType([f for f in frame.schema if f.name not in LINEAGE.names])
    written = _write(frame, source, asset, min(parallelism(spark), len(slots)))
    if foreign := sorted(written.keys() - slots.keys()):
        raise UsageError(
            f"slot asset {asset!r} made rows of slot {foreign[0]}, which is not of this run: keep _slot as it "
            "is"
        )
    pinned = source.schemas(base.table.layout).pin(
        source="{}", rows=rows_schema.json(), inferred=False, batch=batch
    )
    assert pinned is not None, "only an inferred source has to be pinned again"

    def staged(slot: Slot) -> StagedSlot:
        files = tuple(written.get(slot, ()))
        commit = SlotCommit.after(
            base.heads[slot],
            slot,
            batch=batch,
            clock=SYSTEM_CLOCK,
            files=files,
            schema=pinned.generation,
            source_generation=slots[slot],
        )
        size = sum(file.bytes for file in files)
        result = SlotResult(slot=slot, status="committed", rows=commit.rows, bytes=size)
        return StagedSlot(commit=commit.staged(), result=result)

    return base.staged([*map(staged, slots)], slots)


def _unchanged(slot: Slot, head: SlotCommit | None) -> SlotResult:
    return SlotResult(slot=slot, status="unchanged", generation=Generation(head.generation if head else 0))


def _write(frame: DataFrame, source: Source, asset: str, tasks: int) -> dict[Slot, list[TableFile]]:
    def run(batches: Batches) -> Batches:
        table = source.table(source.location.table_layout(asset))
        for slot, pieces in groupby(slot_pieces(batches), key=itemgetter(0)):
            data, _ = new_files(table, slot, Generation(0))
            for _, piece in pieces:
                data.add(pa.Table.from_batches([piece]).drop_columns(["_slot"]))
            data.flush()
            yield WRITTEN.batch([WrittenFile(slot=slot, file=file) for file in data.written])

    written: dict[Slot, list[TableFile]] = {}
    try:
        by_slot = frame.repartition(tasks, "_slot").sortWithinPartitions("_slot")
        found = map_in_arrow(by_slot, run, WRITTEN.ddl).toArrow()
    except PySparkException as error:
        lines = [line for line in str(error.getMessage() or error).splitlines() if line.strip()]
        raise UsageError(f"slot asset {asset!r} failed: {lines[-1] if lines else error}") from error
    for row in WRITTEN.read(found.to_batches()):
        written.setdefault(row.slot, []).append(row.file)
    return written
