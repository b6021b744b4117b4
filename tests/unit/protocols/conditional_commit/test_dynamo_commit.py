"""Commits by leases: what one costs, who may write, and for how long."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import Conflict, ETag, Written
from s3notify_platform.protocols.conditional_commit import (
    BEGIN_WITHIN,
    EXPECTED,
    ROUNDS,
    ConditionalCommit,
    LeaseSettings,
    Occupied,
)
from s3notify_platform.protocols.updates import WRITER
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import Fault, FaultyStore
from tests.support.lease_commits import (
    PATH,
    TIMEOUT,
    ManualClock,
    etag_of,
    foreign_lease,
    lease_commit,
    on,
    once,
)

# The plain way


def test_an_uncontended_commit_is_a_head_a_write_and_two_lease_requests(store, leases, commit):
    """The lease is put as generation 0, and marked done: generation 1, timeout 0."""
    made: ConditionalCommit = commit
    assert made.put_if_absent(PATH, b"1", metadata={"m": "v"}) == Written(etag=etag_of(store, PATH))
    assert store.counts == {"HEAD": 2, "PUT": 1}  # one HEAD is the line above
    (lease, seen), (done, of) = leases.puts
    assert (seen, lease.path, lease.etag, lease.generation) == (None, PATH, "*", 0)
    assert (lease.timeout_ms, lease.writer) == (20_000, store.head(PATH).metadata[WRITER])
    assert (of, done.generation, done.timeout_ms, done.writer) == (lease, 1, 0, lease.writer)
    assert leases.reads == 0
    assert store.head(PATH).metadata == {"m": "v", WRITER: lease.writer, EXPECTED: "*"}


def test_a_loser_pays_one_head(store, leases, commit):
    """The precondition fails before any lease is touched."""
    store.put(PATH, b"there")
    assert commit.put_if_absent(PATH, b"1") == Conflict()
    assert commit.put_if_match(PATH, b"1", ETag("gone")) == Conflict()
    assert commit.delete_if_match(PATH, ETag("gone")) == Conflict()
    assert commit.put_if_match("absent", b"1", ETag("gone")) == Conflict()
    assert store.counts["HEAD"] == 4
    assert not leases.puts


def test_update_copy_and_delete(store, leases, commit):
    """Each under its own precondition, on a store that knows none; leases stand under the expected ETag."""
    first = commit.put_if_absent(PATH, b"1", metadata={"kept": "k"}).etag
    second = commit.put_if_match(PATH, b"2", first, metadata={"kept": "k"}).etag
    assert commit.put_if_match(PATH, b"3", first) == Conflict()
    assert store.get(PATH).body == b"2"
    assert commit.copy_if_absent(PATH, "copy") == Written(etag=second)
    assert commit.copy_if_absent(PATH, "copy") == Conflict()
    copied = store.head("copy").metadata
    assert copied == {"kept": "k", WRITER: leases.puts[4][0].writer, EXPECTED: "*"}
    assert commit.delete_if_match(PATH, first) == Conflict()
    assert commit.delete_if_match(PATH, second) == Written(etag=None)
    assert store.head(PATH) is None
    assert commit.delete_if_match(PATH, second) == Conflict()
    places = [(lease.path, lease.etag) for lease, seen in leases.puts if seen is None]
    assert places == [(PATH, "*"), (PATH, first), ("copy", "*"), (PATH, second)]


def test_create_delete_create_waits_for_nobody(store, leases, commit, clock):
    """Done leases are taken at once: the original waits 60 s here."""
    began = clock.now
    for body in (b"1", b"2", b"3"):
        made = commit.put_if_absent(PATH, body)
        assert commit.delete_if_match(PATH, made.etag) == Written(etag=None)
    assert clock.now == began
    created = [lease.generation for lease, _ in leases.puts if lease.etag == "*" and lease.timeout_ms]
    assert created == [0, 0, 2, 0, 4]  # refused as generation 0 first, then in place of the done one
    assert leases.leases.read(PATH, "*").generation == 5


# Whose turn it is


def test_a_crashed_holder_is_taken_over_after_its_own_timeout_times_the_skew_rate(
    store, leases, commit, clock
):
    """2 s × 3, by the lease that was found and not by our own 20 s; the path is looked at every 100 ms."""
    leases.leases.put(foreign_lease(PATH, generation=7, timeout_ms=2000), seen=None)
    began = clock.now
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert 6.0 <= clock.now - began <= 6.2
    assert 60 <= store.counts["HEAD"] <= 63
    generations = [(lease.generation, seen and seen.generation) for lease, seen in leases.puts]
    assert generations == [(0, None), (8, 7), (9, 8)]


def test_the_path_is_looked_at_every_test_interval(store, leases, clock):
    """A waiting writer knows within one interval that another has won."""
    leases.leases.put(foreign_lease(PATH), seen=None)
    sleeping = clock.sleep

    def sleep(seconds):
        sleeping(seconds)
        if clock.now >= 1001:
            store.store.put(PATH, b"other")

    clock.sleep = sleep
    commit = lease_commit(store, leases, clock, test_interval_seconds=0.25)
    assert commit.put_if_absent(PATH, b"1") == Conflict()
    assert (clock.now, store.counts["HEAD"]) == (1001, 5)


def test_the_wait_is_by_elapsed_time_alone(leases, store):
    """A wall clock that jumps changes nothing, and a clock at twice the rate waits for its own 6 s."""
    leases.leases.put(foreign_lease(PATH, timeout_ms=2000), seen=None)
    clock = ManualClock(rate=2.0)
    clock.wall_ms = lambda: 9_999_999_999_999
    lease_commit(store, leases, clock).put_if_absent(PATH, b"1")
    assert 3.0 <= clock.now - 1000 <= 3.2


def test_the_path_is_looked_at_once_more_before_a_lease_is_taken_over(store, leases, commit):
    """A lease that is done when found: its holder has written since our first look."""

    def other_commits():
        lease = foreign_lease(PATH)
        leases.leases.put(lease, seen=None)
        store.store.put(PATH, b"other")
        leases.leases.put(replace(lease, generation=1, timeout_ms=0), seen=lease)

    leases.before = once(other_commits)
    assert commit.put_if_absent(PATH, b"1") == Conflict()
    assert store.get(PATH).body == b"other"
    assert [lease.generation for lease, _ in leases.puts] == [0]


def test_a_takeover_that_comes_second_waits_again(store, leases, commit, clock):
    """Another was faster, or the holder did something: its lease is waited for from then on."""
    lease = foreign_lease(PATH, timeout_ms=2000)
    leases.leases.put(lease, seen=None)
    other = replace(lease, generation=1, timeout_ms=3000)
    leases.before = lambda number: number == 1 and leases.leases.put(other, seen=lease)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert 15.0 <= clock.now - 1000 <= 15.5
    assert [put.generation for put, _ in leases.puts] == [0, 1, 2, 3]


def test_a_waiting_writer_finds_out_that_the_lease_has_ended(store, leases, commit, clock):
    """Created and deleted between two looks at the path: it does not wait for the rest of 60 s."""
    lease = foreign_lease(PATH, timeout_ms=20_000)
    leases.leases.put(lease, seen=None)
    sleeping = clock.sleep

    def sleep(seconds):
        sleeping(seconds)
        if clock.now >= 1003:
            leases.leases.put(replace(lease, generation=1, timeout_ms=0), seen=lease)

    clock.sleep = sleep
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert clock.now < 1005


def test_a_lease_that_cannot_be_read_is_waited_out(store, leases, commit, clock):
    """Reading it only shortens the wait."""

    def unavailable(path, etag):
        raise UnavailableError("down")

    leases.leases.put(foreign_lease(PATH), seen=None)
    leases.read = unavailable
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert clock.now - 1000 >= 6


def test_a_lease_that_is_gone_when_looked_at_is_asked_for_again(store, leases, commit):
    """Expired by its TTL between the refusal and the look."""
    putting = leases.leases.put
    leases.leases.put = lambda lease, *, seen: (
        Occupied(found=None) if len(leases.puts) == 1 else putting(lease, seen=seen)
    )
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)


def test_nobody_waits_for_ever(store, leases, commit):
    """Leases that come and go: `ROUNDS` of them, then `UnavailableError`, and nothing is written."""
    leases.leases.put = lambda lease, *, seen: Occupied(
        found=foreign_lease(PATH, generation=len(leases.puts), timeout_ms=100)
    )
    with pytest.raises(UnavailableError, match="nothing written"):
        commit.put_if_absent(PATH, b"1")
    assert len(leases.puts) == ROUNDS
    assert store.head(PATH) is None


# How long a lease holds


def test_the_timeout_counts_from_before_the_lease_was_sent(store, leases, commit, clock):
    """The lease put takes 15 of its 20 s: nothing is written under it, it is put again, without waiting."""
    leases.after = once(lambda: clock.sleep(0.75 * TIMEOUT))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert [lease.generation for lease, _ in leases.puts] == [0, 1, 2]
    assert [seen and seen.generation for _, seen in leases.puts] == [None, 0, 1]
    assert clock.now == 1000 + 0.75 * TIMEOUT


def test_a_look_that_is_old_by_now_does_not_count(store, leases, commit, clock):
    """Asleep between HEAD and lease put, for longer than the table keeps leases: the path is looked at again."""

    def asleep():
        clock.sleep(10_000)  # meanwhile another committed, and its lease expired
        store.store.put(PATH, b"other")

    store.after = on("head", asleep)
    assert commit.put_if_absent(PATH, b"1") == Conflict()
    assert store.get(PATH).body == b"other"


@pytest.mark.parametrize("used", [0.2, 0.45, 0.55, 0.9])
def test_a_write_begins_in_the_first_half_of_the_timeout_only(store, leases, commit, clock, used):
    """Later there is too little left of it."""
    leases.after = lambda number: number == 0 and clock.sleep(used * TIMEOUT)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert len(leases.puts) == (2 if used <= BEGIN_WITHIN else 3)


def test_a_write_in_doubt_is_not_sent_again_late(leases, clock):
    """Half of the timeout is over: unknown, and the lease stays, so that what was sent has time to land."""
    memory = MemoryObjectStore()
    store = FaultyStore(memory, lambda call: Fault.REFUSED if call.method == "put" else Fault.NONE)
    sleeping = clock.sleep
    clock.sleep = lambda seconds: sleeping(seconds + 0.3 * TIMEOUT)
    with pytest.raises(UnknownOutcomeError, match="not confirmed"):
        lease_commit(store, leases, clock).put_if_absent(PATH, b"1")
    assert [call.method for call, _ in store.calls].count("put") == 2
    assert [lease.timeout_ms for lease, _ in leases.puts] == [20_000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_seconds": 0},
        {"max_clock_skew_rate": 0.5},
        {"test_interval_seconds": 0},
        {"ttl_seconds": 60},
        {"ttl_seconds": float("inf")},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": 3601, "ttl_seconds": 1e6},
        {"max_clock_skew_rate": float("inf")},
        {"test_interval_seconds": float("nan")},
    ],
)
def test_settings_that_cannot_hold_are_refused(wrong):
    """Above all a TTL that ends while a lease is waited for."""
    with pytest.raises(UsageError):
        LeaseSettings(**wrong)
