"""Reserve before the object is written, commit after it, pull what is committed: the writers' and readers' side.

See the package's docstring for the protocol.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar, assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import (
    NotFoundError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.ports import Conflict, ETag, Record, RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Topic,
    count_key,
    counts_partition,
    dead_partition,
    decode_entry,
    depth_key,
    depth_partition,
    encode_entry,
    queue_partition,
    shard_capacity,
    shard_of,
    shard_slots,
    takes,
)
from s3notify_platform.protocols.notification_queue.settled import (
    ATTEMPTS,
    Changed,
    SettledWrites,
    Stored,
)
from s3notify_platform.protocols.notification_queue.topics import Topics
from s3notify_platform.slots import slot_of

PARALLELISM = 32
"""Requests in flight of one batch."""

STALE_SECONDS = 120.0
"""A reservation older than this, by the resolver's clock, is resolved without its writer (Ceph: 120 s)."""

CLOCK_SKEW = 3.0
"""How much faster one machine's clock may run than another's."""

TOPICS_SECONDS = 5.0
"""How old a writer's knowledge of the topics may be when it reserves. Before it commits it looks again."""

WHOLE_SHARD = 0.25
"""Part of a shard's slots from which on it is scanned as a whole."""

RETRY_AFTER_SECONDS = 1.0
"""What a refused writer is told to wait for."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Promised space for one notification. The entry is durable before the object is written."""

    entry: Entry
    since: float
    """Start of the reservation on the monotonic clock of the process that made it."""

    def wrote(self, *, etag: ETag | None = None, size: int | None = None) -> "Reservation":
        """The reservation, to be committed with what the write came to."""
        event = self.entry.event
        known = replace(
            event,
            etag=etag if etag is not None else event.etag,
            size=size if size is not None else event.size,
        )
        return replace(self, entry=replace(self.entry, event=known))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """The shard is full; nothing was written. Do not write the object; try again after that long."""

    retry_after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The notification will be delivered. Also if a resolver had committed it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The reservation was resolved without its writer, or went with its topic: announce the change anew.

    It may have been taken for never written, or been committed and consumed since; nobody can tell. So
    `push` the event and signal again: twice is harmless, not at all is not.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The store gave no answer. Commit again to know; if nobody does, the resolver settles it by HEAD."""

    cause: str


CommitOutcome = Committed | Expired | Undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """Facts for people, each true at some moment of one scan. The three totals may miss a crashed worker's."""

    topic: str
    depth: int
    """Records in the queue: reserved, committed and in flight."""
    counted: int
    """What the bound counts with: `depth`, and room lost to crashes that is not yet given back."""
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
        self.writes = SettledWrites(records, clock)
        self.topics = Topics(records, clock)
        self._parallelism = parallelism
        self._known: dict[str, Topic] = {}
        self._seen: tuple[float, tuple[Topic, ...]] | None = None
        self._seen_records: dict[str, Record] = {}

    # Which topics there are.

    @staticmethod
    def takers(topics: Iterable[Topic], bucket: str, key: str) -> tuple[Topic, ...]:
        """Those that take changes of this key. Pure."""
        return tuple(topic for topic in topics if takes(topic.settings, bucket, key))

    def topics_of(self, bucket: str, key: str) -> tuple[Topic, ...]:
        """The topics that take changes of this key, by name, as they were within `TOPICS_SECONDS`: 1 scan, or none.

        A topic that is younger may be missing. So whoever has changed an object looks again (`see_topics`) before it
        says so: a topic that is not there even then will be, with the change, when its consumer first lists.
        """
        seen = self._seen  # another thread may forget it
        if seen is None or self.clock.monotonic() - seen[0] >= TOPICS_SECONDS:
            return self.takers(self.see_topics(), bucket, key)
        return self.takers(seen[1], bucket, key)

    def see_topics(self) -> tuple[Topic, ...]:
        """All topics as they are now, for `topics_of` too. 1 scan; those that have not changed are not read again."""
        now = self.clock.monotonic()
        records = dict(self._seen_records)
        topics = self.topics.all(known=records)
        if self._seen is None or self._seen[0] <= now:
            self._seen, self._seen_records = (now, topics), records
            self._known |= {topic.name: topic for topic in topics}
        return topics

    def forget_topics(self) -> None:
        """One of them is gone: let the next `topics_of` look anew."""
        self._seen = None

    # Writers: before the object, after the object.

    def reserve(self, topic: str, event: Event) -> Reservation | NoRoom:
        """See `reserve_many`, for one event: 3 requests (bucket alone: 4)."""
        return self.reserve_many(topic, [event])[0]

    def reserve_many(self, topic: str, events: Iterable[Event]) -> tuple[Reservation | NoRoom, ...]:
        """Room for these notifications, durable before their objects are written; an outcome for each.

        Strict: reservations and what became of them never number more than the topic's capacity. Where a
        shard has room for some, its first ones get it. Requests: 1 `add` for each shard touched (bucket
        alone: 2), 1 for each event, 1 read of the topic. `UsageError` for an event above `max_event_bytes`,
        `NotFoundError` without such a topic, `UnavailableError`: nothing reserved, do not write the objects.
        """
        return self._grant(topic, tuple(events))

    def push(self, topic: str, event: Event) -> Committed | NoRoom:
        """See `push_many`, for one event."""
        return self.push_many(topic, [event])[0]

    def push_many(self, topic: str, events: Iterable[Event]) -> tuple[Committed | NoRoom, ...]:
        """Notifications of changes that have happened, durable when this returns: for inlets.

        Reserved and committed at once, for the errors and requests of both. After an error some may be in
        the queue: push all again, duplicates are harmless.
        """
        return tuple(self.in_parallel(self._commit_or_raise, self.reserve_many(topic, events)))

    def fits(self, topic: str, event: Event) -> bool:
        """Whether the topic takes an event of this size. Once the topic is known, no request."""
        found = self._known.get(topic) or self._current(topic)
        try:
            self._draft(found, event)
        except UsageError:
            return False
        return True

    def fresh(self, reservation: Reservation) -> bool:
        """Whether the object may still be written: no resolver, however fast its clock, gives it up so soon.

        Ask right before the write. If not: `abort`, and reserve anew.
        """
        return self.fresh_since(reservation.since)

    def fresh_since(self, moment: float) -> bool:
        """As `fresh`, of all that this process began after that moment of the queue's clock."""
        return self.clock.monotonic() - moment < self.stale_seconds / CLOCK_SKEW

    def commit(self, reservation: Reservation) -> CommitOutcome:
        """The object is written (`reservation.wrote(…)`): its notification is to be delivered. 1 request.

        May be repeated. Raises nothing of the store's, since the object is there whatever it says.
        """
        entry = replace(reservation.entry, state="committed")
        partition = self.partition(entry)
        try:
            outcome = self.writes.replace(partition, entry.key, encode_entry(entry), expected=entry.version)
        except (UnavailableError, UnknownOutcomeError) as error:
            return Undecided(cause=str(error))
        if isinstance(outcome, Stored):
            return Committed()
        return Committed() if outcome.record is not None else Expired()

    def commit_many(self, reservations: Iterable[Reservation]) -> tuple[CommitOutcome, ...]:
        """See `commit`; in parallel."""
        return tuple(self.in_parallel(self.commit, tuple(reservations)))

    def abort(self, reservation: Reservation) -> None:
        """The object certainly was not written, and will not be: free the room. 2 requests."""
        self.abort_many([reservation])

    def abort_many(self, reservations: Iterable[Reservation]) -> None:
        """See `abort`. Raises nothing of the store's: what is left is resolved by HEAD like any other."""
        removed, _ = self._remove_each(tuple(reservation.entry for reservation in reservations))
        self.give_back(removed)

    # A pulling consumer.

    def entries(self, topic: str, slots: Iterable[int]) -> tuple[Entry, ...]:
        """The committed entries of these slots, in order of slot; not claimed, so another caller sees them too.

        Requests: 1 scan for each shard of which a quarter or more is asked for, 1 for each other slot, in parallel.
        """
        found = self._current(topic)
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
            entries = self.scan(found, scan[0], prefix=scan[1])
            return [entry for entry in entries if entry.state == "committed" and entry.slot in wanted]

        return tuple(entry for part in self.in_parallel(committed, scans) for entry in part)

    def remove(self, entries: Iterable[Entry]) -> int:
        """Remove entries that were consumed, each in the version that was listed; how many this call removed.

        May be repeated; what is gone, or was claimed by an owner since, is left. Requests: 1 for each entry
        (bucket alone: 2), 2 counters for each shard touched. `UnavailableError` or `UnknownOutcomeError`: some
        are left; remove again.
        """
        batch = tuple(entries)
        removed, errors = self._remove_each(batch)
        self.give_back(removed)
        self.count(removed, "delivered")
        if errors:
            raise errors[0]
        return len(removed)

    # Dead letters.

    def dead(self, topic: str) -> tuple[Entry, ...]:
        """The dead letters, with reason and last error. One scan."""
        found = self._current(topic)
        letters = []
        for record in self.records.scan(dead_partition(topic)):
            shard = shard_of(int(record.key.partition(".")[0]), found.settings)
            letters.append(decode_entry(topic, shard, record))
        return tuple(letter for letter in letters if letter.epoch == found.epoch)

    def redrive(self, topic: str, keys: Iterable[str] | None = None) -> int | NoRoom:
        """Put dead letters (all, or those of these object keys) back, with attempts from 0; how many.

        `NoRoom`: some may be back; go on later. Cut short anywhere no letter is lost, and one may be back twice.
        5 requests a letter.
        """
        wanted = None if keys is None else set(keys)
        moved = 0
        for letter in self.dead(topic):
            if wanted is not None and letter.event.key not in wanted:
                continue
            if isinstance(again := self.push(topic, letter.event), NoRoom):
                return again
            self.writes.remove(dead_partition(topic), letter.key, expected=letter.version)
            moved += 1
        return moved

    # Facts.

    def stats(self, topic: str) -> TopicStats:
        """Facts of a topic. One scan of its entries and dead letters, 2 requests a shard and more."""
        found = self._current(topic)
        shards = range(found.settings.shards)
        entries = [entry for shard in shards for entry in self.scan(found, shard)]
        oldest = min((entry.event.time_ms for entry in entries if entry.event.time_ms), default=None)
        totals = {"delivered": 0, "failed": 0}
        for record in self.records.scan(counts_partition(topic), prefix=f"{found.epoch}."):
            kind = record.key.rpartition(".")[2]
            totals[kind] = totals.get(kind, 0) + int(record.value)
        return TopicStats(
            topic=topic,
            depth=len(entries),
            counted=sum(self.counted(found, shard) + found.meters[shard].base for shard in shards),
            capacity=found.settings.capacity,
            reserved=sum(entry.state == "reserved" for entry in entries),
            in_flight=sum(entry.claim is not None for entry in entries),
            oldest_age_seconds=None if oldest is None else max(0, self.clock.wall_ms() - oldest) / 1000,
            delivered=totals["delivered"],
            failed=totals["failed"],
            dead=len(self.dead(topic)),
        )

    # What the other sides of the queue build on.

    def scan(self, topic: Topic, shard: int, *, prefix: str = "") -> Iterator[Entry]:
        """The shard's entries of this epoch of the topic, in every state. One scan."""
        for record in self.records.scan(queue_partition(topic.name, shard), prefix=prefix):
            entry = decode_entry(topic.name, shard, record)
            if entry.epoch == topic.epoch:
                yield entry

    def partition(self, entry: Entry) -> str:
        """Where an entry's record lies."""
        return queue_partition(entry.topic, entry.shard)

    def counted(self, topic: Topic, shard: int) -> int:
        """The shard's counter, without the base. 1 request."""
        key = depth_key(topic.epoch, shard, topic.meters[shard].generation)
        record = self.records.read(depth_partition(topic.name), key)
        return int(record.value) if record is not None else 0

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Free the room of entries that this process removed, each of them once. 1 `add` for each shard.

        Sent once: if its answer is lost the room is too, until the caretaker counts anew; never given twice.
        A counter of an older generation is no longer looked at, and may be gone.
        """
        counters = Counter(
            (depth_partition(entry.topic), depth_key(entry.epoch, entry.shard, entry.meter))
            for entry in entries
        )
        self._add_each({place: -number for place, number in counters.items()})

    def count(self, entries: Iterable[Entry], kind: str) -> None:
        """Add to the totals for people."""
        self._add_each(
            Counter(
                (counts_partition(entry.topic), count_key(entry.epoch, entry.shard, kind))
                for entry in entries
            )
        )

    def in_parallel(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results, in order, with at most `parallelism` calls at once."""
        workers = min(self._parallelism, len(items))
        if workers <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(function, items))

    def remove_one(self, entry: Entry) -> bool | S3NotifyError:
        """Whether this call, and no other, removed the entry in this version."""
        try:
            outcome = self.writes.remove(self.partition(entry), entry.key, expected=entry.version)
        except (UnavailableError, UnknownOutcomeError) as error:
            return error
        return isinstance(outcome, Stored)

    def _remove_each(self, entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], list[S3NotifyError]]:
        results = self.in_parallel(self.remove_one, entries)
        removed = tuple(entry for entry, result in zip(entries, results, strict=True) if result is True)
        return removed, [result for result in results if isinstance(result, S3NotifyError)]

    def _commit_or_raise(self, reservation: Reservation | NoRoom) -> Committed | NoRoom:
        if isinstance(reservation, NoRoom):
            return reservation
        match self.commit(reservation):
            case Committed() as committed:
                return committed
            case Undecided(cause=cause):
                raise UnknownOutcomeError(f"{reservation.entry.event.key!r}: {cause}; push it again")
            case Expired():
                raise UnavailableError(
                    f"{reservation.entry.event.key!r} was not pushed in time; push it again"
                )
            case _ as unreachable:
                assert_never(unreachable)

    def _grant(self, name: str, events: tuple[Event, ...]) -> tuple[Reservation | NoRoom, ...]:
        """Count, create, then look whether the topic still is what was counted under; else all over again.

        The last look is what makes both the bound and `delete` strict: an entry that was there when its topic
        still had this epoch and this meter is seen by whoever deletes the topic, or counts anew, after that.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                self.clock.sleep(backoff_seconds(attempt, self.clock))
            since = self.clock.monotonic()
            topic = self._known.get(name) or self._current(name)
            drafts = [self._draft(topic, event) for event in events]
            rooms = self._rooms(topic, drafts)
            accepted = _first(drafts, rooms)
            results = self.in_parallel(lambda draft: self._create(topic, draft, since), accepted)  # noqa: B023
            errors = [result for result in results if isinstance(result, S3NotifyError)]
            try:
                now = self._current(name)
            except S3NotifyError as error:
                now, errors = topic, [error, *errors]
            created = {
                id(draft): result
                for draft, result in zip(accepted, results, strict=True)
                if isinstance(result, Reservation)
            }
            held = _unchanged(topic, now, rooms, refused=len(accepted) < len(drafts))
            in_time = self.fresh_since(since)
            if held and in_time and not errors:
                refusal = NoRoom(retry_after_seconds=RETRY_AFTER_SECONDS)
                return tuple(created.get(id(draft), refusal) for draft in drafts)
            removed, _ = self._remove_each([reservation.entry for reservation in created.values()])
            unsent = [
                draft
                for draft, result in zip(accepted, results, strict=True)
                if isinstance(result, UnavailableError)
            ]
            if in_time:  # else a resolver may have given some of it back already
                self.give_back([*removed, *unsent])
            if errors:
                raise errors[0]
        raise UnavailableError(f"topic {name!r} kept changing; nothing was reserved, try again")

    def _draft(self, topic: Topic, event: Event) -> Entry:
        settings, wall_ms = topic.settings, self.clock.wall_ms()
        slot = slot_of(event.key, settings.slots)
        shard = shard_of(slot, settings)
        entry = Entry(
            topic=topic.name,
            shard=shard,
            epoch=topic.epoch,
            id=_entry_id(self.clock),
            slot=slot,
            meter=topic.meters[shard].generation,
            state="reserved",
            event=replace(
                event,
                time_ms=event.time_ms or wall_ms,
                sequencer=event.sequencer or f"{wall_ms:016X}{self.clock.random_bytes(2).hex().upper()}",
            ),
        )
        # As it will be delivered: who else was told is with it for a while only.
        if (size := len(encode_entry(replace(entry, state="committed")))) > settings.max_event_bytes:
            raise UsageError(
                f"the event of {event.key[:60]!r} has {size} bytes; topic {topic.name!r} takes "
                f"{settings.max_event_bytes} (max_event_bytes)"
            )
        return entry

    def _rooms(self, topic: Topic, drafts: Sequence[Entry]) -> dict[int, int]:
        """How many entries each shard takes, counted already."""
        wanted = sorted(Counter(draft.shard for draft in drafts).items())

        def take(shard_and_number: tuple[int, int]) -> int | S3NotifyError:
            try:
                return self._room(topic, *shard_and_number)
            except S3NotifyError as error:
                return error

        answers = self.in_parallel(take, wanted)
        errors = [answer for answer in answers if isinstance(answer, S3NotifyError)]
        rooms = {
            shard: 0 if isinstance(answer, S3NotifyError) else answer
            for (shard, _), answer in zip(wanted, answers, strict=True)
        }
        if errors:
            self.give_back(_first(drafts, rooms))
            raise errors[0]
        return rooms

    def _room(self, topic: Topic, shard: int, wanted: int) -> int:
        """Take room for up to `wanted` entries; how many it is."""
        meter = topic.meters[shard]
        ceiling = shard_capacity(shard, topic.settings) - meter.base
        key = depth_key(topic.epoch, shard, meter.generation)
        asked = min(wanted, ceiling)
        for attempt in range(ATTEMPTS):
            if asked <= 0:
                return 0
            try:
                outcome = self.records.add(depth_partition(topic.name), key, asked, ceiling=ceiling)
                if isinstance(outcome, int):
                    return asked
                if isinstance(outcome, Conflict):
                    asked = min(wanted, ceiling - self.counted(topic, shard))
                    continue
                # Unknown: if it was applied this room is lost until the caretaker counts anew, never used twice.
            except UnavailableError:
                if attempt == ATTEMPTS - 1:
                    raise
            self.clock.sleep(backoff_seconds(attempt, self.clock))
        raise UnavailableError(f"no room could be counted in topic {topic.name!r}, shard {shard}; try again")

    def _create(self, topic: Topic, draft: Entry, since: float) -> Reservation | S3NotifyError:
        """The entry, durable. One in doubt is left with its room, for the caretaker, and another one made."""
        try:
            for _ in range(ATTEMPTS):
                entry = replace(draft, id=_entry_id(self.clock))
                try:
                    outcome = self.writes.create_once(self.partition(entry), entry.key, encode_entry(entry))
                except UnknownOutcomeError:
                    outcome = Changed(record=None, in_doubt=True)
                if isinstance(outcome, Stored):
                    return Reservation(entry=replace(entry, version=outcome.version), since=since)
                if not self._room(topic, entry.shard, 1):
                    break
        except (UnavailableError, UsageError) as error:
            return error
        return UnknownOutcomeError(f"no reservation for {draft.event.key!r} could be made sure of; try again")

    def _current(self, name: str) -> Topic:
        try:
            topic = self._known[name] = self.topics.get(name)
        except NotFoundError:
            self._known.pop(name, None)
            raise
        return topic

    def _add_each(self, amounts: Mapping[tuple[str, str], int]) -> None:
        self.in_parallel(lambda place: self._add_once(*place, amounts[place]), list(amounts))

    def _add_once(self, partition: str, key: str, amount: int) -> None:
        for attempt in range(ATTEMPTS):
            try:
                self.records.add(partition, key, amount)
            except UnavailableError:
                self.clock.sleep(backoff_seconds(attempt, self.clock))
            else:
                return


def _entry_id(clock: Clock) -> str:
    """The time first, so that a slot's entries are listed about as old as they are; unique all the same."""
    return f"{clock.wall_ms():012x}-{unique_name(clock)[:16]}"


def _first(drafts: Iterable[Entry], rooms: Mapping[int, int]) -> list[Entry]:
    """The drafts that there is room for, in their shards: the first ones."""
    left = dict(rooms)
    accepted = []
    for draft in drafts:
        if left[draft.shard] > 0:
            left[draft.shard] -= 1
            accepted.append(draft)
    return accepted


def _unchanged(before: Topic, after: Topic, shards: Iterable[int], *, refused: bool) -> bool:
    """Whether what was counted holds; a refusal only if it was by the topic as it is now."""
    if before.epoch != after.epoch:
        return False
    if refused and (before.settings, before.meters) != (after.settings, after.meters):
        return False
    return all(before.meters[shard].generation == after.meters[shard].generation for shard in shards)
