"""Delivery of one shard by its owner: take a batch, then report each entry as delivered or failed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from s3notify_platform.kernel.clock import backoff_seconds
from s3notify_platform.kernel.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Record
from s3notify_platform.protocols.notification_queue.entries import (
    Claim,
    Entry,
    Place,
    dead_partition,
)
from s3notify_platform.protocols.notification_queue.owners import ShardLease, Worker, without_former
from s3notify_platform.protocols.notification_queue.segments import (
    Segment,
    encode_letter,
    letter_key,
    with_error,
)
from s3notify_platform.protocols.notification_queue.shards import by_place
from s3notify_platform.protocols.notification_queue.topic_settings import TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WillRetry:
    """The entry is back in the queue. This owner retries the entry after `after_seconds`; another owner retries the
    entry after its own backoff.
    """

    after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered:
    """The entry is in the dead letters, with its reason."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The entry belongs to another owner now; nothing was changed."""


FailedOutcome = WillRetry | DeadLettered | Fenced


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Entries that were not delivered. `begun=False`: the receiver certainly did not process them."""

    entries: tuple[Entry, ...]
    error: str
    begun: bool = True


@dataclass(slots=True, kw_only=True)
class _Watch:
    """The time since which this owner has watched an entry, and the time at which the entry is due, by this owner's
    clock.
    """

    since: float
    due: float


_Changes = dict[Place, dict[int, Entry | None]]
"""The new values of entries, by segment and number; None: the entry is removed."""


class ShardConsumer:
    """Delivers the entries of one shard under one lease. Use a consumer in one thread; a new lease needs a new
    consumer.

    The topic's `retry_seconds` and `retry_max_seconds` bound the backoff (full jitter) after a failed delivery.
    """

    def __init__(self, worker: Worker, lease: ShardLease) -> None:
        self.lease = lease
        self._worker = worker
        self._queue = worker.queue
        self.clock = worker.queue.clock
        self._claim = Claim(worker=worker.name, generation=lease.generation)
        self._segments: dict[Place, Segment] = {}
        """Segments with entries that are ready or in progress, as they were last read or written."""
        self._in_progress: dict[str, Place] = {}
        self._delivered: list[Entry] = []
        self._unserved: set[str] = set()
        self._watched: dict[str, _Watch] = {}
        self._met: set[str] = set()
        self._cursor: Iterator[Entry] | None = None
        self._waiting: dict[str, Record] = {}
        """The records that `expire` scanned, until an entry is delivered."""

    @property
    def busy(self) -> bool:
        """True if entries are being delivered: the lease should not be released now."""
        return bool(self._in_progress)

    def take(self, limit: int) -> tuple[Entry, ...]:
        """Up to `limit` entries to deliver. The call claims the entries for this owner, and counts their attempts.

        Takes the shard's entries in turn, so a failing entry does not delay later entries. A failing entry is taken
        again only after its backoff. An entry goes to the dead letters if its attempts or its time are used up.
        `FencedError`: the lease is lost; stop delivering. Requests: 1 write for each segment, 1 read of the owners, and
        1 scan for each pass over the shard. If the queue is on a bucket, a scan is 1 LIST, and 1 read for each segment
        that the scan reaches.
        """
        self._check()
        self.settle(())
        settings = self._worker.topic(self.lease).settings
        resumed = self._cursor is not None
        ready = self._next(limit, settings)
        if resumed and not ready:
            ready = self._next(limit, settings)
        claimed = self._claimed(ready)
        taken = tuple(entry for entry in claimed if not entry.reason)
        self._in_progress |= {entry.id: entry.place for entry in taken}
        self._forget_segments()
        return taken

    def rest(self) -> None:
        """Settles outstanding work, and delivers nothing. The time to live of entries does not run until the next
        `take`.

        Makes no request if nothing is outstanding.
        """
        self._check()
        self.settle(())
        self._watched.clear()
        self._cursor = None

    def expire(self) -> int:
        """Moves entries to the dead letters if their attempts or their time are used up. Returns their number.

        This method delivers no entry. Use it while nothing can be delivered. Requests and errors are the same as for
        `take`, but the call makes its own scan. The scan reads only segments that changed since the last `expire`.
        """
        self._check()
        settings = self._worker.topic(self.lease).settings
        judged = [self._judged(entry, settings) for entry in self._scan(self._waiting)]
        claimed = self._claimed([entry for entry in judged if entry.reason])
        self._forget_segments()
        return len(claimed)

    def done(self, entries: Iterable[Entry]) -> int:
        """Removes delivered entries. Returns the number of entries that this call removed; see `settle`."""
        self._delivered.extend(entries)
        return self._settle(())[0]

    def release(self, entries: Iterable[Entry]) -> None:
        """Gives back entries that are neither delivered nor failed: they will be taken again. Cost: no request."""
        delivered = {entry.id for entry in self._delivered}
        for entry in entries:
            if entry.id not in delivered:
                self._in_progress.pop(entry.id, None)

    def failed(self, entry: Entry, error: str, *, begun: bool = True) -> FailedOutcome:
        """Calls `settle` for one failed entry."""
        return self.settle((), [Failure(entries=(entry,), error=error, begun=begun)])[0]

    def settle(
        self, delivered: Iterable[Entry], failures: Sequence[Failure] = ()
    ) -> tuple[FailedOutcome, ...]:
        """Removes delivered entries. Stores the error of each failed entry, and backs off. Returns the outcomes of the
        failed entries, in order.

        A failed entry goes to the dead letters if its attempts or its time are used up. An entry that another owner has
        taken over meanwhile is left to that owner. If the store does not answer, a later call removes the delivered
        entries; this owner does not deliver these entries again. Requests: 1 write for each segment, 1 for each dead
        letter, 2 `add` if entries were removed, and 1 `add` if entries failed.
        """
        self._delivered.extend(delivered)
        return self._settle(failures)[1]

    def _settle(self, failures: Sequence[Failure]) -> tuple[int, tuple[FailedOutcome, ...]]:
        """Returns the number of delivered entries that were removed, and the outcomes of the failed entries."""
        failed = [self._after(entry, failure) for failure in failures for entry in failure.entries]
        delivered, self._delivered = self._delivered, []
        if delivered:
            self._waiting.clear()
        for entry in failed:
            self._in_progress.pop(entry.id, None)
        self._queue.shards.count(failed, "failed")
        letters = self._lettered([entry for entry in failed if entry.reason])
        changes: _Changes = {place: {} for place in by_place([*delivered, *failed])}
        for entry in delivered:
            changes[entry.place][entry.n] = None
        for entry in failed:
            changes[entry.place][entry.n] = (
                None if entry.id in letters else replace(entry, claim=None, reason="")
            )
        changed = self._change(changes)
        taken = []
        for entry in delivered:
            if (numbers := changed[entry.place]) is None:
                self._delivered.append(entry)
                continue
            self._in_progress.pop(entry.id, None)
            taken += [entry] if entry.n in numbers else []
        self._queue.shards.count(taken, "delivered")
        self._forget_segments()
        outcomes = (self._outcome(entry, changed[entry.place], dead=entry.id in letters) for entry in failed)
        return len(taken), tuple(outcomes)

    def _after(self, entry: Entry, failure: Failure) -> Entry:
        """The entry after this failure, with the error and the number of attempts. The result has a reason if the entry
        must not be retried.
        """
        aged = with_error(self._aged(entry), failure.error)
        after = aged if failure.begun else replace(aged, attempts=aged.attempts - 1)
        return replace(after, reason=exhausted(after, self._worker.topic(self.lease).settings))

    def _outcome(self, entry: Entry, changed: frozenset[int] | None, *, dead: bool) -> FailedOutcome:
        if changed is not None and entry.n not in changed:
            return Fenced()
        if dead:
            return DeadLettered(reason=entry.reason)
        # If the store did not answer, this owner keeps the claim, and also takes the entry again after this wait.
        wait = self._backoff(entry)
        self._watch(entry).due = self.clock.monotonic() + wait
        return WillRetry(after_seconds=wait)

    def _check(self) -> None:
        if not self._worker.valid(self.lease):
            raise FencedError(f"{self.lease} was not renewed in time, or has another owner: stop delivering")

    # Entries that are ready.

    def _scan(self, known: dict[str, Record] | None = None) -> Iterator[Entry]:
        """The committed entries of the shard that are not in progress. `known`: see `Shards.scan`."""
        topic = self._worker.topic(self.lease)
        for segment in self._queue.shards.scan(topic, self.lease.shard, known=known):
            self._segments[segment.place] = segment
            for entry in segment.entries:
                self._met.add(entry.id)
                if entry.state == "reserved":
                    continue
                if entry.id in self._in_progress:
                    if entry.claim != self._claim:
                        raise FencedError(f"{self.lease}: a successor has taken over {entry.id}")
                    continue
                # If an entry has a successor's claim, this owner is fenced, and will notice that soon.
                if entry.claim is None or entry.claim.generation <= self.lease.generation:
                    yield entry

    def _next(self, limit: int, settings: TopicSettings) -> list[Entry]:
        """Ready entries, beginning where the last call stopped. An entry has a `reason` if its attempts or its time are
        used up.
        """
        if self._cursor is None:
            self._met = set()
            self._cursor = self._scan()
        ready: list[Entry] = []
        cursor, self._cursor = self._cursor, None  # after an error, start from the beginning
        for entry in cursor:
            judged = self._judged(entry, settings)
            if not judged.reason and self.clock.monotonic() < self._watch(entry).due:
                continue
            ready.append(judged)
            if len(ready) == limit:
                self._cursor = cursor
                return ready
        for gone in self._watched.keys() - self._met - self._in_progress.keys():
            del self._watched[gone]
        self._unserved &= self._met
        return ready

    def _judged(self, entry: Entry, settings: TopicSettings) -> Entry:
        begun = replace(self._aged(entry), attempts=entry.attempts - (entry.id in self._unserved))
        return replace(entry, reason=exhausted(begun, settings))

    def _claimed(self, entries: Sequence[Entry]) -> list[Entry]:
        """Claims entries. Returns the entries that were claimed while this worker was the owner. If an entry has a
        `reason`, writes its dead letter.
        """
        segments = list(by_place(entries).values())
        claimed = [
            entry for part in self._queue.shards.in_parallel(self._claim_segment, segments) for entry in part
        ]
        # The attempt is counted, but begins only after the owners are read. If the read of the owners fails, the
        # attempt is not counted a second time.
        self._unserved |= {entry.id for entry in claimed}
        if claimed and not self._worker.verify(self.lease):
            raise FencedError(f"{self.lease} has another owner: stop delivering")
        self._unserved -= {entry.id for entry in claimed}
        letters = self._lettered([entry for entry in claimed if entry.reason])
        changes: _Changes = {}
        for entry in claimed:
            if entry.id in letters:
                changes.setdefault(entry.place, {})[entry.n] = None
        self._change(changes)
        return claimed

    def _claim_segment(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Claims these entries of one segment. Each attempt writes the same values."""
        place = entries[0].place
        wanted = {entry.n: self._begun(entry) for entry in entries}

        def edit(found: Segment) -> tuple[Segment, list[Entry]]:
            newest = max((entry.claim.generation for entry in found.entries if entry.claim), default=0)
            if newest > self.lease.generation:
                return found, []
            there = {entry.n for entry in found.entries}
            claimed = [begun for n, begun in wanted.items() if n in there]
            mine = without_former(found, self.lease.generation)
            return mine.edited(lambda entry: replace(wanted.get(entry.n, entry), reason="")), claimed

        try:
            edited = self._queue.shards.edit(place, edit, known=self._segments.get(place))
        except (UnavailableError, UnknownOutcomeError):
            return ()
        if edited is None:
            return ()
        self._segments[place] = edited.segment
        for entry in edited.result:
            self._watch(entry).since = self.clock.monotonic()
        return edited.result

    def _begun(self, entry: Entry) -> Entry:
        counts = not entry.reason and entry.id not in self._unserved
        return replace(self._aged(entry), attempts=entry.attempts + counts, claim=self._claim)

    # Results of deliveries.

    def _lettered(self, entries: Sequence[Entry]) -> set[str]:
        """Writes dead letters before their entries are removed, so that the next owner can finish an interrupted move.
        Returns the ids written.
        """
        if not self._worker.valid(self.lease):
            return set()

        def write(entry: Entry) -> bool:
            try:
                self._queue.updates.create(
                    dead_partition(entry.topic), letter_key(entry), encode_letter(entry)
                )
            except (UnavailableError, UnknownOutcomeError):
                return False
            return True

        written = self._queue.shards.in_parallel(write, entries)
        return {entry.id for entry, done in zip(entries, written, strict=True) if done}

    def _change(self, changes: _Changes) -> dict[Place, frozenset[int] | None]:
        """Changes entries that this owner still owns. For each segment, returns the numbers of the changed entries, or
        None if the store did not answer.
        """
        places = list(changes)
        answers = self._queue.shards.in_parallel(
            lambda place: self._change_one(place, changes[place]), places
        )
        changed = dict(zip(places, answers, strict=True))
        rooms = {
            place: sum(changes[place][n] is None for n in numbers or ()) for place, numbers in changed.items()
        }
        self._queue.shards.give_back_rooms(rooms)
        return changed

    def _change_one(self, place: Place, changes: dict[int, Entry | None]) -> frozenset[int] | None:
        def edit(found: Segment) -> tuple[Segment, frozenset[int]]:
            mine = frozenset(
                entry.n for entry in found.entries if entry.n in changes and entry.claim == self._claim
            )
            return found.edited(lambda entry: changes[entry.n] if entry.n in mine else entry), mine

        try:
            edited = self._queue.shards.edit(place, edit, known=self._segments.get(place))
        except (UnavailableError, UnknownOutcomeError):
            return None
        if edited is None:
            return frozenset()
        self._segments[place] = edited.segment
        for entry in changes.values():
            if entry is not None and entry.n in edited.result:
                self._watch(entry).since = self.clock.monotonic()
        return edited.result

    def _forget_segments(self) -> None:
        """Forgets all segments, except segments with entries in progress and the segment at which `take` continues."""
        held = {*self._in_progress.values(), *(entry.place for entry in self._delivered)}
        last = next(reversed(self._segments), None)
        self._segments = {
            place: found for place, found in self._segments.items() if place in held or place == last
        }

    def _watch(self, entry: Entry) -> _Watch:
        now = self.clock.monotonic()
        if entry.id not in self._watched:
            # An entry without an error needs no backoff, because none of its deliveries has failed.
            wait = self._backoff(entry) if entry.last_error else 0.0
            self._watched[entry.id] = _Watch(since=now, due=now + wait)
        return self._watched[entry.id]

    def _aged(self, entry: Entry) -> Entry:
        """The entry with its watched time up to now, including the time since this owner last wrote the entry."""
        elapsed = self.clock.monotonic() - self._watch(entry).since
        return replace(entry, waited_seconds=entry.waited_seconds + elapsed)

    def _backoff(self, entry: Entry) -> float:
        settings = self._worker.topic(self.lease).settings
        return backoff_seconds(
            entry.attempts, self.clock, base=settings.retry_seconds, ceiling=settings.retry_max_seconds
        )


def exhausted(entry: Entry, settings: TopicSettings) -> str:
    """The reason why an entry must not be tried again; empty if the entry may be tried again. Pure."""
    error = f": {entry.last_error}" if entry.last_error else ""
    if entry.attempts >= settings.max_attempts:
        return f"{entry.attempts} attempts{error}"
    if settings.ttl_seconds is not None and entry.waited_seconds >= settings.ttl_seconds:
        return f"older than {settings.ttl_seconds:g} s{error}"
    return ""
