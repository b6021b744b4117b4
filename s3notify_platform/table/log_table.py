"""One table, with its reader and its committer.

A process keeps the newest snapshot that it has read of each table. So the next read of the process requests only later
versions.

`newest` makes the requests of `LogReader.open`, or of `LogReader.refresh` if the process has a snapshot of the table.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.group_commit import GroupCommit
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.protocols.conditional_commit import ConditionalCommit
from s3notify_platform.table.commit import MAX_RUN_SECONDS, CommitResult, Committed, Committer
from s3notify_platform.table.known import KnownRecord
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.mirrors import Mirrored, show
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.pack_set import PackSet
from s3notify_platform.table.packs.round_packs import SIZES
from s3notify_platform.table.proposal import Change
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot
from s3notify_platform.table.states.state_cache import SHARED_CACHE, StateCache, StoredRanges
from s3notify_platform.table.states.state_reader import StateReader


@dataclass(slots=True)
class SnapshotMemory:
    """The newest snapshot that a process has read of one table. Thread-safe.

    `together`: the group commit that all commits to this table in the process share.
    """

    together: GroupCommit = field(default_factory=GroupCommit)
    _kept: Snapshot | None = None
    _lock: Lock = field(default_factory=Lock)

    def kept(self) -> Snapshot | None:
        """Returns the kept snapshot, or None."""
        with self._lock:
            return self._kept

    def keep(self, found: Snapshot | Absent) -> None:
        """Keeps a snapshot that was just read or committed. If `found` is `Absent`, the kept snapshot is dropped."""
        with self._lock:
            if isinstance(found, Absent):
                self._kept = None
            elif self._kept is None or self._is_newer(found, self._kept):
                self._kept = found

    @staticmethod
    def _is_newer(found: Snapshot, kept: Snapshot) -> bool:
        return found.table != kept.table or (found.version, found.asked_at) > (kept.version, kept.asked_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """A table. `data`: handles the table's packs. `quarantine`: handles the packs of rejects.

    `committer`: commits changes. If the table may only be read, the committer refuses every commit. `url`: the URL of
    the table's prefix. `mirror`: the name of the mirror that shows the table in another catalog or format (`mirrors`).
    """

    reader: LogReader
    data: PackSet
    quarantine: PackSet
    states: StateReader
    committer: Committer
    memory: SnapshotMemory
    url: str = ""
    mirror: str | None = None

    @property
    def layout(self) -> TableLayout:
        """Names of the table's objects."""
        return self.reader.layout

    def newest(self) -> Snapshot | Absent:
        """Returns the newest snapshot. Raises the errors of `LogReader.open`."""
        kept = self.memory.kept()
        found = self.reader.open() if kept is None else self.reader.refresh(kept)
        self.memory.keep(found)
        return found

    def commit(self, change: Change, base: Snapshot) -> CommitResult:
        """Commits a change that was planned on `base`. Raises the errors of `Committer.commit`."""
        return self.noted(self.committer.commit(change, base))

    def noted(self, done: CommitResult) -> CommitResult:
        """Keeps the snapshot of `done` in this process, updates the mirror, and returns `done`."""
        if isinstance(done, Committed):
            self.memory.keep(done.snapshot)
            if self.mirror is not None:
                store, layout = self.reader.store, self.layout
                show(self.mirror, Mirrored(url=self.url, store=store, layout=layout, snapshot=done.snapshot))
        return done


def table_of(
    store: ObjectStore,
    layout: TableLayout,
    known: KnownRecord,
    commits: ConditionalCommit,
    *,
    leases: bool = False,
    vectors: bool = False,
    sizes: PackSizes = SIZES,
    memory: SnapshotMemory | None = None,
    cache: StateCache = SHARED_CACHE,
    clock: Clock = SYSTEM_CLOCK,
    max_run_seconds: float = MAX_RUN_SECONDS,
    at_once: int = REQUESTS_IN_FLIGHT,
    restore: str = "s3notify table forget",
    url: str = "",
    mirror: str | None = None,
) -> LogTable:
    """Returns a table of this layout. No request.

    `leases`: True if `commits` works by leases, which other engines ignore. `vectors`: True if deletion vectors hide
    withdrawn rows. `restore`: the command that accepts a loss of versions. Error messages name this command. `mirror`:
    the name of the mirror that shows the table in another catalog or format (`mirrors`). `url`: the URL of the table,
    for the mirror.
    """
    memory = memory or SnapshotMemory()
    reader = LogReader(store, layout, known, adopt=not leases, at_once=at_once, restore=restore, clock=clock)

    def packs(path: Callable[[str], str], *, hides: bool = False) -> PackSet:
        return PackSet(store=store, layout=layout, clock=clock, path=path, sizes=sizes, vectors=hides)

    return LogTable(
        reader=reader,
        data=packs(layout.pack_path, hides=vectors),
        quarantine=packs(layout.reject_path),
        states=StateReader(ranges=StoredRanges(store=store, key=layout.state), cache=cache),
        committer=Committer(
            reader=reader,
            commits=commits,
            leases=leases,
            clock=clock,
            max_run_seconds=max_run_seconds,
            at_once=at_once,
            together=memory.together,
        ),
        memory=memory,
        url=url,
        mirror=mirror,
    )
