"""Runs the engine's work as Spark jobs, which plan, infer a schema, or read and stage. Only outcomes and packs reach
the driver, never rows.

A staging job that fails as a whole is tried again in halves, down to one slot (`failures.in_halves`). If the task that
died has read only one slot, this slot is tried alone next. When a slot has failed alone, its objects are tried in
halves, down to the object at fault. Two kinds of failures start this search. In the first kind, a task dies, by a
signal or for lack of memory. In the second kind, a user's transform or a file writer raises an unexpected exception.
"""

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.plan.compare import comparer, follow, lister
from s3notify_platform.engine.plan.listing_chains import begin_listing
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.read.splits import assign_splits, cut, work_rows
from s3notify_platform.engine.run_state import Reading, Run
from s3notify_platform.engine.stage.collect import Collected, StagedPart
from s3notify_platform.engine.stage.staging import (
    STAGED_COLUMN,
    reading_task,
    said_of,
    staging_task,
    storing_task,
)
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.results import Progress, without_keys
from s3notify_platform.engine.values.slot_plan import PLANNED, Plan, SlotPlan, planned_in
from s3notify_platform.engine.values.task_rows import (
    LINEAGE_COLUMNS,
    LISTED,
    STAGED,
    WORK,
    FailedSlot,
)
from s3notify_platform.engine.values.unforeseen import described
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.limits import MAX_REASON
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, TopicUser
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.source import Source
from s3notify_platform.spark.any_names import map_in_arrow
from s3notify_platform.spark.batch_schema import BatchSchemas, Transform
from s3notify_platform.spark.declared import arrow_schema, json_schema
from s3notify_platform.spark.failures import (
    JOB_ERRORS,
    MAX_JOBS,
    TransformError,
    failed_slot,
    in_halves,
    is_death,
    own_errors,
    reason_of,
    task_of,
)
from s3notify_platform.spark.memory_limit import limited
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.table.column_names import bare_names, object_names
from s3notify_platform.table.open_table import OpenTable
from s3notify_platform.table.pinned_schema import TableSchema, size_of


class SparkJobs:
    """Runs the jobs of one run of the engine on Spark. Implements `engine.jobs.Jobs`, with a Spark session.

    `width`: the number of concurrent tasks; by default the cluster's capacity when a job begins.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        *,
        transform: Transform | None = None,
        width: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
        progress: Progress = lambda _: None,
    ) -> None:
        ship_package(spark)
        # Before any write, this raises `UsageError` if the source holds access keys instead of their names.
        pickle.dumps(source)
        self._spark = spark
        self._source = source
        self._transform = transform
        self._width = width
        self._schemas = BatchSchemas(
            spark=spark, source=source, transform=transform, clock=clock, progress=progress
        )
        self.choose_schema, self.widen_schema = self._schemas.choose, self._schemas.widen
        self._clock = clock
        self._progress = progress
        self._reading: dict[int, set[Slot]] = {}
        """The slots that each task of the last job read, if the job had one stage."""
        self._tried_apart = 0

    @property
    def width(self) -> int:
        """The number of concurrent tasks."""
        return self._width or parallelism(self._spark)

    # Plan

    def plan(
        self,
        slots: Iterable[Slot],
        base: Base,
        *,
        entries: Sequence[Entry] | None = None,
        skip: frozenset[str] = frozenset(),
        user: TopicUser | None = None,
    ) -> Plan:
        """See `Jobs.plan`. If a task ended with an error of this package, `plan` raises this error."""
        source, spark, wanted = self._source, self._spark, sorted(set(slots))
        quota = max(1, -(-source.input.max_objects // max(1, len(wanted))))
        table, snapshot = base.table, base.snapshot
        if entries is not None:
            rows = follow(source, table, snapshot, wanted, entries, quota=quota, skip=skip)
            return Plan.of(rows)
        width = self.width
        begun_listing = begin_listing(source, frozenset(wanted), width, snapshot, table, user=user)
        if begun_listing.is_small:
            compare = comparer(source, snapshot.manifest, wanted, tasks=1, quota=quota, skip=skip)
            listed = pa.Table.from_batches(begun_listing.rows).sort_by("slot").to_batches()
            return Plan.of(planned_in(compare(iter(listed))), chains=1)
        frame = spark.createDataFrame(pa.Table.from_batches(begun_listing.rows))
        if parts := begun_listing.parts:
            task = lister(source, frozenset(wanted), parts, begun_listing.cuts)
            frame = frame.union(self._tasks(len(parts)).mapInArrow(task, LISTED.ddl))
        groups = max(1, min(width, len(wanted)))
        # These groups equal the groups of `group_of`. Rows without a slot go to the first group.
        group = F.coalesce(F.floor(F.col("slot") * groups / source.location.slots), F.lit(0)).cast("int")
        manifest = replace(snapshot.manifest, rejects=(), changes=(), changes_file=None)
        planned = (
            frame.repartitionById(groups, group)
            .sortWithinPartitions("slot")
            .mapInArrow(comparer(source, manifest, wanted, tasks=groups, quota=quota, skip=skip), PLANNED)
        )
        with own_errors():
            return Plan.of(planned_in(planned.toArrow().to_batches()), chains=begun_listing.chains)

    def _tasks(self, count: int) -> DataFrame:
        """Returns a DataFrame with one row for each task number, and each row in its own Spark partition."""
        return self._spark.range(0, count, 1, count)

    # Read and stage

    def stage(
        self, busy: Sequence[SlotPlan], schema: TableSchema, run: Run, *, label: int
    ) -> list[StagedPart]:
        """See `Jobs.stage`. A failing job is divided until each slot at fault fails alone; see `_in_part`."""
        started = self._clock.monotonic()

        def failed(part: Sequence[SlotPlan], error: Exception) -> StagedPart:
            first = _failed(part[0].slot, error, _splits(part))
            if len(part) == 1 and first.by_object:
                return self._in_part(part[0], first, schema, run, label)
            return StagedPart(plans=part, failed={p.slot: replace(first, slot=p.slot) for p in part})

        staged = in_halves(
            [busy],
            lambda part: self._staged(part, schema, run, label),
            failed,
            errors=JOB_ERRORS,
            what="a job",
            progress=self._progress,
            suspect=self._suspect,
            reason=lambda part, error: without_keys(reason_of(error), _keys(_splits(part))),
        )
        parts = [*staged]
        run.result.took("job", self._clock.monotonic() - started)
        return parts

    def _suspect(self, part: Sequence[SlotPlan], error: Exception) -> SlotPlan | None:
        """Returns the slot of the task that died, if the task read no other slot."""
        task = task_of(error) if is_death(error) else None
        slots = self._reading.get(task, set()) if task is not None else set()
        return next((p for p in part if p.slot in slots), None) if len(slots) == 1 else None

    def _in_part(
        self, planned: SlotPlan, failure: FailedSlot, schema: TableSchema, run: Run, label: int
    ) -> StagedPart:
        """Stages a slot in which one object is at fault: tries half of its objects, then a quarter, and so on.

        The next round reads all other objects. If the slot fails with a single object, and a job without this object
        succeeds, the object counts as unreadable. If the job without the object fails, too, the slot fails: then the
        fault may be in the cluster, or in a transform that raises an error even without rows. A run makes at most
        `MAX_JOBS` of these jobs.
        """
        slot, read = planned.slot, planned.changes.read
        at_fault: tuple[Split, ...] = ()
        while read and failure.by_object and self._tried_apart < MAX_JOBS:
            self._tried_apart += 1
            tried = f"{len(read) // 2} of its objects" if len(read) > 1 else "the slot without this object"
            self._progress(f"slot {slot} failed, trying {tried}: {failure.error}")
            read, at_fault = (read[: len(read) // 2], ()) if len(read) > 1 else ((), read)
            whole = len(read) + len(at_fault) == len(planned.changes.read)
            changes = replace(planned.changes, read=read, complete=planned.changes.complete and whole)
            try:
                part = self._staged([replace(planned, changes=changes)], schema, run, label)
            except JOB_ERRORS as error:
                failure = _failed(slot, error, read)
                continue
            if part.failed:
                failure = part.failed[slot]
                continue
            changes = replace(changes, read=(*read, *at_fault))
            part.plans = [replace(planned, changes=changes)]
            part.outcomes = {
                **part.outcomes,
                **{split.version.key: _unreadable(split, failure) for split in at_fault},
            }
            return part
        return StagedPart(plans=[planned], failed={slot: failure})

    def _staged(self, part: Sequence[SlotPlan], schema: TableSchema, run: Run, label: int) -> StagedPart:
        """Stages these slots by one job."""
        found, splits = Collected(), _splits(part)
        columns = json_schema(bare_names(schema.source))
        reader = SplitReader(
            source=self._source,
            schema=arrow_schema(json_schema(object_names(schema.source))),
            named=arrow_schema(columns),
            inferred=schema.inferred,
            size=size_of(schema.source),
        )
        transform = self._transform
        if transform is None:
            if splits:
                task = staging_task(self._source, reader, label)
                frame = self._work(splits).mapInArrow(limited(task), STAGED.ddl)
                found.add(STAGED.read(frame.toArrow().to_batches()))
            outcomes = found.outcomes(whole=False)
        else:
            outcomes = self._transformed(splits, reader, columns, transform, found=found, label=label)
        run.result.tasks += found.tasks
        run.result.requests.update(found.requests)
        return found.part(part, outcomes, transformed=transform is not None)

    def _work(self, splits: Sequence[Split]) -> DataFrame:
        """Returns a DataFrame with the work of the tasks, in one Spark partition for each task."""
        ordered, tasks = assign_splits(
            [part for split in splits for part in cut(split, self._source)], self.width
        )
        self._reading = {}
        for split, task in zip(ordered, tasks, strict=True):
            self._reading.setdefault(task, set()).add(split.version.slot)
        rows = WORK.batch(work_rows(ordered, tasks))
        frame = self._spark.createDataFrame(pa.Table.from_batches([rows]))
        return frame.repartitionById(max(tasks, default=0) + 1, "task")

    def _transformed(
        self,
        splits: Sequence[Split],
        reader: SplitReader,
        columns: StructType,
        transform: Transform,
        *,
        found: Collected,
        label: int,
    ) -> dict[str, Outcome]:
        """Reads the splits, and writes the transform's result for the objects that were read completely.

        Returns the outcome of each object.
        """
        task = reading_task(self._source, reader, label)
        output = from_arrow_schema(reader.output).add(STAGED_COLUMN, "binary")
        if splits:
            read = self._work(splits).mapInArrow(limited(task), output)
        else:
            read = self._spark.createDataFrame([], output)
        # Rows and outcomes are separated here, and must come from the same read. Without the checkpoint, Spark would
        # read twice. An object that is overwritten between two reads would then count as read, but would have no rows.
        everything = read.localCheckpoint()
        said = everything.where(F.col(STAGED_COLUMN).isNotNull()).select(STAGED_COLUMN).toArrow()
        found.add(said_of(said[STAGED_COLUMN].to_pylist()))
        outcomes = found.outcomes(whole=True)
        bad = sorted(key for key, each in outcomes.items() if each.status != "ok")
        rows = everything.where(F.col(STAGED_COLUMN).isNull())
        if bad:
            rows = rows.where(~F.col("_key").isin(bad))
        rows = rows.select(*LINEAGE_COLUMNS, *map(_column, self._schemas.delivered(columns).names))
        try:
            made = transform(rows)
        except (S3NotifyError, *JOB_ERRORS):
            raise
        except Exception as error:
            raise TransformError(described(error)) from error
        slots = self._source.location.slots
        tasks = max(1, min(self.width, len({split.version.slot for split in splits})))
        # Each task gets a range of slots, so that the task's packs cover few slots. Every task refuses rows without a
        # slot.
        group = F.coalesce(F.floor(F.col("_slot") * tasks / slots), F.lit(0)).cast("int")
        within = F.least(F.greatest(group, F.lit(0)), F.lit(tasks - 1))
        ordered = made.repartitionById(tasks, within).sortWithinPartitions("_slot", "_key", "_offset")
        stored = map_in_arrow(ordered, storing_task(self._source, label), STAGED.ddl).toArrow()
        found.add(STAGED.read(stored.to_batches()))
        return outcomes


def spark_ingest(
    spark: SparkSession,
    source: Source,
    *,
    transform: Transform | None = None,
    clock: Clock = SYSTEM_CLOCK,
    progress: Progress = lambda _: None,
    reads: Callable[[Reading | None], None] = lambda _: None,
    opened: OpenTable | None = None,
    code_version: str = "",
) -> Ingest:
    """Returns the engine, whose jobs run on Spark. `opened`: the source's table, if it was opened before.

    `code_version`: the fingerprint of the transform's code, for a source that declares no code version.
    """
    jobs = SparkJobs(spark, source, transform=transform, clock=clock, progress=progress)
    return Ingest(
        jobs=jobs,
        source=source,
        clock=clock,
        progress=progress,
        reads=reads,
        code_version=code_version,
        opened=opened,
    )


def _failed(slot: Slot, error: Exception, splits: Sequence[Split]) -> FailedSlot:
    """Returns the failure of a slot, from the error of the job that read these splits. Keys are removed from the texts
    of the failure: a user's code may put `_key` into an error, and `erase` could not remove the key from the text that
    Dagster keeps.
    """
    found, keys = failed_slot(slot, error), _keys(splits)
    return replace(found, error=without_keys(found.error, keys), trace=without_keys(found.trace, keys))


def _keys(splits: Iterable[Split]) -> list[str]:
    return [split.version.key for split in splits]


def _unreadable(split: Split, failure: FailedSlot) -> Outcome:
    version = split.version
    return Outcome.whole(
        "failed",
        version.etag,
        version.size,
        start=split.start,
        reason=failure.error[:MAX_REASON],
        trace=failure.trace,
    )


def _splits(part: Iterable[SlotPlan]) -> list[Split]:
    return [split for slot_plan in part for split in slot_plan.changes.read]


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")
