"""Waits for work that runs concurrently with a test."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], *, seconds: float = 30.0, why: Callable[[], str] = lambda: "") -> T:
    """Calls `holds` until its result is true, and returns the result. After `seconds`, fails with `why`."""
    ends, pause = time.monotonic() + seconds, 0.002
    while not (found := holds()):
        assert time.monotonic() < ends, f"not within {seconds:g} s {why()}"
        time.sleep(pause)
        pause = min(2 * pause, 0.25)
    return found
