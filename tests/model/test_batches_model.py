"""The planner as a state machine over stores in memory: ticks that crash, runs that fail, die or never start."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from s3notify_platform.engine.batch.batches import EVERYTHING, BatchPayload
from s3notify_platform.kernel.errors import TagNotFound
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from tests.support.batches import World
from tests.support.faults import CrashedError, Fault, FaultyStore, at

SLOTS = 6
SOME = st.sets(st.integers(0, SLOTS - 1), min_size=1, max_size=3)
PICK = st.integers(0, 20)
SILENCE, STARTUP, RELIST = 30, 180, 300
CRASHES = st.sampled_from([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])


class BatchMachine(RuleBasedStateMachine):
    """In every history, no slot is in two open batches, and every change is committed in the end."""

    @initialize(
        parallel=st.integers(1, 3), max_open=st.integers(1, 2), attempts=st.integers(1, 3), root=st.booleans()
    )
    def start(self, parallel, max_open, attempts, root):
        self.world = World(
            slots=SLOTS,
            root=root,
            settings=BatchSettings(
                parallel_runs=parallel,
                max_open=max_open,
                max_attempts=attempts,
                backoff_seconds=10,
                backoff_ceiling_seconds=60,
                parked_seconds=200,
                silence_seconds=SILENCE,
                startup_seconds=STARTUP,
                relist_seconds=RELIST,
            ),
        )
        self.seen = {}
        """By slot, the newest signal that a batch has seen."""
        self.last_batch = {}
        self.launched = set()
        self.dead = set()

    # Events.

    @rule(slots=SOME)
    def publish(self, slots):
        self.world.publish(*slots)

    @rule(slots=SOME)
    def a_writer_signals_that_does_not_queue(self, slots):
        self.world.publish(*slots, queued=False)

    @rule(slot=st.integers(0, SLOTS - 1), queued=st.booleans())
    def publisher_dies_before_the_root(self, slot, queued):
        self.world.change(slot, queued=queued)
        if not (queued and self.world.root):
            self.world.signal(slot, queued=queued)
        self.world.counts()

    @rule()
    def the_topic_is_lost(self):
        self.world.lose_topic()

    @rule(slots=SOME)
    def the_sweep_finds_something(self, slots):
        for slot in slots:
            self.world.change(slot, queued=False)
        self.world.backlog.add(map(Slot, slots))
        for name in [*slots, "_"]:
            self.world.signal(name)

    @rule(seconds=st.sampled_from([1, 5, 20, 31, 200]))
    def time_passes(self, seconds):
        self.world.clock.sleep(seconds)
        for run in self.world.active():
            if run.status == "started" and run.run_id not in self.dead:
                run.beats += 1

    @rule()
    def tick(self):
        self._tick()

    @rule(launched=st.booleans(), part=st.sampled_from([None, 0]))
    def tick_dies_before_its_cursor_is_stored(self, launched, part):
        tick = self.world.evaluate()
        if tick and launched:
            self.world.launch(tick, only_part=part)
            self._check_causes(tick)

    @rule(fault=CRASHES, nth=st.integers(0, 2))
    def tick_dies_at_a_write(self, fault, nth):
        world = self.world
        whole = world.chains, world.backlog
        records = ObjectRecordStore(FaultyStore(world.record_objects, at("put", fault, nth=nth)), "r/")
        world.chains = AckChains(records, clock=world.clock)
        world.backlog = RescanBacklog(records, clock=world.clock)
        try:
            world.evaluate()
        except CrashedError:
            pass
        finally:
            world.chains, world.backlog = whole

    @rule(part=st.sampled_from([0, 99]))
    def sensor_is_switched_off_while_it_launches(self, part):
        tick = self.world.evaluate()
        if tick:
            self.world.launch(tick, only_part=part)
            self._check_causes(tick)
            self.world.cursor = tick.state.dumps()

    def _a_run(self, pick):
        runs = [run for run in self.world.active() if run.run_id not in self.dead]
        return runs[pick % len(runs)] if runs else None

    @rule(pick=PICK)
    def run_starts(self, pick):
        if run := self._a_run(pick):
            self.world.start(run)

    @rule(pick=PICK, failing=st.one_of(st.just(set()), SOME))
    def run_ends(self, pick, failing):
        if run := self._a_run(pick):
            self.world.finish(run, failing=frozenset(failing))

    @rule(pick=PICK)
    def run_crashes_and_dagster_knows(self, pick):
        if run := self._a_run(pick):
            run.status = "failure"

    @rule(pick=PICK, known=st.booleans())
    def run_dies_in_silence(self, pick, known):
        run = self._a_run(pick)
        if run and run.status != "queued":
            run.gone = known
            self.dead.add(run.run_id)

    @rule(pick=PICK)
    def run_stops_at_its_stamp(self, pick):
        """The run committed everything, and Dagster says that the run ended, but the chain was never stamped."""
        if run := self._a_run(pick):
            everything = EVERYTHING in run.request.slots
            opened = BatchPayload.loads(self.world.chains.state(run.request.batch).payload)
            slots = range(SLOTS) if everything else run.request.slots
            self.world.commit(slots, listing=opened.listing)
            run.status = "failure"

    @rule(pick=PICK)
    def run_that_timed_out_was_not_dead(self, pick):
        """The run ends long after its batch was closed. The late commits of the run must do no harm."""
        ended = [run for run in self.world.runs.values() if run.ended]
        if ended:
            self.world.finish(ended[pick % len(ended)])

    # Checks.

    def _tick(self):
        world = self.world
        if not world.cursor:
            world.tick()
            return
        before = world.state
        world.counts()
        looks = world.looks
        tick = world.tick()
        counts = world.counts()
        assert world.looks - looks <= world.root
        assert counts["keyspace"].pop("HEAD") == 1
        assert counts["keyspace"].pop("LIST", 0) <= 1
        assert not counts["keyspace"]
        ended = len({batch.id for batch in before.open} - {batch.id for batch in tick.state.open})
        opened = len({request.batch for request in tick.requests})
        # These limits hold for requests to the records. Each open chain is listed. A chain that has ended is also read.
        # A failed chain is listed again, and written. If the batch had to list, the backlog is written, too. A tick
        # that died is repeated, and opens the same chain again. A chain that is opened again is read three times: to
        # find it, to recognise it, and to read its payload. The backlog is read when a batch ends or opens.
        assert counts["records"].pop("LIST", 0) <= len(before.open) + ended
        assert counts["records"].pop("GET", 0) <= 2 * ended + 3 * opened + 2
        assert counts["records"].pop("PUT", 0) <= 2 * ended + opened
        assert not counts["records"]
        self._check_causes(tick)

    def _check_causes(self, tick):
        """Checks that no slot is requested without a change or a failure."""
        world = self.world
        for batch in {request.batch for request in tick.requests} - self.launched:
            self.launched.add(batch)
            try:
                chain = world.chains.state(batch)
            except TagNotFound:
                raise AssertionError(f"{batch} was requested without a chain") from None
            payload = BatchPayload.loads(chain.payload)
            signals = payload.signals
            for child in map(int, chain.children):
                known = self.last_batch.get(child, self.last_batch.get(EVERYTHING))
                failed = known is not None and child in self._missing(known)
                changed = str(child) in signals and signals[str(child)] != self.seen.get(str(child))
                first = child == EVERYTHING
                rescans = str(child) in payload.rescans
                assert failed or changed or first or rescans, f"slot {child} in {batch} has no reason"
                self.last_batch[child] = batch
            self.seen |= signals

    def _missing(self, batch):
        chain = self.world.chains.state(batch)
        return set(map(int, chain.missing)) if chain.status == "failed" else set()

    @invariant()
    @precondition(lambda self: hasattr(self, "world") and self.world.cursor)
    def open_batches_are_disjoint(self):
        state = self.world.state
        slots = [slot for batch in state.open for slot in batch.slots]
        assert len(slots) == len(set(slots))
        assert len(state.open) <= self.world.settings.max_open
        for batch in state.open:
            failed = state.failing.keys() & set(batch.slots)
            assert failed in (set(), set(batch.slots)), "failing slots are not mixed with others"
            assert len({state.failing[slot].group for slot in failed}) <= 1, (
                "groups of failing slots are not mixed"
            )
        groups = Counter(item.group for item in state.failing.values())
        for slot, item in state.failing.items():
            assert item.group in state.failing or slot == EVERYTHING
            if item.parked:
                assert item.attempts >= self.world.settings.max_attempts
                assert groups[item.group] == 1, "a parked slot is alone in its group"
        assert len(self.world.cursor) < 600 + 300 * (len(state.open) + len(state.failing))

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def run_keys_are_launched_once(self):
        keys = [request.run_key for request in self.world.requested]
        assert len(keys) == len(set(keys))

    def teardown(self):
        if not hasattr(self, "world"):
            return
        self._consumer()
        self._check_committed(except_for=self.world.hidden)
        assert not self.world.state.failing
        self.world.publish(*range(SLOTS), queued=False)
        self._consumer()
        self._check_committed(except_for=set())
        assert not self.world.state.failing

    def _consumer(self):
        """Runs the rest of the history without faults."""
        world = self.world
        quiet = 0
        for _ in range(300):
            for run in world.active():
                if run.run_id not in self.dead:
                    world.finish(run)
            self._tick()
            state = world.state
            idle = not state.open and not state.failing
            quiet = quiet + 1 if idle else 0
            if quiet > RELIST // SILENCE + 1:
                return
            world.clock.sleep(SILENCE + 1)
        raise AssertionError(f"the planner never becomes idle: {world.state}")

    def _check_committed(self, except_for):
        world = self.world
        for slot, version in world.versions.items():
            if slot not in except_for:
                assert world.committed[slot] == version, f"slot {slot} was lost"


TestBatches = BatchMachine.TestCase
TestBatches.settings = settings(stateful_step_count=40, parent=settings())
