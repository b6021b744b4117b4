"""The settings of how commits are made without the store's conditions: declared as those of `settings`."""

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
    """`UsageError` for a value that `commit` cannot have."""
    if is_lease_text(text):
        lease_text(text)
    elif text not in COMMITS:
        raise UsageError(f"{text[:100]!r}: use one of {', '.join(COMMITS)}, {LEASE_FORM}")


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """DynamoDB tables of a source, made by `s3notify init`. Without them the bucket carries everything."""

    records_table: Annotated[
        str | None,
        About("DynamoDB table of queue, ack chains and heartbeats, like records; default: on the bucket"),
    ] = None
    lease_table: Annotated[
        str | None,
        About(
            "DynamoDB table of the leases, like leases, under which slots are committed where the store has no "
            "conditions. One table for each bucket, and for all its writers, those of object_store up to 0.12 too. A "
            "lease cannot cancel a write: one that is still under way after lease_timeout_seconds × "
            "lease_max_clock_skew_rate may replace the next one's. After one was killed, the next one waits as long"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LeaseTimeSettings:
    """How long the leases of `lease_table` last. The defaults are object_store's; writers need not agree."""

    lease_timeout_seconds: Annotated[
        float,
        About(
            "For how long a writer may write under one lease. Its write begins in the first half, and its answer is "
            "waited for a quarter of it. Longer for slow stores; then those who come after a killed writer wait longer",
            unit="seconds",
            minimum=0.001,
        ),
    ] = DEFAULT_LEASES.timeout_seconds
    lease_max_clock_skew_rate: Annotated[
        float,
        About(
            "How much faster than another's the clock of a machine may run, at most", unit="times", minimum=1
        ),
    ] = DEFAULT_LEASES.max_clock_skew_rate
    lease_ttl_seconds: Annotated[
        float,
        About("After how long DynamoDB may delete a lease; far above the two together", unit="seconds"),
    ] = DEFAULT_LEASES.ttl_seconds
    lease_test_interval_seconds: Annotated[
        float,
        About(
            "How often a writer that waits for a lease looks at the object; 1 HEAD each time",
            unit="seconds",
            minimum=0.001,
        ),
    ] = DEFAULT_LEASES.test_interval_seconds
