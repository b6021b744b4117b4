"""Drives one run in rounds: plan, read, stage, commit. Each slot has its own result. Needs no Spark.

Memory: the round's splits, outcomes and states, bounded by `Input.max_objects`. Work for a cluster goes through `Jobs`.
A round is one table version, which the caller commits (`loop.commit_round`). The next round plans again the slots that
another run has committed in the meantime, and the slots with more to read. The failure of a slot raises no error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from s3notify_platform.engine.commit.new_states import RoundFacts, settled
from s3notify_platform.engine.commit.round_commit import RoundCommit
from s3notify_platform.engine.commit.staged import Base, StagedRound, outcomes_of
from s3notify_platform.engine.jobs import Jobs
from s3notify_platform.engine.loop import Results, Round, StagedTable, commit_round
from s3notify_platform.engine.read.splits import may_be_cut
from s3notify_platform.engine.run_state import Reading, Run
from s3notify_platform.engine.stage.collect import StagedPart
from s3notify_platform.engine.values.results import (
    BatchResult,
    Progress,
    SlotResult,
    added_result,
    without_key,
)
from s3notify_platform.engine.values.slot_plan import Plan, SlotPlan
from s3notify_platform.engine.values.withdrawal_guard import guard_withdrawals
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.kernel.errors import OUTAGES
from s3notify_platform.kernel.limits import MAX_UNFORESEEN, OUTAGE_SECONDS, OUTAGE_WAIT_SECONDS
from s3notify_platform.kernel.parallel import readers
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.kernel.texts import counted
from s3notify_platform.protocols.notification_queue import Entry, TopicUser
from s3notify_platform.protocols.notification_queue.segments import Segment, committed_in
from s3notify_platform.protocols.source_enumerator import cut_to_bytes
from s3notify_platform.source.source import Source
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.open_table import OpenTable
from s3notify_platform.table.snapshot import Absent, Snapshot

MAX_CONFLICTS: Final = 6
"""After this number of conflicts with other runs, a slot is not planned again in the run."""

MAX_EVOLUTIONS: Final = 3
"""Maximum number of times that one batch widens its inferred schema for new fields."""

QUARANTINED_SHOWN: Final = 5
"""Maximum number of a slot's newly quarantined objects that are logged."""


@dataclass(slots=True, kw_only=True)
class Ingest:
    """Turns changed objects of slots into commits. Each run has its own instance."""

    jobs: Jobs
    source: Source
    clock: Clock = SYSTEM_CLOCK
    progress: Progress = lambda _: None
    reads: Callable[[Reading | None], None] = lambda _: None
    """This function is called when a round begins to read, and again, with None, after the round's last read."""
    code_version: str = ""
    """The transform's fingerprint, which is noted for committed slots if the source declares no code version."""
    opened: OpenTable | None = None
    """The source's table. If the value is None, the first round opens the table."""
    state: Run = field(init=False)
    _waits: int = field(default=0, init=False)
    _waited_seconds: float = field(default=0.0, init=False)
    _fresh: Snapshot | None = field(default=None, init=False)
    """The snapshot that was read when the table was opened, for the first round."""

    def run(self, slots: Iterable[Slot], *, batch: str, **arguments: Any) -> BatchResult:
        """Commits all `rounds` of `slots`, without the steps that follow a commit (see `loop.commit_rounds`)."""
        for each in self.rounds(slots, batch=batch, **arguments):
            commit_round(each)
        return self.result()

    def rounds(
        self,
        slots: Iterable[Slot],
        *,
        batch: str,
        run: str | None = None,
        signals: Mapping[Slot, str] | None = None,
        listing: bool = True,
        only_found: bool = False,
        last_attempt: Iterable[Slot] = (),
        topic: str = "",
        segments: Sequence[Segment] | None = None,
        seen_ms: int = 0,
    ) -> Iterator[Round]:
        """Ingests `slots` in rounds. The caller must commit each round before it takes the next round. See `result`.

        Each slot has a result. With `only_found`, slots that have no objects and were never committed have no result. A
        round reads at most `Input.max_objects` and `max_bytes`. A crash loses the work of one round. No round begins
        after `max_seconds`.

        An object whose read fails is left out, and its slot is not `ok`. If the slot is in `last_attempt`, the object
        goes to quarantine, and the slot is committed. A quarantined object is not read again until the object changes
        or is retried (`table.quarantined`). The rows of the object's earlier version are removed.

        An outage never counts as a failure of an object. The affected objects and slots are retried last, with backoff.
        After the run has waited `OUTAGE_SECONDS` in total, these slots are not `ok`. If no slot could be planned,
        `UnavailableError` is raised.

        `listing`: True to list the source's prefix, False to look at the keys in the entries of the source's topic.
        `topic`: an epoch; if the topic has another epoch, `NotFoundError` is raised. `segments`: the slots' segments,
        if the caller has read them after it saw the signals. `run`: the run's id (default: the batch's id). `signals`:
        the signal ETags seen when the batch was opened, at `seen_ms`; the commit of a slot stores the ETag of the
        slot's signal. Raises `UsageError`, before any write, if the table has other settings. The same error is raised
        if the bucket, the schema or the transform fails for all slots. Raises `CorruptError` if the table is damaged
        (`open_table`).
        """
        self.state = Run(
            batch=batch,
            run=run or batch,
            signals=signals or {},
            listing=listing,
            only_found=only_found,
            last_attempt=frozenset(last_attempt),
            topic=topic,
            segments=segments,
            seen_ms=seen_ms,
            code_version=self.source.input.code_version or self.code_version,
        )
        state, self._fresh = self.state, self._opened().snapshot
        pending = sorted(set(slots))
        started = self.clock.monotonic()
        while pending:
            one = _Round(ingest=self, started=started)
            try:
                planned = one.planned(pending)
            except OUTAGES as error:
                if not self.is_patient:
                    raise
                self._wait(str(error))
                continue
            yield planned
            pending = one.again
            if state.later and not pending:
                self._wait(f"{len(state.later)} slots wait for the store")
                pending = sorted(state.later)
                state.later, state.postponed = set(), set()

    @property
    def is_patient(self) -> bool:
        """True while the run has waited less than `OUTAGE_SECONDS` in total for an unavailable store."""
        return self._waited_seconds < OUTAGE_SECONDS

    def _opened(self) -> OpenTable:
        while True:
            try:
                return self.table
            except OUTAGES as error:
                if not self.is_patient:
                    raise
                self._wait(str(error))

    def _wait(self, why: str) -> None:
        # The random half of a wait spreads the retries of several runs. The fixed half limits the number of retries.
        most = min(OUTAGE_WAIT_SECONDS, 2.0**self._waits)
        seconds = most / 2 + backoff_seconds(0, self.clock, base=most / 2, ceiling=most / 2)
        self.progress(f"an outage; the next attempt begins in {seconds:.1f} s: {why}")
        self._waits += 1
        self._waited_seconds += seconds
        self.clock.sleep(seconds)

    @property
    def table(self) -> OpenTable:
        """The source's table, opened on first use. Raises the errors of `open_table`."""
        if self.opened is None:
            self.opened = self.source.open_table(clock=self.clock)
            for warning in self.opened.warnings:
                self.progress(warning)
        return self.opened

    def base(self, store: CountingStore) -> Base:
        """Returns the table through `store`, and its newest snapshot. Cost of later rounds: `LogTable.newest`."""
        table = self.source.table(store=store, clock=self.clock)
        fresh, self._fresh = self._fresh, None
        # The snapshot `fresh` is used unless this process has committed in the meantime.
        found = fresh if fresh is not None and table.memory.kept() is fresh else table.newest()
        if isinstance(found, Absent):  # the table was forgotten, so it is opened again
            self.opened = None
            found = self.table.snapshot or table.newest()
        assert isinstance(found, Snapshot), "the table was created when it was opened"
        if found.known is not None and found.known.version < found.version:
            # The writer of this version was killed before it noted the version in `known`. Until `known` has this table
            # version, a loss of the table version cannot be detected.
            known, record = table.reader.known.note(
                found.table, found.version, found.number, seen=found.record, below=found.lineage
            )
            found = replace(found, known=known, record=record)
        return Base(table=table, snapshot=found)

    def result(self) -> BatchResult:
        """Returns the results so far."""
        return self.state.result


@dataclass(slots=True, kw_only=True)
class _Round:
    """One round: a plan, its staging, and its commit."""

    ingest: Ingest
    started: float
    again: list[Slot] = field(default_factory=list)
    """Slots to plan again after the commit of the round."""
    round: Round = field(init=False)
    _plan: Plan = field(default_factory=Plan)
    _base: Base = field(init=False)
    _store: CountingStore = field(init=False)

    def planned(self, slots: Sequence[Slot]) -> Round:
        """Plans and stages these slots."""
        ingest, state = self.ingest, self.ingest.state
        ingest.progress(f"planning {len(slots)} slots")
        self._store = CountingStore(open_store(ingest.source.location.platform))
        started = ingest.clock.monotonic()
        base, entries, user = self._looked(slots)
        self._base = base
        found = self._plan = ingest.jobs.plan(slots, base, entries=entries, skip=state.skip, user=user)
        state.result.took("plan", ingest.clock.monotonic() - started)
        state.planned_ms = ingest.clock.wall_ms()
        given = found, base.snapshot, base.table.reader.known, ingest.source, state.confirmed
        if reason := guard_withdrawals(*given, listed=entries is None, now_ms=state.planned_ms):
            ingest.progress(reason)
        result = state.result
        result.requests.update(found.requests)
        result.entries.update({slot: each.entries for slot, each in found.slots.items()})
        unannounced = sum(map(len, found.unannounced.values()))
        result.unannounced += unannounced
        wanted = self._reading()
        self._cut()
        busy = [slot_plan for slot_plan in found.slots.values() if slot_plan.changes]
        staged, queue = StagedRound(), ingest.source.location.queue(self._store)
        with readers(1) as beside:
            follows = entries is not None
            checked = beside.submit(queue.check_topic, ingest.source.name, user) if follows else None
            if busy:
                self._say(busy, wanted + sum(p.changes.beyond for p in found.slots.values()))
                try:
                    staged = self._stage(busy)
                finally:
                    self.ingest.reads(None)
            if checked is not None:
                checked.result()
        staged.failed |= found.failed
        commit = RoundCommit(
            source=ingest.source, base=base, plan=found, run=state, staged=staged, clock=ingest.clock
        )
        table = StagedTable(name=ingest.source.name, commit=lambda: self._settle(commit.committed()))
        self.round = Round(tables=iter([table]), unannounced=unannounced)
        return self.round

    def _looked(self, slots: Sequence[Slot]) -> tuple[Base, Sequence[Entry] | None, TopicUser]:
        """Reads the newest snapshot and, in parallel, the slots' entries (None if the bucket is listed)."""
        ingest, state, source = self.ingest, self.ingest.state, self.ingest.source
        entries: Sequence[Entry] | None = None
        epoch = state.topic
        if state.listing:
            base = ingest.base(self._store)
        else:
            queue = source.location.queue(self._store)
            epoch = epoch or queue.topics.get(source.name).epoch
            known, state.segments = state.segments, None
            with readers(1) as beside:
                reading = beside.submit(
                    lambda: queue.segments(source.name, slots) if known is None else known
                )
                base = ingest.base(self._store)
                entries = committed_in(reading.result(), frozenset(slots), epoch=epoch)
        return base, entries, replace(ingest.table.topic_user(source.location.slots), epoch=epoch)

    def _reading(self) -> int:
        return sum(len(slot_plan.changes.read) for slot_plan in self._plan.slots.values())

    def _say(self, busy: Sequence[SlotPlan], wanted: int) -> None:
        """Reports what this round reads. If later rounds must read more objects, estimates the remaining time."""
        ingest, reading = self.ingest, self._reading()
        done = sum(each.objects for each in ingest.state.result.slots.values())
        size = sum(split.version.size for p in busy for split in p.changes.read)
        text = (
            f"reading {counted(reading, 'object')} of {counted(len(busy), 'slot')}, {size / 1e6:.1f} MB, "
            f"{sum(len(p.changes.gone) for p in busy)} to withdraw"
        )
        if wanted > reading:
            text = f"{text}; the next rounds read {counted(wanted - reading, 'object')}"
            if done:
                seconds = (ingest.clock.monotonic() - self.started) / done * wanted
                text = f"{text}, about {seconds / 60:.1f} minutes to go"
        ingest.progress(text)
        ingest.reads(Reading(objects=reading, bytes=size, wanted=wanted, done=done))

    def _cut(self) -> None:
        """Limits the plan to `max_bytes`; the next round reads the other objects."""
        source, found = self.ingest.source, self._plan
        cut = cut_to_bytes(
            [p.changes for p in found.slots.values()],
            source.input.max_bytes,
            least=source.input.split_bytes,
            cuttable=lambda split: split.by_record or may_be_cut(split, source),
        )
        for slot_plan, changes in zip([*found.slots.values()], cut, strict=True):
            found.slots[slot_plan.slot] = replace(slot_plan, changes=changes)

    # Staging

    def _stage(self, busy: Sequence[SlotPlan]) -> StagedRound:
        """Stages the slots in `busy`, with a schema that has all fields of their objects."""
        jobs, state, base = self.ingest.jobs, self.ingest.state, self._base
        schema = jobs.choose_schema(busy, state, base.schema)
        done = StagedRound()
        evolutions = MAX_EVOLUTIONS if schema.inferred else 0
        for attempt in range(MAX_EVOLUTIONS + 1):
            wider: dict[Slot, tuple[str, ...]] = {}
            for part in jobs.stage(busy, schema, state, label=base.label):
                facts = self._facts(part, evolving=attempt < evolutions)
                found = {
                    p.slot: settled(p, outcomes_of(part, p), facts)
                    for p in part.plans
                    if p.slot not in part.failed
                }
                wider |= {slot: each.new_fields for slot, each in found.items() if each.new_fields}
                done.take(part, {slot: each for slot, each in found.items() if slot not in wider})
            if not wider:
                break
            busy = [p for p in busy if p.slot in wider]
            self.ingest.progress(f"{len(wider)} slots have new fields")
            earlier = schema
            new_fields = {one for of_slot in wider.values() for one in of_slot}
            schema = jobs.widen_schema(schema, new_fields, state, base.schema)
            if schema == earlier:
                evolutions = 0
        done.schema = schema
        self._keep_within_limit(done)
        return done

    def _facts(self, part: StagedPart, *, evolving: bool = False) -> RoundFacts:
        source, state, base = self.ingest.source, self.ingest.state, self._base
        skipped = {slot_of(key, source.location.slots) for key in state.skip}
        slots = [plan.slot for plan in part.plans]
        return RoundFacts(
            label=base.label,
            on_delete=source.input.on_delete,
            code_version=state.code_version,
            last_attempt=state.last_attempt.intersection(slots),
            complete=frozenset(p.slot for p in part.plans if p.changes.complete) - skipped,
            signals={slot: state.signals[slot] for slot in slots if slot in state.signals},
            failing={slot: base.snapshot.manifest.slot(slot).failing for slot in slots},
            evolving=evolving,
        )

    def _keep_within_limit(self, done: StagedRound) -> None:
        """Keeps at most `MAX_UNFORESEEN` objects in quarantine for unforeseen errors.

        If the round would exceed this limit, the slots whose objects would go to quarantine stay failed. The results of
        these slots are made again, as if this attempt were not the last attempt. Cost of a round with an unforeseen
        error: the requests of `StateReader.failing`.
        """
        ingest, state, base = self.ingest, self.ingest.state, self._base
        wanted = {
            slot: unforeseen
            for slot, each in done.settled.items()
            if (unforeseen := each.result.traces.keys() & each.result.quarantined.keys())
        }
        if not wanted:
            return
        manifest = base.snapshot.manifest
        failing = [slot for slot, facts in manifest.slots.items() if facts.failing]
        there = {
            key
            for found in base.table.states.failing(manifest.states, failing).values()
            for key, each in found.items()
            if each.trace
        }
        if len(there.union(*wanted.values())) <= MAX_UNFORESEEN:
            return
        ingest.progress(
            f"{len(wanted)} slots stay failed, because otherwise more than {MAX_UNFORESEEN} objects would be in "
            "quarantine for unforeseen errors. See the tracebacks. If a defect is the cause, install a version or a "
            "transform without this defect. Otherwise remove these objects"
        )
        state.last_attempt = state.last_attempt.difference(wanted)
        for part in done.parts:
            facts = self._facts(part)
            for plan in part.plans:
                if plan.slot in wanted and done.of[plan.slot] is part:
                    done.settled[plan.slot] = settled(plan, outcomes_of(part, plan), facts)

    def _log_traces(self, outcome: SlotResult) -> None:
        """Logs each traceback once, without the object's key, because `erase` cannot erase keys from logs."""
        for key, trace in outcome.every_trace.items():
            if trace not in (logged := self.ingest.state.logged):
                logged.add(trace)
                self.ingest.progress(f"slot {outcome.slot}: {without_key(trace, key)}")

    def _settle(self, outcomes: Results) -> Results:
        """Adds the outcomes to the run's results. Returns the results of the slots that the run has finished."""
        ingest, state, found = self.ingest, self.ingest.state, self._plan
        state.result.requests.update(self._store.counts)
        self._store.counts.clear()
        results = state.result.slots
        for slot, outcome in outcomes.items():
            self._log_traces(outcome)
            for key, reason in list(outcome.quarantined.items())[:QUARANTINED_SHOWN]:
                ingest.progress(f"an object of slot {slot} is in quarantine: {without_key(reason, key)}")
            changes = found.slots[slot].changes if slot in found.slots else None
            state.postponed |= outcome.unavailable.keys()
            if (outcome.outage or outcome.unavailable) and ingest.is_patient:
                state.later.add(slot)
            if outcome.status == "conflict":
                state.conflicts[slot] += 1
                if state.conflicts[slot] < MAX_CONFLICTS:
                    self.again.append(slot)
            elif outcome.status != "failed" and not (
                changes is not None and changes.complete and outcome.complete
            ):
                self.again.append(slot)
            self._add(slot, outcome)
        left, over = state.later.union(self.again), set[Slot]()
        if ingest.clock.monotonic() - self.started >= ingest.source.input.max_seconds:
            for slot in left:
                result = results.get(slot, SlotResult(slot=slot, status="unchanged"))
                results[slot] = replace(result, complete=False)
            left, over, self.again, state.later = over, left, [], set()
        done = sorted((outcomes.keys() | over) - left)
        # Slots without a result have no objects, and had none before: their entries are removed, too.
        entries = state.result.entries
        self.round.entries = {slot: entries[slot] for slot in done if slot in entries}
        return {slot: results[slot] for slot in done if slot in results}

    def _add(self, slot: Slot, outcome: SlotResult) -> None:
        state = self.ingest.state
        earlier = state.result.slots.get(slot)
        busy = slot in self._plan.slots and self._plan.slots[slot].changes
        if outcome.status == "unchanged" and not busy:
            if state.only_found and earlier is None and not (outcome.live_objects or outcome.generation):
                return
            if earlier is not None and earlier.status == "committed" and not earlier.unavailable:
                return
        waiting = {
            key: why
            for key, why in (earlier.unavailable if earlier else {}).items()
            if key in state.postponed
        }
        outcome = replace(outcome, complete=True, unavailable={**waiting, **outcome.unavailable})
        state.result.slots[slot] = added_result(earlier, outcome)
