"""Commits by leases, for stores without conditions."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from s3notify_platform.kernel.attempts import answered, attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import (
    Conflict,
    ETag,
    ObjectMeta,
    ObjectStore,
    Unknown,
    WriteOutcome,
    Written,
)
from s3notify_platform.protocols.conditional_commit.operations import (
    EXPECTED,
    CommitOutcome,
    ConditionalCommit,
    Operation,
)
from s3notify_platform.protocols.updates import WRITER, resolve

ROUNDS = 20
"""The maximum number of attempts of one call to get a lease. An attempt fails if another writer has the lease, or if
our own lease is granted too late.
"""

BEGIN_WITHIN = 0.5
"""The share of a lease's timeout within which the write must begin."""

TIMEOUT_SECONDS_MAX = 3600.0

TTL_SECONDS_MAX = 10 * 366 * 86400.0
"""The maximum TTL of a lease: ten years. A longer TTL never frees space in practice."""

INTERVALS_PER_READ = 10
"""A waiting writer reads the object at every interval, and the lease at every tenth interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLease:
    """The right to one write of `path` while its ETag is `etag` (`*`: while the object does not exist).

    `timeout_ms` counts from the moment at which the holder sent the lease; 0 means that the lease is done. `ttl` is in
    Unix seconds. Leases of other clients have no `writer`.
    """

    path: str
    etag: str
    generation: int
    timeout_ms: int
    ttl: int
    writer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The lease was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """Another lease exists; nothing was changed. `found` is None if that lease was removed meanwhile."""

    found: CommitLease | None


LeaseOutcome = Granted | Occupied | Unknown


class Leases(Protocol):
    """The table of leases. `put` and `read` raise `UnavailableError` if nothing was applied."""

    def put(self, lease: CommitLease, *, seen: CommitLease | None) -> LeaseOutcome:
        """Replaces the lease `seen`, identified by generation and writer. Creates the lease if `seen` is None."""
        ...

    def read(self, path: str, etag: str) -> CommitLease | None:
        """The current lease; None if there is no lease. The read is consistent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The times of leases. The defaults are object_store's defaults; writers may use different values.

    `timeout_seconds` (up to an hour): time within which a write must be done. `max_clock_skew_rate` (1 to 100): the
    greatest factor by which one clock may run faster than another. `ttl_seconds`: age at which the table may delete a
    lease. This age must be more than twice the product of timeout and skew rate. `test_interval_seconds` (up to a
    minute): interval at which a waiting writer reads the object, by 1 HEAD. `UsageError` for values out of range.
    """

    timeout_seconds: float = 20.0
    max_clock_skew_rate: float = 3.0
    ttl_seconds: float = 3600.0
    test_interval_seconds: float = 0.1

    def __post_init__(self) -> None:
        # The conditions are written so that NaN fails them: every comparison with NaN is false.
        for name, least, most in (
            ("timeout_seconds", 0.001, TIMEOUT_SECONDS_MAX),
            ("max_clock_skew_rate", 1.0, 100.0),
            ("test_interval_seconds", 0.001, 60.0),
        ):
            if not least <= (value := getattr(self, name)) <= most:
                raise UsageError(f"leases: {name} is {value}; it must be {least:g} to {most:g}")
        least = 2 * self.timeout_seconds * self.max_clock_skew_rate
        if not least < self.ttl_seconds <= TTL_SECONDS_MAX:
            raise UsageError(
                f"leases: ttl_seconds is {self.ttl_seconds}; it must be above {least:g} (twice timeout_seconds × "
                f"max_clock_skew_rate) and at most {TTL_SECONDS_MAX:g}"
            )


DEFAULT_LEASES = LeaseSettings()
"""The defaults of object_store."""


class DynamoCommit(ConditionalCommit):
    """Commits by leases, on a store without conditions, compatible with writers of object_store's DynamoCommit.

    At most one of all calls with the same precondition gets `Written`. The package's docstring (Limits) describes a
    write that is applied after the end of its lease. Requests without contention: 1 HEAD, 1 write, 2 requests to the
    leases. Requests with a conflict: 1 HEAD. If a lease exists, the cost also includes 1 request to the leases, 1 HEAD
    at each test interval, and 1 read of the lease at each tenth interval.
    """

    def __init__(
        self,
        store: ObjectStore,
        leases: Leases,
        *,
        settings: LeaseSettings = DEFAULT_LEASES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(store, clock=clock)
        self._leases = leases
        self._settings = settings

    def _commit(self, operation: Operation) -> CommitOutcome:
        writer = unique_name(self._clock)
        seen: CommitLease | None = None
        for _ in range(ROUNDS):
            began = self._clock.monotonic()
            if not operation.holds(self._look(operation.path)):
                return Conflict()
            lease = self._lease(operation, writer, generation=seen.generation + 1 if seen else 0)
            match self._put_lease(lease, seen):
                case Granted():
                    if self._age(began) <= BEGIN_WITHIN:
                        return self._write(operation, lease, writer, began)
                    seen = lease
                case Occupied(found=found):
                    waited = self._wait_out(operation, found)
                    if isinstance(waited, Conflict):
                        return waited
                    seen = waited
                case Unknown(cause=cause):
                    raise UnavailableError(
                        f"commit of {operation.path!r}: no lease could be stored, nothing was written: {cause}"
                    )
                case _ as unreachable:
                    assert_never(unreachable)
        raise UnavailableError(
            f"commit of {operation.path!r}: {ROUNDS} leases of other writers came first; nothing written, retry later"
        )

    def _wait_out(self, operation: Operation, found: CommitLease | None) -> CommitLease | Conflict | None:
        """Waits for the lease `found`.

        Returns the lease as soon as its holder can no longer be writing. Returns `Conflict` as soon as the path has
        changed. Returns None as soon as another lease is stored.
        """
        if found is None:
            return None
        noticed, looks = self._clock.monotonic(), 0
        wait_seconds = found.timeout_ms / 1000 * self._settings.max_clock_skew_rate
        while self._clock.monotonic() - noticed < wait_seconds:
            self._clock.sleep(self._settings.test_interval_seconds)
            looks += 1
            if not operation.holds(self._look(operation.path)):
                return Conflict()
            if looks % INTERVALS_PER_READ == 0:
                # This read is only a shortcut: without an answer, this writer waits for the full time of the lease.
                with suppress(UnavailableError):
                    if self._leases.read(found.path, found.etag) != found:
                        return None
        return found

    def _write(self, operation: Operation, lease: CommitLease, writer: str, began: float) -> Written:
        """Writes under our lease. If the outcome of the write is unknown, the lease is kept, and the next writer waits
        for the lease's end.
        """
        path, labels = operation.path, {WRITER: writer, EXPECTED: operation.expected}

        def send() -> WriteOutcome:
            try:
                return operation.sent(conditional=False, labels=labels)
            except (
                UnavailableError
            ) as error:  # the write has no condition, so it may have been applied despite this error
                return Unknown(cause=str(error))

        def look() -> Written | None:
            found = self._store.head(path)
            if operation.shows(found, writer):
                return Written(etag=found.etag if found else None)
            if not operation.holds(found):
                raise UnknownOutcomeError("the outcome of an attempt is unknown, and then the object changed")
            return None

        try:
            outcome = resolve(
                send,
                look,
                clock=self._clock,
                subject=f"commit of {path!r}, under a lease",
                may_resend=lambda: self._age(began) <= BEGIN_WITHIN,
            )
        except UnknownOutcomeError:
            raise
        except S3NotifyError:
            self._put_lease(self._done(lease), lease)
            raise
        assert isinstance(outcome, Written), "a write without a condition cannot conflict"
        return self._confirm(operation, lease, writer, began, outcome.etag)

    def _confirm(
        self, operation: Operation, lease: CommitLease, writer: str, began: float, etag: ETag | None
    ) -> Written:
        path, overran = operation.path, self._age(began) > 1
        if overran:
            try:
                ours = operation.shows(self._look(path), writer)
            except UnavailableError as error:
                raise UnknownOutcomeError(
                    f"commit of {path!r}: the write is not confirmed: {error}"
                ) from error
            if not ours:
                raise UnknownOutcomeError(
                    f"commit of {path!r}: outlasted its lease, and now another writer's object is stored"
                )
        match self._put_lease(self._done(lease), lease):
            case Granted():
                return Written(etag=etag)
            case Unknown() if not overran:
                return Written(etag=etag)
            case Unknown() | Occupied() as answer:
                raise UnknownOutcomeError(
                    f"commit of {path!r}: applied{', but outlasted its lease' if overran else ''}; another writer may "
                    f"have taken the lease over, and this write may have replaced its object: {answer}"
                )
            case _ as unreachable:
                assert_never(unreachable)

    def _look(self, path: str) -> ObjectMeta | None:
        try:
            return answered(lambda: self._store.head(path), self._clock)
        except UnavailableError as error:
            raise UnavailableError(f"{path!r} cannot be read: {error}") from error

    def _put_lease(self, lease: CommitLease, seen: CommitLease | None) -> LeaseOutcome:
        """Stores a lease. If an attempt had no answer, a later attempt recognises the stored lease by the writer id."""
        outcome: LeaseOutcome = Unknown(cause="not sent")
        for _ in attempts(self._clock):
            try:
                outcome = self._leases.put(lease, seen=seen)
            except UnavailableError as error:
                outcome = Unknown(cause=str(error))
            match outcome:
                case Granted():
                    return outcome
                case Occupied(found=found):
                    ours = found is not None and found.writer == lease.writer
                    return Granted() if ours else outcome
                case Unknown():
                    pass
                case _ as unreachable:
                    assert_never(unreachable)
        return outcome

    def _lease(self, operation: Operation, writer: str, *, generation: int) -> CommitLease:
        return CommitLease(
            path=operation.path,
            etag=operation.expected,
            generation=generation,
            timeout_ms=round(self._settings.timeout_seconds * 1000),
            ttl=self._ttl(),
            writer=writer,
        )

    def _done(self, lease: CommitLease) -> CommitLease:
        return replace(lease, generation=lease.generation + 1, timeout_ms=0, ttl=self._ttl())

    def _ttl(self) -> int:
        return self._clock.wall_ms() // 1000 + round(self._settings.ttl_seconds)

    def _age(self, began: float) -> float:
        """The share of the lease's timeout that has passed; above 1 after the timeout."""
        return (self._clock.monotonic() - began) / self._settings.timeout_seconds
