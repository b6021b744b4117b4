"""The loop over a bounded number of attempts of one operation, with a jittered backoff between two attempts.

Loops that do not use `attempts`, with the reason:

- Attempts without a pause. Each attempt begins with a new read or a new name, so a pause would not help:
  `owners.Worker._renew`, `reserving`, `bucket_records.create`, `table.snapshot.open`.
- Attempts that wait for an event, and not for a time: `conditional_commit.leases` (the end of another writer's lease),
  `keyspace.causal` (held-back changes).
- Attempts until a deadline: `table.commit`. This loop also ends if the change was planned on a damaged version.
- Attempts until the pauses of a whole run have a given sum: `engine.driver` waits for an unavailable store.
- Attempts that check a change which another process may undo, at equal intervals: `orchestration.pausing.switch`.
- Replans. An attempt makes another plan: `table.round`, `table.follow`, `table.retype`, `table_rollback`,
  `table_erasure`, `explain.look`, and the rounds of `engine.driver`.
- Services never give up. A signal to stop ends their pauses: `channels`, `orchestration.managed_services`,
  `spark.continuous`.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from s3notify_platform.kernel.clock import Clock, backoff_seconds
from s3notify_platform.kernel.errors import UnavailableError

T = TypeVar("T")

ATTEMPTS: Final = 8
"""Number of attempts of one operation, unless the caller gives another number. All backoffs together take about 6 s on
average, and at most 11.3 s."""

BASE_SECONDS: Final = 0.1
CEILING_SECONDS: Final = 5.0


def attempts(
    clock: Clock, most: int = ATTEMPTS, *, base: float = BASE_SECONDS, ceiling: float = CEILING_SECONDS
) -> Iterator[int]:
    """Yields the numbers of up to `most` attempts, from 0. Waits before each attempt except the first
    (`backoff_seconds`).

    The caller leaves the loop when an attempt succeeds. So the code after the loop runs only if no attempt has
    succeeded.
    """
    for attempt in range(most):
        if attempt:
            clock.sleep(backoff_seconds(attempt - 1, clock, base=base, ceiling=ceiling))
        yield attempt


def answered(look: Callable[[], T], clock: Clock, most: int = ATTEMPTS) -> T:
    """Returns the answer of `look`. If the store is unavailable, calls `look` again, at most `most` times in total.

    Raises the last `UnavailableError` if every attempt has failed.
    """
    for attempt in attempts(clock, most):
        try:
            return look()
        except UnavailableError:
            if attempt == most - 1:
                raise
    raise UnavailableError("no attempt was made")
