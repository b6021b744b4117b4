"""The sensor's decisions: the slots that a tick requests, as a function of the cursor and the poll. The module does not
use Dagster.

Theory of operation. A batch is opened in the record store before its run is requested. A batch is an ack chain: the
chain's children are the batch's slots, and the chain's payload has the signals seen. Dagster stores the cursor after
the tick. If a tick dies before the cursor is stored, the tick is repeated with the same batch id. The repeated tick
finds this batch's chain, and requests the same run under the same run key, so that Dagster launches the run once.

    changed ──► in flight ──► settled                    chain acked: all its slots are committed
                   │
                   └──► failing ──backoff──► in flight   run ended or silent before its chain was acked
                           │
                           └──► parked                   after `max_attempts`, for `parked_seconds` or until a change

An unreadable object does not park its slot. On the slot's last attempt (`BatchPayload.last_attempt`), unreadable
objects go to quarantine, and the slot's other objects are committed. Objects on which a parser, a transform or a file
writer raises an error also go to quarantine, up to `MAX_UNFORESEEN` objects of the source. A slot is parked if the
whole slot fails. The cause is an outage, a transform that raises even without rows, or too many failing objects. A
parked slot is retried.

Slots that failed are requested in separate batches, so that they do not make other slots fail. The slots of one failed
batch are retried in halves. After log2(number of slots) batches, the slot at fault is alone, and all other slots are
committed. Batches of failed slots and batches of other slots take turns.

`list_or_follow` decides for each batch between a listing of the bucket and the entries of the source's topic. A batch
that compares everything runs alone. Rescans are `list_seconds` apart.

A slot in flight is never requested again. If a slot in flight changes, the change waits. The cursor keeps the root's
old ETag until all changed slots were requested. A living run increments a counter (`heartbeats`). A run counts as dead
if, by the sensor's own clock, its counter has not changed for `silence_seconds`. A run without a heartbeat counts as
dead after `silence_seconds` if its process is known to be gone, and otherwise after `startup_seconds`. The data is
correct even if a living run counts as dead: the living run either commits, or has a conflict with the next run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from s3notify_platform.engine.batch.batches import (
    EVERYTHING,
    BatchPayload,
    BatchRequest,
    Failing,
    OpenBatch,
    SensorState,
)
from s3notify_platform.engine.batch.list_or_follow import decide
from s3notify_platform.engine.batch.run_pulse import RunView, pulse_of
from s3notify_platform.engine.values.withdrawal_guard import is_refusal
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import TagExists, TagNotFound
from s3notify_platform.kernel.limits import MAX_REASON
from s3notify_platform.kernel.parallel import readers
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.ack_chain import AckChains, Chain, ChainState
from s3notify_platform.protocols.keyspace import Poll, Watcher
from s3notify_platform.protocols.source_enumerator import Assignment, RescanBacklog, Rescans, assign_slots
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.table.open_table import OpenTable

TOPIC_SECONDS: Final = 30.0
"""Seconds between two reads of the topic. A deleted topic is noticed after this time at the latest."""

PARKED_SHOWN: Final = 10
"""Maximum number of parked slots in a tick's note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The decisions of one evaluation of the sensor.

    `silent_runs`: runs that are silent (see `run_pulse`), and must be reported as failed.
    """

    state: SensorState
    requests: tuple[BatchRequest, ...]
    note: str
    silent_runs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class BatchPlanner:
    """Evaluates ticks of one source.

    `topic_epoch` returns the epoch of the source's topic. `topic_epoch` also creates the topic if it is missing, and
    makes the topic serve the given table (`Topics.serve`). `backlog`: the source's rescan backlog. `table` opens the
    source's table, which must have the id in the cursor (`Source.open_table`). `claim` notes which sensor works on the
    table (`open_table.claim`).

    Cost of a tick: 1 HEAD, and 1 LIST if the root has changed. Cost of each open batch: 1 LIST of its chain, 1 GET for
    each of its runs, and 1 GET when the batch has ended. Cost of the end of a batch that listed the bucket, or did not
    commit all slots: 2 GETs (topic, backlog). Cost of opening a batch: 1 GET (backlog), 1 PUT, and the requests of
    `table` and `claim`. Every `TOPIC_SECONDS`, a tick also reads the topic, by 1 GET.
    """

    source: str
    watcher: Watcher
    chains: AckChains
    backlog: RescanBacklog
    topic_epoch: Callable[[OpenTable | None], str]
    runs_of: Callable[[str], Sequence[RunView]]
    table: Callable[[str], OpenTable]
    claim: Callable[[OpenTable, str], str]
    settings: BatchSettings
    clock: Clock = SYSTEM_CLOCK

    def first(self) -> SensorState:
        """Returns the state of a sensor that has seen no signal.

        The state must be stored before the first batch, so that a repeated tick uses the same batch ids.
        """
        self.topic_epoch(None)  # creates the topic: writers queue as soon as the topic exists
        return SensorState(epoch=self.clock.random_bytes(5).hex(), watch=self.watcher.fresh_state())

    def tick(self, state: SensorState) -> Tick:
        """Settles ended batches, polls for changes, and opens the next batch.

        If `open_table` refuses the table, the error of `open_table` is raised, and the cursor stays unchanged.
        """
        if state.watch.slots != self.watcher.fresh_state().slots and state.table:
            table = self.table(state.table)
            if table.id != state.table:
                return self._begin_again(table)
        now_ms = self.clock.wall_ms()
        state, silent, notes = self._settle(state, now_ms)
        state, lost = self._look_at_topic(state, now_ms)
        relist = now_ms - state.listed_ms >= self.settings.relist_seconds * 1000
        poll = self.watcher.observe(state.watch, relist=relist, listed_ago=(now_ms - state.listed_ms) / 1000)
        if poll.listed:
            state = replace(state, listed_ms=now_ms)
        if poll.changed:
            # A parked slot whose signal has changed gets all its attempts again, without a wait. The slot is still
            # requested alone.
            again = {
                slot: replace(item, attempts=0, not_before_ms=now_ms, parked=False)
                for slot, item in state.failing.items()
                if item.parked and slot in poll.changed
            }
            state = replace(state, failing={**state.failing, **again})
        wanted = self._wanted(state, poll.changed, now_ms)
        requests: tuple[BatchRequest, ...] = ()
        warnings = lost
        if (wanted or state.backlog) and len(state.open) < self.settings.max_open:
            with readers(1) as beside:
                reading = beside.submit(self.backlog.read)
                table = self.table(state.table)
                rescans = reading.result()
            if state.table not in ("", table.id):
                return self._begin_again(table)
            another = self.claim(table, state.epoch)
            warnings = (*lost, *table.warnings, *filter(None, [another]))
            state = replace(state, table=table.id)
            state, requests, waits = self._open(state, table, wanted, poll, rescans=rescans, now_ms=now_ms)
            notes += waits
        state = replace(state, watch=poll.settled(state.watch))
        note = ", ".join([*warnings, *notes, _note_of(state, poll, requests)])
        return Tick(state=state, requests=requests, note=note, silent_runs=silent, warnings=warnings)

    def _look_at_topic(self, state: SensorState, now_ms: int) -> tuple[SensorState, tuple[str, ...]]:
        """Reads the topic again every `TOPIC_SECONDS`.

        If another topic has replaced the topic of the last complete comparison, all slots must be compared again. Cost:
        1 request.
        """
        if not state.enumerated or now_ms - state.topic_ms < TOPIC_SECONDS * 1000:
            return state, ()
        state = replace(state, topic_ms=now_ms)
        if self.topic_epoch(None) == state.enumerated:
            return state, ()
        return replace(state, enumerated=""), (self._topic_gone(),)

    def _topic_gone(self) -> str:
        return f"the topic {self.source!r} is gone, and a new topic was made: everything is compared once"

    def _begin_again(self, table: OpenTable) -> Tick:
        note = "the table was forgotten, or a rewritten table has replaced it: everything is compared again"
        return Tick(state=replace(self.first(), table=table.id), requests=(), note=note)

    def _wanted(self, state: SensorState, asked: Iterable[int], now_ms: int) -> set[int]:
        """Returns the slots to request now: either changed slots, or failed slots whose backoff is over.

        `EVERYTHING` is requested alone: its batch waits until no other batch is open, and all slots wait for its batch.
        Each group of failed slots is requested alone, too, but waits for no other batch.
        """
        if not state.enumerated and state.open:
            return set()
        taken = {slot for batch in state.open for slot in batch.slots}
        due = {slot: item for slot, item in state.failing.items() if item.not_before_ms <= now_ms}
        if not state.enumerated:
            return {EVERYTHING} - taken - (state.failing.keys() - due.keys())
        healthy = {*asked} - taken - state.failing.keys()
        groups = [(item.not_before_ms, item.group) for slot, item in due.items() if slot not in taken]
        if not groups or (healthy and state.retried):
            return healthy
        _, first = min(groups)
        return {slot for slot, item in due.items() if item.group == first} - taken

    def _open(
        self,
        state: SensorState,
        table: OpenTable,
        wanted: set[int],
        poll: Poll,
        *,
        rescans: Rescans,
        now_ms: int,
    ) -> tuple[SensorState, tuple[BatchRequest, ...], list[str]]:
        """Opens a batch of these slots. If the batch lists the bucket, all slots that wait for a rescan are added.

        `rescans`: the backlog, read after the poll.
        """
        changed = poll.changed
        # If the topic was replaced in the meantime, a run that follows entries fails, and the next tick reads
        # the new epoch.
        topic = state.enumerated or self.topic_epoch(table)
        decision = decide(
            map(Slot, wanted),
            rescans,
            topic=topic,
            enumerated=state.enumerated,
            now_ms=now_ms,
            unqueued=not poll.unqueued.isdisjoint(wanted),
            listed_ms=state.bucket_listed_ms,
            list_seconds=self.settings.list_seconds,
        )
        gone = [self._topic_gone()] if decision.everything and state.enumerated else []
        state = replace(state, backlog=bool(rescans.slots))
        if decision.wait_seconds:
            return state, (), [f"the next listing is due in {decision.wait_seconds:.0f} s"]
        if decision.everything:
            state = replace(state, enumerated="")
        if decision.listing:
            wanted = self._wanted(state, decision.slots, now_ms)
        if not wanted:
            return state, (), gone
        covered = set(changed) if decision.everything else wanted
        signals = {str(slot): changed[Slot(slot)] for slot in sorted(covered) if slot in changed}
        # `last`: the slots that `_note_failed` parks if they fail. A batch of all slots parks no slot.
        attempts = {
            slot: item.attempts for slot, item in state.failing.items() if not is_refusal(item.reason)
        }
        last = (s for s in sorted(wanted - {EVERYTHING}) if self.settings.is_last(attempts.get(s, 0)))
        payload = BatchPayload(
            slots=tuple(sorted(wanted)),
            signals=signals,
            listing=decision.listing,
            rescans={str(s): n for s, n in rescans.slots.items() if decision.everything or s in wanted},
            last_attempt=tuple(last),
            topic=topic,
            signalled_ms=poll.root_ms if signals else 0,
            opened_ms=now_ms,
        )
        batch = f"{self.source}-{state.epoch}-{state.next_batch}"
        try:
            chain = self.chains.open_batch(batch, map(str, payload.slots), payload=payload.dumps())
        except TagExists:
            # An earlier tick died before its cursor was stored. The chain has the slots that the earlier tick
            # requested.
            chain = self.chains.chain(batch)
            payload = BatchPayload.loads(chain.payload)
        slots = payload.slots
        seen = {Slot(int(slot)): ETag(etag) for slot, etag in payload.signals.items()}
        parts = max(1, min(self.settings.parallel_runs, len(slots)))
        opened = OpenBatch(
            id=batch,
            chain=chain.version,
            slots=slots,
            parts=parts,
            opened_ms=now_ms,
            listing=payload.listing,
            topic=payload.topic,
        )
        state = replace(
            state,
            next_batch=state.next_batch + 1,
            bucket_listed_ms=now_ms if payload.listing else state.bucket_listed_ms,
            watch=state.watch.advance(seen, seen),
            open=(*state.open, opened),
            retried=not state.failing.keys().isdisjoint(slots),
        )
        state, shares = self._shares(state)
        assigned = assign_slots(map(Slot, slots), parts, shares)
        requests = tuple(
            BatchRequest(batch=batch, part=n, parts=parts, slots=of_part)
            for n, of_part in enumerate(assigned.ranges)
        )
        return state, requests, gone

    def _shares(self, state: SensorState) -> tuple[SensorState, Assignment | None]:
        """Returns each parallel run's share of all slots.

        A batch uses these shares if they divide the batch's slots about equally. So the n-th run of each
        batch usually gets the same slots, and few slots move when the number of runs changes.
        """
        runs = self.settings.parallel_runs
        shares = [range(first, last + 1) for first, last in state.ranges]
        before = Assignment(ranges=tuple(tuple(map(Slot, share)) for share in shares)) if shares else None
        if runs == max(1, len(shares)):
            return state, before
        now = assign_slots(map(Slot, range(state.watch.slots)), runs, before)
        ranges = tuple((slots[0], slots[-1]) for slots in now.ranges if slots) if runs > 1 else ()
        return replace(state, ranges=ranges), now

    def _settle(self, state: SensorState, now_ms: int) -> tuple[SensorState, tuple[str, ...], list[str]]:
        still_open: list[OpenBatch] = []
        failing = dict(state.failing)
        silent: list[str] = []
        notes: list[str] = []
        unsure = False  # true if the topic may have been replaced, or slots may wait for a rescan
        for batch in state.open:
            chain = self._state(batch)
            if chain is not None and chain.status == "open":
                runs = self.runs_of(batch.id)
                watched, alive, quiet = self._pulse(batch, runs, now_ms)
                silent += quiet
                if alive:
                    still_open.append(watched)
                    continue
                failures = sorted(filter(None, (run.failure for run in runs)), key=is_refusal, reverse=True)
                reason = failures[0] if failures else "the batch's run ended before all slots were committed"
                # If the chain was acked in the meantime, it stays acked after `fail`.
                chain = self.chains.fail(_chain(batch), reason[:MAX_REASON])
            missing = set(batch.slots) if chain is None else {int(child) for child in chain.missing}
            reason = (chain and chain.reason) or "the batch's ack chain is gone"
            self._note_failed(failing, batch, missing, reason, now_ms)
            compared_all = EVERYTHING in batch.slots and EVERYTHING not in missing
            for slot in {*batch.slots, *(failing if compared_all else ())} - missing:
                failing.pop(slot, None)
            unsure |= batch.listing or bool(missing)
            if batch.listing:
                self.backlog.add(Slot(slot) for slot in missing if slot != EVERYTHING)
            if compared_all:
                state = replace(state, enumerated=batch.topic)
            notes.append(
                f"batch {batch.id} did not commit {len(missing)} of its slots"
                if missing
                else f"batch {batch.id} done"
            )
        if unsure:
            state = replace(state, backlog=bool(self.backlog.read().slots), topic_ms=now_ms)
            if self.topic_epoch(None) != state.enumerated:
                # The entries of the earlier topic are lost, so all slots must be compared.
                notes += [self._topic_gone()] if state.enumerated else []
                state = replace(state, enumerated="")
        return replace(state, open=tuple(still_open), failing=failing), tuple(silent), notes

    def _state(self, batch: OpenBatch) -> ChainState | None:
        try:
            return self.chains.state(_chain(batch))
        except TagNotFound:
            return None

    def _pulse(
        self, batch: OpenBatch, runs: Sequence[RunView], now_ms: int
    ) -> tuple[OpenBatch, bool, Sequence[str]]:
        """Returns the batch with the progress of its runs. The second result is true if a run is alive, or if a run is
        expected to appear. The third result has the silent runs.
        """
        startup_ms = self.settings.startup_seconds * 1000
        found = pulse_of(
            runs,
            batch.progress,
            now_ms,
            silence_seconds=self.settings.silence_seconds,
            startup_seconds=self.settings.startup_seconds,
        )
        # Some runs of the batch may not exist yet: after a tick has died, Dagster creates the remaining runs.
        awaited = len(runs) < batch.parts and now_ms - batch.opened_ms < startup_ms
        return replace(batch, progress=found.progress), awaited or bool(found.alive), found.silent

    def _note_failed(
        self, failing: dict[int, Failing], batch: OpenBatch, missing: set[int], reason: str, now_ms: int
    ) -> None:
        """Adds the uncommitted slots of a batch to `failing`, as two groups. The slots are one group if the batch
        compared all slots, or if too many objects were missing.
        """
        ordered, alone, refused = sorted(missing), len(batch.slots) == 1, is_refusal(reason)
        middle = 0 if EVERYTHING in batch.slots or refused else len(ordered) // 2
        for group in filter(None, (ordered[:middle], ordered[middle:])):
            for slot in group:
                # A batch of all slots does not count as an attempt of a slot, because such a batch cannot quarantine
                # objects.
                attempts = (failing[slot].attempts if slot in failing else 0) + (slot in batch.slots)
                parked = alone and attempts >= self.settings.max_attempts and slot != EVERYTHING
                # Most slots of a group are not at fault, so the backoff grows only if a smaller batch cannot help.
                wait = self.settings.retry_seconds(attempts if alone or refused else 1)
                failing[slot] = Failing(
                    attempts=attempts,
                    not_before_ms=now_ms + int((self.settings.parked_seconds if parked else wait) * 1000),
                    reason=reason,
                    group=group[0],
                    parked=parked,
                )


def _chain(batch: OpenBatch) -> Chain:
    """Returns the chain of a batch. The result has no payload, so that no tick has to read the chain's head."""
    return Chain.of(batch.id, batch.chain, map(str, batch.slots))


def _note_of(state: SensorState, poll: Poll, requests: Sequence[BatchRequest]) -> str:
    notes = [f"{len(poll.changed)} slots changed"] if poll.changed else []
    if requests:
        asked = [slot for request in requests for slot in request.slots]
        of = "the whole source" if EVERYTHING in asked else f"{len(asked)} slots"
        notes.append(f"batch {requests[0].batch} of {of}")
    notes = notes or ["nothing changed"]
    if state.open:
        notes.append(f"{len({slot for batch in state.open for slot in batch.slots})} in flight")
    if waiting := [slot for slot, item in state.failing.items() if not item.parked]:
        notes.append(f"{len(waiting)} to be retried")
    if parked := sorted(slot for slot, item in state.failing.items() if item.parked):
        shown = ", ".join(map(str, parked[:PARKED_SHOWN]))
        notes.append(f"{len(parked)} parked for now ({shown}): {state.failing[parked[0]].reason}")
    return ", ".join(notes)
