"""Publisher: writes objects, and moves the signals of their slots."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import (
    ABSENT,
    Conflict,
    CopySource,
    ETag,
    IfMatch,
    Metadata,
    ObjectMeta,
    ObjectStore,
    Precondition,
    Unknown,
    WriteOutcome,
    Written,
)
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot, check_slot_count, slot_of
from s3notify_platform.protocols.keyspace.signals import QUEUED, signal_body
from s3notify_platform.protocols.keyspace.uploads import (
    PARTS_AT_ONCE,
    Keep,
    LargeObjects,
    LargePut,
    Put,
    written,
)
from s3notify_platform.protocols.keyspace.watcher import Watcher


class NotSignalledError(S3NotifyError):
    """Objects were written, or may have been written, but not signalled: call `Publisher.signal(error.keys)`.

    The message names no key if a `Publisher` raises the error: inlets and the reconciler log the message, and `erase`
    cannot remove keys from logs. `outcomes`: the outcome of each object write of the batch, in order.
    """

    def __init__(self, message: str, keys: tuple[str, ...], outcomes: tuple[Any, ...] = ()) -> None:
        super().__init__(message, keys, outcomes)
        self.keys = keys
        self.outcomes = outcomes

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """One change of a batch: deletes the object."""

    key: str
    precondition: IfMatch | None = None


Change = Put | Delete

_Result = WriteOutcome | S3NotifyError
"""The result of one change: an outcome, or the error that the store raised."""


class Publisher(LargeObjects[WriteOutcome]):
    """Writes objects and moves their signals. Thread-safe; keeps no state.

    One object costs 3 PUTs: object, slot signal, root signal. A batch of n objects in s slots costs n + s + 1 PUTs.
    Signals may be in another bucket (`keyspace`). Each outcome is the outcome of an object write. A `Conflict` moves no
    signal. An `Unknown` moves the signals, because the write may have happened. With a notification queue the steps
    are: `check`, reserve, `write`, commit the entries, `signal` (see `publish.queued_publisher`).
    """

    def __init__(
        self,
        objects: ObjectStore,
        keyspace: ObjectStore | None = None,
        *,
        prefix: str,
        slots: int = SLOT_COUNT,
        clock: Clock = SYSTEM_CLOCK,
        parallelism: int = REQUESTS_IN_FLIGHT,
        queued: bool = False,
        own: tuple[str, ...] = (),
    ) -> None:
        """`queued`: every change is in the notification queue before it is signalled, and each signal says that its
        changes are queued.

        `own`: further prefixes below which the publisher refuses to change objects.
        """
        if parallelism < 1:
            raise UsageError(f"parallelism={parallelism}: must be at least 1")
        self._objects = objects
        self._keyspace = keyspace if keyspace is not None else objects
        self._reserved = (*own, prefix) if self._keyspace is objects else own
        if "" in self._reserved:
            raise UsageError(
                "the keyspace needs a prefix of its own in a bucket that also contains the objects"
            )
        self._prefix = prefix
        self.slots = check_slot_count(slots)
        self._clock = clock
        self._parallelism = parallelism
        self._queued = queued

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        """Writes one object, then its signals: 3 requests, or 1 on `Conflict`.

        An error of the object write is raised after the signals have moved. If the write certainly did not happen, no
        signal moves.
        """
        return self._one(Put(key=key, body=body, precondition=precondition, metadata=metadata))

    def put_if_absent(self, key: str, body: bytes, *, metadata: Metadata = None) -> WriteOutcome:
        """See `put`; `Conflict` if the key exists."""
        return self.put(key, body, precondition=ABSENT, metadata=metadata)

    def put_if_match(self, key: str, body: bytes, etag: ETag, *, metadata: Metadata = None) -> WriteOutcome:
        """See `put`; `Conflict` if the object has another ETag."""
        return self.put(key, body, precondition=IfMatch(etag=etag), metadata=metadata)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """Deletes one object, then moves its signals: 3 requests, or 1 on `Conflict`."""
        return self._one(Delete(key=key, precondition=precondition))

    def publish(self, changes: Iterable[Change]) -> tuple[WriteOutcome, ...]:
        """Applies all changes, then moves the signal of every touched slot once, then the root: n + s + 1 requests.

        Returns an outcome for each change; `Unknown` if the store was unavailable. `NotSignalledError`: some signals
        could not be written. `UsageError`: the store refused a change as wrong; the other changes are applied and
        signalled.
        """
        batch = tuple(changes)
        results = self._write(batch)
        self._signal_written(batch, results)
        return tuple(_outcome(result) for result in results)

    def check(self, changes: Iterable[Change | LargePut]) -> None:
        """Raises `UsageError` if the batch must not be published; makes only the checks that need no request."""
        keys = [change.key for change in changes]
        if len(set(keys)) < len(keys):
            raise UsageError("a batch names a key twice: the order of its changes would be undefined")
        for key in keys:
            if inside := next((own for own in self._reserved if key.startswith(own)), None):
                raise UsageError(
                    f"key {key!r} is among the platform's own, below {inside!r}: choose another key"
                )
            slot_of(key, self.slots)  # refuses invalid keys before anything is written

    def write(self, changes: Iterable[Change]) -> tuple[WriteOutcome | UsageError, ...]:
        """The first part of `publish`: applies the changes and moves no signal. Cost: n requests.

        Does not raise the store's errors. If the store refuses a change as wrong, the `UsageError` is returned: the
        change certainly did not happen. Any other error is returned as `Unknown` with the reason.
        """
        results = self._write(tuple(changes))
        return tuple(result if isinstance(result, UsageError) else _as_unknown(result) for result in results)

    def upload(
        self,
        change: LargePut,
        keep: Keep = lambda _: None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> WriteOutcome:
        """Like `write`, for one large object. `uploads.written` describes outcomes and errors."""
        at_once = min(PARTS_AT_ONCE, self._parallelism)
        return written(
            self._objects, change, keep=keep, may_send=may_send, clock=self._clock, at_once=at_once
        )

    def source(self, bucket: str, key: str) -> CopySource | None:
        """The object to copy, or None if it does not exist. Cost: 1 request."""
        return self._objects.source(bucket, key)

    def head(self, key: str) -> ObjectMeta | None:
        """The metadata of the object, or None if it does not exist. Cost: 1 request."""
        return self._objects.head(key)

    def watcher(self) -> "Watcher":
        """A new watcher of the signals. The watcher also accepts a root that moves without the signal of a slot. Cost:
        no request.
        """
        return Watcher(self._keyspace, prefix=self._prefix, slots=self.slots, clock=self._clock, entries=dict)

    def slot_of(self, key: str) -> Slot:
        """The slot of a key in this keyspace."""
        return slot_of(key, self.slots)

    def signal(
        self, keys: Iterable[str], *, queued: Collection[str] | None = None, alone: bool = False
    ) -> None:
        """Moves the signals of objects that others wrote. Cost: s + 1 requests for keys in s slots, 0 if there are no
        keys.

        `queued`: the keys whose changes are in the notification queue. Default: all keys if the constructor got
        `queued=True`, else no key. The signal of a slot says whether all keys of the slot are in `queued`. `alone`: if
        all keys are queued, only the root moves, with 1 request. `alone` is for keyspaces whose watchers read the
        queue. `NotSignalledError` names the keys whose signals perhaps did not move; the signals of all other keys have
        moved.
        """
        slot_by_key = {key: slot_of(key, self.slots) for key in keys}
        slots = sorted(set(slot_by_key.values()))
        if not slots:
            return
        if queued is None:
            queued = slot_by_key if self._queued else ()
        unqueued = {slot for key, slot in slot_by_key.items() if key not in queued}
        alone = alone and not unqueued
        errors = {} if alone else self._move_each(slots, unqueued)
        # The root moves even if some slots failed. Otherwise, the changes of the other slots would wait for the next
        # root.
        root_error = self._move("_", queued=not unqueued, alone=alone)
        missing = tuple(key for key, slot in slot_by_key.items() if root_error or errors.get(slot))
        if missing:
            cause = root_error or next(error for error in errors.values() if error)
            raise NotSignalledError(
                f"{len(missing)} written keys were not signalled, the first of slot {slot_by_key[missing[0]]}: "
                f"{cause}; signal them again",
                missing,
            ) from cause

    def signal_slots(self, slots: Iterable[Slot]) -> None:
        """Moves the signals of slots that must be read again. Cost: s + 1 requests, 0 if there are no slots.

        Tries all signals, then raises the first error: after an error, call the method again.
        """
        wanted = sorted(set(slots))
        if not wanted:
            return
        errors = self._move_each(wanted, () if self._queued else wanted)
        for error in (*errors.values(), self._move("_", queued=self._queued)):
            if error is not None:
                raise error

    def _source(self, bucket: str, key: str) -> CopySource | None:
        return self.source(bucket, key)

    def _large(self, change: Put | LargePut) -> WriteOutcome:
        if isinstance(change, Put):
            return self._one(change)
        self.check([change])
        outcome = self.upload(change)
        self._signal_written([change], [outcome])
        return outcome

    def _one(self, change: Change) -> WriteOutcome:
        results = self._write((change,))
        self._signal_written((change,), results)
        if isinstance(result := results[0], S3NotifyError):
            raise result
        return result

    def _signal_written(self, batch: Sequence[Change | LargePut], results: Sequence[_Result]) -> None:
        # A write that raised an error may have happened; a write that was refused as wrong did not happen.
        happened = [
            change.key
            for change, result in zip(batch, results, strict=True)
            if not isinstance(result, Conflict | UsageError)
        ]
        try:
            self.signal(happened)
        except NotSignalledError as error:
            outcomes = tuple(_as_unknown(result) for result in results)
            raise NotSignalledError(str(error), error.keys, outcomes) from error

    def _write(self, batch: Sequence[Change]) -> list[_Result]:
        self.check(batch)
        return in_parallel(self._apply, batch, self._parallelism)

    def _apply(self, change: Change) -> _Result:
        try:
            match change:
                case Put(key=key, body=body, precondition=precondition, metadata=metadata):
                    return self._objects.put(key, body, precondition=precondition, metadata=metadata)
                case Delete(key=key, precondition=match):
                    return self._objects.delete(key, precondition=match)
                case _ as unreachable:
                    assert_never(unreachable)
        except S3NotifyError as error:
            return error

    def _move_each(
        self, slots: Sequence[Slot], unqueued: Collection[Slot]
    ) -> dict[Slot, S3NotifyError | None]:
        def move(slot: Slot) -> S3NotifyError | None:
            return self._move(str(slot), queued=slot not in unqueued)

        return dict(zip(slots, in_parallel(move, slots, self._parallelism), strict=True))

    def _move(self, name: str, *, queued: bool, alone: bool = False) -> S3NotifyError | None:
        metadata = {QUEUED: "1"} if queued else None
        body = signal_body(self._clock, queued=queued, alone=alone)
        try:
            outcome = self._keyspace.put(f"{self._prefix}{name}", body, metadata=metadata)
        except S3NotifyError as error:
            return error
        return None if isinstance(outcome, Written) else UnknownOutcomeError(f"signal {name}: {outcome}")


def _as_unknown(result: _Result) -> WriteOutcome:
    return (
        Unknown(cause=f"{type(result).__name__}: {result}") if isinstance(result, S3NotifyError) else result
    )


def _outcome(result: _Result) -> WriteOutcome:
    if isinstance(result, UsageError):
        raise result
    return _as_unknown(result)
