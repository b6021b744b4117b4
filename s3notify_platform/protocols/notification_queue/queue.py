"""The side of writers and pulling consumers: reserve before the object is written, commit after it, pull entries.

See the package's docstring for the protocol.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.ports import RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Topic,
    counts_partition,
    dead_partition,
    decode_entry,
    shard_of,
    shard_slots,
    takes,
)
from s3notify_platform.protocols.notification_queue.reserving import QuotaExceeded, Reservation, Reservations
from s3notify_platform.protocols.notification_queue.shards import Shards
from s3notify_platform.protocols.notification_queue.topics import KnownTopics, Topics
from s3notify_platform.protocols.updates import Stored, Updates

PARALLELISM = 32
"""Requests in flight of one batch."""

STALE_SECONDS = 120.0
"""A reservation older than this, by the reconciler's clock, is resolved without its writer (Ceph: 120 s)."""

WHOLE_SHARD = 0.25
"""If at least this part of a shard's slots is wanted, the whole shard is scanned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCommitted:
    """The notification will be delivered. Also if a reconciler had committed it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The reservation was resolved without its writer, or deleted with its topic: announce the change again.

    It may have been aborted, or committed and consumed since; the two look the same. So `push` the event and signal
    again: to announce a change twice does no harm, to miss it does.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The store gave no answer. Commit again to find out; else the reconciler resolves it by HEAD."""

    cause: str


EntryOutcome = EntryCommitted | Expired | Undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """Facts for people, each true at some moment of one scan. The three totals may miss a crashed worker's."""

    topic: str
    depth: int
    """Records in the queue: reserved, committed and in flight."""
    counted: int
    """What the bound counts with: `depth`, and space lost to crashes that is not yet given back."""
    capacity: int
    reserved: int
    in_flight: int
    oldest_age_seconds: float | None
    """By the wall clocks of writer and reader: for people."""
    delivered: int
    failed: int
    dead: int


class NotificationQueue:
    """The topics of one record store, as writers, inlets and pulling consumers see them. Thread-safe.

    `parallelism` bounds the requests in flight of one batch. `stale_seconds` is the same for all parties.
    The queue's other sides build on its `shards`, `topics`, `writes` and `records`.
    """

    def __init__(
        self,
        records: RecordStore,
        *,
        clock: Clock = SYSTEM_CLOCK,
        parallelism: int = PARALLELISM,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        if parallelism < 1:
            raise UsageError(f"parallelism={parallelism}: at least one request is in flight")
        self.records = records
        self.clock = clock
        self.stale_seconds = stale_seconds
        self.updates = Updates(records, clock)
        self.topics = Topics(records, clock)
        self.shards = Shards(records, clock, parallelism=parallelism)
        self._known = KnownTopics(self.topics, clock)
        self._reservations = Reservations(
            records, clock, shards=self.shards, topics=self._known, stale_seconds=stale_seconds
        )

    # Which topics there are.

    @staticmethod
    def takers(topics: Iterable[Topic], bucket: str, key: str) -> tuple[Topic, ...]:
        """Those that take changes of this key. Pure."""
        return tuple(topic for topic in topics if takes(topic.settings, bucket, key))

    def topics_of(self, bucket: str, key: str) -> tuple[Topic, ...]:
        """The topics that take changes of this key, by name, as they were within `TOPICS_SECONDS`: 1 scan, or none.

        A newer topic may be missing. So a writer that has changed an object reads the topics again (`see_topics`)
        before it announces the change. A topic that is created even later needs no entry: the first listing of its
        consumer finds the change.
        """
        return self.takers(self._known.recent(), bucket, key)

    def see_topics(self) -> tuple[Topic, ...]:
        """All topics as they are now, for `topics_of` too. 1 scan; those that have not changed are not read again."""
        return self._known.see()

    def forget_topics(self) -> None:
        """A topic is gone: the next `topics_of` reads them again."""
        self._known.forget()

    # Writers: before the object, after the object.

    def reserve(self, topic: str, event: Event) -> Reservation | QuotaExceeded:
        """See `reserve_many`, for one event: 3 requests (bucket alone: 4)."""
        return self.reserve_many(topic, [event])[0]

    def reserve_many(self, topic: str, events: Iterable[Event]) -> tuple[Reservation | QuotaExceeded, ...]:
        """Room for these notifications, durable before their objects are written; an outcome for each.

        Strict: reservations and what became of them never number more than the topic's capacity. Where a
        shard has space for some, its first ones get it. Requests: 1 `add` for each shard touched (bucket
        alone: 2), 1 for each event, 1 read of the topic. `UsageError` for an event above `max_event_bytes`,
        `NotFoundError` without such a topic, `UnavailableError`: nothing reserved, do not write the objects.
        """
        return self._reservations.grant(topic, tuple(events))

    def push(self, topic: str, event: Event) -> EntryCommitted | QuotaExceeded:
        """See `push_many`, for one event."""
        return self.push_many(topic, [event])[0]

    def push_many(self, topic: str, events: Iterable[Event]) -> tuple[EntryCommitted | QuotaExceeded, ...]:
        """Notifications of changes that have happened, durable when this returns: for inlets.

        Reserved and committed at once, for the errors and requests of both. After an error some may be in
        the queue: push all again, duplicates are harmless.
        """
        return tuple(self.shards.in_parallel(self._commit_or_raise, self.reserve_many(topic, events)))

    def fits(self, topic: str, event: Event) -> bool:
        """Whether the topic takes an event of this size. Once the topic is known, no request."""
        return self._reservations.fits(topic, event)

    def fresh_since(self, moment: float) -> bool:
        """Whether objects may still be written: no reconciler can have resolved a reservation made since that moment.

        `moment`: by the queue's clock; `Reservation.since` for one. Call it right before the write. If False:
        `abort_many`, and reserve again.
        """
        return self._reservations.fresh_since(moment)

    def commit(self, reservation: Reservation) -> EntryOutcome:
        """The object is written (`reservation.wrote(…)`): its notification is to be delivered. 1 request.

        May be repeated. Does not raise the store's errors, since the object is written in any case.
        """
        try:
            outcome = self.shards.replace(reservation.entry, replace(reservation.entry, state="committed"))
        except (UnavailableError, UnknownOutcomeError) as error:
            return Undecided(cause=str(error))
        there = isinstance(outcome, Stored) or outcome.record is not None
        return EntryCommitted() if there else Expired()

    def commit_many(self, reservations: Iterable[Reservation]) -> tuple[EntryOutcome, ...]:
        """See `commit`; in parallel."""
        return tuple(self.shards.in_parallel(self.commit, tuple(reservations)))

    def abort_many(self, reservations: Iterable[Reservation]) -> None:
        """The objects certainly were not written, and will not be: free their space. 2 requests for each.

        Does not raise the store's errors: a reservation that stays is resolved by HEAD.
        """
        removed, _ = self.shards.remove_each(tuple(reservation.entry for reservation in reservations))
        self.shards.give_back(removed)

    # A pulling consumer.

    def entries(self, topic: str, slots: Iterable[int]) -> tuple[Entry, ...]:
        """The committed entries of these slots, in order of slot; not claimed, so another caller sees them too.

        Requests: 1 scan for each shard of which a quarter or more is asked for, 1 for each other slot, in parallel.
        """
        found = self._known.current(topic)
        wanted = set(slots)
        if wrong := [slot for slot in wanted if not 0 <= slot < found.settings.slots]:
            raise UsageError(f"slots {sorted(wrong)[:5]} of topic {topic!r}: it has {found.settings.slots}")
        scans: list[tuple[int, str]] = []
        for shard in range(found.settings.shards):
            whole = shard_slots(shard, found.settings)
            asked = [slot for slot in whole if slot in wanted]
            if len(asked) >= len(whole) * WHOLE_SHARD:
                scans.append((shard, ""))
            else:
                scans.extend((shard, f"{slot:03d}.") for slot in asked)

        def committed(scan: tuple[int, str]) -> list[Entry]:
            entries = self.shards.scan(found, scan[0], prefix=scan[1])
            return [entry for entry in entries if entry.state == "committed" and entry.slot in wanted]

        return tuple(entry for part in self.shards.in_parallel(committed, scans) for entry in part)

    def remove(self, entries: Iterable[Entry]) -> int:
        """Remove entries that were consumed, each in the version that was listed; how many this call removed.

        May be repeated. An entry that is gone, or was claimed by an owner since, is skipped. Requests: 1 for each entry
        (bucket alone: 2), 2 counters for each shard touched. `UnavailableError` or `UnknownOutcomeError`: some
        are left; remove again.
        """
        removed, left = self.shards.remove_each(tuple(entries))
        self.shards.give_back(removed)
        self.shards.count(removed, "delivered")
        if left:
            raise next(iter(left.values()))
        return len(removed)

    # Dead letters.

    def dead(self, topic: str) -> tuple[Entry, ...]:
        """The dead letters, with reason and last error. One scan."""
        found = self._known.current(topic)
        letters = []
        for record in self.records.scan(dead_partition(topic)):
            shard = shard_of(int(record.key.partition(".")[0]), found.settings)
            letters.append(decode_entry(topic, shard, record))
        return tuple(letter for letter in letters if letter.epoch == found.epoch)

    def redrive(self, topic: str, keys: Iterable[str] | None = None) -> int | QuotaExceeded:
        """Put dead letters (all, or those of these object keys) back, with attempts from 0; how many.

        `QuotaExceeded`: some may be back; continue later. If it is interrupted no letter is lost, and one may be back
        twice.
        5 requests a letter.
        """
        wanted = None if keys is None else set(keys)
        moved = 0
        for letter in self.dead(topic):
            if wanted is not None and letter.event.key not in wanted:
                continue
            if isinstance(again := self.push(topic, letter.event), QuotaExceeded):
                return again
            self.updates.remove(dead_partition(topic), letter.key, expected=letter.version)
            moved += 1
        return moved

    # Facts.

    def stats(self, topic: str) -> TopicStats:
        """Facts of a topic. One scan of its entries and dead letters, 2 requests a shard and more."""
        found = self._known.current(topic)
        shards = range(found.settings.shards)
        entries = [entry for shard in shards for entry in self.shards.scan(found, shard)]
        oldest = min((entry.event.time_ms for entry in entries if entry.event.time_ms), default=None)
        totals = {"delivered": 0, "failed": 0}
        for record in self.records.scan(counts_partition(topic), prefix=f"{found.epoch}."):
            kind = record.key.rpartition(".")[2]
            totals[kind] = totals.get(kind, 0) + int(record.value)
        return TopicStats(
            topic=topic,
            depth=len(entries),
            counted=sum(self.shards.counted(found, shard) + found.quotas[shard].base for shard in shards),
            capacity=found.settings.capacity,
            reserved=sum(entry.state == "reserved" for entry in entries),
            in_flight=sum(entry.claim is not None for entry in entries),
            oldest_age_seconds=None if oldest is None else max(0, self.clock.wall_ms() - oldest) / 1000,
            delivered=totals["delivered"],
            failed=totals["failed"],
            dead=len(self.dead(topic)),
        )

    def _commit_or_raise(self, reservation: Reservation | QuotaExceeded) -> EntryCommitted | QuotaExceeded:
        if isinstance(reservation, QuotaExceeded):
            return reservation
        match self.commit(reservation):
            case EntryCommitted() as committed:
                return committed
            case Undecided(cause=cause):
                raise UnknownOutcomeError(f"{reservation.entry.event.key!r}: {cause}; push it again")
            case Expired():
                raise UnavailableError(
                    f"{reservation.entry.event.key!r} was not pushed in time; push it again"
                )
            case _ as unreachable:
                assert_never(unreachable)
