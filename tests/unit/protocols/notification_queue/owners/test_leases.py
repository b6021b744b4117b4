"""Who owns which shard: shares, takeover, clean stops."""

import pytest

from s3notify_platform.kernel.errors import CorruptError, FencedError, UnavailableError, UsageError
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings, Worker
from s3notify_platform.protocols.notification_queue.entries import WORKERS
from s3notify_platform.protocols.notification_queue.owners import BEAT_SECONDS, LEASE_SECONDS, fair_share
from tests.support.counted import CountedRecords
from tests.support.faults import Fault, at
from tests.unit.protocols.notification_queue.helpers import keys, over
from tests.unit.protocols.notification_queue.owners.helpers import PUSHED, owner, push, shards_of, succeed


@pytest.mark.parametrize(("shards", "workers"), [(8, 1), (8, 3), (5, 3), (4, 3), (2, 5), (0, 2)])
def test_shares_are_fair(shards, workers):
    """All shards are owned, and shares differ by one at most."""
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


def test_workers_of_different_heartbeats(queue, clock):
    """A slow one is waited for as long as it says, and no longer."""
    slow, quick = Worker(queue, lease_seconds=25, expiry_seconds=50), Worker(queue)
    slow.balance()
    for _ in range(3):
        for _ in range(9):
            clock.now += BEAT_SECONDS
            assert quick.balance() == ()
        assert len(slow.balance()) == 1
    killed = clock.now
    while not quick.balance():
        clock.now += BEAT_SECONDS
    assert 50 <= clock.now - killed <= 55


@pytest.mark.parametrize("said", [b"text", b'{"expiry": "never"}', b'{"expiry": 1e300}', b'{"expiry": NaN}'])
def test_nobody_is_waited_for_for_ever(queue, records, clock, said):
    """Whatever stands in a heartbeat."""
    records.create("workers", "strange", said)
    worker = Worker(queue)
    worker.balance()
    clock.now += 601
    worker.balance()
    assert records.read("workers", "strange") is None


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
    worker, consumer = owner(over(records, clock, lambda _: schedule[0]))
    push(queue, "a")
    schedule[0] = Fault.THROTTLED
    clock.now += 4
    with pytest.raises(UnavailableError):
        worker.balance()
    schedule[0] = Fault.NONE
    clock.now += 2
    assert worker.leases == ()
    with pytest.raises(FencedError, match="renewed"):
        consumer.take(1)
    assert worker.balance() == (consumer.lease,)
    assert keys(consumer.take(1)) == ["a"]


def test_a_lease_counts_from_before_its_renewal(records, clock, queue):
    """The answer came late: others have seen the heartbeat since it was written, and count from then."""
    late = []

    def schedule(call):
        if call.method == "replace" and call.key.startswith(WORKERS) and late:
            clock.now += late.pop()
        return Fault.NONE

    worker, _ = owner(over(records, clock, schedule))
    late.append(LEASE_SECONDS - 1)
    (lease,) = worker.balance()
    clock.now += 0.9
    assert worker.valid(lease)
    clock.now += 0.1
    assert not worker.valid(lease)


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


def test_generations_rise_over_a_topic_made_again(queue):
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


def test_a_worker_taken_for_dead_registers_again(queue, clock):
    """It slept, was succeeded, and gets a share again."""
    first, _ = owner(queue)
    clock.now += 1
    second, _ = succeed(queue, clock)
    assert first.balance() == ()
    second.stop()
    assert len(first.balance()) == 1


def test_settings_that_cannot_hold(queue, records):
    """A lease must end before another takes it; foreign bytes are an error."""
    with pytest.raises(UsageError, match="expiry"):
        Worker(queue, lease_seconds=5, expiry_seconds=5)
    records.create("owners", "t", b"text")
    with pytest.raises(CorruptError):
        Worker(queue).balance()


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
