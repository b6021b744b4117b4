"""Stores that fail on schedule, with crashes, lost answers and refusals. A caller of a port sees the same failures.

`FaultyStore(store, schedule)` wraps an `ObjectStore`, a `RecordStore`, or a DynamoDB table in memory. Before each call
the wrapper asks the schedule for a fault. As the ports promise, a conditional write (and a counter's `add`) that fails
after it was sent returns `Unknown`. All other failures raise `UnavailableError`, including failures of writes that were
certainly not applied.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import IfMatch, ObjectStore, Unknown, WriteOutcome
from s3notify_platform.stores.delegating import DelegatingStore

WRITES = {"put", "delete", "copy", "create", "replace", "remove", "add", "complete_upload"}
CONDITIONAL = {
    "complete_upload",
    "create",
    "replace",
    "remove",
    "add",
    "put_item",
    "update_item",
    "delete_item",
}


class Fault(Enum):
    """The fate of one call."""

    NONE = "none"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    LOST = "applied, response lost"
    REFUSED = "500 or 409, not applied"
    THROTTLED = "503 SlowDown, certainly not applied"
    LATE = "response lost, applied some calls later"
    PAUSE = "the process sleeps before the call"


class CrashedError(BaseException):
    """The end of a process. This class is no `Exception`, because no client can handle its own death."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that is about to be made, numbered from 0 within its store."""

    number: int
    method: str
    key: str
    conditional: bool


Schedule = Callable[[Call], Fault]


def never(_call: Call) -> Fault:
    """A schedule without faults."""
    return Fault.NONE


def scripted(faults: Mapping[int, Fault]) -> Schedule:
    """Faults at the calls with these numbers."""
    return lambda call: faults.get(call.number, Fault.NONE)


def at(method: str, fault: Fault, *, nth: int = 0, key: str | None = None) -> Schedule:
    """One fault: at the nth call (from 0) of a method, or of a method for one key."""
    seen = 0

    def schedule(call: Call) -> Fault:
        nonlocal seen
        if call.method != method or (key is not None and call.key != key):
            return Fault.NONE
        seen += 1
        return fault if seen == nth + 1 else Fault.NONE

    return schedule


def crash_at_signals(prefix: str) -> Schedule:
    """The process ends before its first signal. `prefix`: the keyspace of the source."""

    def schedule(call: Call) -> Fault:
        is_signal = call.method == "put" and call.key.startswith(prefix)
        return Fault.CRASH_BEFORE if is_signal else Fault.NONE

    return schedule


def seeded(seed: int | str, rates: Mapping[Fault, float]) -> Schedule:
    """Each fault happens at a call with the probability that `rates` has for the fault. Only conditional writes can be
    LATE.

    A late unconditional write could overwrite newer writes, after its caller has continued. No store applies such a
    write so late.
    """
    dice = random.Random(f"faults {seed}")

    def schedule(call: Call) -> Fault:
        roll = dice.random()
        for fault, rate in rates.items():
            if roll < rate:
                return fault if fault is not Fault.LATE or call.conditional else Fault.NONE
            roll -= rate
        return Fault.NONE

    return schedule


def _landed(apply: Callable[[], Any]) -> None:
    with suppress(NotFoundError):  # the upload has ended meanwhile
        apply()


class FaultyStore:
    """A store (of objects or of records) whose calls fail on schedule. `calls` records each call and its fault."""

    def __init__(
        self,
        store: Any,
        schedule: Schedule = never,
        *,
        pause: Callable[[], None] = lambda: None,
        late_by_calls: int = 3,
    ) -> None:
        self.store = store
        self.schedule = schedule
        self.calls: list[tuple[Call, Fault]] = []
        self._pause = pause
        self._late_by_calls = late_by_calls
        self._late: deque[tuple[int, Callable[[], Any]]] = deque()

    def settle(self) -> None:
        """Applies every late write now."""
        while self._late:
            self._late.popleft()[1]()

    def __getattr__(self, method: str) -> Any:
        function = getattr(self.store, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            if method == "scan":
                return iter(self._call(method, lambda: list(function(*args, **kwargs)), args, kwargs))
            return self._call(method, lambda: function(*args, **kwargs), args, kwargs)

        return call

    def _call(
        self, method: str, apply: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        key = "/".join(str(arg) for arg in args[: 2 if method in CONDITIONAL | {"read"} else 1])
        conditioned = method != "begin_upload" and kwargs.get("precondition") is not None
        conditional = method in CONDITIONAL or conditioned
        call = Call(number=len(self.calls), method=method, key=key, conditional=conditional)
        while self._late and self._late[0][0] <= call.number:
            self._late.popleft()[1]()
        fault = self.schedule(call)
        self.calls.append((call, fault))
        match fault:
            case Fault.NONE:
                return apply()
            case Fault.PAUSE:
                self._pause()
                return apply()
            case Fault.CRASH_BEFORE:
                raise CrashedError(f"before {method} {key}")
            case Fault.CRASH_AFTER:
                apply()
                raise CrashedError(f"after {method} {key}")
            case Fault.LOST:
                apply()
                return self._failed(call, "response lost")
            case Fault.REFUSED:
                return self._failed(call, "500")
            case Fault.THROTTLED:
                raise UnavailableError(f"{call.method} {call.key}: 503 SlowDown")
            case Fault.LATE:
                self._late.append((call.number + self._late_by_calls, lambda: _landed(apply)))
                return self._failed(call, "timeout")

    @staticmethod
    def _failed(call: Call, cause: str) -> Unknown:
        if call.conditional:
            return Unknown(cause=cause)
        if call.method == "begin_upload":
            raise UnknownOutcomeError(f"{call.method} {call.key}: {cause}")
        raise UnavailableError(f"{call.method} {call.key}: {cause}")


class DoubtfulStore(DelegatingStore):
    """An object store that does not apply unconditional deletions of keys that contain `part`. Such a deletion returns
    `Unknown`, as if its answer were lost.
    """

    def __init__(self, store: ObjectStore, part: str) -> None:
        super().__init__(store)
        self._part = part

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        if precondition is None and self._part in key:
            return Unknown(cause="timeout")
        return super().delete(key, precondition=precondition)
