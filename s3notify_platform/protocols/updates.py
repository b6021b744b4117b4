"""Conditional writes whose outcome is known: the one rule for outcomes in doubt, the one compare-and-set loop.

The rule (`resolve`). A write is sent. After `Unknown`, a read shows what is there before anything else is done:
    - the value of this call: it was applied;
    - still the state that the precondition requires: it was not applied so far, and is sent again;
    - anything else: a conflict, if another writer's value is proven; else `UnknownOutcomeError`.
    A refusal after an attempt in doubt may have been caused by that attempt. So if the precondition holds again, the
    outcome is unknown. Rounds are bounded, with backoff and jitter in between.

The loop (`Updates.change`). Read, decide, write under the version read. Refused: read again, decide again. Bounded.

How a value is recognised. Every value written holds something that no other writer's value holds (the id of an entry
or an operation, a worker's name, a generation), or means the same for every writer. So a record with this value counts
as written by this call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from s3notify_platform.kernel.attempts import ATTEMPTS, answered, attempts
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import (
    NotFoundError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.kernel.ports import (
    Conflict,
    ObjectMeta,
    Record,
    RecordStore,
    Unknown,
    Version,
    WriteOutcome,
    Written,
)

CEILING_SECONDS: Final = 2.0
"""The longest backoff between two rounds."""

WRITER: Final = "s3notify-writer"
"""Metadata of an object: the id of the call that wrote it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remove:
    """What `Updates.change` is to do with the record, in place of a value to write."""


REMOVE: Final = Remove()


def written_by(found: ObjectMeta | None, writer: str) -> bool:
    """Whether the object that a HEAD found was written by the call with this id. Pure."""
    return found is not None and bool(writer) and found.metadata.get(WRITER) == writer


def resolve(  # noqa: C901 - one loop over the outcomes of one write
    send: Callable[[], WriteOutcome],
    look: Callable[[], T | None],
    *,
    clock: Clock,
    subject: str,
    rounds: int = ATTEMPTS,
    may_resend: Callable[[], bool] = lambda: True,
    retry_unavailable: bool = False,
) -> Written | Conflict | T:
    """The outcome of one conditional write, sent until its outcome is known.

    `look` reads the state, and returns what it proves; None: the precondition holds, nothing was applied so far. It
    may raise `UnknownOutcomeError` where the state proves nothing. `may_resend` is called right before a write in
    doubt is sent again. `retry_unavailable`: also resend what was certainly not applied.

    1 request, undisturbed; 1 write and 1 read for each round in doubt. An error of `send` with nothing in doubt is
    raised as it is: nothing was applied. `UnknownOutcomeError`: the write may have been applied, or may still be.
    """
    cause: object = None
    in_doubt, refused, sending = False, False, True
    for attempt in attempts(clock, rounds, ceiling=CEILING_SECONDS):
        if attempt and in_doubt and sending and not may_resend():
            break
        try:
            if sending:
                outcome = send()
                if isinstance(outcome, Written) or (isinstance(outcome, Conflict) and not in_doubt):
                    return outcome
                refused = refused or isinstance(outcome, Conflict)
                in_doubt, cause = True, outcome
        except S3NotifyError as error:
            if not isinstance(error, UnavailableError | NotFoundError) and in_doubt:
                raise UnknownOutcomeError(f"{subject}: an attempt in doubt, then: {error}") from error
            if not in_doubt:
                again = retry_unavailable and isinstance(error, UnavailableError)
                if not again or attempt == rounds - 1:
                    raise
                continue
            cause = error
        sending = False
        try:
            if (verdict := look()) is not None:
                return verdict
        except UnavailableError as error:
            cause = error
            continue
        except S3NotifyError as error:
            raise UnknownOutcomeError(f"{subject}: {error}") from error
        if refused:
            break
        sending = True
    raise UnknownOutcomeError(
        f"{subject}: may or may not be applied, not confirmed in {attempt + 1} attempts; the last: {cause}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Applied, by this call. `version` is that of the record now; empty after a removal."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The record was not, or is no longer, the version expected. `record` is from then or later.

    `in_doubt`: an attempt of this call may have been applied, and its value replaced or removed since.
    """

    record: Record | None
    in_doubt: bool


RecordOutcome = Stored | Changed


class Updates:
    """Conditional writes to a record store, each sent until its outcome is known. Thread-safe.

    `UnavailableError`: certainly not applied. `UnknownOutcomeError`: it may have been; look again later.
    """

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        *,
        rounds: int = ATTEMPTS,
        contended: type[S3NotifyError] = UnavailableError,
    ) -> None:
        """`contended`: what `change` raises if another writer was first in each of `rounds` rounds."""
        self._records = records
        self._clock = clock
        self._rounds = rounds
        self._contended = contended

    def create(self, partition: str, key: str, value: bytes, *, once: bool = False) -> RecordOutcome:
        """Create the record if there is none. 1 request; 1 read more on a conflict that does not say what is there.

        `once`: do not resend in doubt, so that a record which was created and removed since stays removed;
        `UnknownOutcomeError` if it is not there.
        """
        return self._resolved(partition, key, value, None, once=once)

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> RecordOutcome:
        """Replace the version `expected`. Requests as `create`."""
        return self._resolved(partition, key, value, expected)

    def remove(self, partition: str, key: str, *, expected: Version) -> RecordOutcome:
        """Remove the version `expected`. A record found gone after a lost answer is `Changed`, in doubt."""
        return self._resolved(partition, key, None, expected)

    def change(  # noqa: C901 - one loop over the outcomes of one write
        self,
        partition: str,
        key: str,
        decide: Callable[[Record | None], tuple[bytes | Remove | None, T]],
        *,
        known: Record | None = None,
        patient: bool = False,
    ) -> tuple[T, Record | None]:
        """Write the value that `decide` returns (None: no change). Returns its result, and the record afterwards.

        `decide` is called with the record as read, again in each round. After a write in doubt whose value was not
        found, the record may include that change: `decide` must recognise it, or be safe to apply twice. So after a
        removal in doubt: a record that is gone proves nothing. Its errors are raised. `known`: the record as the
        caller read it, which the first round takes as it is. 1 read, unless it is known, and 1 write; 2 more for each
        conflict. `patient`: also goes on where the store was unavailable, and nothing is in doubt.
        """
        pending: tuple[Version | None, bytes | Remove, T] | None = None
        """A write in doubt: the version that it would replace, its value, its result."""
        for attempt in attempts(self._clock, self._rounds, ceiling=CEILING_SECONDS):
            try:
                found = known if known is not None and not attempt else self._records.read(partition, key)
                version = found.version if found is not None else None
                if pending is not None and pending[0] != version:
                    if found is not None and found.value == pending[1]:
                        return pending[2], found
                    pending = None
                value, result = decide(found)
                if value is None:
                    return result, found
                sent = None if isinstance(value, Remove) else value
                outcome = self._send(partition, key, sent, version)
            except UnavailableError:
                if pending is None and (not patient or attempt == self._rounds - 1):
                    raise
                continue
            match outcome:
                case Written() if sent is None:
                    return result, None
                case Written(etag=etag):
                    assert sent is not None, "the case before"
                    return result, Record(key=key, value=sent, version=Version(etag or ""))
                case Unknown():
                    pending = (version, value, result)
                case Conflict():
                    pass
        if pending is not None:
            raise UnknownOutcomeError(f"{partition}/{key}: the change may still be applied; look again later")
        raise self._contended(f"{partition}/{key} changed under each of {self._rounds} attempts: try again")

    def _send(self, partition: str, key: str, value: bytes | None, expected: Version | None) -> WriteOutcome:
        if expected is None:
            assert value is not None, "only a version that is there is removed"
            return self._records.create(partition, key, value)
        if value is None:
            return self._records.remove(partition, key, expected=expected)
        return self._records.replace(partition, key, value, expected=expected)

    def _resolved(
        self, partition: str, key: str, value: bytes | None, before: Version | None, *, once: bool = False
    ) -> RecordOutcome:
        def look() -> RecordOutcome | None:
            found = self._records.read(partition, key)
            if value is not None and found is not None and found.value == value:
                return Stored(version=found.version)
            untouched = (found.version if found is not None else None) == before
            return None if untouched else Changed(record=found, in_doubt=True)

        outcome: Written | Conflict | RecordOutcome = resolve(
            lambda: self._send(partition, key, value, before),
            look,
            clock=self._clock,
            subject=f"{partition}/{key}",
            rounds=self._rounds,
            may_resend=lambda: not once,
            retry_unavailable=True,
        )
        if isinstance(outcome, Written):
            return Stored(version=Version(outcome.etag or ""))
        if isinstance(outcome, Conflict):
            found = outcome.found or answered(
                lambda: self._records.read(partition, key), self._clock, self._rounds
            )
            return Changed(record=found, in_doubt=False)
        return outcome
