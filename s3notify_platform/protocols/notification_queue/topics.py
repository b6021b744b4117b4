"""Topics: create, change, list, and delete with all pending entries, even if a deletion is interrupted."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from s3notify_platform.clock import Clock, backoff_seconds, unique_name
from s3notify_platform.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from s3notify_platform.ports import Record, RecordStore
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
)
from s3notify_platform.protocols.updates import ATTEMPTS, Stored, Updates

TOPICS_SECONDS = 5.0
"""How old a writer's list of topics may be when it reserves. It reads the list again before it commits."""


class Topics:
    """The topics of one record store. Thread-safe; holds no state."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._updates = Updates(records, clock)
        self._clock = clock

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

        `tables`: whom a new one serves; none: the first one that uses it. An interrupted deletion is finished first.
        1 request.
        """
        check_topic(name, settings)
        fresh = Topic(
            name=name,
            epoch=unique_name(self._clock)[:16],
            settings=settings,
            quotas=(Quota(),) * settings.shards,
            tables=tables,
        )
        for attempt in range(ATTEMPTS):
            outcome = self._updates.create(TOPICS, name, encode_topic(fresh))
            if isinstance(outcome, Stored):
                return replace(fresh, version=outcome.version)
            found = decode_topic(outcome.record) if outcome.record is not None else None
            if found is not None and not found.deleting:
                if why := differing(name, found.settings, settings):
                    raise ConflictError(why)
                return found
            if found is not None:
                self._finish_delete(found)
            self._clock.sleep(backoff_seconds(attempt, self._clock))
        raise UnavailableError(f"topic {name!r} is being deleted and created by others; try again")

    def serve(self, topic: Topic, user: TopicUser) -> Topic:
        """The topic, which serves this user's table from now on if it serves none yet.

        `UsageError` if it has other slots, or serves other tables. No request if it serves the table; else 2.
        """
        return topic if user.claimed(topic) == topic else self.change(topic.name, user.claimed)

    def update(self, name: str, settings: TopicSettings, *, tables: tuple[str, ...] | None = None) -> Topic:
        """The topic with new settings, and, if given, serving these tables; shards and slots stay. 2 requests.

        With a capacity below the number of entries, reservations are refused until enough have gone. A topic that now
        takes more keys gets their changes from now on; consumers list what was there before for a new topic only.
        """
        check_topic(name, settings)

        def change(topic: Topic) -> Topic:
            if any(getattr(settings, kept) != getattr(topic.settings, kept) for kept in FIXED):
                raise UsageError(
                    f"topic {name!r}: {' and '.join(FIXED)} cannot be changed; delete and create it"
                )
            return replace(topic, settings=settings, tables=topic.tables if tables is None else tables)

        return self.change(name, change)

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

        _, record = self._updates.change(TOPICS, name, decide)
        assert record is not None, "a topic is changed, never removed, by this"
        return decode_topic(record)

    def delete(self, name: str, *, user: TopicUser | None = None, served: bool = True) -> None:
        """Delete the topic and all that is pending or dead in it; `NotFoundError` if there is none.

        For a `user`: `UsageError` if it serves others; if it serves others too, it stays, and serves these alone.
        Unless `served`: `UsageError` if it serves any table.
        Once this returns, or another topic of the name exists, no earlier reservation can be committed: its commit
        returns `Expired`. An interrupted deletion is finished by calling this again, or by creating the topic.
        2 requests, 1 scan for each shard, 1 removal for each record.
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
        """Remove everything of this epoch, then the topic. Safe for any number of callers and calls."""
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


class KnownTopics:
    """Topics as this process read them last. Thread-safe."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._known: dict[str, Topic] = {}
        self._seen: tuple[float, tuple[Topic, ...]] | None = None
        self._records: dict[str, Record] = {}

    def recent(self) -> tuple[Topic, ...]:
        """All topics as they were within `TOPICS_SECONDS`: 1 scan, or none."""
        seen = self._seen  # another thread may set it to None
        if seen is None or self._clock.monotonic() - seen[0] >= TOPICS_SECONDS:
            return self.see()
        return seen[1]

    def see(self) -> tuple[Topic, ...]:
        """All topics as they are now. 1 scan; those that have not changed are not read again."""
        now = self._clock.monotonic()
        records = dict(self._records)
        topics = self._topics.all(known=records)
        if self._seen is None or self._seen[0] <= now:
            self._seen, self._records = (now, topics), records
            self._known |= {topic.name: topic for topic in topics}
        return topics

    def forget(self) -> None:
        """A topic is gone: the next `recent` reads them again."""
        self._seen = None

    def get(self, name: str) -> Topic:
        """The topic as it was read last. 1 request if it never was; `NotFoundError` as `current`."""
        return self._known.get(name) or self.current(name)

    def met(self) -> tuple[Topic, ...]:
        """All topics that were ever read, as they were read last. No request."""
        return tuple(self._known.values())

    def current(self, name: str) -> Topic:
        """The topic as it is now. 1 request; `NotFoundError` if there is none, or it is being deleted."""
        try:
            topic = self._known[name] = self._topics.get(name)
        except NotFoundError:
            self._known.pop(name, None)
            raise
        return topic
