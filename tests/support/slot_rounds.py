"""Rounds of one slot without Spark, over any object store. A round is planned, staged, settled and committed as in a
run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import pyarrow as pa

from s3notify_platform.engine.commit.new_states import RoundFacts, settled
from s3notify_platform.engine.values.object_read import Outcome, joined
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.ports import ETag, ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState, ObjectVersion, changes_of_slot
from s3notify_platform.source.source import Source
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA
from s3notify_platform.table.check import check_table
from s3notify_platform.table.commit import CommitResult, Committed
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.packs.pack_set import PackSet, StagedPack
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.reread import backfilled_keys
from s3notify_platform.table.round import RoundChange
from s3notify_platform.table.snapshot import Snapshot
from tests.support.sources import source_of

SLOT = Slot(7)


def source_in(bucket: S3Config) -> Source:
    """A source, whose platform objects are below `t/` in its bucket."""
    return source_of(
        name="orders", prefix="raw/", bucket=bucket, platform_prefix="t/", format="jsonl", commit="native"
    )


SOURCE = source_in(S3Config(bucket="b"))
ROWS = pa.schema(
    [*(REJECT_SCHEMA.field(n) for n in ("_slot", "_key", "_etag", "_offset")), ("value", pa.string())]
)


@dataclass(frozen=True, kw_only=True)
class Body:
    """An object of the source: its ETag, and its numbers of rows and rejects. Rejects have the `reasons` in turn."""

    etag: str
    rows: int
    rejects: int = 0
    reasons: tuple[str, ...] = ("bad",)


Bucket = Mapping[str, Body]


@dataclass(kw_only=True)
class SlotRounds:
    """Does one run after another on `slot` of the source's table. The table is created, unless `table` is given."""

    store: ObjectStore
    source: Source = SOURCE
    name: str = "writer"
    slot: Slot = SLOT
    clock: Clock = SYSTEM_CLOCK
    code_version: str = ""
    table: LogTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.source.table(store=self.store, clock=self.clock)
        self.source.open_table(store=self.store)

    @property
    def snapshot(self) -> Snapshot:
        found = self.table.newest()
        assert isinstance(found, Snapshot)
        return found

    @property
    def facts(self) -> SlotFacts:
        return self.snapshot.manifest.slot(self.slot)

    @property
    def states(self) -> dict[str, ObjectState]:
        return dict(self.table.states.of_slots(self.snapshot.manifest.states, [self.slot]))[self.slot]

    @property
    def failing(self) -> list[str]:
        return [key for key, state in self.states.items() if state.failing]

    @property
    def pending(self) -> list[str]:
        return [key for key, state in self.states.items() if state.pending]

    def plan(self, bucket: Bucket, *, max_objects: int = 100) -> tuple[Snapshot, SlotPlan]:
        base, states = self.snapshot, self.states
        listed = [
            ObjectVersion(slot=self.slot, key=key, etag=ETag(body.etag), size=body.rows or 1)
            for key, body in bucket.items()
        ]
        changes = changes_of_slot(
            self.slot,
            listed,
            states,
            max_objects=max_objects,
            pending=[key for key, state in states.items() if state.pending],
            stale=backfilled_keys(base.manifest.slot(self.slot), states),
        )
        return base, SlotPlan(changes=changes, before=states)

    def planned(self, bucket: Bucket) -> list[str]:
        """Plans a run; returns the snapshot and the slot's plan."""
        return [split.version.key for split in self.plan(bucket)[1].changes.read]

    def stage(
        self,
        planned: tuple[Snapshot, SlotPlan],
        bucket: Bucket,
        *,
        at_most: int = 100,
        unreadable: Mapping[str, int] | None = None,
        last_attempt: bool = False,
    ) -> RoundChange | None:
        """The round, with its packs written; None if there is nothing to commit. Reads `bucket` in its present state.

        `at_most`: the maximum number of rows that are read of an object. The next round reads the other rows.
        `unreadable`: by key, the number of rows after which the read fails. With `last_attempt`, objects whose read
        fails are quarantined.
        """
        base, plan = planned
        label, facts = base.version + 1, base.manifest.slot(self.slot)
        outcomes: dict[str, Outcome] = {}
        rows: list[tuple[Any, ...]] = []
        rejects: list[tuple[Any, ...]] = []
        for split in plan.changes.read:
            key, etag = split.version.key, split.version.etag
            body = bucket.get(key)
            status = "deleted" if body is None else "ok" if body.etag == etag else "superseded"
            whole = Outcome.whole(status, etag, split.version.size)
            parts = [whole]
            if body is not None and status == "ok":
                end = min(split.start + at_most, body.rows)
                fails_at = (unreadable or {}).get(key, body.rows + 1)
                failed = []
                if fails_at < end or fails_at <= split.start:
                    end = max(split.start, fails_at)
                    reason = f"row {fails_at} of {etag} cannot be read"
                    failed = [replace(whole, status="failed", reason=reason, start=end, reach_end=False)]
                bad = range(body.rejects if split.start == 0 and (end or not failed) else 0)
                part = replace(
                    whole,
                    rows=end - split.start,
                    rejects=len(bad),
                    start=split.start,
                    offset=end,
                    reach_end=end == body.rows,
                )
                parts = [*([part] if end > split.start or not failed else []), *failed]
                rows += [(self.slot, key, etag, n, f"{etag}/{n}") for n in range(split.start, end)]
                rejects += [
                    (self.slot, key, etag, n, reason, b"raw")
                    for n, reason in zip(bad, cycle(body.reasons), strict=False)
                ]
            outcomes[key] = joined(parts, whole=False)
        known = RoundFacts(
            label=label,
            code_version=self.code_version,
            last_attempt=frozenset({self.slot} if last_attempt else ()),
            complete=frozenset({self.slot} if plan.changes.complete else ()),
            failing={self.slot: facts.failing},
        )
        made = settled(plan, outcomes, known).round
        if made is None:
            return None
        return RoundChange(
            base=base,
            slots={self.slot: made},
            table=self.table,
            clock=self.clock,
            rows=self._staged(self.table.data, rows, ROWS, label),
            rejects=self._staged(self.table.quarantine, rejects, REJECT_SCHEMA, label),
            note={"batch": self.name},
        )

    def _staged(
        self, packs: PackSet, rows: Iterable[tuple[Any, ...]], schema: pa.Schema, label: int
    ) -> Sequence[StagedPack]:
        found = [dict(zip(schema.names, row, strict=True)) for row in sorted(rows)]
        if not found:
            return ()
        staged, files = packs.staged(write([pa.Table.from_pylist(found, schema=schema)]), label=label)
        if label % 2:  # in these rounds, packs are small, and are written with the version
            return [replace(pack, body=files[packs.layout.file(pack.add.path)]) for pack in staged]
        for key, body in files.items():
            self.store.put(key, body)
        return staged

    def run(self, bucket: Bucket, *, max_objects: int = 100, **reading: Any) -> CommitResult | None:
        """Does a whole run. Returns None if there was nothing to do. `reading`: options of `stage`."""
        made = self.stage(self.plan(bucket, max_objects=max_objects), bucket, **reading)
        return self.table.commit(made, made.base) if made else None

    def content(self) -> tuple[Counter[Any], Counter[Any]]:
        """The rows and rejects of the newest version, read independently of the writer. The version is checked."""
        snapshot = self.snapshot
        checked = check_table(self.table, snapshot)
        assert checked.ok, checked.problems

        def of(packs: PackSet, live: Iterable[Add], *names: str) -> Counter[Any]:
            rows = (
                row for pack in live for group in packs.opened(pack).groups() for row in group.to_pylist()
            )
            return Counter(tuple(row[name] for name in names) for row in rows if row["_slot"] == self.slot)

        return (
            of(self.table.data, snapshot.packs.values(), "_key", "_etag", "_offset", "value"),
            of(self.table.quarantine, snapshot.manifest.rejects, "_key", "_etag", "_offset"),
        )


def content_of(bucket: Bucket) -> tuple[Counter[Any], Counter[Any]]:
    """The rows and rejects that a table of `bucket` must have, each once."""
    rows = Counter((k, b.etag, n, f"{b.etag}/{n}") for k, b in bucket.items() for n in range(b.rows))
    rejects = Counter((k, b.etag, n) for k, b in bucket.items() for n in range(b.rejects))
    return rows, rejects


class Place:
    """A slot whose objects are in `bucket`. The objects are readable only up to the limits in `unreadable`."""

    def __init__(self, store: ObjectStore, **bodies: Body) -> None:
        self.store = store
        self.writer = SlotRounds(store=store)
        self.table = self.writer.table
        self.bucket: dict[str, Body] = bodies
        self.unreadable: dict[str, int] = {}

    def run(self, **reading: Any) -> CommitResult | None:
        return self.writer.run(self.bucket, **{"unreadable": self.unreadable, **reading})

    def committed(self, **reading: Any) -> None:
        assert isinstance(self.run(**reading), Committed)

    def planned(self) -> list[str]:
        return self.writer.planned(self.bucket)

    @property
    def facts(self) -> SlotFacts:
        return self.writer.facts

    def is_exact(self) -> bool:
        return self.writer.content() == content_of(self.bucket)
