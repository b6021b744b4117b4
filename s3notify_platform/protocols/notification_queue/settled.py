"""Writes of records whose outcome is known: what was in doubt is looked for before anything is said about it.

Every value written through here is told apart from every other writer's (it holds an entry's id, a worker's
name or a generation), so a record that is found to hold it was written by this call.
"""

from collections.abc import Callable
from dataclasses import dataclass

from s3notify_platform.clock import Clock, backoff_seconds
from s3notify_platform.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import Record, RecordStore, Unknown, Version, WriteOutcome, Written

ATTEMPTS = 8
"""Rounds of one write and its reads; about 6 s of backoff on average."""

BACKOFF_BASE_SECONDS = 0.05
BACKOFF_CEILING_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Applied, by this call. `version` is that of the record now; empty after a removal."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The record was not, or is no longer, what was expected. `record` is what was found after that.

    `in_doubt`: an attempt of this call may have been applied all the same, and what it wrote be gone again.
    """

    record: Record | None
    in_doubt: bool


Settled = Stored | Changed


class SettledWrites:
    """Conditional writes to a record store, each sent until it is known what came of it. Thread-safe.

    1 request each, undisturbed; a conflict costs 1 read more. `UnavailableError`: certainly not applied.
    `UnknownOutcomeError`: the store gave no answer for `ATTEMPTS` rounds.
    """

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock

    def create(self, partition: str, key: str, value: bytes) -> Settled:
        """Create the record if there is none."""
        return self._settle(lambda: self._records.create(partition, key, value), partition, key, value, None)

    def create_once(self, partition: str, key: str, value: bytes) -> Settled:
        """As `create`, but not sent again once in doubt: what was created, and removed since, stays removed."""
        return self._settle(
            lambda: self._records.create(partition, key, value), partition, key, value, None, resend=False
        )

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> Settled:
        """Replace the version `expected`."""

        def send() -> WriteOutcome:
            return self._records.replace(partition, key, value, expected=expected)

        return self._settle(send, partition, key, value, expected)

    def remove(self, partition: str, key: str, *, expected: Version) -> Settled:
        """Remove the version `expected`. A record found gone after a lost answer is `Changed`, in doubt."""

        def send() -> WriteOutcome:
            return self._records.remove(partition, key, expected=expected)

        return self._settle(send, partition, key, None, expected)

    def _settle(
        self,
        send: Callable[[], WriteOutcome],
        partition: str,
        key: str,
        value: bytes | None,
        before: Version | None,
        *,
        resend: bool = True,
    ) -> Settled:
        in_doubt = False
        for attempt in range(ATTEMPTS):
            if attempt:
                self._clock.sleep(
                    backoff_seconds(
                        attempt, self._clock, base=BACKOFF_BASE_SECONDS, ceiling=BACKOFF_CEILING_SECONDS
                    )
                )
            try:
                if resend or not in_doubt:
                    outcome = send()
                    if isinstance(outcome, Written):
                        return Stored(version=Version(outcome.etag or ""))
                    in_doubt = in_doubt or isinstance(outcome, Unknown)
                found = self._records.read(partition, key)
            except UnavailableError:
                continue
            if in_doubt and value is not None and found is not None and found.value == value:
                return Stored(version=found.version)
            untouched = (found.version if found is not None else None) == before
            if not untouched or (in_doubt and not resend):
                return Changed(record=found, in_doubt=in_doubt)
        if in_doubt:
            raise UnknownOutcomeError(f"{partition}/{key}: may or may not be written; look again later")
        raise UnavailableError(f"{partition}/{key}: not written in {ATTEMPTS} attempts; try again later")
