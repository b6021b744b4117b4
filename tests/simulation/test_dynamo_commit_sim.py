"""Commits by leases under faults. The leases are in memory, on a bucket or in DynamoDB, and the store of the objects
ignores conditions.

Invariant: among all calls with the same precondition, at most one returns that it committed. Any other write that was
applied belongs to a call that returned `unknown`, or died. If no write is in flight for longer than its lease, another
invariant holds: every write meets its precondition when it is applied, and the object has the winner's body.
"""

import random
from collections import Counter
from hashlib import md5

import pytest

from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Conflict, Written
from s3notify_platform.protocols.conditional_commit import EXPECTED, DynamoCommit, LeaseSettings
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.support.faults import Fault
from tests.support.lease_commits import ManualClock
from tests.support.record_leases import RecordLeases
from tests.support.simulation import ROUGH, run_simulation, simulated

PATH = "path"
SETTINGS = LeaseSettings(timeout_seconds=2.0, test_interval_seconds=0.5)
SLOW_SECONDS = 0.9
"""The longest time of a slow write. A slow write that begins in the first half of its lease ends before the lease ends.
"""

RATES = [0.7, 1.0, 1.4, 2.0]
"""The rates of the clocks. The fastest clock ticks 2.9 times as fast as the slowest clock; leases allow a factor of 3.
"""
AWAKE = {fault: rate for fault, rate in ROUGH.items() if fault is not Fault.PAUSE}

both_leases = pytest.mark.parametrize("place", ["memory", "objects", "dynamo"])
awake_or_not = pytest.mark.parametrize("faults", [AWAKE, ROUGH], ids=["awake", "asleep"])


class LandingStore(IgnoringStore):
    """Records every write to `PATH` when it is applied: the body (None for a delete), and whether the precondition was
    true.
    """

    def __init__(self):
        super().__init__(MemoryObjectStore(), {"create", "match", "delete", "copy"})
        self.landed: list[tuple[bytes | None, bool]] = []

    def _before(self):
        found = self.store.head(PATH)
        return found.etag if found else "*"

    def put(self, key, body, *, precondition=None, metadata=None):
        self.landed.append((body, metadata[EXPECTED] == self._before()))
        return super().put(key, body, precondition=precondition, metadata=metadata)

    def copy(self, source, target, *, precondition=None, metadata=None):
        body = self.store.get(source).body
        self.landed.append((body, metadata[EXPECTED] == self._before()))
        return super().copy(source, target, precondition=precondition, metadata=metadata)

    def delete(self, key, *, precondition=None):
        self.landed.append((None, self._before() != "*"))
        return super().delete(key, precondition=precondition)


class Slow:
    """A store with slow calls: a third of them take up to `SLOW_SECONDS` before they are applied."""

    def __init__(self, store, clock):
        self._store = store
        self._clock = clock

    def __getattr__(self, method):
        call = getattr(self._store, method)

        def slow(*args, **kwargs):
            drawn = int.from_bytes(self._clock.random_bytes(2), "little") / 2**16
            if drawn < 1 / 3:
                self._clock.sleep(3 * drawn * SLOW_SECONDS)
            return call(*args, **kwargs)

        return slow


class World:
    """The stores of one run, and the outcome of each call."""

    def __init__(self, place):
        self.place = place
        self.objects = LandingStore()
        self.records = {
            "memory": MemoryRecordStore,
            "objects": MemoryObjectStore,
            "dynamo": lambda: TableInMemory("path", "etag"),
        }[place]()
        self.committed: list[tuple[str, bytes | None]] = []
        """The expected ETag and the body of each commit. The body of a delete is None."""
        self.outcomes: dict[bytes, str] = {}
        """For each body, the outcome of the call that writes it. If the call died, there is no entry."""

    def commit(self, stores, clock):
        objects, records = Slow(stores["objects"], clock), Slow(stores["records"], clock)
        if self.place == "objects":
            records = ObjectRecordStore(records, "leases/", clock=clock)
        leases = (
            DynamoLeases(CONFIG, clock=clock, client=Client(records))
            if self.place == "dynamo"
            else RecordLeases(records)
        )
        return DynamoCommit(objects, leases, settings=SETTINGS, clock=clock)

    def call(self, expected, body, send):
        """Makes one call. Returns None if the call's outcome is neither a commit nor a conflict."""
        try:
            outcome = send()
        except (UnavailableError, UnknownOutcomeError) as error:
            outcome = None
            said = "unknown" if isinstance(error, UnknownOutcomeError) else "unavailable"
        else:
            said = "lost" if outcome == Conflict() else "committed"
        if body is not None:
            self.outcomes[body] = said
        if said == "committed":
            self.committed.append((expected, body))
        if said == "lost":
            assert self.objects.landed, "lost, although no call has committed"
        return outcome

    def run(self, actors, seed, faults):
        rates = random.Random(f"rates {seed}").sample(RATES, len(actors))
        stores = {"objects": self.objects, "records": self.records}
        run_simulation(actors, stores, seed, faults=faults, clock_rates=rates, restarts=5)

    def body(self):
        found = self.objects.store.get(PATH)
        return found.body if found else None

    def strays_are_accounted_for(self):
        """Checks the bodies that were applied by calls that did not win."""
        winners = {body for _, body in self.committed}
        for body, _ in self.objects.landed:
            if body is not None and body not in winners:
                assert self.outcomes.get(body, "died") in ("unknown", "died")


@both_leases
@awake_or_not
@simulated
def test_one_creator_wins(place, faults, seed):
    """Four writers create one path, by a put or by a copy. If two writers got `Written`, one writer would not notice
    that the other writer has replaced the object. If the lease of a dead writer never ended, nobody could create the
    path.
    """
    world = World(place)
    copies = seed % 2 == 1

    def writer(number):
        tries = 0

        def run(stores, clock):
            nonlocal tries
            commit = world.commit(stores, clock)
            for _ in range(2):
                tries += 1
                body = b"%d/%d" % (number, tries)
                if copies:
                    world.objects.store.put(f"from {body}", body)
                    world.call("*", body, lambda: commit.copy_if_absent(f"from {body}", PATH))  # noqa: B023
                else:
                    world.call("*", body, lambda: commit.put_if_absent(PATH, body))  # noqa: B023

        return run

    world.run([writer(n) for n in range(4)], seed, faults)
    assert len(world.committed) <= 1
    world.strays_are_accounted_for()
    if faults is AWAKE:
        assert all(held for _, held in world.objects.landed)
        assert len(world.objects.landed) <= 1
    if world.committed and faults is AWAKE:
        assert world.body() == world.committed[0][1]

    # The next writer resolves the remains of earlier writers, and need not wait longer than a lease.
    clock = ManualClock()
    stores = {"objects": world.objects, "records": world.records}
    outcome = world.commit(stores, clock).put_if_absent(PATH, b"next")
    assert outcome == Conflict() if world.body() != b"next" else isinstance(outcome, Written)
    assert clock.now - 1000 <= SETTINGS.timeout_seconds * SETTINGS.max_clock_skew_rate + 10 * SLOW_SECONDS


@both_leases
@awake_or_not
@simulated
def test_no_update_is_lost_or_applied_twice(place, faults, seed):
    """If two updates of one ETag won, an increment of the counter would be lost without an error. If a repeated write
    replaced a newer version, the increments of other writers would be lost.
    """
    world = World(place)
    world.objects.store.put(PATH, b"0 start")

    def writer(number):
        tries = 0

        def run(stores, clock):
            nonlocal tries
            commit = world.commit(stores, clock)
            for _ in range(3):
                tries += 1
                found = world.objects.store.get(PATH)
                body = b"%d %d/%d" % (int(found.body.split()[0]) + 1, number, tries)
                etag = found.meta.etag
                world.call(etag, body, lambda: commit.put_if_match(PATH, body, etag))  # noqa: B023

        return run

    world.run([writer(n) for n in range(4)], seed, faults)
    expected = [etag for etag, _ in world.committed]
    assert len(expected) == len(set(expected))
    world.strays_are_accounted_for()
    if faults is AWAKE:
        assert all(held for _, held in world.objects.landed)
        landed = [body for body, _ in world.objects.landed]
        assert [int(body.split()[0]) for body in landed] == list(range(1, len(landed) + 1))
        assert {body for _, body in world.committed} <= set(landed)


@both_leases
@simulated
def test_path_is_created_and_deleted_repeatedly(place, seed):
    """If a delete removed a version other than the expected version, another writer's object would be lost
    without an error.

    A call may create its body twice, if another writer deletes the object before the call knows the outcome
    of its first write.
    """
    world = World(place)

    def writer(number):
        tries = 0

        def run(stores, clock):
            nonlocal tries
            commit = world.commit(stores, clock)
            for _ in range(4):
                tries += 1
                body = b"%d/%d" % (number, tries)
                if (found := world.objects.store.head(PATH)) is None:
                    world.call("*", body, lambda: commit.put_if_absent(PATH, body))  # noqa: B023
                else:
                    world.call(found.etag, None, lambda: commit.delete_if_match(PATH, found.etag))

        return run

    world.run([writer(n) for n in range(4)], seed, AWAKE)
    assert all(held for _, held in world.objects.landed)
    deleted = Counter(etag for etag, body in world.committed if body is None)
    assert deleted <= Counter(md5(body).hexdigest() for body, _ in world.objects.landed if body is not None)
    for (one, _), (two, _) in zip(world.objects.landed, world.objects.landed[1:], strict=False):
        assert (one is None) != (two is None)
    world.strays_are_accounted_for()


def test_faults_cause_every_expected_outcome():
    """If no seed had a lease that is taken over, or a sleeping writer that replaces the winner's object, the
    simulations of leases would pass without a test of these cases.
    """
    seen = {"committed": 0, "lost": 0, "unknown": 0, "replaced": 0, "taken over": 0}
    for seed in range(60):
        world = World("memory")

        def writer(number, world=world):
            return lambda stores, clock: world.call(
                "*",
                b"%d" % number,
                lambda: world.commit(stores, clock).put_if_absent(PATH, b"%d" % number),
            )

        faults = {Fault.CRASH_AFTER: 0.05, Fault.PAUSE: 0.05, Fault.LOST: 0.05}
        world.run([writer(n) for n in range(4)], seed, faults)
        for said in world.outcomes.values():
            seen[said] = seen.get(said, 0) + 1
        lease = RecordLeases(world.records).read(PATH, "*")
        seen["taken over"] += lease is not None and lease.generation > 1
        seen["replaced"] += bool(world.committed) and world.body() != world.committed[0][1]
    assert all(seen.values()), seen
