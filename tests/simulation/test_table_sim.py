"""Racing writers of one log under faults: crashes, lost answers, sleeps, and a log that is cut meanwhile.

Each writer adds one to the counts of some slots (`Counts`). So the rows of a slot are the committed additions, and no
others.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from s3notify_platform.kernel.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.maintenance.put_back import put_back
from s3notify_platform.protocols.conditional_commit import DynamoCommit
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.log_state import NO_VERSION
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.clocks import HandClock
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.support.faults import Fault
from tests.support.log_tables import LAYOUT, Counts, Table, versions
from tests.support.simulation import ROUGH, VirtualTime, run_simulation, simulated

FAULTS = {Fault.LOST: 0.1, Fault.REFUSED: 0.05, Fault.LATE: 0.05, Fault.PAUSE: 0.01}
ROUNDS = 8
RUN_SECONDS = 400.0
"""The maximum time of a run, long enough for more than two pauses of the simulation."""


def natively(store, clock):
    return Table(store=store, clock=clock, more={"max_run_seconds": RUN_SECONDS})


def by_leases(stores, clock):
    leases = DynamoLeases(CONFIG, clock=clock, client=Client(stores["leases"]))
    commits = DynamoCommit(stores["objects"], leases, clock=clock)
    more = {"max_run_seconds": RUN_SECONDS}
    return Table(
        store=stores["objects"],
        records=stores["records"],
        clock=clock,
        commits=commits,
        adopt=False,
        more=more,
    )


@dataclass(kw_only=True)
class Reported:
    """Additions by slot, as reported to writers: committed additions, and additions whose outcome is unknown."""

    won: Counter = field(default_factory=Counter)
    doubt: Counter = field(default_factory=Counter)

    def check(self, counted):
        """Checks that every addition that was reported as committed exists once, and that all other existing additions
        had an unknown outcome.
        """
        assert sum(self.won.values()) > 0
        for slot in range(10):
            assert self.won[slot] <= counted.get(slot, 0) <= self.won[slot] + self.doubt[slot]


def writer(reported, number, table_of, mends=None):
    """A sequence of processes of one writer, each with its own snapshot.

    `mends`: the list to which restored versions are added. If `mends` is None, a lost version is an error.
    """
    rounds = 0

    def run(store, clock):
        nonlocal rounds
        table, kept = table_of(store, clock), None
        while rounds < ROUNDS:
            try:
                kept = table.opened() if kept is None else table.reader.refresh(kept)
            except (UnavailableError, UnknownOutcomeError):
                continue
            except CorruptError:
                if mends is None:
                    raise
                mend(table, mends)
                kept = None
                continue
            rounds += 1
            slots = tuple({(number + rounds * step) % 10 for step in (1, 3, 4)})
            change = None
            # After a crash, the outcome of the addition in flight is unknown.
            reported.doubt.update(slots)
            try:
                change = Counts(base=kept, slots=slots, clock=clock)
                found = table.committer.commit(change, kept)
            except (UnavailableError, UnknownOutcomeError):
                continue
            except FencedError:  # a new plan shows whether the additions were committed
                kept = None
                continue
            except CorruptError:
                if mends is None:
                    raise
                mend(table, mends)
                kept = None
                continue
            except ConflictError:
                reported.doubt.subtract(slots)
                kept = None
                continue
            reported.doubt.subtract(slots)
            kept = found.snapshot
            if isinstance(found, Committed):
                reported.won.update(set(slots) - change.dropped)

    return run


def mend(table, mends):
    """Restores the table, as a person does after reading the error."""
    with suppress(UnavailableError, UnknownOutcomeError, ConflictError):
        mends.append(put_back(table.committer))


def reader(seen):
    """A process that reads all the time. The count of a slot never falls, and no version is seen in part."""

    def run(store, clock):
        table, last = Table(store=store, clock=clock), {}
        for _ in range(6):
            try:
                now = table.counted()
            except (UnavailableError, UnknownOutcomeError):
                continue
            assert all(now.get(slot, 0) >= count for slot, count in last.items())
            last = now
            seen.append(now)

    return run


@simulated
def test_reported_commits_exist_once(seed):
    store, reported = MemoryObjectStore(clock=(time := VirtualTime())), Reported()
    actors = [writer(reported, number, natively) for number in range(3)]
    seen = []
    run_simulation([*actors, reader(seen)], store, seed, faults=FAULTS, time=time)
    reported.check(Table(store=store).counted())
    versions(store)


@simulated
def test_crashes_leave_a_usable_table(seed):
    store, reported = MemoryObjectStore(clock=(time := VirtualTime())), Reported()
    actors = [writer(reported, number, natively) for number in range(3)]
    history = run_simulation(actors, store, seed, faults=ROUGH, time=time)
    assert history.events
    reported.check(Table(store=store).counted())
    table = Table(store=store)
    base = table.opened()
    assert isinstance(table.committer.commit(Counts(base=base, slots=(1,)), base), Committed)


@simulated
def test_reported_commits_by_leases_exist_once(seed):
    """The store ignores conditions, so writers commit by leases. If two writers wrote the same version of the log, the
    table would lose the rows of a commit that was reported to its writer.
    """
    ignoring = IgnoringStore(MemoryObjectStore(), {"create", "match", "delete", "copy"})
    stores = {"objects": ignoring, "records": MemoryObjectStore(), "leases": TableInMemory()}
    reported = Reported()
    actors = [writer(reported, number, by_leases) for number in range(3)]
    faults = {Fault.LOST: 0.05, Fault.REFUSED: 0.05}
    run_simulation(actors, stores, seed, faults=faults, clock_rates=[1.0, 1.1, 0.95])
    reported.check(Table(store=ignoring, records=stores["records"]).counted())


class Sleeper(DelegatingStore):
    """A process that, one time in three, sleeps for longer than its lease before it writes a version."""

    def __init__(self, store, clock):
        super().__init__(store)
        self.clock = clock

    def put(self, key, body, **given):
        if LAYOUT.version_of(key) is not None and self.clock.random_bytes(1)[0] < 85:
            self.clock.sleep(60 + self.clock.random_bytes(1)[0] / 4)
        return self.store.put(key, body, **given)


def asleep(stores, clock):
    return by_leases({**stores, "objects": Sleeper(stores["objects"], clock)}, clock)


def overruns(seed):
    """Writers whose leases end while they sleep.

    Checks the table after a last restore, and returns the results of all restores.
    """
    ignoring = IgnoringStore(MemoryObjectStore(), {"create", "match", "delete", "copy"})
    stores = {"objects": ignoring, "records": MemoryObjectStore(), "leases": TableInMemory()}
    reported, mends = Reported(), []
    actors = [writer(reported, number, asleep, mends) for number in range(3)]
    # The faults are rare, so that processes reach a repair of the log. Before a repair, each process reads a log of 24
    # versions completely, several times.
    faults = {Fault.LOST: 0.01, Fault.REFUSED: 0.01}
    run_simulation(actors, stores, seed, faults=faults, clock_rates=[1.0, 1.1, 0.95])
    table = by_leases(stores, HandClock())
    mends.append(put_back(table.committer))
    reported.check(table.counted())
    versions(ignoring)
    return mends


@simulated
def test_versions_replaced_after_an_expired_lease_are_restored(seed):
    """A writer that sleeps past its lease may replace a committed version. If nobody restored the committed
    version, the table would lose a reported commit, and readers would refuse the log.
    """
    overruns(seed)


def test_leases_do_expire_during_writes():
    assert any(found.put_back for seed in range(20) for found in overruns(seed))


def cutter(store, clock):
    """Cuts the log below its newest checkpoint. Only versions that are older than the longest run are removed."""
    for _ in range(30):
        clock.sleep(60)
        with suppress(UnavailableError):
            cut(store, clock)


def cut(store, clock):
    last = natively(store, clock).reader.last_checkpoint()
    if last != NO_VERSION:
        for meta in store.list(LAYOUT.log).objects:
            version = LAYOUT.version_of(meta.key)
            old = clock.wall_ms() - meta.modified_ms > RUN_SECONDS * 1000
            if version is not None and version < last and old:
                store.delete(meta.key)


@simulated
def test_cut_of_the_log_during_commits_loses_nothing(seed, monkeypatch):
    monkeypatch.setattr("s3notify_platform.table.commit.CHECKPOINT_EVERY", 3)
    store, reported = MemoryObjectStore(clock=(time := VirtualTime())), Reported()
    actors = [writer(reported, number, natively) for number in range(3)]
    faults = {Fault.LOST: 0.05, Fault.LATE: 0.05, Fault.PAUSE: 0.05}
    try:
        run_simulation([*actors, cutter], store, seed, faults=faults, time=time)
    except CorruptError as error:
        raise AssertionError("a log that was cut is not damaged") from error
    reported.check(Table(store=store).counted())
