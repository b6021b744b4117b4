"""Keyspace as a state machine against a simple model: the slots that each watcher has not seen yet."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.ports import ABSENT, Conflict, IfMatch, Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import (
    CausalCache,
    Delete,
    NotSignalledError,
    Publisher,
    Put,
    Watcher,
    WatcherState,
)
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at

KS = "signals/"
SLOTS = 7
RELIST = 300.0
KEYS = st.sampled_from([f"data/{n}" for n in range(12)])
WATCHERS = st.integers(0, 2)


class KeyspaceMachine(RuleBasedStateMachine):
    """Two publishers and three watchers over one bucket, with deaths, failed LISTs and foreign objects.

    The model. `pending[w]`: the slots whose signal moved since watcher w last saw them. `silent`: the keys that changed
    without a signal. `rootless`: the keys for which the slot was signalled, but the root was not. `objects`: the
    bucket.
    """

    @initialize()
    def start(self):
        self.clock = HandClock()
        self.store = MemoryObjectStore()
        self.counting = CountingStore(self.store)
        self.faulty = FaultyStore(self.counting)
        self.publishers = [
            Publisher(self.store, prefix=KS, slots=SLOTS, parallelism=parallelism) for parallelism in (1, 8)
        ]
        self.watchers = [self.watcher() for _ in range(3)]
        self.objects = {}
        self.silent, self.rootless = set(), set()
        self.serial = 0
        self.pending = [set() for _ in self.watchers]
        self.listed_at = [None] * 3
        self.roots = 0
        self.root_seen = [0] * 3
        self.cache, self.background = (
            CausalCache(
                self.faulty,
                Watcher(self.faulty, prefix=KS, slots=SLOTS, clock=self.clock),
                clock=self.clock,
                patience_seconds=-1,
                parallelism=1,
            )
            for _ in range(2)
        )
        self.background.start(own_thread=False)

    def watcher(self, state=None):
        return Watcher(
            self.faulty, prefix=KS, slots=SLOTS, clock=self.clock, relist_seconds=RELIST, state=state
        )

    def body(self):
        self.serial += 1
        return b"%d" % self.serial

    def moved(self, slots, *, root=True):
        for pending in self.pending:
            pending |= set(slots)
        now_signalled = {key for key in self.silent if slot_of(key, SLOTS) in slots}
        self.silent -= now_signalled
        self.rootless |= now_signalled
        if root and slots:
            self.roots += 1
            self.rootless.clear()

    @rule(key=KEYS, by=st.integers(0, 1), how=st.sampled_from(["plain", "absent", "match", "stale"]))
    def put(self, key, by, how):
        body, found = self.body(), self.objects.get(key)
        if how in ("match", "stale") and found is None:
            return
        etag = found[1] if found else None
        conditions = {
            "plain": None,
            "absent": ABSENT,
            "match": IfMatch(etag=etag),
            "stale": IfMatch(etag="an older one"),
        }
        outcome = self.publishers[by].put(key, body, precondition=conditions[how])
        if how == "stale" or (how == "absent" and found):
            assert outcome == Conflict()
        else:
            assert isinstance(outcome, Written)
            self.objects[key] = (body, outcome.etag)
            self.moved({slot_of(key, SLOTS)})

    @rule(key=KEYS)
    def delete(self, key):
        assert self.publishers[0].delete(key) == Written(etag=None)
        self.objects.pop(key, None)
        self.moved({slot_of(key, SLOTS)})

    @rule(keys=st.sets(KEYS, min_size=1, max_size=8), by=st.integers(0, 1))
    def publish(self, keys, by):
        batch = [
            Put(key=key, body=self.body()) if index % 3 else Delete(key=key)
            for index, key in enumerate(sorted(keys))
        ]
        outcomes = self.publishers[by].publish(batch)
        for change, outcome in zip(batch, outcomes, strict=True):
            if isinstance(change, Put):
                self.objects[change.key] = (change.body, outcome.etag)
            else:
                self.objects.pop(change.key, None)
        self.moved({slot_of(key, SLOTS) for key in keys})

    @rule(key=KEYS, dies_at=st.sampled_from(["object", "slot", "root"]))
    def publisher_dies(self, key, dies_at):
        """A publisher dies after it wrote the object, the slot's signal, or the root signal."""
        nth = ["object", "slot", "root"].index(dies_at)
        dying = FaultyStore(self.store, at("put", Fault.CRASH_AFTER, nth=nth))
        body = self.body()
        with pytest.raises(CrashedError):
            Publisher(dying, prefix=KS, slots=SLOTS).put(key, body)
        self.objects[key] = (body, self.store.head(key).etag)
        self.silent.add(key)
        if dies_at != "object":
            self.moved({slot_of(key, SLOTS)}, root=dies_at == "root")

    @rule(key=KEYS, lost=st.sampled_from(["slot", "root"]))
    def signal_fails_and_is_repeated(self, key, lost):
        failing = FaultyStore(self.store, at("put", Fault.REFUSED, nth=1 if lost == "slot" else 2))
        publisher, body = Publisher(failing, prefix=KS, slots=SLOTS), self.body()
        with pytest.raises(NotSignalledError) as caught:
            publisher.put(key, body)
        self.objects[key] = (body, caught.value.outcomes[0].etag)
        publisher.signal(caught.value.keys)
        self.moved({slot_of(key, SLOTS)})

    @rule(number=st.integers(0, 5))
    def foreign_object(self, number):
        self.store.put(f"{KS}foreign/{number}", b"")
        self.store.put(f"{KS}00{number}", b"")

    @rule(seconds=st.sampled_from([1.0, RELIST / 2, RELIST]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(which=WATCHERS)
    def restart_from_cursor(self, which):
        """A new process starts with the saved state. The process has not listed yet, so its first poll lists."""
        state = WatcherState.loads(self.watchers[which].state.dumps())
        self.watchers[which] = self.watcher(state)
        self.listed_at[which] = None

    @rule(which=WATCHERS, call=st.sampled_from(["head", "list"]))
    def failed_poll(self, which, call):
        before = self.watchers[which].state
        self.faulty.schedule = at(call, Fault.REFUSED)
        due = self.due(which)
        try:
            poll = self.watchers[which].poll()
        except UnavailableError:
            assert call == "head" or due
            assert self.watchers[which].state is before
        else:
            assert not due
            assert not poll.listed
        finally:
            self.faulty.schedule = lambda _: Fault.NONE

    def due(self, which):
        timer = self.listed_at[which] is None or self.clock.now - self.listed_at[which] >= RELIST
        return timer or self.root_seen[which] != self.roots

    @rule(which=WATCHERS)
    def poll(self, which):
        due = self.due(which)
        self.counting.counts.clear()
        poll = self.watchers[which].poll()
        assert poll.listed == due
        assert dict(self.counting.counts) == ({"HEAD": 1, "LIST": 1} if due else {"HEAD": 1})
        assert set(poll.changed) == (self.pending[which] if due else set())
        if due:
            self.listed_at[which] = self.clock.now
            self.pending[which] = set()
        self.root_seen[which] = self.roots

    @rule(which=WATCHERS, data=st.data())
    def partial_advance(self, which, data):
        """A sensor remembers only some of the changed slots as seen. The next LIST shows the other slots again."""
        watcher = self.watchers[which]
        poll = watcher.observe(watcher.state, relist=True)
        assert set(poll.changed) == self.pending[which]
        taken = data.draw(st.sets(st.sampled_from(sorted(poll.changed)))) if poll.changed else set()
        watcher.state = watcher.state.advance(taken, poll.signals)
        self.listed_at[which] = self.clock.now
        self.pending[which] -= taken

    @rule(key=KEYS)
    def cached_read(self, key):
        """After a refresh, a read returns every change for which both the slot and the root were signalled."""
        self.cache.refresh()
        found = self.cache.get(key)
        expected = self.objects.get(key)
        if key not in self.silent | self.rootless:
            assert (found.body if found else None) == (expected[0] if expected else None)

    @rule(call=st.sampled_from([None, "head", "list", "get"]), nth=st.integers(0, 1))
    def tick(self, call, nth):
        """After a successful tick, reads of cached objects send no request. A cached object has every change for which
        both the slot and the root were signalled.
        """
        self.faulty.schedule = at(call, Fault.REFUSED, nth=nth) if call else lambda _: Fault.NONE
        try:
            self.background.tick()
        except UnavailableError:
            assert call in ("head", "list")
            return
        finally:
            self.faulty.schedule = lambda _: Fault.NONE
        self.counting.counts.clear()
        for key in {f"data/{n}" for n in range(12)} - self.silent - self.rootless:
            if (found := self.background.try_get(key)) is not None:
                assert found.body == self.objects[key][0]
        assert not self.counting.counts

    @rule(key=KEYS)
    def background_read(self, key):
        """Reads an object, so that the next tick must read it again."""
        self.background.get(key)

    @precondition(lambda self: hasattr(self, "objects"))
    @invariant()
    def bucket_is_as_the_model_says(self):
        for key, (body, _) in self.objects.items():
            assert self.store.get(key).body == body


TestKeyspace = KeyspaceMachine.TestCase
TestKeyspace.settings = settings(stateful_step_count=40, deadline=None)
