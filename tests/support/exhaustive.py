"""A small model checker with explicit states. The checker visits every interleaving of a few programs, which pause at
each request.

A program is a generator function without arguments. A program yields requests. For each request, the program is sent
`(answer, now)`. `answers` returns the possible effects of a request, as pairs of a new world and an answer. For
example, the answer may be lost. `explore` visits all possible states, breadth first, so the returned history is as
short as possible.

The state of a program is the local variables of its frames. The local variables must also show how far a loop with a
`yield` has come. So a loop with a `yield` must run over a range.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

STATES_MAX = 3_000_000

Program = Callable[[], Generator[Any, tuple[Any, int], Hashable]]


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has returned."""

    result: Hashable


@dataclass(slots=True, kw_only=True)
class _Moment:
    """A program at one of its requests."""

    path: tuple[Any, ...]
    request: Any
    after: dict[Any, int] = field(default_factory=dict)


class _Moments:
    """The numbered moments of one program. Two moments with equal frames are the same moment."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.all: list[_Moment] = []
        self._numbers: dict[Any, int] = {}
        self.first = self._reach(())

    def after(self, number: int, answer: Any) -> int:
        """The number of the next moment, if the request of moment `number` gets this answer."""
        moment = self.all[number]
        if answer not in moment.after:
            moment.after[answer] = self._reach((*moment.path, answer))
        return moment.after[answer]

    def _reach(self, path: tuple[Any, ...]) -> int:
        running = self.program()
        try:
            request = next(running)
            for answer in path:
                request = running.send(answer)
        except StopIteration as end:
            request = Ended(end.value)
            frames: Any = request
        else:
            frames = _frames(running)
        running.close()
        if frames not in self._numbers:
            self._numbers[frames] = len(self.all)
            self.all.append(_Moment(path=path, request=request))
        return self._numbers[frames]


def _frames(running: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    while running is not None and running.gi_frame is not None:
        frame = running.gi_frame
        found.append(
            (
                frame.f_code,
                frame.f_lasti,
                tuple((name, _frozen(value)) for name, value in sorted(frame.f_locals.items())),
            )
        )
        running = running.gi_yieldfrom
    return tuple(found)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset(value.items())
    return frozenset(value) if isinstance(value, set) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """The number of states, and a history that breaks an invariant. The history is empty if no invariant is broken."""

    states: int
    broken: str = ""
    history: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.broken or 'holds'} ({self.states} states)", *self.history])


def explore(
    world: Any,
    programs: dict[str, Program],
    answers: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
    broken: Callable[[Any, dict[str, Hashable]], str],
    *,
    then: dict[str, Program] | None = None,
) -> Explored:
    """Visits every interleaving of the programs.

    Stops at the first state for which `broken` returns the name of an invariant.

    `world` must be hashable, and must have the attribute `now`. `broken(world, results)` is called in each state, with
    the results of the programs that have ended. Each program may also stop forever at any point, so all invariants are
    checked in all states. The programs in `then` begin when no other program can go on. If a request has no possible
    answer yet, its program waits, while other programs continue.
    """
    names = [*programs, *(then or {})]
    moments = [_Moments(program) for program in [*programs.values(), *(then or {}).values()]]
    first = (world, tuple(one.first for one in moments))
    came: dict[Any, tuple[Any, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        world, places = state
        at = [one.all[place].request for one, place in zip(moments, places, strict=True)]
        results = {name: r.result for name, r in zip(names, at, strict=True) if isinstance(r, Ended)}
        if why := broken(world, results):
            return Explored(states=len(came), broken=why, history=_history(came, state))
        moves = [[] if isinstance(one, Ended) else list(answers(world, one)) for one in at]
        early = any(moves[: len(programs)])
        for number, request in enumerate(at):
            if number >= len(programs) and early:
                continue
            for changed, answer in moves[number]:
                moved = list(places)
                moved[number] = moments[number].after(places[number], (answer, changed.now))
                reached = (changed, tuple(moved))
                if reached not in came:
                    came[reached] = (state, f"{names[number]}: {request} -> {answer}")
                    waiting.append(reached)
        assert len(came) < STATES_MAX, "too many states: make the scenario smaller"
    return Explored(states=len(came))


def _history(came: dict[Any, tuple[Any, str] | None], state: Any) -> list[str]:
    steps: list[str] = []
    while (before := came[state]) is not None:
        state, step = before
        steps.append(step)
    return steps[::-1]
