"""The engine's jobs without Spark: the functions of its tasks, called one after the other in this process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from s3notify_platform.ingest.compare import comparer, follow, lister
from s3notify_platform.ingest.listing_chains import begin_listing
from s3notify_platform.ingest.plan import Plan, SlotPlan, collected
from s3notify_platform.ingest.reader import SplitReader
from s3notify_platform.ingest.results import Run
from s3notify_platform.ingest.slot_writer import StageContext, read_stager
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.splits import assign_splits, work_rows
from s3notify_platform.ingest.task_chain import TaskChain
from s3notify_platform.ingest.wire import LISTED, PLANNED, STAGED, WORK, Requests, Staged
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.slots import Slot
from s3notify_platform.table.heads import NONE_KNOWN
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.schema import TableSchema

COLUMN = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'


@dataclass(kw_only=True)
class LocalJobs:
    """For a source with one column, `a bigint`. `width`: tasks, which run one after the other."""

    source: Source
    width: int = 3

    def plan(
        self,
        slots: Iterable[Slot],
        *,
        listing: bool = True,
        skip: frozenset[str] = frozenset(),
        recalled: Mapping[Slot, Generation] = NONE_KNOWN,
        user: TopicUser | None = None,
    ) -> Plan:
        wanted = sorted(set(slots))
        quota = max(1, self.source.input.max_objects // len(wanted))
        if not listing:
            return collected(self.source.name, follow(self.source, wanted, quota, skip, recalled, user=user))
        begun = begin_listing(self.source, frozenset(wanted), self.width, recalled, user=user)
        list_part = lister(self.source, frozenset(wanted), begun.parts, begun.cuts)
        batches = [LISTED.batch(begun.rows), *list_part(_numbers(len(begun.parts)))]
        rows = pa.Table.from_batches(batches).sort_by("slot").to_batches()
        return collected(self.source.name, PLANNED.read(comparer(self.source, quota, skip)(iter(rows))))

    def choose_schema(self, busy: Sequence[SlotPlan], run: Run) -> TableSchema:
        pinned = self.source.schemas().pin(source=COLUMN, rows=COLUMN, inferred=False, batch=run.batch)
        assert pinned is not None
        return pinned

    def widen_schema(self, schema: TableSchema, new_fields: Iterable[str], run: Run) -> TableSchema:
        raise AssertionError("it is not inferred")

    def stage(
        self, busy: Sequence[SlotPlan], schema: TableSchema, run: Run, *, evolving: bool
    ) -> list[Staged]:
        slots = [p.slot for p in busy]
        splits = [split for p in busy for split in p.changes.read]
        chain = TaskChain.opened(self.source, run.run, slots)
        context = StageContext(
            source=self.source,
            heads={p.slot: p.generation for p in busy},
            gone={p.slot: p.changes.gone for p in busy},
            expired=frozenset[str]().union(*(p.changes.expired for p in busy)),
            signals=run.signals,
            batch=run.batch,
            schema_generation=schema.generation,
            transformed=False,
            complete=frozenset(p.slot for p in busy if p.changes.complete),
            last_attempt=run.last_attempt,
            seen_ms=run.seen_ms,
            planned_ms=run.planned_ms,
            evolving=evolving,
            chain=chain,
        )
        assigned = assign_splits(slots, splits, self.width, self.source)
        assert assigned.together
        work = work_rows(slots, assigned)
        reader = SplitReader(source=self.source, schema=pa.schema([("a", pa.int64())]), inferred=False)
        rows = [
            row
            for task in range(assigned.tasks)
            for row in STAGED.read(
                read_stager(context, reader)(iter([WORK.batch([each for each in work if each.task == task])]))
            )
        ]
        assert not chain.missing()
        chain.forget()
        return [row for row in rows if not isinstance(row, Requests)]


def _numbers(count: int) -> "Iterable[pa.RecordBatch]":
    return iter([pa.record_batch({"id": pa.array(range(count), pa.int64())})])
