"""A change that is being published, and its outcome."""

from dataclasses import dataclass, field
from math import inf

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag, WriteOutcome, Written
from s3notify_platform.protocols.keyspace import Change
from s3notify_platform.protocols.notification_queue import Event, Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The change was certainly not written: publish it again after `retry_after_seconds`.

    `topic`: name of the full topic; "" if the write did not begin in time.
    """

    retry_after_seconds: float
    topic: str = ""


PublishOutcome = WriteOutcome | Refused


@dataclass(slots=True, kw_only=True)
class PendingChange:
    """One change that is being published. `happened` is None while the outcome of the write is unknown."""

    change: Change
    event: Event
    held: list[Reservation] = field(default_factory=list)
    began: float = 0.0
    """A time shortly before the first reservation was made, by the queue's clock."""
    outcome: PublishOutcome | UsageError | None = None
    happened: bool | None = None
    answered: float = inf
    """A time at which the change had already happened, by the queue's clock; infinite if unknown."""
    taken: bool = False
    """True if some topic takes the change, or if the topics are not known."""
    announced: bool = False
    """True if the change is in at least one topic, and in every topic that takes it."""
    left: bool = False
    """True if the change is left to the reconciler. The reconciler announces the change if a reservation of the change
    still exists.
    """
    unsignalled: str = ""
    """The reason why the change's signal did not move."""

    @property
    def etag(self) -> ETag | None:
        """The ETag of the object that was written; None if the ETag is not known."""
        return self.outcome.etag if isinstance(self.outcome, Written) else None

    def result(self) -> PublishOutcome:
        """The outcome for the caller; raises the error of an invalid change."""
        if isinstance(self.outcome, UsageError):
            raise self.outcome
        assert self.outcome is not None, "each change was refused or written"
        return self.outcome
