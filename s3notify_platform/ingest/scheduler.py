"""Which slots a tick asks for: the sensor's decisions, a function of its cursor and what it sees. No Dagster.

Theory of operation. A batch is opened in the record store, as an ack chain whose children are its slots and
whose payload is the signals seen, before its run is requested; the cursor is stored by Dagster after that.
So a tick that dies in between is repeated with the same batch id, finds its own chain, and requests the same
run under the same run key, which Dagster launches once.

    changed ──► in flight ──► settled                    chain acked: all its slots are committed
                   │
                   └──► failing ──backoff──► in flight   run over or silent before its chain was acked
                           │
                           └──► parked                   `max_attempts` reached: `parked_seconds`, or its next change

A slot is not parked for an object that cannot be read: the batch of its last attempt (`last_try`) gives such objects
up to quarantine and commits. What parks a slot is what concerns it as a whole, like a transform that raises; or an
outage, so it is tried again. Parked slots are tried apart from all others, which what ails them must not hit.

A batch takes in what the entries of the source's topic name, and lists nothing, but in three cases. The first
batch lists the bucket once its topic is made (and another one, should the topic be lost and made again). Slots that
are owed a listing (`RescanBacklog`) are listed together. And as long as a writer signals without queueing, every batch
lists. Listings, and with them such batches, are `list_seconds` apart.

A slot in flight is never requested again; its later changes wait, because the root is not remembered until
every changed slot could be taken. A run's liveness is a counter it moves (`resources.heartbeat`); the sensor
measures with its own clock how long a counter stands still. Nothing about data hangs on it: a run that was
given up and is not dead commits, or loses to the next one, like any other.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Final

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, TagExists, TagNotFound
from s3notify_platform.ingest.settings import About
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.ack_chain import AckChains, ChainState
from s3notify_platform.protocols.keyspace import Poll, Watcher, WatcherState
from s3notify_platform.protocols.source_enumerator import RescanBacklog, assign_slots
from s3notify_platform.slots import Slot

EVERYTHING: Final = -1
"""Stands for all slots in the source's first batch, which takes in what was there before any signal."""


REASON_MAX: Final = 200
SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Limits of a source's batches."""

    parallel_runs: Annotated[
        int, About(description="Runs that a batch is split into", unit="runs", minimum=1)
    ] = 1
    max_open: Annotated[
        int,
        About(description="Batches in flight at once; their slots are disjoint", unit="batches", minimum=1),
    ] = 1
    max_attempts: Annotated[
        int,
        About(
            description="Batches a slot may fail in: the last puts objects that cannot be read to quarantine; a slot "
            "that fails otherwise is parked",
            unit="batches",
            minimum=1,
        ),
    ] = 5
    backoff_seconds: Annotated[
        float, About(description="Before a slot that failed is tried again; doubles", unit="seconds")
    ] = 10.0
    backoff_ceiling_seconds: float = 900.0
    parked_seconds: Annotated[
        float,
        About(description="Before a parked slot is tried again; as soon as it changes, too", unit="seconds"),
    ] = 3600.0
    silence_seconds: Annotated[
        float, About(description="A run without heartbeat for this long is taken for dead", unit="seconds")
    ] = 30.0
    startup_seconds: float = 180.0
    relist_seconds: float = 300.0
    list_seconds: Annotated[
        float,
        About(
            description="Between listings of the bucket, if a writer does not queue; raise it for large buckets",
            unit="seconds",
        ),
    ] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run of a batch as Dagster knows it. `beats` is None before its heart has beaten, or after."""

    run_id: str
    ended: bool
    queued: bool
    """Waits for room: may take any time, and is not silence."""
    beats: int | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch in flight. `progress` is (beats, when they last moved, in the sensor's wall ms) by run."""

    id: str
    slots: tuple[int, ...]
    parts: int
    opened_ms: int
    listing: bool = False
    progress: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A slot whose last batch did not commit it, and when it is asked for again; sooner if it is parked and changes."""

    attempts: int
    not_before_ms: int
    reason: str
    parked: bool = False
    """Failed `max_attempts` times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorState:
    """The cursor: 11 KB of digests, 5 bytes for each slot in flight or failing, whatever the bucket holds.

    `listed_ms` is of the keyspace, `bucket_listed_ms` of the bucket. `topic` is the epoch of the source's topic.
    """

    epoch: str
    next_batch: int = 0
    enumerated: bool = False
    topic: str = ""
    rescans_waiting: bool = False
    listed_ms: int = 0
    bucket_listed_ms: int = 0
    watch: WatcherState = field(default_factory=WatcherState)
    open: tuple[OpenBatch, ...] = ()
    failing: Mapping[int, Failing] = field(default_factory=dict)

    def dumps(self) -> str:
        """JSON, for Dagster's cursor."""
        body = {
            "epoch": self.epoch,
            "next_batch": self.next_batch,
            "enumerated": self.enumerated,
            "topic": self.topic,
            "rescans_waiting": self.rescans_waiting,
            "listed_ms": self.listed_ms,
            "bucket_listed_ms": self.bucket_listed_ms,
            "watch": self.watch.dumps(),
            "open": [asdict(batch) for batch in self.open],
            "failing": _by_fate(self.failing),
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
                topic=body["topic"],
                rescans_waiting=body["rescans_waiting"],
                listed_ms=body["listed_ms"],
                bucket_listed_ms=body["bucket_listed_ms"],
                watch=WatcherState.loads(body["watch"]),
                open=tuple(
                    OpenBatch(
                        id=item["id"],
                        slots=tuple(item["slots"]),
                        parts=item["parts"],
                        opened_ms=item["opened_ms"],
                        listing=item["listing"],
                        progress={run: (beats, at) for run, (beats, at) in item["progress"].items()},
                    )
                    for item in body["open"]
                ),
                failing={
                    slot: Failing(
                        attempts=attempts, not_before_ms=not_before_ms, reason=reason, parked=parked
                    )
                    for attempts, not_before_ms, reason, parked, slots in body["failing"]
                    for slot in slots
                },
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                "the sensor's cursor is not ours: reset it in the UI; nothing is lost by that"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPayload:
    """What a batch's chain keeps for its runs: the signals seen, by slot, and how to find out what changed.

    `rescans` are the slots that this batch's listing pays, as in `Rescans`. `last_try`: slots that are parked if they
    fail again, so that objects which cannot be read have to be given up. `topic`: its epoch when the batch was opened.
    """

    slots: tuple[int, ...] = ()
    signals: Mapping[str, str] = field(default_factory=dict)
    listing: bool = True
    rescans: Mapping[str, int] = field(default_factory=dict)
    last_try: tuple[int, ...] = ()
    topic: str = ""

    def dumps(self) -> str:
        """JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> "BatchPayload":
        """Inverse of `dumps`; without text, a batch that lists."""
        body = json.loads(text) if text else {}
        return cls(**body | {name: tuple(body.get(name, ())) for name in ("slots", "last_try")})


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
    """What one evaluation decided. `silent_runs` stopped moving: report them as failed."""

    state: SensorState
    requests: tuple[BatchRequest, ...]
    note: str
    silent_runs: tuple[str, ...] = ()


class BatchPlanner:
    """Evaluates ticks of one source.

    `topic_epoch` gives the epoch of the source's topic, which it makes if there is none; `backlog` is the source's.

    Requests: 1 HEAD, and 1 LIST if the root moved; for each open batch 1 GET of its chain and one for each of
    its runs; to open a batch 2 GETs (topic and debt) and 1 PUT; the 2 GETs when one has ended, too.
    """

    def __init__(
        self,
        *,
        source: str,
        watcher: Watcher,
        chains: AckChains,
        backlog: RescanBacklog,
        topic_epoch: Callable[[], str],
        runs_of: Callable[[str], Sequence[RunView]],
        settings: BatchSettings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._source = source
        self._watcher = watcher
        self._chains = chains
        self._backlog = backlog
        self._topic_epoch = topic_epoch
        self._runs_of = runs_of
        self._settings = settings
        self._clock = clock

    def first(self) -> SensorState:
        """A cursor that has seen nothing. Stored before the first batch, so that batch ids repeat."""
        self._topic_epoch()  # the sooner there is one, the sooner writers queue
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
        wanted = self._wanted(state, poll.changed, now_ms)
        requests: tuple[BatchRequest, ...] = ()
        if (wanted or state.rescans_waiting) and len(state.open) < self._settings.max_open:
            state, requests, waits = self._open(state, wanted, poll.changed, now_ms)
            notes += waits
        if poll.listed and not state.watch.changed(poll.signals):
            state = replace(state, watch=state.watch.at_root(poll.root_etag))
        note = ", ".join([*notes, _note_of(state, poll)])
        return Tick(state=state, requests=requests, note=note, silent_runs=silent)

    def _wanted(self, state: SensorState, asked: Iterable[int], now_ms: int) -> set[int]:
        """Of the slots that are asked for, and those whose backoff is over, what may be requested now.

        `EVERYTHING` is alone: it waits for the batches that are open, and everything else waits for it. Parked slots
        are by themselves as well, but wait for nobody.
        """
        if not state.enumerated and state.open:
            return set()
        taken = {slot for batch in state.open for slot in batch.slots}
        due = {slot: item for slot, item in state.failing.items() if item.not_before_ms <= now_ms}
        held = taken | (state.failing.keys() - due.keys())
        if not state.enumerated:
            return {EVERYTHING} - held
        parked = {slot for slot, item in due.items() if item.parked} - held
        return parked or {*asked, *due} - held

    def _open(
        self, state: SensorState, wanted: set[int], changed: Mapping[Slot, ETag], now_ms: int
    ) -> tuple[SensorState, tuple[BatchRequest, ...], list[str]]:
        """Open a batch of these slots, and of all that are owed a listing if it makes one."""
        if (epoch := self._topic_epoch()) != state.topic:
            state = replace(state, topic=epoch, enumerated=False)
            wanted = self._wanted(state, (), now_ms)
        rescans = self._backlog.read()
        state = replace(state, rescans_waiting=bool(rescans.slots))
        listing = EVERYTHING in wanted
        if not listing and (rescans.slots or self._backlog.unqueued_writers(rescans)):
            left_ms = state.bucket_listed_ms + self._settings.list_seconds * 1000 - now_ms
            if left_ms > 0:
                return state, (), [f"the next listing is due in {left_ms / 1000:.0f} s"]
            listing = True
            wanted = self._wanted(state, wanted | set(rescans.slots), now_ms)
        if not wanted:
            return state, (), []
        covered = set(changed) if EVERYTHING in wanted else wanted
        signals = {str(slot): changed[Slot(slot)] for slot in sorted(covered) if slot in changed}
        owed_slots = {str(s): n for s, n in rescans.slots.items() if s in wanted or EVERYTHING in wanted}
        payload = BatchPayload(
            slots=tuple(sorted(wanted)),
            signals=signals,
            listing=listing,
            rescans=owed_slots,
            last_try=self._last_try(state, wanted),
            topic=epoch,
        )
        batch = f"{self._source}-{state.epoch}-{state.next_batch}"
        try:
            self._chains.open_batch(batch, [str(slot) for slot in payload.slots], payload=payload.dumps())
        except TagExists:
            # A tick of ours died before its cursor was stored: the chain says what it had asked for.
            payload = BatchPayload.loads(self._chains.state(batch).payload)
        slots = payload.slots
        seen = {Slot(int(slot)): ETag(etag) for slot, etag in payload.signals.items()}
        parts = max(1, min(self._settings.parallel_runs, len(slots)))
        opened = OpenBatch(id=batch, slots=slots, parts=parts, opened_ms=now_ms, listing=payload.listing)
        state = replace(
            state,
            next_batch=state.next_batch + 1,
            topic=payload.topic,
            bucket_listed_ms=now_ms if payload.listing else state.bucket_listed_ms,
            watch=state.watch.advance(seen, seen),
            open=(*state.open, opened),
        )
        assigned = assign_slots(map(Slot, slots), parts)
        requests = tuple(
            BatchRequest(batch=batch, part=n, parts=parts, slots=of_part)
            for n, of_part in enumerate(assigned.ranges)
        )
        return state, requests, []

    def _settle(self, state: SensorState, now_ms: int) -> tuple[SensorState, tuple[str, ...], list[str]]:
        still_open: list[OpenBatch] = []
        failing = dict(state.failing)
        silent: list[str] = []
        notes: list[str] = []
        for batch in state.open:
            chain = self._chain(batch.id)
            if chain is not None and chain.status == "open":
                runs = self._runs_of(batch.id)
                watched, alive, quiet = self._pulse(batch, runs, now_ms)
                silent += quiet
                if alive:
                    still_open.append(watched)
                    continue
                failures = [run.failure for run in runs if run.failure]
                reason = failures[0] if failures else "its run ended before it was committed"
                # One that was acked since we looked stays acked.
                chain = self._chains.fail(batch.id, reason[:REASON_MAX])
            missing = set(batch.slots) if chain is None else {int(child) for child in chain.missing}
            reason = (chain and chain.reason) or "the batch's ack chain is gone"
            for slot in missing:
                # Slots that a batch of everything began had no attempt of their own, where objects could be given up.
                attempts = (failing[slot].attempts if slot in failing else 0) + (slot in batch.slots)
                failing[slot] = self._failed(slot, attempts, reason, now_ms)
            enumerated = EVERYTHING in batch.slots and EVERYTHING not in missing
            for slot in {*batch.slots, *(failing if enumerated else ())} - missing:
                failing.pop(slot, None)
            if batch.listing and (lost := [Slot(slot) for slot in missing if slot != EVERYTHING]):
                self._backlog.add(lost)
            state = replace(state, enumerated=state.enumerated or enumerated)
            notes.append(
                f"batch {batch.id} left {len(missing)} slots" if missing else f"batch {batch.id} done"
            )
        if len(still_open) < len(state.open):
            state = replace(state, rescans_waiting=bool(self._backlog.read().slots))
            if self._topic_epoch() != state.topic:
                # What it held is lost, and perhaps a run has followed the new one already.
                state = replace(state, enumerated=False)
        return replace(state, open=tuple(still_open), failing=failing), tuple(silent), notes

    def _chain(self, tag: str) -> ChainState | None:
        try:
            return self._chains.state(tag)
        except TagNotFound:
            return None

    def _pulse(
        self, batch: OpenBatch, runs: Sequence[RunView], now_ms: int
    ) -> tuple[OpenBatch, bool, list[str]]:
        """The batch with its runs' progress, whether any of them goes on, and which ones are silent."""
        startup_ms = self._settings.startup_seconds * 1000
        silence_ms = self._settings.silence_seconds * 1000
        # Dagster may still have to create some: it resumes a tick that died while it did.
        alive = len(runs) < batch.parts and now_ms - batch.opened_ms < startup_ms
        progress: dict[str, tuple[int, int]] = {}
        quiet: list[str] = []
        for run in runs:
            if run.ended:
                continue
            beats = run.beats if run.beats is not None else -1
            known = batch.progress.get(run.run_id)
            moved_ms = known[1] if known is not None and known[0] == beats and not run.queued else now_ms
            progress[run.run_id] = (beats, moved_ms)
            if now_ms - moved_ms < (silence_ms if beats >= 0 else startup_ms):
                alive = True
            else:
                quiet.append(run.run_id)
        return replace(batch, progress=progress), alive, quiet

    def _last_try(self, state: SensorState, wanted: Iterable[int]) -> tuple[int, ...]:
        """The slots that `_failed` would park. Those of a batch of everything come again one by one."""
        last = self._settings.max_attempts - 1
        failed = {slot: item.attempts for slot, item in state.failing.items()}
        return tuple(s for s in sorted(wanted) if s != EVERYTHING and failed.get(s, 0) >= last)

    def _failed(self, slot: int, attempts: int, reason: str, now_ms: int) -> Failing:
        if attempts >= self._settings.max_attempts and slot != EVERYTHING:
            again_ms = now_ms + int(self._settings.parked_seconds * 1000)
            return Failing(attempts=attempts, not_before_ms=again_ms, reason=reason, parked=True)
        wait = self._settings.backoff_seconds * 2 ** max(0, min(attempts - 1, 20))
        wait = min(self._settings.backoff_ceiling_seconds, wait)
        return Failing(attempts=attempts, not_before_ms=now_ms + int(wait * 1000), reason=reason)


def _freed(state: SensorState, changed: Mapping[Slot, ETag]) -> SensorState:
    """Parked slots whose signal moved get a new start."""
    failing = {slot: item for slot, item in state.failing.items() if not (item.parked and slot in changed)}
    return replace(state, failing=failing)


def _by_fate(failing: Mapping[int, Failing]) -> list[list[object]]:
    """Slots that failed together, together: the reason is stored once."""
    groups: dict[tuple[int, int, str, bool], list[int]] = {}
    for slot, item in sorted(failing.items()):
        groups.setdefault((item.attempts, item.not_before_ms, item.reason, item.parked), []).append(slot)
    return [[*fate, slots] for fate, slots in groups.items()]


def _note_of(state: SensorState, poll: Poll) -> str:
    notes = [f"{len(poll.changed)} slots changed" if poll.listed else "nothing changed"]
    if state.open:
        notes.append(f"{len({slot for batch in state.open for slot in batch.slots})} in flight")
    if waiting := [slot for slot, item in state.failing.items() if not item.parked]:
        notes.append(f"{len(waiting)} to be retried")
    if parked := sorted(slot for slot, item in state.failing.items() if item.parked):
        shown = ", ".join(map(str, parked[:SHOWN]))
        notes.append(f"{len(parked)} parked for now ({shown}): {state.failing[parked[0]].reason}")
    return ", ".join(notes)
