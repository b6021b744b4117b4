"""Counts requests, so that tests can assert "1 HEAD, at most 1 LIST", and commands can print the counts."""

from collections import Counter
from threading import Lock

from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.stores.delegating import DelegatingStore, Method


class CountingStore(DelegatingStore):
    """A wrapper that counts the calls of a store in `counts`: GET, HEAD, PUT, DELETE, COPY, LIST, UPLOAD. Thread-safe.

    A call counts once, whether or not it succeeds; retries inside the wrapped store are not counted.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.counts: Counter[str] = Counter()
        self._lock = Lock()

    def _target(self, method: Method) -> ObjectStore:
        with self._lock:
            self.counts[method] += 1
        return self.store
