"""Commits by leases under faults: lost answers, refusals, sleeping processes and crashes."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.attempts import ATTEMPTS
from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import Conflict, Unknown, Written
from s3notify_platform.protocols.conditional_commit import EXPECTED, Occupied
from s3notify_platform.protocols.updates import WRITER
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.faults import CrashedError, Fault, FaultyStore, at, never, scripted
from tests.support.lease_commits import PATH, etag_of, foreign_lease, lease_commit, on, taken_over_by_another
from tests.support.record_leases import RecordLeases

# Lost answers


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED])
@pytest.mark.parametrize("call", ["create", "replace"])
def test_a_lease_whose_answer_was_lost_is_recognised(store, clock, call, fault):
    """Otherwise a writer would wait for its own lease after a lost answer to a put, a takeover or a done mark."""
    records = FaultyStore(MemoryRecordStore(), at(call, fault))
    leases = RecordLeases(records)
    commit = lease_commit(store, leases, clock)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert clock.now - 1000 < 0.1
    assert leases.read(PATH, "*").timeout_ms == 0
    store.delete(PATH)
    records.schedule = at(call, fault)
    assert isinstance(commit.put_if_absent(PATH, b"2"), Written)
    assert clock.now - 1000 < 0.2


@pytest.mark.parametrize(("fault", "writes"), [(Fault.LOST, 1), (Fault.REFUSED, 2)])
@pytest.mark.parametrize("operation", ["put", "copy", "delete"])
def test_a_write_without_an_answer_is_checked_by_head(leases, clock, operation, fault, writes):
    """Otherwise a write whose answer is lost would be reported as failed, or would never be sent again if it was not
    applied.
    """
    store = MemoryObjectStore()
    etag = store.put("source", b"1").etag
    faulty = FaultyStore(store, at(operation, fault))
    commit = lease_commit(faulty, leases, clock)
    outcome = {
        "put": lambda: commit.put_if_absent(PATH, b"1"),
        "copy": lambda: commit.copy_if_absent("source", PATH),
        "delete": lambda: commit.delete_if_match("source", etag),
    }[operation]()
    assert outcome == Written(etag=None if operation == "delete" else etag_of(store, PATH))
    assert [call.method for call, _ in faulty.calls] == (["head", operation] * 2)[: 2 + writes]
    assert [lease.timeout_ms for lease, _ in leases.puts] == [20_000, 0]


def test_a_write_in_doubt_that_finds_another_writers_object_is_unknown(leases, clock):
    """On a store without conditions, the outcome `Conflict` would be a guess, even if both writes have the same
    precondition.
    """
    store = MemoryObjectStore()
    faulty = FaultyStore(store, at("put", Fault.LOST))
    commit = lease_commit(faulty, leases, clock)
    looking, looks = store.head, []

    def head(path):
        looks.append(path)
        if len(looks) == 2:
            store.put(PATH, b"other", metadata={WRITER: "other", EXPECTED: "*"})
        return looking(path)

    store.head = head
    with pytest.raises(UnknownOutcomeError, match="then the object changed"):
        commit.put_if_absent(PATH, b"1")
    assert leases.leases.read(PATH, "*").timeout_ms == 20_000


def test_a_store_that_does_not_answer_gives_an_unknown_outcome(store, leases, clock):
    """Otherwise a writer would retry for ever, or report a write as lost."""
    faulty = FaultyStore(store, lambda call: Fault.NONE if call.number == 0 else Fault.REFUSED)
    with pytest.raises(UnknownOutcomeError, match=r"not confirmed.*head"):
        lease_commit(faulty, leases, clock).put_if_absent(PATH, b"1")
    assert [call.method for call, _ in faulty.calls] == ["head", "put"] + ["head"] * ATTEMPTS


def test_a_missing_etag_is_read_by_a_head(store, leases, commit):
    """Otherwise `Written` would lack the ETag that the next update needs."""
    putting = store.store.put
    store.store.put = lambda *args, **kwargs: Written(etag=None) if putting(*args, **kwargs) else None
    assert commit.put_if_absent(PATH, b"1") == Written(etag=etag_of(store, PATH))


def test_heads_before_the_write_are_retried_and_then_raise_unavailable(leases, clock):
    """Otherwise the caller would not learn that nothing was written and that it may retry."""
    store = MemoryObjectStore()
    commit = lease_commit(FaultyStore(store, scripted({0: Fault.REFUSED})), leases, clock)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    with pytest.raises(UnavailableError, match="'p' cannot be read"):
        lease_commit(FaultyStore(store, lambda _: Fault.REFUSED), leases, clock).put_if_absent("p", b"1")


def test_nothing_is_written_without_an_answer_about_the_lease(store, clock):
    """Otherwise a writer would write without a lease."""
    records = FaultyStore(
        MemoryRecordStore(), lambda call: Fault.LOST if call.method == "create" else Fault.NONE
    )
    records.store.create = lambda *args: Unknown(cause="timeout")
    with pytest.raises(UnavailableError, match="nothing was written"):
        lease_commit(store, RecordLeases(records), clock).put_if_absent(PATH, b"1")
    assert store.counts == {"HEAD": 1}


# Refused writes


def test_a_refused_write_ends_its_lease(store, leases, commit, clock):
    """Otherwise other writers would wait for the lease of a write that was refused."""
    with pytest.raises(NotFoundError, match="nothing"):
        commit.copy_if_absent("nothing", PATH)

    def forbidden():
        raise UsageError("forbidden")

    store.before = on("put", forbidden)
    with pytest.raises(UsageError, match="forbidden"):
        commit.put_if_absent(PATH, b"1")
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert clock.now == 1000


def test_a_write_refused_after_an_attempt_in_doubt_is_unknown(leases, clock):
    """The first attempt may have been applied, or may be applied later. The refusal of the second attempt would hide
    the outcome of the first attempt.
    """
    store = MemoryObjectStore()
    store.put("source", b"1")
    faulty = FaultyStore(store, at("copy", Fault.REFUSED))
    looking = store.head

    def head(path):
        if faulty.calls[-2][0].method == "copy":
            store.delete("source")
        return looking(path)

    store.head = lambda path: head(path) if len(faulty.calls) > 1 else looking(path)
    with pytest.raises(UnknownOutcomeError, match="copy: no object"):
        lease_commit(faulty, leases, clock).copy_if_absent("source", PATH)
    assert leases.leases.read(PATH, "*").timeout_ms == 20_000


# Sleeping processes


def asleep_in_the_write(store, clock, meanwhile=lambda: None):
    def sleep():
        clock.sleep(100)
        meanwhile()

    store.before = on("put", sleep)


def test_a_sleeper_whose_lease_was_taken_over_does_not_return_written(store, leases, commit, clock):
    """Otherwise a process that wakes up and replaces the winner's object would report success."""
    asleep_in_the_write(store, clock, lambda: taken_over_by_another(leases, store))
    with pytest.raises(UnknownOutcomeError, match="outlasted its lease"):
        commit.put_if_absent(PATH, b"1")
    assert leases.leases.read(PATH, "*").writer == "other"


def test_a_sleeper_finds_another_lease_with_the_same_generation(store, leases, commit, clock):
    """Otherwise a process whose lease expired by TTL would mistake a new lease for its own. After such an expiry,
    generations begin at 0 again.
    """

    def another():
        gone = RecordLeases(MemoryRecordStore())
        gone.put(foreign_lease(PATH), seen=None)
        leases.leases = gone

    asleep_in_the_write(store, clock, another)
    with pytest.raises(UnknownOutcomeError, match="taken the lease over"):
        commit.put_if_absent(PATH, b"1")


def test_a_writer_whose_lease_was_taken_over_before_its_timeout_does_not_return_written(
    store, leases, commit
):
    """Otherwise two writers would return `Written` if clocks differ by more than the skew rate, or if a lease was
    removed.
    """
    store.before = on("put", lambda: taken_over_by_another(leases, store))
    with pytest.raises(UnknownOutcomeError, match="may have replaced"):
        commit.put_if_absent(PATH, b"1")


def test_a_sleeper_whose_lease_nobody_took_over_has_committed(store, leases, commit, clock):
    """Otherwise a late write would be reported as unknown although nobody has taken over its lease."""
    asleep_in_the_write(store, clock)
    assert commit.put_if_absent(PATH, b"1") == Written(etag=etag_of(store, PATH))
    assert leases.leases.read(PATH, "*").timeout_ms == 0


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_late_write_is_unknown_if_its_object_was_replaced(store, leases, commit, clock, operation):
    """Otherwise a late writer would report success although another writer has since written to the same path."""

    def overrun_and_replaced():
        clock.sleep(100)
        store.store.put(PATH, b"other", metadata={WRITER: "other"})

    store.after = on(operation, overrun_and_replaced)
    etag = store.store.put("x", b"1").etag if operation == "put" else store.store.put(PATH, b"1").etag
    with pytest.raises(UnknownOutcomeError, match="another writer's object"):
        commit.put_if_absent(PATH, b"1") if operation == "put" else commit.delete_if_match(PATH, etag)


@pytest.mark.parametrize("slept", [0, 100])
def test_a_missing_done_mark_is_harmless_only_within_the_timeout(store, leases, commit, clock, slept):
    """Otherwise a late writer that gets no answer about its done mark would report success although its lease may have
    been taken over.
    """
    store.before = on("put", lambda: clock.sleep(slept))
    putting = leases.leases.put
    leases.leases.put = lambda lease, *, seen: (
        putting(lease, seen=seen) if seen is None else Unknown(cause="timeout")
    )
    if slept:
        with pytest.raises(UnknownOutcomeError, match="outlasted"):
            commit.put_if_absent(PATH, b"1")
    else:
        assert isinstance(commit.put_if_absent(PATH, b"1"), Written)


def test_a_done_lease_refuses_clients_that_waited_for_it(store, leases, commit, clock):
    """Otherwise a client that checks only the generation, like object_store, would take over a lease that is done."""
    found = []
    store.before = on("put", lambda: found.append(leases.leases.read(PATH, "*")))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    (waited_for,) = found
    next_one = replace(waited_for, generation=waited_for.generation + 1)
    assert isinstance(leases.leases.put(next_one, seen=waited_for), Occupied)


# Crashes


def crash_points():
    """Yields each call of a commit, for each kind of commit, with a crash before and after the call."""
    for operation, calls in (("create", 2), ("update", 2), ("copy", 2), ("delete", 2)):
        for call in range(calls):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                yield operation, "objects", call, fault
        # A commit creates one record, reads it and replaces it.
        for call in range(3):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                yield operation, "records", call, fault


@pytest.mark.parametrize(("operation", "side", "call", "fault"), list(crash_points()))
def test_a_crash_between_any_two_calls_blocks_no_other_writer(clock, operation, side, call, fault):
    """Otherwise the next writer with the same precondition could neither commit nor learn that the crashed writer has
    committed.
    """
    objects, records = MemoryObjectStore(), MemoryRecordStore()
    etag = objects.put("source", b"0").etag

    def run(schedule_objects, schedule_records, body):
        commit = lease_commit(
            FaultyStore(objects, schedule_objects),
            RecordLeases(FaultyStore(records, schedule_records)),
            clock,
        )
        return {
            "create": lambda: commit.put_if_absent(PATH, body),
            "update": lambda: commit.put_if_match("source", body, etag),
            "copy": lambda: commit.copy_if_absent("source", PATH),
            "delete": lambda: commit.delete_if_match("source", etag),
        }[operation]()

    crash = scripted({call: fault})
    with pytest.raises(CrashedError):
        run(crash if side == "objects" else never, crash if side == "records" else never, b"1")
    source = objects.get("source")
    written = objects.head(PATH) is not None or source is None or source.body != b"0"
    outcome = run(never, never, b"2")
    assert outcome == Conflict() if written else isinstance(outcome, Written)
    assert clock.now - 1000 <= 61
    if operation in ("create", "update"):
        place = PATH if operation == "create" else "source"
        assert objects.get(place).body == (b"1" if written else b"2")
