"""The four conditional writes, for every way to commit, and how an object is judged after an attempt in doubt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.ports import (
    ABSENT,
    Absent,
    ETag,
    IfMatch,
    ObjectMeta,
    ObjectStore,
    Unknown,
    WriteOutcome,
    Written,
)
from s3notify_platform.protocols.conditional_commit.contract import CommitOutcome
from s3notify_platform.protocols.updates import written_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One conditional write. `send` takes whether to send the condition too, and metadata for the object."""

    path: str
    precondition: Absent | IfMatch
    send: Callable[[bool, Mapping[str, str]], WriteOutcome]
    deletes: bool = False

    @property
    def expected(self) -> str:
        """The precondition as text, for metadata and leases."""
        return self.precondition.etag if isinstance(self.precondition, IfMatch) else "*"

    def sent(self, *, conditional: bool, labels: Mapping[str, str]) -> WriteOutcome:
        """Send it. The outcome is in doubt also if the store returns no ETag for what it wrote."""
        outcome = self.send(conditional, labels)
        if isinstance(outcome, Written) and outcome.etag is None and not self.deletes:
            return Unknown(cause="written, without an ETag")
        return outcome

    def holds(self, found: ObjectMeta | None) -> bool:
        """Whether the precondition holds for what a HEAD found."""
        match self.precondition:
            case Absent():
                return found is None
            case IfMatch(etag=etag):
                return found is not None and found.etag == etag
            case _ as unreachable:
                assert_never(unreachable)

    def shows(self, found: ObjectMeta | None, writer: str) -> bool:
        """Whether what a HEAD found is the result of this write, given that nobody else may write."""
        if self.deletes:
            return found is None
        return written_by(found, writer)


class Commits:
    """The four operations, each as an `Operation` that the subclass commits in its way."""

    def __init__(self, store: ObjectStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock

    def put_if_absent(
        self, path: str, body: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> CommitOutcome:
        """See `ConditionalCommit.put_if_absent`."""

        def send(conditional: bool, labels: Mapping[str, str]) -> WriteOutcome:
            condition = ABSENT if conditional else None
            return self._store.put(
                path, body, precondition=condition, metadata={**(metadata or {}), **labels}
            )

        return self._commit(Operation(path=path, precondition=ABSENT, send=send))

    def put_if_match(
        self, path: str, body: bytes, etag: ETag, *, metadata: Mapping[str, str] | None = None
    ) -> CommitOutcome:
        """See `ConditionalCommit.put_if_match`."""

        def send(conditional: bool, labels: Mapping[str, str]) -> WriteOutcome:
            condition = IfMatch(etag=etag) if conditional else None
            return self._store.put(
                path, body, precondition=condition, metadata={**(metadata or {}), **labels}
            )

        return self._commit(Operation(path=path, precondition=IfMatch(etag=etag), send=send))

    def copy_if_absent(self, source: str, target: str) -> CommitOutcome:
        """See `ConditionalCommit.copy_if_absent`. Sending it is a HEAD and a COPY."""

        def send(conditional: bool, labels: Mapping[str, str]) -> WriteOutcome:
            condition = ABSENT if conditional else None
            return self._store.copy(source, target, precondition=condition, metadata=labels)

        return self._commit(Operation(path=target, precondition=ABSENT, send=send))

    def delete_if_match(self, path: str, etag: ETag) -> CommitOutcome:
        """See `ConditionalCommit.delete_if_match`."""

        def send(conditional: bool, _labels: Mapping[str, str]) -> WriteOutcome:
            return self._store.delete(path, precondition=IfMatch(etag=etag) if conditional else None)

        return self._commit(Operation(path=path, precondition=IfMatch(etag=etag), send=send, deletes=True))

    def _commit(self, operation: Operation) -> CommitOutcome:
        raise NotImplementedError
