"""The reconciler of a bucket's queue: finishes the work that killed writers left incomplete.

| left by a killed writer | recognised by | after |
|---|---|---|
| a reservation, with or without an object | HEAD, or LIST if HEAD is refused | `stale_seconds` and one or two passes |
| a multipart upload | its reservation, which names it; aborted before the HEAD | the same time |
| an entry whose slot was never signalled | the signal is the same as before the entry | `unsignalled_seconds` |
| an entry whose slot's signal moved, or was not read before the entry | the entry still exists | `doubtful_seconds` |

In each of these cases, the slot's signal is moved, with the queued mark. The signal is moved again every
`doubtful_seconds` while the entry exists. A needless signal causes a batch that finds nothing; to avoid this, the
reconciler watches the signals. One instance is enough, several are allowed, and any may be killed at any time: the next
instance starts over.

Requests of a pass over t topics of h shards, if there is nothing to do: 1 scan of the topics, and t × (1 + h) reads.
Each keyspace costs 1 HEAD, and 1 LIST if its root moved. With default settings, two topics, and the queue on a bucket,
this is about 22 requests for each pass. A pass every 15 s costs 0.13 million requests a day; Dagster's pass every 30 s
costs half of that. Waiting entries of a shard cost 1 LIST for each 1000 entries; each entry also costs 1 GET when it
changes, and about 1 KB of memory. A signal is 1 PUT for each slot and 1 for the root. A reservation whose write
happened costs 1 scan of the topics, and a push to each newer topic that takes its key.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event as Flag
from threading import Lock
from typing import Final

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.service import Progress, SourceKeyspace
from s3notify_platform.kernel.errors import (
    NotFoundError,
    RefusedError,
    S3NotifyError,
    UnavailableError,
    UsageError,
)
from s3notify_platform.kernel.ports import ETag, ObjectMeta, ObjectStore, UploadId
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import (
    NotSignalledError,
    Publisher,
    Watcher,
    WatcherState,
    digest_of,
)
from s3notify_platform.protocols.notification_queue import (
    Entry,
    EntryCommitted,
    Event,
    NotificationQueue,
    QuotaExceeded,
    Reconciled,
    Reconciler,
    Reservation,
)
from s3notify_platform.protocols.notification_queue.reconciler import LEAK_SECONDS
from s3notify_platform.protocols.source_enumerator import head_or_listed
from s3notify_platform.stores.config import QUEUE_PREFIX, DynamoConfig, S3Config
from s3notify_platform.stores.open_store import open_store, queue_records

PASS_SECONDS: Final = 15.0

UNSIGNALLED_SECONDS: Final = 30.0
"""Age at which a committed entry is signalled if the signal of the entry's slot has not moved. No guarantee depends on
this age.
"""

DOUBTFUL_SECONDS: Final = 300.0
"""Age at which a committed entry is signalled in any case, even if the signal of the entry's slot has moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerReport:
    """The result of one pass."""

    topics: int
    committed: int = 0
    aborted: int = 0
    recounted: int = 0
    waiting: int = 0
    signalled: int = 0
    """Number of keys whose slots were signalled."""
    errors: tuple[str, ...] = ()
    """The requests that failed, as texts that name no key. The next pass repeats these requests."""


@dataclass(slots=True, kw_only=True)
class WaitingEntry:
    """A committed entry that no consumer has removed yet. `since`: for each keyspace, the start of the entry's wait."""

    since: dict[int, float]
    unmoved: dict[int, bytes]
    """For each keyspace whose signal was read before the entry was committed: the digest of the entry's signal at that
    time.
    """


@dataclass(slots=True, kw_only=True)
class WatchedKeyspace:
    """One keyspace, which each pass polls."""

    keyspace: Keyspace
    watcher: Watcher
    polled: bool = False
    before: WatcherState | None = None
    rescans: set[str] = field(default_factory=set)


class ReconcilerService:
    """Reconciles all topics of one bucket: as a `Service`, or pass by pass. Reuse the instance: it keeps state between
    passes.

    `objects`: the bucket of the objects. `keyspaces`: the keyspaces whose signals the reconciler moves, each for the
    keys below its prefix.
    """

    name = "reconcile"

    def __init__(
        self,
        queue: NotificationQueue,
        objects: ObjectStore,
        keyspaces: Sequence[Keyspace],
        *,
        bucket: str,
        pass_seconds: float = PASS_SECONDS,
        unsignalled_seconds: float = UNSIGNALLED_SECONDS,
        doubtful_seconds: float = DOUBTFUL_SECONDS,
        leak_seconds: float = LEAK_SECONDS,
    ) -> None:
        self._queue = queue
        self._clock = queue.clock
        self._objects = objects
        self._bucket = bucket
        self._pass_seconds = pass_seconds
        self._unsignalled_seconds = unsignalled_seconds
        self._doubtful_seconds = doubtful_seconds
        self._reconciler = Reconciler(queue, leak_seconds=leak_seconds)
        self._keyspaces: tuple[WatchedKeyspace, ...] = ()
        for keyspace in keyspaces:
            self.include(keyspace)
        self._pending: dict[str, dict[str, WaitingEntry]] = {}
        self._counts: dict[str, int] = dict.fromkeys(
            ("passes", "committed", "aborted", "recounted", "signalled", "failed", "working_ms"), 0
        )
        self._unannounced: set[str] = set()
        """Keys whose changes could not be announced in every topic. The signals of these keys move without the queued
        mark.
        """
        self._turn = Lock()
        self._due_at: float | None = None

    def include(self, keyspace: Keyspace) -> None:
        """Includes this keyspace from the next pass on: its signals are moved, too. Cost: no request."""
        self._keyspaces += (WatchedKeyspace(keyspace=keyspace, watcher=keyspace.publisher.watcher()),)

    def run(self, stop: Flag, progress: Progress) -> None:
        """See `Service.run`."""
        while not stop.is_set():
            reconciled = self.reconcile_when_due()
            if reconciled is not None and (line := _summary(reconciled)):
                progress(line)
            stop.wait(self._pass_seconds)

    def counts(self) -> Mapping[str, int]:
        """See `Service.counts`."""
        return dict(self._counts)

    def reconcile_when_due(self) -> ReconcilerReport | None:
        """Makes one pass if the last pass began at least `pass_seconds` ago. Otherwise, or while another thread makes a
        pass, returns None immediately.

        A sensor in a long-lived process calls this method in every tick, on the same object (`shared_reconciler`).
        """
        if not self._turn.acquire(blocking=False):
            return None
        try:
            now = self._clock.monotonic()
            if self._due_at is not None and now < self._due_at:
                return None
            # 0.9: a caller that comes slightly early still gets its pass.
            self._due_at = now + 0.9 * self._pass_seconds
            return self._reconcile()
        finally:
            self._turn.release()

    def reconcile(self) -> ReconcilerReport:
        """Makes one pass now. `UsageError` for problems that only an operator can fix. Outages, and refusals of HEAD
        and LIST, are in the report's `errors`.
        """
        with self._turn:
            return self._reconcile()

    def _reconcile(self) -> ReconcilerReport:
        began = self._clock.monotonic()
        errors: list[str] = []
        self._poll(errors)
        reconciled: list[Reconciled] = []
        try:
            topics = [t for t in self._queue.topics.all() if t.settings.bucket in ("", self._bucket)]
        except S3NotifyError as error:
            _note(errors, "topics", error)
            topics = []
        else:
            self._forget({topic.name for topic in topics})
        for topic in topics:
            refused: list[tuple[str, RefusedError]] = []
            try:
                came_to = self._reconciler.resolve_stale(
                    topic.name,
                    partial(self._head, refused),
                    bucket=self._bucket,
                    announce=self._announce_to_others,
                    abort=self._abort_upload,
                )
            except S3NotifyError as error:
                _note(errors, topic.name, error)
                continue
            if refused:
                key, why = refused[0]
                slot = slot_of(key, topic.settings.slots)
                errors.append(
                    f"{topic.name}: {len(refused)} reservations of killed writers wait, such as one of slot {slot}, "
                    f"because HEAD and LIST of the key are refused: {why}. If a right is missing, "
                    "allow s3:ListBucket below the topic's prefix, or run another reconciler that has this right"
                )
            reconciled.append(came_to)
            # Only pulled topics need signals, because delivery workers scan the pushed topics.
            self._look_at(topic.name, came_to, pulled=not topic.settings.endpoint)
        signalled = sum(self._signal(watched, errors) for watched in self._keyspaces)
        self._unannounced &= set[str]().union(*(watched.rescans for watched in self._keyspaces))
        report = ReconcilerReport(
            topics=len(topics),
            committed=sum(one.committed for one in reconciled),
            aborted=sum(one.aborted for one in reconciled),
            recounted=sum(one.recounted for one in reconciled),
            waiting=sum(one.waiting for one in reconciled),
            signalled=signalled,
            errors=tuple(errors),
        )
        for name in ("committed", "aborted", "recounted", "signalled"):
            self._counts[name] += getattr(report, name)
        self._counts["passes"] += 1
        self._counts["working_ms"] += int((self._clock.monotonic() - began) * 1000)
        self._counts["failed"] += bool(errors)
        return report

    def _poll(self, errors: list[str]) -> None:
        """Polls the signals before the entries are read. So if an entry is new in this pass, the entry's signal can
        have moved only after the poll of the previous pass.
        """
        for watched in self._keyspaces:
            watched.before = watched.watcher.state if watched.polled else None
            try:
                watched.watcher.poll()
                watched.polled = True
            except S3NotifyError as error:
                _note(errors, "signals", error)

    def _head(self, refused: list[tuple[str, RefusedError]], key: str) -> ObjectMeta | None:
        """The object, as HEAD or LIST shows it. If both are refused, key and error are added to `refused`, and the
        reservation waits, as in an outage. The reconciler handles all topics of the bucket, but may lack the right to
        look at the keys of some topics. A LIST shows no metadata. So after a LIST the event has no metadata, and an
        overwrite with the same bytes under If-Match is treated as if it had not happened.
        """
        try:
            return head_or_listed(self._objects, key)
        except RefusedError as error:
            refused.append((key, error))
            raise UnavailableError(str(error)) from error

    def _abort_upload(self, event: Event) -> None:
        """Aborts the upload of a killed writer. If the upload's id is unknown, aborts the key's empty uploads that no
        reservation names.

        Requests: 1. If the id is unknown: 1 for each upload of the key, 1 scan of the topics, and 1 scan of each shard
        that takes the key.
        """
        upload = event.upload.id if event.upload is not None else None
        doomed: Iterable[UploadId] = [upload] if upload else []
        # A process without the permission leaves the upload: a lifecycle rule may abort it.
        with suppress(RefusedError):
            if not upload:
                doomed = self._objects.empty_uploads(event.key)
        if doomed and not upload:
            # The uploads that reservations name are read after the list of uploads. So if a writer has begun a listed
            # upload and named it, the upload is kept.
            doomed = set(doomed) - self._queue.uploads_of(self._bucket, event.key)
        with suppress(RefusedError):
            for one in doomed:
                self._objects.abort_upload(event.key, one)

    def _announce_to_others(self, event: Event) -> None:
        """In place of the killed writer, announces the event to topics that were created after the writer's
        reservation.

        An inlet's reservation (its `announced_to` is empty) is skipped: the inlet receives its message again. A topic
        for which the event is too large gets no entry: the signal is not marked, so the topic's consumer lists.
        """
        if not event.announced_to:
            return
        takers = self._queue.takers(self._queue.see_topics(), self._bucket, event)
        others = [topic for topic in takers if topic.epoch not in event.announced_to]
        # The reservations made here name these topics, too. So if this process is killed, no other reconciler announces
        # the change to these topics again.
        event = replace(event, announced_to=(*event.announced_to, *(other.epoch for other in others)))
        held: list[Reservation] = []
        try:
            for other in others:
                with suppress(NotFoundError):
                    if not self._queue.fits(other.name, event):
                        self._unannounced.add(event.key)
                        continue
                    room = self._queue.reserve(other.name, event)
                    if isinstance(room, QuotaExceeded):
                        raise UnavailableError(f"topic {other.name!r} is full")
                    held.append(room)
        except S3NotifyError:
            # If one topic is full, all topics wait. Otherwise, the other topics would get an entry in each pass.
            self._queue.abort_many(held)
            raise
        if not all(isinstance(outcome, EntryCommitted) for outcome in self._queue.commit_many(held)):
            raise UnavailableError("the change of an object could not be announced in every topic")

    def _look_at(self, topic: str, reconciled: Reconciled, *, pulled: bool) -> None:
        now = self._clock.monotonic()
        known = self._pending.get(topic, {})
        pending: dict[str, WaitingEntry] = {}
        for entry in reconciled.resolved:
            for _, watched in self._taking(entry.event.key):
                watched.rescans.add(entry.event.key)
            pending[entry.id] = WaitingEntry(since=self._from(entry, now), unmoved={})
        for entry in reconciled.pending if pulled else ():
            found = known.get(entry.id) or self._first_seen(entry, now)
            pending[entry.id] = found
            for number, watched in self._taking(entry.event.key):
                age = now - found.since.setdefault(number, now)
                unmoved = found.unmoved.get(number) == self._digest(watched, watched.watcher.state, entry)
                if age >= self._doubtful_seconds or (unmoved and age >= self._unsignalled_seconds):
                    # The wait starts again, so the signal is repeated later, in case the consumer misses this signal,
                    # too.
                    found.since[number] = now
                    found.unmoved.pop(number, None)
                    watched.rescans.add(entry.event.key)
        self._pending[topic] = pending

    def _first_seen(self, entry: Entry, now: float) -> WaitingEntry:
        unmoved = {}
        for number, watched in self._taking(entry.event.key):
            if watched.before is not None:
                unmoved[number] = self._digest(watched, watched.before, entry)
        return WaitingEntry(since=self._from(entry, now), unmoved=unmoved)

    def _from(self, entry: Entry, now: float) -> dict[int, float]:
        return {number: now for number, _ in self._taking(entry.event.key)}

    def _taking(self, key: str) -> Iterable[tuple[int, WatchedKeyspace]]:
        return (
            (number, watched)
            for number, watched in enumerate(self._keyspaces)
            if key.startswith(watched.keyspace.prefix)
        )

    def _digest(self, watched: WatchedKeyspace, state: WatcherState, entry: Entry) -> bytes:
        """The digest of the signal that moves after the entry. This signal is the root if only the root moves,
        otherwise the slot's signal.
        """
        if watched.watcher.alone:
            return digest_of(ETag(state.root_etag or ""))
        return state.seen(watched.keyspace.publisher.slot_of(entry.event.key))

    def _signal(self, watched: WatchedKeyspace, errors: list[str]) -> int:
        keys, watched.rescans = watched.rescans, set()
        try:
            watched.keyspace.publisher.signal(sorted(keys), queued=keys - self._unannounced)
        except NotSignalledError as error:
            watched.rescans = set(error.keys)
            _note(errors, "signals", error)
        return len(keys) - len(watched.rescans)

    def _forget(self, names: set[str]) -> None:
        self._reconciler.forget(names)
        self._pending = {name: pending for name, pending in self._pending.items() if name in names}


def reconciler_over(
    queue: NotificationQueue,
    bucket: S3Config,
    platform: S3Config,
    *,
    keyspaces: Iterable[SourceKeyspace],
) -> ReconcilerService:
    """The reconciler of a bucket's queue. The call makes no request. `platform`: the bucket of the signals."""
    spaces = [_keyspace(bucket, platform, space) for space in keyspaces]
    return ReconcilerService(queue, open_store(bucket), spaces, bucket=bucket.bucket)


def _keyspace(bucket: S3Config, platform: S3Config, space: SourceKeyspace) -> Keyspace:
    objects, home = open_store(bucket), open_store(platform)
    publisher = Publisher(objects, home, prefix=space.signals, slots=space.slots)
    return Keyspace(publisher=publisher, prefix=space.prefix)


_SHARED: Final[dict[object, tuple[ReconcilerService, set[SourceKeyspace]]]] = {}
_SHARING: Final = Lock()


def shared_reconciler(
    bucket: S3Config,
    platform: S3Config,
    *,
    keyspaces: Iterable[SourceKeyspace],
    queue_prefix: str = QUEUE_PREFIX,
    table: DynamoConfig | None = None,
) -> ReconcilerService:
    """The process's only reconciler of this queue; it moves the signals of these keyspaces, too. Cost: no request.

    Each source of the queue needs a poll of its own, but all sources share one scan of the topics. A sensor calls the
    reconciler's `reconcile_when_due` in each tick.
    """
    place = (bucket, platform, queue_prefix, table)
    with _SHARING:
        if place not in _SHARED:
            queue = NotificationQueue(queue_records(platform, queue_prefix, table))
            _SHARED[place] = reconciler_over(queue, bucket, platform, keyspaces=()), set()
        reconciler, included = _SHARED[place]
        for space in keyspaces:
            if space not in included:
                included.add(space)
                reconciler.include(_keyspace(bucket, platform, space))
    return reconciler


def _note(errors: list[str], what: str, error: S3NotifyError) -> None:
    if isinstance(error, UsageError):
        raise error
    errors.append(f"{what}: {type(error).__name__}: {error}")


def _summary(reconciled: ReconcilerReport) -> str:
    """One line about a pass; empty if the pass did nothing."""
    names = ("committed", "aborted", "recounted", "signalled")
    done = [f"{getattr(reconciled, name)} {name}" for name in names if getattr(reconciled, name)]
    return "; ".join([*done, *reconciled.errors])
