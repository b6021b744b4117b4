"""Stale reservations resolved by HEAD, room lost to crashes counted anew, garbage of deleted topics swept.

Any process may tend any shard, owner or not, several at once: each change is conditional on what was seen.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from s3notify_platform.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import IfMatch, ObjectMeta, Record
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Meter,
    Topic,
    decode_entry,
    depth_partition,
    encode_entry,
    queue_partition,
    shard_capacity,
)
from s3notify_platform.protocols.notification_queue.queue import NotificationQueue
from s3notify_platform.protocols.notification_queue.settled import Stored

WRITER = "s3notify-writer"
"""Metadata of an object: the id of the call that wrote it, as conditional commits put it there."""

LEAK_SECONDS = 30.0
"""A counter above what is there for so long is counted anew. No guarantee hangs on it: it may be any number."""

Head = Callable[[str], ObjectMeta | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """What one pass came to."""

    committed: int = 0
    aborted: int = 0
    swept: int = 0
    recounted: int = 0
    waiting: int = 0
    """Reservations not yet stale, or whose HEAD failed."""


@dataclass(slots=True, kw_only=True)
class _Pass:
    """What was seen of one shard in one scan."""

    current: int = 0
    older: int = 0
    foreign: list[Record] = field(default_factory=list)
    reserved: list[Entry] = field(default_factory=list)


def resolve(event: Event, found: ObjectMeta | None) -> Event | None:
    """The event to deliver for a reservation whose writer is gone; None if its change did not happen. Pure.

    The event describes what HEAD found, so it is never false. A put counts as happened unless nothing is
    there, or the very version that it was to replace: the object may be another writer's later one, and to
    tell of it twice is harmless. A delete counts as happened if nothing is there.
    """
    if event.op == "delete":
        return event if found is None else None
    if found is None:
        return None
    ours = found.etag == event.etag or (event.writer and found.metadata.get(WRITER) == event.writer)
    if not ours and isinstance(event.precondition, IfMatch) and found.etag == event.precondition.etag:
        return None
    return replace(event, etag=found.etag, size=found.size)


class Caretaker:
    """Looks after the shards of topics. One thread; keep it between passes: it remembers what it saw when.

    A new one waits the full `stale_seconds` of the queue again before it resolves anything. A pass costs 1 read,
    1 scan and 1 read for each shard, and for each stale reservation 1 HEAD and 1 write (aborted: and 1 `add`).
    """

    def __init__(
        self,
        queue: NotificationQueue,
        *,
        leak_seconds: float = LEAK_SECONDS,
    ) -> None:
        self._queue = queue
        self._clock = queue.clock
        self._leak_seconds = leak_seconds
        self._seen: dict[tuple[str, int], dict[str, float]] = {}
        self._excess: dict[tuple[str, int], tuple[int, float]] = {}

    def resolve_stale(self, topic: str, head: Head, *, shards: Iterable[int] | None = None) -> Tended:
        """One pass over the shards (default: all). `NotFoundError` without such a topic.

        A reservation is stale once this process has seen it for `stale_seconds` on its own clock. `head` is
        the object store's, of the bucket that the topic's keys are in; where it is unavailable the
        reservation waits. `UnavailableError`: the pass was cut short; go on later.
        """
        tended: Counter[str] = Counter()
        found = self._queue.topics.get(topic)
        for shard in shards if shards is not None else range(found.settings.shards):
            self._tend(found, shard, head, tended)
        return Tended(**tended)

    def _tend(self, topic: Topic, shard: int, head: Head, tended: Counter[str]) -> None:
        # The topic was read before: what is granted under an older meter than its is there to be scanned.
        name = topic.name
        counted = self._queue.counted(topic, shard)
        seen = self._scan(topic, shard)
        now = self._clock.monotonic()
        before = self._seen.get((name, shard), {})
        waiting = {entry.id: before.get(entry.id, now) for entry in seen.reserved}
        self._seen[name, shard] = waiting
        for entry in seen.reserved:
            if now - waiting[entry.id] >= self._queue.stale_seconds:
                self._resolve(entry, head, tended)
            else:
                tended["waiting"] += 1
        self._sweep(name, shard, seen.foreign, tended)
        self._shrink_base(topic, shard, seen.older)
        if self._leaks(topic, shard, counted - seen.current):
            self._recount(topic, shard, tended)

    def _scan(self, topic: Topic, shard: int) -> _Pass:
        seen = _Pass()
        for record in self._queue.records.scan(queue_partition(topic.name, shard)):
            entry = decode_entry(topic.name, shard, record)
            if entry.epoch != topic.epoch:
                seen.foreign.append(record)
                continue
            if entry.meter == topic.meters[shard].generation:
                seen.current += 1
            elif entry.meter < topic.meters[shard].generation:
                seen.older += 1
            if entry.state == "reserved":
                seen.reserved.append(entry)
        return seen

    def _resolve(self, entry: Entry, head: Head, tended: Counter[str]) -> None:
        try:
            event = resolve(entry.event, head(entry.event.key))
            if event is None:
                outcome = self._queue.remove_one(entry)
                if outcome is True:
                    self._queue.give_back([entry])
                tended["aborted"] += outcome is True
                return
            value = encode_entry(replace(entry, state="committed", event=event))
            partition = self._queue.partition(entry)
            settled = self._queue.writes.replace(partition, entry.key, value, expected=entry.version)
            tended["committed"] += isinstance(settled, Stored)
        except (UnavailableError, UnknownOutcomeError):
            tended["waiting"] += 1

    def _sweep(self, name: str, shard: int, foreign: list[Record], tended: Counter[str]) -> None:
        if not foreign:
            return
        # Read after the entries were seen: an epoch that is not the topic's now will never be again.
        epoch = self._queue.topics.get(name).epoch
        for record in foreign:
            entry = decode_entry(name, shard, record)
            if entry.epoch != epoch:
                tended["swept"] += self._queue.remove_one(entry) is True

    def _leaks(self, topic: Topic, shard: int, excess: int) -> bool:
        """Whether the counter has stood above what is there in every pass for `leak_seconds`."""
        generation, now = topic.meters[shard].generation, self._clock.monotonic()
        known = self._excess.get((topic.name, shard))
        if excess <= 0:
            self._excess.pop((topic.name, shard), None)
            return False
        if known is None or known[0] != generation:
            self._excess[topic.name, shard] = (generation, now)
            return self._leak_seconds <= 0
        return now - known[1] >= self._leak_seconds

    def _recount(self, topic: Topic, shard: int, tended: Counter[str]) -> None:
        """A new meter: full at first, then as full as the entries that were there when it began.

        What was granted before the switch is there to be counted after it; what is granted after it counts
        with the new counter; who counted with the old one and was not granted finds out. So the bound holds
        whatever sleeps, and for however long. Cut short, the shard refuses until the next pass of anybody.
        """
        before = topic.meters[shard]

        def switch(now: Topic) -> Topic:
            if now.epoch != topic.epoch or now.meters[shard] != before:
                return now
            full = Meter(generation=before.generation + 1, base=shard_capacity(shard, now.settings))
            return _with_meter(now, shard, full)

        after = self._queue.topics.change(topic.name, switch)
        self._excess.pop((topic.name, shard), None)
        if after.epoch != topic.epoch or after.meters[shard].generation == before.generation:
            return
        self._shrink_base(after, shard, self._scan(after, shard).older)
        tended["recounted"] += 1
        self._drop_counters(after, shard)

    def _shrink_base(self, topic: Topic, shard: int, older: int) -> None:
        meter = topic.meters[shard]
        if older >= meter.base:
            return

        def shrink(now: Topic) -> Topic:
            found = now.meters[shard] if now.epoch == topic.epoch else None
            if found is None or found.generation != meter.generation or found.base <= older:
                return now
            return _with_meter(now, shard, replace(found, base=older))

        self._queue.topics.change(topic.name, shrink)

    def _drop_counters(self, topic: Topic, shard: int) -> None:
        partition, prefix = depth_partition(topic.name), f"{topic.epoch}.{shard:03d}."
        for record in self._queue.records.scan(partition, prefix=prefix):
            if int(record.key.removeprefix(prefix)) < topic.meters[shard].generation:
                self._queue.writes.remove(partition, record.key, expected=record.version)


def _with_meter(topic: Topic, shard: int, meter: Meter) -> Topic:
    meters = (*topic.meters[:shard], meter, *topic.meters[shard + 1 :])
    return replace(topic, meters=meters)
