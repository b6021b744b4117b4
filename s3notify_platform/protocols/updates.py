"""Conditional writes whose outcome is determined: a rule for writes without an answer, and a compare-and-set loop.

The rule (`resolve`). A write is sent. If the outcome is `Unknown`, the state is read before anything else is done:
    - The state is the value of this call: the write was applied.
    - The state still meets the precondition: the write was not applied yet, and is sent again.
    - Any other state: the outcome is a conflict if another writer's value is proven; else `UnknownOutcomeError`. If the
      outcome of an attempt is unknown, this attempt may have caused a later refusal. So if the precondition holds again
      after such a refusal, the outcome of the write is unknown. The number of attempts is bounded, with jittered
      backoff between them.

The loop (`Updates.change`). Read the record, decide, and write under the version read. If the write is refused, read
and decide again. The number of attempts is bounded.

How a value is recognised. A written value may contain something unique to its writer: the id of an entry or an
operation, a worker's name, a generation. If a value contains nothing unique, equal values mean the same, no matter
which call wrote them. So a record with the value of this call always counts as written by this call.
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

CONTENDED_ATTEMPTS: Final = 30
"""Number of attempts for a record that many processes change."""

UPDATE_CEILING_SECONDS: Final = 2.0
"""The longest backoff between two attempts, in seconds."""

WRITER: Final = "s3notify-writer"
"""Metadata key of an object: its value is the id of the call that wrote the object."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remove:
    """The value by which `decide` makes `Updates.change` remove the record."""


REMOVE: Final = Remove()


def written_by(found: ObjectMeta | None, writer: str) -> bool:
    """True if the object that a HEAD found was written by the call with this id. Pure."""
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
    """Sends one conditional write until its outcome is known; returns the outcome.

    `look` reads the state and returns what the state proves. None means that the precondition still holds, so the write
    was not applied yet. `look` may raise `UnknownOutcomeError` if the state proves nothing. `may_resend` is called
    right before a write whose outcome is unknown is sent again. `retry_unavailable`: also resend a write that was
    certainly not applied.

    Cost: 1 request if all goes well; 1 write and 1 read for each attempt whose outcome is unknown. If there is no such
    attempt, nothing was applied, and an error of `send` is raised unchanged. `UnknownOutcomeError`: the write may have
    been applied, or may be applied later.
    """
    cause: object = None
    in_doubt, refused, sending = False, False, True
    for attempt in attempts(clock, rounds, ceiling=UPDATE_CEILING_SECONDS):
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
                raise UnknownOutcomeError(
                    f"{subject}: the outcome of an attempt is unknown, and then: {error}"
                ) from error
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
        f"{subject}: may or may not be applied; this was not confirmed in {attempt + 1} attempts; the last: {cause}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The write of this call was applied. `version` is the record's new version; empty after a removal."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The record does not have the expected version. `record` is the record that was found at the conflict or later.

    `in_doubt`: an attempt of this call may have been applied. If the attempt was applied, another call has replaced or
    removed the value since.
    """

    record: Record | None
    in_doubt: bool


RecordOutcome = Stored | Changed


class Updates:
    """Conditional writes to a record store, each sent until its outcome is known. Thread-safe.

    `UnavailableError`: nothing was applied. `UnknownOutcomeError`: the write may have been applied; look again later.
    """

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        *,
        rounds: int = ATTEMPTS,
        contended: type[S3NotifyError] = UnavailableError,
    ) -> None:
        """`contended`: the error that `change` raises if another writer was first in each of `rounds` attempts."""
        self._records = records
        self._clock = clock
        self._rounds = rounds
        self._contended = contended

    def create(self, partition: str, key: str, value: bytes, *, once: bool = False) -> RecordOutcome:
        """Creates the record if it does not exist. Cost: 1 request; after a conflict, 1 read more if the store's answer
        does not contain the record.

        `once`: do not resend a write whose outcome is unknown, so that a record which was created and then removed
        stays removed. `UnknownOutcomeError` if a later read does not find the record.
        """
        return self._resolved(partition, key, value, None, once=once)

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> RecordOutcome:
        """Replaces the version `expected`. Cost: the requests of `create`."""
        return self._resolved(partition, key, value, expected)

    def remove(self, partition: str, key: str, *, expected: Version) -> RecordOutcome:
        """Removes the version `expected`. If this version does not exist after a lost answer, returns
        `Changed(in_doubt=True)`.
        """
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
        """Writes the value that `decide` returns (None: no change). Returns the result of `decide` and the new record.

        In each attempt, `decide` gets the record that was read. Errors of `decide` are raised. `known`: the record as
        the caller has read it; the first attempt uses this record without a read.

        A write whose outcome is unknown may have been applied even if its value is not found, because a later value of
        the record may include the change. So `decide` must recognise its own change, or be safe to apply twice. This is
        also true after a removal whose outcome is unknown, because a missing record proves nothing.

        Cost: 1 read, unless `known` is given, and 1 write; 2 more requests for each conflict. `patient`: also retry
        while the store is unavailable, if the outcome of each write is known.
        """
        pending: tuple[Version | None, bytes | Remove, T] | None = None
        """A write whose outcome is unknown: the record version to replace, the value to write, and the result of
        `decide`."""
        for attempt in attempts(self._clock, self._rounds, ceiling=UPDATE_CEILING_SECONDS):
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
                    assert sent is not None, "the case before handles removals"
                    return result, Record(key=key, value=sent, version=Version(etag or ""))
                case Unknown():
                    pending = (version, value, result)
                case Conflict():
                    pass
        if pending is not None:
            raise UnknownOutcomeError(f"{partition}/{key}: the change may still be applied; look again later")
        raise self._contended(
            f"{partition}/{key} was changed by others during each of {self._rounds} attempts: try again"
        )

    def _send(self, partition: str, key: str, value: bytes | None, expected: Version | None) -> WriteOutcome:
        if expected is None:
            assert value is not None, "only an existing version is removed"
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
