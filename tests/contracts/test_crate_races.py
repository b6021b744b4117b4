"""Commits by leases of this platform and of the crate object_store, on one table and one bucket of a real server."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, unique_name
from s3notify_platform.kernel.ports import Conflict, Written
from s3notify_platform.protocols.conditional_commit import CommitLease, DynamoCommit, Granted, LeaseSettings
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.crate import Crate, crate_writers, install_crate
from tests.support.tables import create_lease_table

pytestmark = pytest.mark.server

ROUNDS = 10
WRITERS = 16
"""The number of writers of each kind."""
CRATE_MS = 3000


@dataclass(frozen=True, kw_only=True)
class Both:
    """Both kinds of writers, on one bucket and one table."""

    store: S3ObjectStore
    leases: DynamoLeases
    commit: DynamoCommit
    table: str
    crate: Crate
    pool: ThreadPoolExecutor

    def race(self, ours, task) -> tuple[list[Any], list[str]]:
        """Runs `ours(number)` in `WRITERS` threads, and at the same time `task(number)` in the same number of the
        crate's threads.
        """
        start = threading.Barrier(WRITERS + 1)

        def run(number):
            start.wait()
            return ours(number)

        running = [self.pool.submit(run, number) for number in range(WRITERS)]
        self.crate.begin([task(number) for number in range(WRITERS)])
        start.wait()
        outcomes = [future.result() for future in running]
        return outcomes, [said.said for said in self.crate.finish()]


@pytest.fixture(scope="session")
def crate_folder(tmp_path_factory):
    return install_crate(tmp_path_factory.mktemp("obstore"))


@pytest.fixture(scope="module")
def both(ministack, crate_folder):
    config, table = ministack.config(ministack.make_bucket()), ministack.table_config()
    create_lease_table(table)
    with ExitStack() as stack:
        store = stack.enter_context(closing(S3ObjectStore(config, attempts=1, pool_size=WRITERS)))
        leases = stack.enter_context(closing(DynamoLeases(table)))
        crate = stack.enter_context(crate_writers(crate_folder, config, table.table, CRATE_MS))
        pool = stack.enter_context(ThreadPoolExecutor(WRITERS))
        yield Both(
            store=store,
            leases=leases,
            commit=DynamoCommit(store, leases),
            table=table.table,
            crate=crate,
            pool=pool,
        )


def winner_of(outcomes, said):
    """The number of the only winner. The crate's writers have the numbers after those of the platform's writers.
    Asserts that all other writers had a conflict.
    """
    wins = [isinstance(outcome, Written) for outcome in outcomes] + [word == "won" for word in said]
    assert all(outcome == Conflict() or isinstance(outcome, Written) for outcome in outcomes)
    assert set(said) <= {"won", "lost"}
    assert wins.count(True) == 1
    return wins.index(True)


def test_crate_has_the_dynamo_commit(both):
    """obstore 0.8.2 can commit by leases in DynamoDB. The platform itself uses a later obstore, which cannot.
    With the later obstore, no test of this module could check that the leases of the platform and of
    object_store exclude each other.
    """
    assert both.crate.version == "0.8.2"


def test_one_of_mixed_creators_wins_every_round(both):
    """If a writer of the platform and a writer of the crate both reported success, the object of one writer would be
    lost without an error.
    """
    winners = []
    for number in range(ROUNDS):
        path = f"race/{number}"
        outcomes, said = both.race(
            lambda n: both.commit.put_if_absent(path, b"%d" % n),  # noqa: B023
            lambda n: {"do": "create", "path": path, "body": str(WRITERS + n)},  # noqa: B023
        )
        winners.append(winner_of(outcomes, said))
        assert both.store.get(path).body == b"%d" % winners[-1]


def test_one_of_mixed_updaters_wins_every_round(both):
    """Writers of both kinds use the expected ETag, with its quotes, as the sort key of the lease. With different
    sort keys, the two kinds of writers would not exclude each other, and an update would overwrite another update.
    """
    path = "race/update"
    etag = both.commit.put_if_absent(path, b"start").etag
    for round_number in range(ROUNDS):
        outcomes, said = both.race(
            lambda n: both.commit.put_if_match(path, b"%d %d" % (round_number, n), etag),  # noqa: B023
            lambda n: {
                "do": "update",
                "path": path,
                "body": f"{round_number} {WRITERS + n}",  # noqa: B023
                "etag": etag,  # noqa: B023
            },
        )
        found = both.store.get(path)
        assert found.body == b"%d %d" % (round_number, winner_of(outcomes, said))
        etag = found.meta.etag


def test_one_of_mixed_copiers_wins_every_round(both):
    """Each writer copies from its own source, if the target is absent. If two copies succeeded, the later copy would
    replace the earlier copy, although the earlier writer has reported success.
    """
    for number in range(2 * WRITERS):
        both.store.put(f"source/{number}", b"%d" % number)
    for number in range(ROUNDS):
        path = f"copied/{number}"
        outcomes, said = both.race(
            lambda n: both.commit.copy_if_absent(f"source/{n}", path),  # noqa: B023
            lambda n: {"do": "copy", "source": f"source/{WRITERS + n}", "path": path},  # noqa: B023
        )
        assert both.store.get(path).body == b"%d" % winner_of(outcomes, said)


@pytest.mark.parametrize("path", ["odd/a b", "odd/日本語", "odd/100%", "odd/a+b=c"])
def test_platform_and_crate_spell_an_odd_path_alike(both, path):
    """A lease of one kind must block the other kind, so the platform and the crate must spell the path in the same
    way.
    """
    path = f"{path} {unique_name(SYSTEM_CLOCK)}"
    assert isinstance(both.commit.put_if_absent(path, b"ours"), Written)
    assert both.crate.run({"do": "create", "path": path, "body": "theirs"})[0].said == "lost"
    both.store.delete(path)
    assert both.crate.run({"do": "create", "path": path, "body": "theirs"})[0].said == "won"
    assert both.leases.read(path, "*").generation == 2
    assert both.leases.read(path, "*").writer is None
    assert both.commit.put_if_absent(path, b"ours") == Conflict()


def test_crate_takes_over_a_done_lease_without_waiting(both):
    """A done lease has the timeout 0. With the timeout of a new lease, the crate would wait for a minute
    before it could create a deleted object again.
    """
    made = both.commit.put_if_absent("done", b"ours")
    task = {"do": "create", "path": "done", "body": "theirs"}
    assert both.crate.run(task)[0].said == "lost"
    assert both.leases.read("done", "*").generation == 1
    both.commit.delete_if_match("done", made.etag)
    (said,) = both.crate.run(task)
    assert said.said == "won"
    assert said.seconds < CRATE_MS / 1000
    assert both.leases.read("done", "*").generation == 2


def test_done_mark_refuses_a_crate_that_waited_for_the_lease(both):
    """The done mark raises the generation of the lease after the crate has read the lease. If the generation
    stayed the same, the crate could still take over the lease, and overwrite an object whose write the
    platform has reported as successful.
    """
    ours = CommitLease(path="fence", etag="*", generation=0, timeout_ms=300, ttl=2_000_000_000, writer="us")
    assert both.leases.put(ours, seen=None) == Granted()
    both.crate.begin([{"do": "create", "path": "fence", "body": "theirs"}])
    # The test cannot see that the crate waits. By now the crate has found generation 0, and will take over at 0.9 s.
    SYSTEM_CLOCK.sleep(0.5)
    done = CommitLease(
        path="fence", etag="*", generation=1, timeout_ms=60_000, ttl=2_000_000_000, writer="us"
    )
    assert both.leases.put(done, seen=ours) == Granted()
    SYSTEM_CLOCK.sleep(0.8)
    assert both.store.head("fence") is None
    both.store.put("fence", b"ours")
    assert both.crate.finish()[0].said == "lost"
    assert both.store.get("fence").body == b"ours"


def test_crate_waits_for_the_platforms_lease(both):
    """The holder of the lease has died. If the crate did not wait for 3 times the lease's timeout, the crate
    could overwrite the object of a holder that is only slow. If the crate never took over, the crate could
    not create the object.
    """
    ours = CommitLease(
        path="gone/ours", etag="*", generation=4, timeout_ms=300, ttl=2_000_000_000, writer="us"
    )
    both.leases.put(ours, seen=None)
    (said,) = both.crate.run({"do": "create", "path": "gone/ours", "body": "theirs"})
    assert said.said == "won"
    assert 0.9 <= said.seconds < 3
    taken = both.leases.read("gone/ours", "*")
    assert (taken.generation, taken.timeout_ms, taken.writer) == (5, CRATE_MS, None)


def test_platform_waits_for_the_crates_lease(both, crate_folder):
    """The crate never releases a lease. If the platform's wait had no limit, the platform could never create
    a deleted object again. If the platform did not wait, its write could overwrite a write of the crate.
    """
    timeout_ms = 400
    task = {"do": "create", "path": "gone/theirs", "body": "theirs"}
    with crate_writers(crate_folder, both.store.config, both.table, timeout_ms) as hasty:
        assert hasty.run(task)[0].said == "won"
        assert hasty.run({"do": "delete", "path": "gone/theirs"})[0].said == "won"
    began = SYSTEM_CLOCK.monotonic()
    assert isinstance(both.commit.put_if_absent("gone/theirs", b"ours"), Written)
    assert 3 * timeout_ms / 1000 <= SYSTEM_CLOCK.monotonic() - began < LeaseSettings().timeout_seconds
    done = both.leases.read("gone/theirs", "*")
    assert (done.generation, done.timeout_ms) == (2, 0)
