"""Large objects in the queue's publisher: their reservations are renewed during an upload."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from s3notify_platform.channels.publish.pending_change import PendingChange, Refused
from s3notify_platform.kernel.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import CopyRange, Unknown, UploadId, Written
from s3notify_platform.protocols.keyspace import LargePut, Publisher
from s3notify_platform.protocols.keyspace.uploads import Part
from s3notify_platform.protocols.notification_queue import (
    Expired,
    NotificationQueue,
    Reservation,
    Upload,
)

BEATS = 3
"""Number of renewals in the time in which a reservation counts as fresh."""


def upload(publisher: Publisher, queue: NotificationQueue, work: PendingChange, change: LargePut) -> None:
    """Writes the object of a reserved change, and sets the change's outcome. Errors: see `keyspace.uploads.written`.

    An upload that outlasted its reservation is `Refused`; the object was certainly not written.
    """
    uploaded = 0

    def counted() -> Iterator[Part]:
        nonlocal uploaded
        for part in change.parts:
            uploaded += part.size if isinstance(part, CopyRange) else len(part)
            yield part

    named = replace(change, parts=counted(), writer=work.event.writer)
    fresh = partial(queue.fresh_since, work.began)
    try:
        if work.held and change.at_once and not fresh():
            raise LapsedError(f"the reservation of {change.key!r} is too old to begin a copy")
        work.outcome = publisher.upload(named, Renewal(queue, work), fresh if work.held else lambda: True)
    except LapsedError:
        work.outcome = Refused(retry_after_seconds=0.0)
    if not isinstance(work.outcome, Unknown):
        work.happened = isinstance(work.outcome, Written)
    if not change.at_once:
        work.event = replace(work.event, size=uploaded)


class LapsedError(FencedError):
    """A reservation was resolved without its writer: the upload must not be completed."""


class Renewal:
    """Renews the reservations of an upload (`keyspace.uploads.Keep`). The first renewal also names the upload in the
    reservations.

    Requests: 1 for each topic at the beginning, then 1 for each topic every 13 s (a ninth of the topic's
    `stale_seconds`).
    """

    def __init__(self, queue: NotificationQueue, work: PendingChange) -> None:
        self._queue = queue
        self._work = work
        self._beats = 0

    def __call__(self, upload: UploadId) -> None:
        """Renews the reservations if a renewal is due. Raises an error if the upload must not continue; then nothing
        was written.
        """
        work, now = self._work, self._queue.clock.monotonic()
        if not work.held or (self._beats and now - work.began < self._queue.fresh_seconds() / BEATS):
            return
        self._beats += 1
        mark = Upload(id=upload, beats=self._beats)
        try:
            held = [self._renewed(reservation, mark) for reservation in work.held]
        except (UnavailableError, UnknownOutcomeError) as error:
            if self._beats > 1 and self._queue.fresh_since(work.began):
                return
            raise UnavailableError(
                f"upload of {work.event.key!r}: its reservation could not be renewed; nothing was written: {error}"
            ) from error
        work.held = [reservation for reservation in held if reservation is not None]
        work.event, work.began = replace(work.event, upload=mark), now

    def _renewed(self, reservation: Reservation, mark: Upload) -> Reservation | None:
        """The renewed reservation; None if its topic was deleted."""
        renewed = self._queue.renew(reservation, mark)
        if not isinstance(renewed, Expired):
            return renewed
        if reservation.entry.epoch in {topic.epoch for topic in self._queue.see_topics()}:
            raise LapsedError(f"the reservation of {self._work.event.key!r} was resolved without its writer")
        return None
