"""A store that counts requests and bytes, and a clock."""

import io
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

from s3notify_platform.kernel.ports import (
    Conflict,
    ETag,
    Metadata,
    NotModified,
    ObjectStore,
    Precondition,
    StoredObject,
    WriteOutcome,
)
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore


@dataclass(kw_only=True)
class Spent:
    """The total cost of a number of rounds."""

    rounds: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    written: int = 0
    read: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    live: int = 0


class Tally(CountingStore):
    """A store that also counts bytes. By default, it wraps a store in memory. Thread-safe like the wrapped store."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        super().__init__(store or MemoryObjectStore())
        self.written = self.read = 0
        self._bytes = Lock()

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        found = super().get(key, if_match=if_match, if_none_match=if_none_match)
        if isinstance(found, StoredObject):
            self._add(read=len(found.body))
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        found = super().get_range(key, start, end)
        self._add(read=len(found or b""))
        return found

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        self._add(written=len(body))
        return super().put(key, body, precondition=precondition, metadata=metadata)

    def _add(self, *, read: int = 0, written: int = 0) -> None:
        with self._bytes:
            self.read += read
            self.written += written

    def body(self, key: str) -> bytes:
        """The body of an object. Cost: 1 GET."""
        found = self.get(key)
        assert isinstance(found, StoredObject)
        return found.body

    def ranges(self, key: str) -> pa.PythonFile:
        """The object as a file. Cost: 1 GET for each read of a part of the file."""
        found = self.store.get(key)
        assert isinstance(found, StoredObject)
        return pa.PythonFile(_Ranges(found.body, self), "r")


class _Ranges(io.BytesIO):
    def __init__(self, body: bytes, tally: Tally) -> None:
        super().__init__(body)
        self.tally = tally

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.tally.counts["GET"] += 1
        self.tally.read += len(found)
        return found


@contextmanager
def measured(spent: Spent, store: Tally) -> Iterator[None]:
    """Adds the cost of the block to `spent`."""
    requests, written, read = Counter(store.counts), store.written, store.read
    started, cpu = time.perf_counter(), time.process_time()
    yield
    spent.seconds += time.perf_counter() - started
    spent.cpu += time.process_time() - cpu
    spent.requests += store.counts - requests
    spent.written += store.written - written
    spent.read += store.read - read
