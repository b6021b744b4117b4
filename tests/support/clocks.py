"""A clock that a test moves by hand."""

from s3notify_platform.clock import SYSTEM_CLOCK


class HandClock:
    """Stands still until it is moved; sleeping moves it. Randomness is real."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def monotonic(self):
        return self.now

    def wall_ms(self):
        return 1_700_000_000_000 + int(self.now * 1000)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def random_bytes(self, count):
        return SYSTEM_CLOCK.random_bytes(count)
