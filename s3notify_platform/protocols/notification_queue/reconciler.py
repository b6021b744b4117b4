"""Resolves stale reservations by HEAD, frees the room that crashed processes still hold, and removes segments of
deleted topics.

Any process may run a reconciler for any shard, even if it does not own the shard. Several reconcilers may work on one
shard at the same time: each change requires the record version that was read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import IfMatch, ObjectMeta, Record
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Quota,
    Topic,
    Upload,
    depth_key,
    depth_partition,
)
from s3notify_platform.protocols.notification_queue.queue import NotificationQueue
from s3notify_platform.protocols.notification_queue.rooms import SEALED, idle_ceiling
from s3notify_platform.protocols.notification_queue.segments import Segment, shard_prefix
from s3notify_platform.protocols.updates import Stored, written_by

LEAK_SECONDS = 30.0
"""A shard is recounted if its counter was above the number of entries for this many seconds. No guarantee depends on
this value.
"""

IDLE_LEAKS = 20
"""The factor by which `LEAK_SECONDS` is multiplied if a counter is too high, and the counter causes no refusals. The
counter must not change during this time: a counter that changes shows that writers may still use the room.
"""

SCAN_EVERY = 20
"""Passes between two scans of a shard whose counter is 0. These scans only remove garbage, so they may be rare."""

Head = Callable[[str], ObjectMeta | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The result of one pass."""

    committed: int = 0
    aborted: int = 0
    swept: int = 0
    recounted: int = 0
    waiting: int = 0
    """Reservations that are not stale yet, or whose outcome could not be determined yet."""
    resolved: tuple[Entry, ...] = field(default=(), compare=False)
    """Entries that this pass committed. These entries are not signalled yet."""
    pending: tuple[Entry, ...] = field(default=(), compare=False)
    """Entries that were already committed when they were scanned."""


@dataclass(slots=True, kw_only=True)
class _Pass:
    """The content of one shard in one scan. `current`: the number of entries that the current quota generation counts.
    `older`: the number of entries that older generations count.
    """

    current: int = 0
    older: int = 0
    foreign: list[Segment] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def entries(self, state: str) -> list[Entry]:
        return [entry for segment in self.segments for entry in segment.entries if entry.state == state]


@dataclass(slots=True, kw_only=True)
class _Shard:
    """The facts about one shard that are remembered between passes."""

    since: dict[tuple[str, Upload | None], float] = field(default_factory=dict)
    """For each segment, the time at which a reservation in it was first seen. A reservation with an upload has its own
    time: the time at which the upload's present state was first seen.
    """
    records: dict[str, Record] = field(default_factory=dict)
    """The records of the last scan: if the queue is on a bucket, only changed records are read again."""
    unscanned: int = SCAN_EVERY
    """Passes since the last scan."""
    excess: tuple[tuple[int, int | None], float] | None = None
    """Set if the counter is too high. The pair has the quota generation and the counter (None: the counter may change
    meanwhile). The last item is the time since which the counter has been too high.
    """
    quota: tuple[str, int, float] | None = None
    """Epoch and generation of the quota, and the time at which both were first seen."""
    unneeded: bool = False
    """True if there may be counters of earlier generations."""


def resolve(event: Event, found: ObjectMeta | None) -> Event | None:
    """The event to deliver for a reservation whose writer is gone; None if the reserved change did not happen. Pure.

    The event describes the object that HEAD found, so the event is always true. A put counts as happened if HEAD found
    an object other than the version that the put should replace. The object found may be a later object of another
    writer; a second announcement of that object is harmless. A delete counts as happened if there is no object.
    """
    if event.op == "delete":
        return event if found is None else None
    if found is None:
        return None
    ours = found.etag == event.etag or written_by(found, event.writer)
    if not ours and isinstance(event.precondition, IfMatch) and found.etag == event.precondition.etag:
        return None
    return replace(event, etag=found.etag, size=found.size, upload=None, metadata=found.metadata)


def _seen_as(entry: Entry) -> tuple[str, Upload | None]:
    return entry.place.key, entry.event.upload


class Reconciler:
    """Reconciles the shards of topics. Use a reconciler in one thread, and keep it: the reconciler remembers when it
    first saw each reservation.

    A new reconciler waits the full `stale_seconds` again before it resolves anything. A pass costs 1 read, 1 read for
    each shard, and 1 scan for each shard that is not empty (on a bucket: a LIST for each 1000 segments, and a GET for
    each segment that changed since the last pass). Stale reservations cost 1 HEAD each, in parallel; 1 write for each
    of their segments; and 1 `add` for each shard in which reservations were aborted.
    """

    def __init__(self, queue: NotificationQueue, *, leak_seconds: float = LEAK_SECONDS) -> None:
        self._queue = queue
        self._clock = queue.clock
        self._leak_seconds = leak_seconds
        self._shards: dict[tuple[str, int], _Shard] = {}

    def resolve_stale(
        self,
        topic: str,
        head: Head,
        *,
        shards: Iterable[int] | None = None,
        bucket: str = "",
        announce: Callable[[Event], None] = lambda _: None,
        abort: Callable[[Event], None] = lambda _: None,
    ) -> Reconciled:
        """Makes one pass over the shards (default: all). `NotFoundError` if there is no such topic.

        A reservation is stale after the topic's `stale_seconds`. This time begins when this process first sees the
        reservation, and is measured on the clock of this process. `head` looks up a key in the store that contains the
        topic's objects, by HEAD if HEAD is allowed. `announce` is called with each change that has happened, before its
        entry is committed. Before the HEAD, `abort` is called with each change that an upload writes. So an object that
        the HEAD does not find cannot appear later. If one of these calls finds its store unavailable, the reservation
        waits for a later pass. A reservation that names another `bucket` also waits. `UnavailableError`: the pass was
        cut short; continue later.
        """
        reconciled: Counter[str] = Counter()
        resolved: list[Entry] = []
        pending: list[Entry] = []
        found = self._queue.topics.get(topic)
        for shard in shards if shards is not None else range(found.settings.shards):
            # `outdated`: no writer uses an older quota any more. The value is computed before the scan, so that the
            # scan finds each entry that an older quota has granted.
            outdated = self._seen_for(found, shard) >= self._queue.topics.outdated_seconds
            counted = self._queue.shards.counted(found, shard)
            if self._may_skip(found, shard, counted):
                continue
            seen = self._scan(found, shard)
            pending += seen.entries("committed")
            stale = self._stale(found, shard, seen, bucket)
            reconciled["waiting"] += len(seen.entries("reserved")) - len(stale)
            resolved += self._resolve_stale(seen, stale, (abort, head, announce), reconciled)
            self._sweep(found.name, seen.foreign, reconciled)
            if outdated:
                self._shrink_base(found, shard, seen.older)
                self._drop_counters(found, shard)
            if self._leaks(found, shard, counted, counted - seen.current):
                reconciled["recounted"] += self._recount(found, shard, counted)
        return Reconciled(**reconciled, resolved=tuple(resolved), pending=tuple(pending))

    def forget(self, keep: Iterable[str]) -> None:
        """Forgets all topics except those in `keep`."""
        names = set(keep)
        self._shards = {at: shard for at, shard in self._shards.items() if at[0] in names}

    def _at(self, topic: Topic, shard: int) -> _Shard:
        return self._shards.setdefault((topic.name, shard), _Shard())

    def _seen_for(self, topic: Topic, shard: int) -> float:
        """Seconds for which this process has seen the shard's quota generation."""
        known, now = self._at(topic, shard), self._clock.monotonic()
        seen = topic.epoch, topic.quotas[shard].generation
        if known.quota is None or known.quota[:2] != seen:
            known.quota, known.unneeded = (*seen, now), seen[1] > 0
        return now - known.quota[2]

    def _may_skip(self, topic: Topic, shard: int, counted: int) -> bool:
        """True if the shard certainly has no granted entry. Counters are never too low, so a counter of 0 is exact."""
        known = self._at(topic, shard)
        if counted or topic.quotas[shard].base or known.records or known.unscanned >= SCAN_EVERY:
            known.unscanned = 0
            return False
        known.unscanned += 1
        known.excess = None
        return True

    def _stale(self, topic: Topic, shard: int, seen: _Pass, bucket: str) -> list[Entry]:
        known, after = self._at(topic, shard), self._queue.stale_seconds(topic)
        now, before = self._clock.monotonic(), known.since
        reserved = seen.entries("reserved")
        known.since = {seen_as: before.get(seen_as, now) for seen_as in map(_seen_as, reserved)}
        return [
            entry
            for entry in reserved
            if now - known.since[_seen_as(entry)] >= after
            and (not bucket or entry.event.bucket in ("", bucket))
        ]

    def _resolve_stale(
        self,
        seen: _Pass,
        stale: list[Entry],
        calls: tuple[Callable[[Event], None], Head, Callable[[Event], None]],
        reconciled: Counter[str],
    ) -> list[Entry]:
        """Resolves stale reservations of one shard. Returns the entries that were committed."""
        if not stale:
            return []
        abort, head, announce = calls

        def look(entry: Entry) -> tuple[Event | None] | None:
            """Returns a tuple of one item: the event, or None if the event's change did not happen. Returns None if the
            outcome cannot be known now.
            """
            try:
                if entry.event.upload is not None:
                    abort(entry.event)
                event = resolve(entry.event, head(entry.event.key))
                if event is not None:
                    announce(event)
            except (UnavailableError, UnknownOutcomeError):
                return None
            return (event,)

        answers = zip(stale, self._queue.shards.in_parallel(look, stale), strict=True)
        # A reservation that was renewed meanwhile has another `upload`, and so no item in `known`: its writer is alive.
        known = {(entry.id, entry.event.upload): answer[0] for entry, answer in answers if answer is not None}
        touched = {entry.place for entry in stale if (entry.id, entry.event.upload) in known}
        segments = [segment for segment in seen.segments if segment.place in touched]
        changed = self._queue.shards.in_parallel(lambda segment: self._settle(segment, known), segments)
        committed = [entry for part, _ in changed for entry in part]
        aborted = [entry for _, part in changed for entry in part]
        self._queue.shards.give_back(aborted)
        reconciled["committed"] += len(committed)
        reconciled["aborted"] += len(aborted)
        reconciled["waiting"] += len(stale) - len(known)
        return committed

    def _settle(
        self, segment: Segment, known: Mapping[tuple[str, Upload | None], Event | None]
    ) -> tuple[list[Entry], list[Entry]]:
        """Commits and aborts the reservations whose outcome is known. Returns the entries that this call changed."""

        def edit(found: Segment) -> tuple[Segment, tuple[list[Entry], list[Entry]]]:
            committed: list[Entry] = []
            aborted: list[Entry] = []

            def settled(entry: Entry) -> Entry | None:
                looked_at = entry.id, entry.event.upload
                if entry.state != "reserved" or looked_at not in known:
                    return entry
                if (event := known[looked_at]) is None:
                    aborted.append(entry)
                    return None
                # The object's metadata may be larger than the reserved metadata, and the entry must not grow. So the
                # entry keeps the reserved metadata if the object has all of it, and otherwise has no metadata.
                kept, found = entry.event.metadata or {}, event.metadata or {}
                metadata = kept if kept.items() <= found.items() else None
                committed.append(replace(entry, state="committed", event=replace(event, metadata=metadata)))
                return committed[-1]

            return found.edited(settled), (committed, aborted)

        try:
            edited = self._queue.shards.edit(segment.place, edit, known=segment)
        except (UnavailableError, UnknownOutcomeError):
            return [], []
        return edited.result if edited is not None else ([], [])

    def _scan(self, topic: Topic, shard: int) -> _Pass:
        seen, known = _Pass(), self._at(topic, shard).records
        for segment in self._queue.shards.scan_name(topic.name, shard_prefix(shard), known=known):
            if segment.place.epoch != topic.epoch:
                seen.foreign.append(segment)
                continue
            seen.segments.append(segment)
            generation = topic.quotas[shard].generation
            seen.current += len(segment.entries) if segment.place.quota == generation else 0
            seen.older += len(segment.entries) if segment.place.quota < generation else 0
        return seen

    def _sweep(self, name: str, foreign: list[Segment], reconciled: Counter[str]) -> None:
        if not foreign:
            return
        # This read comes after the scan, so any other epoch is a former epoch. A topic never gets a former epoch again.
        epoch = self._queue.topics.get(name).epoch
        for segment in foreign:
            if segment.place.epoch != epoch:
                place = segment.place
                with suppress(UnavailableError, UnknownOutcomeError):
                    outcome = self._queue.updates.remove(place.partition, place.key, expected=segment.version)
                    reconciled["swept"] += len(segment.entries) if isinstance(outcome, Stored) else 0

    def _leaks(self, topic: Topic, shard: int, counted: int, excess: int) -> bool:
        """True if room is lost: the counter was above the number of entries in every pass for a while.

        Writers may have spare room. As long as at most `idle_ceiling` entries are counted, no other writer is refused
        because of this spare room. So spare room is left to the writers as long as the counter changes. Above
        `idle_ceiling`, writers take no more spare room, and soon use up the spare room that they have.
        """
        quota, now, known = topic.quotas[shard], self._clock.monotonic(), self._at(topic, shard)
        if excess <= 0:
            known.excess = None
            return False
        scarce = counted + quota.base > idle_ceiling(shard, topic.settings)
        unmoved = quota.generation, None if scarce else counted
        if known.excess is None or known.excess[0] != unmoved:
            known.excess = (unmoved, now)
        wait = self._leak_seconds * (1 if scarce else IDLE_LEAKS)
        return now - known.excess[1] >= wait or counted >= SEALED

    def _recount(self, topic: Topic, shard: int, counted: int) -> bool:
        """Begins a new quota generation. The new base is the former base plus the value of the former counter. The new
        base shrinks later.

        The counter is sealed first, so that it gives no more room: there are never more entries than the counter has
        counted. Then the reconciler waits until no writer relies on the former generation. After the wait, a scan finds
        the entries that these writers were granted, and the base shrinks to their number (`_shrink_base`). A writer
        that creates a segment later reads the topic again before the grant, and notices the change. So the bound is
        strict, even if a process pauses for a long time. If the recount is interrupted between the seal and the new
        generation, the shard refuses reservations until the next pass of any reconciler.
        """
        before, used = topic.quotas[shard], self._seal(topic, shard, counted)

        def switch(_: Topic, quota: Quota) -> Quota:
            same = quota.generation == before.generation
            return Quota(generation=quota.generation + 1, base=quota.base + used) if same else quota

        after = self._change_quota(topic, shard, switch)
        self._at(topic, shard).excess = None
        if after.epoch != topic.epoch or after.quotas[shard].generation == before.generation:
            return False
        self._seen_for(after, shard)
        return True

    def _seal(self, topic: Topic, shard: int, counted: int) -> int:
        """Raises the shard's counter above every ceiling, unless the counter is there already. Returns the counter's
        former value. Cost: 1 `add`.
        """
        if counted < SEALED:
            key = depth_key(topic.epoch, shard, topic.quotas[shard].generation)
            added = self._queue.records.add(depth_partition(topic.name), key, SEALED)
            if not isinstance(added, int):
                raise UnavailableError(
                    f"the counter of topic {topic.name!r}, shard {shard}, could not be sealed: {added}; try again"
                )
            counted = added
        return counted % SEALED

    def _shrink_base(self, topic: Topic, shard: int, older: int) -> None:
        quota = topic.quotas[shard]
        if older >= quota.base:
            return

        def shrink(_: Topic, found: Quota) -> Quota:
            same = found.generation == quota.generation
            return replace(found, base=min(found.base, older)) if same else found

        self._change_quota(topic, shard, shrink)

    def _change_quota(self, topic: Topic, shard: int, change: Callable[[Topic, Quota], Quota]) -> Topic:
        """Changes the shard's quota, unless the topic was created again. Returns the topic as it is now."""

        def changed(now: Topic) -> Topic:
            if now.epoch != topic.epoch:
                return now
            quotas = list(now.quotas)
            quotas[shard] = change(now, quotas[shard])
            return replace(now, quotas=tuple(quotas))

        return self._queue.topics.change(topic.name, changed)

    def _drop_counters(self, topic: Topic, shard: int) -> None:
        known = self._at(topic, shard)
        if not known.unneeded:
            return
        partition, prefix = depth_partition(topic.name), f"{topic.epoch}.{shard:03d}."
        for record in self._queue.records.scan(partition, prefix=prefix):
            if int(record.key.removeprefix(prefix)) < topic.quotas[shard].generation:
                self._queue.updates.remove(partition, record.key, expected=record.version)
        known.unneeded = False
