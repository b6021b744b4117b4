"""The Spark jobs of the engine: plan, infer, and read and stage. Only manifests reach the driver.

A staging job that fails as a whole is tried again in halves, down to one slot (`failures.in_halves`); one over which a
task died that read of no other is tried alone at once. If a task dies over one slot, by a signal or for want of memory,
or if anything raises what nobody foresaw, a user's transform or the writing of files, it goes on by the objects of the
slot, down to the one at fault.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import ConflictError, S3NotifyError
from s3notify_platform.ingest.compare import comparer, follow, lister
from s3notify_platform.ingest.engine import Ingest
from s3notify_platform.ingest.listing_chains import begin_listing
from s3notify_platform.ingest.outcome import Outcome
from s3notify_platform.ingest.part_writer import part_writer
from s3notify_platform.ingest.plan import Plan, SlotPlan, collected
from s3notify_platform.ingest.reader import SplitReader, read_task
from s3notify_platform.ingest.results import Progress, Reading, Run
from s3notify_platform.ingest.slot_writer import StageContext, read_stager, stager
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.splits import (
    Assigned,
    assign_splits,
    begun,
    cut,
    cut_all,
    is_big,
    scouter,
    work_rows,
)
from s3notify_platform.ingest.task_chain import CHILDREN_MAX, TaskChain, object_children
from s3notify_platform.ingest.unforeseen import REASON_MAX, described
from s3notify_platform.ingest.wire import (
    LINEAGE_COLUMNS,
    LISTED,
    PLANNED,
    READ,
    SCOUTED,
    STAGED,
    WORK,
    FailedSlot,
    Lineage,
    ReadObject,
    Requests,
    Staged,
    StagedSlot,
)
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.spark.any_names import map_in_arrow
from s3notify_platform.spark.batch_schema import BatchSchemas, Transform, json_schema
from s3notify_platform.spark.declared import arrow_schema
from s3notify_platform.spark.failures import (
    JOB_ERRORS,
    MAX_JOBS,
    TransformError,
    failed_slot,
    in_halves,
    is_death,
    own_errors,
    task_of,
)
from s3notify_platform.spark.memory import limited
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.table.heads import NONE_KNOWN
from s3notify_platform.table.known import OpenTable
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.schema import TableSchema, size_of


class SparkJobs:
    """What the engine has Spark do, for one run. Implements `ingest.engine.Jobs`; holds a Spark session.

    `width`: tasks that run at once; by default those that the cluster has room for whenever a job begins.
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
        pickle.dumps(source)  # `UsageError` for keys given by value, before anything is written
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
        """Of which slots each task of the last job read, if the job was of one stage."""
        self._tried_apart = 0

    @property
    def width(self) -> int:
        """Tasks that run at once."""
        return self._width or parallelism(self._spark)

    # Plan

    def plan(
        self,
        slots: Iterable[Slot],
        *,
        listing: bool = True,
        skip: frozenset[str] = frozenset(),
        recalled: Mapping[Slot, Generation] = NONE_KNOWN,
        user: TopicUser | None = None,
    ) -> Plan:
        """See `Jobs.plan`. Raises the error of this package that a task ended with."""
        source, spark, wanted = self._source, self._spark, sorted(set(slots))
        quota = max(1, -(-source.input.max_objects // max(1, len(wanted))))
        if not listing:
            return collected(source.name, follow(source, wanted, quota, skip, recalled, user=user))
        width = self.width
        begun_listing = begin_listing(source, frozenset(wanted), width, recalled, user=user)
        frame = spark.createDataFrame(pa.Table.from_batches([LISTED.batch(begun_listing.rows)]))
        if parts := begun_listing.parts:
            task = lister(source, frozenset(wanted), parts, begun_listing.cuts)
            frame = frame.union(self._tasks(len(parts)).mapInArrow(task, LISTED.ddl))
        planned = (
            frame.repartition(max(1, min(width, len(wanted))), "slot")
            .sortWithinPartitions("slot")
            .mapInArrow(comparer(source, quota, skip), PLANNED.ddl)
        )
        with own_errors():
            found = collected(source.name, PLANNED.read(planned.toArrow().to_batches()))
        found.chains = begun_listing.chains
        return found

    def _tasks(self, count: int) -> DataFrame:
        """One row, and one Spark partition, for the number of each task."""
        return self._spark.range(0, count, 1, count)

    # Read and stage

    def stage(
        self, busy: Sequence[SlotPlan], schema: TableSchema, run: Run, *, evolving: bool
    ) -> list[Staged]:
        """See `Jobs.stage`. A failing job is halved until the slots at fault stand alone; see `_in_part`."""
        # Slots with big objects for themselves: the others need no shuffle.
        big = [p for p in busy if any(is_big(split, self._source) for split in p.changes.read)]
        others = [p for p in busy if p not in big]
        started = self._clock.monotonic()
        plans = {p.slot: p for p in busy}

        def in_part(row: Staged) -> Sequence[Staged]:
            if isinstance(row, FailedSlot) and row.by_object:
                return self._in_part(plans[row.slot], row, schema, run, evolving=evolving)
            return [row]

        def job(part: Sequence[SlotPlan]) -> Sequence[Staged]:
            rows = self._staged(part, schema, run, evolving=evolving)
            return [one for row in rows for one in in_part(row)]

        def failed(part: Sequence[SlotPlan], error: Exception) -> Sequence[Staged]:
            rows = [failed_slot(p.slot, error) for p in part]
            return in_part(rows[0]) if len(rows) == 1 else rows

        staged = in_halves(
            [big, others],
            job,
            failed,
            errors=(*JOB_ERRORS, ConflictError),  # a conflict: the chain was failed, or is gone
            what="a job",
            progress=self._progress,
            suspect=self._suspect,
        )
        rows = [row for of_job in staged for row in of_job]
        run.result.took("job", self._clock.monotonic() - started)
        return rows

    def _suspect(self, part: Sequence[SlotPlan], error: Exception) -> SlotPlan | None:
        """The slot over which a task died, if it read of no other one."""
        task = task_of(error) if is_death(error) else None
        slots = self._reading.get(task, set()) if task is not None else set()
        return next((p for p in part if p.slot in slots), None) if len(slots) == 1 else None

    def _in_part(
        self, planned: SlotPlan, failure: FailedSlot, schema: TableSchema, run: Run, *, evolving: bool
    ) -> Sequence[Staged]:
        """A slot that failed over one of its objects, staged with the first half of them, a quarter, and so on.

        The rest is for the next round. An object over which it fails when it is alone counts as one that cannot be
        read, once a job without it has succeeded: else it may be the cluster, or a transform that raises on no rows. At
        most `MAX_JOBS` such jobs in a run.
        """
        slot, read = planned.slot, planned.changes.read
        at_fault: tuple[Split, ...] = ()
        while read and failure.by_object and self._tried_apart < MAX_JOBS:
            self._tried_apart += 1
            tried = f"{len(read) // 2} of its objects" if len(read) > 1 else "it without this object"
            self._progress(f"slot {slot} failed, trying {tried}: {failure.error}")
            read, at_fault = (read[: len(read) // 2], ()) if len(read) > 1 else ((), read)
            whole = len(read) + len(at_fault) == len(planned.changes.read)
            changes = replace(planned.changes, read=read, complete=planned.changes.complete and whole)
            part = [replace(planned, changes=changes)]
            unread = {split.version.key: _unreadable(split, failure) for split in at_fault}
            try:
                rows = self._staged(part, schema, run, evolving=evolving, unread=unread)
            except JOB_ERRORS as error:
                failure = failed_slot(slot, error)
                continue
            if failed := [row for row in rows if isinstance(row, FailedSlot)]:
                failure = failed[0]
                continue
            return [
                replace(row, result=replace(row.result, complete=row.result.complete and whole))
                if isinstance(row, StagedSlot)
                else row
                for row in rows
            ]
        return [failure]

    def _staged(
        self,
        part: Sequence[SlotPlan],
        schema: TableSchema,
        run: Run,
        *,
        evolving: bool,
        unread: Mapping[str, ReadObject] | None = None,
    ) -> Sequence[Staged]:
        """What one job makes of these slots. `unread`: what became of further objects of theirs, by key."""
        objects = self._named(part)
        chain = TaskChain.opened(self._source, run.run, [p.slot for p in part], objects.values())
        try:
            with chain.watched(self._progress):
                frame = self._frame(part, objects, schema, run, chain, evolving=evolving, unread=unread or {})
                rows = [*STAGED.read(frame.toArrow().to_batches())]
            unsaid = chain.missing()
        finally:
            chain.forget()
        # Whether a row of theirs came along or not.
        staged: list[Staged] = [FailedSlot(slot=slot, error=_UNSAID) for slot in sorted(unsaid)]
        for row in rows:
            if isinstance(row, Requests):
                run.result.tasks += 1
                run.result.requests.update(row.requests)
            elif row.slot not in unsaid:
                staged.append(row)
        return staged

    def _named(self, part: Sequence[SlotPlan]) -> dict[str, str]:
        """The objects that the job's chain names: all; none if tasks stage what they read, or with too many."""
        splits = _splits(part)
        if self._transform is None and self._assigned(part, splits).together:
            return {}
        at_most = len(part) + len(splits) + sum(len(cut(split, self._source)) for split in splits)
        return object_children(splits) if at_most <= CHILDREN_MAX else {}

    def _assigned(self, part: Sequence[SlotPlan], work: Sequence[Split]) -> Assigned:
        return assign_splits([p.slot for p in part], work, self.width, self._source)

    def _in_parts(self, splits: Sequence[Split]) -> list[Split]:
        """The splits, big ones in parts that tasks read at once: all parts of an object in order.

        Where values may be quoted, one more job looks at each part first: one may be open where it begins. 1 GET for
        each chunk of such objects.
        """
        result, quoted = cut_all(splits, self._source)
        if quoted:
            tasks = min(len(quoted), self.width)
            task = scouter(self._source, quoted, tasks)
            scouted = self._tasks(tasks).mapInArrow(task, SCOUTED.ddl).toArrow()
            result += begun(quoted, SCOUTED.read(scouted.to_batches()))
        return result

    def _frame(
        self,
        part: Sequence[SlotPlan],
        objects: Mapping[str, str],
        schema: TableSchema,
        run: Run,
        chain: TaskChain,
        *,
        evolving: bool,
        unread: Mapping[str, ReadObject],
    ) -> DataFrame:
        slots = [p.slot for p in part]
        skipped = {slot_of(key, self._source.location.slots) for key in run.skip}
        work = self._in_parts(_splits(part))
        assigned = self._assigned(part, work)
        self._reading = {}
        rows = WORK.batch(work_rows(slots, assigned, chain.cut(objects, work) if objects else ()))
        # What each task has to do, one Spark partition for each.
        frame = self._spark.createDataFrame(pa.Table.from_batches([rows]))
        frame = frame.repartitionById(assigned.tasks, "task")
        columns = json_schema(schema.source)
        reader = SplitReader(
            source=self._source,
            schema=arrow_schema(columns),
            inferred=schema.inferred,
            size=size_of(schema.source),
        )
        context = StageContext(
            source=self._source,
            heads={p.slot: p.generation for p in part},
            gone={p.slot: p.changes.gone for p in part if p.changes.gone},
            expired=frozenset[str]().union(*(p.changes.expired for p in part)),
            signals={p.slot: run.signals[p.slot] for p in part if p.slot in run.signals},
            batch=run.batch,
            schema_generation=schema.generation,
            transformed=self._transform is not None,
            code_version=self._source.input.code_version or "",
            complete=frozenset(p.slot for p in part if p.changes.complete) - skipped,
            last_attempt=run.last_attempt.intersection(slots),
            seen_ms=run.seen_ms,
            planned_ms=run.planned_ms,
            evolving=evolving,
            unread=tuple(unread.values()),
            chain=chain,
        )
        if self._transform is not None:
            read = frame.mapInArrow(limited(read_task(reader, chain)), from_arrow_schema(reader.output))
            everything = self._transformed(read, self._schemas.delivered(columns), self._transform)
        elif assigned.together:
            for split, task in zip(assigned.splits, assigned.split_tasks, strict=True):
                self._reading.setdefault(task, set()).add(split.version.slot)
            return frame.mapInArrow(limited(read_stager(context, reader)), STAGED.ddl)
        else:
            everything = frame.mapInArrow(limited(part_writer(context, reader)), READ.ddl)
        by_slot = everything.repartition(min(self.width, len(part)), "_slot")
        by_slot = by_slot.sortWithinPartitions("_slot", "_kind", "_key", "_offset")
        return map_in_arrow(by_slot, stager(context), STAGED.ddl)

    @staticmethod
    def _transformed(everything: DataFrame, source: StructType, transform: Transform) -> DataFrame:
        # Rows and outcomes part here, and have to be of one read: without the checkpoint each would be read
        # for itself, and an object overwritten in between would count as read, without its rows.
        everything = everything.localCheckpoint()
        kind = READ.kind(Lineage)
        rows = everything.where(F.col("_kind") == kind).select(*LINEAGE_COLUMNS, *map(_column, source.names))
        control = everything.where(F.col("_kind") != kind).select(*READ.schema.names)
        try:
            marked = transform(rows).withColumn("_kind", F.lit(kind))
        except (S3NotifyError, *JOB_ERRORS):
            raise
        except Exception as error:
            raise TransformError(described(error)) from error
        return marked.unionByName(control, allowMissingColumns=True)


def spark_ingest(
    spark: SparkSession,
    source: Source,
    *,
    transform: Transform | None = None,
    clock: Clock = SYSTEM_CLOCK,
    progress: Progress = lambda _: None,
    reads: Callable[[Reading | None], None] = lambda _: None,
    opened: OpenTable | None = None,
) -> Ingest:
    """The engine, with Spark to work for it. `opened`: the source's table, if it was opened before."""
    jobs = SparkJobs(spark, source, transform=transform, clock=clock, progress=progress)
    return Ingest(jobs=jobs, source=source, clock=clock, progress=progress, reads=reads, opened=opened)


_UNSAID: Final = "a task that read or staged something of it did not come to its end"


def _unreadable(split: Split, failure: FailedSlot) -> ReadObject:
    version = split.version
    outcome = Outcome.whole(
        "failed",
        version.etag,
        version.size,
        start=split.start,
        reason=failure.error[:REASON_MAX],
        trace=failure.trace,
    )
    return ReadObject(slot=version.slot, key=version.key, outcome=outcome)


def _splits(part: Iterable[SlotPlan]) -> list[Split]:
    return [split for slot_plan in part for split in slot_plan.changes.read]


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")
