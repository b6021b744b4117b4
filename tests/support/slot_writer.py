"""The writer of one slot without Spark: plans, stages and commits as a run does, over any object store."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import UnavailableError
from s3notify_platform.ingest.outcome import Outcome
from s3notify_platform.ingest.slot_writer import SlotStage, StageContext
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import READ, FailedSlot, Lineage, Read, ReadObject, Reject, StagedSlot
from s3notify_platform.ports import Conflict, ETag, ObjectStore, Written, list_all
from s3notify_platform.protocols.conditional_commit import ConditionalCommit, NativeCommit
from s3notify_platform.protocols.source_enumerator import ObjectVersion, SlotChanges, Split, changes_of_slot
from s3notify_platform.slots import Slot
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.layout import Generation, TableLayout, generation_of
from s3notify_platform.table.reader import read_slots
from s3notify_platform.table.reread import backfilled_keys

SLOT = Slot(7)
LAYOUT = TableLayout(prefix="t/table/")
SOURCE = Source.of(
    name="t", prefix="", bucket=S3Config(bucket="b"), platform=S3Config(bucket="p"), format="jsonl"
)
"""Whose settings count; no request goes to its buckets."""


@dataclass(frozen=True, kw_only=True)
class Body:
    """A source object: its version, and how many rows and rejects it holds."""

    etag: str
    rows: int
    rejects: int = 0


Bucket = Mapping[str, Body]


def slot_table(
    store: ObjectStore,
    clock: Clock = SYSTEM_CLOCK,
    *,
    commits: ConditionalCommit | None = None,
    **settings: Any,
) -> SlotTable:
    """Of native commits, unless others are given."""
    return SlotTable(store, LAYOUT, commits or NativeCommit(store, clock=clock), clock=clock, **settings)


@dataclass(kw_only=True)
class Planned:
    """What a run knows after its plan."""

    head: SlotCommit | None
    changes: SlotChanges
    at: float


@dataclass(kw_only=True)
class SlotWriter:
    """One run after another on `SLOT`. `settings`: of its `SlotTable`."""

    store: ObjectStore
    clock: Clock = SYSTEM_CLOCK
    name: str = "writer"
    commits: ConditionalCommit | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    table: SlotTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = slot_table(self.store, self.clock, commits=self.commits, **self.settings)

    def plan(self, bucket: Bucket, *, max_objects: int = 100) -> Planned:
        at = self.clock.monotonic()
        recalled = self.table.memory.recall([SLOT])
        planned = self._planned(bucket, max_objects, recalled.heads.get(SLOT), min(at, recalled.seen_at))
        if SLOT in recalled.heads and not planned.changes:
            generation = Generation(planned.head.generation if planned.head else 0)
            if not self.table.stands(SLOT, generation, seen_at=planned.at):
                return self._planned(bucket, max_objects, None, at)
        return planned

    def _planned(self, bucket: Bucket, max_objects: int, newest: Generation | None, at: float) -> Planned:
        head = self.table.head(SLOT, newest)
        states = self.table.states(head)
        listed = [
            ObjectVersion(slot=SLOT, key=key, etag=ETag(body.etag), size=body.rows or 1)
            for key, body in bucket.items()
        ]
        changes = changes_of_slot(
            SLOT,
            listed,
            states,
            max_objects=max_objects,
            pending=head.pending if head else (),
            stale=backfilled_keys(head, states),
        )
        return Planned(head=head, changes=changes, at=at)

    def stage(
        self,
        planned: Planned,
        bucket: Bucket,
        *,
        at_most: int = 100,
        unreadable: Mapping[str, int] | None = None,
        last_attempt: bool = False,
        window: int = 100,
    ) -> SlotCommit | None:
        """The next commit, its files written; None if nothing is to be committed. Reads `bucket` as it is now.

        `at_most`: rows of each object that are read before the rest is left to the next commit. `unreadable`: rows of
        objects behind which the read fails; with `last_attempt` they go to quarantine. `window`: objects that come
        at once. `UnavailableError` if the store does not answer: an outage is no verdict on the slot.
        """
        stage = self.slot_stage(planned, last_attempt=last_attempt)
        for first in range(0, max(1, len(planned.changes.read)), window):
            self._read(stage, planned.changes.read[first : first + window], bucket, at_most, unreadable or {})
        row = stage.finish()
        if isinstance(row, FailedSlot) and row.outage:
            raise UnavailableError(row.error)
        assert isinstance(row, StagedSlot), row
        return SlotCommit.loads(row.commit.body, where="staged") if row.commit else None

    def slot_stage(
        self, planned: Planned, *, last_attempt: bool = False, transformed: bool = False
    ) -> SlotStage:
        """The stage of the slot, to which nothing is added yet."""
        context = StageContext(
            source=SOURCE,
            heads={SLOT: planned.head.generation if planned.head else Generation(0)},
            gone={SLOT: planned.changes.gone},
            signals={},
            batch=self.name,
            schema_generation=1,
            transformed=transformed,
            last_attempt=frozenset({SLOT} if last_attempt else ()),
            complete=frozenset({SLOT} if planned.changes.complete else ()),
            evolving=False,
            chain=None,  # type: ignore[arg-type] - only the task around a SlotStage needs it
        )
        return SlotStage(slot=SLOT, context=context, table=self.table, clock=self.clock)

    @staticmethod
    def _read(
        stage: SlotStage,
        splits: Sequence[Split],
        bucket: Bucket,
        at_most: int,
        unreadable: Mapping[str, int],
    ) -> None:
        outcomes: list[Read] = []
        rejects: list[Read] = []
        rows: list[Read] = []
        values: list[str] = []

        def ended(version: ObjectVersion, outcome: Outcome) -> None:
            outcomes.append(ReadObject(slot=SLOT, key=version.key, outcome=outcome))

        for split in splits:
            version = split.version
            body = bucket.get(version.key)
            status = "deleted" if body is None else "ok" if body.etag == version.etag else "superseded"
            place: dict[str, Any] = {"slot": SLOT, "key": version.key, "etag": version.etag}
            outcome = Outcome.whole(status, version.etag, version.size)
            if body is not None and status == "ok":
                end = min(split.start + at_most, body.rows)
                fails_at = unreadable.get(version.key, body.rows + 1)
                if fails_at < end or fails_at <= split.start:
                    reason = f"row {fails_at} of {version.etag} cannot be read"
                    end = max(split.start, fails_at)
                    ended(
                        version, replace(outcome, status="failed", reason=reason, start=end, reach_end=False)
                    )
                    if end == split.start:
                        continue
                bad = range(body.rejects if split.start == 0 else 0)
                outcome = replace(
                    outcome,
                    rows=end - split.start,
                    rejects=len(bad),
                    start=split.start,
                    offset=end,
                    reach_end=end == body.rows,
                )
                read = range(split.start, end)
                rows += [Lineage(**place, offset=n) for n in read]
                values += [f"{version.etag}/{n}" for n in read]
                rejects += [Reject(**place, offset=n, reason="bad", raw=b"raw") for n in bad]
            ended(version, outcome)
        records = READ.batch([*outcomes, *rejects, *rows])
        values_of = pa.array([None] * (records.num_rows - len(values)) + values, pa.string())
        stage.add(records.append_column("value", values_of))

    def commit(self, planned: Planned, commit: SlotCommit) -> Written | Conflict:
        return self.table.commit(commit.staged(), planned_at=planned.at)

    def run(self, bucket: Bucket, *, max_objects: int = 100, **reading: Any) -> Written | Conflict | None:
        """A whole run; None if there was nothing to do. `reading`: as `stage` has it."""
        planned = self.plan(bucket, max_objects=max_objects)
        commit = self.stage(planned, bucket, **reading)
        return self.commit(planned, commit) if commit else None


def content_of(bucket: Bucket, read: Mapping[str, int] | None = None) -> tuple[Counter[Any], Counter[Any]]:
    """The rows and rejects that a table of `bucket` must hold, each once; `read`: rows of each object so far."""
    counts = read or {key: body.rows for key, body in bucket.items()}
    rows = Counter((k, b.etag, n, f"{b.etag}/{n}") for k, b in bucket.items() for n in range(counts[k]))
    rejects = Counter((k, b.etag, n) for k, b in bucket.items() for n in range(b.rejects))
    return rows, rejects


def content_in(table: SlotTable) -> tuple[Counter[Any], Counter[Any]]:
    """The rows and rejects that the head's files hold, by another way than the writer's."""
    rows: Counter[Any] = Counter()
    rejects: Counter[Any] = Counter()
    for slot in read_slots(table, [SLOT]):
        rows.update((r["_key"], r["_etag"], r["_offset"], r["value"]) for r in slot.table.to_pylist())
    for slot in read_slots(table, [SLOT], rejects=True):
        rejects.update((r["_key"], r["_etag"], r["_offset"]) for r in slot.table.to_pylist())
    return rows, rejects


def history_of(table: SlotTable) -> list[SlotCommit]:
    """All generations that there are, up to the head; asserts that they are one line."""
    there = list_all(table.store, table.layout.commits(SLOT))
    line = [table.read(SLOT, generation) for generation in sorted(generation_of(meta.key) for meta in there)]
    assert all(after.generation == before.generation + 1 for before, after in pairwise(line))
    assert all(after.parent_id == before.commit_id for before, after in pairwise(line))
    assert not line or line[0].generation > 1 or line[0].parent_id is None
    return line
