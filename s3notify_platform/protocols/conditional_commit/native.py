"""Commits by the store's own conditions."""

from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.errors import UnknownOutcomeError
from s3notify_platform.kernel.ports import Absent, Conflict, IfMatch, ObjectMeta, Written, holds
from s3notify_platform.protocols.conditional_commit.operations import (
    EXPECTED,
    CommitOutcome,
    ConditionalCommit,
    Operation,
    expected_of,
)
from s3notify_platform.protocols.updates import WRITER, resolve, written_by


def judge(found: ObjectMeta | None, writer: str, precondition: Absent | IfMatch) -> CommitOutcome | None:
    """Judges the object that a HEAD found after an attempt with an unknown outcome, on a store that honours conditions.
    Pure.

    None: the precondition holds, so the write may be sent again. `UnknownOutcomeError`: the object proves nothing.
    """
    if found is not None and written_by(found, writer):
        return Written(etag=found.etag)
    if found is not None and found.metadata.get(EXPECTED) == expected_of(precondition):
        return Conflict()
    if holds(precondition, found):
        return None
    raise UnknownOutcomeError("the outcome of an attempt is unknown, and then the object changed")


class NativeCommit(ConditionalCommit):
    """Commits by the store's own conditions. Cost: 1 write, and 1 HEAD for each attempt whose outcome was unknown."""

    def _commit(self, operation: Operation) -> CommitOutcome:
        writer = unique_name(self._clock)
        labels = {WRITER: writer, EXPECTED: operation.expected}
        return resolve(
            lambda: operation.sent(conditional=True, labels=labels),
            lambda: judge(self._store.head(operation.path), writer, operation.precondition),
            clock=self._clock,
            subject=f"commit of {operation.path!r}",
        )
