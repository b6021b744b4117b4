"""Racing runs on one slot under faults: crashes, lost responses, sleeps; the history stays one line."""

from dataclasses import dataclass, field

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


@dataclass(kw_only=True)
class Told:
    """What runs were told of their commits, by id. In doubt, an id is in neither."""

    won: list = field(default_factory=list)
    lost: list = field(default_factory=list)

    def check(self, line):
        """A commit that was reported won is in the one line, once; one that was reported lost is not."""
        committed = [commit.commit_id for commit in line]
        assert len(committed) == len(set(committed))
        assert len(self.won) == len(set(self.won))
        assert set(self.won) <= set(committed)
        assert not set(self.lost) & set(committed)


def actors(bucket, told, writer_of=natively):
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
                commit = None
                try:
                    planned = writer.plan(bucket)
                    commit = writer.stage(planned, bucket)
                    if commit:
                        wins = isinstance(writer.commit(planned, commit), Written)
                        (told.won if wins else told.lost).append(commit.commit_id)
                except (UnavailableError, UnknownOutcomeError):
                    pass  # in doubt, or nothing was written
                except FencedError:
                    assert commit
                    told.lost.append(commit.commit_id)

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
    store, bucket, told = MemoryObjectStore(), {}, Told()
    run_simulation(actors(bucket, told), store, seed, faults=ROUGH)
    content, line = end_state(bucket, store)
    assert content == content_of(bucket)
    told.check(line)


@simulated
def test_racing_runs_on_a_store_without_conditions(seed):
    """The same by leases in DynamoDB, as long as nobody sleeps through one: no conflict ever overwrites."""
    store = IgnoringStore(MemoryObjectStore(), {"create", "match", "delete", "copy"})
    bucket, told = {}, Told()
    awake = {fault: rate for fault, rate in ROUGH.items() if fault is not Fault.PAUSE}
    stores = {"objects": store, "leases": TableInMemory("path", "etag")}
    run_simulation(actors(bucket, told, by_leases), stores, seed, faults=awake)
    content, line = end_state(bucket, store)
    assert content == content_of(bucket)
    told.check(line)


@simulated
def test_nothing_crashes_but_everything_is_slow(seed):
    """Lost responses and late writes, at a higher rate: a run whose commit was reported lost has not committed."""
    store, bucket, told = MemoryObjectStore(), {}, Told()
    run_simulation(actors(bucket, told), store, seed, faults=SETTINGS)
    content, line = end_state(bucket, store)
    assert content == content_of(bucket)
    told.check(line)


def test_a_seed_repeats_its_history():
    """The same seed, the same calls in the same order, the same table."""
    runs = []
    for _ in range(2):
        time = VirtualTime()
        store, bucket, told = MemoryObjectStore(clock=time), {}, Told()
        history = run_simulation(actors(bucket, told), store, 11, faults=ROUGH, time=time)
        runs.append((str(history), told, sorted(bucket)))
    assert runs[0] == runs[1]
