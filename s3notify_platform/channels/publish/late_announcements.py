"""Changes that are announced after they were made: to new topics, or to topics in which a reservation expired."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from s3notify_platform.channels.publish.pending_change import PendingChange
from s3notify_platform.kernel.attempts import answered, attempts
from s3notify_platform.kernel.errors import (
    NotFoundError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.protocols.notification_queue import NotificationQueue, QuotaExceeded, Topic

ANNOUNCE_ATTEMPTS: Final = 5
"""Maximum number of a writer's attempts for one change. An attempt fails if the topics change meanwhile, or if a topic
refuses a change that must be announced.
"""


class LateAnnouncements:
    """Late announcements of changes of one bucket. Thread-safe; keeps no state."""

    def __init__(self, queue: NotificationQueue, *, bucket: str) -> None:
        self._queue = queue
        self._clock = queue.clock
        self._bucket = bucket

    def announce(self, works: Sequence[PendingChange]) -> None:
        """Announces changes to topics that were created after the changes were reserved.

        Call this method before the commits: while there is a reservation, the reconciler announces the changes if the
        writer is killed.
        """
        touched = [work for work in works if work.happened is not False]
        topics = self._topics_after(touched) if touched else ()
        late: defaultdict[str, list[PendingChange]] = defaultdict(list)
        for work in touched:
            takers = self._queue.takers(topics or (), self._bucket, work.event)
            work.taken = bool(topics is None or work.held or takers)
            work.announced = bool(work.happened and work.taken and topics is not None)
            work.left = topics is None
            new = [taker for taker in takers if taker.epoch not in work.event.announced_to]
            for taker in new:
                late[taker.name].append(work)
            work.event = replace(
                work.event, announced_to=(*work.event.announced_to, *(taker.epoch for taker in new))
            )
        for topic, unannounced in late.items():
            self.push_again(topic, [work for work in unannounced if work.happened])
            self.reserve_again(topic, [work for work in unannounced if not work.happened])

    def _topics_after(self, works: Sequence[PendingChange]) -> tuple[Topic, ...] | None:
        """All topics as of the time of these changes. If the topics could not be read, the result is None, and the
        signal is not marked as queued.

        No request is made if all changes are reserved, and happened soon after this process read the topics. Otherwise,
        the topics are read again. For example, a change whose outcome is unknown may still happen later.
        """
        reserved = all(work.held and work.happened for work in works)
        moment = max(work.answered for work in works) if reserved else None
        # Errors that need an operator are suppressed, too: the caller must get the outcomes of the writes.
        with suppress(S3NotifyError):
            return answered(
                lambda: self._queue.see_topics() if moment is None else self._queue.topics_as_of(moment),
                self._clock,
                ANNOUNCE_ATTEMPTS,
            )
        return None

    def push_again(self, topic: str, works: Sequence[PendingChange]) -> None:
        """Pushes changes whose reservation was resolved meanwhile, or that are missing in a new topic. The reconciler
        has no reservation for these changes. If the topic is full now, or an event is too large for it, the change
        counts as not announced.
        """
        todo = list(works)
        for _ in attempts(self._clock, ANNOUNCE_ATTEMPTS, base=0.5):
            try:
                for work in todo:
                    work.announced &= self._queue.fits(topic, work.event)
                if not (todo := [work for work in todo if work.announced]):
                    return
                events = [replace(work.event, etag=work.etag) for work in todo]
                outcomes = self._queue.push_many(topic, events)
            except NotFoundError:
                return  # the topic was deleted: it has no consumer
            except (UnavailableError, UnknownOutcomeError):
                pass
            else:
                todo = [
                    work for work, room in zip(todo, outcomes, strict=True) if isinstance(room, QuotaExceeded)
                ]
                if not todo:
                    return
        for work in todo:
            work.announced, work.left = False, True

    def reserve_again(self, topic: str, works: Iterable[PendingChange]) -> None:
        """Makes new reservations for writes whose outcome is still unknown. The reconciler resolves these reservations
        later.

        If the new reservations fail, too, the caller gets `Unknown`, and the signal is not marked as queued.
        """
        for work in works:
            with suppress(S3NotifyError):
                self._queue.reserve(topic, work.event)
