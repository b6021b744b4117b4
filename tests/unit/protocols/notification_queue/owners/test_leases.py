"""Leases of shards: shares, takeover, clean stops."""

import pytest

from s3notify_platform.kernel.errors import CorruptError, FencedError, UnavailableError, UsageError
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings, Worker
from s3notify_platform.protocols.notification_queue.entries import WORKERS
from s3notify_platform.protocols.notification_queue.owners import BALANCE_SECONDS, LEASE_SECONDS, fair_share
from tests.support.counted import CountedRecords
from tests.support.faults import Fault, at
from tests.unit.protocols.notification_queue.helpers import keys, over
from tests.unit.protocols.notification_queue.owners.helpers import PUSHED, owner, push, shards_of, succeed


@pytest.mark.parametrize(("shards", "workers"), [(8, 1), (8, 3), (5, 3), (4, 3), (2, 5), (0, 2)])
def test_each_worker_gets_a_fair_share_of_the_shards(shards, workers):
    """Otherwise a shard would have no owner, or one worker would have much more load than another."""
    held = {f"w{number}": number for number in range(workers)}
    shares = [fair_share(name, held, shards) for name in held]
    assert sum(shares) == shards
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares)  # workers that own more shards get the larger shares


def test_shards_spread_over_the_running_workers(records, clock):
    """Otherwise a new worker would get no shards, or the shards of a stopped worker would have no owner."""
    queue = NotificationQueue(records, clock=clock)
    for name in ("a", "b"):
        queue.topics.create(name, TopicSettings(shards=4, endpoint="{}"))
    queue.topics.create("pulled", TopicSettings(shards=4))
    workers = [Worker(queue) for _ in range(3)]
    assert len(workers[0].balance()) == 8
    for _ in range(3):
        for worker in workers:
            worker.balance()
        clock.now += BALANCE_SECONDS
    held = shards_of(*workers)
    assert sorted(len(part) for part in held) == [2, 3, 3]
    assert sorted(sum(held, [])) == [(name, shard) for name in ("a", "b") for shard in range(4)]  # noqa: RUF017
    workers[0].stop()
    for worker in workers[1:]:
        worker.balance()
    held = shards_of(*workers)
    assert [len(part) for part in held] == [0, 4, 4]


def test_a_worker_finishes_only_busy_shards_that_another_worker_should_own(records, clock):
    """Otherwise a worker would pause a shard that no other worker can deliver, instead of a busy shard of another
    topic. The pause of this shard would never end.
    """
    queue = NotificationQueue(records, clock=clock)
    for name in ("few", "all"):
        queue.topics.create(name, TopicSettings(shards=2, endpoint="{}"))
    able, unable = Worker(queue), Worker(queue)
    able.balance()
    unable.unusable["few"] = "{}"
    for _ in range(3):
        unable.balance()
        able.balance(able.leases)
        clock.now += BALANCE_SECONDS
    assert {lease.topic for lease in able.surplus} == {"all"}
    able.balance([lease for lease in able.leases if lease.topic == "few"])
    assert able.surplus == ()
    assert {lease.topic for lease in unable.balance()} == {"all"}
    assert [lease.topic for lease in able.leases].count("few") == 2


def test_a_killed_worker_is_succeeded_within_15_seconds(queue, clock):
    """Otherwise notifications of a killed worker's shards would wait for more than 15 s, or a running worker would lose
    its shards.
    """
    first = Worker(queue)
    second = Worker(queue)
    first.balance()
    for _ in range(10):
        clock.now += BALANCE_SECONDS
        assert first.balance()
        assert second.balance() == ()
    killed = clock.now
    while not second.balance():
        clock.now += BALANCE_SECONDS
    assert clock.now - killed <= 15


def test_a_late_worker_is_not_considered_ended(queue, clock):
    """Otherwise a heartbeat that is late by less than the expiry would cost a worker its shards."""
    first, second = Worker(queue), Worker(queue)
    first.balance()
    second.balance()
    clock.now += 9.5
    assert second.balance() == ()
    assert len(first.balance()) == 1


def test_workers_may_have_different_heartbeats(queue, clock):
    """Otherwise a worker with a slow heartbeat would lose its shards to a worker with a quick heartbeat."""
    slow, quick = Worker(queue, lease_seconds=25, expiry_seconds=50), Worker(queue)
    slow.balance()
    for _ in range(3):
        for _ in range(9):
            clock.now += BALANCE_SECONDS
            assert quick.balance() == ()
        assert len(slow.balance()) == 1
    killed = clock.now
    while not quick.balance():
        clock.now += BALANCE_SECONDS
    assert 50 <= clock.now - killed <= 55


@pytest.mark.parametrize(
    "said",
    [b"text", b'{"expiry": "never"}', b'{"expiry": 1e300}', b'{"expiry": NaN}', b'{"unusable": 1}', b"[]"],
)
def test_the_wait_for_a_worker_is_bounded(queue, records, clock, said):
    """Otherwise a corrupt or extreme heartbeat would block the worker's shards for ever."""
    records.create("workers", "strange", said)
    worker = Worker(queue)
    worker.balance()
    clock.now += 601
    worker.balance()
    assert records.read("workers", "strange") is None


def test_a_clean_stop_needs_no_expiry(queue, clock):
    """Otherwise, after a deploy, notifications would wait until the stopped worker's lease expires."""
    first, second = Worker(queue), Worker(queue)
    first.balance()
    first.stop()
    assert len(second.balance()) == 1
    assert first.leases == ()


def test_a_worker_that_cannot_renew_its_lease_stops_delivering(queue, records, clock):
    """Otherwise two workers would deliver the same entries."""
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


def test_a_renewed_lease_counts_from_the_start_of_the_renewal_request(records, clock, queue):
    """Otherwise a worker whose renewal was answered late would still deliver when other workers already take over."""
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


def test_surplus_leases_with_entries_in_progress_are_kept(records, clock):
    """Otherwise an entry in delivery would be delivered again by the shard's next owner."""
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", TopicSettings(capacity=20, shards=2, endpoint="{}"))
    first, second = Worker(queue), Worker(queue)
    both = first.balance()
    second.balance()
    assert first.balance(busy=both) == both
    assert len(first.balance(busy=both[:1])) == 1
    assert first.leases == both[:1]
    assert len(second.balance()) == 1


def test_one_of_two_workers_gets_a_free_shard(queue, records, clock):
    """Otherwise two workers that take a shard at the same time would both own it."""
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
def test_an_ownership_in_doubt_is_resolved(queue, records, clock, method, fault):
    """Otherwise, after a lost answer, a shard would have two owners or none, or would use a generation twice."""
    for nth in range(3):
        worker = Worker(over(records, clock, at(method, fault, nth=nth)))
        worker.balance()
        clock.now += BALANCE_SECONDS
        assert len(worker.balance()) == 1
        worker.stop()
    successor = Worker(queue)
    (lease,) = successor.balance()
    assert lease.generation == 4


def test_generations_rise_when_a_topic_is_created_again(queue):
    """Otherwise a worker of the deleted topic would treat its old lease as valid."""
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


def test_a_worker_that_counted_as_ended_registers_again(queue, clock):
    """Otherwise a worker that slept for long would never get a shard again."""
    first, _ = owner(queue)
    clock.now += 1
    second, _ = succeed(queue, clock)
    assert first.balance() == ()
    second.stop()
    assert len(first.balance()) == 1


def test_impossible_lease_times_are_refused(queue, records):
    """Otherwise a lease could be taken over before it ends, or foreign bytes would be read as owners."""
    with pytest.raises(UsageError, match="expiry"):
        Worker(queue, lease_seconds=5, expiry_seconds=5)
    records.create("owners", "t", b"text")
    with pytest.raises(CorruptError):
        Worker(queue).balance()


def test_a_long_backlog_is_taken_over_shard_by_shard(records, clock):
    """Otherwise a worker whose scans take long would lose all its leases before it delivers anything."""

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
