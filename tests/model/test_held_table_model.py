"""A command that holds the table (`Known.held`), and writers that commit round after round, in every interleaving.

The conditional write of a version prevents lost commits. `held` ensures that a command that rewrites the table does not
lose to the writers again and again. So the invariant is the number of attempts that the command loses.

    version   the newest version of the log
    known     number of changes to the known record: a conditional write of the record needs the newest number
    held      true while a command holds the table
"""

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.support.exhaustive import Explored, Program, explore

ROUNDS = {1: 5, 2: 3}
"""The number of rounds of each writer, by the number of writers. Together, the writers commit more versions than the
command may lose attempts.
"""
LOST_BEFORE = 2
"""Attempts that the command loses before it holds the table."""
ATTEMPTS = LOST_BEFORE + 6


class World(NamedTuple):
    """The table, and facts for the checker."""

    version: int = 0
    known: int = 0
    held: bool = False
    lost: int = 0
    """Attempts that the command has lost."""
    now: int = 0


class Request(NamedTuple):
    """A request of a program."""

    what: str
    value: Any = None


Steps = Generator[Request, tuple[Any, int], Any]


def command() -> Steps:
    """Rewrites the table. Holds the table after some lost attempts, and releases it after the commit."""
    base, _ = yield Request("newest")
    for attempt in range(ATTEMPTS):
        if attempt == LOST_BEFORE:
            yield Request("hold", True)
        won, _ = yield Request("rewrite", base)
        if won:
            yield Request("hold", False)
            return "committed"
        base, _ = yield Request("newest")
    return "starved"


def writer(rounds: int, *, waits: bool) -> Steps:
    """Commits rounds like `table.commit`. Before the first attempt, checks the known record that was read with the
    snapshot or after the last commit. Before the third attempt and each later one, reads and checks the record again.
    """
    base, _ = yield Request("newest")
    record, _ = yield Request("known")
    for _ in range(rounds):
        for attempt in range(ATTEMPTS):
            if attempt > 1:
                record, _ = yield Request("known")
            if waits and attempt != 1 and record[1]:
                record, _ = yield Request("released")
                base, _ = yield Request("newest")
            won, _ = yield Request("create", base)
            if won:
                base += 1
                break
            base, _ = yield Request("newest")
        else:
            return "failed"
        for _ in range(3):
            noted, _ = yield Request("note", record[0])
            if noted is not None:
                record = noted
                break
            record, _ = yield Request("known")
    return "committed"


def answers(world: World, request: Request) -> Iterator[tuple[World, Any]]:
    """All possible results of a request."""
    match request.what:
        case "newest":
            yield world, world.version
        case "known":
            yield world, (world.known, world.held)
        case "released":
            if not world.held:
                yield world, (world.known, False)
        case "hold":
            yield world._replace(held=request.value, known=world.known + 1), None
        case "create":
            won = world.version == request.value
            yield world._replace(version=world.version + won), won
        case "rewrite":
            won = world.version == request.value
            yield world._replace(version=world.version + won, lost=world.lost + (not won)), won
        case "note":
            fits = world.known == request.value
            noted = world._replace(known=world.known + fits)
            yield noted, (noted.known, noted.held) if fits else None


def run(*, waits: bool, writers: int) -> Explored:
    """Explores all interleavings of the command and the writers."""
    # The first attempt under `held` may be lost because its snapshot is older. Each writer may finish one round.
    allowed = LOST_BEFORE + 1 + writers

    def broken(world: World, results: dict[str, Any]) -> str:
        if world.lost > allowed:
            return f"the command lost {world.lost} attempts"
        return next((f"{name}: {result}" for name, result in results.items() if result != "committed"), "")

    programs: dict[str, Program] = {
        f"w{n}": partial(writer, ROUNDS[writers], waits=waits) for n in range(writers)
    }
    return explore(World(), {"command": command, **programs}, answers, broken)


@pytest.mark.parametrize("writers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_command_that_holds_the_table_commits_soon(writers: int) -> None:
    """Otherwise `erase` or a rollback could lose to busy writers until its time is over. Each writer may only finish
    the round that it began before the command held the table.
    """
    found = run(waits=True, writers=writers)
    assert not found.broken, str(found)
    assert found.states > 50


@pytest.mark.parametrize("writers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_command_loses_more_often_if_nobody_waits(writers: int) -> None:
    """Otherwise `held` would cost requests without any effect."""
    assert "the command lost" in run(waits=False, writers=writers).broken
