"""Commits by leases: their cost, the writer that has the right to write, and the duration of this right."""

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

# Commits without faults


def test_an_uncontended_commit_sends_one_head_one_write_and_two_lease_requests(store, leases, commit):
    """Otherwise a commit would cost more requests, or its lease would have another generation or timeout than a lease
    of object_store.
    """
    made: ConditionalCommit = commit
    assert made.put_if_absent(PATH, b"1", metadata={"m": "v"}) == Written(etag=etag_of(store, PATH))
    # One of the HEADs is a request of this test, in `etag_of`.
    assert store.counts == {"HEAD": 2, "PUT": 1}
    (lease, seen), (done, of) = leases.puts
    assert (seen, lease.path, lease.etag, lease.generation) == (None, PATH, "*", 0)
    assert (lease.timeout_ms, lease.writer) == (20_000, store.head(PATH).metadata[WRITER])
    assert (of, done.generation, done.timeout_ms, done.writer) == (lease, 1, 0, lease.writer)
    assert leases.reads == 0
    assert store.head(PATH).metadata == {"m": "v", WRITER: lease.writer, EXPECTED: "*"}


def test_a_writer_whose_precondition_fails_sends_only_one_head(store, leases, commit):
    """Otherwise a writer whose precondition fails would put a lease, for which other writers would have to wait."""
    store.put(PATH, b"there")
    assert commit.put_if_absent(PATH, b"1") == Conflict()
    assert commit.put_if_match(PATH, b"1", ETag("gone")) == Conflict()
    assert commit.delete_if_match(PATH, ETag("gone")) == Conflict()
    assert commit.put_if_match("absent", b"1", ETag("gone")) == Conflict()
    assert store.counts["HEAD"] == 4
    assert not leases.puts


def test_an_update_a_copy_and_a_delete_need_their_precondition(store, leases, commit):
    """Otherwise, on a store without conditions, a write under an old ETag would be applied."""
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
    """Otherwise a writer would wait 60 s for a lease that is done, as object_store's writers do."""
    began = clock.now
    for body in (b"1", b"2", b"3"):
        made = commit.put_if_absent(PATH, body)
        assert commit.delete_if_match(PATH, made.etag) == Written(etag=None)
    assert clock.now == began
    created = [lease.generation for lease, _ in leases.puts if lease.etag == "*" and lease.timeout_ms]
    assert created == [0, 0, 2, 0, 4]  # generation 0 is refused; the next lease replaces the finished lease
    assert leases.leases.read(PATH, "*").generation == 5


# Writers that find a lease of another writer


def test_the_lease_of_a_crashed_holder_is_taken_over_after_its_own_timeout_times_the_skew_rate(
    store, leases, commit, clock
):
    """Otherwise a writer would use its own timeout in place of the timeout of the lease that the writer finds. The wait
    would be 60 s instead of 6 s.
    """
    leases.leases.put(foreign_lease(PATH, generation=7, timeout_ms=2000), seen=None)
    began = clock.now
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert 6.0 <= clock.now - began <= 6.2
    assert 60 <= store.counts["HEAD"] <= 63
    generations = [(lease.generation, seen and seen.generation) for lease, seen in leases.puts]
    assert generations == [(0, None), (8, 7), (9, 8)]


def test_a_waiting_writer_sends_a_head_at_every_test_interval(store, leases, clock):
    """Otherwise a waiting writer would not learn within one interval that another writer has won."""
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


def test_the_wait_uses_only_elapsed_time(leases, store):
    """Otherwise a jump of the wall clock would end the wait too early, or prolong it."""
    leases.leases.put(foreign_lease(PATH, timeout_ms=2000), seen=None)
    clock = ManualClock(rate=2.0)
    clock.wall_ms = lambda: 9_999_999_999_999
    lease_commit(store, leases, clock).put_if_absent(PATH, b"1")
    assert 3.0 <= clock.now - 1000 <= 3.2


def test_a_takeover_begins_with_another_head(store, leases, commit):
    """Otherwise a writer would overwrite an object that the holder of a finished lease wrote after the first HEAD."""

    def other_commits():
        lease = foreign_lease(PATH)
        leases.leases.put(lease, seen=None)
        store.store.put(PATH, b"other")
        leases.leases.put(replace(lease, generation=1, timeout_ms=0), seen=lease)

    leases.before = once(other_commits)
    assert commit.put_if_absent(PATH, b"1") == Conflict()
    assert store.get(PATH).body == b"other"
    assert [lease.generation for lease, _ in leases.puts] == [0]


def test_the_second_of_two_takeovers_waits_for_the_new_lease(store, leases, commit, clock):
    """Otherwise two writers would hold the lease at the same time."""
    lease = foreign_lease(PATH, timeout_ms=2000)
    leases.leases.put(lease, seen=None)
    other = replace(lease, generation=1, timeout_ms=3000)
    leases.before = lambda number: number == 1 and leases.leases.put(other, seen=lease)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert 15.0 <= clock.now - 1000 <= 15.5
    assert [put.generation for put, _ in leases.puts] == [0, 1, 2, 3]


def test_a_waiting_writer_notices_that_the_lease_has_ended(store, leases, commit, clock):
    """Another writer may create and delete the object between two HEADs. A waiting writer that looks only at the object
    would then wait for the full time of the lease.
    """
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


def test_a_writer_keeps_waiting_while_the_lease_cannot_be_read(store, leases, commit, clock):
    """Otherwise an outage of the lease table during the wait would fail the commit."""

    def unavailable(path, etag):
        raise UnavailableError("down")

    leases.leases.put(foreign_lease(PATH), seen=None)
    leases.read = unavailable
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert clock.now - 1000 >= 6


def test_a_lease_that_expired_before_it_was_read_is_requested_again(store, leases, commit):
    """Otherwise a writer would fail if the lease expires by its TTL between the refusal and the read."""
    putting = leases.leases.put
    leases.leases.put = lambda lease, *, seen: (
        Occupied(found=None) if len(leases.puts) == 1 else putting(lease, seen=seen)
    )
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)


def test_a_writer_gives_up_after_some_leases_of_others(store, leases, commit):
    """Otherwise a writer would wait for ever while leases of other writers come and go."""
    leases.leases.put = lambda lease, *, seen: Occupied(
        found=foreign_lease(PATH, generation=len(leases.puts), timeout_ms=100)
    )
    with pytest.raises(UnavailableError, match="nothing written"):
        commit.put_if_absent(PATH, b"1")
    assert len(leases.puts) == ROUNDS
    assert store.head(PATH) is None


# Times of a lease


def test_the_timeout_begins_before_the_lease_is_sent(store, leases, commit, clock):
    """Otherwise a write would begin although 15 of the lease's 20 s had passed while the lease was being sent."""
    leases.after = once(lambda: clock.sleep(0.75 * TIMEOUT))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert [lease.generation for lease, _ in leases.puts] == [0, 1, 2]
    assert [seen and seen.generation for _, seen in leases.puts] == [None, 0, 1]
    assert clock.now == 1000 + 0.75 * TIMEOUT


def test_a_writer_does_not_rely_on_an_old_head(store, leases, commit, clock):
    """Otherwise a writer that slept between HEAD and lease would overwrite an object that another writer created
    meanwhile.
    """

    def asleep():
        clock.sleep(10_000)  # meanwhile, another writer committed, and that writer's lease expired
        store.store.put(PATH, b"other")

    store.after = on("head", asleep)
    assert commit.put_if_absent(PATH, b"1") == Conflict()
    assert store.get(PATH).body == b"other"


@pytest.mark.parametrize("used", [0.2, 0.45, 0.55, 0.9])
def test_a_write_begins_only_in_the_first_half_of_the_timeout(store, leases, commit, clock, used):
    """A write that begins later might outlast its lease."""
    leases.after = lambda number: number == 0 and clock.sleep(used * TIMEOUT)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert len(leases.puts) == (2 if used <= BEGIN_WITHIN else 3)


def test_a_write_in_doubt_is_not_sent_again_after_half_the_timeout(leases, clock):
    """A write that is sent again after half the timeout might replace the next holder's object."""
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
def test_impossible_lease_settings_are_refused(wrong):
    """Otherwise a lease whose TTL is too short could be deleted while another writer waits for it."""
    with pytest.raises(UsageError):
        LeaseSettings(**wrong)
