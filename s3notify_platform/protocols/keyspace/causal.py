"""Causal cache: cached reads that never show an effect without its cause.

In the background (`CausalCache.start`)
    1. A poll finds which slots have moved. Its changes are held back: readers still get what they got before.
    2. Stale entries that were used lately are read again, by conditional GETs.
    3. If one of them is another version now, a second poll begins after the answers. It shows what was signalled before
       that version was written.
    4. Changes and new versions are shown at once. An entry that was not read again, or whose slot has moved in the
       second poll, is stale from now on.
    What is held back is shown without step 3 as soon as the poll before it is too old to serve hits by. So a slow GET
    delays nobody longer than that.
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
"""The background reads an entry again that was used within this time; others wait for their next reader."""

CLOSE_SECONDS: Final = 5.0
"""How long `close` waits for a request that does not come back; the thread ends with it."""

WAIT_SECONDS: Final = 60.0
"""How long a reader waits at most for what a poll holds back, if hits may be served longer."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    """A poll whose changes readers do not see yet: its number, when it began, and which poll each slot has moved in."""

    number: int
    began: float
    moved: dict[Slot, int]


_Again = Mapping[str, tuple[Entry, Entry]]
"""Entries as they were when they were read again, and as they are then, by key."""


class CausalCache:
    """Cached objects that never contradict each other: a reader never sees an effect without its cause.

    A version not seen before, or the absence of a key, is used only after a poll that began after the response to
    its GET. So everything signalled before that version was written is known, and stale entries of other keys are
    revalidated on their next read. A poll that fails is retried with backoff while its readers wait; after
    `patience_seconds` they get `UnavailableError`, never a body without such a poll.

    Costs: a hit 0 requests, and one poll each `staleness_seconds` for all readers together; a miss 1 GET and
    a poll, shared by all readers that wait for one; a stale entry 1 conditional GET. Thread-safe; the least
    recently used are evicted above `max_entries` or `max_bytes`, and those that nobody has used for `idle_seconds` with
    the next poll. The watcher must not be shared. What is written by `put` is used at once: its causes are what its
    writer has read here.

    In the background, where asked for:

        with CausalCache(store, Watcher(store, prefix=…)) as cache:     # or `start` and `close`
            cache.try_get(key)                                          # no request: cached, and at most 10 s old

    A thread polls each `staleness_seconds`, and reads again what has changed and was used within `HOT_SECONDS`, at most
    `revalidate_max` entries a poll, the most recently used first. Meanwhile, and while polls fail, hits are what they
    were, for `serve_stale_seconds` at most; then readers wait for a poll, as without the thread. Costs: a poll each
    `staleness_seconds`; for each that finds changes up to `revalidate_max` conditional GETs, and one more poll if one
    of them found another version.
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
        """`publisher`: for `put`; of the same objects and keyspace. `parallelism`: GETs of the background at once."""
        if publisher is not None and publisher.slots != watcher.fresh_state().slots:
            raise UsageError(f"the publisher has {publisher.slots} slots: give it as many as the watcher")
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
        # All below under `_turn`.
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
        """Refresh in the background from now on, until `close`. No request in this thread.

        `own_thread=False`: the caller has a schedule, and calls `tick` once in `staleness_seconds`. `UsageError` if
        hits could not be served until the next poll.
        """
        if not 0 < self._staleness_seconds < self._serve_stale_seconds:
            raise UsageError(
                f"staleness_seconds={self._staleness_seconds:g}, serve_stale_seconds={self._serve_stale_seconds:g}: "
                "the background polls once in the first, which is above 0, and hits are served up to the second, which "
                "is longer"
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
        """End the background, and wait for its requests under way, for `CLOSE_SECONDS` at most.

        The cache can be used as before; its readers poll. It does not own the store.
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
        """What the background does once in `staleness_seconds`: poll, and read hot entries again that are stale.

        `UnavailableError` if the poll failed: what is cached is served until it is too old. Nothing, if somebody polls
        right now. Requests: see the class.
        """
        self._is_fresh()  # ends what another thread holds back for too long
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
            except Exception as error:  # noqa: BLE001 - its readers get it, when they have to poll for themselves
                if not failing:
                    log.warning("the cache is not refreshed: %s", error)
                failing = True
            stop.wait(self._staleness_seconds)

    # Reading and writing

    def get(self, key: str) -> StoredObject | None:
        """The object, at most `staleness_seconds` older than what was signalled; None if there is none.

        In the background: at most `serve_stale_seconds`.
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
        """What `get` would return without a request; None also if that takes one. No request, and no waiting for one.

        So call `get` if it is None: the object is not cached, or signalled since, or the last poll too long ago. In the
        background, what is used often is there.
        """
        slot = slot_of(key, self._state.slots)
        if not self._is_fresh():
            return None
        with self._turn:
            entry = self._current(key, slot)
        return entry.found if entry is not None else None

    def evict(self, key: str) -> None:
        """Forget a key: a `get` that begins after this reads it from the store. No request."""
        with self._alone(key), self._turn:
            self._entries.drop(key)

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
        """Whether hits may be served by the last poll that readers see. Shows what was held back for too long."""
        with self._turn:
            if self._held is not None and not self._is_recent():
                self._show(self._held)
            return self._is_recent()

    def _is_recent(self) -> bool:
        limit = self._serve_stale_seconds if self._in_background else self._staleness_seconds
        return self._polled_at is not None and self._clock.monotonic() - self._polled_at < limit

    def _current(self, key: str, slot: Slot) -> Entry | None:
        """The entry, if no signal has moved since. Under `_turn`."""
        entry = self._entries.get(key)
        if entry is None or self._moved_at[slot] > entry.as_of:
            return None
        self._entries.use(key)
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
        found, is_new = self._read(key, known)
        if is_new:
            self.refresh()
        with self._turn:
            self._entries.keep(key, found, slot, as_of)
        return found

    def _read(self, key: str, known: StoredObject | None) -> tuple[StoredObject | None, bool]:
        """What is there; and whether it is a version, or an absence, that needs a poll before it is used. 1 GET."""
        answer = self._objects.get(key, if_none_match=known.meta.etag if known else None)
        if isinstance(answer, NotModified):
            return known, False
        if isinstance(answer, Conflict):
            raise CorruptError(f"GET {key!r} without If-Match answered {answer}")
        return answer, True

    def refresh(self) -> None:
        """Return after a poll that began after this call: 1 or 2 requests, shared by all who wait for one.

        In the background, hot entries that are stale are read again before it returns, as by `tick`.
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
        # Only the one thread that set `_polling` is here, so `_state` has one writer. If another thread shows what this
        # one holds back, this one leaves `_state` alone from then on.
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
        """Have readers see a poll that is held back, unless they do already, and what was read again."""
        with self._turn:
            if self._held is not held:
                return
            for key, (before, after) in (again or {}).items():
                if key not in self._loading:  # nor was it written, evicted or read since
                    self._entries.swap(key, before, after)
            self._held, self._polling = None, False
            self._applied, self._polled_at = held.number, held.began
            for slot, number in held.moved.items():
                self._moved_at[slot] = number
            self._entries.shrink()
            self._turn.notify_all()

    def _read_again(self, held: _Held) -> _Again:
        """Hot entries that are stale, or will be; those in time. A second poll joins the first for what is new."""

        def again(item: tuple[str, Entry]) -> tuple[Entry, bool] | None:
            key, entry = item
            try:
                with self._turn:
                    if self._held is not held or not self._is_recent():
                        return None
                found, is_new = self._read(key, entry.found)
            except S3NotifyError:
                return None  # its next reader gets the error
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
        """Poll while the changes of a poll are held back, and hold back what is found, too; False if it is too late."""
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
