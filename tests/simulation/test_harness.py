"""The harness itself: seeds repeat, faults happen, and failures say how to replay them."""

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Publisher, Watcher
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.faults import Fault
from tests.support.simulation import ROUGH, SEEDS_LEAST, VirtualTime, run_simulation, simulated


def history_of(seed):
    """A run with two stores, three actors and every fault."""

    def publish(stores, clock):
        publisher = Publisher(stores["objects"], prefix="ks/", clock=clock, parallelism=1)
        for n in range(5):
            try:
                publisher.put(unique_name(clock), b"%d" % n)
            except Exception:
                clock.sleep(0.5)

    def watch(stores, clock):
        watcher = Watcher(stores["objects"], prefix="ks/", clock=clock)
        for _ in range(10):
            with contextlib.suppress(UnavailableError):
                watcher.poll()
            clock.sleep(0.3)

    def stamp(stores, clock):
        chains = AckChains(stores["records"], clock=clock)
        try:
            chains.open_batch("t", map(str, range(50)))
            chains.stamp_children("t", map(str, range(0, 50, 3)), starts=["x", "y"])
        except Exception:
            clock.sleep(1)

    time = VirtualTime()
    store = {"objects": MemoryObjectStore(clock=time), "records": MemoryRecordStore()}
    rates = [1.0, 0.9, 1.2]
    return run_simulation([publish, watch, stamp], store, seed, faults=ROUGH, clock_rates=rates, time=time)


def test_two_runs_of_a_seed_have_the_same_history():
    """Otherwise the command in the message of a failure could not replay the failure. If two seeds had the same
    history, more seeds would test nothing more.
    """
    assert str(history_of(3)) == str(history_of(3))
    assert history_of(3) == history_of(3)
    assert str(history_of(3)) != str(history_of(4))


def test_history_does_not_depend_on_the_process():
    """The order of sets, and other random values of a Python process, must not matter."""
    code = "from tests.simulation.test_harness import history_of; print(history_of(5))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == f"{history_of(5)}\n"


def test_every_fault_happens():
    """If a kind of fault had no effect in any of 40 seeds, every simulation would pass without a test of this
    fault.
    """
    text = "\n".join(str(history_of(seed)) for seed in range(40))
    for trace in ("crashed", "CrashedError before", "CrashedError after", "response lost", "503", "timeout"):
        assert trace in text
    assert any(history_of(seed).seconds > 120 for seed in range(40))  # some seed has a paused process


def test_clocks_run_at_their_rates():
    """The wait of an actor with a fast clock takes less true time. If all clocks ran at one rate, no simulation would
    test leases whose owners measure time differently.
    """
    order = []

    def sleeper(name, seconds):
        def run(_store, clock):
            began = clock.monotonic()
            clock.sleep(seconds)
            assert clock.monotonic() - began >= seconds * 0.999
            order.append(name)

        return run

    run_simulation([sleeper("slow", 10), sleeper("fast", 15)], MemoryObjectStore(), 1, clock_rates=[1.0, 2.0])
    assert order == ["fast", "slow"]


def test_error_of_an_actor_ends_the_run():
    """The error must be raised, and no thread may be left."""

    def wrong(store, _clock):
        store.head("a")
        raise ValueError("a bug")

    def endless(store, _clock):
        while True:
            store.head("a")

    with pytest.raises(ValueError, match="a bug"):
        run_simulation([wrong, endless], MemoryObjectStore(), 1)


def test_actor_calls_a_store_only_from_its_own_thread():
    """If an actor called its store from other threads, a seed could not repeat the order of the calls."""

    def parallel(store, _clock):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.head, "a").result()

    with pytest.raises(AssertionError, match="thread of its own"):
        run_simulation([parallel], MemoryObjectStore(), 1)


def test_crashed_actor_restarts_a_bounded_number_of_times():
    """The result of an actor that never finished must be None."""
    lives = []

    def doomed(store, _clock):
        lives.append(1)
        store.put("a", b"")

    history = run_simulation([doomed], MemoryObjectStore(), 1, faults={Fault.CRASH_AFTER: 1.0}, restarts=3)
    assert (len(lives), history.crashes, history.results) == (4, 4, [None])


def test_simulation_runs_with_all_seeds(monkeypatch):
    """Environment variables must set the number of seeds, or a single seed."""
    seen = []

    @simulated
    def notes(seed, kind):
        seen.append((seed, kind))

    monkeypatch.delenv("SIM_SECONDS", raising=False)
    monkeypatch.delenv("SIM_SEED", raising=False)
    monkeypatch.setenv("SIM_SEEDS", "3")
    notes(kind="a")
    monkeypatch.setenv("SIM_SEED", "7")
    notes(kind="b")
    assert seen == [(0, "a"), (1, "a"), (2, "a"), (7, "b")]

    monkeypatch.delenv("SIM_SEED")
    monkeypatch.setenv("SIM_SEEDS", "1000")
    monkeypatch.setenv("SIM_SECONDS", "0")
    seen.clear()
    notes(kind="c")
    assert len(seen) == SEEDS_LEAST


def test_failure_says_how_to_replay_it(monkeypatch):
    """The message must have one command, which repeats the first seed that fails."""
    seen = []

    @simulated
    def fails(seed):
        seen.append(seed)
        assert seed < 2

    monkeypatch.delenv("SIM_SEED", raising=False)
    monkeypatch.setenv("SIM_SEEDS", "5")
    with pytest.raises(AssertionError) as caught:
        fails()
    assert seen == [0, 1, 2]
    assert caught.value.__notes__[0] == (
        "replay: SIM_SEED=2 python -m pytest "
        "'tests/simulation/test_harness.py::test_failure_says_how_to_replay_it'"
    )
