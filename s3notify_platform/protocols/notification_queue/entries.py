"""The values of the notification queue, and the bytes they are stored as. Pure."""

import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.ports import ABSENT, ETag, IfMatch, Precondition, Record, Version
from s3notify_platform.slots import SLOT_COUNT, check_slot_count

TOPIC_NAME = re.compile(r"[a-z0-9_-]{1,63}")
ERROR_MAX = 500
"""Characters of an error that an entry keeps."""

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
    """Contiguous slot ranges, each consumed by one owner. 1 to 64, at most one for each slot."""
    max_attempts: int = 20
    """Deliveries of one entry before it goes to the dead letters."""
    ttl_seconds: float | None = 4 * 24 * 3600.0
    """Seconds for which owners try one entry, counted while they watch it; None: without limit."""
    max_event_bytes: int = 4096
    """Size limit of one encoded entry, in bytes. A key has at most 1024 bytes."""
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
class Entry:
    """One notification of one topic. `topic`, `shard` and `version` say where its record is, not what it holds."""

    topic: str
    shard: int
    epoch: str
    id: str
    slot: int
    quota: int
    """Generation of the counter that counted it."""
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
    version: Version = field(default=_UNWRITTEN, compare=False)

    @property
    def key(self) -> str:
        """The record's key: the slot first, so that the entries of one slot are one scan."""
        return f"{self.slot:03d}.{self.id}"

    @property
    def partition(self) -> str:
        """The record's partition."""
        return queue_partition(self.topic, self.shard)


# Names


def shard_of(slot: int, settings: TopicSettings) -> int:
    """The shard of a slot. Shards are contiguous ranges; each slot is in one."""
    return slot * settings.shards // settings.slots


def shard_slots(shard: int, settings: TopicSettings) -> range:
    """The slots of a shard."""
    shards, slots = settings.shards, settings.slots
    return range(-(-shard * slots // shards), -(-(shard + 1) * slots // shards))


def shard_capacity(shard: int, settings: TopicSettings) -> int:
    """The shard's part of the topic's capacity; the parts add up to it exactly."""
    return settings.capacity // settings.shards + (shard < settings.capacity % settings.shards)


def takes(settings: TopicSettings, bucket: str, key: str) -> bool:
    """Whether a topic with these settings takes a change of this key."""
    return settings.bucket in ("", bucket) and key.startswith(settings.prefix)


def queue_partition(topic: str, shard: int) -> str:
    """Partition of the entries of one shard."""
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
    """Whether keys of a partition may come back after their removal: entries and dead letters never do.

    For `ObjectRecordStore`, which then leaves no tombstones of entries on stores like Ceph RGW.
    """
    return not partition.startswith(("queue.", "dead."))


def check_topic(name: str, settings: TopicSettings) -> None:
    """`UsageError` unless a topic may have this name and these settings."""
    if not TOPIC_NAME.fullmatch(name):
        raise UsageError(f"topic {name!r}: 1 to 63 of a-z, 0-9, - and _")
    check_slot_count(settings.slots)
    if not 1 <= settings.shards <= min(SHARDS_MAX, settings.slots, settings.capacity):
        raise UsageError(
            f"topic {name!r}: {settings.shards} shards; 1 to {SHARDS_MAX}, and no more than slots or capacity"
        )
    ttl = settings.ttl_seconds
    if settings.max_attempts < 1 or settings.max_event_bytes < 1 or (ttl is not None and ttl <= 0):
        raise UsageError(f"topic {name!r}: max_attempts, max_event_bytes and ttl_seconds are above 0")


# Bytes


def encode_topic(topic: Topic) -> bytes:
    """The record of a topic."""
    body = {name: value for name, value in asdict(topic).items() if name not in ("name", "version")}
    return _dump({"v": 1, **body, "quotas": [[quota.generation, quota.base] for quota in topic.quotas]})


def decode_topic(record: Record) -> Topic:
    """The topic that a record holds."""
    try:
        body = _load(record)
        settings = TopicSettings(**body.pop("settings"))
        quotas = tuple(Quota(generation=number, base=base) for number, base in body.pop("quotas"))
        return Topic(name=record.key, settings=settings, quotas=quotas, version=record.version, **body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"topic {record.key!r} holds {record.value[:80]!r}") from error


def encode_entry(entry: Entry) -> bytes:
    """The record of an entry; what is as by default is left out."""
    known = entry.event
    event = _given(known)
    if known.precondition is not None:
        event["precondition"] = known.precondition.etag if isinstance(known.precondition, IfMatch) else "*"
    if entry.state != "reserved":
        event.pop("announced_to", None)
    rounded = replace(entry, waited_seconds=round(entry.waited_seconds, 3))
    body = {name: value for name, value in _given(rounded).items() if name not in _IN_ITS_PLACE}
    claim = {"claim": asdict(entry.claim)} if entry.claim else {}
    return _dump({"v": 1, **body, "event": event, **claim})


_IN_ITS_PLACE = frozenset({"topic", "shard", "id", "slot", "version"})


def _given(value: Event | Entry) -> dict[str, Any]:
    found = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
    return {name: given for name, given, default in found if given != default}


def decode_entry(topic: str, shard: int, record: Record) -> Entry:
    """The entry that a record of this topic and shard holds."""
    try:
        body = _load(record)
        slot, dot, name = record.key.partition(".")
        if not dot or body["state"] not in ("reserved", "committed", "dead"):
            raise CorruptError(f"{record.key!r} of topic {topic!r} is not an entry")
        event, claim = body.pop("event"), body.pop("claim", None)
        if (condition := event.pop("precondition", None)) is not None:
            event["precondition"] = ABSENT if condition == "*" else IfMatch(etag=ETag(condition))
        return Entry(
            topic=topic,
            shard=shard,
            id=name,
            slot=int(slot),
            event=Event(**event | {"announced_to": tuple(event.get("announced_to", ()))}),
            claim=Claim(**claim) if claim else None,
            version=record.version,
            **body,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"entry {record.key!r} of topic {topic!r} holds {record.value[:80]!r}") from error


def epoch_of(record: Record) -> str:
    """The epoch that an entry belongs to."""
    try:
        return str(_load(record)["epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"entry {record.key!r} holds {record.value[:80]!r}") from error


def with_error(entry: Entry, error: str) -> Entry:
    """The entry, with its last error, cut to `ERROR_MAX` characters."""
    return replace(entry, last_error=error[:ERROR_MAX])


def _dump(body: dict[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _load(record: Record) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(record.value)
    if (version := body.pop("v")) != 1:
        raise CorruptError(f"{record.key!r} has version {version!r}; this release reads 1")
    return body
