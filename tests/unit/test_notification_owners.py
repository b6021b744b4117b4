"""The notification queue's owners: leases, takeover, delivery one entry at a time, dead letters, fences."""

import pytest

from s3notify_platform.errors import CorruptError, FencedError, UnavailableError, UsageError
from s3notify_platform.protocols.notification_queue import (
    Buried,
    Drain,
    Event,
    Fenced,
    NoRoom,
    NotificationQueue,
    TopicSettings,
    WillRetry,
    Worker,
)
from s3notify_platform.protocols.notification_queue.owners import BEAT_SECONDS, fair_share
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.counted import CountedRecords
from tests.support.faults import CrashedError, Fault, FaultyStore, at, never

PUSHED = TopicSettings(capacity=20, shards=1, max_attempts=3, endpoint="{}")


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def records():
    return MemoryRecordStore()


@pytest.fixture
def queue(records, clock):
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", PUSHED)
    return queue


def over(records, clock, schedule=never):
    return NotificationQueue(FaultyStore(records, schedule), clock=clock, parallelism=1)


def owner(queue, **kwargs):
    """A worker that owns the only shard there is, and its drain."""
    worker = Worker(queue, **kwargs)
    (lease,) = worker.balance()
    return worker, Drain(worker, lease)


def push(queue, *keys):
    queue.push_many("t", [Event(key=key) for key in keys])


def keys(entries):
    return sorted(entry.event.key for entry in entries)


def shards_of(*workers):
    return [sorted((lease.topic, lease.shard) for lease in worker.leases) for worker in workers]


def succeed(queue, clock, *, beats=8):
    """A second worker, which takes over once the first is silent for long enough."""
    second = Worker(queue)
    for _ in range(beats):
        if leases := second.balance():
            return second, Drain(second, leases[0])
        clock.now += BEAT_SECONDS
    raise AssertionError("nothing was taken over")


# Leases


@pytest.mark.parametrize(("shards", "workers"), [(8, 1), (8, 3), (5, 3), (4, 3), (2, 5), (0, 2)])
def test_shares_are_fair(shards, workers):
    """All shards are dealt, and shares differ by one at most."""
    held = {f"w{number}": number for number in range(workers)}
    shares = [fair_share(name, held, shards) for name in held]
    assert sum(shares) == shards
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares)  # who holds more keeps more


def test_shards_spread_over_the_workers_that_are_there(records, clock):
    """Newcomers get their shares within three passes; what a clean stop leaves is taken at once."""
    queue = NotificationQueue(records, clock=clock)
    for name in ("a", "b"):
        queue.topics.create(name, TopicSettings(shards=4, endpoint="{}"))
    queue.topics.create("pulled", TopicSettings(shards=4))
    workers = [Worker(queue) for _ in range(3)]
    assert len(workers[0].balance()) == 8
    for _ in range(3):
        for worker in workers:
            worker.balance()
        clock.now += BEAT_SECONDS
    held = shards_of(*workers)
    assert sorted(len(part) for part in held) == [2, 3, 3]
    assert sorted(sum(held, [])) == [(name, shard) for name in ("a", "b") for shard in range(4)]  # noqa: RUF017
    workers[0].stop()
    for worker in workers[1:]:
        worker.balance()
    held = shards_of(*workers)
    assert [len(part) for part in held] == [0, 4, 4]


def test_a_killed_worker_is_succeeded_within_15_seconds(queue, clock):
    """By default settings and beats; not while it still beats."""
    first = Worker(queue)
    second = Worker(queue)
    first.balance()
    for _ in range(10):
        clock.now += BEAT_SECONDS
        assert first.balance()
        assert second.balance() == ()
    killed = clock.now
    while not second.balance():
        clock.now += BEAT_SECONDS
    assert clock.now - killed <= 15


def test_a_worker_that_is_late_is_not_taken_for_dead(queue, clock):
    """Its beat may be off for most of the expiry."""
    first, second = Worker(queue), Worker(queue)
    first.balance()
    second.balance()
    clock.now += 9.5
    assert second.balance() == ()
    assert len(first.balance()) == 1


def test_a_clean_stop_needs_no_expiry(queue, clock):
    """The next pass of anybody takes over."""
    first, second = Worker(queue), Worker(queue)
    first.balance()
    first.stop()
    assert len(second.balance()) == 1
    assert first.leases == ()


def test_a_worker_that_cannot_renew_serves_nothing(queue, records, clock):
    """Before anybody else may take over."""
    schedule = [Fault.NONE]
    worker, drain = owner(over(records, clock, lambda _: schedule[0]))
    push(queue, "a")
    schedule[0] = Fault.THROTTLED
    clock.now += 4
    with pytest.raises(UnavailableError):
        worker.balance()
    schedule[0] = Fault.NONE
    clock.now += 2
    assert worker.leases == ()
    with pytest.raises(FencedError, match="renewed"):
        drain.take(1)
    assert worker.balance() == (drain.lease,)
    assert keys(drain.take(1)) == ["a"]


def test_surplus_is_not_given_away_while_it_is_in_hand(records, clock):
    """An entry in delivery would be delivered again by the next owner."""
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", TopicSettings(capacity=20, shards=2, endpoint="{}"))
    first, second = Worker(queue), Worker(queue)
    both = first.balance()
    second.balance()
    assert first.balance(busy=both) == both
    assert len(first.balance(busy=both[:1])) == 1
    assert first.leases == both[:1]
    assert len(second.balance()) == 1


def test_two_that_take_at_once(queue, records, clock):
    """One gets the shard; the other sees that it is no longer as free as it was."""
    winners = []

    def schedule(call):
        if call.method == "read" and call.key == "owners/t" and not winners:
            winners.append(Worker(queue))
            winners[0].balance()
        return Fault.NONE

    late = Worker(over(records, clock, schedule))
    assert late.balance() == ()
    (lease,) = winners[0].leases
    assert winners[0].verify(lease)


@pytest.mark.parametrize("method", ["create", "replace"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
def test_ownership_in_doubt_is_looked_for(queue, records, clock, method, fault):
    """One owner, and generations that only rise."""
    for nth in range(3):
        worker = Worker(over(records, clock, at(method, fault, nth=nth)))
        worker.balance()
        clock.now += BEAT_SECONDS
        assert len(worker.balance()) == 1
        worker.stop()
    successor = Worker(queue)
    (lease,) = successor.balance()
    assert lease.generation == 4


def test_generations_rise_beyond_a_topic_made_anew(queue):
    """Also when nothing but the owners' record was left of the old one."""
    first = Worker(queue)
    (before,) = first.balance()
    first.stop()
    owners = queue.records.read("owners", "t")
    queue.topics.delete("t")
    queue.topics.create("t", PUSHED)
    queue.records.create("owners", "t", owners.value)
    (after,) = Worker(queue).balance()
    assert after.generation > before.generation
    assert not first.verify(before)


def test_a_worker_taken_for_dead_registers_anew(queue, clock):
    """It slept, was succeeded, and gets a share again."""
    first, _ = owner(queue)
    clock.now += 1
    second, _ = succeed(queue, clock)
    assert first.balance() == ()
    second.stop()
    assert len(first.balance()) == 1


def test_settings_that_cannot_hold(queue, records):
    """A lease must end before another takes it; foreign bytes are told."""
    with pytest.raises(UsageError, match="expiry"):
        Worker(queue, lease_seconds=5, expiry_seconds=5)
    records.create("owners", "t", b"text")
    with pytest.raises(CorruptError):
        Worker(queue).balance()


# Delivery


def test_take_deliver_remove(queue):
    """Each entry once, with what it announced; the totals tell."""
    push(queue, *"abc")
    _, drain = owner(queue)
    first = drain.take(2)
    assert [entry.attempts for entry in first] == [1, 1]
    assert queue.stats("t").in_flight == 2
    assert drain.busy
    assert drain.done(first) == 2
    second = drain.take(5)
    assert keys((*first, *second)) == ["a", "b", "c"]
    drain.done(second)
    assert not drain.busy
    assert drain.take(5) == ()
    stats = queue.stats("t")
    assert (stats.depth, stats.counted, stats.delivered, stats.failed) == (0, 0, 3, 0)


def test_a_failing_entry_is_not_in_the_way(queue, clock):
    """Those behind it go out, once; it comes again after its backoff, with its error and attempts stored."""
    push(queue, *"abcd")
    worker, drain = owner(queue)
    seen = []
    for _ in range(30):
        clock.now += 1
        worker.balance()
        for entry in drain.take(1):
            seen.append(entry.event.key)
            if entry.event.key == "a" and entry.attempts < 3:
                assert isinstance(drain.failed(entry, "503 try later"), WillRetry)
            else:
                drain.done([entry])
    assert sorted(seen) == ["a", "a", "a", "b", "c", "d"]
    assert queue.stats("t").failed == 2


def test_backoff_is_kept_by_the_owner_and_begun_anew_by_the_next(queue, clock):
    """No wall clock decides: the next owner knows the attempts, not the time."""
    push(queue, "a")
    worker, drain = owner(queue)
    (entry,) = drain.take(1)
    outcome = drain.failed(entry, "down")
    assert drain.take(1) == () or outcome.after_seconds == 0
    worker.stop()
    second, drain = owner(queue)
    waited = 0.0
    while not (taken := drain.take(1)):
        waited += 0.1
        clock.now += 0.1
        second.balance()
    assert waited <= 2.1
    assert (taken[0].attempts, taken[0].last_error) == (2, "down")


def test_the_next_owner_does_not_try_again_at_once(queue):
    """What failed backs off with it too."""
    push(queue, "a")
    worker, drain = owner(queue)
    (entry,) = drain.take(1)
    drain.failed(entry, "down")
    worker.stop()
    second = Worker(queue)
    (lease,) = second.balance()
    drain = Drain(second, lease, retry_base_seconds=1e6, retry_ceiling_seconds=1e6)
    assert drain.take(1) == ()
    assert drain.take(1) == ()


def test_time_watched_adds_up_over_owners(queue, clock):
    """Each adds what it saw itself."""
    push(queue, "a")
    for _ in range(2):
        worker = Worker(queue)
        (lease,) = worker.balance()
        drain = Drain(worker, lease, retry_base_seconds=0)
        (entry,) = drain.take(1)
        clock.now += 4
        drain.failed(entry, "down")
        worker.stop()
    (entry,) = queue.entries("t", range(1000))
    assert entry.waited_seconds == 8
    assert entry.attempts == 2


def test_an_attempt_that_nobody_looked_at_is_taken_back(queue, clock):
    """However often; the error is kept, and the time goes on."""
    push(queue, "a", "b")
    worker, drain = owner(queue)
    for _ in range(10):
        clock.now += 4
        worker.balance()
        for outcome in drain.failed_many(drain.take(2), "refused", begun=False):
            assert isinstance(outcome, WillRetry)
    entries = queue.entries("t", range(1000))
    assert [(entry.attempts, entry.last_error) for entry in entries] == [(0, "refused")] * 2
    assert all(entry.waited_seconds >= 30 for entry in entries)
    assert not drain.busy


def test_an_attempt_that_was_claimed_but_not_served_counts_once(queue, records, clock):
    """The owners cannot be read after the claim, again and again: the entry is served all the same."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, "a")
    away = []
    schedule = lambda call: Fault.THROTTLED if away and call.method == "read" else Fault.NONE
    _, drain = owner(over(records, clock, schedule))
    away.append(True)
    for _ in range(3):
        with pytest.raises(UnavailableError):
            drain.take(1)
    away.clear()
    (entry,) = drain.take(1)
    assert entry.attempts == 1


def test_what_is_let_go_is_taken_again(queue):
    """Unless it was delivered, and is only not removed yet."""
    push(queue, "a", "b")
    _, drain = owner(queue)
    taken = drain.take(2)
    assert drain.take(2) == ()
    drain.let_go(taken)
    assert keys(drain.take(2)) == ["a", "b"]


def test_expiry_without_delivery(queue, clock):
    """Only what is used up goes, wherever the round is; a fenced owner buries nothing."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, ttl_seconds=60, endpoint="{}"))
    push(queue, *"abcd")
    worker, drain = owner(queue)
    (held,) = drain.take(1)
    assert drain.expire() == 0
    for _ in range(35):
        clock.now += 2
        worker.balance()
    push(queue, "new")
    assert drain.expire() == 3
    assert len(queue.dead("t")) == 3
    assert queue.stats("t").depth == 2
    assert drain.done([held]) == 1
    assert keys((*drain.take(5), *drain.take(5))) == ["new"]
    succeed(queue, clock)
    with pytest.raises(FencedError):
        drain.expire()


def test_attempts_used_up(queue, clock):
    """The entry goes to the dead letters with its reason, frees its room, and may be sent again from the start."""
    push(queue, "a")
    worker, drain = owner(queue)
    outcome = None
    while not isinstance(outcome, Buried):
        clock.now += 4
        worker.balance()
        for entry in drain.take(1):
            outcome = drain.failed(entry, "400 " + "x" * 1000)
    assert outcome.reason.startswith("3 attempts: 400")
    (letter,) = queue.dead("t")
    assert (letter.attempts, letter.state) == (3, "dead")
    assert len(letter.last_error) == 500
    stats = queue.stats("t")
    assert (stats.depth, stats.counted, stats.dead, stats.failed) == (0, 0, 1, 3)
    assert queue.redrive("t", keys=["other"]) == 0
    assert queue.redrive("t") == 1
    assert queue.dead("t") == ()
    (entry,) = drain.take(1)
    assert entry.attempts == 1


def test_redrive_stops_where_there_is_no_room(queue, clock):
    """What is back is no longer a letter; the others stay."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, *"abc")
    _, drain = owner(queue)
    for entry in drain.take(3):
        assert isinstance(drain.failed(entry, "no"), Buried)
    queue.topics.update("t", TopicSettings(capacity=2, shards=1, max_attempts=1, endpoint="{}"))
    assert isinstance(queue.redrive("t"), NoRoom)
    assert len(queue.dead("t")) == 1
    assert queue.stats("t").depth == 2


def test_time_used_up(queue, clock):
    """By the time that owners watched it, over changes of owner, and whatever wall clocks say."""
    settings = TopicSettings(capacity=20, shards=1, max_attempts=99, ttl_seconds=60, endpoint="{}")
    queue.topics.update("t", settings)
    push(queue, "a")
    clock.now += 1000  # nobody watched
    for rounds in (12, 40):
        worker, drain = owner(queue)
        for _ in range(rounds):
            for entry in drain.take(1):
                assert not isinstance(drain.failed(entry, "down"), Buried)
            clock.now += 3
            worker.balance()
        worker.stop()
    (letter,) = queue.dead("t")
    assert letter.reason == "older than 60 s: down"
    assert 60 <= letter.waited_seconds < 64


def test_entries_left_over_go_to_the_dead_letters_untried(queue, clock):
    """An owner died at the last attempt: nobody tries once more."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, "a")
    _, drain = owner(queue)
    assert keys(drain.take(1)) == ["a"]
    clock.now += 1
    _, successor = succeed(queue, clock)
    clock.now += 2
    assert successor.take(1) == ()
    assert keys(queue.dead("t")) == ["a"]


@pytest.mark.parametrize("method", ["create", "remove"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_burial_cut_short_is_finished_by_the_next_owner(queue, records, clock, method, fault):
    """One letter, no delivery more, no room lost for good."""
    queue.topics.update("t", TopicSettings(capacity=20, shards=1, max_attempts=1, endpoint="{}"))
    push(queue, "a")
    nth = {"create": 2, "remove": 0}[method]  # the first two creations are the worker and the owners
    _, drain = owner(over(records, clock, at(method, fault, nth=nth)))
    (entry,) = drain.take(1)
    with pytest.raises(CrashedError):
        drain.failed(entry, "no")
    _, successor = succeed(queue, clock)
    assert successor.take(1) == ()
    assert keys(queue.dead("t")) == ["a"]
    assert queue.stats("t").depth == 0


def test_delivered_but_not_removed_is_not_delivered_again(queue, records, clock):
    """The owner remembers what it owes while the store refuses removals."""
    refusing = [True]
    schedule = lambda call: Fault.THROTTLED if call.method == "remove" and refusing[0] else Fault.NONE
    worker, drain = owner(over(records, clock, schedule))
    push(queue, "a")
    entries = drain.take(1)
    assert drain.done(entries) == 0
    assert drain.busy
    worker.balance()
    assert drain.take(1) == ()
    refusing[0] = False
    worker.balance()
    assert drain.take(1) == ()
    assert not drain.busy
    assert queue.stats("t").depth == 0


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.THROTTLED])
@pytest.mark.parametrize("method", ["replace", "remove", "add", "read", "scan"])
@pytest.mark.parametrize("nth", range(3))
def test_every_entry_goes_out_whatever_the_store_answers(queue, clock, method, fault, nth):
    """One fault anywhere: all entries are delivered, those after no lost answer once."""
    push(queue, *"abc")
    worker = Worker(over(queue.records, clock, at(method, fault, nth=nth)))
    sent = []
    drain = None
    for _ in range(12):
        try:
            for lease in worker.balance():
                drain = drain if drain and drain.lease == lease else Drain(worker, lease)
                for entry in drain.take(2):
                    sent.append(entry.event.key)
                    drain.done([entry])
        except UnavailableError:
            pass
        clock.now += 1
    assert sorted(sent) == ["a", "b", "c"]
    assert queue.stats("t").depth == 0


# Fences


def test_a_fenced_owner_removes_nothing(queue, clock):
    """It slept with entries in hand; its successor serves them, and it can neither remove, fail nor take."""
    push(queue, *"ab")
    _, drain = owner(queue)
    delivered, failing = drain.take(2)
    _, successor = succeed(queue, clock)
    assert drain.done([delivered]) == 0
    assert drain.failed(failing, "no") == Fenced()
    with pytest.raises(FencedError):
        drain.take(1)
    clock.now += 3
    taken = successor.take(5)
    assert keys(taken) == ["a", "b"]
    assert successor.done(taken) == 2
    assert [lease.generation for lease in (drain.lease, successor.lease)] == [1, 2]


def test_an_owner_asleep_in_its_claim_serves_nothing(queue, records, clock):
    """Succeeded between its scan and its claims, it finds out before it hands anything out."""
    push(queue, "a")
    successors = []

    def schedule(call):
        if call.method == "replace" and call.key.startswith("queue.") and not successors:
            successors.append(None)
            successors.append(succeed(queue, clock)[1])
        return Fault.NONE

    worker = Worker(over(records, clock, schedule))
    (lease,) = worker.balance()
    with pytest.raises(FencedError):
        Drain(worker, lease).take(1)
    clock.now += 3
    taken = successors[1].take(1)
    assert keys(taken) == ["a"]
    assert successors[1].done(taken) == 1


def test_a_fenced_owner_leaves_its_successors_claims_alone(queue, records, clock):
    """It comes across them in a scan of its own, and passes by."""
    push(queue, *"ab")
    successors, delivered = [], []

    def schedule(call):
        if call.method == "scan" and call.key == "queue.t.000" and watched and not successors:
            second = succeed(queue, clock)[1]
            clock.now += 3
            successors.append(second)
            delivered.extend(second.take(5))
        return Fault.NONE

    watched = []
    worker = Worker(over(records, clock, schedule))
    (lease,) = worker.balance()
    watched.append(True)
    assert Drain(worker, lease).take(5) == ()
    assert keys(delivered) == ["a", "b"]
    assert successors[0].done(delivered) == 2


# Costs


def test_requests(clock):
    """As the docstrings say."""
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", PUSHED)
    push(queue, *"abcde")
    worker = Worker(queue)
    cost = records.cost
    assert cost(worker.balance) == {"create": 2, "read": 1, "scan": 4}
    assert cost(worker.balance) == {"replace": 1, "scan": 3}
    drain = Drain(worker, worker.leases[0])
    taken = []
    assert cost(lambda: taken.extend(drain.take(5))) == {"scan": 1, "replace": 5, "read": 1}
    assert cost(lambda: drain.done(taken)) == {"remove": 5, "add": 2}
    drain.take(5)  # the end of the first round
    assert cost(lambda: drain.take(5)) == {"scan": 1}
    push(queue, "f")
    (entry,) = drain.take(5)
    assert cost(lambda: drain.failed(entry, "no")) == {"replace": 1, "add": 1}
    assert cost(worker.stop) == {"read": 1, "replace": 1, "remove": 1}


def test_a_long_backlog_is_taken_over_shard_by_shard(records, clock):
    """What was looked through is served while the lease is young; the rest follows, and a stop gives all back."""

    class Slow(CountedRecords):
        def scan(self, partition, **kwargs):
            if partition.startswith("queue."):
                clock.now += 2.0
            return self.records.scan(partition, **kwargs)

    queue = NotificationQueue(Slow(records), clock=clock)
    queue.topics.create("t", TopicSettings(shards=6, endpoint="{}"))
    worker = Worker(queue)
    held = []
    while not held or worker.unadopted:
        held.append(len(worker.balance()))
        assert all(worker.valid(lease) for lease in worker.leases)
    assert held == [2, 4, 6]
    again = Worker(queue)
    worker.stop()
    assert len(again.balance()) == 2
    again.stop()
    assert b"worker" not in records.read("owners", "t").value
