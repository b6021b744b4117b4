"""A circuit breaker. While the endpoint answers, requests are sent at full speed. Otherwise, only one probe at a time
is sent.

    closed ──no answer, or `REFUSED_MAX` events in a row refused──► open ──probe accepted──► closed
                                                                     └──probe failed: a longer wait──┘

So while the circuit is open, only the entry of a probe can lose an attempt: the other entries stay in the queue.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final, assert_never

from s3notify_platform.channels.delivery.push import Answer, Delivered, Down, Rejected
from s3notify_platform.kernel.clock import Clock, backoff_seconds

PROBE_BASE_SECONDS: Final = 0.5
PROBE_CEILING_SECONDS: Final = 10.0
"""Maximum time until the worker notices that an endpoint works again. Each probe costs one request."""

REFUSED_MAX: Final = 6
"""The endpoint counts as down after this number of different events was refused in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The number of entries to take and send now. If `probe` is True, call `note` with the answer to the probe, or
    `release` if the probe was not sent.
    """

    limit: int
    probe: bool = False
    wait_seconds: float = 0.0
    """Time to wait before the next call, if `limit` is 0."""


class Circuit:
    """The circuit of one endpoint in one worker. Thread-safe. Each change of the circuit's state calls `report` with a
    text.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        report: Callable[[str], None],
        base_seconds: float = PROBE_BASE_SECONDS,
        ceiling_seconds: float = PROBE_CEILING_SECONDS,
    ) -> None:
        self._clock = clock
        self._report = report
        self._base_seconds = base_seconds
        self._ceiling_seconds = ceiling_seconds
        self._lock = Lock()
        self._open = False
        self._since = 0.0
        self._due = 0.0
        self._probing = False
        self._failures = 0
        self._refused: set[str] = set()

    @property
    def is_open(self) -> bool:
        """True if the endpoint counts as down."""
        return self._open

    def admit(self, wanted: int) -> Admission:
        """Admits `wanted` entries; an open circuit admits 1 if a probe is due and no probe is in flight, else 0."""
        with self._lock:
            if not self._open:
                return Admission(limit=wanted)
            left = self._due - self._clock.monotonic()
            if self._probing or left > 0:
                return Admission(limit=0, wait_seconds=max(left, self._base_seconds))
            self._probing = True
            return Admission(limit=1, probe=True)

    def release(self) -> None:
        """Gives back a probe that was not sent."""
        with self._lock:
            self._probing = False

    def note(self, answer: Answer, event_id: str, *, probe: bool = False) -> None:
        """Records the answer to a request; `event_id` is the id of the request's first event."""
        change = ""
        with self._lock:
            if probe:
                self._probing = False
            match answer:
                case Delivered():
                    self._refused.clear()
                    self._failures = 0
                    if self._open:
                        self._open = False
                        change = f"delivers again, after {self._clock.monotonic() - self._since:.0f} s"
                case Rejected(error=error):
                    self._refused.add(event_id)
                    if probe or (not self._open and len(self._refused) >= REFUSED_MAX):
                        change = self._trip(f"refuses every event: {error}")
                case Down(error=error, retry_after_seconds=seconds):
                    # If a request was sent before the outage, its answer does not lengthen the wait.
                    if probe or not self._open:
                        change = self._trip(error)
                    self._due = max(self._due, self._clock.monotonic() + seconds)
                case _ as unreachable:
                    assert_never(unreachable)
        if change:
            self._report(change)

    def _trip(self, error: str) -> str:
        now = self._clock.monotonic()
        change = "" if self._open else f"down: {error}"
        if not self._open:
            self._open, self._since = True, now
        self._failures += 1
        self._due = now + backoff_seconds(
            self._failures, self._clock, base=self._base_seconds, ceiling=self._ceiling_seconds
        )
        return change
