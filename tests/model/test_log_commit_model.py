"""The commit protocol of tables in every interleaving. Each invariant holds. If a rule is left out, an invariant
breaks."""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.support.exhaustive import Explored, Program, explore
from tests.support.log_commit import (
    LONGEST,
    Checkpoint,
    Request,
    Row,
    Rules,
    Snapshot,
    Version,
    a_round,
    after,
    opened,
    stream,
)
from tests.support.log_upkeep import accept_loss, checkpoint_and_cut, engine, put_back, ticks, vacuum
from tests.support.log_world import World, answers, broken, put


def _table(versions: int, *packs: frozenset[Row], at: int = 0, known: int | None = None) -> World:
    """A table with a checkpoint at version 0 and one version for each pack."""
    world = World(frozenset())
    world = put(world, ("last",), 0)
    world = put(world, ("checkpoint", 0), Checkpoint("id", "n0", frozenset()))
    world = put(world, ("manifest", "n0"), ())
    states: dict[str, Row] = {}
    for v, rows in enumerate(packs[:versions], 1):
        body = Version("id", f"n{v}", f"n{v - 1}", frozenset({(f"b{v}", rows, True)}), frozenset())
        world = put(world._replace(now=at), ("log", v), body)
        world = put(world, ("pack", f"b{v}"), rows)
        states |= {row[0]: row for row in rows}
        world = put(world, ("manifest", f"n{v}"), tuple(sorted(states.values())))
    newest = versions if known is None else known
    return put(world, ("known",), ("id", newest, f"n{newest}"))._replace(now=0)


def _snapshot(world: World, v: int, table: str = "id") -> Snapshot:
    """The state that a process keeps after it read version `v` at time 0."""
    objects = dict(world.objects)
    live: frozenset[tuple[str, frozenset[Row]]] = frozenset()
    for number in range(1, v + 1):
        live = after(objects["log", number], live)
    return Snapshot(table, v, f"n{v}", live, objects["manifest", f"n{v}"], 0)


def _known(world: World, v: int) -> World:
    """The same world after a crash before the update of `known`: this record still has version `v`."""
    return put(world, ("known",), ("id", v, f"n{v}"))


A1, A2, B1, B2 = ("a1", 1, 1), ("a2", 1, 1), ("b1", 1, 1), ("b2", 1, 2)
SHARED = _table(1, frozenset({A1, A2, B1}))
TWO = _table(2, frozenset({A1, B1}), frozenset({B2}))


def arrivals() -> Iterator[Request]:
    """The network, which delivers the writes that nobody waits for."""
    for _ in range(2):
        yield Request("arrive")


def _reader(rules: Rules) -> dict[str, Program]:
    return {"reader": partial(opened, rules)}


def _stream(rules: Rules) -> dict[str, Program]:
    return {
        "stream": partial(stream, rules, ("id", 3), frozenset({("a1", 1), ("b1", 1), ("b2", 1), ("c1", 1)}))
    }


class Scenario(NamedTuple):
    """A world, and programs that are built for a set of rules."""

    world: World
    programs: Any
    lost: bool = False
    leases: bool = False
    then: Any = None


def _two(rules: Rules) -> dict[str, Program]:
    return {
        "x": partial(a_round, "x", (("a1", 2), ("b1", 2)), rules),
        "y": partial(a_round, "y", (("b1", 3), ("b2", 3)), rules),
    }


def _same(rules: Rules) -> dict[str, Program]:
    return {
        "x": partial(a_round, "x", (("a1", 2),), rules, kept=_snapshot(SHARED, 1)),
        "y": partial(a_round, "y", (("a1", 2),), rules, kept=_snapshot(SHARED, 1)),
        "network": arrivals,
    }


def _three(rules: Rules) -> dict[str, Program]:
    kept = _snapshot(SHARED, 1)
    return {
        "x": partial(a_round, "x", (("a1", 2),), rules, kept=kept),
        "y": partial(a_round, "y", (("b1", 2),), rules, kept=kept),
        "z": partial(a_round, "z", (("c1", 1),), rules, kept=kept),
    }


def _merging(rules: Rules) -> dict[str, Program]:
    kept = _snapshot(TWO, 2)
    return {
        "x": partial(a_round, "x", (("c1", 2),), rules, kept=kept, merging=True),
        "y": partial(a_round, "y", (("a1", 2),), rules, kept=kept),
        "compact": partial(a_round, "k", (), rules, kept=kept, compaction=True),
    }


def _sleeper(rules: Rules) -> dict[str, Program]:
    # Versions 2 and 3 were committed after this process had found version 1 to be the newest.
    return {
        "x": partial(a_round, "x", (("d1", 1),), rules, kept=_snapshot(BEFORE, 1), asked=True),
        "cut": partial(checkpoint_and_cut, rules),
        "time": partial(ticks, LONGEST + 1),
    }


def _ghost(rules: Rules) -> dict[str, Program]:
    return {
        "x": partial(a_round, "x", (("d1", 1),), rules, kept=_snapshot(BEFORE, 0), asked=True),
        "y": partial(a_round, "y", (("e1", 1),), rules),
        "cut": partial(checkpoint_and_cut, rules, kept=_snapshot(BEFORE, 3)),
        "time": partial(ticks, LONGEST),
    }


def _cut_beside(rules: Rules) -> dict[str, Program]:
    return {
        "x": partial(a_round, "x", (("d1", 1),), rules, kept=_snapshot(BEFORE, 1)),
        "cut": partial(checkpoint_and_cut, rules, kept=_snapshot(BEFORE, 3)),
        "time": partial(ticks, LONGEST),
    }


def _two_cuts(rules: Rules) -> dict[str, Program]:
    return {
        "early": partial(checkpoint_and_cut, rules, kept=_snapshot(TWO, 1)),
        "late": partial(checkpoint_and_cut, rules),
        "x": partial(a_round, "x", (("c1", 1),), rules),
        "time": partial(ticks, LONGEST),
    }


def _slow_reader(rules: Rules) -> dict[str, Program]:
    return {
        "x": partial(a_round, "x", (("c1", 1),), rules),
        "cut": partial(checkpoint_and_cut, rules),
        "time": partial(ticks, LONGEST),
    }


def _vacuum(rules: Rules) -> dict[str, Program]:
    return {
        "x": partial(a_round, "x", (("a1", 2),), rules, kept=_snapshot(SHARED, 1)),
        "vacuum": partial(vacuum, rules),
        "time": partial(ticks, LONGEST + 1),
    }


def _vacuum_rebase(rules: Rules) -> dict[str, Program]:
    # Version 2 was committed after this process had found version 1 to be the newest. When the process stages again, it
    # stages only changes.
    return {
        "x": partial(a_round, "x", (("c1", 3),), rules, kept=_snapshot(TWO, 1), asked=True),
        "vacuum": partial(vacuum, rules),
        "time": partial(ticks, LONGEST + 1),
    }


def _engine(deletes: bool, rules: Rules) -> dict[str, Program]:
    return {
        "x": partial(a_round, "x", (("a1", 2),), rules, kept=_snapshot(SHARED, 1)),
        "engine": partial(engine, rules, deletes=deletes),
        "y": partial(a_round, "y", (("b1", 2),), rules),
    }


RESTORED = _table(1, frozenset({A1, A2, B1}), known=3)
"""Versions 2 and 3 are missing from the log, but `known` has version 3."""
BEFORE = _table(3, frozenset({A1, B1}), frozenset({B2}), frozenset({("c1", 1, 3)}))


def _restored(rules: Rules) -> dict[str, Program]:
    return {
        "cold": partial(a_round, "x", (("a1", 2),), rules),
        "warm": partial(a_round, "y", (("d1", 2),), rules, kept=_snapshot(BEFORE, 3)),
    }


def _accepted(rules: Rules) -> dict[str, Program]:
    return {
        "accept": partial(accept_loss, rules),
        "cold": partial(a_round, "x", (("a1", 2),), rules),
        "later": partial(a_round, "y", (("b1", 2),), rules),
    }


def _overrun(rules: Rules) -> dict[str, Program]:
    kept, staged = _snapshot(SHARED, 1), rules.stages_version
    return {
        "x": partial(a_round, "x", (("a1", 2),), rules, kept=kept, staged=staged),
        "y": partial(a_round, "y", (("b1", 2),), rules, kept=kept, staged=staged, overrun=True),
    }


def _put_back(rules: Rules) -> dict[str, Program]:
    return {"put back": partial(put_back, rules)}


SCENARIOS: dict[str, Scenario] = {
    "two rounds": Scenario(SHARED, _two),
    "the same work twice, answers lost": Scenario(SHARED._replace(faults=2), _same),
    "three rounds": Scenario(SHARED, _three),
    "merges": Scenario(TWO, _merging),
    "sleeper": Scenario(_known(BEFORE, 1), _sleeper),
    "sleeper beside a slow reader": Scenario(_known(BEFORE, 0), _ghost),
    "two cuts": Scenario(TWO, _two_cuts),
    "slow reader": Scenario(TWO, _slow_reader),
    "vacuum": Scenario(SHARED, _vacuum),
    "vacuum beside a rebase": Scenario(TWO, _vacuum_rebase),
    "optimize": Scenario(SHARED, partial(_engine, False)),
    "delete": Scenario(SHARED, partial(_engine, True)),
    "restored": Scenario(RESTORED, _restored, lost=True),
    "accepted": Scenario(RESTORED, _accepted, lost=True, then=_stream),
    "overrun": Scenario(SHARED, _overrun, leases=True, then=_reader),
    "overrun, then put back": Scenario(SHARED, _overrun, leases=True, then=_put_back),
    "warm beside a cut": Scenario(BEFORE._replace(faults=1), _cut_beside),
}


def run(name: str, rules: Rules) -> Explored:
    """Explores all interleavings of a scenario."""
    scenario = SCENARIOS[name]
    check = partial(broken, lost=scenario.lost, leases=scenario.leases)
    then = scenario.then(rules) if scenario.then else None
    return explore(scenario.world, scenario.programs(rules), answers, check, then=then)


SLOW = ("two cuts", "sleeper beside a slow reader")
BREAKS = {
    "conditional": "two rounds",
    "fresh_numbers": "two rounds",
    "own_number_is_mine": "the same work twice, answers lost",
    "keeps_staged": "the same work twice, answers lost",
    "slots_conflict": "two rounds",
    "drops_states_too": "two rounds",
    "withdraws_again": "two rounds",
    "commit_before_take": "two rounds",
    "keeps_label": "three rounds",
    "known_after_commit": "two rounds",
    "known_rises": "overrun",
    "refuses_missing": "overrun",
    "cut_waits": "sleeper beside a slow reader",
    "cuts_oldest_first": "warm beside a cut",
    "cut_acknowledged": "warm beside a cut",
    "young": "vacuum",
    "late_check": "sleeper",
    "checkpoint_before_cut": "slow reader",
    "checkpoint_acknowledged": "warm beside a cut",
    "last_rises": "two cuts",
    "merges_apart": "merges",
    "merge_drops": "merges",
    "vacuum_waits": "vacuum",
    "vacuum_keeps_history": "vacuum",
    "adopts_only_unchanged": "delete",
    "new_id_after_loss": "accepted",
    "probes_own_version": "restored",
    "asks_by_one_list": "warm beside a cut",
    "vacuum_fences": "vacuum",
    "age_from_first_look": "sleeper beside a slow reader",
    "known_compares": "overrun",
    "stages_version": "overrun, then put back",
}
"""Each rule, and a scenario that fails without it."""


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.thorough] if one in SLOW else []) for one in SCENARIOS]
)
def test_every_invariant_holds_in_every_interleaving(name: str) -> None:
    """Otherwise some order of concurrent commits would lose rows, versions or entries."""
    found = run(name, Rules())
    assert not found.broken, str(found)
    assert found.states > 50


def test_each_rule_has_a_scenario() -> None:
    """Otherwise a rule of the commit protocol could be removed without a failing test."""
    assert {one.name for one in fields(Rules)} == set(BREAKS)


@pytest.mark.parametrize(("rule", "name"), BREAKS.items())
def test_each_rule_is_needed(rule: str, name: str) -> None:
    """Otherwise a rule of the commit protocol would cost requests without protecting anything."""
    found = run(name, replace(Rules(), **{rule: False}))
    assert found.broken, f"{name} holds without {rule}"
