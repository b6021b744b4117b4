"""Watcher: finds the slots that changed since the last poll."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag, ObjectStore
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot, check_slot_count
from s3notify_platform.protocols.keyspace.signals import (
    ALONE_BYTES,
    QUEUED_BYTES,
    WatcherState,
    entries_etag,
    root_key,
    slot_of_signal,
)

log = logging.getLogger(__name__)

RELIST_SECONDS = 300.0
"""A watcher LISTs at this interval even if the root did not move, to find slots that were signalled without the
root."""

HIDDEN_SECONDS = 10.0
"""A writer that moves the root alone may overwrite a root that no poll has seen yet. The writer of the overwritten root
may also have moved a slot's signal. Such a signal stays hidden for at most this many seconds, because the first poll
after this time LISTs the signals.
"""

LIST_PAGES_MAX = 100
"""The maximum number of pages of one LIST. More than 100,000 foreign objects mean a misplaced prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The result of one poll.

    `signals` is empty if the poll did not LIST the signals (`listed`). `entries` is empty if the poll did not read the
    queue (`followed`). `unqueued`: the changed slots whose last signal is from an unqueued writer. `root_ms`: time at
    which the root moved, by the store's clock (perhaps in whole seconds); for people. `pages`: the number of LIST
    requests for signals and entries.
    """

    changed: Mapping[Slot, ETag] = field(default_factory=dict)
    signals: Mapping[Slot, ETag] = field(default_factory=dict)
    entries: Mapping[Slot, ETag] = field(default_factory=dict)
    unqueued: frozenset[Slot] = frozenset()
    root_etag: ETag | None
    root_ms: int = 0
    listed: bool
    followed: bool = False
    foreign: int = 0
    pages: int = 0

    def settled(self, state: WatcherState) -> WatcherState:
        """If the state remembers all changes of this poll, returns the state with this poll's root. Otherwise the state
        is unchanged, so that the next poll looks again.
        """
        if not self.pages or state.changed(self.signals) or state.changed(self.entries):
            return state
        listed_root = self.root_etag if self.listed else state.listed_root
        return replace(state, root_etag=self.root_etag, listed_root=listed_root)

    def taken(self, state: WatcherState) -> WatcherState:
        """The state after this poll: it remembers all changes that the poll found, and the poll's root."""
        for found in (self.signals, self.entries):
            state = state.advance(state.changed(found), found)
        return self.settled(state)


class Watcher:
    """Finds the slots that changed since its last poll. One thread polls; many threads may call `observe`.

    An idle poll takes 1 HEAD. A poll with changes takes 1 HEAD and 1 LIST, and more LISTs only if foreign objects fill
    pages.

    `entries`: returns the marks of the entries in the queue, by slot. `entries` is needed if queued writers move the
    root alone. Without `entries`, such a keyspace is refused with `UsageError`. With `entries`, a poll with changes
    takes 1 HEAD and the requests of `entries`. The poll takes 1 LIST more if an unqueued writer has moved the root. But
    a later root may have replaced the root of an unqueued writer before the poll. So if the root has moved since the
    last LIST, a poll LISTs again after `HIDDEN_SECONDS`.
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
        entries: Callable[[], Mapping[Slot, Sequence[str]]] | None = None,
    ) -> None:
        self._keyspace = keyspace
        self._prefix = prefix
        self._slots = check_slot_count(slots)
        self._clock = clock
        self._relist_seconds = relist_seconds
        self._entries = entries
        self._listed_at: float | None = None
        self._warned_of = 0
        self.alone = False
        """True if the root that was seen last had moved without the signal of a slot."""
        self.state = state if state is not None else self.fresh_state()

    def fresh_state(self) -> WatcherState:
        """The state before the first poll."""
        return WatcherState(slots=self._slots)

    def poll(self, *, relist: bool | None = None) -> Poll:
        """The changes since the last poll, each change once. An error leaves `state` unchanged."""
        poll = self.observe(self.state, relist=relist)
        self.state = poll.taken(self.state)
        return poll

    def observe(
        self, state: WatcherState, *, relist: bool | None = None, listed_ago: float | None = None
    ) -> Poll:
        """The changes since `state`. The caller must advance the state.

        LISTs if the root differs from the state's root, or if `relist` is true. By default, LISTs also if this watcher
        has not listed for `relist_seconds`, or has never listed. `listed_ago`: seconds since the last LIST of the
        signals, if the caller knows this number.
        """
        if state.slots != self._slots:
            raise UsageError(
                f"a state of {state.slots} slots does not fit a keyspace of {self._slots} slots: "
                "start with a fresh state"
            )
        root = self._keyspace.head(root_key(self._prefix))
        root_etag = root.etag if root else None
        self.alone = root is not None and root.size == ALONE_BYTES
        if self.alone and self._entries is None:
            raise UsageError(
                f"writers of the keyspace {self._prefix!r} move only the root, because of their topic: a source needs "
                "`signals: root`, and other watchers need a topic with `signals: slots`. If a new topic with "
                "`signals: slots` has replaced this topic, run `s3notify signal KEY` once"
            )
        ago = self._listed_ago() if listed_ago is None else listed_ago
        relist = ago >= self._relist_seconds if relist is None else relist
        moved = root_etag != state.root_etag
        # Only a root that is older than the current root can be hidden. So the first change after a quiet time needs no
        # LIST of the signals.
        hidden = self._entries is not None and state.root_etag != state.listed_root and ago >= HIDDEN_SECONDS
        listing = relist or hidden or (moved and not self.alone)
        following = self._entries is not None and (moved or relist)
        if not listing and not following:
            return Poll(root_etag=root_etag, listed=False)
        entries: dict[Slot, ETag] = {}
        if following and self._entries is not None:
            marks = self._entries()
            entries = {slot: entries_etag(marks[slot]) for slot in marks if slot < self._slots}
        signals: dict[Slot, ETag] = {}
        plain: set[Slot] = set()
        foreign = pages = 0
        if listing:
            started = self._clock.monotonic()
            signals, plain, foreign, pages = self._list()
            self._listed_at = started
        changed = {slot: found[slot] for found in (entries, signals) for slot in state.changed(found)}
        return Poll(
            changed=changed,
            signals=signals,
            entries=entries,
            unqueued=frozenset(slot for slot in plain if changed.get(slot) == signals[slot]),
            root_etag=root_etag,
            root_ms=root.modified_ms if root else 0,
            listed=listing,
            followed=following,
            foreign=foreign,
            pages=pages + following,
        )

    def _listed_ago(self) -> float:
        return math.inf if self._listed_at is None else self._clock.monotonic() - self._listed_at

    def _list(self) -> tuple[dict[Slot, ETag], set[Slot], int, int]:
        signals: dict[Slot, ETag] = {}
        plain: set[Slot] = set()
        foreign = 0
        token: str | None = None
        for pages in range(1, LIST_PAGES_MAX + 1):
            page = self._keyspace.list(self._prefix, token=token)
            for meta in page.objects:
                slot = slot_of_signal(self._prefix, meta.key, self._slots)
                if slot is not None:
                    signals[slot] = meta.etag
                    if meta.size != QUEUED_BYTES:
                        plain.add(slot)
                elif meta.key != root_key(self._prefix):
                    foreign += 1
            # `:` follows `9`, so no slot sorts after `:`. All keys from `:` on are foreign objects, which need not be
            # listed.
            past_slots = bool(page.objects) and page.objects[-1].key >= f"{self._prefix}:"
            if page.next_token is None or past_slots or len(signals) == self._slots:
                self._warn(foreign, pages)
                return signals, plain, foreign, pages
            token = page.next_token
        raise UsageError(
            f"over {LIST_PAGES_MAX} pages of objects below {self._prefix!r}: give the keyspace a prefix of its own"
        )

    def _warn(self, foreign: int, pages: int) -> None:
        if pages > 1 and foreign != self._warned_of:
            log.warning(
                "keyspace %r has %d foreign objects: each poll with changes lists %d pages",
                self._prefix,
                foreign,
                pages,
            )
            self._warned_of = foreign
