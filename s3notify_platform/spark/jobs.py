"""The jobs that read the slots of a batch and seal what they hold.

A job that fails as a whole is tried again in halves, so that a slot that cannot be transformed fails alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.clock import Clock
from s3notify_platform.errors import ConflictError
from s3notify_platform.ingest.run_state import Progress, Run
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.task_chain import CHILDREN_MAX, TaskChain, object_children
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.spark.batch_schema import BatchSchemas, PinnedSchema, Transform
from s3notify_platform.spark.failures import JOB_ERRORS, reason_of
from s3notify_platform.spark.parts import part_writer
from s3notify_platform.spark.plan import SlotPlan
from s3notify_platform.spark.read import CONTROL_SCHEMA, KIND_ROW, LINEAGE_COLUMNS, SplitReader
from s3notify_platform.spark.splits import Assigned, assign_splits, cut, in_parts, is_big, splits_frame
from s3notify_platform.spark.stage import STAGED_DDL, StageContext, read_stager, stager

MAX_SPLIT_JOBS: Final = 128
"""Jobs spent on finding out which slots of a failing batch are at fault."""

MAX_FAILED_JOBS: Final = 12
"""Failed jobs, with none that succeeded, after which all slots are held to be at fault."""


class StagingJobs:
    """Reads and seals slots with a schema. Holds a Spark session, in which `width` tasks run at once."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        *,
        transform: Transform | None,
        schemas: BatchSchemas,
        width: int,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._source = source
        self._transform = transform
        self._schemas = schemas
        self._width = width
        self._clock = clock
        self._progress = progress

    def stage(
        self, busy: Sequence[SlotPlan], schema: PinnedSchema, state: Run, *, evolving: bool
    ) -> list[dict[str, Any]]:
        """Manifest rows. A failing job is halved until the slots at fault stand alone."""
        # Slots with big objects for themselves: the others need no shuffle.
        big = [p for p in busy if any(is_big(split, self._source) for split in p.changes.read)]
        todo: list[Sequence[SlotPlan]] = [big, [p for p in busy if p not in big]]
        todo = [part for part in todo if part]
        staged: list[dict[str, Any]] = []
        jobs = failed = 0
        started = self._clock.monotonic()
        while todo:
            part = todo.pop()
            jobs += 1
            objects = self._named(part)
            chain = TaskChain.opened(self._source, state.run, [p.slot for p in part], objects.values())
            try:
                with chain.watched(self._progress):
                    frame = self._frame(part, objects, schema, state, chain, evolving=evolving)
                    rows = frame.toArrow().to_pylist()
                unsaid = chain.missing()
            except (*JOB_ERRORS, ConflictError) as error:  # a conflict: the chain was given up, or is gone
                failed += 1
                hopeless = failed == jobs >= MAX_FAILED_JOBS or jobs >= MAX_SPLIT_JOBS
                if len(part) > 1 and not hopeless:
                    self._progress(f"a job of {len(part)} slots failed, trying halves: {reason_of(error)}")
                    middle = len(part) // 2
                    todo += [part[middle:], part[:middle]]
                    continue
                reason = reason_of(error)
                staged += [{"slot": p.slot, "error": reason, "body": None, "unknown": None} for p in part]
                continue
            finally:
                chain.forget()
            # Whether a row of theirs came along or not.
            staged += [
                {"slot": slot, "error": _UNSAID, "body": None, "unknown": None} for slot in sorted(unsaid)
            ]
            for row in rows:
                if row["slot"] in unsaid:
                    continue
                if row["slot"] >= 0:
                    staged.append(row)
                else:
                    state.spent.tasks += 1
                    state.spent.asked(json.loads(row["requests"]).items())
        state.spent.took("job", self._clock.monotonic() - started)
        return staged

    def _named(self, part: Sequence[SlotPlan]) -> dict[str, str]:
        """The objects that the job's chain names: all; none if tasks seal what they read, or with too many."""
        splits = _splits(part)
        if self._transform is None and self._assigned(part, splits).together:
            return {}
        at_most = len(part) + len(splits) + sum(len(cut(split, self._source)) for split in splits)
        return object_children(splits) if at_most <= CHILDREN_MAX else {}

    def _assigned(self, part: Sequence[SlotPlan], work: Sequence[Split]) -> Assigned:
        slots = [p.slot for p in part]
        return assign_splits(slots, work, self._width, big=lambda split: is_big(split, self._source))

    def _frame(
        self,
        part: Sequence[SlotPlan],
        objects: Mapping[str, str],
        schema: PinnedSchema,
        state: Run,
        chain: TaskChain,
        *,
        evolving: bool,
    ) -> DataFrame:
        slots = [p.slot for p in part]
        work = in_parts(self._spark, self._source, _splits(part))
        assigned = self._assigned(part, work)
        splits = splits_frame(self._spark, slots, assigned, chain.cut(objects, work) if objects else ())
        reader = SplitReader.of(self._source, schema.source, inferred=schema.pinned.inferred)
        context = StageContext(
            source=self._source,
            heads={p.slot: p.generation for p in part},
            gone={p.slot: p.changes.gone for p in part if p.changes.gone},
            signals={p.slot: state.signals[p.slot] for p in part if p.slot in state.signals},
            batch=state.batch,
            schema_generation=schema.pinned.generation,
            transformed=self._transform is not None,
            code_version=self._source.input.code_version or "",
            complete=frozenset(p.slot for p in part if p.changes.complete),
            give_up=state.give_up.intersection(slots),
            evolving=evolving,
            chain=chain,
        )
        if self._transform is not None:
            everything = self._transformed(
                reader.read_frame(splits, chain), self._schemas.delivered(schema.source)
            )
        elif assigned.together:
            return splits.mapInArrow(read_stager(context, reader), STAGED_DDL)
        else:
            everything = splits.mapInArrow(part_writer(context, reader), from_arrow_schema(CONTROL_SCHEMA))
        return (
            everything.repartition(min(self._width, len(part)), "_slot")
            .sortWithinPartitions("_slot", "_kind", "_key", "_offset")
            .mapInArrow(stager(context), STAGED_DDL)
        )

    def _transformed(self, everything: DataFrame, source: StructType) -> DataFrame:
        assert self._transform is not None
        # Rows and outcomes part here, and have to be of one read: without the checkpoint each would be read
        # for itself, and an object overwritten in between would count as read, without its rows.
        everything = everything.localCheckpoint()
        rows = everything.where(F.col("_kind") == KIND_ROW).select(
            *LINEAGE_COLUMNS, *map(_column, source.names)
        )
        control = everything.where(F.col("_kind") != KIND_ROW).select(*CONTROL_SCHEMA.names)
        marked = self._transform(rows).withColumn("_kind", F.lit(KIND_ROW))
        return marked.unionByName(control, allowMissingColumns=True)


_UNSAID: Final = "a task that read or sealed something of it did not come to its end"


def _splits(part: Iterable[SlotPlan]) -> list[Split]:
    return [split for slot_plan in part for split in slot_plan.changes.read]


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")
