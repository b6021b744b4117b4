"""The facts of a topic that `stats` and `show` print. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from s3notify_platform.protocols.notification_queue.entries import Entry, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStats:
    """One shard: the number of its entries (reserved, committed and in flight), the number of claimed entries, and the
    age of the oldest entry.
    """

    depth: int
    in_flight: int
    oldest_age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """Facts for people. Each fact was true at some moment of one scan. `delivered` and `failed` may lack deliveries of
    a crashed worker.
    """

    topic: str
    paused: bool
    depth: int
    """Entries in the queue: reserved, committed and in flight."""
    counted: int
    """The number that is compared with the capacity: the sum of `depth`, the writers' spare room, and the room that
    crashes left in use until the next recount.
    """
    capacity: int
    reserved: int
    in_flight: int
    oldest_age_seconds: float | None
    """Computed from the wall clocks of writer and reader, so only for people."""
    delivered: int
    """Deliveries by owners. Entries that a table took are not counted here, but in the table's history."""
    failed: int
    dead: int
    shards: tuple[ShardStats, ...]
    """All shards, in order."""


def topic_stats(
    topic: Topic,
    entries: Sequence[Sequence[Entry]],
    *,
    counted: int,
    totals: Mapping[str, int],
    dead: int,
    wall_ms: int,
) -> TopicStats:
    """Computes the facts of a topic from its entries, which are given by shard."""
    every = [entry for part in entries for entry in part]
    return TopicStats(
        topic=topic.name,
        paused=topic.paused,
        depth=len(every),
        counted=counted,
        capacity=topic.settings.capacity,
        reserved=sum(entry.state == "reserved" for entry in every),
        in_flight=_in_flight(every),
        oldest_age_seconds=oldest_age_seconds(every, wall_ms),
        delivered=totals.get("delivered", 0),
        failed=totals.get("failed", 0),
        dead=dead,
        shards=tuple(
            ShardStats(
                depth=len(part),
                in_flight=_in_flight(part),
                oldest_age_seconds=oldest_age_seconds(part, wall_ms),
            )
            for part in entries
        ),
    )


def oldest_age_seconds(entries: Sequence[Entry], wall_ms: int) -> float | None:
    """The waiting time of the oldest of these entries; None if there are no entries."""
    oldest = min((entry.event.time_ms for entry in entries if entry.event.time_ms), default=None)
    return None if oldest is None else max(0, wall_ms - oldest) / 1000


def _in_flight(entries: Sequence[Entry]) -> int:
    return sum(entry.claim is not None for entry in entries)
