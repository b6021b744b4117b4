"""Which slots a tick asks for: the sensor's decisions, as a function of its cursor and what it sees. No Dagster.

Theory of operation. A batch is opened in the record store, as an ack chain whose children are its slots and
whose payload is the signals seen, before its run is requested; the cursor is stored by Dagster after that.
So a tick that dies in between is repeated with the same batch id, finds its own chain, and requests the same
run under the same run key, which Dagster launches once.

    changed ──► in flight ──► settled                      (chain acked: all its slots are committed)
                   │
                   └──► failing ──backoff──► in flight     (run ended or fell silent before its chain was acked)
                           │
                           └──► parked                     (`max_attempts` reached; its next change frees it)

A slot in flight is never requested again; its later changes wait, because the root is not remembered until
every changed slot could be taken. A run's liveness is a counter it moves (`Heartbeat`); the sensor measures
with its own clock how long a counter stands still.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, TagExists, TagNotFound
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.ack_chain import AckChains, ChainState
from s3notify_platform.protocols.keyspace import Watcher, WatcherState
from s3notify_platform.slots import Slot

EVERYTHING: Final = -1
"""Stands for all slots in the source's first batch, which takes in what was there before any signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Limits of a source's batches."""

    parallel_runs: int = 1
    max_open: int = 1
    max_attempts: int = 5
    backoff_seconds: float = 10.0
    backoff_ceiling_seconds: float = 900.0
    silence_seconds: float = 30.0
    startup_seconds: float = 180.0
    relist_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run of a batch as Dagster knows it."""

    run_id: str
    ended: bool
    started: bool
    beats: int | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch in flight. `progress` is (beats, when they last moved, in the sensor's wall ms) by run."""

    id: str
    slots: tuple[int, ...]
    opened_ms: int
    progress: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A slot whose last batch did not commit it. `not_before_ms` is -1 when it is parked."""

    attempts: int
    not_before_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorState:
    """The cursor. About 12 KB, whatever the bucket holds."""

    epoch: str
    next_batch: int = 0
    enumerated: bool = False
    listed_ms: int = 0
    watch: WatcherState = field(default_factory=WatcherState)
    open: tuple[OpenBatch, ...] = ()
    failing: Mapping[int, Failing] = field(default_factory=dict)

    def dumps(self) -> str:
        """JSON, for Dagster's cursor."""
        body = {
            "epoch": self.epoch,
            "next_batch": self.next_batch,
            "enumerated": self.enumerated,
            "listed_ms": self.listed_ms,
            "watch": self.watch.dumps(),
            "open": [asdict(batch) for batch in self.open],
            "failing": {slot: asdict(item) for slot, item in self.failing.items()},
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> "SensorState":
        """Inverse of `dumps`; `CorruptError` (reset the cursor) for anything else."""
        try:
            body = json.loads(text)
            return cls(
                epoch=body["epoch"],
                next_batch=body["next_batch"],
                enumerated=body["enumerated"],
                listed_ms=body["listed_ms"],
                watch=WatcherState.loads(body["watch"]),
                open=tuple(
                    OpenBatch(
                        id=item["id"],
                        slots=tuple(item["slots"]),
                        opened_ms=item["opened_ms"],
                        progress={run: (beats, at) for run, (beats, at) in item["progress"].items()},
                    )
                    for item in body["open"]
                ),
                failing={int(slot): Failing(**item) for slot, item in body["failing"].items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError("the sensor's cursor is not ours: reset it in the UI; nothing is lost by that") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A run to be requested, for `slots`, or for `EVERYTHING`."""

    batch: str
    part: int
    parts: int
    slots: tuple[int, ...]

    @property
    def run_key(self) -> str:
        """The same for the same request, so that Dagster launches it once."""
        return f"{self.batch}-{self.part}of{self.parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one evaluation decided. `silent_runs` are started runs that stopped moving: report them as failed."""

    state: SensorState
    requests: tuple[BatchRequest, ...]
    note: str
    silent_runs: tuple[str, ...] = ()


class BatchPlanner:
    """Evaluates ticks of one source.

    Requests: 1 HEAD, and 1 LIST if the root moved; for each open batch 1 GET of its chain and one for each of
    its runs; 1 PUT to open a batch.
    """

    def __init__(
        self,
        *,
        source: str,
        watcher: Watcher,
        chains: AckChains,
        runs_of: Callable[[str], Sequence[RunView]],
        settings: BatchSettings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._source = source
        self._watcher = watcher
        self._chains = chains
        self._runs_of = runs_of
        self._settings = settings
        self._clock = clock

    def first(self) -> SensorState:
        """A cursor that has seen nothing. Store it before the first batch, so that batch ids can be repeated."""
        return SensorState(epoch=self._clock.random_bytes(5).hex(), watch=self._watcher.fresh_state())

    def tick(self, state: SensorState) -> Tick:
        """Settle what has ended, see what changed, open the next batch."""
        now_ms = self._clock.wall_ms()
        state, silent, notes = self._settle(state, now_ms)
        relist = now_ms - state.listed_ms >= self._settings.relist_seconds * 1000
        poll = self._watcher.observe(state.watch, relist=relist)
        if poll.listed:
            state = replace(state, listed_ms=now_ms)
            state = _freed(state, poll.changed)
        taken = {slot for batch in state.open for slot in batch.slots}
        due = {slot for slot, item in state.failing.items() if 0 <= item.not_before_ms <= now_ms}
        waiting = {slot for slot in state.failing if slot not in due}
        wanted = (set(poll.changed) | due) - taken - waiting
        if not state.enumerated:
            wanted = {EVERYTHING} - taken - waiting
        requests: tuple[BatchRequest, ...] = ()
        if wanted and len(state.open) < self._settings.max_open:
            state, requests = self._open(state, wanted, poll.changed, now_ms)
        if poll.listed and not state.watch.changed(poll.signals):
            state = replace(state, watch=state.watch.at_root(poll.root_etag))
        notes.append(f"{len(poll.changed)} slots changed" if poll.listed else "nothing changed")
        if state.open:
            notes.append(f"{len({s for b in state.open for s in b.slots})} in flight")
        if state.failing:
            parked = sum(item.not_before_ms < 0 for item in state.failing.values())
            notes.append(f"{len(state.failing) - parked} to be retried, {parked} parked")
        return Tick(state=state, requests=requests, note=", ".join(notes), silent_runs=silent)

    def _open(
        self, state: SensorState, wanted: set[int], changed: Mapping[Slot, ETag], now_ms: int
    ) -> tuple[SensorState, tuple[BatchRequest, ...]]:
        batch = f"{self._source}-{state.epoch}-{state.next_batch}"
        covered = set(changed) if EVERYTHING in wanted else wanted
        signals = {str(slot): changed[Slot(slot)] for slot in sorted(covered) if slot in changed}
        payload = json.dumps({"slots": sorted(wanted), "signals": signals})
        try:
            self._chains.open_batch(batch, [str(slot) for slot in sorted(wanted)], payload=payload)
        except TagExists:
            # A tick of ours died before its cursor was stored: the chain says what it had asked for.
            payload = self._chains.state(batch).payload
        stored = json.loads(payload) if payload else {"slots": [], "signals": {}}
        slots = tuple(int(slot) for slot in stored["slots"])
        seen = {Slot(int(slot)): ETag(etag) for slot, etag in stored["signals"].items()}
        state = replace(
            state,
            next_batch=state.next_batch + 1,
            watch=state.watch.advance(seen, seen),
            open=(*state.open, OpenBatch(id=batch, slots=slots, opened_ms=now_ms)),
        )
        parts = max(1, min(self._settings.parallel_runs, len(slots)))
        return state, tuple(
            BatchRequest(batch=batch, part=n, parts=parts, slots=slots[n::parts])
            for n in range(parts)
            if slots[n::parts]
        )

    def _settle(self, state: SensorState, now_ms: int) -> tuple[SensorState, tuple[str, ...], list[str]]:
        still_open: list[OpenBatch] = []
        failing = dict(state.failing)
        silent: list[str] = []
        notes: list[str] = []
        for batch in state.open:
            chain = self._chain(batch.id)
            if chain is not None and chain.status == "acked":
                notes.append(f"batch {batch.id} done")
                state = replace(state, enumerated=state.enumerated or EVERYTHING in batch.slots)
                for slot in batch.slots:
                    failing.pop(slot, None)
                continue
            runs = self._runs_of(batch.id)
            batch, lost, quiet = self._pulse(batch, runs, now_ms)  # noqa: PLW2901 - the batch, seen once more
            if not lost and not (chain is None or chain.status == "failed"):
                still_open.append(batch)
                continue
            failures = [run.failure for run in runs if run.failure]
            reason = failures[0] if failures else "its run ended before it was committed"
            missing = set(batch.slots) if chain is None else {int(child) for child in chain.missing}
            for slot in batch.slots:
                if slot not in missing:
                    failing.pop(slot, None)
            for slot in sorted(missing):
                failing[slot] = self._failed(slot, failing.get(slot), reason, now_ms)
            if chain is not None and not chain.status == "failed":
                self._chains.fail(batch.id, reason)
            silent += quiet
            notes.append(f"batch {batch.id} left {len(missing)} slots")
        return replace(state, open=tuple(still_open), failing=failing), tuple(silent), notes

    def _chain(self, tag: str) -> ChainState | None:
        try:
            return self._chains.state(tag)
        except TagNotFound:
            return None

    def _pulse(
        self, batch: OpenBatch, runs: Sequence[RunView], now_ms: int
    ) -> tuple[OpenBatch, bool, list[str]]:
        """Whether all runs of a batch are over or silent, and which started ones are silent."""
        progress = dict(batch.progress)
        alive = not runs and now_ms - batch.opened_ms < self._settings.startup_seconds * 1000
        quiet: list[str] = []
        for run in runs:
            if run.ended:
                continue
            beats = run.beats if run.beats is not None else -1
            known = progress.get(run.run_id)
            if known is None or known[0] != beats:
                progress[run.run_id] = known = (beats, now_ms)
            limit = self._settings.silence_seconds if beats >= 0 else self._settings.startup_seconds
            if not run.started or now_ms - known[1] < limit * 1000:
                alive = True
            else:
                quiet.append(run.run_id)
        return replace(batch, progress=progress), not alive, quiet if not alive else []

    def _failed(self, slot: int, known: Failing | None, reason: str, now_ms: int) -> Failing:
        attempts = (known.attempts if known else 0) + 1
        if attempts >= self._settings.max_attempts and slot != EVERYTHING:
            return Failing(attempts=attempts, not_before_ms=-1, reason=reason)
        wait = min(self._settings.backoff_ceiling_seconds, self._settings.backoff_seconds * 2 ** min(attempts - 1, 20))
        return Failing(attempts=attempts, not_before_ms=now_ms + int(wait * 1000), reason=reason)


def _freed(state: SensorState, changed: Mapping[Slot, ETag]) -> SensorState:
    """Parked slots whose signal moved get a new start."""
    failing = {
        slot: item for slot, item in state.failing.items() if item.not_before_ms >= 0 or slot not in changed
    }
    return replace(state, failing=failing)
