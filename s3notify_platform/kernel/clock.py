"""The only reader of time and randomness.

Everything that waits, times out, or draws a random name takes a `Clock`. A simulation can therefore decide when things
happen, and the same seed repeats the same history exactly. A lint rule bans `time`, `random` and the like elsewhere.

Durations are measured with `monotonic` and never leave the machine. `wall_ms` is for people to read, and is written
into the body of a signal. No decision compares the wall clocks of two machines.
"""

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """Time and randomness, as one port."""

    def monotonic(self) -> float:
        """Seconds since some fixed point of this process; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Unix time in milliseconds, for people; never compared across machines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for `seconds` >= 0."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """`count` bytes from a cryptographic source."""
        ...


if hasattr(time, "CLOCK_BOOTTIME"):

    def _elapsed() -> float:
        # On Linux, CLOCK_MONOTONIC stops while the machine is suspended: a lease would be held for too long.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    _elapsed = time.monotonic


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`. Includes the time for which the machine was suspended, if the system measures it."""
        return _elapsed()

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)

    def random_bytes(self, count: int) -> bytes:
        """See `Clock.random_bytes`."""
        return secrets.token_bytes(count)


SYSTEM_CLOCK = SystemClock()


def unique_name(clock: Clock) -> str:
    """32 hex digits that no other caller draws, for names of files, writers and operations."""
    return clock.random_bytes(16).hex()


def backoff_seconds(attempt: int, clock: Clock, *, base: float = 0.1, ceiling: float = 5.0) -> float:
    """Full-jitter exponential backoff: uniform in [0, min(ceiling, base * 2**attempt)] seconds.

    `attempt` counts from 0. Formula: Brooker, "Exponential Backoff And Jitter".
    """
    limit: float = min(ceiling, base * 2 ** min(attempt, 30))
    return limit * int.from_bytes(clock.random_bytes(4), "little") / 2**32
