"""Delivery of one shard by its owner: take a batch, then report each entry as done or failed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from s3notify_platform.clock import backoff_seconds
from s3notify_platform.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.protocols.notification_queue.entries import (
    Claim,
    Entry,
    TopicSettings,
    dead_partition,
    encode_entry,
    with_error,
)
from s3notify_platform.protocols.notification_queue.owners import ShardLease, Worker
from s3notify_platform.protocols.updates import Stored

RETRY_BASE_SECONDS = 1.0
RETRY_CEILING_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WillRetry:
    """Back in the queue. This owner takes it again after `after_seconds`, another one after a backoff of its own."""

    after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered:
    """In the dead letters, with its reason."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The entry belongs to another owner now; nothing was changed."""


FailedOutcome = WillRetry | DeadLettered | Fenced


@dataclass(slots=True, kw_only=True)
class _Watch:
    """When this owner began to watch an entry, and when it is due; by its own clock."""

    since: float
    due: float


class ShardConsumer:
    """The entries of one shard under one lease. One thread; a new lease needs a new one.

    `retry_base_seconds` and `retry_ceiling_seconds` bound the backoff (full jitter) after a failed delivery.
    """

    def __init__(
        self,
        worker: Worker,
        lease: ShardLease,
        *,
        retry_base_seconds: float = RETRY_BASE_SECONDS,
        retry_ceiling_seconds: float = RETRY_CEILING_SECONDS,
    ) -> None:
        self.lease = lease
        self._worker = worker
        self._queue = worker.queue
        self.clock = worker.queue.clock
        self._retry_base_seconds = retry_base_seconds
        self._retry_ceiling_seconds = retry_ceiling_seconds
        self._claim = Claim(worker=worker.name, generation=lease.generation)
        self._in_progress: set[str] = set()
        self._delivered: list[Entry] = []
        self._unserved: set[str] = set()
        self._watched: dict[str, _Watch] = {}
        self._met: set[str] = set()
        self._cursor: Iterator[Entry] | None = None

    @property
    def busy(self) -> bool:
        """Whether entries are being delivered: the lease should not be released now."""
        return bool(self._in_progress)

    def take(self, limit: int) -> tuple[Entry, ...]:
        """Up to `limit` entries to deliver, claimed for this owner, their attempts counted.

        Takes the shard's entries in turn, so an entry that fails does not delay the later ones; each is taken
        again only after its backoff. Entries whose attempts or time are used up go to the dead letters.
        `FencedError`: the lease is gone; stop. Requests: 1 write for each entry and 1 read of the owners; one
        scan (bucket alone: 1 LIST, and 1 read for each entry passed) for each pass over the shard.
        """
        if not self._worker.valid(self.lease):
            raise FencedError(f"{self.lease} was not renewed in time, or is another's: serve nothing")
        self._remove_delivered()
        settings = self._worker.topic(self.lease).settings
        resumed = self._cursor is not None
        ready = self._next(limit, settings)
        if resumed and not ready:
            ready = self._next(limit, settings)
        claimed = self._claimed(ready)
        taken = tuple(entry for entry in claimed if entry.state == "committed")
        self._in_progress.update(entry.id for entry in taken)
        return taken

    def expire(self) -> int:
        """Dead-letter entries that have used up their attempts or time, and take none. Returns how many.

        For times when nothing can be delivered. Requests and errors as `take`, with a scan of its own.
        """
        if not self._worker.valid(self.lease):
            raise FencedError(f"{self.lease} was not renewed in time, or is another's: serve nothing")
        topic = self._worker.topic(self.lease)
        found = filter(self._is_ours, self._queue.shards.scan(topic, self.lease.shard))
        judged = (self._judged(entry, topic.settings) for entry in found)
        return len(self._claimed([entry for entry in judged if entry.state == "dead"]))

    def _claimed(self, entries: list[Entry]) -> list[Entry]:
        """The entries that were claimed while this was the owner; the dead ones of them go to the dead letters."""
        claimed = [
            entry for entry in self._queue.shards.in_parallel(self._claim_one, entries) if entry is not None
        ]
        # Their attempt is counted but not begun until the owners were read. If that fails, it is not counted again.
        self._unserved |= {entry.id for entry in claimed}
        if claimed and not self._worker.verify(self.lease):
            raise FencedError(f"{self.lease} is another's: serve nothing")
        self._unserved -= {entry.id for entry in claimed}
        self._queue.shards.in_parallel(
            self._dead_letter, [entry for entry in claimed if entry.state == "dead"]
        )
        return claimed

    def done(self, entries: Iterable[Entry]) -> int:
        """Delivered: remove them, each by the version that was claimed. Returns how many this call removed.

        An entry that another owner has rewritten since is left to it. Removals that the store did not answer are
        tried again by later calls; this owner does not deliver them again. Requests as `NotificationQueue.remove`.
        """
        self._delivered.extend(entries)
        return self._remove_delivered()

    def release(self, entries: Iterable[Entry]) -> None:
        """Neither done nor failed, as far as is known: they will be taken again like any other. No request."""
        delivered = {entry.id for entry in self._delivered}
        self._in_progress -= {entry.id for entry in entries} - delivered

    def failed(self, entry: Entry, error: str, *, begun: bool = True) -> FailedOutcome:
        """See `failed_many`, for one entry."""
        return self.failed_many([entry], error, begun=begun)[0]

    def failed_many(
        self, entries: Iterable[Entry], error: str, *, begun: bool = True
    ) -> tuple[FailedOutcome, ...]:
        """Not delivered: keep the error and back off, or dead-letter those that have used up their attempts or time.

        `begun=False`: the receiver certainly did not process them, so their attempts are not counted. Requests:
        1 write for each entry, 1 counter.
        """
        batch = tuple(entries)
        self._in_progress -= {entry.id for entry in batch}
        self._queue.shards.count(batch, "failed")
        return tuple(self._queue.shards.in_parallel(lambda entry: self._fail_one(entry, error, begun), batch))

    def _fail_one(self, entry: Entry, error: str, begun: bool) -> FailedOutcome:
        settings = self._worker.topic(self.lease).settings
        watch = self._watch(entry)
        after = with_error(self._aged(entry), error)
        if not begun:
            after = replace(after, attempts=after.attempts - 1)
        reason = exhausted(after, settings)
        try:
            if reason:
                marked = self._stamp(entry, replace(after, state="dead", reason=reason))
                if marked is None:
                    return Fenced()
                self._dead_letter(marked)
                return DeadLettered(reason=reason)
            if self._stamp(entry, replace(after, claim=None)) is None:
                return Fenced()
        except (UnavailableError, UnknownOutcomeError):
            pass  # still claimed by us, and not in progress: taken again like any other
        wait = self._backoff(after)
        watch.due = self.clock.monotonic() + wait
        return WillRetry(after_seconds=wait)

    def _next(self, limit: int, settings: TopicSettings) -> list[Entry]:
        """Entries that are ready, from where the last call stopped. Those that are used up are marked dead."""
        if self._cursor is None:
            self._cursor = self._queue.shards.scan(self._worker.topic(self.lease), self.lease.shard)
            self._met = set()
        ready: list[Entry] = []
        cursor, self._cursor = self._cursor, None  # after an error, start from the beginning
        for entry in cursor:
            self._met.add(entry.id)
            if not self._is_ours(entry):
                continue
            judged = self._judged(entry, settings)
            if judged.state == "committed" and self.clock.monotonic() < self._watch(entry).due:
                continue
            ready.append(judged)
            if len(ready) == limit:
                self._cursor = cursor
                return ready
        for gone in self._watched.keys() - self._met - self._in_progress:
            del self._watched[gone]
        self._unserved &= self._met
        return ready

    def _is_ours(self, entry: Entry) -> bool:
        if entry.state == "reserved" or entry.id in self._in_progress:
            return False
        # Claimed by a successor: then we are fenced, and will notice soon.
        return entry.claim is None or entry.claim.generation <= self.lease.generation

    def _judged(self, entry: Entry, settings: TopicSettings) -> Entry:
        begun = replace(self._aged(entry), attempts=entry.attempts - (entry.id in self._unserved))
        if entry.state == "committed" and (reason := exhausted(begun, settings)):
            return replace(entry, state="dead", reason=reason)
        return entry

    def _claim_one(self, entry: Entry) -> Entry | None:
        attempts = entry.attempts + (entry.state == "committed" and entry.id not in self._unserved)
        try:
            return self._stamp(entry, replace(self._aged(entry), attempts=attempts, claim=self._claim))
        except (UnavailableError, UnknownOutcomeError):
            return None

    def _stamp(self, entry: Entry, after: Entry) -> Entry | None:
        """Replace the known version of the entry. Returns it as written; None if it has changed since."""
        outcome = self._queue.shards.replace(entry, after)
        if not isinstance(outcome, Stored):
            return None
        self._watch(entry).since = self.clock.monotonic()
        return replace(after, version=outcome.version)

    def _dead_letter(self, entry: Entry) -> None:
        """The letter first, then the removal: if this is interrupted in between, the next owner finishes it."""
        letter = encode_entry(replace(entry, claim=None))
        try:
            self._queue.updates.create(dead_partition(entry.topic), entry.key, letter)
            if self._queue.shards.remove_one(entry) is True:
                self._queue.shards.give_back([entry])
        except (UnavailableError, UnknownOutcomeError):
            return

    def _remove_delivered(self) -> int:
        delivered, self._delivered = tuple(self._delivered), []
        removed, left = self._queue.shards.remove_each(delivered)
        self._delivered = list(left)
        self._in_progress -= {entry.id for entry in delivered} - {entry.id for entry in left}
        self._queue.shards.give_back(removed)
        self._queue.shards.count(removed, "delivered")
        return len(removed)

    def _watch(self, entry: Entry) -> _Watch:
        now = self.clock.monotonic()
        if entry.id not in self._watched:
            # Without an error its owner was killed during delivery: try again at once.
            wait = self._backoff(entry) if entry.last_error else 0.0
            self._watched[entry.id] = _Watch(since=now, due=now + wait)
        return self._watched[entry.id]

    def _aged(self, entry: Entry) -> Entry:
        """The entry, with the time added for which this owner has watched it since it was last written."""
        elapsed = self.clock.monotonic() - self._watch(entry).since
        return replace(entry, waited_seconds=entry.waited_seconds + elapsed)

    def _backoff(self, entry: Entry) -> float:
        return backoff_seconds(
            entry.attempts, self.clock, base=self._retry_base_seconds, ceiling=self._retry_ceiling_seconds
        )


def exhausted(entry: Entry, settings: TopicSettings) -> str:
    """Why an entry must not be tried again; empty if it may be. Pure."""
    error = f": {entry.last_error}" if entry.last_error else ""
    if entry.attempts >= settings.max_attempts:
        return f"{entry.attempts} attempts{error}"
    if settings.ttl_seconds is not None and entry.waited_seconds >= settings.ttl_seconds:
        return f"older than {settings.ttl_seconds:g} s{error}"
    return ""
