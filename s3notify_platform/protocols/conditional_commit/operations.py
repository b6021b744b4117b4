"""The four conditional writes and their outcomes, the same for native commits and leases."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.ports import (
    ABSENT,
    Absent,
    Conflict,
    ETag,
    IfMatch,
    Metadata,
    ObjectMeta,
    ObjectStore,
    Precondition,
    Unknown,
    WriteOutcome,
    Written,
    holds,
)
from s3notify_platform.protocols.updates import written_by

EXPECTED = "s3notify-expected"

CommitOutcome = Written | Conflict
"""`Written`: the write took effect exactly once, under its precondition. `Conflict`: the write did not take effect, and
never will.
"""


def expected_of(precondition: Absent | IfMatch) -> str:
    """The precondition as text, for metadata and leases."""
    return precondition.etag if isinstance(precondition, IfMatch) else "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One conditional write. `send` takes the condition to send and the metadata of the object."""

    path: str
    precondition: Absent | IfMatch
    send: Callable[[Precondition | None, Mapping[str, str]], WriteOutcome]
    deletes: bool = False

    @property
    def expected(self) -> str:
        """The precondition as text: see `expected_of`."""
        return expected_of(self.precondition)

    def sent(self, *, conditional: bool, labels: Mapping[str, str]) -> WriteOutcome:
        """Sends the write. The outcome is also unknown if the store returns no ETag of the written object."""
        outcome = self.send(self.precondition if conditional else None, labels)
        if isinstance(outcome, Written) and outcome.etag is None and not self.deletes:
            return Unknown(cause="written, without an ETag")
        return outcome

    def holds(self, found: ObjectMeta | None) -> bool:
        """True if the precondition holds for the object that a HEAD found."""
        return holds(self.precondition, found)

    def shows(self, found: ObjectMeta | None, writer: str) -> bool:
        """True if the object that a HEAD found is the result of this write.

        The answer is valid only while nobody else may write.
        """
        return found is None if self.deletes else written_by(found, writer)


class ConditionalCommit:
    """Conditional writes: under one precondition, at most one write succeeds. Native commits and leases are subclasses.

    Each method raises `UnknownOutcomeError` if its outcome cannot be determined: read the path before you repeat the
    write. `UnavailableError`: nothing was written; retry later.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock

    def put_if_absent(self, path: str, body: bytes, *, metadata: Metadata = None) -> CommitOutcome:
        """Creates the object, or reports that another writer created it."""
        return self._put(path, body, ABSENT, metadata)

    def put_if_match(self, path: str, body: bytes, etag: ETag, *, metadata: Metadata = None) -> CommitOutcome:
        """Replaces the version `etag`, or reports that another writer replaced it."""
        return self._put(path, body, IfMatch(etag=etag), metadata)

    def copy_if_absent(self, source: str, target: str) -> CommitOutcome:
        """Creates `target` as a copy of `source`, or reports that another writer created `target`. Cost: 1 HEAD and 1
        COPY.

        `NotFoundError`: `source` does not exist.
        """

        def send(condition: Precondition | None, labels: Mapping[str, str]) -> WriteOutcome:
            assert not isinstance(condition, IfMatch)
            return self._store.copy(source, target, precondition=condition, metadata=labels)

        return self._commit(Operation(path=target, precondition=ABSENT, send=send))

    def delete_if_match(self, path: str, etag: ETag) -> CommitOutcome:
        """Deletes the version `etag`, or reports that another writer replaced or deleted it."""

        def send(condition: Precondition | None, _labels: Mapping[str, str]) -> WriteOutcome:
            assert not isinstance(condition, Absent)
            return self._store.delete(path, precondition=condition)

        return self._commit(Operation(path=path, precondition=IfMatch(etag=etag), send=send, deletes=True))

    def _put(
        self, path: str, body: bytes, precondition: Absent | IfMatch, metadata: Metadata
    ) -> CommitOutcome:
        def send(condition: Precondition | None, labels: Mapping[str, str]) -> WriteOutcome:
            written = {**(metadata or {}), **labels}
            return self._store.put(path, body, precondition=condition, metadata=written)

        return self._commit(Operation(path=path, precondition=precondition, send=send))

    def _commit(self, operation: Operation) -> CommitOutcome:
        raise NotImplementedError
