"""When an endpoint may be asked: at full speed while it answers, by one probe at a time while it does not.

    closed ──no answer, or `REFUSED_MAX` events in a row refused──► open ──probe accepted──► closed
                                                                     └──probe failed: a longer wait──┘

So an outage costs its backlog no attempts: entries that nobody probes with are not taken from the queue.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final, assert_never

from s3notify_platform.channels.delivery.push import Answer, Delivered, Down, Rejected
from s3notify_platform.clock import Clock, backoff_seconds

PROBE_BASE_SECONDS: Final = 0.5
PROBE_CEILING_SECONDS: Final = 10.0
"""An endpoint that is back is noticed within this time, for one request each time."""

REFUSED_MAX: Final = 6
"""Different events refused, and none accepted in between: the endpoint is to blame, not one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """How many entries may be taken and sent now. A `probe` must be answered by `note`, or given up by `release`."""

    limit: int
    probe: bool = False
    wait_seconds: float = 0.0
    """If none: how long to wait before asking again."""


class Circuit:
    """One endpoint, as one worker sees it. Thread-safe. `tell` hears of each change, for people."""

    def __init__(
        self,
        clock: Clock,
        *,
        tell: Callable[[str], None],
        base_seconds: float = PROBE_BASE_SECONDS,
        ceiling_seconds: float = PROBE_CEILING_SECONDS,
    ) -> None:
        self._clock = clock
        self._tell = tell
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
        """Whether the endpoint is taken for down."""
        return self._open

    def admit(self, wanted: int) -> Admission:
        """Up to `wanted` entries; 1 if it is time for a probe, and nobody else probes; or none."""
        with self._lock:
            if not self._open:
                return Admission(limit=wanted)
            left = self._due - self._clock.monotonic()
            if self._probing or left > 0:
                return Admission(limit=0, wait_seconds=max(left, self._base_seconds))
            self._probing = True
            return Admission(limit=1, probe=True)

    def release(self) -> None:
        """The probe was not sent."""
        with self._lock:
            self._probing = False

    def note(self, answer: Answer, event_id: str, *, probe: bool = False) -> None:
        """What came of a request; `event_id` of its first event."""
        told = ""
        with self._lock:
            if probe:
                self._probing = False
            match answer:
                case Delivered():
                    self._refused.clear()
                    self._failures = 0
                    if self._open:
                        self._open = False
                        told = f"delivers again, after {self._clock.monotonic() - self._since:.0f} s"
                case Rejected(error=error):
                    self._refused.add(event_id)
                    if probe or (not self._open and len(self._refused) >= REFUSED_MAX):
                        told = self._trip(f"refuses every event: {error}")
                case Down(error=error, retry_after_seconds=seconds):
                    # What was under way when it went down says nothing new.
                    if probe or not self._open:
                        told = self._trip(error)
                    self._due = max(self._due, self._clock.monotonic() + seconds)
                case _ as unreachable:
                    assert_never(unreachable)
        if told:
            self._tell(told)

    def _trip(self, error: str) -> str:
        now = self._clock.monotonic()
        told = "" if self._open else f"down: {error}"
        if not self._open:
            self._open, self._since = True, now
        self._failures += 1
        self._due = now + backoff_seconds(
            self._failures, self._clock, base=self._base_seconds, ceiling=self._ceiling_seconds
        )
        return told
