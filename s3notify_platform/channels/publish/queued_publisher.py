"""The publisher that announces each change in the notification queue before the write, and confirms it afterwards.

    queue = NotificationQueue(queue_records(config))
    publisher = QueuedPublisher(Publisher(store, prefix=…), queue, bucket="acme-landing")
    match publisher.put("raw/orders/1.jsonl", body):
        case Refused(retry_after_seconds=seconds): …        # nothing was written

Steps, for one change or a batch
    1. Reserve the change in every topic that takes the key. If a topic is full, the change is refused in all topics.
    2. Write, if the reservations are still fresh. Object and reservations name the writer's id (`s3notify-writer`).
    3. If the outcome is unknown, send a HEAD. If the object has our id, or is gone after a delete, the write happened.
    4. Look at the topics. Read the topics again if a write has no reservation, or if the answer to a write came more
       than 2 s after the last read of the topics had begun. If a write happened, announce it to new topics: the
       consumers of new topics list only once, and could miss the object.
    5. If the write happened, commit the entries. If the write did not happen, abort the entries. If the outcome is
       unknown, or a new topic could not take the change, leave the entries to the reconciler. If a reservation was
       resolved meanwhile, push the change again.
    6. Move the signal of each touched slot, with the queued mark, and then the root. If all changes are queued,
       `signals: root` moves only the root.
    7. Send the changes to the topics that are not persistent (`direct_delivery`). Failures raise no error.

Large objects (`put_file`, `put_stream`, `copy`) are written in step 2 by a multipart upload, which the reservations
name. The reservations are renewed during the upload. The upload is completed only if the reservations are still fresh.
If the writer is killed before the completion, the reconciler aborts the upload.

Threads of a process share steps 1 and 4 to 6 (`kernel.group_commit`). Changes that several threads make at about the
same time share one reservation, and one batch of commits and signals. Meanwhile, each thread writes its own objects.

If the writer is killed between any two steps, the reconciler resolves the reservations by HEAD. The reconciler also
announces the changes to the topics that exist then, and moves the signals. The signal is not marked as queued if no
topic takes the key, or if the queue was not reachable. Then consumers list, as they do for a writer without the queue.

Limit. If a writer without a reservation is killed between its write and the end of step 4, its change is not announced.
Only a listing finds the object, at the latest the sweep's listing. A writer has no reservation if no topic of the key
existed 2 s before the write began, or if all topics that the writer knew were deleted meanwhile.

| requests, for n changes in s slots and t topics | |
|---|---|
| the topics | 1 scan each 2 s; if a write is not reserved, or not answered in time, 1 more after the write |
| reserve, commit | t × 2 writes for each 256 changes that fit into one shard |
| space in the topics | t × 1 `add` (if the queue is on a bucket: 1 or 2), for up to 32 changes together |
| objects, signals | n + s + 1 PUT; `signals: root`: n + 1 |
| a new topic | as many as `NotificationQueue.push_many` |
| a refused change, or a conflict | 1 `add` for each shard |
| unknown outcome | 1 HEAD |
| an upload of p parts | p + 1 more, and t every 13 s |
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from s3notify_platform.channels.delivery.direct_delivery import DirectDelivery
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.keyspaces import Keyspace, checked, named_in_root
from s3notify_platform.channels.publish.late_announcements import ANNOUNCE_ATTEMPTS, LateAnnouncements
from s3notify_platform.channels.publish.pending_change import PendingChange, PublishOutcome, Refused
from s3notify_platform.channels.publish.uploading import upload
from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.errors import (
    NotFoundError,
    QuotaExceededError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.kernel.group_commit import LINGER_SECONDS, Sharing
from s3notify_platform.kernel.ports import ABSENT, CopySource, ETag, IfMatch, Precondition, Unknown, Written
from s3notify_platform.protocols.keyspace import (
    Change,
    Delete,
    LargeObjects,
    LargePut,
    NotSignalledError,
    Publisher,
    Put,
)
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    Expired,
    NotificationQueue,
    QuotaExceeded,
    Reservation,
    Upload,
)
from s3notify_platform.protocols.updates import WRITER, written_by


class QueuedPublisher(LargeObjects[PublishOutcome]):
    """Writes objects, announces them in the queue, moves signals. Thread-safe: calls of several threads share requests.

    Each outcome is the outcome of an object write, or `Refused`. `UnavailableError` or `UnknownOutcomeError`: nothing
    could be reserved, and nothing was written. `UsageError`: a change is invalid. This change was not written; the
    other changes of its batch were written. `NotSignalledError`: changes happened, but perhaps not every topic and
    watcher got them. Call `announce(error.keys)`, or leave these changes to the reconciler.
    """

    def __init__(
        self,
        publisher: Publisher,
        queue: NotificationQueue,
        *,
        bucket: str,
        topic: str = "",
        others: Iterable[Keyspace] = (),
        egress: Egress | None = None,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        """`bucket`: name of the bucket that `publisher` writes to, as in the topics' settings. `topic`: the name of the
        source whose signals this publisher moves. A topic of this name with another number of slots is refused.

        `others`: further sources of the bucket, with their own signals. If a source is missing in `others`, the
        reconciler signals the source's changes later. `egress`: the endpoints that topics without a queue may have;
        default: https to public addresses. `linger_seconds`: longest time that a thread waits for other busy threads
        before it reserves, and before it commits; the waiting threads share the requests.
        """
        self._publisher = publisher
        self._keyspaces = (Keyspace(publisher=publisher, topic=topic), *others)
        self._queue = queue
        self._clock = queue.clock
        self._bucket = bucket
        self.direct = DirectDelivery(queue, egress=egress)
        self._late = LateAnnouncements(queue, bucket=bucket)
        self._sharing = Sharing[Sequence[PendingChange]](
            self._reserve, self._finish, linger_seconds=linger_seconds
        )

    def put(
        self,
        key: str,
        body: bytes,
        *,
        precondition: Precondition | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PublishOutcome:
        """Writes one object. Requests with one topic: 5, in sequence. The first put costs 3 or 4 more, then every 2 s
        and every 32 puts cost 1 more. Threads share all requests except the PUTs of object and slot signal.
        """
        return self.publish([Put(key=key, body=body, precondition=precondition, metadata=metadata)])[0]

    def put_if_absent(
        self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> PublishOutcome:
        """See `put`; `Conflict` if the key exists."""
        return self.put(key, body, precondition=ABSENT, metadata=metadata)

    def put_if_match(
        self, key: str, body: bytes, etag: ETag, *, metadata: Mapping[str, str] | None = None
    ) -> PublishOutcome:
        """See `put`; `Conflict` if the object has another ETag."""
        return self.put(key, body, precondition=IfMatch(etag=etag), metadata=metadata)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> PublishOutcome:
        """Deletes one object. Requests: as many as `put`. No writer's id is needed: absence proves the deletion."""
        return self.publish([Delete(key=key, precondition=precondition)])[0]

    def publish(self, changes: Iterable[Change]) -> tuple[PublishOutcome, ...]:
        """Applies all changes; returns an outcome for each. If a topic is nearly full, only the first changes fit.

        Requests: see the module. After the last entry, the signal of each touched slot moves once, and the root once.
        Writes may begin only in the first third of the queue's `stale_seconds` (by default 40 s of 120 s). In a large
        batch, each write that would begin later is `Refused`, with 0 s to wait. Bodies are held in memory.
        """
        batch = tuple(changes)
        self._publisher.check(batch)
        writer = unique_name(self._clock)
        works = [self._work(change, writer) for change in batch]
        with self._sharing.around(works):
            self._write(works)
        self._end(works)
        return tuple(work.result() for work in works)

    def _source(self, bucket: str, key: str) -> CopySource | None:
        return self._publisher.source(bucket, key)

    def _large(self, change: Put | LargePut) -> PublishOutcome:
        """Like `publish`, but shares no request with other threads: so no other thread waits for this upload."""
        if isinstance(change, Put):
            return self.publish([change])[0]
        self._publisher.check([change])
        put = Put(key=change.key, body=b"", precondition=change.precondition, metadata=change.metadata)
        work = self._work(put, unique_name(self._clock))
        mark = None if change.at_once else Upload()
        work.event = replace(work.event, size=change.size, upload=mark, name=change.event_name)
        self._reserve([[work]])
        if work.outcome is None:
            try:
                upload(self._publisher, self._queue, work, change)
            except UnknownOutcomeError:
                raise  # while there is a reservation, the reconciler looks for an upload that may have begun
            except Exception:
                self._abort([work])
                raise
        else:
            work.happened = False
        self._finish([[work]])
        self._end([work])
        return work.result()

    def announce(self, keys: Iterable[str]) -> None:
        """Announces objects, for example of other writers. A key without an object is announced as a deletion.

        The rules of topics apply, except rules by event, because the event is unknown. Topics with rules by tags take
        none of these objects. The call may be repeated. Requests: 1 HEAD for each key, then 1 scan of the topics, a
        push to each topic that takes a key, and the signals. `QuotaExceededError`, `UnavailableError`,
        `UnknownOutcomeError`, `NotSignalledError`: announce all keys again.
        """
        wanted = tuple(dict.fromkeys(keys))
        events = self._queue.shards.in_parallel(self._found, wanted)
        by_topic: defaultdict[str, list[Event]] = defaultdict(list)
        topics = checked(self._queue.see_topics(), self._keyspaces)
        for event in events:
            for taker in self._queue.takers(topics, self._bucket, event, by_name=False):
                by_topic[taker.name].append(event)
        for topic, wanted_there in by_topic.items():
            try:
                outcomes = self._queue.push_many(topic, wanted_there)
            except NotFoundError:
                continue  # the topic was deleted: it has no consumer
            for outcome in outcomes:
                if isinstance(outcome, QuotaExceeded):
                    raise QuotaExceededError(f"topic {topic!r} is full", outcome.retry_after_seconds)
        queued = {event.key for announced in by_topic.values() for event in announced}
        if error := self._move(wanted, queued, events):
            raise error

    def _work(self, change: Change, writer: str) -> PendingChange:
        if isinstance(change, Put):
            marked = replace(change, metadata={**(change.metadata or {}), WRITER: writer})
            event = Event(
                key=change.key,
                bucket=self._bucket,
                size=len(change.body),
                precondition=change.precondition,
                writer=writer,
                metadata=change.metadata,
            )
            return PendingChange(change=marked, event=event)
        event = Event(
            key=change.key,
            op="delete",
            bucket=self._bucket,
            precondition=change.precondition,
            writer=writer,
        )
        return PendingChange(change=change, event=event)

    def _found(self, key: str) -> Event:
        found = self._publisher.head(key)
        if found is None:
            return Event(key=key, op="delete", bucket=self._bucket)
        return Event(key=key, bucket=self._bucket, etag=found.etag, size=found.size, metadata=found.metadata)

    # 1. Reserve.

    def _reserve(self, calls: Sequence[Sequence[PendingChange]]) -> None:
        """Reserves each change in all its topics, or refuses it."""
        works = [work for call in calls for work in call]
        try:
            self._reserve_all(works)
        except UsageError:
            # Perhaps only one call has an invalid change: the other calls must still succeed.
            if len(calls) == 1:
                raise
            for call in calls:
                try:
                    self._reserve_all(call)
                except UsageError as error:
                    for work in call:
                        work.outcome = error

    def _reserve_all(self, works: Sequence[PendingChange]) -> None:
        for _ in attempts(self._clock, ANNOUNCE_ATTEMPTS):
            began = self._clock.monotonic()
            for work in works:
                work.held, work.began = [], began
            with suppress(NotFoundError):  # a topic was deleted, or created again
                self._reserve_once(works)
                return
        raise UnavailableError(
            f"the topics of bucket {self._bucket!r} keep changing; nothing was written: try again"
        )

    def _reserve_once(self, works: Sequence[PendingChange]) -> None:
        by_topic: defaultdict[str, list[PendingChange]] = defaultdict(list)
        for work in works:
            work.outcome = None
            takers = checked(self._queue.topics_of(self._bucket, work.event), self._keyspaces)
            work.event = replace(work.event, announced_to=tuple(topic.epoch for topic in takers))
            for taker in takers:
                by_topic[taker.name].append(work)
        answers = self._queue.shards.in_parallel(
            lambda topic: self._reserve_in(topic, by_topic[topic]), list(by_topic)
        )
        errors: list[S3NotifyError] = []
        for topic, answer in zip(by_topic, answers, strict=True):
            if isinstance(answer, S3NotifyError):
                errors.append(answer)
                continue
            for work, room in zip(by_topic[topic], answer, strict=True):
                if isinstance(room, Reservation):
                    work.held.append(room)
                else:
                    work.outcome = Refused(retry_after_seconds=room.retry_after_seconds, topic=topic)
        self._abort(work for work in works if errors or work.outcome is not None)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, NotFoundError))

    def _reserve_in(
        self, topic: str, works: Sequence[PendingChange]
    ) -> Sequence[Reservation | QuotaExceeded] | S3NotifyError:
        """The reservations, or the error. A topic that was created again meanwhile gives `NotFoundError`."""
        try:
            answers = self._queue.reserve_many(topic, [work.event for work in works])
        except S3NotifyError as error:
            return error
        held = [
            (work, room) for work, room in zip(works, answers, strict=True) if isinstance(room, Reservation)
        ]
        if all(room.entry.epoch in work.event.announced_to for work, room in held):
            return answers
        self._queue.abort_many([room for _, room in held])
        return NotFoundError(f"topic {topic!r} was created again: read the topics again")

    def _abort(self, works: Iterable[PendingChange]) -> None:
        holding = [work for work in works if work.held]
        self._queue.abort_many([reservation for work in holding for reservation in work.held])
        for work in holding:
            work.held = []

    # 2 and 3. Write, and check the outcome.

    def _write(self, works: Sequence[PendingChange]) -> None:
        todo = [work for work in works if work.outcome is None]

        def write(work: PendingChange) -> None:
            # The age of the reservations is checked before each write: a long batch may outlive its reservations.
            if not self._queue.fresh_since(work.began):
                work.outcome, work.happened = Refused(retry_after_seconds=0.0), False
                return
            (work.outcome,) = self._publisher.write([work.change])
            if isinstance(work.outcome, Unknown):
                self._look(work)
            else:
                work.happened = isinstance(work.outcome, Written)
            work.answered = self._clock.monotonic()

        self._queue.shards.in_parallel(write, todo)
        for work in works:
            if isinstance(work.outcome, Refused | UsageError):
                work.happened = False

    def _look(self, work: PendingChange) -> None:
        """Resolves a write of unknown outcome if a HEAD proves that it happened. Otherwise, it may still happen."""
        try:
            found = self._publisher.head(work.event.key)
        except S3NotifyError:
            return
        if isinstance(work.change, Delete):
            if found is None:
                work.happened = True
                # If there was a precondition, another writer may have deleted the object instead of us.
                if work.change.precondition is None:
                    work.outcome = Written(etag=None)
        elif found is not None and written_by(found, work.event.writer):
            work.happened, work.outcome = True, Written(etag=found.etag)

    # 5. Commit, abort, or leave.

    def _finish(self, calls: Sequence[Sequence[PendingChange]]) -> None:
        works = [work for call in calls for work in call]
        self._settle(works)
        self._signal(works)

    def _settle(self, works: Sequence[PendingChange]) -> None:
        self._late.announce(works)
        unwritten = [reservation for work in works if work.happened is False for reservation in work.held]
        done = [
            (work, reservation.wrote(etag=work.etag, size=work.event.size))
            for work in works
            if work.happened and not work.left
            for reservation in work.held
        ]
        force: defaultdict[str, list[PendingChange]] = defaultdict(list)
        outcomes = self._queue.settle([reservation for _, reservation in done], unwritten)
        for (work, reservation), outcome in zip(done, outcomes, strict=True):
            if isinstance(outcome, Expired):
                force[reservation.entry.topic].append(work)
            elif not isinstance(outcome, EntryCommitted):
                work.announced = False
        for topic, unannounced in force.items():
            self._late.push_again(topic, unannounced)
        for work in works:
            if work.happened is None and not self._queue.fresh_since(work.began):
                for reservation in work.held:
                    self._late.reserve_again(reservation.entry.topic, [work])

    # 6 and 7. Signal, and send.

    def _move(
        self, keys: Sequence[str], queued: Collection[str], done: Iterable[Event]
    ) -> NotSignalledError | None:
        """Moves the signals in every keyspace; returns one error for all keys whose signal did not move."""
        named = named_in_root(self._queue, self._bucket, done if queued else ())
        missing, cause = set[str](), ""
        for keyspace in self._keyspaces:
            own = [key for key in keys if key.startswith(keyspace.prefix)]
            try:
                alone = all((key, keyspace.topic) in named for key in own)
                keyspace.publisher.signal(own, queued=queued, alone=alone)
            except NotSignalledError as error:
                missing.update(error.keys)
                cause = str(error)
        return NotSignalledError(cause, tuple(key for key in keys if key in missing)) if missing else None

    def _signal(self, works: Sequence[PendingChange]) -> None:
        # A write of unknown outcome moves its slot's signal, too, but without the mark, like writes without the queue.
        moved = [work for work in works if work.happened is not False]
        unqueued = {work.event.key for work in moved if not work.announced}
        keys = list(dict.fromkeys(work.event.key for work in moved))
        if error := self._move(keys, {*keys} - unqueued, (work.event for work in moved)):
            for work in moved:
                if work.event.key in error.keys:
                    work.unsignalled = str(error)

    def _end(self, works: Sequence[PendingChange]) -> None:
        happened = [replace(work.event, etag=work.etag) for work in works if work.happened]
        self.direct.send(self._bucket, happened)
        missing = [
            work
            for work in works
            if work.unsignalled or (work.happened and work.taken and not work.announced)
        ]
        if not missing:
            return
        message = next((work.unsignalled for work in missing if work.unsignalled), "the queue did not answer")
        keys = tuple(work.event.key for work in missing)
        outcomes = tuple(
            Unknown(cause=str(work.outcome)) if isinstance(work.outcome, UsageError) else work.outcome
            for work in works
        )
        raise NotSignalledError(
            f"{len(keys)} written keys are not announced, for example {keys[0]!r}: {message}; announce them again",
            keys,
            outcomes,
        )
