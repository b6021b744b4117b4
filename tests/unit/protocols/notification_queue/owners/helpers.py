"""Helpers of the owners' tests."""

from s3notify_platform.protocols.notification_queue import Event, ShardConsumer, TopicSettings, Worker
from s3notify_platform.protocols.notification_queue.owners import BALANCE_SECONDS

PUSHED = TopicSettings(capacity=20, shards=1, max_attempts=3, endpoint="{}")


def owner(queue, **kwargs):
    """Returns a worker that owns the only shard, and the worker's consumer."""
    worker = Worker(queue, **kwargs)
    (lease,) = worker.balance()
    return worker, ShardConsumer(worker, lease)


def push(queue, *keys):
    queue.push_many("t", [Event(key=key) for key in keys])


def shards_of(*workers):
    return [sorted((lease.topic, lease.shard) for lease in worker.leases) for worker in workers]


def succeed(queue, clock, *, beats=8):
    """Returns a second worker and its consumer. The second worker takes over when the first worker has been silent for
    long enough.
    """
    second = Worker(queue)
    for _ in range(beats):
        if leases := second.balance():
            return second, ShardConsumer(second, leases[0])
        clock.now += BALANCE_SECONDS
    raise AssertionError("nothing was taken over")
