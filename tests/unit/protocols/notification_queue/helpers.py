"""Helpers of the queue's tests."""

from s3notify_platform.kernel.ports import ObjectMeta
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    Reconciler,
    Reservation,
    TopicSettings,
)
from tests.support.faults import Fault, FaultyStore, never

ONE_SHARD = TopicSettings(capacity=3, shards=1)


def over(records, clock, schedule=never, **kwargs):
    """Returns a queue whose record store fails on schedule."""
    return NotificationQueue(FaultyStore(records, schedule), clock=clock, parallelism=1, **kwargs)


def room(queue, topic="t"):
    """Returns the number of further reservations that are granted."""
    return sum(isinstance(item, Reservation) for item in queue.reserve_many(topic, events(50, "room")))


def recount(queue, clock, topic="t", head=lambda _: None):
    """Recounts a topic: begins a new quota and, after the wait, counts the entries of the former quota."""
    reconciler = Reconciler(queue, leak_seconds=0)
    reconciled = reconciler.resolve_stale(topic, head)
    clock.now += queue.topics.outdated_seconds
    reconciler.resolve_stale(topic, head)
    return reconciled


def events(count, prefix="k"):
    return [Event(key=f"{prefix}{number}") for number in range(count)]


def keys(entries):
    return sorted(entry.event.key for entry in entries)


def all_entries(queue, topic="t"):
    return queue.entries(topic, range(1000))


def once(method, key, action):
    """Returns a schedule that runs `action` right before the first call of a method, on one key or on any key."""
    done = []

    def schedule(call):
        if call.method == method and key in (None, call.key) and not done:
            done.append(call)
            action()
        return Fault.NONE

    return schedule


def meta(etag, *, writer=None):
    metadata = {"s3notify-writer": writer} if writer else {}
    return ObjectMeta(key="k", etag=etag, size=5, metadata=metadata)
