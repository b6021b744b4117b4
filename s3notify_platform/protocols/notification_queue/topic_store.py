"""Topics: create, change, list, and delete with all pending entries, even if a deletion is interrupted.

After a read of the topics, a writer relies on the result for `TOPICS_KNOWN_SECONDS` (`KnownTopics`). The writer counts
this time from the start of the read, by its own clock. So a client that changes something on which writers rely must
wait until that time is over. After the client has seen the changed record, the client waits `CLOCK_SKEW` times as long,
by its own clock. Then the client acts on the change. Any client may repeat the wait, so nothing is stuck if one client
is killed.

    - Creation. A writer that does not know the topic does not announce its changes to the topic. `create` and `serve`
      wait until all writers know the topic, so each later write is announced. A consumer lists the bucket afterwards,
      so it finds each earlier write. No wait is needed if no other topic may receive the same keys: a writer without
      any reservation reads the topics again after its write. `Topic.phase` says whether the wait has ended.
    - Changed bucket, prefix, rules or persistence. Writers may still rely on the topic's former keys, or on the fact
      that the topic had no queue. `update` waits until all writers know the new settings. Until then, the creation of
      another topic also waits, because the creator cannot tell which keys writers have reserved.
    - Deletion. Until the wait has ended, reservations in the topic are granted, nothing of the topic is removed, and
      its name is not used again. So the deletion finds all entries of the topic. A later commit of such an entry
      returns `Expired`.
    - Renewal. A renewal is a deletion whose last write does not remove the topic's record, but replaces it by the new
      topic's record. So there is always a record with the settings. The next renewal, or the next `create` of the
      topic, finishes an interrupted renewal. Until then, the record already has the new settings, but writers may still
      rely on the former keys. So the creation of another topic waits, as for changed rules.
    - Recount of a shard. Until the wait has ended, a reservation may use space that was counted by the former counter
      of the shard. Afterwards, the base (the number of older entries) shrinks, and the former counters are removed
      (`reconciler`).
    - Lower capacity. Writers reserve space up to the former capacity for a while. This space is counted like any other
      space, and nothing relies on the lower capacity.
    - Higher capacity, or lower base. Writers know only a part of the free space for a while. So the topics are read
      again before a reservation is refused.
    - Lower `stale_seconds`. The value may be lowered only while nobody writes, as the setting's description says.
    - `max_event_bytes`. This setting protects only consumers: a segment can store events of any size that was ever
      allowed.
    - Endpoint of a topic without a queue. Writers may send to the former endpoint for a while.

No other setting concerns writers.
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
    """The topics of one record store. Thread-safe. `known_seconds`: the time for which writers rely on a read."""

    def __init__(self, records: RecordStore, clock: Clock, *, known_seconds: float) -> None:
        self._records = records
        self._updates = Updates(records, clock)
        self._clock = clock
        self.known_seconds = known_seconds
        self.changes = 0
        """Number of changes to topics by this process."""

    @property
    def outdated_seconds(self) -> float:
        """The seconds to wait, on any process's own clock, until no writer relies on topics that it read before the
        wait.
        """
        return self.known_seconds * CLOCK_SKEW

    def get(self, name: str) -> Topic:
        """The topic; `NotFoundError` if it does not exist or is being deleted. Cost: 1 request."""
        return _existing(name, self.find(name))

    def find(self, name: str) -> Topic | None:
        """The topic; None if it does not exist or is being deleted. Cost: 1 request."""
        topic = self._read(name)
        return None if topic is None or topic.deleting else topic

    def all(self, *, known: dict[str, Record] | None = None) -> tuple[Topic, ...]:
        """All topics that are not being deleted, by name. One scan.

        `known`: the records as the caller last saw them; this call updates them. Unchanged records are not read again.
        """
        records = list(self._records.scan(TOPICS, known=known))
        if known is not None:
            known.clear()
            known.update((record.key, record) for record in records)
        topics = map(decode_topic, records)
        return tuple(topic for topic in topics if not topic.deleting)

    def create(self, name: str, settings: TopicSettings, *, tables: tuple[str, ...] = ()) -> Topic:
        """Creates the topic, or returns an existing topic with equal settings. `ConflictError` if its settings differ.

        After the call has returned, each later change is announced to the topic. `tables`: the tables that a new topic
        serves; if empty, the topic serves the first table that uses it. An interrupted deletion or renewal is finished
        first. Cost: 2 requests and 1 scan. The call takes `outdated_seconds` if another topic may receive the same
        keys.
        """
        check_topic(name, settings)
        fresh = Topic(
            name=name,
            epoch=self._new_epoch(),
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
        raise UnavailableError(f"topic {name!r} is being deleted and created by other clients; try again")

    def serve(self, topic: Topic, user: TopicUser) -> Topic:
        """Returns the topic with this user's table. A topic that serves no table yet serves this table from now on.

        Consumers call this method before their first listing. Each write after this call is announced to the topic.
        `UsageError`: the topic has other slots, or serves other tables. Cost: no request if the topic serves the table
        already; else 2 requests. If the process that created the topic was killed, the cost is 2 requests more, and the
        call may take `outdated_seconds`.
        """
        user.claimed(topic)
        topic = self._waited_out(topic)
        return topic if user.claimed(topic) == topic else self.change(topic.name, user.claimed)

    def _waited_out(self, topic: Topic) -> Topic:
        """Waits until all writers know the topic, which this process has just seen. Returns the topic."""
        if topic.phase == "known":
            return topic
        if topic.phase == "changed" or self._overlaps(topic):
            self._clock.sleep(self.outdated_seconds)
        known = replace(topic, phase="known")
        outcome = self._updates.replace(TOPICS, topic.name, encode_topic(known), expected=topic.version)
        # If the topic was changed meanwhile, its next user waits again.
        return replace(known, version=outcome.version) if isinstance(outcome, Stored) else topic

    def _overlaps(self, topic: Topic) -> bool:
        """True if a writer that does not know the topic may have reserved a change of the topic's keys in another
        topic.

        Topics that are being deleted count: writers may still know them.
        """
        others = (decode_topic(record) for record in self._records.scan(TOPICS) if record.key != topic.name)
        return any(
            other.phase == "changed" or may_overlap(topic.settings, other.settings) for other in others
        )

    def update(self, name: str, settings: TopicSettings, *, tables: tuple[str, ...] | None = None) -> Topic:
        """Changes the settings and, if given, the tables of a topic. Shards, slots and signals cannot be changed.

        If the capacity falls below the number of entries, reservations are refused until enough entries have left. If
        the topic now receives more keys, each change of these keys after the call is announced to the topic. Consumers
        list earlier objects only for a new topic. Cost: 2 requests. If the bucket, the prefix, the rules or the
        persistence change, the call costs 1 request more, and takes `outdated_seconds`.
        """
        check_topic(name, settings)
        return self.revise(name, lambda _: settings, tables=tables)

    def revise(
        self,
        name: str,
        revised: Callable[[Topic], TopicSettings],
        *,
        tables: tuple[str, ...] | None = None,
    ) -> Topic:
        """Like `update`, but computes new settings from the current topic, so concurrent changes are kept."""

        def change(topic: Topic) -> Topic:
            settings = revised(topic)
            check_change(topic, settings)
            return replace(
                topic,
                settings=settings,
                tables=topic.tables if tables is None else tables,
                phase=topic.phase if same_keys(topic.settings, settings) else "changed",
            )

        return self._waited_out(self.change(name, change))

    def pause(self, name: str, *, paused: bool = True) -> Topic:
        """Pauses or resumes the deliveries of a topic. The topic's owners notice this at their next heartbeat. Cost: 2
        requests.

        While the topic is paused, entries stay, new entries are accepted, and neither attempts nor time are used up.
        `UsageError` if the topic is pulled, or not persistent.
        """

        def change(topic: Topic) -> Topic:
            if not topic.settings.endpoint:
                raise UsageError(
                    f"topic {name!r} has no endpoint: it is pulled, so there is no delivery to pause"
                )
            if paused and not topic.settings.persistent:
                raise UsageError(
                    f"topic {name!r} is not persistent: no queue would keep its changes meanwhile"
                )
            return replace(topic, paused=paused)

        return self.change(name, change)

    def change(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """Changes a topic by compare-and-set. An unchanged topic is not written."""
        return self._change(name, lambda topic: change(_existing(name, topic)))

    def _change(self, name: str, change: Callable[[Topic | None], Topic]) -> Topic:
        def decide(record: Record | None) -> tuple[bytes | None, None]:
            before = decode_topic(record) if record is not None else None
            after = change(before)
            return encode_topic(after) if after != before else None, None

        try:
            _, record = self._updates.change(TOPICS, name, decide)
        finally:
            self.changes += 1  # rises after an error, too: nobody may rely on a read from before the change
        assert record is not None, "a change of a topic never removes the topic"
        return decode_topic(record)

    def delete(self, name: str, *, user: TopicUser | None = None, served: bool = True) -> None:
        """Deletes the topic with all its pending entries and dead letters; `NotFoundError` if it does not exist.

        `user`: the topic is deleted for this user. If the topic also serves other tables, the topic stays, and serves
        only the other tables. A topic that serves only other tables raises `UsageError`. `served=False`: a topic that
        serves any table raises `UsageError`. After the call has returned, or as soon as another topic of the name
        exists, the commit of an earlier reservation returns `Expired`. To finish an interrupted deletion, call `delete`
        again or create the topic. The call takes `outdated_seconds`. Cost: 2 requests, 5 scans, and 1 removal for each
        record.
        """

        def mark(topic: Topic | None) -> Topic:
            if topic is None:
                raise NotFoundError(f"no topic {name!r}")
            stays = not topic.deleting or topic.renews
            if not served and stays:
                check_unserved(topic)
            if user is not None and stays and (left := user.released(topic)).tables:
                return left
            return replace(topic, deleting=True, renews=False)

        if (topic := self._change(name, mark)).deleting:
            self._finish_delete(topic)

    def renew(self, name: str, revised: Callable[[TopicSettings], TopicSettings]) -> Topic:
        """Deletes the topic as `delete` does, and creates it again with revised settings. Keeps everything else, like
        the topic's tables. Unlike `revise`, this call may change any setting.

        The topic is never lost: to finish an interrupted renewal, call `renew` again, or create the topic. `revised`
        may get settings that an interrupted call has already revised. `NotFoundError`: the topic does not exist, or is
        being deleted. `UnavailableError`: other clients have changed the topic meanwhile. Requests and time: as for
        `delete` and `create`.
        """

        def mark(topic: Topic | None) -> Topic:
            if topic is None or (topic.deleting and not topic.renews):
                raise NotFoundError(f"no topic {name!r}")
            settings = revised(topic.settings)
            check_topic(name, settings)
            return replace(topic, settings=settings, deleting=True, renews=True, phase="changed")

        self._finish_delete(self._change(name, mark))
        if (found := self.find(name)) is None:
            raise UnavailableError(f"topic {name!r} was deleted or renewed by another client; try again")
        return self._waited_out(found)

    def _finish_delete(self, topic: Topic) -> None:
        """Removes all records of this epoch. Then removes the topic's own record, or replaces it by the record of a new
        topic (`Topic.renews`). Any number of callers may call this method, and repeat it.

        First waits until no writer knows the topic. So the call finds every entry that a writer was granted.
        """
        self._clock.sleep(self.outdated_seconds)
        for partition in (queue_partition(topic.name), dead_partition(topic.name)):
            for record in self._records.scan(partition):
                # Another deletion may have finished, and this record may belong to a new topic.
                self._drop(partition, (record,), lambda found: epoch_of(found) == topic.epoch)
        for partition in (depth_partition(topic.name), counts_partition(topic.name)):
            counters = self._records.scan(partition, prefix=f"{topic.epoch}.")
            self._drop(partition, counters, lambda _: True)
        owned = self._records.read(OWNERS, topic.name)
        self._drop(OWNERS, (owned,) if owned else (), lambda found: epoch_of(found) == topic.epoch)
        if not topic.renews:
            self._updates.remove(TOPICS, topic.name, expected=topic.version)
            return
        quotas = (Quota(),) * topic.settings.shards
        fresh = replace(
            topic, epoch=self._new_epoch(), quotas=quotas, deleting=False, renews=False, phase="new"
        )
        try:
            self._updates.replace(TOPICS, topic.name, encode_topic(fresh), expected=topic.version)
        finally:
            self.changes += 1

    def _new_epoch(self) -> str:
        return unique_name(self._clock)[:16]

    def _drop(self, partition: str, records: Iterable[Record], mine: Callable[[Record], bool]) -> None:
        for record in records:
            found: Record | None = record
            while found is not None and mine(found):
                outcome = self._updates.remove(partition, found.key, expected=found.version)
                found = None if isinstance(outcome, Stored) else outcome.record

    def _read(self, name: str) -> Topic | None:
        record = self._records.read(TOPICS, name)
        return decode_topic(record) if record is not None else None


def check_change(topic: Topic, settings: TopicSettings) -> None:
    """Raises `UsageError` if the topic may not get these settings. Pure."""
    name = topic.name
    check_topic(name, settings)
    if topic.tables and settings.endpoint:
        raise UsageError(
            f"topic {name!r} serves table {', '.join(topic.tables)}, which would miss changes if they were "
            "sent to an endpoint: create another topic for the endpoint"
        )
    if topic.paused and not settings.persistent:
        raise UsageError(f"topic {name!r} is paused, and its queue keeps the changes: resume it first")
    if any(getattr(settings, kept) != getattr(topic.settings, kept) for kept in FIXED):
        raise UsageError(
            f"topic {name!r}: {' and '.join(FIXED)} cannot be changed; delete the topic and create it again"
        )


def check_unserved(topic: Topic) -> None:
    """Raises `UsageError` if the topic serves tables."""
    if topic.tables:
        raise UsageError(
            f"topic {topic.name!r} serves table {', '.join(topic.tables)}, which would lose its pending entries: "
            f"remove the source instead, or stop its runs and give --served: `s3notify topics delete {topic.name} "
            "--served`"
        )


def _existing(name: str, topic: Topic | None) -> Topic:
    if topic is None or topic.deleting:
        raise NotFoundError(f"no topic {name!r}: create it first")
    return topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSeen:
    """All topics, by name, from a read that began at `since`."""

    since: float
    by_name: Mapping[str, Topic]
    changes: int
    """The value of `Topics.changes` before the read."""


class KnownTopics:
    """The topics that this process read last, and on which it relies. Thread-safe."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._seen: TopicsSeen | None = None
        self._records: dict[str, Record] = {}

    def as_of(self, moment: float) -> TopicsSeen:
        """All topics. The caller may rely on this result until `moment`. Cost: 1 scan, or no request.

        Another client that creates or changes a topic after the read acts on its change only after `moment`.
        """
        seen = self._seen
        if seen is None or seen.changes != self._topics.changes:
            return self.see()
        return seen if moment - seen.since < self._topics.known_seconds else self.see()

    def see(self) -> TopicsSeen:
        """All topics as they are now. Cost: 1 scan; unchanged topics are not read again."""
        since, changes = self._clock.monotonic(), self._topics.changes
        records = dict(self._records)
        topics = self._topics.all(known=records)
        seen = TopicsSeen(since=since, by_name={topic.name: topic for topic in topics}, changes=changes)
        if self._seen is None or self._seen.since <= since:
            self._seen, self._records = seen, records
        return seen

    def get(self, name: str) -> Topic:
        """A topic on which the caller may rely now; `NotFoundError` if there is none. Cost: 1 scan or no request."""
        seen = self.as_of(self._clock.monotonic())
        return _existing(name, seen.by_name.get(name) or self.see().by_name.get(name))

    def met(self) -> Iterable[Topic]:
        """All topics as they were last read. Cost: no request."""
        return seen.by_name.values() if (seen := self._seen) else ()
