"""Topics: create, change, list, and delete with all pending entries, even if a deletion is interrupted.

Writers rely on the topics as they read them, for `TOPICS_KNOWN_SECONDS` by their own clock from the start of the read
(`KnownTopics`). So whoever changes what they rely on waits it out: `CLOCK_SKEW` times as long, by its own clock, since
it saw the changed record, before it acts on the change. Anyone may wait again: nothing is stuck if one is killed.

    Created. A writer that does not know the topic does not announce to it. `create` and `serve` wait that out, so each
    later write is announced; and a consumer lists the bucket after that, so it finds each earlier one. There is nothing
    to wait for if no other topic may take the same keys: a writer without any reservation reads the topics again after
    its write. `Topic.phase` says whether it has been waited for.
    Bucket, prefix or rules changed. Writers know the topic with other keys. `update` waits that out; until then a topic
    that is created cannot tell which keys they have a reservation for, and so waits, too.
    Deleted. What writers reserve in it is granted to them. Nothing of it is removed, and its name is not used again,
    until that is waited out; so all of it is found, and its commit returns `Expired`.
    A shard is counted again. What writers count by the former generation of its quota is granted to them. Its base
    shrinks, and its counters go, once that is waited out (`reconciler`).
    Capacity lowered. Writers take room up to the higher one. It is counted all the same, and nobody acts on less.
    Capacity raised, base lowered. Writers know of less room than there is. A refusal is checked by a read.
    `stale_seconds` lowered. That is to be done only while nobody writes, as its description says.
    `max_event_bytes`. It is for the good of consumers; a segment can store events of any size that was ever allowed.
    Nothing else of a topic concerns writers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from s3notify_platform.kernel.limits import CLOCK_SKEW
from s3notify_platform.kernel.ports import Record, RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    OWNERS,
    TOPICS,
    Quota,
    Topic,
    TopicUser,
    counts_partition,
    dead_partition,
    decode_topic,
    depth_partition,
    encode_topic,
    epoch_of,
    queue_partition,
)
from s3notify_platform.protocols.notification_queue.topic_settings import (
    FIXED,
    TopicSettings,
    check_topic,
    differing,
    may_overlap,
    same_keys,
)
from s3notify_platform.protocols.updates import Stored, Updates


class Topics:
    """The topics of one record store. Thread-safe. `known_seconds`: for how long writers rely on what they read."""

    def __init__(self, records: RecordStore, clock: Clock, *, known_seconds: float) -> None:
        self._records = records
        self._updates = Updates(records, clock)
        self._clock = clock
        self.known_seconds = known_seconds
        self.changes = 0
        """How often this process has changed a topic."""

    @property
    def outdated_seconds(self) -> float:
        """After so long, by any process's own clock, no writer relies on topics as they were read before."""
        return self.known_seconds * CLOCK_SKEW

    def get(self, name: str) -> Topic:
        """The topic; `NotFoundError` if there is none, or it is being deleted. 1 request."""
        return _existing(name, self.find(name))

    def find(self, name: str) -> Topic | None:
        """The topic; None if there is none, or it is being deleted. 1 request."""
        topic = self._read(name)
        return None if topic is None or topic.deleting else topic

    def all(self, *, known: dict[str, Record] | None = None) -> tuple[Topic, ...]:
        """Every topic that is not being deleted, by name. One scan.

        `known`: the records as the caller last saw them; updated here. Unchanged records are not read again.
        """
        records = list(self._records.scan(TOPICS, known=known))
        if known is not None:
            known.clear()
            known.update((record.key, record) for record in records)
        topics = map(decode_topic, records)
        return tuple(topic for topic in topics if not topic.deleting)

    def create(self, name: str, settings: TopicSettings, *, tables: tuple[str, ...] = ()) -> Topic:
        """Create the topic, or return the existing one with these settings. `ConflictError` if it has others.

        Once this returns, each change is announced to it that is not older. `tables`: whom a new one serves; none: the
        first one that uses it. An interrupted deletion is finished first. 2 requests and 1 scan; `outdated_seconds` if
        another topic may take the same keys.
        """
        check_topic(name, settings)
        fresh = Topic(
            name=name,
            epoch=unique_name(self._clock)[:16],
            settings=settings,
            quotas=(Quota(),) * settings.shards,
            tables=tables,
        )
        for _ in attempts(self._clock):
            try:
                outcome = self._updates.create(TOPICS, name, encode_topic(fresh))
            finally:
                self.changes += 1
            if isinstance(outcome, Stored):
                return self._waited_out(replace(fresh, version=outcome.version))
            found = decode_topic(outcome.record) if outcome.record is not None else None
            if found is not None and not found.deleting:
                if why := differing(name, found.settings, settings):
                    raise ConflictError(why)
                return self._waited_out(found)
            if found is not None:
                self._finish_delete(found)
        raise UnavailableError(f"topic {name!r} is being deleted and created by others; try again")

    def serve(self, topic: Topic, user: TopicUser) -> Topic:
        """The topic, which serves this user's table from now on if it serves none yet.

        For consumers, before their first listing: whoever writes after it announces to the topic. `UsageError` if it
        has other slots, or serves other tables. No request if it serves the table; else 2. If the process that made it
        was killed, 2 more, and it may take `outdated_seconds`.
        """
        user.claimed(topic)
        topic = self._waited_out(topic)
        return topic if user.claimed(topic) == topic else self.change(topic.name, user.claimed)

    def _waited_out(self, topic: Topic) -> Topic:
        """The topic, as this process has just seen it, once all writers know it."""
        if topic.phase == "known":
            return topic
        if topic.phase == "changed" or self._overlaps(topic):
            self._clock.sleep(self.outdated_seconds)
        known = replace(topic, phase="known")
        outcome = self._updates.replace(TOPICS, topic.name, encode_topic(known), expected=topic.version)
        # Changed meanwhile: whoever uses it next waits again.
        return replace(known, version=outcome.version) if isinstance(outcome, Stored) else topic

    def _overlaps(self, topic: Topic) -> bool:
        """Whether a writer may have a reservation of a change that this topic takes, and not know the topic.

        Topics that are being deleted count: writers may know them still.
        """
        others = (decode_topic(record) for record in self._records.scan(TOPICS) if record.key != topic.name)
        return any(
            other.phase == "changed" or may_overlap(topic.settings, other.settings) for other in others
        )

    def update(self, name: str, settings: TopicSettings, *, tables: tuple[str, ...] | None = None) -> Topic:
        """The topic with new settings, and, if given, serving these tables; shards and slots stay.

        With a capacity below the number of entries, reservations are refused until enough have gone. A topic that now
        takes more keys gets their changes once this returns; consumers list what was there before for a new topic only.
        2 requests; for another bucket or prefix, or other rules, 1 more, and it takes `outdated_seconds`.
        """
        check_topic(name, settings)
        return self.revise(name, lambda _: settings, tables=tables)

    def revise(
        self,
        name: str,
        revised: Callable[[TopicSettings], TopicSettings],
        *,
        tables: tuple[str, ...] | None = None,
    ) -> Topic:
        """As `update`, with settings that are made of those that it has: what others change meanwhile is kept."""

        def change(topic: Topic) -> Topic:
            settings = revised(topic.settings)
            check_topic(name, settings)
            if any(getattr(settings, kept) != getattr(topic.settings, kept) for kept in FIXED):
                raise UsageError(
                    f"topic {name!r}: {' and '.join(FIXED)} cannot be changed; delete and create it"
                )
            return replace(
                topic,
                settings=settings,
                tables=topic.tables if tables is None else tables,
                phase=topic.phase if same_keys(topic.settings, settings) else "changed",
            )

        return self._waited_out(self.change(name, change))

    def pause(self, name: str, *, paused: bool = True) -> Topic:
        """Have the owners of a topic deliver nothing of it from their next heartbeat on, or deliver again. 2 requests.

        Entries stay, new ones are accepted, and none uses up attempts or time meanwhile. `UsageError` for a topic that
        is pulled.
        """

        def change(topic: Topic) -> Topic:
            if not topic.settings.endpoint:
                raise UsageError(f"topic {name!r} has no endpoint: nothing is delivered that could be paused")
            return replace(topic, paused=paused)

        return self.change(name, change)

    def change(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """The topic, changed by compare-and-set. An equal topic is not written."""
        return self._change(name, lambda topic: change(_existing(name, topic)))

    def _change(self, name: str, change: Callable[[Topic | None], Topic]) -> Topic:
        def decide(record: Record | None) -> tuple[bytes | None, None]:
            before = decode_topic(record) if record is not None else None
            after = change(before)
            return encode_topic(after) if after != before else None, None

        try:
            _, record = self._updates.change(TOPICS, name, decide)
        finally:
            self.changes += 1  # whatever became of it: a read that began before this is not relied on
        assert record is not None, "a topic is changed, never removed, by this"
        return decode_topic(record)

    def delete(self, name: str, *, user: TopicUser | None = None, served: bool = True) -> None:
        """Delete the topic and all that is pending or dead in it; `NotFoundError` if there is none.

        For a `user`: `UsageError` if it serves others; if it serves others too, it stays, and serves these alone.
        Unless `served`: `UsageError` if it serves any table.
        Once this returns, or another topic of the name exists, no earlier reservation can be committed: its commit
        returns `Expired`. An interrupted deletion is finished by calling this again, or by creating the topic.
        It takes `outdated_seconds`; 2 requests, 5 scans, 1 removal for each record.
        """

        def mark(topic: Topic | None) -> Topic:
            if topic is None:
                raise NotFoundError(f"no topic {name!r}")
            if not served and not topic.deleting:
                check_unserved(topic)
            if user is not None and not topic.deleting and (left := user.released(topic)).tables:
                return left
            return replace(topic, deleting=True)

        if (topic := self._change(name, mark)).deleting:
            self._finish_delete(topic)

    def _finish_delete(self, topic: Topic) -> None:
        """Remove everything of this epoch, then the topic. Safe for any number of callers and calls.

        First, writers that know the topic are waited for: what they are granted until then is found.
        """
        self._clock.sleep(self.outdated_seconds)
        for partition in (queue_partition(topic.name), dead_partition(topic.name)):
            for record in self._records.scan(partition):
                # Another deletion may have finished, and this record may be a new topic's.
                self._drop(partition, (record,), lambda found: epoch_of(found) == topic.epoch)
        for partition in (depth_partition(topic.name), counts_partition(topic.name)):
            counters = self._records.scan(partition, prefix=f"{topic.epoch}.")
            self._drop(partition, counters, lambda _: True)
        owned = self._records.read(OWNERS, topic.name)
        self._drop(OWNERS, (owned,) if owned else (), lambda found: epoch_of(found) == topic.epoch)
        self._updates.remove(TOPICS, topic.name, expected=topic.version)

    def _drop(self, partition: str, records: Iterable[Record], mine: Callable[[Record], bool]) -> None:
        for record in records:
            found: Record | None = record
            while found is not None and mine(found):
                outcome = self._updates.remove(partition, found.key, expected=found.version)
                found = None if isinstance(outcome, Stored) else outcome.record

    def _read(self, name: str) -> Topic | None:
        record = self._records.read(TOPICS, name)
        return decode_topic(record) if record is not None else None


def check_unserved(topic: Topic) -> None:
    """`UsageError` if the topic serves tables."""
    if topic.tables:
        raise UsageError(
            f"topic {topic.name!r} serves table {', '.join(topic.tables)}, and its entries would be gone for it: "
            f"remove the source instead, or stop its runs and give --served: `s3notify topics delete {topic.name} "
            "--served`"
        )


def _existing(name: str, topic: Topic | None) -> Topic:
    if topic is None or topic.deleting:
        raise NotFoundError(f"no topic {name!r}: create it first")
    return topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSeen:
    """All topics, by name, as of a read that began at `since`."""

    since: float
    by_name: Mapping[str, Topic]
    changes: int
    """`Topics.changes` before the read."""


class KnownTopics:
    """Topics as this process read them last, and relies on them. Thread-safe."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._seen: TopicsSeen | None = None
        self._records: dict[str, Record] = {}

    def as_of(self, moment: float) -> TopicsSeen:
        """All topics, as whoever acted until `moment` may rely on them: 1 scan, or none.

        Until then no topic that is missing here was waited out, and no other state of one that is here.
        """
        seen = self._seen
        if seen is None or seen.changes != self._topics.changes:
            return self.see()
        return seen if moment - seen.since < self._topics.known_seconds else self.see()

    def see(self) -> TopicsSeen:
        """All topics as they are now. 1 scan; those that have not changed are not read again."""
        since, changes = self._clock.monotonic(), self._topics.changes
        records = dict(self._records)
        topics = self._topics.all(known=records)
        seen = TopicsSeen(since=since, by_name={topic.name: topic for topic in topics}, changes=changes)
        if self._seen is None or self._seen.since <= since:
            self._seen, self._records = seen, records
        return seen

    def get(self, name: str) -> Topic:
        """The topic, as it may be relied on now. 1 scan, or none; `NotFoundError` if there is none."""
        seen = self.as_of(self._clock.monotonic())
        return _existing(name, seen.by_name.get(name) or self.see().by_name.get(name))

    def met(self) -> Iterable[Topic]:
        """All topics, as they were read last. No request."""
        return seen.by_name.values() if (seen := self._seen) else ()
