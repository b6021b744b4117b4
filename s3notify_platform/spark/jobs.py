"""The Spark jobs of the engine: plan, infer, and read and stage. Only manifests reach the driver.

A staging job that fails as a whole is tried again in halves, so that a slot that cannot be transformed fails alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import ConflictError
from s3notify_platform.ingest.compare import comparer, follower, lister
from s3notify_platform.ingest.engine import Ingest
from s3notify_platform.ingest.listing_chains import begin_listing
from s3notify_platform.ingest.part_writer import part_writer
from s3notify_platform.ingest.plan import Plan, Readers, SlotPlan, collected, refuse_missing
from s3notify_platform.ingest.reader import SplitReader
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.run_state import Progress, Run
from s3notify_platform.ingest.slot_writer import StageContext, read_stager, stager
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.splits import (
    Assigned,
    assign_splits,
    begun,
    cut,
    cut_all,
    is_big,
    one_by_one,
    scouter,
    work_rows,
)
from s3notify_platform.ingest.task_chain import CHILDREN_MAX, TaskChain, object_children
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
    Requests,
    Staged,
)
from s3notify_platform.protocols.source_enumerator import CommittedSlots, Split
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.spark.batch_schema import BatchSchemas, Transform, json_schema
from s3notify_platform.spark.declared import arrow_schema
from s3notify_platform.spark.failures import JOB_ERRORS, raise_own, reason_of
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.schema import TableSchema

MAX_SPLIT_JOBS: Final = 128
"""Jobs spent on finding out which slots of a failing batch are at fault."""

MAX_FAILED_JOBS: Final = 12
"""Failed jobs, with none that succeeded, after which all slots are held to be at fault."""


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
        self._spark = spark
        self._source = source
        self._transform = transform
        self._width = width
        self._schemas = BatchSchemas(spark, source, transform=transform, clock=clock, progress=progress)
        self._clock = clock
        self._progress = progress
        self._readers = Readers()

    @property
    def width(self) -> int:
        """Tasks that run at once."""
        return self._width or parallelism(self._spark)

    # Plan

    def plan(
        self, slots: Iterable[Slot], *, listing: bool = True, skip: frozenset[str] = frozenset()
    ) -> Plan:
        """See `Jobs.plan`. Raises the error of this package that a task ended with."""
        try:
            return self._planned(sorted(set(slots)), listing=listing, skip=skip)
        except JOB_ERRORS as error:
            raise_own(error)
            raise

    def _planned(self, wanted: Sequence[Slot], *, listing: bool, skip: frozenset[str]) -> Plan:
        source, spark = self._source, self._spark
        platform = CountingStore(shared_store(source.location.platform))
        # Before the table is looked at, so that the commits of a slot that makes its first now do not seem missing.
        committed = CommittedSlots(source.location.records(platform)).read()
        quota = max(1, -(-source.input.max_objects // max(1, len(wanted))))
        width = self.width
        tasks = max(1, min(width, len(wanted)))
        chains = 0
        if listing:
            begun_listing = begin_listing(source, frozenset(wanted), width)
            chains = begun_listing.chains
            frame = spark.createDataFrame(pa.Table.from_batches([LISTED.batch(begun_listing.rows)]))
            if parts := begun_listing.parts:
                task = lister(source, frozenset(wanted), parts, begun_listing.cuts)
                frame = frame.union(self._tasks(len(parts)).mapInArrow(task, LISTED.ddl))
            planned = (
                frame.repartition(tasks, "slot")
                .sortWithinPartitions("slot")
                .mapInArrow(comparer(source, quota, skip), PLANNED.ddl)
            )
        else:
            parts_of_slots = self._readers.assign(wanted, tasks)
            planned = self._tasks(len(parts_of_slots)).mapInArrow(
                follower(source, parts_of_slots, quota, skip), PLANNED.ddl
            )
        found = collected(source.name, PLANNED.read(planned.toArrow().to_batches()))
        for kind, count in platform.counts.items():
            found.requests[kind] = found.requests.get(kind, 0) + count
        refuse_missing(found, committed, source)
        found.committed, found.chains = committed, chains
        return found

    def _tasks(self, count: int) -> DataFrame:
        """One row, and one Spark partition, for the number of each task."""
        return self._spark.range(0, count, 1, count)

    # Schema

    def choose_schema(self, busy: Sequence[SlotPlan], run: Run) -> TableSchema:
        """See `Jobs.choose_schema`."""
        return self._schemas.choose(busy, run)

    def widen_schema(self, schema: TableSchema, new_fields: Iterable[str], run: Run) -> TableSchema:
        """See `Jobs.widen_schema`."""
        return self._schemas.widen(schema, new_fields, run)

    # Read and stage

    def stage(
        self, busy: Sequence[SlotPlan], schema: TableSchema, run: Run, *, evolving: bool
    ) -> list[Staged]:
        """See `Jobs.stage`. A failing job is halved until the slots at fault stand alone."""
        # Slots with big objects for themselves: the others need no shuffle.
        big = [p for p in busy if any(is_big(split, self._source) for split in p.changes.read)]
        todo: list[Sequence[SlotPlan]] = [big, [p for p in busy if p not in big]]
        todo = [part for part in todo if part]
        staged: list[Staged] = []
        jobs = failed = 0
        started = self._clock.monotonic()
        while todo:
            part = todo.pop()
            jobs += 1
            objects = self._named(part)
            chain = TaskChain.opened(self._source, run.run, [p.slot for p in part], objects.values())
            try:
                with chain.watched(self._progress):
                    frame = self._frame(part, objects, schema, run, chain, evolving=evolving)
                    rows = [*STAGED.read(frame.toArrow().to_batches())]
                unsaid = chain.missing()
            except (*JOB_ERRORS, ConflictError) as error:  # a conflict: the chain was failed, or is gone
                failed += 1
                hopeless = failed == jobs >= MAX_FAILED_JOBS or jobs >= MAX_SPLIT_JOBS
                if len(part) > 1 and not hopeless:
                    self._progress(f"a job of {len(part)} slots failed, trying halves: {reason_of(error)}")
                    middle = len(part) // 2
                    todo += [part[middle:], part[:middle]]
                    continue
                staged += [FailedSlot(slot=p.slot, error=reason_of(error)) for p in part]
                continue
            finally:
                chain.forget()
            # Whether a row of theirs came along or not.
            staged += [FailedSlot(slot=slot, error=_UNSAID) for slot in sorted(unsaid)]
            for row in rows:
                if isinstance(row, Requests):
                    run.spent.tasks += 1
                    run.spent.asked(row.requests.items())
                elif row.slot not in unsaid:
                    staged.append(row)
        run.spent.took("job", self._clock.monotonic() - started)
        return staged

    def _named(self, part: Sequence[SlotPlan]) -> dict[str, str]:
        """The objects that the job's chain names: all; none if tasks stage what they read, or with too many."""
        splits = _splits(part)
        if self._transform is None and self._assigned(part, splits).together:
            return {}
        at_most = len(part) + len(splits) + sum(len(cut(split, self._source)) for split in splits)
        return object_children(splits) if at_most <= CHILDREN_MAX else {}

    def _assigned(self, part: Sequence[SlotPlan], work: Sequence[Split]) -> Assigned:
        slots = [p.slot for p in part]
        return assign_splits(slots, work, self.width, big=lambda split: is_big(split, self._source))

    def _work(self, slots: Sequence[Slot], assigned: Assigned, children: Sequence[str] = ()) -> DataFrame:
        """What each task has to do, one Spark partition for each."""
        rows = WORK.batch(work_rows(slots, assigned, children))
        frame = self._spark.createDataFrame(pa.Table.from_batches([rows]))
        return frame.repartitionById(assigned.tasks, "task")

    def _in_parts(self, splits: Sequence[Split]) -> list[Split]:
        """The splits, big ones in parts that tasks read at once: all parts of an object in order.

        Where values may be quoted, one more job looks at each part first: one may be open where it begins. 1 GET for
        each chunk of such objects.
        """
        result, quoted = cut_all(splits, self._source)
        if quoted:
            assigned = one_by_one(quoted, self.width)
            rows = self._work([], assigned).mapInArrow(scouter(self._source, quoted), SCOUTED.ddl).toArrow()
            result += begun(quoted, SCOUTED.read(rows.to_batches()))
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
    ) -> DataFrame:
        slots = [p.slot for p in part]
        skipped = {slot_of(key, self._source.location.slots) for key in run.skip}
        work = self._in_parts(_splits(part))
        assigned = self._assigned(part, work)
        frame = self._work(slots, assigned, chain.cut(objects, work) if objects else ())
        columns = json_schema(schema.source)
        reader = SplitReader(source=self._source, schema=arrow_schema(columns), inferred=schema.inferred)
        context = StageContext(
            source=self._source,
            heads={p.slot: p.generation for p in part},
            gone={p.slot: p.changes.gone for p in part if p.changes.gone},
            signals={p.slot: run.signals[p.slot] for p in part if p.slot in run.signals},
            batch=run.batch,
            schema_generation=schema.generation,
            transformed=self._transform is not None,
            code_version=self._source.input.code_version or "",
            complete=frozenset(p.slot for p in part if p.changes.complete) - skipped,
            last_attempt=run.last_attempt.intersection(slots),
            evolving=evolving,
            chain=chain,
        )
        if self._transform is not None:
            read = frame.mapInArrow(read_task(reader, chain), from_arrow_schema(reader.output))
            everything = self._transformed(read, self._schemas.delivered(columns), self._transform)
        elif assigned.together:
            return frame.mapInArrow(read_stager(context, reader), STAGED.ddl)
        else:
            everything = frame.mapInArrow(part_writer(context, reader), READ.ddl)
        return (
            everything.repartition(min(self.width, len(part)), "_slot")
            .sortWithinPartitions("_slot", "_kind", "_key", "_offset")
            .mapInArrow(stager(context), STAGED.ddl)
        )

    @staticmethod
    def _transformed(everything: DataFrame, source: StructType, transform: Transform) -> DataFrame:
        # Rows and outcomes part here, and have to be of one read: without the checkpoint each would be read
        # for itself, and an object overwritten in between would count as read, without its rows.
        everything = everything.localCheckpoint()
        kind = READ.kind(Lineage)
        rows = everything.where(F.col("_kind") == kind).select(*LINEAGE_COLUMNS, *map(_column, source.names))
        control = everything.where(F.col("_kind") != kind).select(*READ.schema.names)
        marked = transform(rows).withColumn("_kind", F.lit(kind))
        return marked.unionByName(control, allowMissingColumns=True)


def spark_ingest(
    spark: SparkSession,
    source: Source,
    *,
    transform: Transform | None = None,
    clock: Clock = SYSTEM_CLOCK,
    progress: Progress = lambda _: None,
) -> Ingest:
    """The engine, with Spark to work for it."""
    jobs = SparkJobs(spark, source, transform=transform, clock=clock, progress=progress)
    return Ingest(jobs=jobs, source=source, clock=clock, progress=progress)


_UNSAID: Final = "a task that read or staged something of it did not come to its end"


def read_task(reader: SplitReader, chain: TaskChain) -> Callable[[Batches], Batches]:
    """The function of a task that reads what it is assigned, for a transform."""

    def run(batches: Batches) -> Batches:
        yield from reader.read(batches, chain)

    return run


def _splits(part: Iterable[SlotPlan]) -> list[Split]:
    return [split for slot_plan in part for split in slot_plan.changes.read]


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")
