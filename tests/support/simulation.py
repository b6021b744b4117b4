"""Runs several real clients together. Only one client makes a store call at a time, in an order that is drawn from a
seed.

`run_simulation(actors, store, seed)` runs each actor, a function `(store, clock)`, as a greenlet. Before each store
call, and in each sleep, the actor gives control to the scheduler. The seed decides which actor continues. Time is
virtual, and randomness and faults are drawn from the seed. So the same seed gives the same history. A crashed actor is
restarted like a new process, at most `restarts` times.

`@simulated` runs a test with 20 seeds. `SIM_SEEDS=5000` sets another number, and `SIM_SEED=7` runs only this seed. With
`SIM_SECONDS=1`, a test ends after one second, but runs at least 3 seeds. If a test fails, its message ends with the
command that replays the failure.

An actor may wait only for store calls and its clock. An actor must not call a store from threads, so a `Publisher`
needs `parallelism=1`. A store that returns times must use the time of the simulation: `time = VirtualTime()`, then
`run_simulation(…, MemoryObjectStore(clock=time), …, time=time)`.
"""

import functools
import inspect
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from s3notify_platform.kernel.clock import Clock
from tests.support.clocks import EPOCH_MS
from tests.support.faults import CrashedError, Fault, FaultyStore, never, seeded

SEEDS, SEEDS_LEAST = 20, 3
SECONDS_MAX, SEED_SECONDS_MAX = 300, 10
STEP_SECONDS = 0.001
STEPS_MAX = 100_000
PAUSE_SECONDS = 120.0

ROUGH: dict[Fault, float] = {
    Fault.CRASH_BEFORE: 0.02,
    Fault.CRASH_AFTER: 0.02,
    Fault.LOST: 0.05,
    Fault.REFUSED: 0.05,
    Fault.THROTTLED: 0.03,
    Fault.LATE: 0.03,
    Fault.PAUSE: 0.01,
}
"""Rates of all faults that a store and a machine may have: about one call in six has a fault."""

Actor = Callable[[Any, Clock], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A store call, a start or an end of an actor."""

    step: int
    actor: int
    what: str
    key: str = ""
    result: str = ""


@dataclass(slots=True, kw_only=True)
class History:
    """The events of a simulation. Equal seeds give equal events."""

    events: list[Event] = field(default_factory=list)
    results: list[object] = field(default_factory=list)
    """The result of each actor; None if the actor crashed in its last life."""
    crashes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return "\n".join(f"{e.step:5} #{e.actor} {e.what} {e.key} {e.result}" for e in self.events)


class VirtualTime:
    """The time of a simulation, as the clock of its stores. Only the scheduler moves the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a store in a simulation does not wait")

    def random_bytes(self, count: int) -> bytes:
        raise AssertionError("a store in a simulation draws no random bytes")


class StoppedError(BaseException):
    """Ends an actor, because the simulation is over."""


class _Worker:
    """One actor, and the clock that it sees."""

    def __init__(self, simulation: "Simulation", number: int, actor: Actor, rate: float) -> None:
        self.simulation = simulation
        self.number = number
        self.actor = actor
        self.rate = rate
        self.dice = random.Random(f"actor {number} of {simulation.seed}")
        self.wakes_at = 0.0
        self.done = False
        self.result: object = None
        self.greenlet = greenlet(self._run)

    # The actor's clock

    def monotonic(self) -> float:
        return self.simulation.time.now * self.rate

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.simulation.time.now * self.rate * 1000)

    def sleep(self, seconds: float) -> None:
        self.wakes_at = self.simulation.time.now + seconds / self.rate
        self.hand_back()

    def random_bytes(self, count: int) -> bytes:
        return self.dice.randbytes(count)

    def hand_back(self) -> None:
        """Lets the scheduler decide which actor continues."""
        if self.simulation.over:
            raise StoppedError
        if getcurrent() is not self.greenlet:
            raise AssertionError(f"actor {self.number} calls a store from a thread of its own")
        self.greenlet.parent.switch()
        if self.simulation.over:
            raise StoppedError

    def _run(self) -> None:
        try:
            for _ in range(self.simulation.restarts + 1):
                try:
                    self.result = self.actor(self.simulation.stores_of(self), self)
                    self.simulation.note(self, "returns")
                    break
                except CrashedError as crash:
                    self.simulation.history.crashes += 1
                    self.simulation.note(self, "crashed", str(crash))
                    self.hand_back()
        except BaseException:
            if not self.simulation.over:
                raise
        finally:
            self.done = True


class Simulation:
    """One simulation. Tests use `run_simulation`.

    `restarts`: how many times an actor that crashes is restarted.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        store: Any,
        seed: int,
        *,
        faults: Mapping[Fault, float] | None = None,
        restarts: int = 10,
        clock_rates: Sequence[float] | None = None,
        time: VirtualTime | None = None,
    ) -> None:
        self.seed = seed
        self.restarts = restarts
        self.time = time if time is not None else VirtualTime()
        self.over = False
        self.history = History()
        self._dice = random.Random(f"order {seed}")
        self._schedule = seeded(seed, faults) if faults else never
        self._step = 0
        # Each store has one `FaultyStore`, which all actors share. So a late write is applied during a later call of
        # any actor.
        self._current: _Worker | None = None
        self._faulty = {
            name: FaultyStore(inner, self._schedule, pause=self._pause, late_by_calls=1 + seed % 5)
            for name, inner in (store.items() if isinstance(store, Mapping) else {"": store}.items())
        }
        self._named = isinstance(store, Mapping)
        rates = clock_rates or [1.0] * len(actors)
        self._workers = [_Worker(self, n, actor, rates[n]) for n, actor in enumerate(actors)]

    def run(self) -> History:
        """Gives each actor its turns until all are done."""
        try:
            while waiting := [worker for worker in self._workers if not worker.done]:
                self._give_to(self._next(waiting))
        finally:
            self._end()
        for faulty in self._faulty.values():
            faulty.settle()
        self.history.results = [worker.result for worker in self._workers]
        self.history.seconds = self.time.now
        return self.history

    def _next(self, waiting: list[_Worker]) -> _Worker:
        awake = [worker for worker in waiting if worker.wakes_at <= self.time.now]
        if not awake:
            self.time.now = min(worker.wakes_at for worker in waiting)
            awake = [worker for worker in waiting if worker.wakes_at <= self.time.now]
        return self._dice.choice(awake)

    def _give_to(self, worker: _Worker) -> None:
        self._step += 1
        self.time.now += STEP_SECONDS
        if self._step > STEPS_MAX:
            raise AssertionError(f"no end after {STEPS_MAX} steps")
        self._current = worker
        worker.greenlet.parent = getcurrent()
        worker.greenlet.switch()

    def _end(self) -> None:
        self.over = True
        for worker in self._workers:
            if worker.greenlet:  # the actor has begun, and has not ended
                worker.greenlet.parent = getcurrent()
                worker.greenlet.switch()

    def note(self, worker: _Worker, what: str, key: str = "", result: str = "") -> None:
        """Adds an event to the history."""
        event = Event(step=self._step, actor=worker.number, what=what, key=key, result=result)
        self.history.events.append(event)

    def stores_of(self, worker: _Worker) -> Any:
        """A store as one actor sees it. Each call waits for its turn, and is recorded."""
        seen = {name: _ActorStore(self, worker, faulty) for name, faulty in self._faulty.items()}
        return seen if self._named else seen[""]

    def _pause(self) -> None:
        assert self._current is not None
        self._current.sleep(PAUSE_SECONDS)


class _ActorStore:
    def __init__(self, simulation: Simulation, worker: _Worker, faulty: FaultyStore) -> None:
        self._simulation = simulation
        self._worker = worker
        self._faulty = faulty

    def __getattr__(self, method: str) -> Any:
        function = getattr(self._faulty, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._worker.hand_back()
            key = "/".join(str(arg) for arg in args if isinstance(arg, str))
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._simulation.note(self._worker, method, key, f"{type(error).__name__} {error}")
                raise
            if method == "scan":
                result = list(result)
            self._simulation.note(self._worker, method, key, repr(result)[:200])
            return iter(result) if method == "scan" else result

        return call


def run_simulation(actors: Sequence[Actor], store: Any, seed: int, **options: Any) -> History:
    """Runs the actors over one store, or over a mapping of named stores. Returns the history.

    If an actor raises an exception of its own, the simulation ends, and this exception is raised. `options`: the
    options of `Simulation`.
    """
    return Simulation(actors, store, seed, **options).run()


def simulated(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test with the argument `seed` for many seeds, one after another, until one fails.

    All seeds share the fixtures, so the test itself must build its objects for each seed.
    """

    @functools.wraps(test)
    def looped(*args: Any, **kwargs: Any) -> None:
        enough = time.monotonic() + float(os.environ.get("SIM_SECONDS", "inf"))
        for number, seed in enumerate(_seeds()):
            if number >= SEEDS_LEAST and time.monotonic() > enough:
                break
            try:
                test(*args, seed=seed, **kwargs)
            except BaseException as error:
                node = os.environ.get("PYTEST_CURRENT_TEST", test.__name__).rpartition(" ")[0]
                error.add_note(f"replay: SIM_SEED={seed} python -m pytest '{node}'")
                raise

    # The new signature lacks `seed`, so that pytest does not look for a fixture with this name.
    signature = inspect.signature(test)
    kept = [p for p in signature.parameters.values() if p.name != "seed"]
    looped.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return pytest.mark.timeout(SECONDS_MAX + SEED_SECONDS_MAX * len(_seeds()))(looped)


def _seeds() -> Sequence[int]:
    single = os.environ.get("SIM_SEED")
    return [int(single)] if single else range(int(os.environ.get("SIM_SEEDS", str(SEEDS))))
