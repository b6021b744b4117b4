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
"""For each operation, the plain event name, which says no more than the operation."""

WORKERS, OWNERS, TOPICS = "workers", "owners", "topics"
"""Partitions: the workers' heartbeats, the owners of shards, and the topics themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The count of the entries of one shard: the counter of this generation, plus `base` older entries."""

    generation: int = 0
    base: int = 0


Phase = Literal["new", "changed", "known"]
"""The state of a topic as writers know it. new: some writers may not know the topic yet. changed: some writers may not
know yet which keys the topic takes now. known: all writers know the topic.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as stored. `epoch` distinguishes the topic from a deleted topic of the same name."""

    name: str
    epoch: str
    settings: TopicSettings
    quotas: tuple[Quota, ...]
    deleting: bool = False
    renews: bool = False
    """True if the topic is created again, with `settings`, at the moment when its deletion ends."""
    paused: bool = False
    """True if the topic's owners deliver nothing."""
    tables: tuple[str, ...] = ()
    """Ids of the tables and streams that the topic serves: no others take the topic's entries. If the tuple is empty,
    the first user claims the topic.
    """
    phase: Phase = "new"
    version: Version = field(default=_UNWRITTEN, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUser:
    """A table or stream that takes the entries of a topic.

    `table`: the id of the table or stream; "" if there is no id yet. `slots`: the slot count of the user's keyspace.
    `former`: earlier ids of the table or stream. `epoch`: the epoch that the topic must have; "" for any epoch.
    """

    slots: int
    table: str = ""
    former: tuple[str, ...] = ()
    epoch: str = ""

    def claimed(self, topic: Topic) -> Topic:
        """The topic with this table added. The table's former ids are removed.

        `UsageError`: the topic has other slots, or serves other tables. `NotFoundError`: the topic has another epoch.
        Pure.
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
        """The topic without this table. `UsageError` if the topic serves only other tables. Pure."""
        others = self.others(topic)
        if others and others == topic.tables:
            raise self._refusal(topic)
        return replace(topic, tables=others)

    def others(self, topic: Topic) -> tuple[str, ...]:
        """The other tables that the topic serves. Pure."""
        return tuple(table for table in topic.tables if table not in {self.table, *self.former})

    def _refusal(self, topic: Topic) -> UsageError:
        both = " --table ".join((*topic.tables, self.table or "ID"))
        own = f"table {self.table} of this source" if self.table else "a table of this source, which has none"
        return UsageError(
            f"topic {topic.name!r} serves table {', '.join(topic.tables)}, not {own}: another deployment uses it. Give "
            "this source a queue_prefix of its own, like _s3notify/dev/queue/. Or let several tables share the topic; "
            f"each entry then goes to one of them: `s3notify topics update {topic.name} --table {both}`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The multipart upload that writes a reserved change. `id` is empty until the upload has begun.

    `beats` changes while the upload continues: see `NotificationQueue.renew`.
    """

    id: UploadId = _UNBEGUN
    beats: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of one object. An event is announced before the change is made, and completed when the result of the
    change is known.

    `writer` is an id that the write puts into the object's metadata (`s3notify-writer`), so that a reconciler
    recognises the object. A reconciler also recognises the object by an `etag` that is known in advance.
    `announced_to`: the epochs of the topics in which the writer has a reservation. If the writer is gone, a reconciler
    announces the change to topics with other epochs. A topic that was created again under the same name has another
    epoch. `announced_to` and `upload` are kept only with the reservation.
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
    """Hex digits. If one clock made the sequencers of a key's events, the later event has the greater hexadecimal
    number. The sequencer is only a hint, as in S3.
    """
    time_ms: int = 0
    """The Unix time of the change, for people and for the message; no decision compares it with another machine's
    clock.
    """
    name: str = ""
    """The S3 event name without `s3:`, as the sender wrote it; empty for a plain put or delete."""
    version_id: str = ""
    """The id of the object's version; empty if the id is unknown, or the bucket has no versioning."""
    configuration_id: str = ""
    """The id of the notification configuration that reported the event."""
    metadata: Mapping[str, str] | None = field(default=None, compare=False)
    tags: Mapping[str, str] | None = field(default=None, compare=False)
    """The object's tags. Tags and metadata are used by the rules and endpoints of topics, and are set only if they are
    known."""
    details: Details | None = field(default=None, compare=False)
    """The rest of the sender's record. Like metadata and tags, these details are stored only for topics with an
    endpoint."""

    def bare(self) -> "Event":
        """The event without metadata, tags and details."""
        return replace(self, metadata=None, tags=None, details=None)

    @property
    def event_name(self) -> str:
        """The S3 event name, like ObjectCreated:Put."""
        return self.name or PLAIN_NAMES[self.op]

    @property
    def is_expiry(self) -> bool:
        """True if a lifecycle rule of the bucket has removed the object, by the event names of AWS and Ceph."""
        by_rule = self.name.startswith(("LifecycleExpiration:", "ObjectLifecycle:Expiration"))
        return by_rule and not self.is_of_version

    @property
    def is_of_version(self) -> bool:
        """True if one version was deleted by its id.

        The version may be noncurrent, so its deletion says nothing about the object. In a versioned bucket, a deletion
        without a version id deletes no version: it hides the current version behind a marker.
        """
        return bool(self.version_id) and self.event_name.endswith(":Delete")


def as_taken(settings: TopicSettings, event: Event) -> Event:
    """The event as a topic with these settings stores it: with details, and the id of the first rule that matches.

    A pulled topic stores no details and no rule id.
    """
    if not settings.endpoint:
        return event.bare()
    facts = (event.event_name, event.metadata, event.tags)
    ids = (
        rule.id for rule in settings.rules if rule.takes(event.bucket, event.key) and rule.takes_event(*facts)
    )
    return replace(event, configuration_id=next(ids, "") or event.configuration_id)


def takes_event(settings: TopicSettings, bucket: str, event: Event, *, by_name: bool = True) -> bool:
    """True if a topic with these settings receives this change; `by_name=False` ignores the event's name."""
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
    """The key of a segment's record, and the quota generation that counts the segment's entries. A `Place` never
    changes.
    """

    topic: str
    epoch: str
    shard: int
    key: str
    """The record's key: shard, an id that begins with the time, and the slots of the entries."""
    quota: int
    """The generation of the shard's quota."""

    @property
    def partition(self) -> str:
        """The record's partition."""
        return queue_partition(self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRead:
    """Version and number of entries of a segment that was read: enough to remove the whole segment without another
    read.
    """

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
    """The number of deliveries that were begun."""
    waited_seconds: float = 0.0
    """Time for which owners have watched the entry."""
    last_error: str = ""
    reason: str = ""
    """The reason why the entry is dead; empty if the entry is not dead."""
    claim: Claim | None = None
    read: "SegmentRead | None" = field(default=None, compare=False)
    """The segment as `NotificationQueue.entries` read it; None if some entries of the segment cannot be removed yet."""

    @property
    def id(self) -> str:
        """The id of the entry; the entry's dead letter has the same id."""
        return f"{segment_id(self.place.key)}.{self.n}"

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.place.topic

    @property
    def epoch(self) -> str:
        """The epoch of the topic."""
        return self.place.epoch

    @property
    def shard(self) -> int:
        """The number of the shard."""
        return self.place.shard


# Names


def shard_capacity(shard: int, settings: TopicSettings) -> int:
    """The shard's part of the topic's capacity; the parts add up to the capacity exactly."""
    return settings.capacity // settings.shards + (shard < settings.capacity % settings.shards)


def segment_id(key: str) -> str:
    """The unique part of a segment's key, without the shard. In sorted order, ids of old segments come first."""
    name = key.partition(".")[0]
    return name[4:] if name[3:4] == "-" else name


def queue_partition(topic: str) -> str:
    """The partition of a topic's segments. This partition contains all shards, so one scan lists them."""
    return f"queue.{topic}"


def dead_partition(topic: str) -> str:
    """The partition of a topic's dead letters."""
    return f"dead.{topic}"


def depth_partition(topic: str) -> str:
    """The partition of the counters that limit a topic to its capacity."""
    return f"depth.{topic}"


def counts_partition(topic: str) -> str:
    """The partition of the counters for people."""
    return f"counts.{topic}"


def depth_key(epoch: str, shard: int, generation: int) -> str:
    """The key of the counter of one shard and one generation of its quota."""
    return f"{epoch}.{shard:03d}.{generation}"


def count_key(epoch: str, shard: int, kind: str) -> str:
    """The key of a counter for people: `delivered` or `failed`."""
    return f"{epoch}.{shard:03d}.{kind}"


def keys_recur(partition: str) -> bool:
    """True if removed keys of a partition may be created again. False for keys of segments and dead letters.

    Pass this function to `ObjectRecordStore`. The record store then leaves no tombstones for segments and dead letters,
    on servers like Ceph RGW.
    """
    return not partition.startswith(("queue.", "dead."))


# Bytes


def encode_topic(topic: Topic) -> bytes:
    """Encodes a topic as the value of its record."""
    body = {name: value for name, value in asdict(topic).items() if name not in ("name", "version")}
    return dump({"v": 1, **body, "quotas": [[quota.generation, quota.base] for quota in topic.quotas]})


def decode_topic(record: Record) -> Topic:
    """Decodes the topic of a record; raises `CorruptError` for foreign bytes."""
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
        raise CorruptError(f"topic {record.key!r} has an unreadable record: {record.value[:80]!r}") from error


def _rule(stored: dict[str, Any]) -> Rule:
    pairs = {name: tuple((key, value) for key, value in stored[name]) for name in ("metadata", "tags")}
    return Rule(**stored | {"events": tuple(stored["events"])} | pairs)


def dump(body: Mapping[str, object]) -> bytes:
    """Compact JSON."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def epoch_of(record: Record) -> str:
    """The epoch of the topic to which a segment, a dead letter or an owners' record belongs."""
    try:
        return str(load(record)["epoch"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{record.key!r} has no epoch: {record.value[:80]!r}") from error


def load(record: Record) -> dict[str, Any]:
    """Decodes the result of `dump`. Raises `ValueError`, `KeyError` or `AttributeError` for foreign bytes."""
    body: dict[str, Any] = json.loads(record.value)
    if (version := body.pop("v")) != 1:
        raise CorruptError(f"{record.key!r} has version {version!r}; this release reads version 1")
    return body
