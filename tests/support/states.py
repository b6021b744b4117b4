"""State files in memory, which record all reads."""

from collections import Counter
from itertools import count
from threading import Lock

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.states.state_cache import StateCache
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.states.state_merge import next_states
from s3notify_platform.table.states.state_reader import StateReader


class MemoryRanges:
    """`Ranges` over a dictionary of files. `bodies`: the contents of the files by name. `reads`: all reads (name,
    start, end). Thread-safe.
    """

    def __init__(self):
        self.bodies = {}
        self.reads = []
        self._lock = Lock()

    def read(self, name, start, end):
        with self._lock:
            self.reads.append((name, start, end))
        if name not in self.bodies:
            raise NotFoundError(name)
        assert 0 <= start < end <= len(self.bodies[name])
        return self.bodies[name][start:end]

    def cost(self, work):
        """The reads that `work` makes, by name of the file that is read."""
        self.reads.clear()
        work()
        return Counter(name for name, _, _ in self.reads)


class Site:
    """The newest states of a table, and all that is needed to write and read the next states."""

    def __init__(self, *, slots=1000, cache=None):
        self.ranges = MemoryRanges()
        self.reader = StateReader(ranges=self.ranges, cache=cache or StateCache())
        self.states = StateSet()
        self.slots = slots
        self._numbers = count()

    def name(self):
        return f"f{next(self._numbers)}"

    def cold(self, limit=1 << 30):
        """A reader with an empty cache."""
        return StateReader(ranges=self.ranges, cache=StateCache(limit))

    def slot(self, key):
        return slot_of(key, self.slots)

    def by_slot(self, keys):
        found = {}
        for key in keys:
            found.setdefault(self.slot(key), []).append(key)
        return found

    def changes(self, states):
        found = {}
        for state in states:
            found.setdefault(self.slot(state.key), {})[state.key] = state
        return found

    def write(self, states, *, merged=True):
        """Commits these states, and merges state files if a merge is due."""
        changes = self.changes(states)
        upcoming = (
            next_states(self.reader, self.states, changes, name=self.name)
            if merged
            else self.states.after(changes, name=self.name)
        )
        self.ranges.bodies |= upcoming.bodies
        self.states = upcoming.states
        return upcoming

    def lookup(self, keys, reader=None):
        return (reader or self.reader).lookup(self.states, self.by_slot(keys))


def state(key, etag="e", **fields):
    return ObjectState(key=key, etag=etag, size=fields.pop("size", 1), **fields)


def gone(key):
    return ObjectState(key=key, etag="", size=0, gone=True)


def keys(count, start=0):
    """Makes this number of keys, in order."""
    return [f"events/2026/{n % 12:02d}/part-{n:07d}.json" for n in range(start, start + count)]


def filled(batches, of=300, **options):
    """The states after this number of rounds, without merges."""
    site = Site(**options)
    for n in range(batches):
        site.write([state(key, rows=n) for key in keys(of, n * 100)], merged=False)
    return site
