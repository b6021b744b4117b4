"""Causal cache: cached reads that never show an effect without its cause."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import (
    Conflict,
    Metadata,
    NotModified,
    ObjectMeta,
    ObjectStore,
    Precondition,
    StoredObject,
    WriteOutcome,
    Written,
)
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace.publisher import Publisher
from s3notify_platform.protocols.keyspace.watcher import Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    found: StoredObject | None
    slot: Slot
    as_of: int
    """Polls applied before the GET was sent: the body reflects every change these have shown."""


class CausalCache:
    """Cached objects that never contradict each other: a reader never sees an effect without its cause.

    A version not seen before, or the absence of a key, is used only after a poll that began after the response to
    its GET. So everything signalled before that version was written is known, and stale entries of other keys are
    revalidated on their next read. A poll that fails is retried with backoff while its readers wait; after
    `patience_seconds` they get `UnavailableError`, never a body without such a poll.

    Costs: a hit 0 requests, and one poll each `staleness_seconds` for all readers together; a miss 1 GET and
    a poll, shared by all readers that wait for one; a stale entry 1 conditional GET. Thread-safe; the least
    recently used are evicted above `max_entries` or `max_bytes`. The watcher must not be shared. What is written by
    `put` is used at once: its causes are what its writer has read here.
    """

    def __init__(
        self,
        objects: ObjectStore,
        watcher: Watcher,
        *,
        publisher: Publisher | None = None,
        clock: Clock = SYSTEM_CLOCK,
        staleness_seconds: float = 1.0,
        patience_seconds: float = 60.0,
        max_entries: int = 10_000,
        max_bytes: int = 256 * 2**20,
    ) -> None:
        """`publisher`: for `put`; of the same objects and keyspace."""
        if publisher is not None and publisher.slots != watcher.fresh_state().slots:
            raise UsageError(f"the publisher has {publisher.slots} slots: give it as many as the watcher")
        self._objects = objects
        self._publisher = publisher
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
        if self._poll_is_due():
            self.refresh()
        with self._turn:
            if key not in self._loading and (entry := self._current(key, slot)) is not None:
                return entry.found
        with self._alone(key):
            with self._turn:
                if (entry := self._current(key, slot)) is not None:
                    return entry.found
                known, as_of = self._entries.get(key), self._applied
            return self._load(key, slot, known.found if known is not None else None, as_of)

    def try_get(self, key: str) -> StoredObject | None:
        """What `get` would return without a request; None also if that takes one. No request, and no waiting for one.

        So call `get` if it is None: the object is not cached, or signalled since, or the last poll too long ago.
        """
        slot = slot_of(key, self._state.slots)
        if self._poll_is_due():
            return None
        with self._turn:
            entry = self._current(key, slot)
        return entry.found if entry is not None else None

    def evict(self, key: str) -> None:
        """Forget a key: a `get` that begins after this reads it from the store. No request."""
        with self._alone(key), self._turn:
            self._drop(key)

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        """Write one object and move its signals, as `Publisher.put`: requests, outcomes and errors are its own.

        After `Written`, readers of this cache get this version or a later one, at first without a request. Otherwise
        the next `get` reads the store. `UsageError` for a cache that was made without a `publisher`.
        """
        if self._publisher is None:
            raise UsageError("this cache has no publisher: make it with CausalCache(…, publisher=…)")
        slot = slot_of(key, self._state.slots)
        with self._alone(key):
            with self._turn:
                self._drop(key)
                as_of = self._applied
            outcome = self._publisher.put(key, body, precondition=precondition, metadata=metadata)
            if isinstance(outcome, Written) and outcome.etag is not None:
                meta = ObjectMeta(
                    key=key,
                    etag=outcome.etag,
                    size=len(body),
                    modified_ms=self._clock.wall_ms(),
                    metadata=dict(metadata or {}),
                )
                with self._turn:
                    self._keep(key, _Entry(found=StoredObject(meta=meta, body=body), slot=slot, as_of=as_of))
            return outcome

    def _poll_is_due(self) -> bool:
        with self._turn:
            polled_at = self._polled_at
        return polled_at is None or self._clock.monotonic() - polled_at >= self._staleness_seconds

    def _current(self, key: str, slot: Slot) -> _Entry | None:
        """The entry, if no signal has moved since. Under `_turn`."""
        entry = self._entries.get(key)
        if entry is None or self._moved_at[slot] > entry.as_of:
            return None
        self._entries.move_to_end(key)
        return entry

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """One GET or PUT of a key at a time: of two that overlap, the older response could be cached last."""
        with self._turn:
            self._turn.wait_for(lambda: key not in self._loading)
            self._loading.add(key)
        try:
            yield
        finally:
            with self._turn:
                self._loading.discard(key)
                self._turn.notify_all()

    def _load(self, key: str, slot: Slot, known: StoredObject | None, as_of: int) -> StoredObject | None:
        answer = self._objects.get(key, if_none_match=known.meta.etag if known else None)
        if isinstance(answer, NotModified):
            found = known  # no new version was seen, so no poll is needed
        elif isinstance(answer, Conflict):
            raise CorruptError(f"GET {key!r} without If-Match answered {answer}")
        else:
            found = answer
            self.refresh()
        with self._turn:
            self._keep(key, _Entry(found=found, slot=slot, as_of=as_of))
        return found

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
            self._state = poll.taken(self._state)
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
