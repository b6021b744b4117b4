"""The creation and the grant of reservations: the writers' side of the queue, up to a durable reservation."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import assert_never

from s3notify_platform.kernel.attempts import ATTEMPTS, attempts
from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.limits import CLOCK_SKEW
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue.entries import Entry, Event, Place, Topic, as_taken
from s3notify_platform.protocols.notification_queue.rooms import Rooms, counted_at
from s3notify_platform.protocols.notification_queue.segments import (
    ENTRIES_MAX,
    Segment,
    parts_of,
    row_bytes,
    segment_key,
)
from s3notify_platform.protocols.notification_queue.shards import Shards
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS, TopicSettings
from s3notify_platform.protocols.notification_queue.topic_store import KnownTopics

RETRY_AFTER_SECONDS = 1.0
"""Seconds after which a refused writer may try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Promised space for one notification. The entry is durable before the object is written."""

    entry: Entry
    segment: Segment
    """The segment of the entry, as it was created."""
    since: float
    """Start of the reservation, on the monotonic clock of the process that made it."""

    def wrote(self, *, etag: ETag | None = None, size: int | None = None) -> "Reservation":
        """The reservation with the result of the write, ready to be committed."""
        event = self.entry.event
        known = replace(
            event,
            etag=etag if etag is not None else event.etag,
            size=size if size is not None else event.size,
        )
        return replace(self, entry=replace(self.entry, event=known))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaExceeded:
    """The topic is full; nothing was written. Do not write the object; retry after `retry_after_seconds`."""

    retry_after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCommitted:
    """The notification will be delivered. This outcome is also returned if a reconciler had already committed the
    notification.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The reservation was resolved without its writer, or deleted with its topic: announce the change again.

    The entry may have been aborted, or it may have been committed and consumed: the writer cannot see the difference.
    So `push` the event and signal again: a change that is announced twice is harmless, a missed change is not.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The store gave no answer. Commit again to find out; otherwise the reconciler resolves the entry by HEAD."""

    cause: str


EntryOutcome = EntryCommitted | Expired | Undecided


def committed_or_raise(reservation: Reservation, outcome: EntryOutcome) -> EntryCommitted:
    """Returns the outcome of an event's commit; raises an error if the event must be pushed again. Pure."""
    event = f"an event of slot {reservation.entry.slot}"  # no key, because inlets log this text
    match outcome:
        case EntryCommitted():
            return outcome
        case Undecided(cause=cause):
            raise UnknownOutcomeError(f"{event}: {cause}; push it again")
        case Expired():
            raise UnavailableError(f"{event} was not pushed in time; push it again")
        case _ as unreachable:
            assert_never(unreachable)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """An event to reserve."""

    number: int
    slot: int
    event: Event
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Created:
    """The result of creating a segment for these drafts. `unsent`: the place of the segment, if the segment was
    certainly not created.
    """

    drafts: Sequence[_Draft]
    segment: Segment | None = None
    error: S3NotifyError | None = None
    unsent: Place | None = None


class Reservations:
    """Reservations in the topics of one record store. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        *,
        shards: Shards,
        rooms: Rooms,
        topics: KnownTopics,
        stale_seconds: float | None,
    ) -> None:
        self._clock = clock
        self._shards = shards
        self._rooms = rooms
        self._topics = topics
        self._stale_seconds = stale_seconds

    def grant(self, name: str, events: tuple[Event, ...]) -> tuple[Reservation | QuotaExceeded, ...]:
        """Counts the entries and creates their segments; returns an outcome for each event.

        Then reads the topics again, unless the process may still rely on its last read. If the topic's epoch or quota
        changed, the call removes the segments that it created, and begins again. So every later deletion of the topic,
        and every later recount, finds the segments of all granted reservations: the quota is never exceeded, and a
        deletion leaves no segment. A client that changes the topic's epoch or quota generation waits before it acts on
        the change. If the process relied on its last read, the answers to the segments' creation arrived before such a
        wait could end. Before a refusal is returned, the topics are always read again.
        """
        for _ in attempts(self._clock, ATTEMPTS if events else 0):
            since = self._clock.monotonic()
            topic = self._topics.get(name)
            drafts = [self._draft(topic, number, event) for number, event in enumerate(events)]
            rooms = self._rooms.take(topic, len(drafts))
            accepted = drafts[: sum(number for _, number in rooms)]
            refused = len(accepted) < len(drafts)
            created = self._create_all(topic, rooms, accepted)
            answered = self._clock.monotonic()
            errors = [each.error for each in created if each.error is not None]
            try:
                seen = self._topics.see() if refused else self._topics.as_of(answered)
            except S3NotifyError as error:
                held, errors = False, [error, *errors]
            else:
                now = seen.by_name.get(name)
                held = _unchanged(topic, now, {shard for shard, _ in rooms}, refused=refused)
            in_time = self.fresh_since(since)
            if held and in_time and not errors:
                return _outcomes(len(drafts), created, since)
            self._undo(created, in_time=in_time)
            if errors:
                raise errors[0]
        if not events:
            return ()
        raise UnavailableError(f"topic {name!r} kept changing; nothing was reserved, try again")

    def fits(self, name: str, event: Event) -> bool:
        """See `NotificationQueue.fits`."""
        found = self._topics.get(name)
        try:
            self._draft(found, 0, event)
        except UsageError:
            return False
        return True

    def fresh_since(self, moment: float) -> bool:
        """See `NotificationQueue.fresh_since`."""
        return self._clock.monotonic() - moment < self.fresh_seconds()

    def fresh_seconds(self) -> float:
        """See `NotificationQueue.fresh_seconds`."""
        topics = (topic.settings.stale_seconds for topic in self._topics.met())
        shortest = self._stale_seconds or min(topics, default=STALE_SECONDS)
        return shortest / CLOCK_SKEW

    def _draft(self, topic: Topic, number: int, event: Event) -> _Draft:
        settings = topic.settings
        slot = slot_of(event.key, settings.slots)
        known = stamped(settings, event, self._clock)
        place = Place(topic=topic.name, epoch=topic.epoch, shard=0, key="", quota=0)

        def bytes_of(stored: Event) -> int:
            return row_bytes(Entry(place=place, n=ENTRIES_MAX, slot=slot, state="committed", event=stored))

        if (size := bytes_of(known)) > settings.max_event_bytes:
            # The loss of metadata, tags and details is better than the loss of the change.
            known = known.bare()
            size = bytes_of(known)
        if size > settings.max_event_bytes:
            raise UsageError(
                f"an event of slot {slot} has {size} bytes; topic {topic.name!r} allows "
                f"{settings.max_event_bytes} (max_event_bytes)"
            )
        return _Draft(number=number, slot=slot, event=known, bytes=size)

    # Segments.

    def _create_all(
        self, topic: Topic, rooms: Iterable[tuple[int, int]], drafts: Sequence[_Draft]
    ) -> list[_Created]:
        """Creates the segments of drafts. The first drafts go to the shards in which room was found first."""
        parts: list[tuple[int, Sequence[_Draft]]] = []
        start = 0
        for shard, number in rooms:
            of_shard = drafts[start : start + number]
            parts += [(shard, of_shard[part]) for part in parts_of([draft.bytes for draft in of_shard])]
            start += number
        return self._shards.in_parallel(lambda part: self._create(topic, *part), parts)

    def _create(self, topic: Topic, shard: int, drafts: Sequence[_Draft]) -> _Created:
        """Creates a segment. If the outcome of the creation is unknown, the segment is left to the reconciler, and
        another segment is created.
        """
        place = counted_at(topic, shard)
        for attempt in range(ATTEMPTS):
            try:
                if attempt and (got := self._rooms.ask(topic, shard, len(drafts))) < len(drafts):
                    self._rooms.give_back(topic, [(shard, got)])
                    break
            except S3NotifyError as error:
                return _Created(drafts=drafts, error=error)
            try:
                place = counted_at(
                    topic, shard, segment_key(shard, _name(self._clock), (draft.slot for draft in drafts))
                )
                with suppress(UnknownOutcomeError):
                    if (segment := self._shards.create(_segment(place, drafts))) is not None:
                        return _Created(drafts=drafts, segment=segment)
            except (UnavailableError, UsageError) as error:
                return _Created(drafts=drafts, error=error, unsent=place)
        doubt = UnknownOutcomeError(
            f"no reservation for an event of slot {drafts[0].slot} could be confirmed; try again"
        )
        return _Created(drafts=drafts, error=doubt)

    def _undo(self, created: Sequence[_Created], *, in_time: bool) -> None:
        """Removes created segments. Gives back the space of these segments only if `in_time`: later, a reconciler may
        have given back this space already.
        """
        segments = [each.segment for each in created if each.segment is not None]

        def remove(segment: Segment) -> int:
            with suppress(UnavailableError, UnknownOutcomeError):
                edited = self._shards.edit(
                    segment.place,
                    lambda found: (replace(found, entries=()), len(found.entries)),
                    known=segment,
                )
                return edited.result if edited is not None else 0
            return 0

        removed = self._shards.in_parallel(remove, segments)
        if in_time:
            rooms = {segment.place: number for segment, number in zip(segments, removed, strict=True)}
            unsent = {each.unsent: len(each.drafts) for each in created if each.unsent is not None}
            self._shards.give_back_rooms(rooms | unsent)


def _name(clock: Clock) -> str:
    """A unique name. The name begins with the time, so that segments are listed roughly by age."""
    return f"{clock.wall_ms():012x}-{unique_name(clock)[:16]}"


def _segment(place: Place, drafts: Sequence[_Draft]) -> Segment:
    return Segment(
        place=place,
        entries=tuple(
            Entry(place=place, n=n, slot=draft.slot, state="reserved", event=draft.event)
            for n, draft in enumerate(drafts)
        ),
    )


def stamped(settings: TopicSettings, event: Event, clock: Clock) -> Event:
    """The event as a topic with these settings stores it (`as_taken`). A missing time or sequencer is added."""
    wall_ms = clock.wall_ms()
    return replace(
        as_taken(settings, event),
        time_ms=event.time_ms or wall_ms,
        sequencer=event.sequencer or f"{wall_ms:016X}{clock.random_bytes(2).hex().upper()}",
    )


def _outcomes(
    number: int, created: Sequence[_Created], since: float
) -> tuple[Reservation | QuotaExceeded, ...]:
    outcomes: list[Reservation | QuotaExceeded] = [
        QuotaExceeded(retry_after_seconds=RETRY_AFTER_SECONDS)
    ] * number
    for each in created:
        assert each.segment is not None, "nothing is granted after an error"
        for draft, entry in zip(each.drafts, each.segment.entries, strict=True):
            outcomes[draft.number] = Reservation(entry=entry, segment=each.segment, since=since)
    return tuple(outcomes)


def _unchanged(before: Topic, after: Topic | None, shards: Iterable[int], *, refused: bool) -> bool:
    """True if the room that was counted is still valid. A refusal is valid only under the topic's current settings and
    quotas.
    """
    if after is None or before.epoch != after.epoch:
        return False
    if refused and (before.settings, before.quotas) != (after.settings, after.quotas):
        return False
    return all(before.quotas[shard].generation == after.quotas[shard].generation for shard in shards)
