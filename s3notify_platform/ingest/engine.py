"""Drives one batch: plan, read, seal, commit; slot by slot, each to its own outcome.

The driver holds the batch's splits and manifests, bounded by `Source.max_objects`, and creates the commit
objects. A slot that another run committed meanwhile is planned again. What a batch is parsed with is chosen in
`batch_schema`; `staging_jobs` reads and seals. Nothing here raises for one slot.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import SparkSession

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import S3NotifyError
from s3notify_platform.ingest.results import BatchResult, SlotResult, added_result
from s3notify_platform.ingest.run_state import Progress, Run
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.protocols.source_enumerator import CommittedSlots, within
from s3notify_platform.slots import Slot
from s3notify_platform.spark.batch_schema import BatchSchemas, Transform
from s3notify_platform.spark.failures import JOB_ERRORS, raise_own
from s3notify_platform.spark.plan import Plan, SlotPlan, plan
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.splits import may_be_cut
from s3notify_platform.spark.staging_jobs import StagingJobs
from s3notify_platform.table.commit import StagedCommit

MAX_CONFLICTS: Final = 6
"""Times one run plans a slot again because another run committed it first."""

MAX_EVOLUTIONS: Final = 3
"""Times that one batch widens its inferred schema for fields not seen before."""

COMMITS_IN_FLIGHT: Final = 48

QUARANTINED_SHOWN: Final = 5
"""Objects of a slot that go to quarantine and are named in the log."""


class Ingest:
    """Turns changed objects of slots into commits. One instance a run; holds a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        *,
        transform: Transform | None = None,
        clock: Clock = SYSTEM_CLOCK,
        progress: Progress = lambda _: None,
    ) -> None:
        ship_package(spark)
        self._spark = spark
        self._source = source
        self._clock = clock
        self._progress = progress
        self._table = source.table()
        self._width = parallelism(spark)
        self._schemas = BatchSchemas(spark, source, transform=transform, clock=clock, progress=progress)
        self._jobs = StagingJobs(
            spark,
            source,
            transform=transform,
            schemas=self._schemas,
            width=self._width,
            clock=clock,
            progress=progress,
        )

    def run(
        self,
        slots: Iterable[Slot],
        *,
        batch: str,
        run: str | None = None,
        signals: Mapping[Slot, str] | None = None,
        listing: bool = True,
        only_found: bool = False,
        give_up: Iterable[Slot] = (),
    ) -> BatchResult:
        """Ingest `slots`. Each has a result; with `only_found`, only if it has objects or a commit.

        In rounds of `Source.max_objects` and `max_bytes`, each of which ends in commits; none begins after
        `max_seconds`. So what a crash costs is one round, and an object may take several.

        An object whose read fails is left out, and its slot is not `ok`; in the slots of `give_up` it goes to
        quarantine instead, by the commit of the slot's other objects: it is not read again until it changes or is sent
        again (`table.quarantine`), and its earlier version's rows leave.

        `listing`: compare with the bucket as a whole; else with what the entries of the source's topic name.
        `run` is whose work it is (default: the batch), so that what it leaves behind if it dies can be told.
        `signals` are the signal ETags seen when the batch was opened; a commit records its slot's. Raises
        `UsageError` before anything is written if bucket, schema or transform are at fault for all slots.
        """
        state = Run(
            batch=batch,
            run=run or batch,
            signals=signals or {},
            listing=listing,
            only_found=only_found,
            give_up=frozenset(give_up),
        )
        pending = sorted(set(slots))
        started = self._clock.monotonic()
        while pending:
            pending = self._round(pending, state)
            self._remember(state)
            if self._clock.monotonic() - started >= self._source.input.max_seconds:
                break
        for slot in pending:
            result = state.results.get(slot, SlotResult(slot=slot, status="unchanged"))
            state.results[slot] = replace(result, complete=False)
        spent = state.spent
        return BatchResult(
            slots=state.results,
            entries=state.entries,
            unqueued=frozenset(state.unqueued),
            unannounced=state.unannounced,
            seconds=spent.seconds,
            requests=spent.requests,
            tasks=spent.tasks,
            schema_added=state.schema_added,
        )

    def _remember(self, state: Run) -> None:
        """Note slots that are committed for the first time, so that it is noticed if they lose their commits."""
        new = {slot for slot, result in state.results.items() if result.generation} - state.known
        try:
            CommittedSlots(self._source.location.records()).add(new)
        except S3NotifyError as error:
            self._progress(f"did not note the first commits of {len(new)} slots, the next run will: {error}")
        else:
            state.known |= new

    def _round(self, slots: Sequence[Slot], state: Run) -> list[Slot]:
        """One plan and what follows from it; the slots that have to be planned again."""
        planned_at = self._clock.monotonic()
        self._progress(f"planning {len(slots)} slots")
        found = self._plan(slots, state)
        state.known |= found.committed
        state.entries.update(found.entries)
        state.unqueued |= found.unqueued
        state.unannounced += sum(map(len, found.unannounced.values()))
        self._cut(found)
        busy = [slot_plan for slot_plan in found.slots.values() if slot_plan.changes]
        again = [slot for slot, p in found.slots.items() if not p.changes and not p.changes.complete]
        for slot, slot_plan in found.slots.items():
            if not slot_plan.changes:
                self._unchanged(slot_plan, found.listed[slot], state)
        for slot, error in found.errors.items():
            state.results[slot] = added_result(
                state.results.get(slot), SlotResult(slot=slot, status="failed", error=error)
            )
        if not busy:
            return again
        self._progress(
            f"reading {sum(len(p.changes.read) for p in busy)} objects of {len(busy)} slots, "
            f"{sum(len(p.changes.gone) for p in busy)} gone"
        )
        staged = self._stage(busy, state)
        started = self._clock.monotonic()
        with ThreadPoolExecutor(COMMITS_IN_FLIGHT) as pool:
            outcomes = list(pool.map(lambda row: self._commit(row, found, planned_at), staged))
        state.spent.took("commit", self._clock.monotonic() - started)
        state.spent.asked([("PUT", sum(1 for row in staged if row.get("body")))])
        for outcome in outcomes:
            slot = outcome.slot
            for key, reason in list(outcome.quarantined.items())[:QUARANTINED_SHOWN]:
                self._progress(f"in quarantine: {key!r}, because {reason}")
            if outcome.error == _LOST:
                state.lost[slot] += 1
                if state.lost[slot] < MAX_CONFLICTS:
                    again.append(slot)
            elif outcome.status != "failed" and not (found.slots[slot].changes.complete and outcome.complete):
                again.append(slot)
            state.results[slot] = added_result(state.results.get(slot), replace(outcome, complete=True))
        return again

    def _cut(self, found: Plan) -> None:
        """Leave what is beyond `max_bytes` for the next round."""
        cut = within(
            [p.changes for p in found.slots.values()],
            self._source.input.max_bytes,
            least=self._source.input.split_bytes,
            cuttable=lambda split: split.by_record or may_be_cut(split, self._source),
        )
        for slot_plan, changes in zip([*found.slots.values()], cut, strict=True):
            found.slots[slot_plan.slot] = replace(slot_plan, changes=changes)

    def _plan(self, slots: Sequence[Slot], state: Run) -> Plan:
        started = self._clock.monotonic()
        try:
            found = plan(
                self._spark, self._source, slots, self._width, listing=state.listing, skip=state.skip
            )
        except JOB_ERRORS as error:
            raise_own(error)
            raise
        state.spent.took("plan", self._clock.monotonic() - started)
        state.spent.asked(found.requests.items())
        return found

    def _unchanged(self, slot_plan: SlotPlan, listed: int, state: Run) -> None:
        slot = slot_plan.slot
        if state.only_found and not (listed or slot_plan.generation):
            return
        result = SlotResult(
            slot=slot, status="unchanged", generation=slot_plan.generation, live_objects=listed
        )
        earlier = state.results.get(slot)
        state.results[slot] = (
            earlier if earlier and earlier.status == "committed" else added_result(earlier, result)
        )

    def _stage(self, busy: Sequence[SlotPlan], state: Run) -> list[dict[str, Any]]:
        """Manifest rows of `busy`, one each, sealed with a schema that has the fields of their objects."""
        schema = self._schemas.choose(busy, state)
        staged: list[dict[str, Any]] = []
        evolutions = MAX_EVOLUTIONS if schema.pinned.inferred else 0
        for attempt in range(MAX_EVOLUTIONS + 1):
            evolving = attempt < evolutions
            rows = self._jobs.stage(busy, schema, state, evolving=evolving)
            staged += [row for row in rows if not row["unknown"]]
            wider = {Slot(row["slot"]): json.loads(row["unknown"]) for row in rows if row["unknown"]}
            if not wider:
                break
            busy = [p for p in busy if p.slot in wider]
            self._progress(f"{len(wider)} slots have new fields")
            told = {fields for of_slot in wider.values() for fields in of_slot}
            earlier = schema.pinned.generation
            schema = self._schemas.widen(schema, told, state)
            if schema.pinned.generation == earlier:
                evolutions = 0
        return staged

    def _commit(self, row: dict[str, Any], found: Plan, planned_at: float) -> SlotResult:
        slot = Slot(row["slot"])
        result = SlotResult(
            slot=slot,
            status="unchanged",
            generation=found.slots[slot].generation,
            failed_objects=json.loads(row["failed"]) if row.get("failed") else {},
            superseded=row.get("superseded") or 0,
            live_objects=found.listed[slot],
        )
        if row["error"]:
            return replace(result, status="failed", error=row["error"])
        if row.get("body") is None:
            return result
        commit = StagedCommit(
            slot=slot,
            generation=row["generation"],
            commit_id=row["commit_id"],
            body=row["body"],
            rows=row["live_rows"],
            files=row["live_files"],
            rejects=row["live_rejects"],
            failing=row["live_failing"],
        )
        try:
            outcome = self._table.commit(commit, planned_at=planned_at)
        except S3NotifyError as error:
            return replace(result, status="failed", error=f"{type(error).__name__}: {error}")
        match outcome:
            case Conflict():
                return replace(result, status="failed", error=_LOST)
            case Written():
                return replace(
                    result,
                    status="committed",
                    generation=commit.generation,
                    objects=row["objects"],
                    rows=row["rows"],
                    rejects=row["rejects"],
                    gone=row["gone"],
                    bytes=row["bytes"],
                    live_rows=commit.rows,
                    live_files=commit.files,
                    live_rejects=commit.rejects,
                    unnamed=json.loads(row["unnamed"]),
                    mismatches=json.loads(row["mismatches"]),
                    live_failing=commit.failing,
                    quarantined=json.loads(row["quarantined"]) if row["quarantined"] else {},
                    complete=not row["unfinished"],
                )


_LOST: Final = "another run committed this slot first"
