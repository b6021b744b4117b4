"""Settings of a source's batches: how many batches may be in flight, and how failed slots are retried."""

from dataclasses import dataclass
from typing import Annotated

from s3notify_platform.kernel.setting import About


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Limits of a source's batches."""

    parallel_runs: Annotated[
        int, About("Number of runs that a batch is split into", unit="runs", minimum=1)
    ] = 1
    max_open: Annotated[
        int, About("Batches in flight at the same time; no slot is in two of them", unit="batches", minimum=1)
    ] = 1
    max_attempts: Annotated[
        int,
        About(
            "Failed batches allowed for a slot; the last attempt quarantines objects that cannot be read, and a "
            "slot that fails alone for another reason is parked",
            unit="batches",
            minimum=1,
        ),
    ] = 5
    backoff_seconds: Annotated[
        float,
        About("Delay before the first retry of a failed slot; it doubles with each failure", unit="seconds"),
    ] = 10.0
    backoff_ceiling_seconds: float = 900.0
    parked_seconds: Annotated[
        float,
        About("Delay before a parked slot is retried; a change of the slot ends the delay", unit="seconds"),
    ] = 3600.0
    silence_seconds: Annotated[
        float,
        About(
            "A run without a heartbeat for this long counts as dead; a run that is starting counts as dead only if "
            "its process has also ended",
            unit="seconds",
        ),
    ] = 30.0
    startup_seconds: Annotated[
        float,
        About(
            "A run that has never sent a heartbeat counts as dead after this long, even if the state of its "
            "process is unknown",
            unit="seconds",
        ),
    ] = 180.0
    relist_seconds: float = 300.0
    list_seconds: Annotated[
        float,
        About(
            "Interval between listings of the bucket if a writer does not queue its changes; raise it for large "
            "buckets",
            unit="seconds",
        ),
    ] = 10.0

    def is_last(self, failed: int) -> bool:
        """True if the next attempt is the last one for a slot with this many failed attempts."""
        return failed >= self.max_attempts - 1

    def retry_seconds(self, failed: int) -> float:
        """Returns the delay before a retry of a slot with this many failed attempts. The delay doubles with each
        attempt, up to a ceiling.
        """
        doubled: float = self.backoff_seconds * 2.0 ** max(0, min(failed - 1, 20))
        return min(self.backoff_ceiling_seconds, doubled)
