"""What a conditional write comes to, and what every way to commit offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from s3notify_platform.ports import ETag

WRITER = "s3notify-writer"
EXPECTED = "s3notify-expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The write took effect, under its precondition. `etag` is the new object's; None after a delete."""

    etag: ETag | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Another writer was first; nothing was written."""


CommitOutcome = Committed | Lost


class ConditionalCommit(Protocol):
    """Writes of which one wins. Each raises `UnknownOutcomeError` if what became of it cannot be found out: look
    before doing it again; `UnavailableError` if nothing was written: retry later.
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
        """Create `target` as a copy of `source`, or report that another made it. `NotFoundError`: no source."""
        ...

    def delete_if_match(self, path: str, etag: ETag) -> CommitOutcome:
        """Delete the version `etag`, or report that another replaced or deleted it."""
        ...
