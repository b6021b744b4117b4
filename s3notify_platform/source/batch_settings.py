"""The settings of a source's batches: how many at once, and when a slot that failed is tried again."""

from dataclasses import dataclass
from typing import Annotated

from s3notify_platform.kernel.setting import About


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Limits of a source's batches."""

    parallel_runs: Annotated[int, About("Runs that a batch is split into", unit="runs", minimum=1)] = 1
    max_open: Annotated[
        int, About("Batches in flight at once; their slots are disjoint", unit="batches", minimum=1)
    ] = 1
    max_attempts: Annotated[
        int,
        About(
            "Batches a slot may fail in: the last puts objects that cannot be read to quarantine; a slot "
            "that fails otherwise, alone, is parked",
            unit="batches",
            minimum=1,
        ),
    ] = 5
    backoff_seconds: Annotated[
        float, About("Before a slot that failed is tried again; doubles", unit="seconds")
    ] = 10.0
    backoff_ceiling_seconds: float = 900.0
    parked_seconds: Annotated[
        float, About("Before a parked slot is tried again; as soon as it changes, too", unit="seconds")
    ] = 3600.0
    silence_seconds: Annotated[
        float,
        About(
            "A run without heartbeat for this long is taken for dead; while it starts, only if its process is gone",
            unit="seconds",
        ),
    ] = 30.0
    startup_seconds: Annotated[
        float,
        About(
            "A run that never had a heartbeat for this long is taken for dead, also if nobody knows of its process",
            unit="seconds",
        ),
    ] = 180.0
    relist_seconds: float = 300.0
    list_seconds: Annotated[
        float,
        About(
            "Between listings of the bucket, if a writer does not queue; raise it for large buckets",
            unit="seconds",
        ),
    ] = 10.0

    def is_last(self, failed: int) -> bool:
        """Whether the next attempt is the last one, for a slot that has failed so many times."""
        return failed >= self.max_attempts - 1

    def retry_seconds(self, failed: int) -> float:
        """How long a slot waits that has failed so many times. Doubles each time, up to a ceiling."""
        doubled: float = self.backoff_seconds * 2.0 ** max(0, min(failed - 1, 20))
        return min(self.backoff_ceiling_seconds, doubled)
