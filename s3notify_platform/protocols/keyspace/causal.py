"""Causal cache: cached reads that never show an effect without its cause.

In the background (`CausalCache.start`)
    1. A poll finds slots whose signals changed. These changes are held back: readers get the same answers as before.
    2. Stale entries that were used recently are read again, by conditional GETs.
    3. If one of these GETs returns a new object version, a second poll begins after all the GETs were answered. The
       second poll shows all changes that were signalled before the new version was written.
    4. Changes and new versions become visible together. An entry is stale from then on if it was not read again, or if
       the second poll found a change of its slot.
    If the previous poll becomes too old to serve hits, the held-back changes become visible without step 3. So a slow
    GET delays readers only until the previous poll is too old.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Condition, Event, Thread
from typing import Final, Self

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.kernel.errors import CorruptError, S3NotifyError, UnavailableError, UsageError
from s3notify_platform.kernel.parallel import in_parallel
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
from s3notify_platform.protocols.keyspace.cached_entries import CachedEntries, Entry
from s3notify_platform.protocols.keyspace.publisher import Publisher
from s3notify_platform.protocols.keyspace.watcher import Watcher

log = logging.getLogger(__name__)

HOT_SECONDS: Final = 30.0
"""The background thread reads stale entries again if they were used within this time; others wait for a reader."""

CLOSE_SECONDS: Final = 5.0
"""Seconds for which `close` waits for a request in flight. The thread of a slower request ends with the request."""

WAIT_SECONDS: Final = 60.0
"""The maximum time for which readers wait for held-back changes, even if `serve_stale_seconds` is longer."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    """A poll whose changes are held back. `moved`: for each changed slot, the number of the last poll that found it."""

    number: int
    began: float
    moved: dict[Slot, int]


_Again = Mapping[str, tuple[Entry, Entry]]
"""By key: the former entry, and the entry that was read again."""


class CausalCache:
    """Cached objects that never contradict each other: a reader never sees an effect without its cause.

    A GET may find a new version of a key, or no object. The cache uses this result only after a poll that began after
    the response to the GET. So the cache knows all changes that were signalled before that version was written. Stale
    entries of other keys are revalidated on their next read. A failed poll is retried with backoff while its readers
    wait. After `patience_seconds`, readers get `UnavailableError`. A result that needs a poll is returned only after
    this poll.

    Cost: a hit takes 0 requests, and all hits together take one poll every `staleness_seconds`. A miss takes 1 GET and
    a poll, which waiting readers share. A stale entry takes 1 conditional GET. Thread-safe. Above `max_entries` or
    `max_bytes`, the least recently used entries are evicted. Each poll also evicts entries that were unused for
    `idle_seconds`. The watcher must not be shared. An object that `put` wrote is used immediately, without a poll: its
    writer has read all causes of the object from this cache.

    To refresh in the background:

        with CausalCache(store, Watcher(store, prefix=…)) as cache:     # or `start` and `close`
            cache.try_get(key)                                          # no request: cached, and at most 10 s old

    A thread polls every `staleness_seconds`. After each poll, the thread reads changed entries again if they were used
    within `HOT_SECONDS`. One poll causes at most `revalidate_max` such reads, the most recently used entries first.
    Meanwhile, and while polls fail, hits stay unchanged for at most `serve_stale_seconds`. Then readers wait for a
    poll, as without the thread. Cost: one poll every `staleness_seconds`. A poll that finds changes takes up to
    `revalidate_max` more conditional GETs. If one of these GETs finds a new version, one more poll is made.
    """

    def __init__(
        self,
        objects: ObjectStore,
        watcher: Watcher,
        *,
        publisher: Publisher | None = None,
        clock: Clock = SYSTEM_CLOCK,
        staleness_seconds: float = 1.0,
        serve_stale_seconds: float = 10.0,
        patience_seconds: float = 60.0,
        idle_seconds: float = 600.0,
        max_entries: int = 10_000,
        max_bytes: int = 256 * 2**20,
        revalidate_max: int = 100,
        parallelism: int = 8,
    ) -> None:
        """`publisher`: for `put`; it must use the same objects and keyspace. `parallelism`: the number of background
        GETs in flight.
        """
        if publisher is not None and publisher.slots != watcher.fresh_state().slots:
            raise UsageError(f"the publisher has {publisher.slots} slots: give it as many as the watcher has")
        self._objects = objects
        self._publisher = publisher
        self._watcher = watcher
        self._state = watcher.fresh_state()
        self._clock = clock
        self._staleness_seconds = staleness_seconds
        self._patience_seconds = patience_seconds
        self._serve_stale_seconds = serve_stale_seconds
        self._revalidate_max = revalidate_max
        self._parallelism = parallelism
        self._stop = Event()
        self._turn = Condition()
        # All fields below are guarded by `_turn`.
        self._entries = CachedEntries(
            clock, max_entries=max_entries, max_bytes=max_bytes, idle_seconds=idle_seconds
        )
        self._loading: set[str] = set()
        self._polling = False
        self._started = 0
        self._applied = 0
        self._polled_at: float | None = None
        self._moved_at = [0] * self._state.slots
        self._held: _Held | None = None
        self._reading_again: set[str] = set()
        self._in_background = False
        self._thread: Thread | None = None

    # In the background

    def start(self, *, own_thread: bool = True) -> None:
        """Refreshes in the background from now on, until `close`. The calling thread sends no request.

        `own_thread=False`: the caller has its own schedule and calls `tick` every `staleness_seconds`. `UsageError`
        if hits would become too old before the next poll.
        """
        if not 0 < self._staleness_seconds < self._serve_stale_seconds:
            raise UsageError(
                f"staleness_seconds={self._staleness_seconds:g}, serve_stale_seconds={self._serve_stale_seconds:g}: "
                "the background thread needs a staleness_seconds above 0 (the interval between polls) and a longer "
                "serve_stale_seconds (the age up to which hits are served)"
            )
        with self._turn:
            if self._in_background:
                return
            self._in_background = True
            self._stop = Event()
            if own_thread:
                self._thread = Thread(target=self._run, args=[self._stop], name="causal cache", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the background refresh. Waits for its requests in flight, for at most `CLOSE_SECONDS`.

        The cache can still be used: its readers poll. The call does not close the store.
        """
        with self._turn:
            self._stop.set()
            self._in_background, thread, self._thread = False, self._thread, None
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tick(self) -> None:
        """Polls, and reads stale hot entries again. The background thread does this every `staleness_seconds`.

        The call does nothing while another thread polls. `UnavailableError` if the poll failed: cached objects are
        served until they are too old. Requests are listed in the class's docstring.
        """
        self._is_fresh()  # also makes changes visible that another thread has held back for too long
        with self._turn:
            if self._polling:
                return
            self._polling = True
            self._started += 1
            number = self._started
        if (error := self._poll(number)) is not None:
            raise error

    def _run(self, stop: Event) -> None:
        failing = False
        while not stop.is_set():
            try:
                self.tick()
                failing = False
            except Exception as error:  # noqa: BLE001 - readers get the error when they must poll themselves
                if not failing:
                    log.warning("the cache is not refreshed: %s", error)
                failing = True
            stop.wait(self._staleness_seconds)

    # Reading and writing

    def get(self, key: str) -> StoredObject | None:
        """The object, at most `staleness_seconds` behind the signals; None if it does not exist.

        If the cache refreshes in the background, the object is at most `serve_stale_seconds` behind.
        """
        slot = slot_of(key, self._state.slots)
        if not self._is_fresh():
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
        """The result of `get`, if `get` takes no request; else None. Never waits for a request of another thread.

        If the result is None, call `get`: the object does not exist, or the cache has no object that is fresh enough.
        If the cache refreshes in the background, objects that are used often stay cached.
        """
        slot = slot_of(key, self._state.slots)
        if not self._is_fresh():
            return None
        with self._turn:
            entry = self._current(key, slot)
        return entry.found if entry is not None else None

    def evict(self, key: str) -> None:
        """Removes a key from the cache: a `get` that begins afterwards reads it from the store. Cost: no request."""
        with self._alone(key), self._turn:
            self._entries.drop(key)

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        """Writes one object and moves its signals. Requests, outcomes and errors are the same as for `Publisher.put`.

        After `Written`, readers of this cache get this version or a later version. Until the next poll, such reads take
        no request. After any other outcome, the next `get` reads the object. `UsageError` without a `publisher`.
        """
        if self._publisher is None:
            raise UsageError("this cache has no publisher: create it with CausalCache(…, publisher=…)")
        slot = slot_of(key, self._state.slots)
        with self._alone(key):
            with self._turn:
                self._entries.drop(key)
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
                    self._entries.keep(key, StoredObject(meta=meta, body=body), slot, as_of)
            return outcome

    def _is_fresh(self) -> bool:
        """True if the last visible poll is recent enough to serve hits. Shows changes that were held back too long."""
        with self._turn:
            if self._held is not None and not self._is_recent():
                self._show(self._held)
            return self._is_recent()

    def _is_recent(self) -> bool:
        limit = self._serve_stale_seconds if self._in_background else self._staleness_seconds
        return self._polled_at is not None and self._clock.monotonic() - self._polled_at < limit

    def _current(self, key: str, slot: Slot) -> Entry | None:
        """The entry, if no poll has found a later change of its slot. The caller must have the lock `_turn`."""
        entry = self._entries.get(key)
        if entry is None or self._moved_at[slot] > entry.as_of:
            return None
        self._entries.use(key)
        return entry

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """One GET or PUT of a key at a time: if two requests overlapped, the older response could be cached last."""
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
        found, is_new = self._read(key, known)
        if is_new:
            self.refresh()
        with self._turn:
            self._entries.keep(key, found, slot, as_of)
        return found

    def _read(self, key: str, known: StoredObject | None) -> tuple[StoredObject | None, bool]:
        """The object, and whether it is new: not the `known` version. A new object needs a poll. Cost: 1 GET."""
        answer = self._objects.get(key, if_none_match=known.meta.etag if known else None)
        if isinstance(answer, NotModified):
            return known, False
        if isinstance(answer, Conflict):
            raise CorruptError(f"to a GET of {key!r} without If-Match, the store answered {answer}")
        return answer, True

    def refresh(self) -> None:
        """Returns after a poll that began after this call. Cost: 1 or 2 requests, shared by all waiting callers.

        If the cache refreshes in the background, stale hot entries are read again first, as in `tick`.
        """
        began = self._clock.monotonic()
        with self._turn:
            ticket = self._started + 1
        attempt = 0
        while True:
            with self._turn:
                while self._polling and self._applied < ticket:
                    in_time = self._turn.wait(min(self._serve_stale_seconds, WAIT_SECONDS))
                    if not in_time and self._held is not None:
                        self._show(self._held)
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
        # Only the thread that set `_polling` runs this method, so `_state` has one writer. If another thread shows the
        # held-back changes, that thread may poll next. From then on, this thread does not change `_state`.
        held: _Held | None = None
        began = self._clock.monotonic()
        try:
            poll = self._watcher.observe(self._state)
            self._state = poll.taken(self._state)
            held = _Held(number=number, began=began, moved=dict.fromkeys(poll.changed, number))
        except UnavailableError as error:
            return error
        finally:
            with self._turn:
                self._held, self._polling = held, held is not None
                self._turn.notify_all()
        again: _Again = {}
        try:
            again = self._read_again(held)
        finally:
            self._show(held, again)
        return None

    def _show(self, held: _Held, again: _Again | None = None) -> None:
        """Shows the changes of `held` to readers, and stores the entries of `again`, unless this is done already."""
        with self._turn:
            if self._held is not held:
                return
            for key, (before, after) in (again or {}).items():
                if key not in self._loading:  # otherwise, another thread reads or writes the key
                    self._entries.swap(key, before, after)
            self._held, self._polling = None, False
            self._applied, self._polled_at = held.number, held.began
            for slot, number in held.moved.items():
                self._moved_at[slot] = number
            self._entries.shrink()
            self._turn.notify_all()

    def _read_again(self, held: _Held) -> _Again:
        """Reads stale hot entries again; returns the entries read in time. New versions need a second poll."""

        def again(item: tuple[str, Entry]) -> tuple[Entry, bool] | None:
            key, entry = item
            try:
                with self._turn:
                    if self._held is not held or not self._is_recent():
                        return None
                found, is_new = self._read(key, entry.found)
            except S3NotifyError:
                return None  # the next reader gets the error
            finally:
                with self._turn:
                    self._reading_again.discard(key)
            return Entry(found=found, slot=entry.slot, as_of=as_of, used=entry.used), is_new

        as_of = held.number
        wanted = self._hot(held)
        answers = in_parallel(again, wanted, self._parallelism)
        may_be_used = any(answer is not None and answer[1] for answer in answers) and self._poll_again(held)
        return {
            key: (entry, answer[0])
            for (key, entry), answer in zip(wanted, answers, strict=True)
            if answer is not None and (may_be_used or not answer[1])
        }

    def _hot(self, held: _Held) -> Sequence[tuple[str, Entry]]:
        with self._turn:
            if not self._in_background:
                return []
            busy = self._loading | self._reading_again
            stale = (
                (key, entry)
                for key, entry in self._entries.used_within(HOT_SECONDS)
                if max(self._moved_at[entry.slot], held.moved.get(entry.slot, 0)) > entry.as_of
                and key not in busy
            )
            found = list(islice(stale, self._revalidate_max))
            self._reading_again.update(key for key, _ in found)
            return found

    def _poll_again(self, held: _Held) -> bool:
        """Polls while the changes of `held` are held back; the changes of this poll are held back, too. Returns False
        if the changes are visible already, or if the poll failed.
        """
        with self._turn:
            if self._held is not held:
                return False
            self._started += 1
            number, began, state = self._started, self._clock.monotonic(), self._state
        try:
            poll = self._watcher.observe(state)
        except UnavailableError:
            return False
        with self._turn:
            if self._held is not held:
                return False
            self._state = poll.taken(state)
            held.number, held.began = number, began
            held.moved |= dict.fromkeys(poll.changed, number)
            return True
