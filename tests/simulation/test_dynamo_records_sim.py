"""Records on DynamoDB under faults at the calls of the SDK: no write is lost or doubled, and no outcome is wrong."""

import pytest

from s3notify_platform.kernel.errors import StaleLocalData, TagExists, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Conflict, Unknown, Version, Written
from s3notify_platform.protocols.ack_chain import AckChains, Acked, AlreadyAcked, Stamped
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.support.faults import Fault
from tests.support.simulation import ROUGH, run_simulation, simulated

STUMBLES = {Fault.LOST: 0.15, Fault.REFUSED: 0.1, Fault.LATE: 0.1, Fault.PAUSE: 0.02}
RETRY = (UnavailableError, UnknownOutcomeError, StaleLocalData)


def records_of(table, clock):
    return DynamoRecordStore(CONFIG, clock=clock, client=Client(table))


@simulated
def test_each_version_has_one_successor(seed):
    """Four writers create, replace and remove one record. If two writes under one version succeeded, the first write
    would be lost, although its caller got `Written`.
    """
    table = TableInMemory("partition", "key")
    confirmed = []
    """The expected version and the new version of each confirmed call. The new version of a removal is None."""
    in_doubt = []

    def writer(number):
        def run(store, clock):
            records = records_of(store, clock)
            for step in range(5):
                body = b"%d/%d" % (number, step)
                try:
                    found = records.read("p", "a")
                    if found is None:
                        expected, outcome = None, records.create("p", "a", body)
                    elif step == 3:
                        expected, outcome = found.version, records.remove("p", "a", expected=found.version)
                    else:
                        expected = found.version
                        outcome = records.replace("p", "a", body, expected=expected)
                except UnavailableError:
                    continue
                match outcome:
                    case Written(etag=etag):
                        confirmed.append((expected, etag))
                    case Unknown():
                        in_doubt.append(expected)
                    case Conflict():
                        pass

        return run

    run_simulation([writer(n) for n in range(4)], table, seed, faults=STUMBLES)
    replaced = [expected for expected, _ in confirmed if expected is not None]
    assert len(replaced) == len(set(replaced)), "a version has two successors"
    versions = {etag for _, etag in confirmed if etag is not None}
    ended = {item["version"]["S"] for item in table.items.values()}
    # Each written version is the last version, has a confirmed successor, or has a successor whose write has an unknown
    # outcome.
    assert versions <= {*replaced, *in_doubt, *ended}


@simulated
def test_counter_has_all_confirmed_additions(seed):
    """A counter limits the number of entries in a topic. If an addition were lost, the topic could exceed its quota. If
    an addition counted twice, the topic would refuse writes although it has space.
    """
    table = TableInMemory("partition", "key")
    begun, totals, in_doubt = [], [], []

    def adder(store, clock):
        records = records_of(store, clock)
        for _ in range(5):
            begun.append(1)
            try:
                outcome = records.add("p", "n", 1, ceiling=15)
            except UnavailableError:
                continue
            match outcome:
                case int():
                    totals.append(outcome)
                case Unknown():
                    in_doubt.append(1)
                case Conflict():
                    assert len(begun) > 15

    run_simulation([adder] * 4, table, seed, faults=STUMBLES)
    records = records_of(table, None)
    found = records.read("p", "n")
    count = int(found.value) if found else 0
    assert len(totals) == len(set(totals))
    assert len(totals) <= count <= min(15, len(totals) + len(in_doubt))


@simulated
def test_batch_is_acked_when_all_slots_are_done_and_not_before(seed):
    """A sensor opens a batch, and its runs overlap, crash and restart. If the sensor saw `acked` too early, it would
    count unfinished slots as committed. If the sensor never saw `acked`, finished slots would be requested again.
    """
    slots = [str(slot) for slot in range(8)]
    shares = [slots[0:4], slots[3:7], slots[5:8], slots[0:8:5]]
    finished, acked_by = set(), []

    def retried(clock, action):
        while True:
            try:
                return action()
            except (*RETRY, LookupError):
                clock.sleep(0.05)

    def sensor(store, clock):
        chains = AckChains(records_of(store, clock), clock=clock)
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
            chains = AckChains(records_of(store, clock), clock=clock)
            finished.update(shares[number])
            outcome = retried(clock, lambda: chains.stamp_children("batch", shares[number], f"run-{number}"))
            assert isinstance(outcome, Acked | AlreadyAcked | Stamped)
            if outcome == Acked():
                acked_by.append(number)

        return work

    history = run_simulation(
        [sensor, *(run(n) for n in range(4))],
        TableInMemory("partition", "key"),
        seed,
        faults=ROUGH,
        restarts=1000,
    )
    assert len(set(acked_by)) <= 1
    assert acked_by or history.crashes


def test_seed_repeats_its_history():
    """The seed determines tokens, faults and order. Otherwise nobody could replay a failure with its seed. If the table
    in memory accepted a condition that it cannot evaluate, simulations would pass without this condition.
    """

    def run(seed):
        def actor(store, clock):
            records = records_of(store, clock)
            try:
                records.create("p", "a", b"1")
                records.add("p", "n", 1)
                records.remove("p", "a", expected=Version("none"))
            except UnavailableError:
                pass

        return run_simulation([actor] * 3, TableInMemory("partition", "key"), seed, faults=STUMBLES).events

    assert run(3) == run(3)
    assert run(3) != run(4)
    with pytest.raises(AssertionError, match="unknown condition"):
        TableInMemory("k").put_item(
            Item={"k": {"S": "a"}},
            ConditionExpression="size(#k) > :n",
            ExpressionAttributeNames={},
            ExpressionAttributeValues={},
        )
