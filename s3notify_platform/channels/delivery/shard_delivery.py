"""Delivery of one shard: take the entries that are due, post them, and settle each entry by the answer.

Theory of operation. Entries that were never tried are sent in batches; entries that failed before are sent one by one.
A refused batch is split in halves again and again, until the event that causes the refusal is alone. The other events
are delivered in the same turn. For a batch of n events, this costs about 2 log2(n) more requests. A batch without an
answer fails as a whole, and its entries are sent again one by one. If the endpoint accepts nothing, its circuit opens,
and the entries that the turn took return to the queue. Entries that the endpoint certainly did not process lose no
attempt. While the circuit is open, only one entry at a time is taken, as a probe.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Final, assert_never

from s3notify_platform.channels.delivery.circuit import Circuit
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Down, Push, Rejected
from s3notify_platform.kernel.clock import backoff_seconds
from s3notify_platform.kernel.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.protocols.notification_queue import DeadLettered, Entry, Failure, ShardConsumer

TAKE_MAX: Final = 256
"""Maximum number of entries that one turn takes from a shard, equal to the size of a segment."""

SETTLE_SECONDS: Final = 1.0
"""Interval at which the outcomes of taken entries are written to the queue. If the owner is killed, entries delivered
since the last write may be delivered twice.
"""

IDLE_BASE_SECONDS: Final = 0.25
POLL_SECONDS: Final = 2.0
"""Longest pause between two scans of an idle shard; a scan is 1 LIST if the queue is on a bucket."""

EXPIRY_CHECK_SECONDS: Final = 30.0
"""Interval of scans for expired entries while the endpoint accepts nothing."""

_LAPSED_SECONDS: Final = 0.25

Batch = tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEndpoint:
    """A topic's endpoint in one worker. `push` is None if this worker cannot use the endpoint."""

    text: str
    """The topic's setting that describes the endpoint."""
    endpoint: Endpoint | None
    push: Push | None
    circuit: Circuit
    made: float = 0.0
    """The time of the attempt to use the endpoint, by `Clock.monotonic`."""


class ShardDelivery:
    """One shard under one lease. Only one thread may call `turn`. Any thread may use the other members."""

    def __init__(
        self,
        consumer: ShardConsumer,
        *,
        target: Callable[[], TopicEndpoint],
        count: Callable[[str, int], None],
        valid: Callable[[], bool],
        paused: Callable[[], bool],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """`target`: returns the topic's current endpoint. `count`: adds to a counter.

        `valid`: returns True while the lease is valid. `paused`: returns True while the topic is paused.
        """
        self.consumer = consumer
        self.lease = consumer.lease
        self.ended = Event()
        self.paused = False
        self.turning = Lock()
        """The lock that a thread has during a turn. While one thread has this lock, no other thread takes entries."""
        self._target = target
        self._count = count
        self._valid = valid
        self._topic_paused = paused
        self._clock = consumer.clock
        self._poll_seconds = poll_seconds
        self._idle_seconds = IDLE_BASE_SECONDS
        self._troubles = 0
        self._expired_at: float | None = None

    def turn(self) -> float:
        """Takes, posts and settles entries once; returns the seconds to wait before the next turn.

        Errors of the store's requests and of the endpoint are not raised. `CorruptError`: an entry cannot be read.
        """
        try:
            wait = self._turn()
        except FencedError:
            return _LAPSED_SECONDS  # the lease was renewed late, or is lost: `Worker.balance` finds out which
        except (UnavailableError, UnknownOutcomeError):
            self._count("store_errors", 1)
            self._troubles += 1
            return backoff_seconds(self._troubles, self._clock)
        self._troubles = 0
        return wait

    def _turn(self) -> float:
        if self._topic_paused():
            self.consumer.rest()
            return self._poll_seconds
        target = self._target()
        if target.push is None or target.endpoint is None:
            self._expire()
            return self._poll_seconds
        admission = target.circuit.admit(TAKE_MAX)
        if not admission.limit:
            self._expire()
            return min(admission.wait_seconds, self._poll_seconds)
        try:
            entries = self.consumer.take(admission.limit)
            if not entries:
                return self._idle()
            self._idle_seconds = IDLE_BASE_SECONDS
            try:
                self._deliver(entries, target, target.push, target.endpoint, probe=admission.probe)
            except Exception:
                self.consumer.release(entries)
                raise
        finally:
            if admission.probe:
                target.circuit.release()
        return 0.0

    def _idle(self) -> float:
        wait = self._idle_seconds
        self._idle_seconds = min(2 * wait, self._poll_seconds)
        return min(wait, self._poll_seconds)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        if self._expired_at is None or now - self._expired_at >= EXPIRY_CHECK_SECONDS:
            self._expired_at = now
            self._count("dead", self.consumer.expire())

    def _deliver(
        self, entries: Sequence[Entry], target: TopicEndpoint, push: Push, endpoint: Endpoint, *, probe: bool
    ) -> None:
        """Posts `concurrency` batches at a time, until each entry is settled."""
        todo = list(grouped(entries, endpoint.events_max))
        known = _Known()
        due = self._clock.monotonic() + SETTLE_SECONDS
        try:
            while todo:
                if self.ended.is_set():
                    return  # this delivery was stopped, or another worker now owns the shard and its remaining entries
                if not self._valid():
                    known.failed(_flat(todo), "the lease was not renewed in time", begun=False)
                    return
                if self._topic_paused():
                    known.failed(_flat(todo), "the topic is paused", begun=False)
                    return
                wave, todo = todo[: endpoint.concurrency], todo[endpoint.concurrency :]
                todo += self._post(wave, target, push, known, probe=probe)
                if todo and target.circuit.is_open:
                    known.failed(_flat(todo), "not sent: the endpoint is down", begun=False)
                    return
                if self._clock.monotonic() >= due:
                    self._settle(known)
                    known, due = _Known(), self._clock.monotonic() + SETTLE_SECONDS
        finally:
            self._settle(known)

    def _post(
        self, wave: list[Batch], target: TopicEndpoint, push: Push, known: "_Known", *, probe: bool
    ) -> list[Batch]:
        """Posts these batches and records their outcomes; returns the entries to post again, in smaller batches."""
        answers = push.post_many(self.lease.topic, wave)
        self._count("requests", len(wave))
        split: list[Batch] = []
        for batch, answer in zip(wave, answers, strict=True):
            target.circuit.note(answer, batch[0].id, probe=probe)
            match answer:
                case Delivered():
                    known.delivered += batch
                case Rejected(error=error):
                    if len(batch) == 1 or target.circuit.is_open:
                        known.failed(batch, error)
                    else:
                        half = len(batch) // 2
                        split += [batch[:half], batch[half:]]
                case Down(error=error, reached=reached):
                    known.failed(batch, error, begun=reached)
                case _ as unreachable:
                    assert_never(unreachable)
        return split

    def _settle(self, known: "_Known") -> None:
        now_ms = self._clock.wall_ms()
        waited = sum(max(0, now_ms - entry.event.time_ms) for entry in known.delivered if entry.event.time_ms)
        self._count("delivered", len(known.delivered))
        self._count("waited_ms", waited)
        self._count("failed", sum(len(failure.entries) for failure in known.failures))
        outcomes = self.consumer.settle(known.delivered, known.failures)
        self._count("dead", sum(isinstance(outcome, DeadLettered) for outcome in outcomes))


@dataclass(slots=True, kw_only=True)
class _Known:
    """The outcomes of taken entries, as long as these outcomes are not written to the queue."""

    delivered: list[Entry] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def failed(self, batch: Batch, error: str, *, begun: bool = True) -> None:
        """Records that these entries were not delivered."""
        self.failures.append(Failure(entries=batch, error=error, begun=begun))


def grouped(entries: Sequence[Entry], size: int) -> Iterator[Batch]:
    """Groups of entries to post together. A group has up to `size` untried entries, or one retried entry. Pure."""
    fresh = [entry for entry in entries if entry.attempts <= 1]
    for start in range(0, len(fresh), size):
        yield tuple(fresh[start : start + size])
    for entry in entries:
        if entry.attempts > 1:
            yield (entry,)


def _flat(batches: Sequence[Batch]) -> Batch:
    return tuple(entry for batch in batches for entry in batch)
