"""The outcomes of a conditional write, and the operations of every way to commit."""

from collections.abc import Mapping
from typing import Protocol

from s3notify_platform.ports import Conflict, ETag, Written

EXPECTED = "s3notify-expected"


CommitOutcome = Written | Conflict
"""`Written`: the write took effect under its precondition, once. `Conflict`: it did not, and never will."""


class ConditionalCommit(Protocol):
    """Writes of which at most one succeeds under one precondition.

    Each raises `UnknownOutcomeError` if its outcome cannot be found out: look before doing it again;
    `UnavailableError` if nothing was written: retry later.
    """

    def put_if_absent(
        self, path: str, body: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> CommitOutcome:
        """Create the object, or report that another did."""
        ...

    def put_if_match(
        self, path: str, body: bytes, etag: ETag, *, metadata: Mapping[str, str] | None = None
    ) -> CommitOutcome:
        """Replace the version `etag`, or report that another did."""
        ...

    def copy_if_absent(self, source: str, target: str) -> CommitOutcome:
        """Create `target` as a copy of `source`, or report that another created it. `NotFoundError`: no source."""
        ...

    def delete_if_match(self, path: str, etag: ETag) -> CommitOutcome:
        """Delete the version `etag`, or report that another replaced or deleted it."""
        ...
