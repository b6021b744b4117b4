"""The one retry loop: a bounded number of attempts, with jittered backoff in between."""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from s3notify_platform.kernel.clock import Clock, backoff_seconds
from s3notify_platform.kernel.errors import UnavailableError

T = TypeVar("T")

ATTEMPTS: Final = 8
"""Attempts of one operation, unless the caller gives another number. All backoffs together take about 6 s on average,
11 s at most."""

BASE_SECONDS: Final = 0.1
CEILING_SECONDS: Final = 5.0


def attempts(
    clock: Clock, most: int = ATTEMPTS, *, base: float = BASE_SECONDS, ceiling: float = CEILING_SECONDS
) -> Iterator[int]:
    """Yields the numbers of up to `most` attempts, from 0. Waits before each attempt but the first (`backoff_seconds`).

    The caller leaves the loop when an attempt succeeds. The code after the loop runs if no attempt succeeded.
    """
    for attempt in range(most):
        if attempt:
            clock.sleep(backoff_seconds(attempt - 1, clock, base=base, ceiling=ceiling))
        yield attempt


def answered(look: Callable[[], T], clock: Clock, most: int = ATTEMPTS) -> T:
    """Returns the answer of `look`. Makes at most `most` attempts while the store is unavailable.

    Raises the last `UnavailableError` if every attempt failed.
    """
    for attempt in attempts(clock, most):
        try:
            return look()
        except UnavailableError:
            if attempt == most - 1:
                raise
    raise UnavailableError("no attempt was made")
