"""Commits by the store's own conditions."""

from dataclasses import dataclass
from typing import assert_never

from s3notify_platform.clock import unique_name
from s3notify_platform.errors import NotFoundError, UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import Absent, Conflict, IfMatch, ObjectMeta, Unknown, Written
from s3notify_platform.protocols.conditional_commit.operations import ATTEMPTS, Commits, Operation
from s3notify_platform.protocols.conditional_commit.values import EXPECTED, WRITER, CommitOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _NotApplied:
    """The object is still what the precondition asks for: the write may be sent again."""


def judge(
    found: ObjectMeta | None, writer: str, precondition: Absent | IfMatch
) -> CommitOutcome | _NotApplied | None:
    """What a HEAD after an attempt in doubt proves where the store honours conditions; None if nothing."""
    if found is not None and found.metadata.get(WRITER) == writer:
        return Written(etag=found.etag)
    expected = precondition.etag if isinstance(precondition, IfMatch) else "*"
    if found is not None and found.metadata.get(EXPECTED) == expected:
        return Conflict()
    match precondition:
        case Absent():
            return _NotApplied() if found is None else None
        case IfMatch(etag=etag):
            return _NotApplied() if found is not None and found.etag == etag else None
        case _ as unreachable:
            assert_never(unreachable)


class NativeCommit(Commits):
    """Commits by the store's own conditions: 1 write, and 1 HEAD for each attempt whose outcome was unknown."""

    def _commit(self, operation: Operation) -> CommitOutcome:
        path, writer = operation.path, unique_name(self._clock)
        for attempt in range(ATTEMPTS):
            try:
                outcome = operation.send(True, {WRITER: writer, EXPECTED: operation.expected})
            except (UnavailableError, NotFoundError) as error:
                if attempt == 0:
                    raise
                outcome = Unknown(cause=str(error))
            match outcome:
                case Written(etag=etag) if etag or operation.deletes:
                    return Written(etag=etag)
                case Conflict() if attempt == 0:
                    return Conflict()
                case Written() | Conflict() | Unknown():
                    verdict = judge(self._look_after(path), writer, operation.precondition)
                case _ as unreachable:
                    assert_never(unreachable)
            if isinstance(verdict, Written | Conflict):
                return verdict
            # A conflict although the precondition holds: what made it came and went, and may have been ours.
            if verdict is None or isinstance(outcome, Conflict):
                raise UnknownOutcomeError(f"commit of {path!r}: an attempt in doubt, then the object changed")
            self._pause(attempt)
        raise UnknownOutcomeError(
            f"commit of {path!r}: {ATTEMPTS} attempts, none confirmed; the last: {outcome}"
        )
