"""A paused topic: nothing is delivered, nothing is lost, and no entry gets older."""

from s3notify_platform.channels.delivery.push import Delivered
from tests.support.outlets import FakePush, SteppedDelivery, create, push, refusing, run_for

TTL = 50


def test_entries_survive_a_pause_longer_than_their_lifetime(queue, clock):
    """Otherwise entries would become dead letters after a long pause with restarts, since their time to live would have
    passed.
    """
    queue.topics.delete("t")
    create(queue, ttl_seconds=TTL)
    push(queue, 3)
    hook = FakePush()
    delivery = SteppedDelivery(queue, hook)
    queue.topics.pause("t")
    run_for(delivery, clock, 3 * TTL)
    push(queue, 6)
    delivery.stop()
    delivery = SteppedDelivery(queue, hook)
    run_for(delivery, clock, 3 * TTL)
    assert not hook.sizes
    assert queue.stats("t").depth == 9
    assert queue.stats("t").paused
    queue.topics.pause("t", paused=False)
    run_for(delivery, clock, 5)
    assert sum(hook.delivered.values()) == 9
    assert (queue.stats("t").depth, queue.stats("t").dead) == (0, 0)


def test_failed_entries_survive_a_pause(queue, clock):
    """Otherwise, after a pause, an entry with a failed attempt would become a dead letter, although the owner of its
    shard did not change.
    """
    queue.topics.delete("t")
    create(queue, ttl_seconds=TTL)
    push(queue, 1)
    hook = FakePush(refusing("k000"))
    delivery = SteppedDelivery(queue, hook)
    run_for(delivery, clock, 2)
    tried = len(hook.sizes)
    assert tried
    queue.topics.pause("t")
    run_for(delivery, clock, 3 * TTL)
    assert len(hook.sizes) <= tried + 3  # the pause takes effect at the next heartbeat
    assert queue.stats("t").dead == 0
    hook.answer = lambda _: Delivered()
    queue.topics.pause("t", paused=False)
    run_for(delivery, clock, 10)
    assert (queue.stats("t").depth, queue.stats("t").dead) == (0, 0)


def test_a_pause_stops_a_delivery_in_progress(queue):
    """Otherwise entries would still be sent after the pause has begun, would lose attempts, or would stay claimed."""
    push(queue, 100)
    hook = FakePush()
    delivery = SteppedDelivery(queue, hook)

    def pause_after_the_first():
        if len(hook.sizes) == 1:
            queue.topics.pause("t")
            delivery.beat()

    hook.before = pause_after_the_first
    delivery.step()
    assert hook.sizes == [8, 8]  # a wave of two requests
    stats = queue.stats("t")
    assert (stats.depth, stats.in_flight) == (84, 0)
    assert {entry.attempts for entry in queue.entries("t", range(1000))} == {0}
