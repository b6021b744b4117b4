"""The entries of a causal cache: objects by key, in order of use; bounded by number, bytes, and how long unused."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.ports import StoredObject
from s3notify_platform.kernel.slots import Slot


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """An object, or its absence, as a GET found it."""

    found: StoredObject | None
    slot: Slot
    as_of: int
    """Polls that had an answer before the GET was sent: the body reflects every change these have shown."""
    used: float
    """When it was given out last, by the clock."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.found.body) if self.found is not None else 0


class CachedEntries:
    """The least recently used leave above the bounds. Iterates over keys, these first. Not thread-safe."""

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
        """The entry, which is not used by this."""
        return self._entries.get(key)

    def use(self, key: str) -> None:
        """An entry that is there is used now."""
        self._entries.move_to_end(key)
        self._entries[key].used = self._clock.monotonic()

    def used_within(self, seconds: float) -> Iterator[tuple[str, Entry]]:
        """Keys and entries, the most recently used first."""
        since = self._clock.monotonic() - seconds
        for key, entry in reversed(self._entries.items()):
            if entry.used < since:
                break
            yield key, entry

    def keep(self, key: str, found: StoredObject | None, slot: Slot, as_of: int) -> None:
        """Put an entry in place of any other of its key. It is used now."""
        self.drop(key)
        entry = Entry(found=found, slot=slot, as_of=as_of, used=self._clock.monotonic())
        self._entries[key] = entry
        self.bytes += entry.size
        self.shrink()

    def swap(self, key: str, before: Entry, after: Entry) -> None:
        """Put `after` in place of `before`, if that is still there. It counts as used when `before` was."""
        if self._entries.get(key) is before:
            after.used = before.used
            self.bytes += after.size - before.size
            self._entries[key] = after

    def drop(self, key: str) -> None:
        """Remove the entry, if there is one."""
        if (entry := self._entries.pop(key, None)) is not None:
            self.bytes -= entry.size

    def shrink(self) -> None:
        """Remove what is idle, and then what is too much."""
        since = self._clock.monotonic() - self._idle_seconds
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            within = len(self._entries) <= self._max_entries and self.bytes <= self._max_bytes
            if within and entry.used > since:
                break
            self.drop(key)
