"""Direct delivery: the process that announces a change also sends it to the topics that are not persistent.

    PUT of the object ──► entries of persistent topics, signals ──► direct delivery ──► the call returns

Guarantees
    - Before the call returns, each event was sent once, or counts as unsent. Nothing is stored or repeated: a crash, a
      refusal or a silent endpoint loses the notification. So a topic gets each event at most once in each call. An
      event without an answer counts as unsent, although the endpoint may have it.
    - A failed delivery never fails the write. Each failure is counted, and logged when the topic begins to fail.
    - A call waits for all topics at the same time, and for each topic at most the topic's `timeout_seconds`. Requests
      to one topic are sent one after the other. Requests that have not begun within this time are not sent.
    - Endpoint, formats, acknowledgements, `Egress`, logins and HMAC keys work as in the delivery worker. But here the
      process that announces the change sends the events, so the environment of this process must have the variables
      that the topic names.

As in Ceph RGW, the events of a refused request are not sent again in smaller requests. With a `batch_size` of 1, a
refusal loses only one event.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock, Thread
from typing import Final

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Push, connect, described
from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import Entry, Event, NotificationQueue, Topic
from s3notify_platform.protocols.notification_queue.entries import Place, takes_event
from s3notify_platform.protocols.notification_queue.reserving import stamped

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    text: str
    """The topic's setting that describes the endpoint."""
    endpoint: Endpoint
    push: Push
    free: BoundedSemaphore
    """The permits for requests to the endpoint, as many as `push` sends at a time. So no request waits inside of
    `push`.
    """


@dataclass(slots=True, kw_only=True)
class _Sending:
    """The entries of one call for one topic, and the progress of their delivery."""

    topic: Topic
    entries: Sequence[Entry]
    due: float = 0.0
    sent: int = 0
    error: str = "no answer within the topic's timeout"


class DirectDelivery:
    """Sends the changes of one process to the endpoints of topics that are not persistent. Thread-safe."""

    def __init__(self, queue: NotificationQueue, *, egress: Egress | None = None) -> None:
        """`egress`: the permitted networks; default: https to public addresses."""
        self._queue = queue
        self._clock = queue.clock
        self._egress = egress or Egress()
        self._lock = Lock()
        self._targets: dict[str, _Target] = {}
        self._failing: set[str] = set()
        self._counts: Counter[str] = Counter(sent=0, unsent=0)

    def send(self, bucket: str, events: Iterable[Event]) -> list[bool]:
        """Sends these changes, which have already happened, to each topic that takes them and is not persistent.

        Returns for each event True if at least one of these topics takes the event. Raises no error of stores and
        endpoints. Cost: 1 request to the endpoint for each batch of a topic's events, and 1 scan of the topics, unless
        they were read within the last `known_seconds`.
        """
        if not (wanted := list(events)):
            return []
        try:
            topics = self._queue.topics_as_of(self._clock.monotonic())
        except S3NotifyError as error:
            for name in tuple(self._targets):  # in each topic of earlier calls, all events count as unsent
                self._note(name, len(wanted), f"the topics could not be read: {error}")
            return [False] * len(wanted)
        direct = [topic for topic in topics if not topic.settings.persistent]
        taken = [[takes_event(topic.settings, bucket, event) for event in wanted] for topic in direct]
        self._forget({topic.name for topic in direct})
        sendings = [
            _Sending(topic=topic, entries=self._entries(topic, events_of))
            for topic, takes in zip(direct, taken, strict=True)
            if (events_of := [event for event, is_taken in zip(wanted, takes, strict=True) if is_taken])
        ]
        self._send_all(sendings)
        return [any(takes) for takes in zip(*taken, strict=True)] or [False] * len(wanted)

    def counts(self) -> Mapping[str, int]:
        """The numbers of events sent, and not sent, since the process began; an event of two topics counts twice."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Ends the requests in flight, and closes the connections."""
        self._forget(set())

    def _entries(self, topic: Topic, events: Sequence[Event]) -> tuple[Entry, ...]:
        """The events as entries, the form that endpoints get. These entries are not stored in the queue."""
        place = Place(topic=topic.name, epoch=topic.epoch, shard=0, key=unique_name(self._clock), quota=0)
        return tuple(
            Entry(
                place=place,
                n=number,
                slot=slot_of(event.key, topic.settings.slots),
                state="committed",
                event=stamped(topic.settings, event, self._clock),
            )
            for number, event in enumerate(events)
        )

    def _send_all(self, sendings: Sequence[_Sending]) -> None:
        begun: list[tuple[_Sending, Thread, float]] = []
        for sending in sendings:
            try:
                target = self._target(sending.topic)
            except UsageError as error:
                self._note(sending.topic.name, len(sending.entries), str(error))
                continue
            seconds = target.endpoint.timeout_seconds
            sending.due = self._clock.monotonic() + seconds
            thread = Thread(target=self._send, args=(sending, target), name="direct delivery", daemon=True)
            thread.start()
            begun.append((sending, thread, seconds))
        for sending, thread, seconds in begun:
            thread.join(min(seconds, max(0.0, sending.due - self._clock.monotonic())))
            sent, unsent = sending.sent, len(sending.entries) - sending.sent
            self._note(sending.topic.name, unsent, sending.error, sent=sent)

    def _send(self, sending: _Sending, target: _Target) -> None:
        size = target.endpoint.events_max
        for start in range(0, len(sending.entries), size):
            left = sending.due - self._clock.monotonic()
            if left <= 0 or not target.free.acquire(timeout=left):
                return
            batch = sending.entries[start : start + size]
            try:
                (answer,) = target.push.post_many(sending.topic.name, [batch])
            except Exception as error:  # noqa: BLE001 - the object is written, so its writer must get no error
                sending.error = described(error)
                return
            finally:
                target.free.release()
            if isinstance(answer, Delivered):
                sending.sent += len(batch)
            else:
                sending.error = answer.error

    def _target(self, topic: Topic) -> _Target:
        text = topic.settings.endpoint
        with self._lock:
            known = self._targets.get(topic.name)
            if known is not None and known.text == text:
                return known
            endpoint = Endpoint.loads(text)
            push = connect(endpoint, self._egress, clock=self._clock, once=True)
            made = _Target(
                text=text, endpoint=endpoint, push=push, free=BoundedSemaphore(endpoint.concurrency)
            )
            self._targets[topic.name] = made
        if known is not None:
            known.push.close()
        return made

    def _forget(self, served: set[str]) -> None:
        with self._lock:
            gone = [self._targets.pop(name) for name in tuple(self._targets) if name not in served]
        for target in gone:
            target.push.close()

    def _note(self, topic: str, unsent: int, error: str, *, sent: int = 0) -> None:
        """Counts sent and unsent events. Logs the topic's first failure, and the first failure after each success."""
        with self._lock:
            self._counts.update(sent=sent, unsent=unsent)
            begins = bool(unsent) and topic not in self._failing
            (self._failing.add if unsent else self._failing.discard)(topic)
        if begins:
            _LOG.warning(
                "topic %r is not persistent, and %d of its events were not sent: %s", topic, unsent, error
            )
