"""Reads bytes of state files, and keeps some pages and tails (`state_file`) in the process."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Protocol

import pyarrow as pa

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.limits import STATE_CACHE_BYTES
from s3notify_platform.kernel.ports import Ranged
from s3notify_platform.table.states.state_file import StateFile, Tail


class Ranges(Protocol):
    """Reads parts of files that never change. Thread-safe."""

    def read(self, name: str, start: int, end: int) -> bytes:
        """Returns the bytes of the state file `name` from `start` to `end` (exclusive).

        `NotFoundError`: the file does not exist. Cost: 1 GET.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRanges:
    """Reads state files from a store. `key`: makes the key of a file from its name (`TableLayout.state`)."""

    store: Ranged
    key: Callable[[str], str]

    def read(self, name: str, start: int, end: int) -> bytes:
        """See `Ranges.read`."""
        found = self.store.get_range(self.key(name), start, end)
        if found is None:
            raise NotFoundError(f"{self.key(name)}: there is no such object")
        return found


def bytes_of(ranges: Ranges, file: StateFile, start: int, end: int) -> bytes:
    """Reads these bytes of a file. `CorruptError`: some of the bytes are missing. Cost: 1 GET."""
    try:
        found = ranges.read(file.name, start, end)
    except NotFoundError as error:
        raise file.corrupt(f"it is missing ({error})") from error
    if len(found) != end - start:
        raise file.corrupt(f"got {len(found)} bytes instead of its bytes {start} to {end}")
    return found


_TAIL: Final = -1
"""The cache's key for a tail. The cache's keys for pages are the numbers of the pages."""


class StateCache:
    """A cache of the most recently used tails and pages of state files. The cache takes at most `limit` bytes of
    memory.

    Thread-safe. Files never change, and no two files have the same name. So an entry of the cache is never outdated,
    and one cache serves all tables.
    """

    def __init__(self, limit: int = STATE_CACHE_BYTES) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def tail(self, file: StateFile) -> Tail | None:
        """Returns the tail of a file if the tail is cached, or None."""
        found: Tail | None = self._get((file.name, _TAIL))
        return found

    def page(self, file: StateFile, number: int) -> pa.RecordBatch | None:
        """Returns a page of a file if the page is cached, or None."""
        return self._get((file.name, number))

    def keep_tail(self, tail: Tail) -> None:
        """Adds a tail to the cache."""
        self._put((tail.file.name, _TAIL), tail, tail.memory)

    def keep_page(self, file: StateFile, number: int, page: pa.RecordBatch) -> None:
        """Adds a page to the cache."""
        self._put((file.name, number), page, page.nbytes)

    def _get(self, key: tuple[str, int]) -> Any:
        with self._lock:
            if found := self._kept.get(key):
                self._kept.move_to_end(key)
                return found[0]
        return None

    def _put(self, key: tuple[str, int], kept: object, size: int) -> None:
        if size > self.limit:
            return
        with self._lock:
            if earlier := self._kept.pop(key, None):
                self.bytes -= earlier[1]
            self._kept[key] = kept, size
            self.bytes += size
            while self.bytes > self.limit:
                self.bytes -= self._kept.popitem(last=False)[1][1]


SHARED_CACHE = StateCache()
"""The cache that all tables in this process share."""
