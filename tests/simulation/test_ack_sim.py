"""Ack chains under faults: acked exactly when all is done, reported once, whoever retries what."""

import pytest

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import (
    StaleLocalData,
    TagExists,
    TagNotFound,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.protocols.ack_chain import AckChains, Acked, AlreadyAcked, Stamped, new_stamp, xor
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.xor_ack_table import XorAckTable
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.faults import Fault
from tests.support.memory_dynamo import MemoryDynamo
from tests.support.simulation import ROUGH, VirtualTime, run_simulation, simulated

RETRY = (UnavailableError, UnknownOutcomeError, StaleLocalData, TagNotFound)


def retried(clock, action):
    while True:
        try:
            return action()
        except RETRY:
            clock.sleep(0.05)


STORES = {
    "records": (MemoryRecordStore, lambda store, _clock: store),
    "objects": (MemoryObjectStore, lambda store, clock: ObjectRecordStore(store, "records/", clock=clock)),
    "npm table": (
        lambda: XorAckTable(DynamoConfig(table="acks"), client=MemoryDynamo()),
        lambda store, _clock: store,
    ),
}
"""Kinds of store: what the actors share, and how each of them sees it as records."""

KINDS = pytest.mark.parametrize("kind", ["records", "objects", "npm table"])


def shared(kind, time):
    made, seen = STORES[kind]
    return (made(clock=time) if kind == "objects" else made()), seen


@KINDS
@simulated
def test_a_batch_is_acked_when_all_its_slots_are_done_and_not_before(seed, kind):
    """A sensor opens it, four runs with overlapping slots crash, retry and repeat each other's work.

    The sensor never sees `acked` before every slot was finished by somebody, and always sees it in the end.
    """
    slots = [str(slot) for slot in range(12)]
    shares = [slots[0:6], slots[4:9], slots[8:12], slots[0:12:5]]
    finished, acked_by = set(), {}
    time = VirtualTime()
    everything, seen = shared(kind, time)

    def sensor(store, clock):
        chains = AckChains(seen(store, clock), clock=clock)
        while True:
            try:
                chains.open_batch("batch", slots, payload="digests")
            except TagExists:
                break
            except RETRY:
                pass
        while (state := retried(clock, lambda: chains.state("batch"))).status == "open":
            assert set(state.missing) >= set(slots) - finished
            clock.sleep(0.2)
        assert finished == set(slots)
        assert (state.status, state.payload, state.missing) == ("acked", "digests", ())

    def run(number):
        def work(store, clock):
            chains = AckChains(seen(store, clock), clock=clock)
            for part in (shares[number][:2], shares[number]):  # a resumed run stamps again what it had
                finished.update(part)
                operation = f"{number}/{len(part)}"
                outcome = retried(clock, lambda: chains.stamp_children("batch", part, operation))  # noqa: B023
                if outcome == Acked():
                    acked_by[operation] = True
                else:
                    assert isinstance(outcome, Stamped | AlreadyAcked)

        return work

    history = run_simulation(
        [sensor, *(run(n) for n in range(4))], everything, seed, faults=ROUGH, restarts=1000, time=time
    )
    assert len(acked_by) <= 1
    assert acked_by or history.crashes  # a crash may have swallowed the answer, nothing else may


@KINDS
@simulated
def test_families_of_children_that_die_and_start_again(seed, kind):
    """Each of five stampers ends a parent and begins two children, then ends those, crashing anywhere.

    Nobody sees the chain done before every child is; one operation at most gets `Acked`, and unless it
    crashed, exactly once. A watcher sees it end.
    """
    parents = [str(n) for n in range(5)]
    time = VirtualTime()
    everything, seen = shared(kind, time)
    AckChains(seen(everything, SYSTEM_CLOCK)).open_batch("t", parents)
    ended, ackers = set(), set()

    def stamper(parent):
        def run(store, clock):
            chains = AckChains(seen(store, clock), clock=clock)
            children = [f"{parent}/a", f"{parent}/b"]
            steps = [([parent], children), (children[:1], []), (children[1:], [])]
            for number, (names, starts) in enumerate(steps):
                operation = f"{parent} step {number}"
                ended.update(names)
                outcome = retried(
                    clock,
                    lambda: chains.stamp_children("t", names, operation, starts=starts),  # noqa: B023
                )
                if outcome == Acked():
                    ackers.add(operation)

        return run

    def watcher(store, clock):
        chains = AckChains(seen(store, clock), clock=clock)
        while (state := retried(clock, lambda: chains.state("t"))).status == "open":
            assert set(state.missing) | ended >= set(state.children)
            clock.sleep(0.3)
        assert (state.status, len(ended), len(state.children)) == ("acked", 15, 15)

    actors = [watcher, *(stamper(parent) for parent in parents)]
    history = run_simulation(actors, everything, seed, faults=ROUGH, restarts=1000, time=time)
    assert len(ackers) <= 1
    assert ackers or history.crashes


@simulated
def test_what_stampers_that_stay_dead_have_done_is_finished_by_who_asks(seed):
    """Dead before or after any request: `state` is acked if and only if all is done."""
    names = [str(n) for n in range(4)]
    store = MemoryRecordStore()
    AckChains(store).open_batch("t", names)

    def stamper(name):
        return lambda faulty, clock: AckChains(faulty, clock=clock).stamp_children("t", [name], name)

    faults = {Fault.CRASH_BEFORE: 0.03, Fault.CRASH_AFTER: 0.05}
    run_simulation([stamper(name) for name in names], store, seed, faults=faults, restarts=0)
    state = AckChains(store).state("t")
    assert (state.status == "acked") == (state.missing == ())
    late = [AckChains(store).stamp_children("t", [name], name) for name in names]
    assert late.count(Acked()) == 1
    assert AckChains(store).state("t").status == "acked"


@KINDS
@simulated
def test_of_stampers_that_do_not_crash_one_gets_acked(seed, kind):
    """Whatever else happens, and whoever asks for the state in between."""
    names = [str(n) for n in range(6)]
    time = VirtualTime()
    everything, seen = shared(kind, time)
    AckChains(seen(everything, SYSTEM_CLOCK)).open_batch("t", names)

    def stamper(name):
        def run(store, clock):
            chains = AckChains(seen(store, clock), clock=clock)
            return retried(clock, lambda: chains.stamp_children("t", [name], f"op {name}"))

        return run

    def watcher(store, clock):
        chains = AckChains(seen(store, clock), clock=clock)
        while retried(clock, lambda: chains.state("t")).status == "open":
            clock.sleep(0.02)

    faults = {Fault.LOST: 0.1, Fault.LATE: 0.1, Fault.REFUSED: 0.1, Fault.PAUSE: 0.02}
    actors = [watcher, *(stamper(name) for name in names)]
    history = run_simulation(
        actors, everything, seed, faults=faults, time=time, clock_rates=[1.0, 0.5, 2.0, 1.0, 3.0, 0.3, 1.0]
    )
    assert history.results.count(Acked()) == 1


@simulated
def test_a_failed_chain_stays_failed(seed):
    """A failer and stampers race: all see the same end, and no stamp after `fail` returned is applied."""
    names = [str(n) for n in range(5)]
    store = MemoryRecordStore()
    AckChains(store).open_batch("t", names)
    closed = []

    def failer(faulty, clock):
        chains = AckChains(faulty, clock=clock)
        clock.sleep(0.05)
        retried(clock, lambda: chains.fail("t", "overdue"))
        closed.append(retried(clock, lambda: chains.fail("t", "overdue")).status)

    def stamper(name):
        def run(faulty, clock):
            chains = AckChains(faulty, clock=clock)
            clock.sleep(0.02 * int(name))
            late = bool(closed)
            outcome = retried(clock, lambda: chains.stamp_children("t", [name], f"op {name}"))
            assert not late or not isinstance(outcome, Stamped)

        return run

    run_simulation([failer, *(stamper(n) for n in names)], store, seed, faults=ROUGH, restarts=1000)
    assert {AckChains(store).state("t").status} == set(closed)


@simulated
def test_raw_stamps_under_operation_ids_survive_crashes(seed):
    """Six children, each stamped with its own operation id by a process that may die and start again."""
    store = MemoryRecordStore()
    stamps = [new_stamp() for _ in range(6)]
    AckChains(store).create("t", xor(*stamps))
    outcomes = {}

    def child(number):
        def run(faulty, clock):
            chains = AckChains(faulty, clock=clock)
            outcomes[number] = retried(
                clock, lambda: chains.stamp("t", stamps[number], operation_id=f"child-{number}")
            )

        return run

    run_simulation([child(n) for n in range(6)], store, seed, faults=ROUGH, restarts=1000)
    assert AckChains(store).state("t").status == "acked"
    assert list(outcomes.values()).count(Acked()) == 1


@simulated
def test_without_an_operation_id_one_call_is_one_stamp(seed):
    """Inside one call, lost responses and late writes never apply a stamp twice."""
    store = MemoryRecordStore()
    stamps = [new_stamp() for _ in range(5)]
    AckChains(store).create("t", xor(*stamps))

    def child(number):
        def run(faulty, clock):
            while True:
                try:
                    return AckChains(faulty, clock=clock).stamp("t", stamps[number])
                except UnavailableError:  # nothing was applied
                    clock.sleep(0.05)

        return run

    faults = {Fault.LOST: 0.15, Fault.LATE: 0.1, Fault.REFUSED: 0.1, Fault.PAUSE: 0.02}
    history = run_simulation([child(n) for n in range(5)], store, seed, faults=faults)
    assert AckChains(store).state("t").status == "acked"
    assert history.results.count(Acked()) == 1


@simulated
def test_a_chain_is_created_by_one_of_many_and_closed_one_way(seed):
    """Openers race, one wins; a stamper and a failer race, and all agree on how it ended."""
    store = MemoryRecordStore()
    won = []

    def opener(number):
        def run(faulty, clock):
            try:
                AckChains(faulty, clock=clock).open_batch("t", ["a"], payload=str(number))
            except TagExists:
                return
            won.append(number)

        return run

    faults = {Fault.LOST: 0.2, Fault.LATE: 0.1}
    run_simulation([opener(n) for n in range(4)], store, seed, faults=faults)
    assert len(won) == 1
    assert AckChains(store).state("t").payload == str(won[0])

    def stamper(faulty, clock):
        return retried(clock, lambda: AckChains(faulty, clock=clock).stamp_children("t", ["a"]))

    def failer(faulty, clock):
        return retried(clock, lambda: AckChains(faulty, clock=clock).fail("t", "overdue")).status

    history = run_simulation([stamper, failer], store, seed, faults=faults)
    status = AckChains(store).state("t").status
    assert history.results[1] == status
    assert (history.results[0] in (Acked(), AlreadyAcked())) == (status == "acked")


def test_the_original_would_not_pass():
    """A retry without an operation id, as in the npm package, un-acks: the test above can fail."""
    store = MemoryRecordStore()
    chains = AckChains(store)
    stamps = [new_stamp() for _ in range(2)]
    chains.create("t", xor(*stamps))
    chains.stamp("t", stamps[0])
    chains.stamp("t", stamps[0])
    assert chains.stamp("t", stamps[1]) == Stamped(missing=0)
    with pytest.raises(AssertionError):
        assert chains.state("t").status == "acked"
