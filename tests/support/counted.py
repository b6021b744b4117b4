"""Counts the calls of a record store."""

from collections import Counter
from threading import Lock


class CountedRecords:
    """A wrapper of a record store that counts calls by method, in `counts`. Thread-safe."""

    def __init__(self, records):
        self.records = records
        self.counts = Counter()
        self._lock = Lock()

    def __getattr__(self, method):
        function = getattr(self.records, method)

        def call(*args, **kwargs):
            with self._lock:
                self.counts[method] += 1
            return function(*args, **kwargs)

        return call

    def cost(self, work):
        """The number of calls that `work` makes, by method."""
        self.counts.clear()
        work()
        return dict(self.counts)
