"""How space is counted and granted: the writers' side of the queue, up to a durable reservation."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from s3notify_platform.clock import Clock, backoff_seconds, unique_name
from s3notify_platform.errors import S3NotifyError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.ports import Conflict, ETag, RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Place,
    Topic,
    depth_key,
    depth_partition,
    shard_capacity,
)
from s3notify_platform.protocols.notification_queue.segments import (
    ENTRIES_MAX,
    Segment,
    parts_of,
    row_bytes,
    segment_key,
)
from s3notify_platform.protocols.notification_queue.shards import Shards
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from s3notify_platform.protocols.notification_queue.topics import KnownTopics
from s3notify_platform.protocols.updates import ATTEMPTS
from s3notify_platform.slots import slot_of

CLOCK_SKEW = 3.0
"""How many times as fast as another machine's clock one may run."""

RETRY_AFTER_SECONDS = 1.0
"""How long a refused writer is to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Promised space for one notification. The entry is durable before the object is written."""

    entry: Entry
    segment: Segment
    """The entry's, as it was created."""
    since: float
    """Start of the reservation on the monotonic clock of the process that made it."""

    def wrote(self, *, etag: ETag | None = None, size: int | None = None) -> "Reservation":
        """The reservation with the result of the write, to be committed."""
        event = self.entry.event
        known = replace(
            event,
            etag=etag if etag is not None else event.etag,
            size=size if size is not None else event.size,
        )
        return replace(self, entry=replace(self.entry, event=known))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaExceeded:
    """The topic is full; nothing was written. Do not write the object; try again after `retry_after_seconds`."""

    retry_after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """An event that is to be reserved."""

    number: int
    slot: int
    event: Event
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Created:
    """A segment that was to be created for these drafts. `unsent`: it certainly was not."""

    drafts: Sequence[_Draft]
    segment: Segment | None = None
    error: S3NotifyError | None = None
    unsent: Place | None = None


class Reservations:
    """Reservations in the topics of one record store. Thread-safe; remembers whose turn it is among the shards."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        *,
        shards: Shards,
        topics: KnownTopics,
        stale_seconds: float | None,
    ) -> None:
        self._records = records
        self._clock = clock
        self._shards = shards
        self._topics = topics
        self._stale_seconds = stale_seconds
        # Processes begin with different ones.
        self._turns = count(int.from_bytes(clock.random_bytes(2), "little"))

    def grant(self, name: str, events: tuple[Event, ...]) -> tuple[Reservation | QuotaExceeded, ...]:
        """Count, create, then read the topic again; if its epoch or quota changed, undo and repeat.

        The last read makes both the bound and `delete` strict. A segment that existed while its topic still had this
        epoch and this quota generation is found by every later deletion or recount.
        """
        for attempt in range(ATTEMPTS if events else 0):
            if attempt:
                self._clock.sleep(backoff_seconds(attempt, self._clock))
            since = self._clock.monotonic()
            topic = self._topics.get(name)
            drafts = [self._draft(topic, number, event) for number, event in enumerate(events)]
            rooms = self._rooms(topic, len(drafts))
            accepted = drafts[: sum(number for _, number in rooms)]
            created = self._create_all(topic, rooms, accepted)
            errors = [each.error for each in created if each.error is not None]
            try:
                now = self._topics.current(name)
            except S3NotifyError as error:
                now, errors = topic, [error, *errors]
            held = _unchanged(topic, now, {shard for shard, _ in rooms}, refused=len(accepted) < len(drafts))
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
        settings, wall_ms = topic.settings, self._clock.wall_ms()
        slot = slot_of(event.key, settings.slots)
        known = replace(
            event,
            time_ms=event.time_ms or wall_ms,
            sequencer=event.sequencer or f"{wall_ms:016X}{self._clock.random_bytes(2).hex().upper()}",
        )
        place = Place(topic=topic.name, epoch=topic.epoch, shard=0, key="", quota=0)
        size = row_bytes(Entry(place=place, n=ENTRIES_MAX, slot=slot, state="committed", event=known))
        if size > settings.max_event_bytes:
            raise UsageError(
                f"the event of {event.key[:60]!r} has {size} bytes; topic {topic.name!r} takes "
                f"{settings.max_event_bytes} (max_event_bytes)"
            )
        return _Draft(number=number, slot=slot, event=known, bytes=size)

    # Space.

    def _rooms(self, topic: Topic, wanted: int) -> list[tuple[int, int]]:
        """Shards, and how many entries each takes, counted already: `wanted`, or as many as there is space for.

        A segment's worth is asked of the shard whose turn it is, then of the others.
        """
        shards, first = topic.settings.shards, next(self._turns)
        in_turn = [(first + turn) % shards for turn in range(shards)]
        full: set[int] = set()
        rooms: list[tuple[int, int]] = []
        asks = [min(ENTRIES_MAX, wanted - start) for start in range(0, wanted, ENTRIES_MAX)]
        while asks:
            if not (left := [shard for shard in in_turn if shard not in full]):
                break
            together: Counter[int] = Counter()
            for turn, ask in enumerate(asks):
                together[left[turn % len(left)]] += ask
            answers = self._shards.in_parallel(
                lambda asked: self._try_space(topic, *asked), list(together.items())
            )
            short = 0
            for (shard, asked), answer in zip(together.items(), answers, strict=True):
                got = answer if isinstance(answer, int) else 0
                rooms += [(shard, got)] if got else []
                if got < asked:
                    full.add(shard)
                    short += asked - got
            if errors := [answer for answer in answers if isinstance(answer, S3NotifyError)]:
                self._give_back(topic, rooms)
                raise errors[0]
            asks = [short] if short else []
        return rooms

    def _try_space(self, topic: Topic, shard: int, wanted: int) -> int | S3NotifyError:
        try:
            return self._space(topic, shard, wanted)
        except S3NotifyError as error:
            return error

    def _space(self, topic: Topic, shard: int, wanted: int) -> int:
        """Take space for up to `wanted` entries; how many it is."""
        quota = topic.quotas[shard]
        ceiling = shard_capacity(shard, topic.settings) - quota.base
        key = depth_key(topic.epoch, shard, quota.generation)
        asked = min(wanted, ceiling)
        for attempt in range(ATTEMPTS):
            if asked <= 0:
                return 0
            try:
                outcome = self._records.add(depth_partition(topic.name), key, asked, ceiling=ceiling)
                if isinstance(outcome, int):
                    return asked
                if isinstance(outcome, Conflict):
                    asked = min(wanted, ceiling - self._shards.counted(topic, shard))
                    continue
                # Unknown: if it was applied, this space is unused until the reconciler counts again.
            except UnavailableError:
                if attempt == ATTEMPTS - 1:
                    raise
            self._clock.sleep(backoff_seconds(attempt, self._clock))
        raise UnavailableError(f"no space could be counted in topic {topic.name!r}, shard {shard}; try again")

    def _give_back(self, topic: Topic, rooms: Iterable[tuple[int, int]]) -> None:
        places: Counter[Place] = Counter()
        for shard, number in rooms:
            places[_place(topic, shard, "")] += number
        self._shards.give_back_rooms(places)

    # Segments.

    def _create_all(
        self, topic: Topic, rooms: Iterable[tuple[int, int]], drafts: Sequence[_Draft]
    ) -> list[_Created]:
        """The first drafts go where the first space was found."""
        parts: list[tuple[int, Sequence[_Draft]]] = []
        start = 0
        for shard, number in rooms:
            of_shard = drafts[start : start + number]
            parts += [(shard, of_shard[part]) for part in parts_of([draft.bytes for draft in of_shard])]
            start += number
        return self._shards.in_parallel(lambda part: self._create(topic, *part), parts)

    def _create(self, topic: Topic, shard: int, drafts: Sequence[_Draft]) -> _Created:
        """Create the segment. One in doubt is left to the reconciler with its space, and another one is made."""
        place = _place(topic, shard, "")
        for attempt in range(ATTEMPTS):
            try:
                if attempt and (got := self._space(topic, shard, len(drafts))) < len(drafts):
                    self._give_back(topic, [(shard, got)])
                    break
            except S3NotifyError as error:
                return _Created(drafts=drafts, error=error)
            try:
                place = _place(
                    topic, shard, segment_key(shard, _name(self._clock), (draft.slot for draft in drafts))
                )
                with suppress(UnknownOutcomeError):
                    if (segment := self._shards.create(_segment(place, drafts))) is not None:
                        return _Created(drafts=drafts, segment=segment)
            except (UnavailableError, UsageError) as error:
                return _Created(drafts=drafts, error=error, unsent=place)
        key = drafts[0].event.key
        doubt = UnknownOutcomeError(f"no reservation for {key!r} could be confirmed; try again")
        return _Created(drafts=drafts, error=doubt)

    def _undo(self, created: Sequence[_Created], *, in_time: bool) -> None:
        """Remove what was created. Late, a reconciler may have given some of its space back already."""
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


def _place(topic: Topic, shard: int, key: str) -> Place:
    quota = topic.quotas[shard].generation
    return Place(topic=topic.name, epoch=topic.epoch, shard=shard, key=key, quota=quota)


def _name(clock: Clock) -> str:
    """Unique. The time comes first, so that segments are listed roughly by age."""
    return f"{clock.wall_ms():012x}-{unique_name(clock)[:16]}"


def _segment(place: Place, drafts: Sequence[_Draft]) -> Segment:
    return Segment(
        place=place,
        entries=tuple(
            Entry(place=place, n=n, slot=draft.slot, state="reserved", event=draft.event)
            for n, draft in enumerate(drafts)
        ),
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


def _unchanged(before: Topic, after: Topic, shards: Iterable[int], *, refused: bool) -> bool:
    """Whether the count is still valid. A refusal is valid only under the topic's current settings and quotas."""
    if before.epoch != after.epoch:
        return False
    if refused and (before.settings, before.quotas) != (after.settings, after.quotas):
        return False
    return all(before.quotas[shard].generation == after.quotas[shard].generation for shard in shards)
