"""A keyspace whose root moves alone, as a state machine: every watcher sees each entry and each signal in time."""

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import Publisher, Watcher, WatcherState
from s3notify_platform.protocols.keyspace.watcher import HIDDEN_SECONDS
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at

KS = "signals/"
SLOTS = 5
RELIST = 300.0
KEYS = {slot_of(key, SLOTS): key for key in map(str, range(40))}
SLOT = st.sampled_from(sorted(KEYS))
WATCHERS = st.integers(0, 1)


class RootAloneMachine(RuleBasedStateMachine):
    """Queued and unqueued writers, and two watchers.

    The model has the slots whose last entry, or whose last signal, a watcher has not seen. The model also has the slots
    whose unseen signal was followed by a root signal of an unqueued writer.
    """

    @initialize()
    def start(self):
        assert set(KEYS) == set(range(SLOTS))
        self.clock = HandClock()
        self.store = MemoryObjectStore()
        self.counting = CountingStore(self.store)
        self.faulty = FaultyStore(self.counting)
        self.publisher = Publisher(self.store, prefix=KS, slots=SLOTS, parallelism=1)
        self.marks, self.serial, self.looks, self.queue_fails = {}, 0, 0, False
        self.watchers = [self.watcher() for _ in range(2)]
        self.entries, self.signals, self.rooted = ([set() for _ in range(2)] for _ in range(3))
        self.moved = [False, False]
        self.plain = False
        """True if an unqueued writer moved the root last."""

    def watcher(self, state=None):
        return Watcher(
            self.faulty, prefix=KS, slots=SLOTS, clock=self.clock, relist_seconds=RELIST, state=state,
            entries=self.looked,
        )  # fmt: skip

    def looked(self):
        self.looks += 1
        if self.queue_fails:
            raise UnavailableError("no answer")
        return {slot: list(marks) for slot, marks in self.marks.items()}

    # Writers.

    @rule(slot=SLOT, dies=st.booleans())
    def queued(self, slot, dies):
        self.serial += 1
        self.marks.setdefault(Slot(slot), []).append(str(self.serial))
        for pending in self.entries:
            pending.add(slot)
        if not dies:
            self.publisher.signal([KEYS[slot]], queued=[KEYS[slot]], alone=True)
            self.root(plain=False)

    @rule(slot=SLOT, dies=st.booleans())
    def unqueued(self, slot, dies):
        for pending in self.signals:
            pending.add(slot)
        if not dies:
            self.publisher.signal([KEYS[slot]], queued=())
            self.root(plain=True)
            return
        dying = FaultyStore(self.store, at("put", Fault.CRASH_BEFORE, nth=1))
        with suppress(CrashedError):
            Publisher(dying, prefix=KS, slots=SLOTS, parallelism=1).signal([KEYS[slot]], queued=())

    def root(self, *, plain):
        self.plain, self.moved = plain, [True, True]
        if plain:
            self.rooted = [{*signals} for signals in self.signals]

    @rule(slot=SLOT)
    def entries_leave(self, slot):
        if self.marks.pop(Slot(slot), None):
            for pending in self.entries:
                pending.discard(slot)

    # Watchers.

    @rule(seconds=st.sampled_from([1.0, HIDDEN_SECONDS, RELIST]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(which=WATCHERS)
    def restart_from_cursor(self, which):
        self.watchers[which] = self.watcher(WatcherState.loads(self.watchers[which].state.dumps()))

    @rule(which=WATCHERS, fails=st.sampled_from(["head", "list", "queue"]))
    def failed_poll(self, which, fails):
        state = self.watchers[which].state
        self.queue_fails = fails == "queue"
        self.faulty.schedule = at(fails, Fault.REFUSED)
        try:
            poll = self.watchers[which].poll()
        except UnavailableError:
            assert self.watchers[which].state is state
        else:
            self.found(which, poll)
        finally:
            self.queue_fails = False
            self.faulty.schedule = lambda _: Fault.NONE

    @rule(which=WATCHERS)
    def poll(self, which):
        self.counting.counts.clear()
        self.looks = 0
        poll = self.watchers[which].poll()
        counts = {"HEAD": 1, "LIST": 1} if poll.listed else {"HEAD": 1}
        assert (dict(self.counting.counts), self.looks) == (counts, poll.followed)
        self.found(which, poll)

    def found(self, which, poll):
        """Checks that a poll found all expected slots, and no others."""
        assert poll.followed or not self.moved[which]
        assert poll.listed or not (self.moved[which] and self.plain)
        expected = set()
        if poll.followed:
            expected |= self.entries[which]
            self.entries[which].clear()
        if poll.listed:
            expected |= self.signals[which]
            self.signals[which].clear()
            self.rooted[which].clear()
        assert set(poll.changed) == expected
        self.moved[which] = False

    @rule(which=WATCHERS, data=st.data())
    def partial_poll(self, which, data):
        """A sensor remembers only some of the changed slots as seen. The next poll finds the other slots again, unless
        a later root signal of a queued writer hides their signals.
        """
        watcher = self.watchers[which]
        poll = watcher.observe(watcher.state)
        changed = sorted(poll.changed)
        taken = data.draw(st.sets(st.sampled_from(changed))) if changed else set()
        watcher.state = poll.settled(watcher.state.advance(taken, poll.changed))
        for slot in taken:
            if poll.changed[slot] in poll.signals.values():
                self.signals[which].discard(slot)
                self.rooted[which].discard(slot)
            else:
                self.entries[which].discard(slot)
        left = bool(watcher.state.changed(poll.signals) or watcher.state.changed(poll.entries))
        self.moved[which] = self.moved[which] and left

    def teardown(self):
        if not hasattr(self, "watchers"):
            return
        for which in range(2):
            self.poll(which)
            self.clock.now += HIDDEN_SECONDS
            self.poll(which)
            assert not self.rooted[which], "a signal whose root was moved is seen soon"
            self.clock.now += RELIST
            self.poll(which)
            assert not self.entries[which]
            assert not self.signals[which]


TestRootAlone = RootAloneMachine.TestCase
TestRootAlone.settings = settings(stateful_step_count=40, deadline=None)
