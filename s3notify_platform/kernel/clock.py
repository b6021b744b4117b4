"""The only module that reads the time and draws random values.

Code that waits, times out, or draws a random name gets a `Clock`. A simulation can therefore decide the time of each
event, and the same seed repeats the same history exactly. A lint rule forbids `time`, `random` and similar modules in
other code.

Durations are measured with `monotonic`. Values of `monotonic` are never sent to another machine. `wall_ms` is shown to
people, and is also in the body of a signal. No decision compares the wall clocks of two machines.
"""

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """The port for time and randomness."""

    def monotonic(self) -> float:
        """Returns the seconds since a fixed moment of this process. The value never decreases."""
        ...

    def wall_ms(self) -> int:
        """Returns the Unix time in milliseconds, for people. Times of two machines are never compared."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for `seconds` >= 0."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Returns `count` random bytes from a cryptographic source."""
        ...


if hasattr(time, "CLOCK_BOOTTIME"):

    def _elapsed() -> float:
        # On Linux, CLOCK_MONOTONIC stops while the machine is suspended. With CLOCK_MONOTONIC, a process would keep a
        # lease for too long.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    _elapsed = time.monotonic


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`. The value includes the time for which the machine was suspended, if the system can
        measure this time.
        """
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
    """Draws 32 hexadecimal digits, which no other caller draws, for names of files, writers and operations."""
    return clock.random_bytes(16).hex()


def backoff_seconds(attempt: int, clock: Clock, *, base: float = 0.1, ceiling: float = 5.0) -> float:
    """Draws a full-jitter exponential backoff: uniform in [0, min(ceiling, base * 2**attempt)] seconds.

    `attempt` counts from 0. The formula is from Brooker, "Exponential Backoff And Jitter".
    """
    limit: float = min(ceiling, base * 2 ** min(attempt, 30))
    return limit * int.from_bytes(clock.random_bytes(4), "little") / 2**32
