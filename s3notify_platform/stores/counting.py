"""Counts requests, so that "1 HEAD, at most 1 LIST" is a test and a figure in the terminal."""

from collections import Counter
from collections.abc import Mapping
from threading import Lock

from s3notify_platform.ports import (
    Absent,
    Conflict,
    ETag,
    IfMatch,
    NotModified,
    ObjectMeta,
    ObjectStore,
    Page,
    Precondition,
    StoredObject,
    WriteOutcome,
)


class CountingStore:
    """Another store, with `counts` of the calls made: GET, HEAD, PUT, DELETE, COPY, LIST. Thread-safe.

    A call counts once, whether it succeeds or not; retries inside the wrapped store are not seen.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()
        self._lock = Lock()

    def _count(self, kind: str) -> ObjectStore:
        with self._lock:
            self.counts[kind] += 1
        return self.store

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        """One GET."""
        return self._count("GET").get(key, if_match=if_match, if_none_match=if_none_match)

    def head(self, key: str) -> ObjectMeta | None:
        """One HEAD."""
        return self._count("HEAD").head(key)

    def put(
        self,
        key: str,
        body: bytes,
        *,
        precondition: Precondition | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> WriteOutcome:
        """One PUT."""
        return self._count("PUT").put(key, body, precondition=precondition, metadata=metadata)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """One DELETE."""
        return self._count("DELETE").delete(key, precondition=precondition)

    def copy(
        self,
        source: str,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> WriteOutcome:
        """One COPY."""
        return self._count("COPY").copy(source, target, precondition=precondition, metadata=metadata)

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        """One LIST."""
        return self._count("LIST").list(prefix, start_after=start_after, token=token, limit=limit)
