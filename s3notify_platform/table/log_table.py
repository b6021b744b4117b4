"""One table, with all that reads it and commits to it.

A process keeps the newest snapshot that it has seen of a table, so a warm one asks only for what came since.

Requests: `newest` those of `LogReader.open`, or of `refresh` if the process has seen the table.
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
    """The newest snapshot that a process has seen of one table. Thread-safe.

    `together`: where commits of the process to this table come together, whichever run they are of.
    """

    together: GroupCommit = field(default_factory=GroupCommit)
    _kept: Snapshot | None = None
    _lock: Lock = field(default_factory=Lock)

    def kept(self) -> Snapshot | None:
        """That snapshot, if there is one."""
        with self._lock:
            return self._kept

    def keep(self, found: Snapshot | Absent) -> None:
        """Keep a snapshot that was just read, or committed; `Absent` forgets the one before."""
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
    """A table. Without `commits` it can only be read. `data`, `quarantine`: its packs, and those of its rejects.

    `url`: of its prefix. `mirror`: the name of what shows it elsewhere (`mirrors`).
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
        """Names of its objects."""
        return self.reader.layout

    def newest(self) -> Snapshot | Absent:
        """The newest snapshot. Errors as `LogReader.open`."""
        kept = self.memory.kept()
        found = self.reader.open() if kept is None else self.reader.refresh(kept)
        self.memory.keep(found)
        return found

    def commit(self, change: Change, base: Snapshot) -> CommitResult:
        """Commit a change that was planned on `base`. Errors as `Committer.commit`."""
        return self.noted(self.committer.commit(change, base))

    def noted(self, done: CommitResult) -> CommitResult:
        """`done`, after this process has kept its snapshot and the mirror has shown it."""
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
    """A table of this layout. No request.

    `leases`: whether `commits` goes by leases, which other engines do not ask for. `vectors`: rows that leave are
    hidden by deletion vectors. `restore`: the command that accepts a loss. `mirror` names what shows the table, whose
    place is `url`, elsewhere (`mirrors`).
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
