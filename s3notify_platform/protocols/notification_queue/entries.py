"""The values of the notification queue: topics, events and entries, and their names in the store. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.ports import ETag, Precondition, Record, Version
from s3notify_platform.slots import SLOT_COUNT, check_slot_count

TOPIC_NAME = re.compile(r"[a-z0-9_-]{1,63}")
SHARDS_MAX = 64

_UNWRITTEN = Version("")

WORKERS, OWNERS, TOPICS = "workers", "owners", "topics"
"""Partitions: the workers' heartbeats, who owns which shards, and the topics themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What a topic is created with; all but `slots` and `shards` may be changed later."""

    capacity: int = 10_000
    """Entries, reservations included. Each shard has an equal part of it."""
    shards: int = 8
    """Shares of the load, each delivered by one owner. 1 to 64."""
    max_attempts: int = 20
    """Deliveries of one entry before it goes to the dead letters."""
    ttl_seconds: float | None = 4 * 24 * 3600.0
    """Seconds for which owners try one entry, counted while they watch it; None: without limit."""
    max_event_bytes: int = 4096
    """Size limit of one entry, as it is stored, in bytes. A key has at most 1024 bytes."""
    slots: int = SLOT_COUNT
    """As in the keyspace of the bucket."""
    bucket: str = ""
    """The bucket whose changes it takes; empty: of any."""
    prefix: str = ""
    """Only keys that begin with it."""
    endpoint: str = ""
    """Where and how to push: JSON that only the outlet reads. Empty: the topic is pulled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How the entries of one shard are counted: by the counter of this generation, and `base` older ones."""

    generation: int = 0
    base: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as stored. `epoch` distinguishes it from a deleted topic of the same name."""

    name: str
    epoch: str
    settings: TopicSettings
    quotas: tuple[Quota, ...]
    deleting: bool = False
    version: Version = field(default=_UNWRITTEN, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of one object: announced before it is made, completed when its result is known.

    `writer` is an id that the write puts into the object's metadata (`s3notify-writer`), so that a reconciler
    recognises the object; `etag` serves the same purpose where it is known in advance. `announced_to` are the epochs
    of the topics in which its writer has reserved: if the writer is gone, a reconciler announces the change to the
    other topics, also to a newer one of the same name. It is kept no longer than the reservation.
    """

    key: str
    op: Literal["put", "delete"] = "put"
    bucket: str = ""
    etag: ETag | None = None
    size: int | None = None
    precondition: Precondition | None = None
    writer: str = ""
    announced_to: tuple[str, ...] = field(default=(), compare=False)
    sequencer: str = ""
    """Hex digits: a longer or greater one is later, among events of one key and one clock. A hint, as in S3."""
    time_ms: int = 0
    """For people, and for the message; no decision compares it with another machine's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The owner that is delivering the entry."""

    worker: str
    generation: int


State = Literal["reserved", "committed", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a segment is, and which counter counts its entries. It never changes."""

    topic: str
    epoch: str
    shard: int
    key: str
    """Of the record: an id that begins with the time, and the slots of the entries."""
    quota: int
    """Generation of the shard's quota."""

    @property
    def partition(self) -> str:
        """The record's partition."""
        return queue_partition(self.topic, self.shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One notification of one topic: number `n` of the segment at `place`."""

    place: Place
    n: int
    slot: int
    state: State
    event: Event
    attempts: int = 0
    """Deliveries begun."""
    waited_seconds: float = 0.0
    """Elapsed time for which owners have watched it."""
    last_error: str = ""
    reason: str = ""
    """Why it is dead."""
    claim: Claim | None = None

    @property
    def id(self) -> str:
        """The event's id, which it keeps as a dead letter."""
        return f"{self.place.key.partition('.')[0]}.{self.n}"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.place.topic

    @property
    def epoch(self) -> str:
        """The topic's epoch."""
        return self.place.epoch

    @property
    def shard(self) -> int:
        """The shard that it is in."""
        return self.place.shard


# Names


def shard_capacity(shard: int, settings: TopicSettings) -> int:
    """The shard's part of the topic's capacity; the parts add up to it exactly."""
    return settings.capacity // settings.shards + (shard < settings.capacity % settings.shards)


def takes(settings: TopicSettings, bucket: str, key: str) -> bool:
    """Whether a topic with these settings takes a change of this key."""
    return settings.bucket in ("", bucket) and key.startswith(settings.prefix)


def queue_partition(topic: str, shard: int) -> str:
    """Partition of the segments of one shard."""
    return f"queue.{topic}.{shard:03d}"


def dead_partition(topic: str) -> str:
    """Partition of a topic's dead letters."""
    return f"dead.{topic}"


def depth_partition(topic: str) -> str:
    """Partition of the counters that keep the bound."""
    return f"depth.{topic}"


def counts_partition(topic: str) -> str:
    """Partition of the counters for people."""
    return f"counts.{topic}"


def depth_key(epoch: str, shard: int, generation: int) -> str:
    """Counter of one shard and one generation of its quota."""
    return f"{epoch}.{shard:03d}.{generation}"


def count_key(epoch: str, shard: int, kind: str) -> str:
    """Counter for people: `delivered` or `failed`."""
    return f"{epoch}.{shard:03d}.{kind}"


def keys_recur(partition: str) -> bool:
    """Whether keys of a partition may come back after their removal: those of segments and dead letters never do.

    For `ObjectRecordStore`, which then leaves no tombstones of them on stores like Ceph RGW.
    """
    return not partition.startswith(("queue.", "dead."))


def check_topic(name: str, settings: TopicSettings) -> None:
    """`UsageError` unless a topic may have this name and these settings."""
    if not TOPIC_NAME.fullmatch(name):
        raise UsageError(f"topic {name!r}: 1 to 63 of a-z, 0-9, - and _")
    check_slot_count(settings.slots)
    if not 1 <= settings.shards <= min(SHARDS_MAX, settings.capacity):
        raise UsageError(
            f"topic {name!r}: {settings.shards} shards; 1 to {SHARDS_MAX}, and no more than its capacity"
        )
    ttl = settings.ttl_seconds
    if settings.max_attempts < 1 or settings.max_event_bytes < 1 or (ttl is not None and ttl <= 0):
        raise UsageError(f"topic {name!r}: max_attempts, max_event_bytes and ttl_seconds are above 0")


# Bytes


def encode_topic(topic: Topic) -> bytes:
    """The record of a topic."""
    body = {name: value for name, value in asdict(topic).items() if name not in ("name", "version")}
    return dump({"v": 1, **body, "quotas": [[quota.generation, quota.base] for quota in topic.quotas]})


def decode_topic(record: Record) -> Topic:
    """The topic that a record holds."""
    try:
        body = load(record)
        settings = TopicSettings(**body.pop("settings"))
        quotas = tuple(Quota(generation=number, base=base) for number, base in body.pop("quotas"))
        return Topic(name=record.key, settings=settings, quotas=quotas, version=record.version, **body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"topic {record.key!r} holds {record.value[:80]!r}") from error


def dump(body: Mapping[str, object]) -> bytes:
    """JSON, as short as it can be."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def epoch_of(record: Record) -> str:
    """The epoch of the topic that a segment, a dead letter or the owners belong to."""
    try:
        return str(load(record)["epoch"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{record.key!r} holds {record.value[:80]!r}") from error


def load(record: Record) -> dict[str, Any]:
    """What `dump` was given. `ValueError`, `KeyError` or `AttributeError` for foreign bytes."""
    body: dict[str, Any] = json.loads(record.value)
    if (version := body.pop("v")) != 1:
        raise CorruptError(f"{record.key!r} has version {version!r}; this release reads 1")
    return body
