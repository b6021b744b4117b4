"""Commits by the store's own conditions."""

from typing import assert_never

from s3notify_platform.clock import unique_name
from s3notify_platform.errors import UnknownOutcomeError
from s3notify_platform.ports import Absent, Conflict, IfMatch, ObjectMeta, Written
from s3notify_platform.protocols.conditional_commit.contract import EXPECTED, CommitOutcome
from s3notify_platform.protocols.conditional_commit.operations import Commits, Operation
from s3notify_platform.protocols.updates import WRITER, resolve, written_by


def judge(found: ObjectMeta | None, writer: str, precondition: Absent | IfMatch) -> CommitOutcome | None:
    """What a HEAD after an attempt in doubt proves on a store that honours conditions. Pure.

    None: the precondition holds, so the write may be sent again. `UnknownOutcomeError`: the HEAD proves nothing.
    """
    if found is not None and written_by(found, writer):
        return Written(etag=found.etag)
    match precondition:
        case Absent():
            expected, holds = "*", found is None
        case IfMatch(etag=etag):
            expected, holds = etag, found is not None and found.etag == etag
        case _ as unreachable:
            assert_never(unreachable)
    if found is not None and found.metadata.get(EXPECTED) == expected:
        return Conflict()
    if holds:
        return None
    raise UnknownOutcomeError("an attempt in doubt, then the object changed")


class NativeCommit(Commits):
    """Commits by the store's own conditions: 1 write, and 1 HEAD for each attempt whose outcome was unknown."""

    def _commit(self, operation: Operation) -> CommitOutcome:
        writer = unique_name(self._clock)
        labels = {WRITER: writer, EXPECTED: operation.expected}
        return resolve(
            lambda: operation.sent(conditional=True, labels=labels),
            lambda: judge(self._store.head(operation.path), writer, operation.precondition),
            clock=self._clock,
            subject=f"commit of {operation.path!r}",
        )
