"""The engine's jobs without Spark. The functions of the tasks are called one after another in this process."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.plan.compare import comparer, follow, group_of, lister
from s3notify_platform.engine.plan.listing_chains import begin_listing
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.read.splits import assign_splits, work_rows
from s3notify_platform.engine.run_state import Run
from s3notify_platform.engine.stage.collect import Collected, StagedPart
from s3notify_platform.engine.stage.staging import staging_task
from s3notify_platform.engine.values.slot_plan import Plan, SlotPlan, planned_in
from s3notify_platform.engine.values.task_rows import LINEAGE_COLUMNS, STAGED, WORK
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, TopicUser
from s3notify_platform.source.source import Source
from s3notify_platform.table.arrow_schema import spark_schema
from s3notify_platform.table.pinned_schema import TableSchema, grown


@dataclass(kw_only=True)
class LocalJobs:
    """Jobs for a source with one column, `a`, of the type `kind`. `width`: the number of tasks.

    `inferred`: True if the jobs treat the schema as inferred.
    """

    source: Source
    width: int = 3
    kind: pa.DataType = field(default_factory=pa.int64)
    inferred: bool = False

    def plan(
        self,
        slots: Iterable[Slot],
        base: Base,
        *,
        entries: Sequence[Entry] | None = None,
        skip: frozenset[str] = frozenset(),
        user: TopicUser | None = None,
    ) -> Plan:
        source, wanted, snapshot = self.source, sorted(set(slots)), base.snapshot
        quota = max(1, source.input.max_objects // len(wanted))
        if entries is not None:
            rows = follow(source, base.table, snapshot, wanted, entries, quota=quota, skip=skip)
            return Plan.of(rows)
        begun = begin_listing(source, frozenset(wanted), self.width, snapshot, base.table, user=user)
        list_part = lister(source, frozenset(wanted), begun.parts, begun.cuts)
        batches = [*begun.rows, *list_part(_numbers(len(begun.parts)))]
        table = pa.Table.from_batches(batches).sort_by("slot")
        compare = comparer(source, snapshot.manifest, wanted, tasks=self.width, quota=quota, skip=skip)
        found = []
        for number in range(self.width):
            of_group = [
                group_of(Slot(slot or 0), self.width, source.location.slots) == number
                for slot in table["slot"].to_pylist()
            ]
            part = table.filter(pa.array(of_group)).to_batches()
            found += planned_in(compare(iter(part)))
        return Plan.of(found)

    @property
    def reader(self) -> SplitReader:
        return SplitReader(source=self.source, schema=self.schema, inferred=self.inferred)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("a", self.kind)])

    def choose_schema(self, busy: Sequence[SlotPlan], run: Run, known: TableSchema | None) -> TableSchema:
        columns = [column for column in self.reader.output if column.name not in LINEAGE_COLUMNS]
        rows = from_arrow_schema(pa.schema(columns)).json()
        return grown(known, source=spark_schema(self.schema), rows=rows, inferred=self.inferred)

    def widen_schema(
        self, schema: TableSchema, new_fields: Iterable[str], run: Run, known: TableSchema | None
    ) -> TableSchema:
        raise AssertionError("the schema is not inferred")

    def stage(
        self, busy: Sequence[SlotPlan], schema: TableSchema, run: Run, *, label: int
    ) -> list[StagedPart]:
        splits = [split for p in busy for split in p.changes.read]
        ordered, tasks = assign_splits(splits, self.width)
        work = work_rows(ordered, tasks)
        found = Collected()
        for task in sorted(set(tasks)):
            rows = WORK.batch([each for each in work if each.task == task])
            found.add(STAGED.read(staging_task(self.source, self.reader, label)(iter([rows]))))
        run.result.requests.update(found.requests)
        return [found.part(busy, found.outcomes(whole=False), transformed=False)]


def _numbers(count: int) -> "Iterable[pa.RecordBatch]":
    return iter([pa.record_batch({"id": pa.array(range(count), pa.int64())})])
