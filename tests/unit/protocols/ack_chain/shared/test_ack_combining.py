"""Group commit: threads of one process send their stamps together, and each thread gets its own result."""

import threading
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.group_commit import GroupCommit
from s3notify_platform.protocols.ack_chain import Acked, AlreadyAcked, Stamped, new_stamp, xor
from s3notify_platform.protocols.ack_chain.shared import SharedChains
from s3notify_platform.protocols.ack_chain.shared.plans import Stamp, combine
from s3notify_platform.protocols.ack_chain.shared.record import Chain, decode
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.faults import Fault, FaultyStore, at, never
from tests.support.waiting import until

STUCK_SECONDS = 10


def stamp(operation, *, ending=(), beginning=(), raw=None):
    return Stamp(
        tag="t",
        operation=operation.encode(),
        ending=frozenset(ending),
        beginning=frozenset(beginning),
        expires_ms=0,
        raw=raw,
    )


# Pure functions that combine stamps


def chain_of(names):
    store = MemoryRecordStore()
    SharedChains(store).open_batch("t", names)
    return decode("t", store.read("ack", "t").value)


NAMES = st.sets(st.sampled_from("abcde"), max_size=3)


@given(st.lists(st.tuples(st.sampled_from(["op1", "op2", "op3"]), NAMES, NAMES), max_size=6))
def test_combined_stamps_equal_single_stamps_in_order(calls):
    """Otherwise threads that stamp together would get other outcomes than threads that stamp one after another, or
    would store another record.
    """
    together = [stamp(op, ending=ending, beginning=starts) for op, ending, starts in calls]
    chain = chain_of("abc")
    written, answers = combine(chain, together)
    after, results = chain, []
    for plan in together:
        try:
            changed, result = plan(after)
            after = changed or after
        except UsageError as error:
            result = str(error)
        results.append(result)
    assert [str(r) if isinstance(r, UsageError) else r for r in answers] == results
    assert (written or chain) == after
    assert (written is None) == (after == chain)
    ackers = {op for (op, _, _), result in zip(calls, results, strict=True) if result == Acked()}
    assert len(ackers) <= 1


def test_only_one_stamp_gets_acked_and_a_wrong_stamp_affects_no_other():
    """Otherwise a wrong name would fail other callers' stamps, or two callers would get `Acked`."""
    after, results = combine(
        chain_of("ab"),
        [stamp("x", ending="a"), stamp("y", ending="z"), stamp("z", ending="b"), stamp("w", ending="b")],
    )
    assert results[0] == Stamped(missing=1)
    assert isinstance(results[1], UsageError)
    assert results[2:] == [Acked(), AlreadyAcked()]
    assert after.status == "acked"


def test_repeated_stamps_write_nothing():
    """Otherwise a repeated stamp would cost a write."""
    chain, _ = combine(chain_of("ab"), [stamp("x", ending="a")])
    assert combine(chain, [stamp("x", ending="a"), stamp("y", ending="a")])[0] is None


def test_raw_stamps_are_combined_once_for_each_operation_id():
    """Otherwise a retry that is combined with its first attempt would be applied twice."""
    one, other = new_stamp(), new_stamp()
    chain = Chain(identity="i", stamp=xor(one, other))
    after, _ = combine(chain, [stamp("x", raw=one), stamp("x", raw=one)])
    assert after.stamp == other


# Threads


class Gate:
    """Holds the first read until a test opens the gate, so that other threads queue up behind this read."""

    def __init__(self, store):
        self.store = store
        self.entered, self.open = threading.Event(), threading.Event()

    def read(self, *args):
        if not self.entered.is_set():
            self.entered.set()
            assert self.open.wait(STUCK_SECONDS)
        return self.store.read(*args)

    def __getattr__(self, name):
        return getattr(self.store, name)


def spawn(work, *args):
    """Runs `work` in a daemon thread, so that a thread that waits for ever fails only its own test."""
    future = Future()

    def run():
        try:
            future.set_result(work(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def waiting(commit):
    """Returns the number of threads that wait behind a leader."""
    with commit.changed:
        return sum(len(group.waiting) for group in commit._groups.values())


def crowd(records, count, work):
    """Runs `count` threads and returns their results. One thread is held in its first read until all other threads
    wait.
    """
    gate = Gate(records)
    chains = SharedChains(gate)
    first = spawn(work, chains, 0)
    assert gate.entered.wait(STUCK_SECONDS)
    others = [spawn(work, chains, n) for n in range(1, count)]
    until(lambda: waiting(chains._together) == count - 1)
    gate.open.set()
    return [task.result(STUCK_SECONDS) for task in (first, *others)], chains


@pytest.mark.parametrize("count", [2, 8, 64])
def test_concurrent_threads_cost_two_writes(count):
    """Otherwise the number of requests would grow with the number of threads, or two threads would get `Acked`."""
    records = MemoryRecordStore()
    SharedChains(records).open_batch("t", map(str, range(count)))
    faulty = FaultyStore(records)
    outcomes, chains = crowd(faulty, count, lambda c, n: c.stamp_children("t", [str(n)], f"op {n}"))
    assert [call.method for call, _ in faulty.calls] == ["read", "replace"] * 2
    assert outcomes.count(Acked()) == 1
    assert sorted(o.missing for o in outcomes if isinstance(o, Stamped)) == list(range(1, count))
    assert chains._together._groups == {}


def test_concurrent_retries_with_one_operation_id_are_applied_once():
    """Otherwise a raw stamp that two threads send at the same time would cancel itself out."""
    records, stamps = MemoryRecordStore(), [new_stamp() for _ in range(6)]
    SharedChains(records).create("t", xor(*stamps))
    outcomes, _ = crowd(records, 12, lambda c, n: c.stamp("t", stamps[n % 6], operation_id=f"child {n % 6}"))
    assert SharedChains(records).state("t").status == "acked"
    assert 1 <= outcomes.count(Acked()) <= 2
    assert len({n % 6 for n, outcome in enumerate(outcomes) if outcome == Acked()}) == 1


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE, Fault.REFUSED])
@pytest.mark.parametrize("nth", [0, 1])
def test_a_combined_write_in_doubt_is_applied_once(fault, nth):
    """Otherwise, after a lost answer, the stamps of all threads in a combined write would count twice or never."""
    records, stamps = MemoryRecordStore(), [new_stamp() for _ in range(9)]
    SharedChains(records).create("t", xor(*stamps))
    faulty = FaultyStore(records, at("replace", fault, nth=nth))
    crowd(faulty, 8, lambda c, n: c.stamp("t", stamps[n]))
    faulty.settle()
    assert SharedChains(records).stamp("t", stamps[8]) == Acked()


def test_threads_of_other_chains_do_not_wait():
    """Otherwise a chain whose store hangs would delay the stampers of other chains."""
    records = MemoryRecordStore()
    for tag in "ab":
        SharedChains(records).open_batch(tag, ["1"])
    gate = Gate(records)
    chains = SharedChains(gate)
    held = spawn(chains.stamp_children, "a", ["1"])
    assert gate.entered.wait(STUCK_SECONDS)
    assert chains.stamp_children("b", ["1"]) == Acked()
    gate.open.set()
    assert held.result(STUCK_SECONDS) == Acked()


def test_a_failed_write_fails_for_all_its_threads():
    """Otherwise a thread whose stamp was not written would get a result, or later threads would get the error."""
    records = MemoryRecordStore()
    SharedChains(records).open_batch("t", map(str, range(4)))
    faulty = FaultyStore(records, at("read", Fault.REFUSED, nth=1))

    def work(chains, number):
        try:
            return chains.stamp_children("t", [str(number)])
        except UnavailableError as error:
            return error

    results, chains = crowd(faulty, 4, work)
    assert results[0] == Stamped(missing=3)
    assert all(isinstance(result, UnavailableError) for result in results[1:])
    assert len({id(result) for result in results[1:]}) == 3
    assert chains.stamp_children("t", ["1", "2", "3"]) == Acked()


class Interrupted(BaseException):
    """An interruption like `KeyboardInterrupt`."""


def test_threads_behind_a_leader_that_dies_are_served():
    """Otherwise the threads behind a leader that dies would wait for ever."""
    commit, sent = GroupCommit(), []
    leading, go, second = threading.Event(), threading.Event(), threading.Event()

    def send(jobs):
        sent.append(list(jobs))
        if len(sent) == 1:
            leading.set()
            assert go.wait(STUCK_SECONDS)
        elif len(sent) == 2:
            second.set()
            raise Interrupted
        return [job * 10 for job in jobs]

    def work(job):
        try:
            return commit.run("key", job, send)
        except Interrupted:
            return "interrupted"

    first = spawn(work, 1)
    assert leading.wait(STUCK_SECONDS)
    others = []
    for job in (2, 3, 4):
        others.append(spawn(work, job))
        until(lambda: waiting(commit) == len(others))
    go.set()
    assert first.result(STUCK_SECONDS) == 10
    results = [task.result(STUCK_SECONDS) for task in others]
    assert sent[:2] == [[1], [2, 3, 4]]
    assert [result for result in results if result != "interrupted"] == [job * 10 for job in sent[2]]
    assert len(sent[2]) == 2
    assert commit._groups == {}


def test_no_stamp_of_many_threads_on_many_chains_is_lost():
    """Otherwise a stamp would be lost, or two threads would get `Acked`, under real concurrency."""
    records = MemoryRecordStore()
    chains = SharedChains(records)
    for tag in "abc":
        chains.open_batch(tag, map(str, range(40)))

    def work(n):
        return chains.stamp_children("abc"[n % 3], [str(n // 3)])

    outcomes = [task.result(STUCK_SECONDS) for task in [spawn(work, n) for n in range(120)]]
    assert outcomes.count(Acked()) == 3
    assert {state.status for state in chains.states()} == {"acked"}


def test_a_single_thread_waits_for_nobody():
    """Otherwise a single stamper would pause, or take more than two requests."""

    class NoSleep:
        monotonic, wall_ms = SYSTEM_CLOCK.monotonic, SYSTEM_CLOCK.wall_ms
        random_bytes = SYSTEM_CLOCK.random_bytes

        def sleep(self, seconds):
            raise AssertionError("slept")

    faulty = FaultyStore(MemoryRecordStore(), never)
    chains = SharedChains(faulty, clock=NoSleep())
    chains.open_batch("t", ["1"])
    assert chains.stamp_children("t", ["1"]) == Acked()
    assert [call.method for call, _ in faulty.calls] == ["create", "read", "replace"]
