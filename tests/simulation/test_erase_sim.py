"""Objects are erased while writers commit rounds, under faults: crashes, lost answers, sleeps.

Each writer has its own slot, and knows the commits to this slot. All writers also ingest the slot of the erased
objects. At the end nothing of these objects is left, and everything that was reported as committed exists.
"""

import pytest

from s3notify_platform.kernel.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from tests.support.faults import Fault
from tests.support.log_rounds import Rounds, slot_of_key
from tests.support.log_tables import LAYOUT
from tests.support.raw_search import holding
from tests.support.simulation import VirtualTime, run_simulation, simulated

MARK, ROW = "4711", 471147114712
KEYS = [f"a-person{MARK}-{n}" for n in range(4)]
RUN_SECONDS = 6000.0
"""The maximum time of a run, long enough for many pauses of the simulation."""
ROUNDS = 6

Doubt = (UnavailableError, UnknownOutcomeError, FencedError, ConflictError)


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch):
    """Makes each actor call its store from one thread. Also makes rounds write states to files."""
    monkeypatch.setattr("s3notify_platform.table.packs.pack_set.READS_IN_FLIGHT", 1)
    monkeypatch.setattr("s3notify_platform.table.states.state_reader.REQUESTS_IN_FLIGHT", 1)
    monkeypatch.setattr("s3notify_platform.table.states.state_merge.FILES_IN_FLIGHT", 1)
    monkeypatch.setattr("s3notify_platform.table.states.state_levels.STATES_INLINE", 6)


def rounds_of(store, clock, vectors):
    return Rounds(store=store, clock=clock, vectors=vectors, more={"max_run_seconds": RUN_SECONDS})


class Dawdling(DelegatingStore):
    """The store of a process that sleeps before it creates a version. Other processes commit and erase in this time."""

    def __init__(self, store, clock):
        super().__init__(store)
        self.clock = clock

    def put(self, key, body, **given):
        if LAYOUT.version_of(key) is not None and body:
            self.clock.sleep(2 * self.clock.random_bytes(1)[0])
        return super().put(key, body, **given)


def writer(bucket, reported, letter, vectors, seen):
    """A writer that overwrites its own objects, and one object of the common slot.

    `reported`: for each writer's letter, its objects that were reported as committed. `seen`: a process without a
    cache, which reads the table right after each report.
    """
    done = 0

    def run(store, clock):
        nonlocal done
        process = rounds_of(Dawdling(store, clock) if letter == "d" else store, clock, vectors)
        while done < ROUNDS:
            clock.sleep(clock.random_bytes(1)[0])
            done += 1
            for key in (f"{letter}{done % 2}", f"a{letter}"):
                bucket[key] = (f"{letter}{done}", (done, done + 1, done + 2))
            mine = {key: found for key, found in bucket.items() if key[0] == letter}
            reported.pop(letter, None)
            try:
                base = process.whole.newest()
                planned = process.planned(dict(bucket), {0, slot_of_key(letter)}, base)
                result = process.whole.commit(planned, base)
            except Doubt:
                continue
            except CorruptError:
                # The round was planned on a version whose files are erased; a newer version exists.
                if process.whole.newest().version == base.version:
                    raise
                continue
            if isinstance(result, Committed) and slot_of_key(letter) not in planned.dropped:
                reported[letter] = mine
                snapshot = seen.table.opened()
                states = seen.states.lookup(snapshot.manifest.states, {slot_of_key(letter): [*mine]})
                assert {key: state.etag for key, state in states.items()} == {
                    key: etag for key, (etag, _) in mine.items()
                }

    return run


def eraser(bucket, erased, doubted, vectors):
    """Deletes and erases the objects one by one. After the duration of the longest run, erases each object again.

    `doubted`: objects for which a call of `erase` had an unknown outcome, so the next erasure may find nothing.
    """

    def run(store, clock):
        while len(erased) < 2 * len(KEYS):
            key = KEYS[len(erased) % len(KEYS)]
            if len(erased) >= len(KEYS):
                clock.sleep(max(erased[len(KEYS) - 1].again_ms - clock.wall_ms(), 0) / 1000)
            elif key in bucket:
                clock.sleep(100 + clock.random_bytes(1)[0])
                del bucket[key]
            try:
                erased.append(erase(rounds_of(store, clock, vectors).whole, Slot(0), key, clock=clock))
            except Doubt:
                doubted.add(key)

    return run


def check(seed, faults, *, vectors):
    store = MemoryObjectStore(clock=(time := VirtualTime()))
    bucket = dict.fromkeys(KEYS, (f"etag{MARK}", (ROW, ROW + 1, 7)))
    bucket |= {f"a{n}": (f"e{n}", (1, 2, 3)) for n in range(3)}
    first = rounds_of(store, time_of(time), vectors)
    first.commit(first.planned(bucket))
    assert holding(store, f"etag{MARK}")
    reported, erased, doubted = {}, [], set()
    actors = [writer(bucket, reported, letter, vectors, first) for letter in "bcd"]
    actors.append(eraser(bucket, erased, doubted, vectors))
    run_simulation(actors, store, seed, faults=faults, time=time, restarts=50)
    if Fault.CRASH_AFTER not in faults:  # if an erasure was killed at its end, its repetition finds nothing
        assert all(each.found for each, key in zip(erased, KEYS, strict=False) if key not in doubted)
    assert holding(store, *KEYS, f"etag{MARK}", ROW, ROW + 1) == set()
    process = rounds_of(store, time_of(time), vectors)
    contents = process.contents()
    for letter, mine in reported.items():
        assert {key: found for key, found in contents.items() if key[0] == letter} == mine
    process.commit(process.planned(bucket))
    assert process.contents() == bucket


def time_of(time):
    """The clock of a process outside of the simulation."""

    class Outside(VirtualTime):
        def __init__(self):
            self.drawn = 0

        monotonic, wall_ms = time.monotonic, time.wall_ms

        def random_bytes(self, count):
            self.drawn += 1
            return (b"outside" + self.drawn.to_bytes(4) + bytes(count))[7:][:count].rjust(count, b"o")

    return Outside()


SLEEPY = {Fault.LOST: 0.002, Fault.REFUSED: 0.002, Fault.LATE: 0.02, Fault.PAUSE: 0.03}
DEADLY = {Fault.CRASH_BEFORE: 0.003, Fault.CRASH_AFTER: 0.003, Fault.LATE: 0.02, Fault.PAUSE: 0.005}
"""Low rates of faults, because an erasure makes many requests, and starts over after a fault."""


@simulated
def test_committed_rows_stay_and_nothing_is_left_of_erased_objects(seed):
    check(seed, SLEEPY, vectors=bool(seed % 2))


@simulated
def test_crashes_do_not_bring_erased_objects_back(seed):
    check(seed, DEADLY, vectors=bool(seed % 2))
