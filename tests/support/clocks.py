"""Clocks for tests."""

import random

from s3notify_platform.kernel.clock import SystemClock

EPOCH_MS = 1_700_000_000_000
"""The start time of the tests' clocks."""


class HandClock:
    """A clock that only a test or a sleep moves. The random bytes of the clock depend only on the clock's name."""

    def __init__(self, name=""):
        self.now = 1000.0
        self.slept = []
        self._dice = random.Random(f"clock moved by hand{name}")

    def monotonic(self):
        return self.now

    def wall_ms(self):
        return EPOCH_MS + int(self.now * 1000)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def random_bytes(self, count):
        return self._dice.randbytes(count)


class SlowClock:
    """A clock whose monotonic time runs at about a third of the right speed. The clock's wall-clock time is right."""

    def __init__(self, clock):
        self._clock = clock
        self.random_bytes = clock.random_bytes

    def monotonic(self):
        return self._clock.monotonic() * 0.334

    def wall_ms(self):
        return self._clock.wall_ms()

    def sleep(self, seconds):
        self._clock.sleep(seconds / 0.334)


class HurriedClock(SystemClock):
    """A clock with the real time. The clock's `sleep` does not wait."""

    def sleep(self, seconds):
        assert seconds >= 0
