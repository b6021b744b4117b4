"""States of objects, compared with a dictionary: rounds, slow rounds that are rebased on later versions, merges, erased
keys.

The limits are tiny, so that a few states make many pages, files and levels.
"""

import json
from itertools import count
from operator import attrgetter

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.states import state_file, state_merge, state_reader
from s3notify_platform.table.states import state_levels as states
from s3notify_platform.table.states.state_cache import StateCache
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.states.state_merge import next_states, without
from s3notify_platform.table.states.state_reader import StateReader
from tests.support.states import Site, gone

SLOTS = 4
KEYS = [*(f"k{n}" for n in range(30)), "\U0010ffff", "\ud7ff\n", "é" * 512, "a", "a\x01", "aa"]
LIMITS = {
    states: {"STATES_INLINE": 2},
    state_file: {"STATE_PAGE": 3},
    state_merge: {
        "STATE_FILES_FRESH": 2,
        "STATE_FILE_BYTES": (1, 1),
        "STATE_LEVEL_BYTES": 8_000,
        "FAN_OUT": 2,
        "OVERLAP": 1,
    },
    state_reader: {"STATE_GAP_BYTES": 2000},
}

keys = st.sampled_from(KEYS)
flags = st.fixed_dictionaries(
    {
        "rows": st.integers(0, 9),
        "reason": st.sampled_from(["", "", "broken"]),
        "reach_end": st.booleans(),
        "again": st.booleans(),
        "gone": st.booleans(),
    }
)
changes = st.dictionaries(keys, flags, max_size=12)
half = st.sampled_from([KEYS[::2], KEYS[1::2], KEYS[: len(KEYS) // 2], KEYS])
whole = st.sampled_from([0, 2000, 1 << 18])
"""Size in bytes up to which files are read whole."""
budgets = st.sampled_from([1, 20_000, 1 << 20])


class StatesMachine(RuleBasedStateMachine):
    """The model has the states by key, and the keys that each committed round changed."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module, limits in LIMITS.items():
            for name, value in limits.items():
                self.patch.setattr(module, name, value)
        self.site = Site(slots=SLOTS, cache=StateCache(limit=20_000))
        self.model = {}
        self.etags = count()
        self.slow = []
        self.rounds = []

    def teardown(self):
        self.patch.undo()

    def _states(self, drawn):
        found = []
        for key, values in drawn.items():
            if values["gone"]:
                found.append(gone(key))
            else:
                found.append(ObjectState(key=key, etag=f"{next(self.etags)}", size=1, **values))
        return found

    def _next(self, drawn, budget, merged):
        self.patch.setattr(state_merge, "STATE_MERGE_BYTES", budget)
        changed, site = self.site.changes(self._states(drawn)), self.site
        upcoming = (
            next_states(site.reader, site.states, changed, name=site.name)
            if merged
            else site.states.after(changed, name=site.name)
        )
        site.ranges.bodies |= upcoming.bodies
        return upcoming

    def _commit(self, upcoming):
        self.site.states = StateSet.of(json.loads(json.dumps(upcoming.states.json())), where="m")
        assert self.site.states == upcoming.states
        changed = {key: state for some in upcoming.changes.values() for key, state in some.items()}
        self.model |= changed
        self.model = {key: state for key, state in self.model.items() if not state.gone}
        self.rounds.append({*upcoming.changes})

    @rule(drawn=changes, budget=budgets, merged=st.booleans())
    def round(self, drawn, budget, merged):
        self._commit(self._next(drawn, budget, merged))

    @rule(some=half, values=flags, times=st.integers(1, 3), budget=budgets)
    def large_rounds(self, some, values, times, budget):
        """Large rounds, which soon fill the lower levels."""
        for n in range(times):
            drawn = {key: values | {"gone": values["gone"] and n == times - 1} for key in some}
            self._commit(self._next(drawn, budget, True))

    @rule(drawn=changes, budget=budgets)
    def begin_slow_round(self, drawn, budget):
        self.slow.append((self._next(drawn, budget, True), len(self.rounds)))

    @rule(which=st.integers(0, 5))
    def end_slow_round(self, which):
        if not self.slow:
            return
        upcoming, seen = self.slow.pop(which % len(self.slow))
        conflicts = {slot for changed in self.rounds[seen:] for slot in changed}
        merged = upcoming.merge is not None
        upcoming = upcoming.rebased(self.site.states, without=conflicts)
        if merged and conflicts:
            event("merge dropped" if upcoming.merge is None else "merge kept")
        assert not conflicts & {*upcoming.changes}
        self.site.ranges.bodies |= upcoming.bodies
        self._commit(upcoming)

    @rule(erased=st.sets(keys, min_size=1, max_size=3))
    def erase(self, erased):
        done = without(self.site.reader, self.site.states, self.site.by_slot(erased), name=self.site.name)
        assert {*done.removed} == self.site.states.names - done.states.names
        self.site.ranges.bodies |= done.bodies
        self.site.states = done.states
        self.model = {key: state for key, state in self.model.items() if key not in erased}
        self.slow = []  # after an erasure, slow rounds would begin again
        for file in done.states.files:
            columns = [page.column("key").to_pylist() for page in self._pages(file)]
            assert not erased & {key for some in columns for key in some}
            assert not erased & {file.first[1], file.end[1].removesuffix("\0")}

    def _pages(self, file):
        reader = self.site.cold()
        tail = reader.tail(file)
        return reader._read(tail, range(len(tail.pages)))

    @rule()
    def remove_garbage(self):
        named = self.site.states.names.union(*(upcoming.bodies for upcoming, _ in self.slow))
        named = named.union(*(upcoming.states.names for upcoming, _ in self.slow))
        self.site.ranges.bodies = {n: body for n, body in self.site.ranges.bodies.items() if n in named}

    @rule(wanted=st.sets(keys), cold=st.booleans(), limit=whole)
    def lookup(self, wanted, cold, limit):
        self.patch.setattr(state_reader, "STATE_WHOLE_BYTES", limit)
        reader = self.site.cold() if cold else self.site.reader
        expected = {key: self.model[key] for key in wanted if key in self.model}
        assert self.site.lookup(wanted, reader) == expected

    @rule(slots=st.sets(st.integers(0, SLOTS - 1)), cold=st.booleans(), limit=whole)
    def slots(self, slots, cold, limit):
        self.patch.setattr(state_reader, "STATE_WHOLE_BYTES", limit)
        reader = self.site.cold() if cold else self.site.reader
        assert list(reader.of_slots(self.site.states, slots)) == [
            (slot, dict(sorted(self._of_slot(slot, lambda _: True).items()))) for slot in sorted(slots)
        ]
        for found, holds in (
            (reader.failing(self.site.states, slots), attrgetter("failing")),
            (reader.pending(self.site.states, slots), attrgetter("pending")),
        ):
            expected = {slot: self._of_slot(slot, holds) for slot in slots}
            assert found == {slot: some for slot, some in expected.items() if some}

    def _of_slot(self, slot, holds):
        return {k: state for k, state in self.model.items() if self.site.slot(k) == slot and holds(state)}

    @rule()
    def read_by_a_reader_with_no_cache(self):
        reader = StateReader(ranges=self.site.ranges, cache=StateCache(0))
        assert self.site.lookup(KEYS, reader) == self.model

    @invariant()
    def files_are_in_order_and_counted(self):
        for file in self.site.states.files:
            event(f"level {file.level}")
        assert not self.site.states.misplaced()
        for file in self.site.states.files:
            assert file.name in self.site.ranges.bodies
            assert file.states > 0

    @invariant()
    def merges_keep_up(self):
        assert len(self.site.states.level(0)) < 60


pytestmark = pytest.mark.timeout(1200)

TestStates = StatesMachine.TestCase
TestStates.settings = settings(max_examples=(settings.default.max_examples + 1) // 2)  # each example is long
