"""Topics whose endpoint was removed: pullers take the entries that an owner had claimed."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import FencedError
from s3notify_platform.protocols.notification_queue import TopicUser
from tests.unit.protocols.notification_queue.helpers import all_entries, keys
from tests.unit.protocols.notification_queue.owners.helpers import PUSHED, owner, push

PULLED = replace(PUSHED, endpoint="")


def test_a_puller_removes_entries_that_a_former_owner_claimed(queue):
    """Otherwise these entries would stay for ever, because a topic without an endpoint has no owner that frees them."""
    push(queue, *"abc")
    worker, consumer = owner(queue)
    assert keys(consumer.take(2)) == ["a", "b"]
    queue.topics.update("t", PULLED)
    assert worker.balance() == ()
    entries = all_entries(queue)
    assert keys(entries) == ["a", "b", "c"]
    assert queue.remove(entries) == 3
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (0, 0)


def test_a_former_owner_does_no_harm_to_entries_that_a_puller_removed(queue):
    """Otherwise room would be freed twice, or an entry would come back after its removal."""
    push(queue, *"abc")
    _, consumer = owner(queue)
    first, second = consumer.take(2)
    queue.topics.update("t", PULLED)
    assert queue.remove(all_entries(queue)) == 3
    assert consumer.done([first]) == 0
    consumer.failed(second, "no")
    stats = queue.stats("t")
    assert (stats.depth, stats.counted, stats.dead) == (0, 0, 0)


def test_an_erasure_removes_entries_that_a_former_owner_claimed(queue):
    """Otherwise an erasure would wait for ever for an owner."""
    push(queue, "a")
    _, consumer = owner(queue)
    assert keys(consumer.take(1)) == ["a"]
    user = TopicUser(slots=PUSHED.slots)
    assert queue.erase("", "a", own="t", user=user) == (0, 1)
    queue.topics.update("t", PULLED)
    assert queue.erase("", "a", own="t", user=user) == (1, 0)


def test_claims_of_former_owners_do_not_outlive_a_new_endpoint(queue):
    """Otherwise a topic that gets an endpoint again would not deliver these entries."""
    push(queue, *"ab")
    worker, consumer = owner(queue)
    assert keys(consumer.take(2)) == ["a", "b"]
    queue.topics.update("t", PULLED)
    worker.balance()
    with pytest.raises(FencedError):
        consumer.take(1)
    queue.topics.update("t", PUSHED)
    worker.stop()
    _, successor = owner(queue)
    assert keys(successor.take(2)) == ["a", "b"]
