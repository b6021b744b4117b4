"""Racing runs on one slot under faults: crashes, lost responses, sleeps; the history stays one line."""

from s3notify_platform.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import Written
from s3notify_platform.protocols.conditional_commit import DynamoCommit
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.support.faults import Fault
from tests.support.simulation import ROUGH, VirtualTime, run_simulation, simulated
from tests.support.slot_writer import Body, SlotWriter, content_in, content_of, history_of, slot_table

SETTINGS = {Fault.LOST: 0.15, Fault.REFUSED: 0.1, Fault.LATE: 0.1, Fault.PAUSE: 0.05}


def natively(store, clock, name):
    return SlotWriter(store=store, clock=clock, name=name)


def by_leases(stores, clock, name):
    leases = DynamoLeases(CONFIG, clock=clock, client=Client(stores["leases"]))
    commits = DynamoCommit(stores["objects"], leases, clock=clock)
    return SlotWriter(store=stores["objects"], clock=clock, name=name, commits=commits)


def actors(bucket, won, writer_of=natively):
    """Three runs, one after another each, over a bucket that all of them change on the way."""

    def actor(number):
        rounds = 0

        def run(store, clock):
            nonlocal rounds
            writer = writer_of(store, clock, f"run {number}")
            while rounds < 6:
                rounds += 1
                key = f"{(number + rounds) % 4}"
                if rounds % 5 == 4:
                    bucket.pop(key, None)
                else:
                    bucket[key] = Body(etag=f"{number}.{rounds}", rows=rounds % 3 + 1, rejects=rounds % 2)
                try:
                    planned = writer.plan(bucket)
                    commit = writer.stage(planned, bucket)
                    if commit and isinstance(writer.commit(planned, commit), Written):
                        won.append(commit.commit_id)
                except (UnavailableError, UnknownOutcomeError, FencedError, AssertionError) as error:
                    # A stage reports what went wrong as its slot's error; a wrong invariant stays one.
                    if isinstance(error, AssertionError) and "UnavailableError" not in str(error):
                        raise

        return run

    return [actor(n) for n in range(3)]


def end_state(bucket, store):
    """A last run without faults, and what the table then holds."""
    last = SlotWriter(store=store, name="last")
    while last.run(bucket) is not None:
        pass
    return content_in(slot_table(store)), history_of(slot_table(store))


@simulated
def test_racing_runs(seed):
    """All kinds of faults: every commit that was confirmed is in the one line, and the table is the bucket."""
    store, bucket, won = MemoryObjectStore(), {}, []
    run_simulation(actors(bucket, won), store, seed, faults=ROUGH)
    content, line = end_state(bucket, store)
    assert content == content_of(bucket)
    assert set(won) <= {commit.commit_id for commit in line}
    assert len(won) == len(set(won))


@simulated
def test_racing_runs_on_a_store_without_conditions(seed):
    """The same by leases in DynamoDB, as long as nobody sleeps through one: no conflict ever overwrites."""
    store, bucket, won = IgnoringStore(MemoryObjectStore(), {"create", "match", "delete", "copy"}), {}, []
    awake = {fault: rate for fault, rate in ROUGH.items() if fault is not Fault.PAUSE}
    stores = {"objects": store, "leases": TableInMemory("path", "etag")}
    run_simulation(actors(bucket, won, by_leases), stores, seed, faults=awake)
    content, line = end_state(bucket, store)
    assert content == content_of(bucket)
    assert set(won) <= {commit.commit_id for commit in line}
    assert len(won) == len(set(won))


@simulated
def test_nothing_crashes_but_everything_is_slow(seed):
    """Lost responses and late writes, at a higher rate: a run whose commit was reported lost has not committed."""
    store, bucket, won = MemoryObjectStore(), {}, []
    run_simulation(actors(bucket, won), store, seed, faults=SETTINGS)
    content, line = end_state(bucket, store)
    assert content == content_of(bucket)
    assert set(won) <= {commit.commit_id for commit in line}


def test_a_seed_repeats_its_history():
    """The same seed, the same calls in the same order, the same table."""
    runs = []
    for _ in range(2):
        time = VirtualTime()
        store, bucket, won = MemoryObjectStore(clock=time), {}, []
        history = run_simulation(actors(bucket, won), store, 11, faults=ROUGH, time=time)
        runs.append((str(history), won, sorted(bucket)))
    assert runs[0] == runs[1]
