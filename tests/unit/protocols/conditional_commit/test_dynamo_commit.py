"""Commits by leases, fault by fault: who may write, for how long, and what is said of a write in doubt."""

from dataclasses import replace

import pytest

from s3notify_platform.errors import NotFoundError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.ports import Conflict, ETag, Unknown, Written
from s3notify_platform.protocols.conditional_commit import (
    BEGIN_WITHIN,
    EXPECTED,
    ROUNDS,
    ConditionalCommit,
    Granted,
    LeaseSettings,
    Occupied,
)
from s3notify_platform.protocols.updates import ATTEMPTS, WRITER
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.faults import CrashedError, Fault, FaultyStore, at, never, scripted
from tests.support.lease_commits import ManualClock, WatchedLeases, etag_of, foreign_lease, lease_commit
from tests.support.record_leases import RecordLeases

PATH = "commits/1"
TIMEOUT = LeaseSettings().timeout_seconds
NO_CONDITIONS = {"create", "match", "delete", "copy"}


class HookedStore(CountingStore):
    """Calls `before` and `after` around each call, with its name. Keeps no conditions, as in life."""

    def __init__(self):
        super().__init__(IgnoringStore(MemoryObjectStore(), NO_CONDITIONS))
        self.before = lambda method: None
        self.after = lambda method: None

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in {"put", "delete", "copy", "head"}:
            return found

        def call(*args, **kwargs):
            self.before(name)
            result = found(*args, **kwargs)
            self.after(name)
            return result

        return call


@pytest.fixture
def store():
    return HookedStore()


@pytest.fixture
def leases():
    return WatchedLeases()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def commit(store, leases, clock):
    return lease_commit(store, leases, clock)


def once(action):
    """`action` at the first call only."""
    todo = [action]
    return lambda *_: todo and todo.pop()()


def on(name, action):
    """`action` at the first call of this name only."""
    todo = [action]
    return lambda called: called == name and todo and todo.pop()()


def taken_over_by_another(leases, store=None, body=b"other", etag="*"):
    """What another writer does when the lease that it found has run out."""
    found = leases.leases.read(PATH, etag)
    taken = replace(found, generation=found.generation + 1, writer="other")
    assert leases.leases.put(taken, seen=found) == Granted()
    if store:
        store.store.put(PATH, body, metadata={WRITER: "other", EXPECTED: etag})


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


def test_a_take_over_that_comes_second_waits_anew(store, leases, commit, clock):
    """Another was faster, or the holder did something: its lease is waited for from then on."""
    lease = foreign_lease(PATH, timeout_ms=2000)
    leases.leases.put(lease, seen=None)
    other = replace(lease, generation=1, timeout_ms=3000)
    leases.before = lambda number: number == 1 and leases.leases.put(other, seen=lease)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert 15.0 <= clock.now - 1000 <= 15.5
    assert [put.generation for put, _ in leases.puts] == [0, 1, 2, 3]


def test_a_waiting_writer_finds_out_that_the_lease_was_given_up(store, leases, commit, clock):
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


# Lost answers


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED])
@pytest.mark.parametrize("call", ["create", "replace"])
def test_a_lease_whose_answer_was_lost_is_known_to_be_ours(store, clock, call, fault):
    """The put, the taking over, the done mark: never a conflict with oneself, and no waiting for oneself."""
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


@pytest.mark.parametrize("operation", ["put", "copy", "delete"])
def test_a_write_whose_answer_was_lost_is_looked_up(leases, clock, operation):
    """HEAD finds our writer id, or nothing left to delete: committed, by one write."""
    store = MemoryObjectStore()
    etag = store.put("source", b"1").etag
    faulty = FaultyStore(store, at(operation, Fault.LOST))
    commit = lease_commit(faulty, leases, clock)
    outcome = {
        "put": lambda: commit.put_if_absent(PATH, b"1"),
        "copy": lambda: commit.copy_if_absent("source", PATH),
        "delete": lambda: commit.delete_if_match("source", etag),
    }[operation]()
    assert outcome == Written(etag=None if operation == "delete" else etag_of(store, PATH))
    assert [call.method for call, _ in faulty.calls] == ["head", operation, "head"]
    assert leases.puts[-1][0].timeout_ms == 0


@pytest.mark.parametrize("operation", ["put", "copy", "delete"])
def test_a_write_that_was_not_applied_is_sent_again_under_the_same_writer(leases, clock, operation):
    """HEAD finds what was there before."""
    store = MemoryObjectStore()
    etag = store.put("source", b"1").etag
    faulty = FaultyStore(store, at(operation, Fault.REFUSED))
    commit = lease_commit(faulty, leases, clock)
    outcome = {
        "put": lambda: commit.put_if_match("source", b"2", etag),
        "copy": lambda: commit.copy_if_absent("source", PATH),
        "delete": lambda: commit.delete_if_match("source", etag),
    }[operation]()
    assert isinstance(outcome, Written)
    assert [call.method for call, _ in faulty.calls] == ["head", operation, "head", operation]
    assert len(leases.puts) == 2


def test_a_write_in_doubt_where_another_is_now_is_unknown(leases, clock):
    """Without conditions it proves nothing that the other's was written under the same precondition."""
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


def test_a_store_that_answers_nothing_leaves_it_unknown(store, leases, clock):
    """Neither written nor to be looked at: `UnknownOutcomeError`, after `ATTEMPTS` looks."""
    faulty = FaultyStore(store, lambda call: Fault.NONE if call.number == 0 else Fault.REFUSED)
    with pytest.raises(UnknownOutcomeError, match=r"not confirmed.*head"):
        lease_commit(faulty, leases, clock).put_if_absent(PATH, b"1")
    assert [call.method for call, _ in faulty.calls] == ["head", "put"] + ["head"] * ATTEMPTS


def test_a_store_that_tells_no_etag_is_asked_for_it(store, leases, commit):
    """Puts that were written always carry it."""
    putting = store.store.put
    store.store.put = lambda *args, **kwargs: Written(etag=None) if putting(*args, **kwargs) else None
    assert commit.put_if_absent(PATH, b"1") == Written(etag=etag_of(store, PATH))


def test_looks_before_the_write_are_retried_and_then_unavailable(leases, clock):
    """Nothing was written: retry later."""
    store = MemoryObjectStore()
    commit = lease_commit(FaultyStore(store, scripted({0: Fault.REFUSED})), leases, clock)
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    with pytest.raises(UnavailableError, match="looked at"):
        lease_commit(FaultyStore(store, lambda _: Fault.REFUSED), leases, clock).put_if_absent("p", b"1")


def test_without_an_answer_about_the_lease_nothing_is_written(store, clock):
    """`UnavailableError`, and if it was applied after all, the next writer waits it out."""
    records = FaultyStore(
        MemoryRecordStore(), lambda call: Fault.LOST if call.method == "create" else Fault.NONE
    )
    records.store.create = lambda *args: Unknown(cause="timeout")
    with pytest.raises(UnavailableError, match="nothing written"):
        lease_commit(store, RecordLeases(records), clock).put_if_absent(PATH, b"1")
    assert store.counts == {"HEAD": 1}


# Refused writes


def test_a_refused_write_gives_its_lease_up(store, leases, commit, clock):
    """No source to copy, no permission to write: the error is passed on, and nobody has to wait for it."""
    with pytest.raises(NotFoundError, match="nothing"):
        commit.copy_if_absent("nothing", PATH)

    def forbidden():
        raise UsageError("forbidden")

    store.before = on("put", forbidden)
    with pytest.raises(UsageError, match="forbidden"):
        commit.put_if_absent(PATH, b"1")
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert clock.now == 1000


def test_a_write_refused_after_one_in_doubt_is_unknown(leases, clock):
    """The first may have been applied, or may land yet."""
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


# Sleepers


def asleep_in_the_write(store, clock, meanwhile=lambda: None):
    def sleep():
        clock.sleep(100)
        meanwhile()

    store.before = on("put", sleep)


def test_a_sleeper_whose_lease_was_taken_over_is_never_told_that_it_committed(store, leases, commit, clock):
    """It wakes, replaces the winner's object, and says so: the done mark is refused."""
    asleep_in_the_write(store, clock, lambda: taken_over_by_another(leases, store))
    with pytest.raises(UnknownOutcomeError, match="outlasted its lease"):
        commit.put_if_absent(PATH, b"1")
    assert leases.leases.read(PATH, "*").writer == "other"


def test_a_sleeper_whose_lease_is_another_of_the_same_generation(store, leases, commit, clock):
    """Its own expired by TTL, and the next began at generation 0 again: the writer tells them apart."""

    def another():
        gone = RecordLeases(MemoryRecordStore())
        gone.put(foreign_lease(PATH), seen=None)
        leases.leases = gone

    asleep_in_the_write(store, clock, another)
    with pytest.raises(UnknownOutcomeError, match="taken the lease over"):
        commit.put_if_absent(PATH, b"1")


def test_a_sleeper_that_was_taken_over_while_it_was_in_time_by_its_own_clock(store, leases, commit):
    """Clocks further apart than the skew rate, or a lease removed: still at most one is told."""
    store.before = on("put", lambda: taken_over_by_another(leases, store))
    with pytest.raises(UnknownOutcomeError, match="may have replaced"):
        commit.put_if_absent(PATH, b"1")


def test_a_sleeper_that_nobody_took_over_has_committed(store, leases, commit, clock):
    """The object still carries its writer id, and the lease takes its done mark."""
    asleep_in_the_write(store, clock)
    assert commit.put_if_absent(PATH, b"1") == Written(etag=etag_of(store, PATH))
    assert leases.leases.read(PATH, "*").timeout_ms == 0


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_after_an_overrun_the_object_must_still_be_ours(store, leases, commit, clock, operation):
    """Another sleeper, of a lease before ours, wrote on top: unknown, though our lease is still there."""

    def overrun_and_replaced():
        clock.sleep(100)
        store.store.put(PATH, b"other", metadata={WRITER: "other"})

    store.after = on(operation, overrun_and_replaced)
    etag = store.store.put("x", b"1").etag if operation == "put" else store.store.put(PATH, b"1").etag
    with pytest.raises(UnknownOutcomeError, match="another's write"):
        commit.put_if_absent(PATH, b"1") if operation == "put" else commit.delete_if_match(PATH, etag)


@pytest.mark.parametrize("slept", [0, 100])
def test_without_a_done_mark_time_is_the_proof_or_there_is_none(store, leases, commit, clock, slept):
    """In time nobody can have taken over: committed. Overrun, and no answer: unknown."""
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


def test_a_client_that_waited_for_a_sleeper_is_refused_once_the_sleeper_is_done(store, leases, commit, clock):
    """One that goes by the generation alone, as object_store does: the done mark has raised it."""
    found = []
    store.before = on("put", lambda: found.append(leases.leases.read(PATH, "*")))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    (waited_for,) = found
    next_one = replace(waited_for, generation=waited_for.generation + 1)
    assert isinstance(leases.leases.put(next_one, seen=waited_for), Occupied)


# Crashes


def crash_points():
    """Every call of one commit of each kind, before and after it."""
    for operation, calls in (("create", 2), ("update", 2), ("copy", 2), ("delete", 2)):
        for call in range(calls):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                yield operation, "objects", call, fault
        for call in range(3):  # create; read and replace
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                yield operation, "records", call, fault


@pytest.mark.parametrize(("operation", "side", "call", "fault"), list(crash_points()))
def test_a_crash_between_any_two_calls_stops_nobody_else(clock, operation, side, call, fault):
    """The next writer of the same precondition commits, or finds that the crashed one's write is there."""
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_seconds": 0},
        {"max_clock_skew_rate": 0.5},
        {"test_interval_seconds": 0},
        {"ttl_seconds": 60},
    ],
)
def test_settings_that_cannot_hold_are_refused(wrong):
    """Above all a TTL that ends while a lease is waited for."""
    with pytest.raises(UsageError):
        LeaseSettings(**wrong)
