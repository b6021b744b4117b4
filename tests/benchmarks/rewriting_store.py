"""A store in memory that counts requests and bytes, and a clock."""

import io
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from s3notify_platform.kernel.ports import (
    Conflict,
    ETag,
    Metadata,
    NotModified,
    Precondition,
    StoredObject,
    WriteOutcome,
)
from s3notify_platform.stores.delegating import DelegatingStore, Method
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


class Tally(DelegatingStore):
    """A store that counts."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.requests: Counter[str] = Counter()
        self.written = self.read = 0

    def _target(self, method: Method) -> object:  # type: ignore[override]
        self.requests[method] += 1
        return self.store

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        found = super().get(key, if_match=if_match, if_none_match=if_none_match)
        self.read += len(found.body) if isinstance(found, StoredObject) else 0
        return found

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        self.written += len(body)
        return super().put(key, body, precondition=precondition, metadata=metadata)

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
        self.tally.requests["GET"] += 1
        self.tally.read += len(found)
        return found


@contextmanager
def measured(spent: Spent, store: Tally) -> Iterator[None]:
    """Adds the cost of the block to `spent`."""
    requests, written, read = Counter(store.requests), store.written, store.read
    started, cpu = time.perf_counter(), time.process_time()
    yield
    spent.seconds += time.perf_counter() - started
    spent.cpu += time.process_time() - cpu
    spent.requests += store.requests - requests
    spent.written += store.written - written
    spent.read += store.read - read
