"""Conditional commit: of any number of writers with one precondition on a path, one wins (S3 conditions).

Steps
    1. PUT with `If-None-Match: *` (create) or `If-Match` (update), with a fresh writer id in its metadata.
    2. Written: committed. Conflict, and no earlier attempt of ours is in doubt: lost.
    3. Unknown (timeout, 5xx, 409): HEAD the path, and judge what is there.
       - our writer id: committed, by the attempt in doubt;
       - another's, written under the same precondition: lost, since only one of us can have met it;
       - still what it was (nothing, or the expected ETag): not applied so far; PUT again under the same id;
       - anything else: ours may have been applied and then replaced. Nobody can tell: `UnknownOutcomeError`.

Storage
    {path}                        the object itself
    metadata `s3notify-writer`    32 hex digits, drawn for each call
    metadata `s3notify-expected`  the precondition: `*`, or the ETag that was replaced

Invariants
    - `Committed` means that exactly this call's body became the object under its precondition.
    - `Lost` means that it did not, and never will.
    - What is not proven is never reported as either.

Limits
    - The store must honour the two conditions; the capability probe says so, this file assumes it.
    - A path that we created, and that was deleted and created anew by another writer while our attempt was in
      doubt, looks lost. Paths of the table are written once, and vacuum spares young ones.
    - Where the ETag is a hash of the body, an equal body brings it back: bodies under `put_if_match` differ.
    - A retried PUT may land after this call gave up with `UnknownOutcomeError`: look again before deciding.

Differs from the DynamoDB commit of object_store, which serves stores without conditions, behind the same
interface: `DynamoCommit` adds leases; copy if absent and delete if match come with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import (
    ABSENT,
    Absent,
    Conflict,
    ETag,
    IfMatch,
    ObjectMeta,
    ObjectStore,
    Unknown,
    Written,
)

WRITER = "s3notify-writer"
EXPECTED = "s3notify-expected"

ATTEMPTS = 8
"""Rounds of PUT and HEAD before an unknown outcome is reported as such; about 10 s of backoff at most."""

BACKOFF_BASE_SECONDS = 0.05
BACKOFF_CEILING_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The body became the object, under its precondition."""

    etag: ETag


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Another writer was first; nothing was written."""


CommitOutcome = Committed | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _NotApplied:
    """The object is still what the precondition asks for: the write may be sent again."""


class ConditionalCommit(Protocol):
    """What the table layer commits through. `UnknownOutcomeError` if the truth cannot be found out."""

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


def judge(
    found: ObjectMeta | None, writer: str, precondition: Absent | IfMatch
) -> CommitOutcome | _NotApplied | None:
    """What a HEAD after an attempt in doubt proves; None if nothing."""
    if found is not None and found.metadata.get(WRITER) == writer:
        return Committed(etag=found.etag)
    if found is not None and found.metadata.get(EXPECTED) == _expected(precondition):
        return Lost()
    match precondition:
        case Absent():
            return _NotApplied() if found is None else None
        case IfMatch(etag=etag):
            return _NotApplied() if found is not None and found.etag == etag else None
        case _ as unreachable:
            assert_never(unreachable)


def _expected(precondition: Absent | IfMatch) -> str:
    return precondition.etag if isinstance(precondition, IfMatch) else "*"


class NativeCommit:
    """Commits by the store's own conditions: 1 PUT, and 1 HEAD for each attempt whose outcome was unknown."""

    def __init__(self, store: ObjectStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock

    def put_if_absent(
        self, path: str, body: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> CommitOutcome:
        """See `ConditionalCommit.put_if_absent`."""
        return self._commit(path, body, ABSENT, metadata)

    def put_if_match(
        self, path: str, body: bytes, etag: ETag, *, metadata: Mapping[str, str] | None = None
    ) -> CommitOutcome:
        """See `ConditionalCommit.put_if_match`."""
        return self._commit(path, body, IfMatch(etag=etag), metadata)

    def _commit(
        self, path: str, body: bytes, precondition: Absent | IfMatch, metadata: Mapping[str, str] | None
    ) -> CommitOutcome:
        writer = unique_name(self._clock)
        labels = {**(metadata or {}), WRITER: writer, EXPECTED: _expected(precondition)}
        for attempt in range(ATTEMPTS):
            try:
                outcome = self._store.put(path, body, precondition=precondition, metadata=labels)
            except UnavailableError as error:
                if attempt == 0:
                    raise
                outcome = Unknown(cause=str(error))
            match outcome:
                case Written(etag=etag) if etag:
                    return Committed(etag=etag)
                case Conflict() if attempt == 0:
                    return Lost()
                case Written() | Conflict() | Unknown():
                    verdict = judge(self._look(path), writer, precondition)
                case _ as unreachable:
                    assert_never(unreachable)
            if isinstance(verdict, Committed | Lost):
                return verdict
            # A conflict although the precondition holds: what made it came and went, and may have been ours.
            if verdict is None or isinstance(outcome, Conflict):
                raise UnknownOutcomeError(f"commit of {path!r}: an attempt in doubt, then the object changed")
            self._pause(attempt)
        raise UnknownOutcomeError(
            f"commit of {path!r}: {ATTEMPTS} attempts, none confirmed; the last: {outcome}"
        )

    def _look(self, path: str) -> ObjectMeta | None:
        for attempt in range(ATTEMPTS):
            try:
                return self._store.head(path)
            except UnavailableError as error:
                cause = error
                self._pause(attempt)
        raise UnknownOutcomeError(f"commit of {path!r}: sent, but not to be looked at: {cause}") from cause

    def _pause(self, attempt: int) -> None:
        self._clock.sleep(
            backoff_seconds(attempt, self._clock, base=BACKOFF_BASE_SECONDS, ceiling=BACKOFF_CEILING_SECONDS)
        )
