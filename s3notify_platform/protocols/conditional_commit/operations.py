"""The four conditional writes, whichever way they are committed, and how an object is looked at in doubt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import (
    ABSENT,
    Absent,
    ETag,
    IfMatch,
    ObjectMeta,
    ObjectStore,
    WriteOutcome,
)
from s3notify_platform.protocols.conditional_commit.values import WRITER, CommitOutcome

ATTEMPTS = 8
"""Rounds of one write and HEAD before an unknown outcome is reported as such; about 10 s of backoff at most."""

BACKOFF_BASE_SECONDS = 0.05
BACKOFF_CEILING_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One conditional write. `send` takes whether to send the condition along, and metadata for the object."""

    path: str
    precondition: Absent | IfMatch
    send: Callable[[bool, Mapping[str, str]], WriteOutcome]
    deletes: bool = False

    @property
    def expected(self) -> str:
        """The precondition as metadata and leases spell it."""
        return self.precondition.etag if isinstance(self.precondition, IfMatch) else "*"

    def holds(self, found: ObjectMeta | None) -> bool:
        """Whether the precondition holds of what a HEAD found."""
        match self.precondition:
            case Absent():
                return found is None
            case IfMatch(etag=etag):
                return found is not None and found.etag == etag
            case _ as unreachable:
                assert_never(unreachable)

    def shows(self, found: ObjectMeta | None, writer: str) -> bool:
        """Whether what a HEAD found is this write's work, given that nobody else may write."""
        if self.deletes:
            return found is None
        return found is not None and found.metadata.get(WRITER) == writer


class Commits:
    """The four operations, each as an `Operation` for the one way to commit that a subclass is."""

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

    def _look(self, path: str) -> ObjectMeta | None:
        for attempt in range(ATTEMPTS):
            try:
                return self._store.head(path)
            except UnavailableError as error:
                cause = error
                self._pause(attempt)
        raise UnavailableError(f"{path!r} cannot be looked at: {cause}") from cause

    def _look_after(self, path: str) -> ObjectMeta | None:
        try:
            return self._look(path)
        except UnavailableError as error:
            raise UnknownOutcomeError(f"commit of {path!r}: sent, and {error}") from error

    def _pause(self, attempt: int) -> None:
        self._clock.sleep(
            backoff_seconds(attempt, self._clock, base=BACKOFF_BASE_SECONDS, ceiling=BACKOFF_CEILING_SECONDS)
        )
