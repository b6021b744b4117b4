"""The capability probe: tries every condition on scratch objects, and decides which commit is safe on a store.

A store that ignores a condition answers 200, as does a store that honours it. So the probe tries every condition twice.
While the condition holds, the write must be applied. While the condition does not hold, the write must be refused, and
must change nothing. Then 8 threads write one key concurrently, and at most one may succeed. The platform never relies
on a guarantee that the store does not give. `choose_commit` returns the commit that fits the probe and the
configuration, or raises `UsageError`.

Requests: about 50, once; all scratch objects are deleted at the end.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import (
    ABSENT,
    ETag,
    IfMatch,
    ObjectStore,
    Precondition,
    StoredObject,
    Uploads,
    WriteOutcome,
    Written,
    list_all,
)

RACERS = 8

CommitMode = Literal["native", "dynamodb"]
"""`native`: commits use the store's own conditions. `dynamodb`: commits use leases in a DynamoDB table."""

PROBE: Final = ".s3notify-probe-"
"""The keys of a probe's objects begin with the prefix and this text."""

CommitChoice = Literal["auto", "native", "dynamodb"]
"""The user's setting. `auto`: native if native commits are safe on the store, else dynamodb if a lease table is
named.
"""

Mode = Literal["native", "external", "unusable"]
"""`native`: commits can use the store's own conditions. `external`: the store lacks a condition that commits need. So
only a commit through DynamoDB is safe. `unusable`: not reachable, or not permitted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Findings of the probe. The field of a condition is True if two tests succeeded: while the condition held, a write
    was applied, and while the condition did not hold, a write was refused. For `create_if_absent` and `put_if_match`,
    True also means that at most one of several concurrent writers succeeded.
    """

    reachable: bool = False
    can_list: bool = False
    can_read: bool = False
    can_write: bool = False
    can_delete: bool = False
    create_if_absent: bool = False
    put_if_match: bool = False
    delete_if_match: bool = False
    copy_if_absent: bool = False
    upload_if_absent: bool = False
    list_is_ordered: bool = False
    clock_skew_ms: int | None = None
    """The server's time minus this machine's time, to the second; None if the server does not send its time."""
    problems: tuple[str, ...] = ()

    @property
    def mode(self) -> Mode:
        """The commits that are safe on this store."""
        if not (self.reachable and self.can_list and self.can_read and self.can_write and self.can_delete):
            return "unusable"
        return "native" if self.create_if_absent and self.put_if_match else "external"


@runtime_checkable
class HasServerClock(Protocol):
    """A store that can read its server's wall clock."""

    def server_date_ms(self) -> int | None:
        """Unix milliseconds, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The chosen commit mode, and the reason of the choice as a text for people."""

    commit: CommitMode
    reason: str


def choose_commit(
    found: Capabilities,
    wanted: CommitChoice = "auto",
    *,
    has_lease_table: bool = False,
    has_records_table: bool = False,
) -> Decision:
    """The commit that the platform uses on this store; `UsageError` with the reason if no commit is safe. Pure.

    Records (ack chains, heartbeats) are kept on the bucket, and need `If-Match`, unless there is a table for them.
    """
    if found.mode == "unusable":
        raise UsageError("this store cannot be used: " + "; ".join(found.problems))
    lacking = [what for name, what in _CONDITIONS.items() if not getattr(found, name)]
    lacks = f"this store lacks {' and '.join(lacking)}"
    native = wanted == "native" or (wanted == "auto" and not lacking)
    if native and lacking:
        raise UsageError(f"{lacks}, which native commits need: use DynamoDB commit or another store")
    needed = {
        "lease_table (for slot commits)": has_lease_table or native,
        "records_table (for ack chains and records)": has_records_table or not lacking,
    }
    if missing := [table for table, is_there in needed.items() if not is_there]:
        raise UsageError(
            f"{lacks if lacking else 'DynamoDB commit is requested'}: name a DynamoDB {' and a '.join(missing)}, "
            f"or use {'another store' if lacking else 'native commits'}"
        )
    if wanted != "auto":
        return Decision(commit=wanted, reason="requested")
    if native:
        return Decision(commit="native", reason="the store honours If-None-Match and If-Match on PUT")
    return Decision(commit="dynamodb", reason=f"{lacks}, and a lease table is named")


_CONDITIONS = {
    "create_if_absent": "create-if-absent (If-None-Match: * on PUT)",
    "put_if_match": "put-if-match (If-Match on PUT)",
}


def probe(store: ObjectStore, prefix: str, *, clock: Clock = SYSTEM_CLOCK) -> Capabilities:
    """Runs the probe below `prefix`. Never raises for an answer of the store: each failure is in `problems`."""
    return _Probe(store, f"{prefix}{PROBE}{unique_name(clock)}/", clock).run()


class _Probe:
    """One probe: its scratch prefix, and its findings so far."""

    def __init__(self, store: ObjectStore, prefix: str, clock: Clock) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._written: set[str] = set()
        self._held: set[str] = set()
        self._problems: dict[str, str] = {}
        self._skew_ms: int | None = None

    def run(self) -> Capabilities:
        try:
            self._store.list(self._prefix, limit=1)
        except UnavailableError as error:
            return Capabilities(problems=(str(error),))
        except S3NotifyError:
            pass  # The store answers. The next steps find out which requests the store refuses.
        self._check("can_list", lambda: self._store.list(self._prefix, limit=1))
        if self._check("can_write", lambda: _applied(self._put("w", b"1"))):
            self._check("can_read", self._can_read)
            self._check("create_if_absent", self._create_if_absent)
            self._check("put_if_match", self._put_if_match)
            self._check("delete_if_match", self._delete_if_match)
            self._check("copy_if_absent", self._copy_if_absent)
            if isinstance(self._store, Uploads):
                self._check("upload_if_absent", self._upload_if_absent)
            self._check("list_is_ordered", self._list_is_ordered)
            self._check("can_delete", self._clean_up)
        if isinstance(self._store, HasServerClock):
            self._check("clock", self._measure_skew)
        return Capabilities(
            reachable=True,
            clock_skew_ms=self._skew_ms,
            problems=tuple(f"{name}: {problem}" for problem, name in self._problems.items()),
            **dict.fromkeys(self._held - {"clock"}, True),
        )

    def _check(self, name: str, attempt: Callable[[], object]) -> bool:
        try:
            attempt()
        except (_Failed, S3NotifyError) as failure:
            # One cause, such as a missing bucket, is reported only once.
            self._problems.setdefault(str(failure), name)
            return False
        self._held.add(name)
        return True

    def _can_read(self) -> None:
        found = self._store.get(self._prefix + "w")
        head = self._store.head(self._prefix + "w")
        _demand(isinstance(found, StoredObject) and found.body == b"1", "GET did not return the written body")
        _demand(head is not None and head.size == 1, "HEAD did not find the written object")

    def _create_if_absent(self) -> None:
        _applied(self._put("create", b"1", ABSENT))
        _refused(self._put("create", b"2", ABSENT), "a second create")
        self._body_is("create", b"1")
        self._race("race-create", ABSENT)

    def _put_if_match(self) -> None:
        first = _applied(self._put("match", b"1"))
        second = _applied(self._put("match", b"2", IfMatch(etag=first)))
        _demand(first != second, "the ETag did not change with the content")
        _refused(self._put("match", b"3", IfMatch(etag=first)), "a PUT under a former ETag")
        _refused(
            self._put("never", b"3", IfMatch(etag=first)), "a PUT under an ETag on a key without an object"
        )
        self._body_is("match", b"2")
        self._race("match", IfMatch(etag=second))

    def _delete_if_match(self) -> None:
        first = _applied(self._put("delete", b"1"))
        second = _applied(self._put("delete", b"2"))
        key = self._prefix + "delete"
        _refused(self._store.delete(key, precondition=IfMatch(etag=first)), "a DELETE under a former ETag")
        self._body_is("delete", b"2")
        outcome = self._store.delete(key, precondition=IfMatch(etag=second))
        _demand(isinstance(outcome, Written), f"a DELETE under the right ETag was not applied: {outcome}")
        _demand(self._store.head(key) is None, "a deleted object still exists")

    def _copy_if_absent(self) -> None:
        _applied(self._put("from-1", b"1"))
        _applied(self._put("from-2", b"2"))
        self._written.add(self._prefix + "to")
        source, other, target = (self._prefix + name for name in ("from-1", "from-2", "to"))
        _applied(self._store.copy(source, target, precondition=ABSENT))
        _refused(self._store.copy(other, target, precondition=ABSENT), "a COPY onto an existing object")
        self._body_is("to", b"1")

    def _upload_if_absent(self) -> None:
        assert isinstance(self._store, Uploads)
        _applied(self._put("upload", b"1"))
        key = self._prefix + "upload"
        upload = self._store.begin_upload(key)
        try:
            part = self._store.send_part(key, upload, 1, b"2")
            outcome = self._store.complete_upload(key, upload, [part], precondition=ABSENT)
            _refused(outcome, "an upload onto an existing object")
            self._body_is("upload", b"1")
        finally:
            self._store.abort_upload(key, upload)

    def _list_is_ordered(self) -> None:
        names = ["o/1", "o/1-a", "o/1.b", "o/1/x", "o/10", "o/A", "o/_", "o/a"]
        for name in reversed(names):
            _applied(self._put(name, b""))
        seen = [meta.key[len(self._prefix) :] for meta in list_all(self._store, self._prefix + "o/")]
        _demand(seen == names, f"LIST returned {seen}; in order of UTF-8 bytes it is {names}")
        page = self._store.list(self._prefix + "o/", start_after=self._prefix + "o/1.b", limit=2)
        after = [meta.key[len(self._prefix) :] for meta in page.objects]
        _demand(after == names[3:5], f"LIST after 'o/1.b' returned {after}, not {names[3:5]}")
        _demand(page.next_token is not None, "LIST of a full page did not report that more keys follow")

    def _measure_skew(self) -> None:
        assert isinstance(self._store, HasServerClock)
        date_ms = self._store.server_date_ms()
        self._skew_ms = None if date_ms is None else date_ms - self._clock.wall_ms()

    def _clean_up(self) -> None:
        for key in sorted(self._written):
            outcome = self._store.delete(key)
            _demand(isinstance(outcome, Written), f"DELETE of {key!r} was not applied: {outcome}")
            _demand(self._store.head(key) is None, f"{key!r} still exists after its DELETE")

    def _put(self, name: str, body: bytes, precondition: Precondition | None = None) -> WriteOutcome:
        self._written.add(self._prefix + name)
        return self._store.put(self._prefix + name, body, precondition=precondition)

    def _body_is(self, name: str, body: bytes) -> None:
        found = self._store.get(self._prefix + name)
        _demand(isinstance(found, StoredObject) and found.body == body, "a refused write changed the object")

    def _race(self, name: str, precondition: Precondition) -> None:
        """Several writers (`RACERS`) use one precondition at the same time. At most one of the writers may get
        `Written`; the object must then have this writer's body.
        """
        bodies = [b"racer %d" % number for number in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as pool:
            outcomes = list(pool.map(lambda body: self._put(name, body, precondition), bodies))
        winners = [
            body for body, outcome in zip(bodies, outcomes, strict=True) if isinstance(outcome, Written)
        ]
        _demand(
            len(winners) <= 1, f"{len(winners)} of {RACERS} concurrent writers got success as their answer"
        )
        found = self._store.get(self._prefix + name)
        _demand(isinstance(found, StoredObject), "after concurrent writes there is no object")
        if winners:
            self._body_is(name, winners[0])


class _Failed(Exception):  # noqa: N818 - never leaves this module
    """A capability that the store lacks, and the evidence."""


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Failed(otherwise)


def _applied(outcome: WriteOutcome) -> ETag:
    if not isinstance(outcome, Written) or outcome.etag is None:
        raise _Failed(f"a write that had to be applied ended in {outcome}")
    return outcome.etag


def _refused(outcome: WriteOutcome, what: str) -> None:
    # The outcome `Unknown` is neither a refusal nor a violation. The later check of the body decides.
    _demand(not isinstance(outcome, Written), f"{what} was applied: the condition is ignored")
