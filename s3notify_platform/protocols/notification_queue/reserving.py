"""How space is counted and granted: the writers' side of the queue, up to a durable reservation."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from s3notify_platform.clock import Clock, backoff_seconds, unique_name
from s3notify_platform.errors import S3NotifyError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.ports import Conflict, ETag, RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Topic,
    depth_key,
    depth_partition,
    encode_entry,
    shard_capacity,
    shard_of,
)
from s3notify_platform.protocols.notification_queue.shards import Shards
from s3notify_platform.protocols.notification_queue.topics import KnownTopics
from s3notify_platform.protocols.updates import (
    ATTEMPTS,
    Stored,
    Updates,
)
from s3notify_platform.slots import slot_of

CLOCK_SKEW = 3.0
"""How many times as fast as another machine's clock one may run."""

RETRY_AFTER_SECONDS = 1.0
"""How long a refused writer is to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Promised space for one notification. The entry is durable before the object is written."""

    entry: Entry
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
    """The shard is full; nothing was written. Do not write the object; try again after `retry_after_seconds`."""

    retry_after_seconds: float


class Reservations:
    """Reservations in the topics of one record store. Thread-safe; holds no state."""

    def __init__(
        self, records: RecordStore, clock: Clock, *, shards: Shards, topics: KnownTopics, stale_seconds: float
    ) -> None:
        self._records = records
        self._clock = clock
        self._updates = Updates(records, clock)
        self._shards = shards
        self._topics = topics
        self._stale_seconds = stale_seconds

    def grant(self, name: str, events: tuple[Event, ...]) -> tuple[Reservation | QuotaExceeded, ...]:
        """Count, create, then read the topic again; if its epoch or quota changed, undo and repeat.

        The last read makes both the bound and `delete` strict. An entry that existed while its topic still had this
        epoch and this quota generation is found by every later deletion or recount.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                self._clock.sleep(backoff_seconds(attempt, self._clock))
            since = self._clock.monotonic()
            topic = self._topics.get(name)
            drafts = [self._draft(topic, event) for event in events]
            spaces = self._spaces(topic, drafts)
            accepted = _first(drafts, spaces)
            results = self._shards.in_parallel(lambda draft: self._create(topic, draft, since), accepted)  # noqa: B023
            errors = [result for result in results if isinstance(result, S3NotifyError)]
            try:
                now = self._topics.current(name)
            except S3NotifyError as error:
                now, errors = topic, [error, *errors]
            created = {
                id(draft): result
                for draft, result in zip(accepted, results, strict=True)
                if isinstance(result, Reservation)
            }
            held = _unchanged(topic, now, spaces, refused=len(accepted) < len(drafts))
            in_time = self.fresh_since(since)
            if held and in_time and not errors:
                refusal = QuotaExceeded(retry_after_seconds=RETRY_AFTER_SECONDS)
                return tuple(created.get(id(draft), refusal) for draft in drafts)
            removed, _ = self._shards.remove_each([reservation.entry for reservation in created.values()])
            unsent = [
                draft
                for draft, result in zip(accepted, results, strict=True)
                if isinstance(result, UnavailableError)
            ]
            if in_time:  # else a reconciler may have given some of it back already
                self._shards.give_back([*removed, *unsent])
            if errors:
                raise errors[0]
        raise UnavailableError(f"topic {name!r} kept changing; nothing was reserved, try again")

    def fits(self, name: str, event: Event) -> bool:
        """See `NotificationQueue.fits`."""
        found = self._topics.get(name)
        try:
            self._draft(found, event)
        except UsageError:
            return False
        return True

    def fresh_since(self, moment: float) -> bool:
        """See `NotificationQueue.fresh_since`."""
        return self._clock.monotonic() - moment < self._stale_seconds / CLOCK_SKEW

    def _draft(self, topic: Topic, event: Event) -> Entry:
        settings, wall_ms = topic.settings, self._clock.wall_ms()
        slot = slot_of(event.key, settings.slots)
        shard = shard_of(slot, settings)
        entry = Entry(
            topic=topic.name,
            shard=shard,
            epoch=topic.epoch,
            id=_entry_id(self._clock),
            slot=slot,
            quota=topic.quotas[shard].generation,
            state="reserved",
            event=replace(
                event,
                time_ms=event.time_ms or wall_ms,
                sequencer=event.sequencer or f"{wall_ms:016X}{self._clock.random_bytes(2).hex().upper()}",
            ),
        )
        # The size as delivered: a committed entry no longer holds `announced_to`.
        if (size := len(encode_entry(replace(entry, state="committed")))) > settings.max_event_bytes:
            raise UsageError(
                f"the event of {event.key[:60]!r} has {size} bytes; topic {topic.name!r} takes "
                f"{settings.max_event_bytes} (max_event_bytes)"
            )
        return entry

    def _spaces(self, topic: Topic, drafts: Sequence[Entry]) -> dict[int, int]:
        """How many entries each shard takes, counted already."""
        wanted = sorted(Counter(draft.shard for draft in drafts).items())

        def take(shard_and_number: tuple[int, int]) -> int | S3NotifyError:
            try:
                return self._space(topic, *shard_and_number)
            except S3NotifyError as error:
                return error

        answers = self._shards.in_parallel(take, wanted)
        errors = [answer for answer in answers if isinstance(answer, S3NotifyError)]
        spaces = {
            shard: 0 if isinstance(answer, S3NotifyError) else answer
            for (shard, _), answer in zip(wanted, answers, strict=True)
        }
        if errors:
            self._shards.give_back(_first(drafts, spaces))
            raise errors[0]
        return spaces

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

    def _create(self, topic: Topic, draft: Entry, since: float) -> Reservation | S3NotifyError:
        """Create the entry. One in doubt is left to the reconciler with its space, and another one is made."""
        try:
            for _ in range(ATTEMPTS):
                entry = replace(draft, id=_entry_id(self._clock))
                with suppress(UnknownOutcomeError):
                    outcome = self._updates.create(entry.partition, entry.key, encode_entry(entry), once=True)
                    if isinstance(outcome, Stored):
                        return Reservation(entry=replace(entry, version=outcome.version), since=since)
                if not self._space(topic, entry.shard, 1):
                    break
        except (UnavailableError, UsageError) as error:
            return error
        return UnknownOutcomeError(f"no reservation for {draft.event.key!r} could be confirmed; try again")


def _entry_id(clock: Clock) -> str:
    """Unique. The time comes first, so that the entries of a slot are listed roughly by age."""
    return f"{clock.wall_ms():012x}-{unique_name(clock)[:16]}"


def _first(drafts: Iterable[Entry], spaces: Mapping[int, int]) -> list[Entry]:
    """The first drafts of each shard, as many as it has space for."""
    left = dict(spaces)
    accepted = []
    for draft in drafts:
        if left[draft.shard] > 0:
            left[draft.shard] -= 1
            accepted.append(draft)
    return accepted


def _unchanged(before: Topic, after: Topic, shards: Iterable[int], *, refused: bool) -> bool:
    """Whether the count is still valid. A refusal is valid only under the topic's current settings and quotas."""
    if before.epoch != after.epoch:
        return False
    if refused and (before.settings, before.quotas) != (after.settings, after.quotas):
        return False
    return all(before.quotas[shard].generation == after.quotas[shard].generation for shard in shards)
