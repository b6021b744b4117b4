"""Fencing: an owner that slept and was succeeded changes nothing."""

import pytest

from s3notify_platform.kernel.errors import FencedError
from s3notify_platform.protocols.notification_queue import Fenced, ShardConsumer, Worker
from tests.support.faults import Fault
from tests.unit.protocols.notification_queue.helpers import keys, over
from tests.unit.protocols.notification_queue.owners.helpers import owner, push, succeed


def test_a_fenced_owner_removes_nothing(queue, clock):
    """Otherwise an owner that slept with entries in progress would remove entries that its successor delivers."""
    push(queue, *"ab")
    _, consumer = owner(queue)
    delivered, failing = consumer.take(2)
    _, successor = succeed(queue, clock)
    assert consumer.done([delivered]) == 0
    assert consumer.failed(failing, "no") == Fenced()
    with pytest.raises(FencedError):
        consumer.take(1)
    clock.now += 3
    taken = successor.take(5)
    assert keys(taken) == ["a", "b"]
    assert successor.done(taken) == 2
    assert [lease.generation for lease in (consumer.lease, successor.lease)] == [1, 2]


def test_an_owner_that_sleeps_during_its_claim_delivers_nothing(queue, records, clock):
    """Otherwise an owner that was succeeded between its scan and its claim would deliver its successor's entries."""
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
        ShardConsumer(worker, lease).take(1)
    clock.now += 3
    taken = successors[1].take(1)
    assert keys(taken) == ["a"]
    assert successors[1].done(taken) == 1


def test_a_fenced_owner_leaves_its_successors_claims_unchanged(queue, records, clock):
    """Otherwise a fenced owner would overwrite the claims of its successor, whose deliveries would then be repeated."""
    push(queue, *"ab")
    successors, delivered = [], []

    def schedule(call):
        if call.method == "scan" and call.key == "queue.t" and watched and not successors:
            second = succeed(queue, clock)[1]
            clock.now += 3
            successors.append(second)
            delivered.extend(second.take(5))
        return Fault.NONE

    watched = []
    worker = Worker(over(records, clock, schedule))
    (lease,) = worker.balance()
    watched.append(True)
    assert ShardConsumer(worker, lease).take(5) == ()
    assert keys(delivered) == ["a", "b"]
    assert successors[0].done(delivered) == 2
