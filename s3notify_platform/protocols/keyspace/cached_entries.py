"""The entries of a causal cache: objects by key, in order of use. Their number, bytes and idle time are bounded."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.ports import StoredObject
from s3notify_platform.kernel.slots import Slot


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """The result of a GET: an object, or the absence of an object."""

    found: StoredObject | None
    slot: Slot
    as_of: int
    """Number of polls that were answered before the GET was sent. The body reflects every change that these polls have
    shown."""
    used: float
    """Time of the last use, by the monotonic clock."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.found.body) if self.found is not None else 0


class CachedEntries:
    """Evicts the least recently used entries if a bound is exceeded. An iteration over the keys begins with the least
    recently used key. Not thread-safe.
    """

    def __init__(self, clock: Clock, *, max_entries: int, max_bytes: int, idle_seconds: float) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, key: str) -> Entry | None:
        """The entry, or None. This call does not count as a use."""
        return self._entries.get(key)

    def use(self, key: str) -> None:
        """Marks an existing entry as used now."""
        self._entries.move_to_end(key)
        self._entries[key].used = self._clock.monotonic()

    def used_within(self, seconds: float) -> Iterator[tuple[str, Entry]]:
        """Keys and entries that were used in the last `seconds`, the most recently used first."""
        since = self._clock.monotonic() - seconds
        for key, entry in reversed(self._entries.items()):
            if entry.used < since:
                break
            yield key, entry

    def keep(self, key: str, found: StoredObject | None, slot: Slot, as_of: int) -> None:
        """Stores an entry, which replaces an older entry of the key. The new entry counts as used now."""
        self.drop(key)
        entry = Entry(found=found, slot=slot, as_of=as_of, used=self._clock.monotonic())
        self._entries[key] = entry
        self.bytes += entry.size
        self.shrink()

    def swap(self, key: str, before: Entry, after: Entry) -> None:
        """Replaces `before` with `after` if `before` is still stored. The time of the last use stays the same."""
        if self._entries.get(key) is before:
            after.used = before.used
            self.bytes += after.size - before.size
            self._entries[key] = after

    def drop(self, key: str) -> None:
        """Removes the entry, if it exists."""
        if (entry := self._entries.pop(key, None)) is not None:
            self.bytes -= entry.size

    def shrink(self) -> None:
        """Removes idle entries, then the least recently used entries until no bound is exceeded."""
        since = self._clock.monotonic() - self._idle_seconds
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            within = len(self._entries) <= self._max_entries and self.bytes <= self._max_bytes
            if within and entry.used > since:
                break
            self.drop(key)
