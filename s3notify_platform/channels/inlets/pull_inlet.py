"""The inlet for any message queue: receives messages, passes them to the intake, and deletes or hides them.

Steps
    1. Messages are received while more are available, up to `GATHER` together.
    2. During the processing, a heartbeat keeps the messages hidden from other inlets.
    3. The events of the messages are passed to `Intake.accept`: the events become durable in every topic, and are
       signalled.
    4. A message is deleted only after step 3.

A message that was not deleted is received again, so no crash loses a change; duplicates do no damage.

Outcomes of a message
    - Each event is queued, a duplicate, ignored, or kept as poison: the message is deleted.
    - A topic is full: the message is hidden, and received again later. The hidden time grows with each receive, up to
      15 minutes. Other topics have the entry already.
    - The store is unavailable: the message is kept in memory and retried. Meanwhile, no new message is received,
      because the message service counts the receives of each message: after too many receives, the service moves the
      message to its dead letters.
    - The message is not an S3 event message: it is left to the dead letters of the message service. If the service has
      no dead letters, the message is kept as poison with its reason, and deleted.
    - An unexpected error: the message is received again. From the `MAX_RECEIVES`th receive on, the message is treated
      as if it were no S3 event message.
    - A clean stop: messages in progress become visible again immediately.

Any number of inlets may share a queue. Requests: 1 receive every `RECEIVE_SECONDS` if idle. 100 messages that come in
batches of 10 cost 10 receives, 10 deletes and one `accept`.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event as Stop
from threading import Lock, Thread
from typing import Annotated, Final

from s3notify_platform.channels.delivery.egress_settings import EgressSettings
from s3notify_platform.channels.inlets.intake import Intake, intake_of
from s3notify_platform.channels.service import Progress, Service, ServiceContext
from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.limits import MAX_RECEIVES, PROGRESS_SECONDS
from s3notify_platform.kernel.ports import Message, MessageQueue
from s3notify_platform.kernel.setting import About
from s3notify_platform.protocols.notification_queue import Event, decode_events

log = logging.getLogger(__name__)

RECEIVE_SECONDS: Final = 5
"""Time that one receive waits, and so the time that a clean stop may take."""

VISIBILITY_SECONDS: Final = 60
"""Time for which messages stay hidden after their inlet was killed."""

GATHER: Final = 100
"""Maximum number of messages that are processed together."""

FULL_BASE_SECONDS: Final = 5.0
FULL_CEILING_SECONDS: Final = 900.0
OUTAGE_CEILING_SECONDS: Final = 30.0
DELETE_ATTEMPTS: Final = 4

_RETRY = (UnavailableError, UnknownOutcomeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    message: Message
    events: tuple[Event, ...]
    ignored: int


class PullInlet:
    """A service that passes messages of one queue to one intake. `run` must not be called concurrently."""

    def __init__(
        self,
        queue: MessageQueue,
        intake: Intake,
        *,
        name: str,
        clock: Clock = SYSTEM_CLOCK,
        wait_seconds: int = RECEIVE_SECONDS,
        visibility_seconds: int = VISIBILITY_SECONDS,
        gather: int = GATHER,
        max_receives: int = MAX_RECEIVES,
    ) -> None:
        if wait_seconds < 0 or visibility_seconds < 3 or gather < 1 or max_receives < 1:
            raise UsageError(
                "wait_seconds must be at least 0, visibility_seconds at least 3, gather and max_receives at least 1"
            )
        self.name = name
        self._queue = queue
        self._intake = intake
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._visibility_seconds = visibility_seconds
        self._gather = gather
        self._max_receives = max_receives
        self._has_dead_letters = False
        self._reported_at: float | None = None
        self._lock = Lock()
        self._held: dict[str, Message] = {}
        self._counts: Counter[str] = Counter()

    def run(self, stop: Stop, progress: Progress) -> None:
        """See `Service.run`. Ends after at most `RECEIVE_SECONDS` and the current `accept`."""
        attempt = 0
        reported = ""
        started = False
        ended = Stop()
        beat = Thread(target=self._beat, args=(ended,), name=f"{self.name} heartbeat", daemon=True)
        beat.start()
        try:
            while not stop.is_set():
                try:
                    if not started:
                        self._has_dead_letters = self._queue.max_receives() is not None
                        started = True
                    messages = self._receive()
                    attempt = 0
                except UnavailableError as error:
                    if (text := str(error)) != reported:
                        progress(text)
                    reported = text
                    stop.wait(backoff_seconds(attempt, self._clock, ceiling=OUTAGE_CEILING_SECONDS))
                    attempt += 1
                    continue
                if messages:
                    reported = self._work(messages, stop, progress)
                    self._report_counts(progress)
        finally:
            ended.set()
            beat.join()
            self._give_back()
            self._intake.direct.close()

    def counts(self) -> Mapping[str, int]:
        """The numbers of messages received, deleted, kept as poison and failed; and of events by outcome."""
        with self._lock:
            mine = {
                f"messages_{kind}": self._counts[kind] for kind in ("received", "deleted", "poison", "failed")
            }
        return {**mine, **self._intake.counts()}

    def handle(self, messages: Sequence[Message]) -> tuple[str, float] | None:
        """Processes messages once. Returns the reason and the seconds to wait if the store is unavailable, otherwise
        None.

        Finished messages are deleted or put back; call this method again for the other messages.
        """
        held = self._held_of(messages)
        read = []
        for message in held:
            try:
                found = decode_events(message.body)
            except UsageError as error:
                if trouble := self._set_aside(message, str(error)):
                    return trouble
            else:
                read.append(_Read(message=message, events=found.events, ignored=found.ignored))
        try:
            return self._accept(read)
        except _RETRY as error:
            return str(error), 1.0
        except S3NotifyError:
            raise  # only a person can fix this error: no message causes it
        except Exception:  # one message must not block the others: find the message that fails
            log.exception("a batch of %d messages could not be handled; each is tried alone", len(read))
        return self._accept_singly(read)

    def _receive(self) -> list[Message]:
        """The available messages, up to `gather`. Only the first receive waits."""
        messages: dict[str, Message] = {}
        wait = self._wait_seconds
        while len(messages) < self._gather:
            asked = min(self._queue.batch_size, self._gather - len(messages))
            try:
                found = self._queue.receive(
                    wait_seconds=wait, visibility_seconds=self._visibility_seconds, limit=asked
                )
            except UnavailableError:
                if messages:
                    break
                raise
            messages.update((message.id, message) for message in found)
            with self._lock:
                self._held.update((message.id, message) for message in found)
                self._counts["received"] += len(found)
            if len(found) < asked:
                break
            wait = 0
        return list(messages.values())

    def _work(self, messages: Sequence[Message], stop: Stop, progress: Progress) -> str:
        """Handles messages until all are finished, or the inlet stops. Returns the last reported text."""
        attempt = 0
        reported = ""
        while not stop.is_set() and (trouble := self.handle(messages)) is not None:
            cause, seconds = trouble
            if cause != reported:
                progress(cause)
            reported = cause
            wait = backoff_seconds(
                attempt, self._clock, base=max(seconds, 0.1), ceiling=OUTAGE_CEILING_SECONDS
            )
            stop.wait(wait)
            attempt += 1
        return reported

    def _report_counts(self, progress: Progress) -> None:
        """Reports the counts every `PROGRESS_SECONDS`."""
        now = self._clock.monotonic()
        if self._reported_at is None or now - self._reported_at >= PROGRESS_SECONDS:
            self._reported_at = now
            progress(" ".join(f"{kind}={number}" for kind, number in self.counts().items() if number))

    def _accept(self, read: Sequence[_Read]) -> tuple[str, float] | None:
        events = [event for one in read for event in one.events]
        accepted = self._intake.accept(events, origin=self.name)
        outcomes = iter(accepted.outcomes)
        done: list[Message] = []
        full: list[Message] = []
        unavailable = False
        for one in read:
            came_to = {next(outcomes) for _ in one.events}
            if "unavailable" in came_to:
                unavailable = True
            elif "full" in came_to:
                full.append(one.message)
            else:
                done.append(one.message)
        self._delete(done)
        self._put_back(full)
        with self._lock:
            self._counts["other_records"] += sum(one.ignored for one in read)
        return (accepted.cause, accepted.retry_after_seconds or 1.0) if unavailable else None

    def _accept_singly(self, read: Sequence[_Read]) -> tuple[str, float] | None:
        trouble = None
        for one in read:
            try:
                trouble = self._accept([one]) or trouble
            except S3NotifyError:
                raise
            except Exception as error:
                log.exception("message %s could not be handled", one.message.id)
                with self._lock:
                    self._counts["failed"] += 1
                if one.message.receives >= self._max_receives:
                    reason = f"failed {one.message.receives} times: {type(error).__name__}: {error}"
                    trouble = self._set_aside(one.message, reason) or trouble
                else:
                    self._release([one.message])
        return trouble

    def _set_aside(self, message: Message, reason: str) -> tuple[str, float] | None:
        """Leaves a message to the dead letters of the message service, or keeps it as poison."""
        if self._has_dead_letters:
            self._release([message])
        else:
            try:
                kept = self._intake.poison.keep(
                    message.body.encode("utf-8", "replace"), origin=self.name, reason=reason
                )
            except _RETRY as error:
                return str(error), 1.0
            if kept:
                self._delete([message])
            else:
                self._put_back([message])
        with self._lock:
            self._counts["poison"] += 1
        return None

    def _put_back(self, messages: Sequence[Message]) -> None:
        """Hides messages for a while; the time grows with each receive. Then the messages are received again."""
        self._release(messages)
        for receives in sorted({message.receives for message in messages}):
            grown = min(FULL_BASE_SECONDS * 2 ** min(receives - 1, 20), FULL_CEILING_SECONDS)
            jitter = backoff_seconds(0, self._clock, base=FULL_BASE_SECONDS)
            self._hide([message for message in messages if message.receives == receives], grown + jitter)

    def _delete(self, messages: Sequence[Message]) -> None:
        """Deletes messages. A message whose deletion fails is received again, and recognised as a duplicate."""
        self._release(messages)
        left: Sequence[Message] = messages
        for _ in attempts(self._clock, DELETE_ATTEMPTS):
            with suppress(*_RETRY):
                left = self._queue.delete(left)
            if not left:
                break
        with self._lock:
            self._counts["deleted"] += len(messages) - len(left)

    def _held_of(self, messages: Iterable[Message]) -> list[Message]:
        with self._lock:
            return [message for message in messages if message.id in self._held]

    def _release(self, messages: Iterable[Message]) -> None:
        with self._lock:
            for message in messages:
                self._held.pop(message.id, None)

    def _give_back(self) -> None:
        with self._lock:
            left = list(self._held.values())
            self._held.clear()
        self._hide(left, 0)

    def _hide(self, messages: Sequence[Message], seconds: float) -> None:
        """Hides messages. Messages that could not be hidden are visible when their visibility timeout ends."""
        with suppress(*_RETRY):
            self._queue.hide(messages, seconds)

    def _beat(self, ended: Stop) -> None:
        """Keeps messages in progress hidden. A failed heartbeat causes at most a duplicate."""
        while not ended.wait(self._visibility_seconds / 3):
            with self._lock:
                held = list(self._held.values())
            try:
                self._hide(held, self._visibility_seconds)
            except Exception as error:  # noqa: BLE001 - without this thread, messages in progress would reappear
                log.warning("heartbeat: %s", error)


@dataclass(frozen=True, kw_only=True)
class PullInletSettings(EgressSettings):
    """The common settings of inlets from message queues. The settings of each such inlet derive from this class."""

    visibility_seconds: Annotated[
        int,
        About(
            "Time after which another inlet gets the messages of a killed inlet",
            unit="seconds",
            minimum=3,
            maximum=43_200,
        ),
    ] = VISIBILITY_SECONDS

    def messages(self, context: ServiceContext) -> MessageQueue:
        """The message queue to receive from. Cost: no request."""
        raise NotImplementedError

    def build(self, context: ServiceContext) -> Service:
        """See `ServiceSettings.build`."""
        return PullInlet(
            self.messages(context),
            intake_of(context, self.egress()),
            name=context.name,
            visibility_seconds=self.visibility_seconds,
        )
