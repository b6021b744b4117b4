"""Keyspace: which slots of a bucket changed, for one HEAD, or one HEAD and one LIST (vnotify).

Steps
    1. A publisher writes (or deletes) its object.
    2. It writes the signal of the object's slot: a small object whose ETag moves.
    3. It writes the root signal. Each step begins when the one before it has ended.
    4. A watcher HEADs the root. Same ETag as last time: nothing changed, one request.
    5. Else it LISTs the signals and compares each slot's ETag with the one it remembers.
    6. Only when the LIST has succeeded does it remember the new root.

Storage
    {prefix}{slot}   signal of a slot, decimal and unpadded; the caller puts the `/` into `prefix`
    {prefix}_        root signal, which sorts after every slot: a full keyspace is one page of 1000
    body             `{unix milliseconds},{32 random hex digits}`; readers compare ETags only

Invariants
    - A slot's signal moves after every object write of that slot that happened, or may have happened.
    - A remembered root means: every signal that was there when that root was written has been listed.
    - A causal reader uses a version it had not seen only after a poll that began after the GET's response.

Limits
    - A slot says that one of its keys changed, not which. 100 changed keys touch about 95 of 1000 slots.
    - A publisher that dies between steps 1 and 2 leaves its object unsignalled: the notification queue's
      reservation and the sweep find it, not this protocol. Between 2 and 3: found by the next LIST, at the
      latest after `relist_seconds`.
    - A watcher remembers 8 bytes of each ETag's hash: a change is overlooked with probability 2**-64.

Differs from the vnotify crate, same bytes in the bucket: the root is remembered after the LIST, not before;
the causal poll begins after the GET, not with it, and its errors are retried while the reader waits; missing
keys are fenced; foreign objects cannot push slots off the page; deletes and batches are signalled.
"""

import logging
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from json import dumps, loads
from threading import Condition
from typing import Any, TypeVar, assert_never

from blake3 import blake3

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import (
    CorruptError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.ports import (
    ABSENT,
    Conflict,
    ETag,
    IfMatch,
    NotModified,
    ObjectMeta,
    ObjectStore,
    Precondition,
    StoredObject,
    Unknown,
    WriteOutcome,
    Written,
)
from s3notify_platform.slots import SLOT_COUNT, Slot, check_slot_count, slot_from_partition_key, slot_of

log = logging.getLogger(__name__)

PARALLELISM = 16
"""Requests in flight of one batch."""

RELIST_SECONDS = 300.0
"""A watcher LISTs this often even if the root did not move: a signalled slot without its root is found."""

PAGES_MAX = 100
"""Pages of one LIST. More than 100,000 foreign objects are a misplaced prefix, not a keyspace."""

QUEUED = "s3notify-queued"
"""Metadata of a signal whose writer also told the notification queue which keys changed. Others ignore it."""

DIGEST_BYTES = 8

NEVER_SEEN = bytes(DIGEST_BYTES)

T = TypeVar("T")
R = TypeVar("R")


# ── Values ──────────────────────────────────────────────────────────────────────────────────────────────────


class NotSignalledError(S3NotifyError):
    """Objects were written, or may have been, but not signalled: call `Publisher.signal(error.keys)`.

    `outcomes` are those of the object writes of the same batch, in its order.
    """

    def __init__(self, message: str, keys: tuple[str, ...], outcomes: tuple[Any, ...] = ()) -> None:
        super().__init__(message, keys, outcomes)
        self.keys = keys
        self.outcomes = outcomes

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A change of a batch: write the object."""

    key: str
    body: bytes
    precondition: Precondition | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """A change of a batch: delete the object."""

    key: str
    precondition: IfMatch | None = None


Change = Put | Delete

_Result = WriteOutcome | S3NotifyError
"""What came of one change: an outcome, or the error that its store raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherState:
    """What a watcher remembers: the root's ETag, and 8 bytes for each slot. Immutable; 11 KB as a string.

    To forget a slot, or to leave one out, costs a request more and loses nothing. A caller that takes the new
    root but leaves changed slots out must itself keep these in mind: no poll lists them until the root moves.
    """

    slots: int = SLOT_COUNT
    digests: bytes = b""
    root_etag: ETag | None = None

    def __post_init__(self) -> None:
        check_slot_count(self.slots)
        object.__setattr__(self, "digests", self.digests or NEVER_SEEN * self.slots)
        if len(self.digests) != DIGEST_BYTES * self.slots:
            raise CorruptError(f"a state of {self.slots} slots has {len(self.digests)} bytes of digests")

    def seen(self, slot: int) -> bytes:
        """The remembered digest of a slot's signal; `NEVER_SEEN` if there is none."""
        return self.digests[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)]

    def changed(self, signals: Mapping[Slot, ETag]) -> tuple[Slot, ...]:
        """See `changed_slots`."""
        return changed_slots(self.digests, signals)

    def advance(self, slots: Iterable[int], signals: Mapping[Slot, ETag]) -> "WatcherState":
        """The state that has also seen the signals of exactly these slots. The root stays as it is."""
        return self.advance_digests({Slot(slot): digest_of(signals[Slot(slot)]) for slot in slots})

    def advance_digests(self, digests: Mapping[Slot, bytes]) -> "WatcherState":
        """As `advance`, by digests noted down earlier."""
        vector = bytearray(self.digests)
        for slot, digest in digests.items():
            if not 0 <= slot < self.slots or len(digest) != DIGEST_BYTES:
                raise UsageError(f"slot {slot} of {self.slots} with a digest of {len(digest)} bytes")
            vector[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)] = digest
        return replace(self, digests=bytes(vector))

    def at_root(self, root_etag: ETag | None) -> "WatcherState":
        """The state with this root; None makes the next poll LIST."""
        return replace(self, root_etag=root_etag)

    def dumps(self) -> str:
        """A compact string, for a sensor's cursor."""
        vector = b64encode(self.digests).decode("ascii")
        return dumps({"slots": self.slots, "root": self.root_etag, "digests": vector})

    @classmethod
    def loads(cls, text: str) -> "WatcherState":
        """The state that `dumps` wrote; `CorruptError` for any other text."""
        try:
            found = loads(text)
            root, digests = found["root"], b64decode(found["digests"], validate=True)
            return cls(slots=found["slots"], digests=digests, root_etag=None if root is None else ETag(root))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"not the state of a watcher: {text[:80]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What one pass of a watcher saw. `signals` and `changed` are empty if it did not LIST."""

    changed: Mapping[Slot, ETag] = field(default_factory=dict)
    signals: Mapping[Slot, ETag] = field(default_factory=dict)
    root_etag: ETag | None
    listed: bool
    foreign: int = 0
    pages: int = 0


# ── Pure functions ──────────────────────────────────────────────────────────────────────────────────────────


def signal_key(prefix: str, slot: int) -> str:
    """The key of a slot's signal."""
    return f"{prefix}{slot}"


def root_key(prefix: str) -> str:
    """The key of the root signal."""
    return f"{prefix}_"


def signal_body(clock: Clock) -> bytes:
    """A body that was never written before, so that the ETag moves even where it is a hash of the body."""
    return f"{clock.wall_ms()},{unique_name(clock)}".encode("ascii")


def digest_of(etag: ETag) -> bytes:
    """8 bytes that stand for a signal's ETag; never `NEVER_SEEN`."""
    digest: bytes = blake3(etag.encode("utf-8")).digest(length=DIGEST_BYTES)
    return digest if digest != NEVER_SEEN else b"\x01".ljust(DIGEST_BYTES, b"\0")


def changed_slots(seen: bytes, signals: Mapping[Slot, ETag]) -> tuple[Slot, ...]:
    """The slots, ascending, whose signal differs from the vector of digests `seen`. Vanished ones do not."""
    return tuple(
        slot
        for slot in sorted(signals)
        if seen[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)] != digest_of(signals[slot])
    )


def slot_of_signal(prefix: str, key: str, slots: int) -> Slot | None:
    """The slot whose signal this key is; None for the root and for foreign objects."""
    try:
        return slot_from_partition_key(key.removeprefix(prefix), slots)
    except UsageError:
        return None


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────────────────


class Publisher:
    """Writes objects and moves their signals. Thread-safe; holds no state.

    One object costs 3 PUTs: object, slot signal, root signal. A batch of n objects in s slots: n + s + 1.
    Signals may live in another bucket (`keyspace`). Outcomes are those of the object writes; a `Conflict`
    moves no signal, an `Unknown` does, since it may have happened. A notification queue joins in between:
    `check`, reserve, `write`, commit the entries, `signal` (`channels.publisher`).
    """

    def __init__(
        self,
        objects: ObjectStore,
        keyspace: ObjectStore | None = None,
        *,
        prefix: str,
        slots: int = SLOT_COUNT,
        clock: Clock = SYSTEM_CLOCK,
        parallelism: int = PARALLELISM,
        queued: bool = False,
    ) -> None:
        """`queued`: every change is in the notification queue before it is signalled, and its signals say so."""
        if parallelism < 1:
            raise UsageError(f"parallelism={parallelism}: at least one request is in flight")
        self._objects = objects
        self._keyspace = keyspace if keyspace is not None else objects
        self._reserved = prefix if self._keyspace is objects else None
        if self._reserved == "":
            raise UsageError("the keyspace needs a prefix of its own in a bucket that also holds the objects")
        self._prefix = prefix
        self._slots = check_slot_count(slots)
        self._clock = clock
        self._parallelism = parallelism
        self._queued = queued

    def put(
        self,
        key: str,
        body: bytes,
        *,
        precondition: Precondition | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> WriteOutcome:
        """Write one object, then its signals: 3 requests, or 1 on `Conflict`.

        An error of the object write is raised after the signals have moved, unless nothing can have happened.
        """
        return self._one(Put(key=key, body=body, precondition=precondition, metadata=metadata))

    def put_if_absent(
        self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> WriteOutcome:
        """See `put`; `Conflict` if the key exists."""
        return self.put(key, body, precondition=ABSENT, metadata=metadata)

    def put_if_match(
        self, key: str, body: bytes, etag: ETag, *, metadata: Mapping[str, str] | None = None
    ) -> WriteOutcome:
        """See `put`; `Conflict` if the object has another ETag."""
        return self.put(key, body, precondition=IfMatch(etag=etag), metadata=metadata)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """Delete one object, then move its signals: 3 requests, or 1 on `Conflict`."""
        return self._one(Delete(key=key, precondition=precondition))

    def publish(self, changes: Iterable[Change]) -> tuple[WriteOutcome, ...]:
        """Apply all changes, then move every touched slot once, then the root once: n + s + 1 requests.

        An outcome for each change; one whose store was unavailable is `Unknown`. `NotSignalledError` if
        signals failed. `UsageError` if the store refused a change as wrong: the others are applied and
        signalled.
        """
        batch = tuple(changes)
        results = self._write(batch)
        self._signal_written(batch, results)
        return tuple(_outcome(result) for result in results)

    def check(self, changes: Iterable[Change]) -> None:
        """`UsageError` if no such batch may be published: the checks that need no request."""
        keys = [change.key for change in changes]
        if len(set(keys)) < len(keys):
            raise UsageError("a batch names a key twice: their order would be undefined")
        for key in keys:
            if self._reserved is not None and key.startswith(self._reserved):
                raise UsageError(f"key {key!r} lies in the keyspace {self._reserved!r}: choose another")
            slot_of(key, self._slots)  # a key that has no slot is refused before anything is written

    def write(self, changes: Iterable[Change]) -> tuple[WriteOutcome | UsageError, ...]:
        """The first third of `publish`: apply the changes and move no signal. n requests.

        Raises nothing of the store's: a change that it refused as wrong comes back as its `UsageError`, and
        certainly did not happen; any other error is `Unknown` with the reason.
        """
        results = self._write(tuple(changes))
        return tuple(result if isinstance(result, UsageError) else _as_unknown(result) for result in results)

    def head(self, key: str) -> ObjectMeta | None:
        """What is there now, or None. 1 request."""
        return self._objects.head(key)

    def watcher(self) -> "Watcher":
        """A new watcher of the signals that this publisher moves. No request."""
        return Watcher(self._keyspace, prefix=self._prefix, slots=self._slots, clock=self._clock)

    def slot_of(self, key: str) -> Slot:
        """The key's slot in this keyspace."""
        return slot_of(key, self._slots)

    def signal(self, keys: Iterable[str], *, queued: Collection[str] | None = None) -> None:
        """Move the signals of objects that others wrote: s + 1 requests for keys of s slots, none for no key.

        `queued`: those of the keys whose changes stand in the notification queue (default: all or none, as the
        publisher was made). The signal of a slot says so only if it holds for all its keys.
        `NotSignalledError` names the keys whose signals may not have moved; the others have.
        """
        slot_by_key = {key: slot_of(key, self._slots) for key in keys}
        slots = sorted(set(slot_by_key.values()))
        if not slots:
            return
        if queued is None:
            queued = slot_by_key if self._queued else ()
        plain = {slot for key, slot in slot_by_key.items() if key not in queued}
        moved = self._in_parallel(lambda slot: self._move(str(slot), queued=slot not in plain), slots)
        errors = dict(zip(slots, moved, strict=True))
        # The root moves for those that did succeed, or they would wait for somebody else's.
        root_error = self._move("_", queued=not plain)
        missing = tuple(key for key, slot in slot_by_key.items() if root_error or errors[slot])
        if missing:
            cause = root_error or next(error for error in errors.values() if error)
            raise NotSignalledError(
                f"{len(missing)} written keys not signalled, first {missing[0]!r}: {cause}; signal again",
                missing,
            ) from cause

    def signal_slots(self, slots: Iterable[Slot]) -> None:
        """Move the signals of slots that are to be looked at again: s + 1 requests, none for no slot.

        Raises what kept a signal from moving, after all were tried: do it again.
        """
        wanted = sorted(set(slots))
        if not wanted:
            return
        moved = self._in_parallel(lambda slot: self._move(str(slot), queued=self._queued), wanted)
        for error in (*moved, self._move("_", queued=self._queued)):
            if error is not None:
                raise error

    def _one(self, change: Change) -> WriteOutcome:
        results = self._write((change,))
        self._signal_written((change,), results)
        if isinstance(result := results[0], S3NotifyError):
            raise result
        return result

    def _signal_written(self, batch: Sequence[Change], results: Sequence[_Result]) -> None:
        # A write that raised may have happened all the same; one that was refused as wrong did not.
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
        return self._in_parallel(self._apply, batch)

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

    def _move(self, name: str, *, queued: bool) -> S3NotifyError | None:
        metadata = {QUEUED: "1"} if queued else None
        try:
            outcome = self._keyspace.put(f"{self._prefix}{name}", signal_body(self._clock), metadata=metadata)
        except S3NotifyError as error:
            return error
        return None if isinstance(outcome, Written) else UnknownOutcomeError(f"signal {name}: {outcome}")

    def _in_parallel(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        workers = min(self._parallelism, len(items))
        if workers <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(function, items))


def _as_unknown(result: _Result) -> WriteOutcome:
    return (
        Unknown(cause=f"{type(result).__name__}: {result}") if isinstance(result, S3NotifyError) else result
    )


def _outcome(result: _Result) -> WriteOutcome:
    if isinstance(result, UsageError):
        raise result
    return _as_unknown(result)


class Watcher:
    """Tells which slots changed since it last looked. One thread polls; `observe` may be called by many.

    An idle poll is 1 HEAD; a changed one 1 HEAD and 1 LIST, more pages only if foreign objects fill them.
    """

    def __init__(
        self,
        keyspace: ObjectStore,
        *,
        prefix: str,
        slots: int = SLOT_COUNT,
        clock: Clock = SYSTEM_CLOCK,
        relist_seconds: float = RELIST_SECONDS,
        state: WatcherState | None = None,
    ) -> None:
        self._keyspace = keyspace
        self._prefix = prefix
        self._slots = check_slot_count(slots)
        self._clock = clock
        self._relist_seconds = relist_seconds
        self._listed_at: float | None = None
        self._warned_of = 0
        self.state = state if state is not None else self.fresh_state()

    def fresh_state(self) -> WatcherState:
        """The state that has seen nothing."""
        return WatcherState(slots=self._slots)

    def poll(self, *, relist: bool | None = None) -> Poll:
        """What changed since the last poll, each change told once. An error leaves `state` as it was."""
        poll = self.observe(self.state, relist=relist)
        self.state = self.state.advance(poll.changed, poll.signals).at_root(poll.root_etag)
        return poll

    def observe(self, state: WatcherState, *, relist: bool | None = None) -> Poll:
        """What changed since `state`, which stays the caller's to advance.

        LISTs if the root differs from the state's, or if `relist`; by default, if this object has not listed
        for `relist_seconds`, or never.
        """
        if state.slots != self._slots:
            raise UsageError(
                f"a state of {state.slots} slots for a keyspace of {self._slots}: start a fresh one"
            )
        root = self._keyspace.head(root_key(self._prefix))
        root_etag = root.etag if root else None
        if root_etag == state.root_etag and not (self._relist_due() if relist is None else relist):
            return Poll(root_etag=root_etag, listed=False)
        started = self._clock.monotonic()
        signals, foreign, pages = self._list()
        self._listed_at = started
        changed = {slot: signals[slot] for slot in state.changed(signals)}
        return Poll(
            changed=changed, signals=signals, root_etag=root_etag, listed=True, foreign=foreign, pages=pages
        )

    def _relist_due(self) -> bool:
        return self._listed_at is None or self._clock.monotonic() - self._listed_at >= self._relist_seconds

    def _list(self) -> tuple[dict[Slot, ETag], int, int]:
        signals: dict[Slot, ETag] = {}
        foreign = 0
        token: str | None = None
        for pages in range(1, PAGES_MAX + 1):
            page = self._keyspace.list(self._prefix, token=token)
            for meta in page.objects:
                slot = slot_of_signal(self._prefix, meta.key, self._slots)
                if slot is not None:
                    signals[slot] = meta.etag
                elif meta.key != root_key(self._prefix):
                    foreign += 1
            # `:` follows `9`: beyond it there is no slot, however many foreign objects are.
            past_slots = bool(page.objects) and page.objects[-1].key >= f"{self._prefix}:"
            if page.next_token is None or past_slots or len(signals) == self._slots:
                self._warn(foreign, pages)
                return signals, foreign, pages
            token = page.next_token
        raise UsageError(
            f"over {PAGES_MAX} pages of objects below {self._prefix!r}: give the keyspace a prefix of its own"
        )

    def _warn(self, foreign: int, pages: int) -> None:
        if pages > 1 and foreign != self._warned_of:
            log.warning(
                "keyspace %r holds %d foreign objects: each changed poll lists %d pages",
                self._prefix,
                foreign,
                pages,
            )
            self._warned_of = foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    found: StoredObject | None
    slot: Slot
    as_of: int
    """Polls applied before the GET was sent: the body reflects every change these have shown."""


class CausalCache:
    """Cached objects that never contradict each other: a reader never sees an effect without its cause.

    A version not seen before, or the absence of a key, is used only after a poll that began after the GET's
    response, so that everything signalled before that version was written is known, and stale entries of
    other keys are revalidated on their next read. A poll that fails is retried with backoff while its readers
    wait; after `patience_seconds` they get `UnavailableError`, never an unfenced body.

    Costs: a hit 0 requests, and one poll each `staleness_seconds` for all readers together; a miss 1 GET and
    a poll, shared by all readers that wait for one; a stale entry 1 conditional GET. Thread-safe; the least
    recently used leave when `max_entries` or `max_bytes` are exceeded. The watcher is the cache's alone.
    """

    def __init__(
        self,
        objects: ObjectStore,
        watcher: Watcher,
        *,
        clock: Clock = SYSTEM_CLOCK,
        staleness_seconds: float = 1.0,
        patience_seconds: float = 60.0,
        max_entries: int = 10_000,
        max_bytes: int = 256 * 2**20,
    ) -> None:
        self._objects = objects
        self._watcher = watcher
        self._state = watcher.fresh_state()
        self._clock = clock
        self._staleness_seconds = staleness_seconds
        self._patience_seconds = patience_seconds
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._turn = Condition()
        # All below under `_turn`.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0
        self._loading: set[str] = set()
        self._polling = False
        self._started = 0
        self._applied = 0
        self._polled_at: float | None = None
        self._moved_at = [0] * self._state.slots

    def get(self, key: str) -> StoredObject | None:
        """The object, at most `staleness_seconds` older than what was signalled; None if there is none."""
        slot = slot_of(key, self._state.slots)
        self._refresh_if_old()
        with self._turn:
            # One GET of a key at a time: of two that overlap, the older response could be cached last.
            while key in self._loading:
                self._turn.wait()
            entry = self._entries.get(key)
            if entry is not None and self._moved_at[slot] <= entry.as_of:
                self._entries.move_to_end(key)
                return entry.found
            self._loading.add(key)
            as_of = self._applied
        try:
            known = entry.found if entry is not None else None
            answer = self._objects.get(key, if_none_match=known.meta.etag if known else None)
            if isinstance(answer, NotModified):
                found = known  # nothing new was seen, so there is nothing to fence
            elif isinstance(answer, Conflict):
                raise CorruptError(f"GET {key!r} without If-Match answered {answer}")
            else:
                found = answer
                self.refresh()
            with self._turn:
                self._keep(key, _Entry(found=found, slot=slot, as_of=as_of))
            return found
        finally:
            with self._turn:
                self._loading.discard(key)
                self._turn.notify_all()

    def refresh(self) -> None:
        """Return after a poll that began after this call: 1 or 2 requests, shared by all who wait for one."""
        began = self._clock.monotonic()
        with self._turn:
            ticket = self._started + 1
        attempt = 0
        while True:
            with self._turn:
                while self._polling and self._applied < ticket:
                    self._turn.wait()
                if self._applied >= ticket:
                    return
                self._polling = True
                self._started += 1
                number = self._started
            if (error := self._poll(number)) is None:
                return
            if self._clock.monotonic() - began > self._patience_seconds:
                raise UnavailableError(f"no poll succeeded for {self._patience_seconds} s") from error
            self._clock.sleep(backoff_seconds(attempt, self._clock))
            attempt += 1

    def _poll(self, number: int) -> UnavailableError | None:
        # Only the one thread that set `_polling` is here, so `_state` has one writer.
        try:
            poll = self._watcher.observe(self._state)
        except UnavailableError as error:
            return error
        else:
            self._state = self._state.advance(poll.changed, poll.signals).at_root(poll.root_etag)
            with self._turn:
                self._applied = number
                self._polled_at = self._clock.monotonic()
                for slot in poll.changed:
                    self._moved_at[slot] = number
            return None
        finally:
            with self._turn:
                self._polling = False
                self._turn.notify_all()

    def _refresh_if_old(self) -> None:
        with self._turn:
            polled_at = self._polled_at
        if polled_at is None or self._clock.monotonic() - polled_at >= self._staleness_seconds:
            self.refresh()

    def _keep(self, key: str, entry: _Entry) -> None:
        self._drop(key)
        self._entries[key] = entry
        self._bytes += _size(entry)
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(entry)


def _size(entry: _Entry) -> int:
    return len(entry.found.body) if entry.found is not None else 0
