"""The queue for writers and pulling consumers: reserve before an object's write, commit after it, pull entries."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from itertools import chain, islice

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.limits import TOPICS_KNOWN_SECONDS
from s3notify_platform.kernel.ports import Record, RecordStore, UploadId
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Place,
    Topic,
    TopicUser,
    Upload,
    counts_partition,
    dead_partition,
    takes_event,
)
from s3notify_platform.protocols.notification_queue.facts import (
    TopicStats,
    oldest_age_seconds,
    topic_stats,
)
from s3notify_platform.protocols.notification_queue.reserving import (
    EntryCommitted,
    EntryOutcome,
    Expired,
    QuotaExceeded,
    Reservation,
    Reservations,
    Undecided,
    committed_or_raise,
)
from s3notify_platform.protocols.notification_queue.rooms import Rooms
from s3notify_platform.protocols.notification_queue.segments import (
    Segment,
    committed_in,
    decode_letter,
    may_hold,
    read_whole,
)
from s3notify_platform.protocols.notification_queue.shards import Shards, by_place
from s3notify_platform.protocols.notification_queue.topic_settings import takes
from s3notify_platform.protocols.notification_queue.topic_store import KnownTopics, Topics
from s3notify_platform.protocols.updates import Stored, Updates

PARALLELISM = 32
"""The number of requests in flight for one batch."""


class NotificationQueue:
    """The topics of one record store, as writers, inlets and pulling consumers see them. Thread-safe.

    `parallelism` bounds the requests in flight of one batch. `stale_seconds` overrides the topics' own setting, for
    tests. `known_seconds`: the time for which a process relies on the topics that it read; all processes of a queue
    must use the same value. `Worker`, `Reconciler` and others also use `shards`, `topics`, `updates` and `records`.
    """

    def __init__(
        self,
        records: RecordStore,
        *,
        clock: Clock = SYSTEM_CLOCK,
        parallelism: int = PARALLELISM,
        stale_seconds: float | None = None,
        known_seconds: float = TOPICS_KNOWN_SECONDS,
    ) -> None:
        if parallelism < 1:
            raise UsageError(f"parallelism={parallelism}: must be at least 1")
        self.records = records
        self.clock = clock
        self._stale_seconds = stale_seconds
        self.updates = Updates(records, clock)
        self.topics = Topics(records, clock, known_seconds=known_seconds)
        self.shards = Shards(records, clock, parallelism=parallelism)
        self._known = KnownTopics(self.topics, clock)
        self._rooms = Rooms(records, clock, shards=self.shards)
        self._reservations = Reservations(
            clock,
            shards=self.shards,
            rooms=self._rooms,
            topics=self._known,
            stale_seconds=stale_seconds,
        )

    @staticmethod
    def takers(
        topics: Iterable[Topic], bucket: str, event: Event, *, by_name: bool = True
    ) -> tuple[Topic, ...]:
        """The persistent topics that take this change in a bucket; `by_name=False` ignores the event's name. Pure."""
        kept = (t for t in topics if t.settings.persistent)
        return tuple(t for t in kept if takes_event(t.settings, bucket, event, by_name=by_name))

    def topics_of(self, bucket: str, event: Event) -> tuple[Topic, ...]:
        """The persistent topics that take this change, as of the last read of all topics. Cost: 1 scan or no request.

        A new topic may be missing. So after a change, its writer calls `topics_as_of` with the change's time.
        """
        # If the process has spare room, the topics are read early. So a change seldom waits for both topics and room.
        ahead = self.topics.known_seconds / 4 if self._rooms.any_held() else 0.0
        return self.takers(self.topics_as_of(self.clock.monotonic() + ahead), bucket, event)

    def topics_as_of(self, moment: float) -> tuple[Topic, ...]:
        """All topics to which a change before `moment` (queue's clock) must be announced. Cost: 1 scan, or no request.

        Call it only if the change is reserved in one of these topics, or needs no entry. Otherwise, call `see_topics`.
        """
        return tuple(self._known.as_of(moment).by_name.values())

    def see_topics(self) -> tuple[Topic, ...]:
        """Reads all topics now. Later `topics_of` calls use the result. Cost: 1 scan, and reads of changed topics."""
        return tuple(self._known.see().by_name.values())

    def stale_seconds(self, topic: Topic) -> float:
        """Seconds after which a reservation in this topic is resolved without its writer."""
        return topic.settings.stale_seconds if self._stale_seconds is None else self._stale_seconds

    # Writers: before and after the object is written.

    def reserve(self, topic: str, event: Event) -> Reservation | QuotaExceeded:
        """Calls `reserve_many` for one event."""
        return self.reserve_many(topic, [event])[0]

    def reserve_many(self, topic: str, events: Iterable[Event]) -> tuple[Reservation | QuotaExceeded, ...]:
        """Durably reserves room for the notifications of these events. Returns an outcome for each event.

        The bound is strict: the topic's reservations and committed entries together never exceed its capacity. If room
        is scarce, the first events get it. Up to 256 entries, or 128 KB, form a segment, which goes to one shard if
        this shard has room. `UsageError`: an event is larger than `max_event_bytes`. `NotFoundError`: there is no such
        topic. `UnavailableError`: nothing is reserved; do not write the objects. Requests: 1 write for each segment; 1
        `add` (on a bucket: 2 requests) if the process has no spare room; 1 for each full shard. One scan of the topics
        is added if the topics are unknown, or after a refusal.
        """
        return self._reservations.grant(topic, tuple(events))

    def push(self, topic: str, event: Event) -> EntryCommitted | QuotaExceeded:
        """Calls `push_many` for one event."""
        return self.push_many(topic, [event])[0]

    def push_many(self, topic: str, events: Iterable[Event]) -> tuple[EntryCommitted | QuotaExceeded, ...]:
        """Queues notifications of past changes, for inlets. The notifications are durable when the call returns.

        Reserves and commits, with the errors and requests of `reserve_many` and `commit_many`. After an error, some
        notifications may be in the queue: push all again; duplicates are harmless.
        """
        outcomes = self.reserve_many(topic, events)
        held = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
        committed = dict(zip((one.entry.id for one in held), self.commit_many(held), strict=True))
        return tuple(
            committed_or_raise(outcome, committed[outcome.entry.id])
            if isinstance(outcome, Reservation)
            else outcome
            for outcome in outcomes
        )

    def fits(self, topic: str, event: Event) -> bool:
        """True if the topic accepts an event of this size. Makes no request if the topic is known."""
        return self._reservations.fits(topic, event)

    def fresh_since(self, moment: float) -> bool:
        """True while no reconciler can have resolved a reservation made since `moment`: the write may begin.

        The result is valid for a third of the topics' shortest `stale_seconds`. `moment`: by the queue's clock, like
        `Reservation.since`. Call this method right before the write. If False, call `abort_many` and reserve again.
        """
        return self._reservations.fresh_since(moment)

    def fresh_seconds(self) -> float:
        """Seconds for which `fresh_since` stays true."""
        return self._reservations.fresh_seconds()

    def renew(self, reservation: Reservation, upload: Upload) -> Reservation | Expired:
        """Makes the reservation fresh again while this multipart upload writes the object. Returns the new reservation.

        `upload.beats` must differ in each call. A reconciler waits `stale_seconds` after it has seen the reservation's
        last change. Then the reconciler aborts the upload, and only then HEADs the object. `Expired`: do not complete
        the upload. `UnavailableError`, `UnknownOutcomeError`: renew again while the reservation is fresh. Cost: 1
        request; 2 more if others have changed the segment.
        """
        since, n = self.clock.monotonic(), reservation.entry.n

        def edit(found: Segment) -> tuple[Segment, Entry | None]:
            def renewed(entry: Entry) -> Entry:
                ours = entry.n == n and entry.state == "reserved"
                return replace(entry, event=replace(entry.event, upload=upload)) if ours else entry

            after = found.edited(renewed)
            return after, next((e for e in after.entries if e.n == n and e.state == "reserved"), None)

        edited = self.shards.edit(reservation.segment.place, edit, known=reservation.segment)
        if edited is None or edited.result is None:
            return Expired()
        return replace(reservation, entry=edited.result, segment=edited.segment, since=since)

    def uploads_of(self, bucket: str, key: str) -> frozenset[UploadId]:
        """Uploads in the key's reservations. Cost: 1 scan of the topics, 1 scan of each topic that takes the key."""
        return frozenset(
            entry.event.upload.id
            for topic in self.see_topics()
            if takes(topic.settings, bucket, key)
            for segment in self.shards.scan_all(topic, wanted=may_hold({slot_of(key, topic.settings.slots)}))
            for entry in segment.entries
            if entry.event.key == key and entry.event.upload is not None
        )

    def commit(self, reservation: Reservation) -> EntryOutcome:
        """Calls `settle` for one written object. Cost: 1 request."""
        return self.settle([reservation])[0]

    def commit_many(self, reservations: Iterable[Reservation]) -> tuple[EntryOutcome, ...]:
        """Calls `settle` for written objects."""
        return self.settle(reservations)

    def abort_many(self, reservations: Iterable[Reservation]) -> None:
        """Calls `settle` for objects that were not written."""
        self.settle((), reservations)

    def settle(
        self, written: Iterable[Reservation], unwritten: Iterable[Reservation] = ()
    ) -> tuple[EntryOutcome, ...]:
        """Commits the notifications of `written` objects (`reservation.wrote(…)`). Returns an outcome for each object.

        Removes the notifications of `unwritten` objects, and frees their space. These objects must not be written
        later. A reservation that is never settled is resolved by HEAD. Other reservations of the same segments stay
        unchanged. The call may be repeated. Raises no errors of the store, because the objects are written in any case.
        Requests: 1 for each segment that nobody else has changed, and 1 `add` for each shard with freed space.
        """
        done, undone = tuple(written), tuple(unwritten)
        segments = {each.entry.place: each.segment for each in (*done, *undone)}
        events: dict[Place, dict[int, Event]] = {place: {} for place in segments}
        for each in done:
            events[each.entry.place][each.entry.n] = each.entry.event
        out = {place: {entry.n for entry in of} for place, of in by_place(e.entry for e in undone).items()}

        def settle_one(place: Place) -> Mapping[int, EntryOutcome]:
            return self._settle(segments[place], events[place], out.get(place, set()))

        found = dict(zip(segments, self.shards.in_parallel(settle_one, list(segments)), strict=True))
        return tuple(found[each.entry.place][each.entry.n] for each in done)

    def _settle(
        self, segment: Segment, events: Mapping[int, Event], out: Collection[int]
    ) -> Mapping[int, EntryOutcome]:
        def edit(found: Segment) -> tuple[Segment, tuple[list[Entry], set[int]]]:
            def settled(entry: Entry) -> Entry | None:
                if entry.state != "reserved":
                    return entry
                if entry.n in events:
                    return replace(entry, state="committed", event=events[entry.n])
                return None if entry.n in out else entry

            after = found.edited(settled)
            left = {entry.n for entry in after.entries}
            return after, ([entry for entry in found.entries if entry.n not in left], left)

        try:
            edited = self.shards.edit(segment.place, edit, known=segment)
        except (UnavailableError, UnknownOutcomeError) as error:
            return dict.fromkeys(events, Undecided(cause=str(error)))
        aborted, there = edited.result if edited is not None else ([], set())
        self.shards.give_back(aborted)
        return {n: EntryCommitted() if n in there else Expired() for n in events}

    # Pulling consumers.

    def entries(
        self, topic: str, slots: Iterable[int], *, user: TopicUser | None = None
    ) -> tuple[Entry, ...]:
        """The committed entries of these slots, by slot, then roughly by age.

        No entry is claimed, so other callers see the entries, too. `user`: the table that will remove the entries
        (`Topics.serve`); None if the caller only looks. Requests: 1, and the requests of `segments`.
        """
        wanted = frozenset(slots)
        found = self.topics.get(topic)
        if user is not None:
            found = self.topics.serve(found, user)
        if wrong := [slot for slot in wanted if not 0 <= slot < found.settings.slots]:
            raise UsageError(f"slots {sorted(wrong)[:5]}: topic {topic!r} has {found.settings.slots} slots")
        return committed_in(self.segments(topic, wanted), wanted, epoch=found.epoch)

    def segments(self, topic: str, slots: Iterable[int]) -> tuple[Segment, ...]:
        """All segments, of every epoch, that may have entries of these slots. `committed_in` chooses an epoch.

        The result is valid only if a later `check_topic` finds the epoch that the caller relies on. Cost: 1 scan; on a
        bucket, the scan reads only segments that may have such entries.
        """
        wanted = frozenset(slots)
        return tuple(self.shards.scan_name(topic, wanted=may_hold(wanted))) if wanted else ()

    def check_topic(self, topic: str, user: TopicUser) -> None:
        """Checks that the topic serves this table. A topic that serves no table yet serves this table from now on.

        Cost: 1 request, and the requests of `Topics.serve`. `NotFoundError`: the topic is missing, or its epoch is not
        `user.epoch`, so entries that the caller has read may be deleted. `UsageError`: see `Topics.serve`.
        """
        self.topics.serve(self.topics.get(topic), user)

    def remove(self, entries: Iterable[Entry], *, beside: Executor | None = None) -> int:
        """Removes committed entries that were consumed. Returns the number of entries that this call removed.

        `beside`: an executor that frees the entries' room in the background. The call may be repeated. Missing entries,
        and entries that an owner has claimed, are skipped. A claim does not count if the topic has no endpoint any
        more. Requests: 2 for each segment, or 1 if all its entries are removed; 1 `add` for each shard; 1 for each
        topic with claimed entries. After `UnavailableError` or `UnknownOutcomeError`, call `remove` again.
        """
        errors: list[S3NotifyError] = []
        segments = by_place(entries)
        claimed = {entry.topic for of in segments.values() for entry in of if entry.claim is not None}
        topics = [found for name in claimed if (found := self.topics.find(name)) is not None]
        pulled = {topic.name for topic in topics if not topic.settings.endpoint}

        def take_out(of_segment: tuple[Place, list[Entry]]) -> list[Entry]:
            place, consumed = of_segment
            numbers = {entry.n for entry in consumed}

            def done(entry: Entry) -> bool:
                free = entry.claim is None or entry.topic in pulled
                return entry.n in numbers and entry.state == "committed" and free

            try:
                return self.shards.take_out(place, done, known=read_whole(place, consumed))
            except (UnavailableError, UnknownOutcomeError) as error:
                errors.append(error)
                return []

        removed = [*chain(*self.shards.in_parallel(take_out, list(segments.items())))]
        free = self.shards.give_back
        _ = free(removed) if beside is None else beside.submit(free, removed)
        if errors:
            raise errors[0]
        return len(removed)

    # Dead letters.

    def dead(self, topic: str) -> tuple[Entry, ...]:
        """The dead letters, with reason and last error. One scan."""
        return tuple(letter for _, letter in self._letters(topic))

    def dead_count(self, topic: str) -> int:
        """The number of dead letters, counted by their keys alone. Cost: 1 request for each 1000 letters."""
        return sum(1 for _ in self.records.scan(dead_partition(topic), keys_only=lambda _: True))

    def _letters(self, topic: str) -> Iterator[tuple[Record, Entry]]:
        epoch = self.topics.get(topic).epoch
        for record in self.records.scan(dead_partition(topic)):
            if (letter := decode_letter(topic, record)).epoch == epoch:
                yield record, letter

    def redrive(
        self, topic: str, keys: Iterable[str] | None = None
    ) -> tuple[int, tuple[Entry, ...]] | QuotaExceeded:
        """Requeues all dead letters, or only the letters of these object keys. Attempts restart at 0. Returns how many
        are requeued, and the letters that stay because they are now larger than the topic's `max_event_bytes`.

        `QuotaExceeded`: some letters may be in the queue again; continue later. If the call is interrupted, no letter
        is lost, but another call may requeue one letter a second time. Cost: 5 requests for each letter.
        """
        wanted = None if keys is None else set(keys)
        moved, large = 0, list[Entry]()
        for record, letter in tuple(self._letters(topic)):
            if wanted is not None and letter.event.key not in wanted:
                continue
            if not self.fits(topic, letter.event):
                large.append(letter)
                continue
            if isinstance(again := self.push(topic, letter.event), QuotaExceeded):
                return again
            self.updates.remove(dead_partition(topic), record.key, expected=record.version)
            moved += 1
        return moved, tuple(large)

    def purge(self, topic: str) -> int:
        """Removes the dead letters for good. Returns their number. Cost: one scan, and 1 removal for each letter."""
        removed = 0
        for record, _ in self._letters(topic):
            outcome = self.updates.remove(dead_partition(topic), record.key, expected=record.version)
            removed += isinstance(outcome, Stored)
        return removed

    def erase(self, bucket: str, key: str, *, own: str, user: TopicUser) -> tuple[int, int]:
        """Removes entries and letters of a deleted object from all topics. Returns the numbers (removed, left).

        Reserved entries stay. Claimed entries stay if their topic has an endpoint. Entries about the object's deletion
        are removed only from the topic `own`, and only if this topic serves no other user. The call may be repeated.
        Requests: one scan of the topics; for each topic, one scan of the segments that may name the object, and one
        scan of the dead letters; for each item, 2 requests.
        """
        removed = left = 0
        for topic in self.topics.all():
            alone, owned = topic.name == own and not user.others(topic), bool(topic.settings.endpoint)

            def named(entry: Entry) -> bool:
                return entry.event.key == key and entry.event.bucket in ("", bucket)

            def done(entry: Entry, alone: bool = alone, owned: bool = owned) -> bool:
                free = entry.state == "committed" and (entry.claim is None or not owned)
                return named(entry) and free and (alone or entry.event.op != "delete")

            wanted = may_hold({slot_of(key, topic.settings.slots)})
            for segment in self.shards.scan_all(topic, wanted=wanted):
                number = sum(map(named, segment.entries))
                taken = self.shards.take_out(segment.place, done) if number else []
                self.shards.give_back(taken)
                removed, left = removed + len(taken), left + number - len(taken)
            for record in self.records.scan(dead_partition(topic.name)):
                if named(decode_letter(topic.name, record)):
                    self.updates.remove(dead_partition(topic.name), record.key, expected=record.version)
                    removed += 1
        return removed, left

    def stats(self, topic: str) -> TopicStats:
        """Facts of a topic. Cost: one scan of its segments, at least 2 requests for each shard, and `dead_count`."""
        found = self.topics.get(topic)
        shards = range(found.settings.shards)
        entries: list[list[Entry]] = [[] for _ in shards]
        for segment in self.shards.scan_all(found):
            entries[segment.place.shard] += segment.entries
        totals: Counter[str] = Counter()
        for record in self.records.scan(counts_partition(topic), prefix=f"{found.epoch}."):
            totals[record.key.rpartition(".")[2]] += int(record.value)
        return topic_stats(
            found,
            entries,
            counted=sum(self.shards.counted(found, shard) + found.quotas[shard].base for shard in shards),
            totals=totals,
            dead=self.dead_count(topic),
            wall_ms=self.clock.wall_ms(),
        )

    def oldest_age_seconds(self, topic: str) -> float | None:
        """The waiting time of the oldest entry among the first segments of all shards; None if the topic is empty.

        Cost: 2 requests for each shard, and a GET of its first segment if the queue is on a bucket.
        """
        found = self.topics.get(topic)
        scans = (self.shards.scan(found, shard) for shard in range(found.settings.shards))
        entries = [entry for scan in scans for first in islice(scan, 1) for entry in first.entries]
        return oldest_age_seconds(entries, self.clock.wall_ms())

    def pending(self, topic: str) -> Iterator[Entry]:
        """Yields every entry that is not dead: shard by shard, old entries first. One scan."""
        for segment in self.shards.scan_all(self.topics.get(topic)):
            yield from segment.entries
