"""An object is erased while writers commit rounds, under faults: crashes, lost answers, sleeps.

Each writer has a slot of its own, of which it knows what was committed; all of them also take in the slot of the object
that is erased. Afterwards nothing of the object is left, and all that was reported committed is there.
"""

from contextlib import suppress

import pytest

from s3notify_platform.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.lake.commit import Committed
from s3notify_platform.lake.erase import erase
from s3notify_platform.slots import Slot
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import Fault
from tests.support.lake_raw import holding
from tests.support.lake_rounds import Rounds, slot_of_key
from tests.support.simulation import VirtualTime, run_simulation, simulated

KEY, ETAG, ROW = "a-person4711", "etag4711", 471147114712
RUN_SECONDS = 1600.0
"""Of a run at most: many pauses of the simulation."""
ROUNDS = 5

Doubt = (UnavailableError, UnknownOutcomeError, FencedError, ConflictError)


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch):
    """Actors call a store from one thread. States are in files, too."""
    monkeypatch.setattr("s3notify_platform.lake.pack_set.READS_IN_FLIGHT", 1)
    monkeypatch.setattr("s3notify_platform.lake.state_reader.REQUESTS_IN_FLIGHT", 1)
    monkeypatch.setattr("s3notify_platform.lake.state_merge.FILES_IN_FLIGHT", 1)
    monkeypatch.setattr("s3notify_platform.lake.states.STATES_INLINE", 6)


def rounds_of(store, clock, vectors):
    return Rounds(store=store, clock=clock, vectors=vectors, more={"max_run_seconds": RUN_SECONDS})


def writer(bucket, told, letter, vectors):
    """Overwrites its own objects, and one of the common slot. `told`: its slot as it was reported committed."""
    done = 0

    def run(store, clock):
        nonlocal done
        process = rounds_of(store, clock, vectors)
        while done < ROUNDS:
            clock.sleep(clock.random_bytes(1)[0])
            done += 1
            for key in (f"{letter}{done % 2}", f"a{letter}"):
                bucket[key] = (f"{letter}{done}", (done, done + 1, done + 2))
            mine = {key: found for key, found in bucket.items() if key[0] == letter}
            told.pop(letter, None)
            try:
                base = process.whole.newest()
                planned = process.planned(dict(bucket), {0, slot_of_key(letter)}, base)
                result = process.whole.commit(planned, base)
            except Doubt:
                continue
            except CorruptError:
                # It planned on a version whose files are gone; a newer one is there.
                if process.whole.newest().version == base.version:
                    raise
                continue
            if isinstance(result, Committed) and slot_of_key(letter) not in planned.dropped:
                told[letter] = mine

    return run


def eraser(bucket, erased, vectors):
    """Deletes the object and erases it, again after the longest run."""

    def run(store, clock):
        if not erased:
            clock.sleep(200 + clock.random_bytes(1)[0])
            bucket.pop(KEY, None)
        while len(erased) < 2:
            with suppress(*Doubt):
                erased.append(erase(rounds_of(store, clock, vectors).whole, Slot(0), KEY, clock=clock))
                clock.sleep(max(erased[0].again_ms - clock.wall_ms(), 0) / 1000)

    return run


def check(seed, faults, *, vectors):
    store = MemoryObjectStore(clock=(time := VirtualTime()))
    bucket = {KEY: (ETAG, (ROW, ROW + 1, 7))} | {f"a{n}": (f"e{n}", (1, 2, 3)) for n in range(3)}
    first = rounds_of(store, time_of(time), vectors)
    first.commit(first.planned(bucket))
    assert holding(store, KEY)
    told, erased = {}, []
    actors = [writer(bucket, told, letter, vectors) for letter in "bcd"]
    actors.append(eraser(bucket, erased, vectors))
    run_simulation(actors, store, seed, faults=faults, time=time, restarts=50)
    assert erased[0].found
    assert holding(store, KEY, ETAG, ROW) == set()
    process = rounds_of(store, time_of(time), vectors)
    contents = process.contents()
    for letter, mine in told.items():
        assert {key: found for key, found in contents.items() if key[0] == letter} == mine
    process.commit(process.planned(bucket))
    assert process.contents() == bucket


def time_of(time):
    """A clock of a process outside of the simulation."""

    class Outside(VirtualTime):
        def __init__(self):
            self.drawn = 0

        monotonic, wall_ms = time.monotonic, time.wall_ms

        def random_bytes(self, count):
            self.drawn += 1
            return (b"outside" + self.drawn.to_bytes(4) + bytes(count))[7:][:count].rjust(count, b"o")

    return Outside()


SLEEPY = {Fault.LOST: 0.002, Fault.REFUSED: 0.002, Fault.LATE: 0.02, Fault.PAUSE: 0.01}
DEADLY = {Fault.CRASH_BEFORE: 0.003, Fault.CRASH_AFTER: 0.003, Fault.LATE: 0.02, Fault.PAUSE: 0.005}
"""Few for each request, since an erasure has many, and begins again."""


@simulated
def test_what_was_erased_is_gone_and_what_was_committed_is_there(seed):
    check(seed, SLEEPY, vectors=bool(seed % 2))


@simulated
def test_processes_that_crash_anywhere_change_nothing_of_that(seed):
    check(seed, DEADLY, vectors=bool(seed % 2))
