"""The values of the notification queue: topics, events and entries, and their names in the store. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from s3notify_platform.kernel.errors import CorruptError, NotFoundError, UsageError
from s3notify_platform.kernel.ports import ETag, Precondition, Record, UploadId, Version
from s3notify_platform.protocols.notification_queue.event_details import Details
from s3notify_platform.protocols.notification_queue.topic_rules import Rule
from s3notify_platform.protocols.notification_queue.topic_settings import (
    TopicSettings,
    check_slots,
    takes,
)

_UNWRITTEN = Version("")
_UNBEGUN = UploadId("")

PLAIN_NAMES: Final = {"put": "ObjectCreated:Put", "delete": "ObjectRemoved:Delete"}
"""Names of events that say no more than their operation."""

WORKERS, OWNERS, TOPICS = "workers", "owners", "topics"
"""Partitions: the workers' heartbeats, who owns which shards, and the topics themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How the entries of one shard are counted: by the counter of this generation, and `base` older ones."""

    generation: int = 0
    base: int = 0


Phase = Literal["new", "changed", "known"]
"""Of a topic: some writers may not know it yet; or know it as it was, with other keys; or all know it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as stored. `epoch` distinguishes it from a deleted topic of the same name."""

    name: str
    epoch: str
    settings: TopicSettings
    quotas: tuple[Quota, ...]
    deleting: bool = False
    paused: bool = False
    """Whether its owners deliver nothing."""
    tables: tuple[str, ...] = ()
    """Ids of the tables and streams that it serves: nobody else takes its entries. Empty: the first one claims it."""
    phase: Phase = "new"
    version: Version = field(default=_UNWRITTEN, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUser:
    """A table or stream that takes the entries of a topic.

    `table`: its id, "" for one that has none yet. `slots`: of its keyspace. `former`: ids that it had before. `epoch`:
    of the topic that it relies on, "" for any.
    """

    slots: int
    table: str = ""
    former: tuple[str, ...] = ()
    epoch: str = ""

    def claimed(self, topic: Topic) -> Topic:
        """The topic as it serves this table: in place of its former ids, or as the first one.

        `UsageError` if it has other slots, or serves other tables; `NotFoundError` if it is of another epoch. Pure.
        """
        if self.epoch not in ("", topic.epoch):
            raise NotFoundError(f"topic {topic.name!r} was deleted, and created again: read it again")
        check_slots(topic.name, topic.settings, self.slots)
        if not self.table or self.table in topic.tables:
            return topic
        others = self.others(topic)
        if others and others == topic.tables:
            raise self._refusal(topic)
        return replace(topic, tables=(*others, self.table))

    def released(self, topic: Topic) -> Topic:
        """The topic as it serves this table no more. `UsageError` if it serves only others. Pure."""
        others = self.others(topic)
        if others and others == topic.tables:
            raise self._refusal(topic)
        return replace(topic, tables=others)

    def others(self, topic: Topic) -> tuple[str, ...]:
        """The other tables that the topic serves. Pure."""
        return tuple(table for table in topic.tables if table not in {self.table, *self.former})

    def _refusal(self, topic: Topic) -> UsageError:
        both = " --table ".join((*topic.tables, self.table or "ID"))
        own = f"this source's, {self.table}" if self.table else "this source, which has none"
        return UsageError(
            f"topic {topic.name!r} serves table {', '.join(topic.tables)}, not {own}: another deployment uses it. Give "
            "this source a queue_prefix of its own, like _s3notify/dev/queue/; or, if all are to take its entries, "
            f"of which each goes to one of them: `s3notify topics update {topic.name} --table {both}`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The multipart upload by which a reserved change is written. `id` is empty until it has begun.

    `beats` changes while the upload goes on: see `NotificationQueue.renew`.
    """

    id: UploadId = _UNBEGUN
    beats: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of one object: announced before it is made, completed when its result is known.

    `writer` is an id that the write puts into the object's metadata (`s3notify-writer`), so that a reconciler
    recognises the object; `etag` serves the same purpose where it is known in advance. `announced_to` are the epochs
    of the topics in which its writer has reserved: if the writer is gone, a reconciler announces the change to the
    other topics, also to a newer one of the same name. It is kept no longer than the reservation, and so is `upload`.
    """

    key: str
    op: Literal["put", "delete"] = "put"
    bucket: str = ""
    etag: ETag | None = None
    size: int | None = None
    precondition: Precondition | None = None
    writer: str = ""
    announced_to: tuple[str, ...] = field(default=(), compare=False)
    upload: Upload | None = None
    sequencer: str = ""
    """Hex digits: a longer or greater one is later, among events of one key and one clock. A hint, as in S3."""
    time_ms: int = 0
    """For people, and for the message; no decision compares it with another machine's clock."""
    name: str = ""
    """Its S3 event name without `s3:`, as its sender said it; empty: that of a plain put or delete."""
    version_id: str = ""
    """Of the object's version; empty: not known, or none."""
    configuration_id: str = ""
    """Of the notification configuration that reported it."""
    metadata: Mapping[str, str] | None = field(default=None, compare=False)
    tags: Mapping[str, str] | None = field(default=None, compare=False)
    """The object's tags; like its metadata, where they are at hand: for the rules of topics, and for endpoints."""
    details: Details | None = field(default=None, compare=False)
    """The rest of its sender's record. With metadata and tags, it is stored for topics with an endpoint alone."""

    def bare(self) -> "Event":
        """Without metadata, tags and details."""
        return replace(self, metadata=None, tags=None, details=None)

    @property
    def event_name(self) -> str:
        """Its S3 event name, like ObjectCreated:Put."""
        return self.name or PLAIN_NAMES[self.op]

    @property
    def is_expiry(self) -> bool:
        """Whether a rule of the bucket's lifecycle has removed the object, as AWS and Ceph name that."""
        by_rule = self.name.startswith(("LifecycleExpiration:", "ObjectLifecycle:Expiration"))
        return by_rule and not self.is_of_version

    @property
    def is_of_version(self) -> bool:
        """Whether one version was deleted by its id. It may be a noncurrent one, and says nothing about the object.

        Where there are versions, the current one is hidden by a marker.
        """
        return bool(self.version_id) and self.event_name.endswith(":Delete")


def as_taken(settings: TopicSettings, event: Event) -> Event:
    """The event as a topic with these settings stores it: with the id of the rule that takes it, and its details.

    A topic that is pulled stores none of both.
    """
    if not settings.endpoint:
        return event.bare()
    facts = (event.event_name, event.metadata, event.tags)
    ids = (
        rule.id for rule in settings.rules if rule.takes(event.bucket, event.key) and rule.takes_event(*facts)
    )
    return replace(event, configuration_id=next(ids, "") or event.configuration_id)


def takes_event(settings: TopicSettings, bucket: str, event: Event, *, by_name: bool = True) -> bool:
    """Whether a topic with these settings takes this very change; not `by_name`, whatever its event is called."""
    if not settings.rules:
        return takes(settings, bucket, event.key)
    facts = (event.event_name if by_name else None, event.metadata, event.tags)
    return takes(settings, bucket, event.key) and any(
        rule.takes(bucket, event.key) and rule.takes_event(*facts) for rule in settings.rules
    )


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
    """Of the record: shard, an id that begins with the time, and the slots of the entries."""
    quota: int
    """Generation of the shard's quota."""

    @property
    def partition(self) -> str:
        """The record's partition."""
        return queue_partition(self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRead:
    """The version of a segment, and how many entries it had. Whoever removes them all need not read it again."""

    version: Version
    entries: int


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
    read: "SegmentRead | None" = field(default=None, compare=False)
    """Its segment, as `NotificationQueue.entries` read it; None: it has entries that cannot be removed yet."""

    @property
    def id(self) -> str:
        """The event's id, which it keeps as a dead letter."""
        return f"{segment_id(self.place.key)}.{self.n}"

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


def segment_id(key: str) -> str:
    """The unique part of a segment's key, without its shard. In order of age."""
    name = key.partition(".")[0]
    return name[4:] if name[3:4] == "-" else name


def queue_partition(topic: str) -> str:
    """Partition of a topic's segments, of all shards, so that one scan lists them."""
    return f"queue.{topic}"


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


# Bytes


def encode_topic(topic: Topic) -> bytes:
    """The record of a topic."""
    body = {name: value for name, value in asdict(topic).items() if name not in ("name", "version")}
    return dump({"v": 1, **body, "quotas": [[quota.generation, quota.base] for quota in topic.quotas]})


def decode_topic(record: Record) -> Topic:
    """The topic that a record holds."""
    try:
        body = load(record)
        stored = body.pop("settings")
        rules = tuple(map(_rule, stored.pop("rules")))
        settings = TopicSettings(**stored, rules=rules)
        quotas = tuple(Quota(generation=number, base=base) for number, base in body.pop("quotas"))
        tables = tuple(body.pop("tables"))
        return Topic(
            name=record.key, settings=settings, quotas=quotas, tables=tables, version=record.version, **body
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"topic {record.key!r} holds {record.value[:80]!r}") from error


def _rule(stored: dict[str, Any]) -> Rule:
    pairs = {name: tuple((key, value) for key, value in stored[name]) for name in ("metadata", "tags")}
    return Rule(**stored | {"events": tuple(stored["events"])} | pairs)


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
