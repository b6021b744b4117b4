"""Whole rounds under faults: three processes plan and commit changes, and another process vacuums the table. Processes
are killed or paused, and the outcomes of requests are unknown.

Each version is whole. After a last round, the table equals the bucket.
"""

from concurrent.futures import Future

import pytest

from s3notify_platform.kernel import parallel
from s3notify_platform.kernel.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import Fault
from tests.support.log_rounds import Rounds
from tests.support.simulation import ROUGH, VirtualTime, run_simulation, simulated

RUN_SECONDS = 400.0
ROUNDS = 8

LOST = {Fault.LOST: 0.02, Fault.LATE: 0.02, Fault.PAUSE: 0.005}
FEW = {fault: rate / 8 for fault, rate in ROUGH.items()}
"""All faults, at a rate of about one fault in three rounds."""

KEYS = [f"{letter}{n}" for letter in "abc" for n in range(4)]
IN_DOUBT = (UnavailableError, UnknownOutcomeError)


class InTurn:
    """A pool that does all work in the caller's thread, since a simulation decides the order of requests."""

    def __init__(self, *_args):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_args):
        pass

    def map(self, function, items):
        return [function(item) for item in items]

    def submit(self, function, *args):
        done = Future()
        done.set_result(function(*args))
        return done


@pytest.fixture(autouse=True)
def in_turn(monkeypatch):
    monkeypatch.setattr(parallel, "ThreadPoolExecutor", InTurn)


def process(store, clock):
    return Rounds(store=store, clock=clock, more={"max_run_seconds": RUN_SECONDS})


def writer(bucket, number):
    """A sequence of runs, each perhaps in a new process."""
    rounds = 0

    def run(store, clock):
        nonlocal rounds
        rounds_of, kept = process(store, clock), None
        while rounds < ROUNDS:
            try:
                kept = rounds_of.table.opened() if kept is None else rounds_of.table.reader.refresh(kept)
            except IN_DOUBT:
                continue
            rounds += 1
            for step in range(3):
                key = KEYS[(5 * number + 7 * rounds + step) % len(KEYS)]
                if (rounds + step) % 5 == 4:
                    bucket.pop(key, None)
                else:
                    bucket[key] = (f"{number}.{rounds}.{step}", tuple(range(rounds + step)))
            try:
                kept = rounds_of.commit(rounds_of.planned(dict(bucket), base=kept)).snapshot
            except IN_DOUBT:
                continue
            except (FencedError, ConflictError):
                kept = None

    return run


def cleaner(store, clock):
    """Vacuums from time to time, with the shortest retention."""
    for _ in range(4):
        clock.sleep(RUN_SECONDS / 2 + 1)
        table = process(store, clock).whole
        try:
            vacuum(
                table.committer,
                process(store, clock).table.opened(),
                retention_seconds=RUN_SECONDS,
                clock=clock,
            )
        except (*IN_DOUBT, FencedError, ConflictError):
            continue


def reader(store, clock):
    """Reads the table all the time. Each table version must be whole. After a long pause, a pack may be vacuumed."""
    for _ in range(4):
        clock.sleep(20)
        started = clock.monotonic()
        try:
            process(store, clock).contents()
        except IN_DOUBT:
            continue
        except CorruptError:
            if clock.monotonic() - started < RUN_SECONDS / 2:
                raise


@simulated
@pytest.mark.parametrize("faults", [LOST, FEW], ids=["lost", "all"])
def test_table_equals_the_bucket_in_the_end(seed, faults):
    store, bucket = MemoryObjectStore(clock=(time := VirtualTime())), {}
    actors = [*(writer(bucket, number) for number in range(3)), cleaner, reader]
    run_simulation(actors, store, seed, faults=faults, time=time)
    last = Rounds(store=store)
    assert last.table.opened().version > ROUNDS, "many rounds were committed"
    last.commit(last.planned(dict(bucket)))
    assert last.contents() == bucket
