"""Merges of states: the files that become one, the conflicts that drop a merge, and the end of the marks of `gone`
keys. These marks hide older states.
"""

import io
import json

import numpy as np
import pyarrow.parquet as pq

from s3notify_platform.table.states import state_merge
from s3notify_platform.table.states.state_levels import StateSet
from tests.support.states import Site, filled, gone, keys, state


def test_level_0_is_merged_when_it_has_8_files():
    site = filled(7)
    assert state_merge.plan_merge(site.states) is None
    site.write([state(key) for key in keys(300)], merged=False)
    before = dict(site.reader.of_slots(site.states, range(1000)))
    site.write([])
    assert {file.level for file in site.states.files} == {1}
    assert dict(site.reader.of_slots(site.states, range(1000))) == before
    assert sum(file.states for file in site.states.files) == sum(map(len, before.values()))


def test_marks_of_gone_keys_are_dropped_at_the_lowest_level():
    site = filled(8)
    site.write([gone(key) for key in keys(300)])
    (fresh, below) = site.states.files
    assert (fresh.gone, below.level) == (300, 1)
    assert not site.lookup(keys(300))
    for n in range(7):
        site.write([state(key) for key in keys(300, 10_000 + 300 * n)])
    site.write([])
    assert sum(file.gone for file in site.states.files) == 0
    assert not site.lookup(keys(300))


def test_mark_of_a_gone_key_is_not_kept_if_it_hides_no_state():
    site = Site()
    site.write([state("a"), gone("b")])
    assert not site.lookup(["b"])
    site.write([gone("a")])
    assert site.states == StateSet()


def test_merge_is_dropped_when_others_have_merged_the_same_files():
    site = filled(8)
    base = site.states
    plan = state_merge.plan_merge(base)
    mine = state_merge.merge(site.reader, plan, name=site.name)
    changes = [state(key, etag="mine") for key in keys(400, 50)]
    upcoming = base.after(site.changes(changes), name=site.name, merge=mine)
    assert upcoming.merge is mine
    site.write([state("theirs")])
    theirs = site.states
    rebased = upcoming.rebased(theirs)
    assert rebased.merge is None
    assert not {file.name for file in mine.added} & rebased.states.names
    site.ranges.bodies |= upcoming.bodies | dict(rebased.bodies)
    site.states = rebased.states
    found = site.lookup([*keys(1000), "theirs"], site.cold())
    assert {key for key in found if found[key].etag == "mine"} == {each.key for each in changes}
    assert "theirs" in found
    # The round's own file is not written again, because none of its changes was dropped.
    assert set(rebased.bodies) <= set(upcoming.bodies)


def test_merge_stays_when_others_have_only_added_files():
    site = filled(8)
    base = site.states
    mine = state_merge.merge(site.reader, state_merge.plan_merge(base), name=site.name)
    upcoming = base.after(site.changes([state("mine")]), name=site.name, merge=mine)
    site.write([state(key) for key in keys(300, 5000)], merged=False)
    rebased = upcoming.rebased(site.states)
    assert rebased.merge is mine
    assert [file.level for file in rebased.states.files] == [0, 1]


def test_no_state_of_the_round_stays_in_a_conflicting_slot():
    site = Site(slots=2)
    base = site.states
    mine = [state(key, etag="mine") for key in keys(600)]
    upcoming = base.after(site.changes(mine), name=site.name)
    site.write([state("theirs")])
    rebased = upcoming.rebased(site.states, without=[0])
    site.ranges.bodies |= rebased.bodies
    site.states = rebased.states
    assert set(site.lookup(keys(600))) == {key for key in keys(600) if site.slot(key) == 1}
    assert not set(upcoming.bodies) & site.states.names


def test_each_step_merges_a_part_of_a_large_table(monkeypatch):
    """Otherwise a round would merge a large part of the states. Only the smallest step may exceed the budget."""
    monkeypatch.setattr(state_merge, "STATE_FILE_BYTES", (20_000, 40_000))
    monkeypatch.setattr(state_merge, "STATE_LEVEL_BYTES", 60_000)
    monkeypatch.setattr(state_merge, "STATE_MERGE_BYTES", 300_000)
    site = Site()
    model = {}
    rng = np.random.default_rng(1)
    largest = 0
    for n in range(200):
        changed = [f"k{key}" for key in rng.integers(0, 40_000, 600)]
        if plan := state_merge.plan_merge(site.states):
            largest = max(largest, plan.bytes)
        states = [gone(key) if n % 10 == 3 else state(key, rows=n) for key in dict.fromkeys(changed)]
        site.write(states)
        model |= {each.key: each for each in states}
        assert not site.states.misplaced()
    live = {key: each for key, each in model.items() if not each.gone}
    found = dict(site.reader.of_slots(site.states, range(1000)))
    assert {key: each for some in found.values() for key, each in some.items()} == live
    assert max(file.level for file in site.states.files) >= 2
    assert len(site.states.level(0)) <= 9
    assert largest < 600_000
    assert len(json.dumps(site.states.json())) < 32_000


def test_a_large_round_merges_as_many_bytes_as_large_rounds_add(monkeypatch):
    """The first load of a large bucket adds a large file to level 0 in each round. If the budget of a merge did not
    grow with the round, level 0 would stay full, level 1 would only grow, and each round would read all of level 1.
    """
    monkeypatch.setattr(state_merge, "STATE_MERGE_BYTES", 1)
    site = filled(8)
    site.write([state(key) for key in keys(300, 5000)])
    assert len(site.states.level(0)) == 1
    site = filled(8)
    site.write([state("alone")])
    assert len(site.states.level(0)) == 7


def test_erase_rewrites_only_files_with_the_key():
    site = filled(9)
    site.write([])
    for n in range(3):
        site.write([state(key, rows=n) for key in keys(300, 3000 * n)])
    erased = keys(1, 150)[0]
    site.write([gone(erased)], merged=False)
    before, names = site.states, site.states.names
    done = state_merge.without(site.reader, before, site.by_slot([erased]), name=site.name)
    assert done.removed
    assert set(done.removed) == names - done.states.names
    holding = {n for n in names if erased.encode() in pq_keys(site.ranges.bodies[n])}
    assert holding == set(done.removed)
    assert not any(erased.encode() in pq_keys(body) for body in done.bodies.values())
    assert erased not in json.dumps(done.states.json())
    expected = dict(site.reader.of_slots(before, range(1000)))
    site.ranges.bodies = {
        n: b for n, b in (site.ranges.bodies | dict(done.bodies)).items() if n in done.states.names
    }
    assert dict(site.cold().of_slots(done.states, range(1000))) == expected
    assert state_merge.without(site.reader, done.states, site.by_slot([erased]), name=site.name).bodies == {}


def pq_keys(body):
    return b"\n".join(key.encode() for key in pq.read_table(io.BytesIO(body))["key"].to_pylist())
