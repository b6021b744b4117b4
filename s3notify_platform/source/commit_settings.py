"""Settings of commits to stores without conditional writes, declared as in `source.settings`."""

from dataclasses import dataclass
from typing import Annotated, Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import About
from s3notify_platform.protocols.conditional_commit import (
    DEFAULT_LEASES,
    LEASE_FORM,
    is_lease_text,
    lease_text,
)

COMMITS: Final = ("auto", "native", "dynamodb")


def check_commit(text: str) -> None:
    """Raises `UsageError` for a value that `commit` does not accept."""
    if is_lease_text(text):
        lease_text(text)
    elif text not in COMMITS:
        raise UsageError(f"{text[:100]!r}: use one of {', '.join(COMMITS)}, {LEASE_FORM}")


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """DynamoDB tables of a source, created by `s3notify init`.

    Without these tables, the bucket has all data of the source.
    """

    records_table: Annotated[
        str | None,
        About(
            "DynamoDB table of queue, ack chains and heartbeats, like records; default: they are in the bucket"
        ),
    ] = None
    lease_table: Annotated[
        str | None,
        About(
            "DynamoDB table of leases, like leases: slots are committed under leases if the store has no "
            "conditional writes. Use one table per bucket for all its writers, also for object_store up to 0.12. "
            "A lease cannot cancel a write: a write that is in flight for longer than lease_timeout_seconds × "
            "lease_max_clock_skew_rate may overwrite the object of the next writer. After a writer is killed, the "
            "next writer waits for lease_timeout_seconds × lease_max_clock_skew_rate"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LeaseTimeSettings:
    """Times of the leases in `lease_table`. The defaults are object_store's defaults.

    Different writers may use different values.
    """

    lease_timeout_seconds: Annotated[
        float,
        About(
            "How long a writer may write under one lease. A write starts in the first half of this time, and its "
            "writer waits for a response for a quarter of this time. Raise the value for slow stores. With a "
            "higher value, the next writer waits longer after a writer is killed",
            unit="seconds",
            minimum=0.001,
        ),
    ] = DEFAULT_LEASES.timeout_seconds
    lease_max_clock_skew_rate: Annotated[
        float,
        About(
            "Largest factor by which one machine's clock may run faster than another clock",
            unit="times",
            minimum=1,
        ),
    ] = DEFAULT_LEASES.max_clock_skew_rate
    lease_ttl_seconds: Annotated[
        float,
        About(
            "Age at which DynamoDB may delete a lease; keep it far above lease_timeout_seconds × "
            "lease_max_clock_skew_rate",
            unit="seconds",
        ),
    ] = DEFAULT_LEASES.ttl_seconds
    lease_test_interval_seconds: Annotated[
        float,
        About(
            "Interval at which a writer that waits for a lease checks the object; 1 HEAD each time",
            unit="seconds",
            minimum=0.001,
        ),
    ] = DEFAULT_LEASES.test_interval_seconds
