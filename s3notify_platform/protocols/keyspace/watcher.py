"""Watcher: which slots changed since the last look."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ETag, ObjectStore
from s3notify_platform.protocols.keyspace.signals import QUEUED_BYTES, WatcherState, root_key, slot_of_signal
from s3notify_platform.slots import SLOT_COUNT, Slot, check_slot_count

log = logging.getLogger(__name__)

RELIST_SECONDS = 300.0
"""A watcher LISTs this often even if the root did not move, to find a slot signalled without the root."""

PAGES_MAX = 100
"""Pages of one LIST. More than 100,000 foreign objects are a misplaced prefix, not a keyspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What one poll found. `signals` and `changed` are empty if it did not LIST.

    `unqueued`: of the changed slots, those whose last signal is of a writer that does not queue. `root_ms`: when the
    root moved, by the store's clock, which may count in seconds; for people.
    """

    changed: Mapping[Slot, ETag] = field(default_factory=dict)
    signals: Mapping[Slot, ETag] = field(default_factory=dict)
    unqueued: frozenset[Slot] = frozenset()
    root_etag: ETag | None
    root_ms: int = 0
    listed: bool
    foreign: int = 0
    pages: int = 0


class Watcher:
    """Finds which slots changed since its last poll. One thread polls; `observe` may be called by many.

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
        """The state before the first poll."""
        return WatcherState(slots=self._slots)

    def poll(self, *, relist: bool | None = None) -> Poll:
        """What changed since the last poll, each change once. An error leaves `state` as it was."""
        poll = self.observe(self.state, relist=relist)
        self.state = self.state.advance(poll.changed, poll.signals).at_root(poll.root_etag)
        return poll

    def observe(self, state: WatcherState, *, relist: bool | None = None) -> Poll:
        """What changed since `state`, which the caller has to advance.

        LISTs if the root differs from the state's, or if `relist`; by default also if this object has not listed
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
        signals, plain, foreign, pages = self._list()
        self._listed_at = started
        changed = {slot: signals[slot] for slot in state.changed(signals)}
        return Poll(
            changed=changed,
            signals=signals,
            unqueued=frozenset(plain & changed.keys()),
            root_etag=root_etag,
            root_ms=root.modified_ms if root else 0,
            listed=True,
            foreign=foreign,
            pages=pages,
        )

    def _relist_due(self) -> bool:
        return self._listed_at is None or self._clock.monotonic() - self._listed_at >= self._relist_seconds

    def _list(self) -> tuple[dict[Slot, ETag], set[Slot], int, int]:
        signals: dict[Slot, ETag] = {}
        plain: set[Slot] = set()
        foreign = 0
        token: str | None = None
        for pages in range(1, PAGES_MAX + 1):
            page = self._keyspace.list(self._prefix, token=token)
            for meta in page.objects:
                slot = slot_of_signal(self._prefix, meta.key, self._slots)
                if slot is not None:
                    signals[slot] = meta.etag
                    if meta.size != QUEUED_BYTES:
                        plain.add(slot)
                elif meta.key != root_key(self._prefix):
                    foreign += 1
            # `:` follows `9`: no slot sorts after it, so foreign objects there need not be listed.
            past_slots = bool(page.objects) and page.objects[-1].key >= f"{self._prefix}:"
            if page.next_token is None or past_slots or len(signals) == self._slots:
                self._warn(foreign, pages)
                return signals, plain, foreign, pages
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
