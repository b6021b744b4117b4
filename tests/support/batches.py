"""A source in memory for tests of the planner, with a publisher, tables, a clock, and runs as Dagster stores them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from s3notify_platform.engine.batch.batches import EVERYTHING, BatchPayload, BatchRequest, SensorState
from s3notify_platform.engine.batch.list_or_follow import note_writers
from s3notify_platform.engine.batch.run_pulse import RunView
from s3notify_platform.engine.batch.scheduler import BatchPlanner, Tick
from s3notify_platform.kernel.slots import Slot, partition_keys
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import QUEUED, Watcher, root_key, signal_body, signal_key
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.open_table import OpenTable, TableName, claim, open_table
from tests.support.clocks import HandClock
from tests.support.log_tables import IDENTITY, SCHEMA, Table

PREFIX = "k/"


@dataclass
class Run:
    """A run as Dagster stores it, and the real state of the run."""

    run_id: str
    request: BatchRequest
    status: str = "queued"
    beats: int | None = None
    alive: bool = True
    gone: bool = False
    """True if the run's process is known to have ended."""
    failure: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ("success", "failure")


@dataclass
class World:
    """One source.

    `versions`: by slot, the number of changes in the bucket. `committed`: by slot, the number of the bucket's changes
    that are in the table. `announced` counts the changes with an entry in the queue. `unannounced` counts the changes
    without an entry. `root`: True if queueing writers move only the root.
    """

    slots: int = 8
    root: bool = False
    settings: BatchSettings = field(default_factory=BatchSettings)

    def __post_init__(self) -> None:
        self.clock = HandClock()
        self.keyspace = CountingStore(MemoryObjectStore(clock=self.clock))
        self.record_objects = CountingStore(MemoryObjectStore(clock=self.clock))
        records = ObjectRecordStore(self.record_objects, "r/", clock=self.clock)
        self.chains = AckChains(records, clock=self.clock)
        self.backlog = RescanBacklog(records, clock=self.clock)
        self.table = Table(store=MemoryObjectStore(clock=self.clock), clock=self.clock)
        self.topic = "life 0"
        self.announced: Counter[int] = Counter()
        self.unannounced: Counter[int] = Counter()
        self.marks: dict[Slot, list[str]] = {}
        """By slot, the marks: one text for each entry in the queue."""
        self.looks = 0
        """How often the planner has read the marks."""
        self.listings = 0
        self.hidden: set[int] = set()
        """Slots in which a queued signal has overwritten an unqueued signal. After that, no reader can see the unqueued
        signal.
        """
        self.runs: dict[str, Run] = {}
        self.versions: Counter[int] = Counter()
        self.committed: Counter[int] = Counter()
        self.cursor = ""
        self.requested: list[BatchRequest] = []

    @property
    def state(self) -> SensorState:
        return SensorState.loads(self.cursor)

    def planner(self) -> BatchPlanner:
        watcher = Watcher(
            self.keyspace,
            prefix=PREFIX,
            slots=self.slots,
            clock=self.clock,
            entries=self.looked if self.root else None,
        )
        return BatchPlanner(
            source="s",
            watcher=watcher,
            chains=self.chains,
            backlog=self.backlog,
            topic_epoch=lambda _: self.topic,
            runs_of=self.runs_of,
            table=self.opened,
            claim=self.claimed,
            settings=self.settings,
            clock=self.clock,
        )

    def opened(self, expected: str = "") -> OpenTable:
        """The table, created if it does not exist."""
        name = TableName(source="s", command=lambda name, *_: f"`s3notify table {name}`")
        create = (MetaData(id="", schema=SCHEMA, created_ms=1), Protocol())
        return open_table(self.table.whole, name, IDENTITY, expected=expected, create=create)

    def claimed(self, table: OpenTable, epoch: str) -> str:
        return claim(self.table.reader, table, epoch)

    def runs_of(self, batch: str) -> Sequence[RunView]:
        return [
            RunView(
                run_id=run.run_id,
                ended=run.ended,
                queued=run.status == "queued",
                beats=run.beats if run.status == "started" else None,
                failure=run.failure,
                gone=lambda run=run: run.gone,
            )
            for run in self.runs.values()
            if run.request.batch == batch
        ]

    def publish(self, *slots: int, queued: bool = True) -> None:
        """Changes an object in each of these slots, and signals the slots. If `queued`, also announces the changes in
        the queue.
        """
        alone = self.root and queued
        for slot in slots:
            self.change(slot, queued=queued)
            if not alone:
                self.signal(slot, queued=queued)
        self.signal("_", queued=queued, alone=alone)

    def looked(self) -> dict[Slot, list[str]]:
        """The marks of each slot that has entries, as the planner reads them."""
        self.looks += 1
        return {slot: list(marks) for slot, marks in self.marks.items()}

    def change(self, slot: int, *, queued: bool = True) -> None:
        self.versions[slot] += 1
        if queued and self.unannounced[slot]:
            self.hidden.add(slot)
        (self.announced if queued else self.unannounced)[slot] += 1
        if queued:
            self.marks.setdefault(Slot(slot), []).append(f"{slot}.{self.versions[slot]}")

    def signal(self, name: int | str, *, queued: bool = True, alone: bool = False) -> None:
        key = root_key(PREFIX) if name == "_" else signal_key(PREFIX, int(name))
        body = signal_body(self.clock, queued=queued, alone=alone)
        self.keyspace.put(key, body, metadata={QUEUED: "1"} if queued else None)

    def lose_topic(self) -> None:
        """Loses the topic with all its entries."""
        self.topic = f"life {int(self.topic.split()[1]) + 1}"
        self.unannounced += self.announced
        self.announced.clear()
        self.marks.clear()

    def evaluate(self) -> Tick | None:
        """Calls only the sensor's function. The first tick returns None."""
        if not self.cursor:
            self.cursor = self.planner().first().dumps()
            return None
        return self.planner().tick(SensorState.loads(self.cursor))

    def launch(self, tick: Tick, *, only_part: int | None = None) -> None:
        """Handles a tick's result as Dagster does: starts the requested runs, and marks the tick's `silent_runs` as
        failed. A run key never has more than one run.
        """
        for request in tick.requests:
            if request.run_key not in self.runs and only_part in (None, request.part):
                self.runs[request.run_key] = Run(run_id=f"run {request.run_key}", request=request)
                self.requested.append(request)
        for run in self.runs.values():
            if run.run_id in tick.silent_runs and not run.ended:
                run.status = "failure"

    def tick(self) -> Tick:
        """Does a tick that ends successfully."""
        tick = self.evaluate() or self.evaluate()
        assert tick is not None
        self.launch(tick)
        self.cursor = tick.state.dumps()
        return tick

    def active(self) -> list[Run]:
        return [run for run in self.runs.values() if not run.ended]

    def start(self, run: Run) -> None:
        run.status, run.beats = "started", 1

    def finish(self, run: Run, *, failing: frozenset[int] = frozenset()) -> None:
        """Does the run's work: commit, acknowledge, end."""
        everything = EVERYTHING in run.request.slots
        opened = BatchPayload.loads(self.chains.state(run.request.batch).payload)
        self.listings += opened.listing
        work = range(self.slots) if everything else run.request.slots
        good = [slot for slot in work if slot not in failing]
        bad = [slot for slot in work if slot in failing]
        unannounced = self.commit(good, listing=opened.listing)
        note_writers(self.backlog, opened.decision, unannounced=unannounced)
        rescans = {Slot(int(slot)): serial for slot, serial in opened.rescans.items() if int(slot) in good}
        self.backlog.settle(rescans)
        children = [EVERYTHING] if everything else good
        if children:
            self.chains.stamp_children(
                run.request.batch,
                map(str, children),
                operation_id=run.run_id,
                starts=map(str, bad if everything else ()),
            )
        if bad:
            run.failure = f"slot {bad[0]} is broken"
        if not run.ended:
            run.status = "failure" if bad else "success"

    def commit(self, slots: Iterable[int], *, listing: bool) -> int:
        """Commits these slots as a run does. Returns the number of changes that were not announced."""
        found = 0
        for slot in slots:
            self.committed[slot] += self.announced.pop(slot, 0)
            self.marks.pop(Slot(slot), None)
            if listing:
                self.committed[slot] += self.unannounced[slot]
                found += self.unannounced.pop(slot, 0)
                self.hidden.discard(slot)
        return found

    def settle(self) -> None:
        """Enumerates the source, so that the next tick sees nothing new."""
        self.tick()
        for run in self.active():
            self.start(run)
            self.finish(run)
        self.tick()
        assert self.state.enumerated
        assert not self.state.open

    def counts(self) -> dict[str, dict[str, int]]:
        """The number of requests since the last call, by store."""
        stores = {"keyspace": self.keyspace, "records": self.record_objects}
        found = {name: dict(store.counts) for name, store in stores.items()}
        for store in stores.values():
            store.counts.clear()
        return found

    def keys(self, tick: Tick) -> list[list[str]]:
        return [partition_keys(request.slots) for request in tick.requests]


def settled(slots: int = 1000, **settings: object) -> World:
    """A source that was already enumerated. The counts of requests are reset."""
    world = World(slots=slots, settings=BatchSettings(**settings))  # type: ignore[arg-type]
    world.settle()
    world.counts()
    return world


def last_attempt(world: World, tick: Tick) -> tuple[int, ...]:
    """The slots for which the tick's run is the last attempt. In these slots, the run puts unreadable objects into
    quarantine.
    """
    (request,) = tick.requests
    return BatchPayload.loads(world.chains.state(request.batch).payload).last_attempt
