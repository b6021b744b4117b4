"""The fill level of a topic, at a bounded cost, for metrics and Dagster's plots."""

from typing import Final

from s3notify_platform.protocols.notification_queue import NotificationQueue, Topic

SCANNED_MAX: Final = 500
"""Maximum number of entries of a topic that is scanned."""


def queue_facts(queue: NotificationQueue, topic: Topic) -> dict[str, int | float]:
    """Numbers of a topic: `depth`, `capacity`, `oldest_age_seconds`, `dead`; `in_flight`, `delivered`, `failed`.

    A topic with more than `SCANNED_MAX` entries is not scanned. Then `depth` is the number of reserved entries, and
    `oldest_age_seconds` comes from the first segments. `in_flight`, `delivered` and `failed` are missing. The numbers
    of a smaller topic are the same as in `NotificationQueue.stats` and `s3notify status`. Requests: a few for each
    shard. If the queue is on a bucket, also 1 GET for each segment that is read, and 1 LIST for each 1000 dead letters.
    """
    shards = range(topic.settings.shards)
    counted = sum(queue.shards.counted(topic, shard) + topic.quotas[shard].base for shard in shards)
    if counted > SCANNED_MAX:
        return {
            "capacity": topic.settings.capacity,
            "depth": counted,
            "oldest_age_seconds": round(queue.oldest_age_seconds(topic.name) or 0.0, 1),
            "dead": queue.dead_count(topic.name),
        }
    stats = queue.stats(topic.name)
    return {
        "capacity": stats.capacity,
        "oldest_age_seconds": round(stats.oldest_age_seconds or 0.0, 1),
        **{name: getattr(stats, name) for name in ("depth", "in_flight", "delivered", "failed", "dead")},
    }
