"""A change on its way through the publisher, and what becomes of it."""

from dataclasses import dataclass, field

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ETag, WriteOutcome, Written
from s3notify_platform.protocols.keyspace import Change
from s3notify_platform.protocols.notification_queue import Event, Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Certainly not written: publish it again after that long.

    `topic` is the one that has no room. Empty: the time in which the write had to begin was over.
    """

    retry_after_seconds: float
    topic: str = ""


PublishOutcome = WriteOutcome | Refused


@dataclass(slots=True, kw_only=True)
class PendingChange:
    """One change on its way. `happened` is None as long as nobody knows."""

    change: Change
    event: Event
    held: list[Reservation] = field(default_factory=list)
    outcome: PublishOutcome | UsageError | None = None
    happened: bool | None = None
    taken: bool = False
    """By some topic, or nobody knows whether."""
    announced: bool = False
    """In every topic that takes it, and in at least one."""
    left: bool = False
    """To the reconciler, which can announce it as long as a reservation is there."""

    @property
    def etag(self) -> ETag | None:
        """Of the object that was written."""
        return self.outcome.etag if isinstance(self.outcome, Written) else None

    def result(self) -> PublishOutcome:
        """What the caller is answered; raises the error of a change that was wrong."""
        if isinstance(self.outcome, UsageError):
            raise self.outcome
        assert self.outcome is not None, "each change was refused or written"
        return self.outcome
