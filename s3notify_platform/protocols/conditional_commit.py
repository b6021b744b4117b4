"""Conditional commit: of any number of writers with one precondition on a path, one wins.

`NativeCommit` goes by the store's own conditions. `DynamoCommit` is for stores that lack them: a lease says who
may write; item for item the protocol of object_store's DynamoCommit, so that both can race on one table.

Steps, native
    1. Send the write under its condition, with a fresh writer id in the metadata.
    2. Written: committed. Conflict, and no earlier attempt of ours is in doubt: lost.
    3. Unknown (timeout, 5xx, 409): HEAD the path, and judge what is there.
       - our writer id: committed, by the attempt in doubt;
       - another's, written under the same precondition: lost, since only one of us can have met it;
       - still what it was (nothing, or the expected ETag): not applied so far; send again under the same id;
       - anything else: ours may have been applied and then replaced. Nobody can tell: `UnknownOutcomeError`.

Steps, leases
    1. HEAD the path. The precondition fails: lost.
    2. Put the lease of (path, expected ETag or `*`) if there is none, generation 0.
    3. There is one: HEAD every test interval; the precondition fails: lost. When the timeout of the lease found,
       times the clock skew rate, has passed on our own clock since we found it: HEAD once more, and replace it if
       it is still the one found, generation + 1. Refused: 3 anew, with the one that is there now.
    4. Ours: write, without a condition. Begun only in the first half of the timeout, which counts from before
       step 1; later, go back to 1 and replace our own lease. Unknown: HEAD. Our writer id (or the object gone, if
       we delete): confirmed. Still what it was: write again under the same id. Anything else: unknown.
    5. Confirmed after the timeout: HEAD must still find our writer id, else the outcome is unknown.
    6. Mark the lease done: generation + 1, timeout 0, if it is still ours. Done: committed. Another took it
       over: unknown, since its write may be on the way. No answer: committed if confirmed within the timeout,
       for then nobody can have taken over before our write was to be seen; unknown otherwise.

Storage
    {path}                        the object itself
    metadata `s3notify-writer`    32 hex digits, drawn for each call; copies carry it over the source's
    metadata `s3notify-expected`  the precondition: `*`, or the ETag that was replaced
    lease                         `Lease`, one for each (path, expected ETag), in a table of its own

Invariants
    - `Committed` means that exactly this call's write took effect under its precondition.
    - `Lost` means that it did not, and never will. By leases: none was ever sent.
    - What is not proven is never reported as either.
    - Leases: every change raises the generation and needs the one before it. So a holder that slept, and was
      taken over, cannot mark its lease done, and is never told that it committed.

Limits
    - Native: the store must honour the condition. Some ignore it on COPY and DELETE: the capability probe says so
      (`copy_if_absent`, `delete_if_match`), this file assumes it.
    - Native: a delete leaves no writer id. In doubt, and the object gone: `UnknownOutcomeError`.
    - Leases: a plain write cannot be called back. One that is under way for longer than timeout × skew rate (its
      process asleep after the check in step 4, or a request that a network held) may land on the winner's object
      and replace it. Its own call finds that out and says so by `UnknownOutcomeError`; if the process dies first,
      nobody does. While no request takes that long, the object is the winner's.
    - Leases: so the store must not hide delay. Give one that sends a write once and gives up within half the
      timeout: `S3ObjectStore(config, attempts=1, read_seconds=…)`. And its HEAD must see what was written before.
    - Leases: clocks tick at rates that differ at most by the skew rate; wall clocks are right to within the TTL,
      which tidies the table and decides nothing else.
    - Leases: all writers of a path go through one table, and a table serves one bucket. A crashed holder costs
      the next writer timeout × skew rate (60 s by default) on that path and precondition.
    - While an attempt of ours to create is in doubt, another may find the object and delete it. Then we create it
      a second time; or, if yet another has created it by then, it looks lost (native) or is unknown (leases).
      Paths of the table are written once, and vacuum spares young ones.
    - Where the ETag is a hash of the body, an equal body brings it back: bodies under `put_if_match` differ.
    - After `UnknownOutcomeError` the write may still land: look again before deciding.

Differs from object_store: finished leases are marked done, so that create, delete, create on one path waits for
nobody; a lost answer to a lease put is found to be one's own; what became of a write in doubt is looked up, not
reported as failed; a write that overran its lease is noticed.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import (
    NotFoundError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.ports import (
    ABSENT,
    Absent,
    Conflict,
    ETag,
    IfMatch,
    ObjectMeta,
    ObjectStore,
    Unknown,
    WriteOutcome,
    Written,
)

WRITER = "s3notify-writer"
EXPECTED = "s3notify-expected"

ATTEMPTS = 8
"""Rounds of one write and HEAD before an unknown outcome is reported as such; about 10 s of backoff at most."""

BACKOFF_BASE_SECONDS = 0.05
BACKOFF_CEILING_SECONDS = 2.0

ROUNDS = 20
"""Leases that one call finds in its way, or gets too late, before it gives up."""

BEGIN_WITHIN = 0.5
"""The share of a lease's timeout in which its write must have begun."""

INTERVALS_PER_READ = 10
"""A waiting writer looks at the object every interval, and at the lease every tenth."""


# Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The write took effect, under its precondition. `etag` is the new object's; None after a delete."""

    etag: ETag | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Another writer was first; nothing was written."""


CommitOutcome = Committed | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to one write of `path` while its ETag is `etag` (`*`: while there is no object).

    `timeout_ms` runs from when its holder sent it; 0: done, nobody is writing. `ttl` is in Unix seconds. Leases
    of other clients name no `writer`.
    """

    path: str
    etag: str
    generation: int
    timeout_ms: int
    ttl: int
    writer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The lease is in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """Another is in place; nothing was changed. `found` is None if it went meanwhile."""

    found: Lease | None


LeaseOutcome = Granted | Occupied | Unknown


class Leases(Protocol):
    """The table of leases. Both methods raise `UnavailableError` if nothing was applied."""

    def put(self, lease: Lease, *, seen: Lease | None) -> LeaseOutcome:
        """Put the lease in place of `seen`, known by generation and writer; of none, if that is None."""
        ...

    def read(self, path: str, etag: str) -> Lease | None:
        """The lease that is in place, read consistently."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How long leases hold. The defaults are object_store's, and need not be equal among writers.

    `timeout_seconds`: a write is done by then; `max_clock_skew_rate`: the fastest clock ticks at most so many times
    as fast as the slowest; `ttl_seconds`: when the table may forget a lease; `test_interval_seconds`: how often a
    waiting writer looks.
    """

    timeout_seconds: float = 20.0
    max_clock_skew_rate: float = 3.0
    ttl_seconds: float = 3600.0
    test_interval_seconds: float = 0.1

    def __post_init__(self) -> None:
        if self.timeout_seconds < 0.001 or self.test_interval_seconds <= 0 or self.max_clock_skew_rate < 1:
            raise UsageError(f"{self}: seconds are above 0, and the skew rate is at least 1")
        if self.ttl_seconds <= 2 * self.timeout_seconds * self.max_clock_skew_rate:
            raise UsageError(f"{self}: ttl_seconds must be far above timeout_seconds × max_clock_skew_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """One conditional write. `send` takes whether to send the condition along, and metadata for the object."""

    path: str
    precondition: Absent | IfMatch
    send: Callable[[bool, Mapping[str, str]], WriteOutcome]
    deletes: bool = False

    @property
    def expected(self) -> str:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _NotApplied:
    """The object is still what the precondition asks for: the write may be sent again."""


def judge(
    found: ObjectMeta | None, writer: str, precondition: Absent | IfMatch
) -> CommitOutcome | _NotApplied | None:
    """What a HEAD after an attempt in doubt proves where the store honours conditions; None if nothing."""
    if found is not None and found.metadata.get(WRITER) == writer:
        return Committed(etag=found.etag)
    expected = precondition.etag if isinstance(precondition, IfMatch) else "*"
    if found is not None and found.metadata.get(EXPECTED) == expected:
        return Lost()
    match precondition:
        case Absent():
            return _NotApplied() if found is None else None
        case IfMatch(etag=etag):
            return _NotApplied() if found is not None and found.etag == etag else None
        case _ as unreachable:
            assert_never(unreachable)


# Clients


class ConditionalCommit(Protocol):
    """Writes of which one wins. Each raises `UnknownOutcomeError` if what became of it cannot be found out: look
    before doing it again; `UnavailableError` if nothing was written: retry later.
    """

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

    def copy_if_absent(self, source: str, target: str) -> CommitOutcome:
        """Create `target` as a copy of `source`, or report that another made it. `NotFoundError`: no source."""
        ...

    def delete_if_match(self, path: str, etag: ETag) -> CommitOutcome:
        """Delete the version `etag`, or report that another replaced or deleted it."""
        ...


class _Commits:
    """The four operations, each as an `_Operation` for the one way to commit that a subclass is."""

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

        return self._commit(_Operation(path=path, precondition=ABSENT, send=send))

    def put_if_match(
        self, path: str, body: bytes, etag: ETag, *, metadata: Mapping[str, str] | None = None
    ) -> CommitOutcome:
        """See `ConditionalCommit.put_if_match`."""

        def send(conditional: bool, labels: Mapping[str, str]) -> WriteOutcome:
            condition = IfMatch(etag=etag) if conditional else None
            return self._store.put(
                path, body, precondition=condition, metadata={**(metadata or {}), **labels}
            )

        return self._commit(_Operation(path=path, precondition=IfMatch(etag=etag), send=send))

    def copy_if_absent(self, source: str, target: str) -> CommitOutcome:
        """See `ConditionalCommit.copy_if_absent`. Sending it is a HEAD and a COPY."""

        def send(conditional: bool, labels: Mapping[str, str]) -> WriteOutcome:
            condition = ABSENT if conditional else None
            return self._store.copy(source, target, precondition=condition, metadata=labels)

        return self._commit(_Operation(path=target, precondition=ABSENT, send=send))

    def delete_if_match(self, path: str, etag: ETag) -> CommitOutcome:
        """See `ConditionalCommit.delete_if_match`."""

        def send(conditional: bool, _labels: Mapping[str, str]) -> WriteOutcome:
            return self._store.delete(path, precondition=IfMatch(etag=etag) if conditional else None)

        return self._commit(_Operation(path=path, precondition=IfMatch(etag=etag), send=send, deletes=True))

    def _commit(self, operation: _Operation) -> CommitOutcome:
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


class NativeCommit(_Commits):
    """Commits by the store's own conditions: 1 write, and 1 HEAD for each attempt whose outcome was unknown."""

    def _commit(self, operation: _Operation) -> CommitOutcome:
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
                    return Committed(etag=etag)
                case Conflict() if attempt == 0:
                    return Lost()
                case Written() | Conflict() | Unknown():
                    verdict = judge(self._look_after(path), writer, operation.precondition)
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


class DynamoCommit(_Commits):
    """Commits by leases, on a store without conditions, beside writers of object_store's DynamoCommit.

    Uncontended: 1 HEAD, 1 write, 2 requests to the leases. A loser: 1 HEAD, or 1 more each test interval and 1 to
    the leases. Of all calls with one precondition at most one gets `Committed`; see Limits for what a write that
    lands after its lease can do.
    """

    def __init__(
        self,
        store: ObjectStore,
        leases: Leases,
        *,
        settings: LeaseSettings = LeaseSettings(),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(store, clock=clock)
        self._leases = leases
        self._settings = settings

    def _commit(self, operation: _Operation) -> CommitOutcome:
        writer = unique_name(self._clock)
        seen: Lease | None = None
        for _ in range(ROUNDS):
            began = self._clock.monotonic()
            if not operation.holds(self._look(operation.path)):
                return Lost()
            lease = self._lease(operation, writer, generation=seen.generation + 1 if seen else 0)
            match self._settle(lease, seen):
                case Granted():
                    if self._age(began) <= BEGIN_WITHIN:
                        return self._write(operation, lease, writer, began)
                    seen = lease
                case Occupied(found=found):
                    waited = self._wait_out(operation, found)
                    if isinstance(waited, Lost):
                        return waited
                    seen = waited
                case Unknown(cause=cause):
                    raise UnavailableError(
                        f"commit of {operation.path!r}: no lease, nothing written: {cause}"
                    )
                case _ as unreachable:
                    assert_never(unreachable)
        raise UnavailableError(
            f"commit of {operation.path!r}: {ROUNDS} leases came and went; nothing written, retry later"
        )

    def _wait_out(self, operation: _Operation, found: Lease | None) -> Lease | Lost | None:
        """`found`, once its holder can no longer be writing; `Lost` once the path has changed; None once there
        is another lease.
        """
        if found is None:
            return None
        noticed, looks = self._clock.monotonic(), 0
        wait_seconds = found.timeout_ms / 1000 * self._settings.max_clock_skew_rate
        while self._clock.monotonic() - noticed < wait_seconds:
            self._clock.sleep(self._settings.test_interval_seconds)
            looks += 1
            if not operation.holds(self._look(operation.path)):
                return Lost()
            if looks % INTERVALS_PER_READ == 0:
                # Found only earlier this way: without an answer it is waited out.
                with suppress(UnavailableError):
                    if self._leases.read(found.path, found.etag) != found:
                        return None
        return found

    def _write(self, operation: _Operation, lease: Lease, writer: str, began: float) -> Committed:
        """Under a lease of ours. What is in doubt keeps the lease: the next writer gives it time to land."""
        path, doubt = operation.path, ""
        for attempt in range(ATTEMPTS):
            if doubt and self._age(began) > BEGIN_WITHIN:
                break
            try:
                outcome = operation.send(False, {WRITER: writer, EXPECTED: operation.expected})
            except UnavailableError as error:
                outcome = Unknown(cause=str(error))
            except S3NotifyError as error:
                if doubt:
                    raise UnknownOutcomeError(f"commit of {path!r}: {doubt}, then: {error}") from error
                self._settle(self._done(lease), lease)
                raise
            if isinstance(outcome, Written) and (outcome.etag or operation.deletes):
                return self._confirm(operation, lease, writer, began, outcome.etag)
            doubt = str(outcome)
            found = self._look_after(path)
            if operation.shows(found, writer):
                return self._confirm(operation, lease, writer, began, found.etag if found else None)
            if not operation.holds(found):
                raise UnknownOutcomeError(f"commit of {path!r}: an attempt in doubt, then the object changed")
            self._pause(attempt)
        raise UnknownOutcomeError(f"commit of {path!r}: sent under a lease, and not confirmed: {doubt}")

    def _confirm(
        self, operation: _Operation, lease: Lease, writer: str, began: float, etag: ETag | None
    ) -> Committed:
        path, overran = operation.path, self._age(began) > 1
        if overran and not operation.shows(self._look_after(path), writer):
            raise UnknownOutcomeError(
                f"commit of {path!r}: overran its lease, and another's write is there now"
            )
        match self._settle(self._done(lease), lease):
            case Granted():
                return Committed(etag=etag)
            case Unknown() if not overran:
                return Committed(etag=etag)
            case Unknown() | Occupied() as answer:
                raise UnknownOutcomeError(
                    f"commit of {path!r}: applied{', but overran its lease' if overran else ''}; another may have "
                    f"taken the lease over, and this write may have replaced the other's: {answer}"
                )
            case _ as unreachable:
                assert_never(unreachable)

    def _settle(self, lease: Lease, seen: Lease | None) -> LeaseOutcome:
        """Put a lease; one whose answer was lost is known by its writer."""
        outcome: LeaseOutcome = Unknown(cause="not sent")
        for attempt in range(ATTEMPTS):
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
                    self._pause(attempt)
                case _ as unreachable:
                    assert_never(unreachable)
        return outcome

    def _lease(self, operation: _Operation, writer: str, *, generation: int) -> Lease:
        return Lease(
            path=operation.path,
            etag=operation.expected,
            generation=generation,
            timeout_ms=round(self._settings.timeout_seconds * 1000),
            ttl=self._ttl(),
            writer=writer,
        )

    def _done(self, lease: Lease) -> Lease:
        return replace(lease, generation=lease.generation + 1, timeout_ms=0, ttl=self._ttl())

    def _ttl(self) -> int:
        return self._clock.wall_ms() // 1000 + round(self._settings.ttl_seconds)

    def _age(self, began: float) -> float:
        """How much of a lease's timeout has gone, as a share."""
        return (self._clock.monotonic() - began) / self._settings.timeout_seconds
