"""`s3notify table compact`: merges the small files of a whole table into files of the target sizes, while batches run.

Batches keep the number of small files within a bound (`rewrite_choice`). A compaction merges all small files. First the
compaction merges packs of rows and packs of rejects, including packs in which a deletion vector hides many rows. Then
the compaction merges the files of object states until all files are in one level.

Each step commits a version of its own and reads about `STEP_BYTES`. Readers see no change: the packs of the version are
marked `dataChange: false`, and the version adds no rows. Packs are merged in the order of their labels. Each merge
sorts its rows, so each pack that it writes has a range of slots. A clustered table has another rule: small files are
merged, and files are sorted again if the ranges of too many files overlap (`overlap`).

| after a step was planned, another writer … | then the step … |
|---|---|
| changed slots, let the schema grow, merged other packs | is committed on top of that version |
| removed one of the step's packs, or hid some of its rows | is dropped: batches have priority |
| merged one of the step's state files, or other state files in their range | is dropped |
| is another engine whose version is refused | fails with an error, as every writer does |

A dropped step is planned again on the newest version, up to `LOST` times in sequence. A compaction merges only its own
results and files that existed at its beginning, so it ends.

Requests: for each step 1 GET for each merged file, the requests of `LogReader.refresh`, and the requests of a
commit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.errors import ConflictError
from s3notify_platform.maintenance.task import Report, of_each_table
from s3notify_platform.table.clustered.cluster_order import Clustered, clustered_as
from s3notify_platform.table.clustered.clustered_round import merged
from s3notify_platform.table.clustered.overlap import overlapping, separate
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import UNKNOWN_ROWS, Add
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.pack_set import PackChanges, PackSet, live_after
from s3notify_platform.table.proposal import Change, Proposal
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.states.state_levels import Merge
from s3notify_platform.table.states.state_merge import merge, plan_full_merge

STEP_BYTES: Final = 256 << 20
"""Maximum number of bytes that one compaction step merges: all files of a step are in memory together. A merge of only
two files may exceed the maximum, and a merge of a clustered table may exceed it by one file.
"""

LOST: Final = 5
"""A compaction gives up after this number of consecutive steps that were dropped."""

SORT_PASSES: Final = 32
"""Maximum number of times that one compaction plans the steps of a clustered table. With this limit, the compaction
ends even if the bounds in other engines' statistics are wrong. A pass about halves the number of files that have a
range in common.
"""

OPERATION: Final = "OPTIMIZE"


@dataclass(slots=True, kw_only=True)
class CompactReport:
    """The work that was done, or, after a dry run, the work that a run would do. `lost`: steps that were dropped,
    because a batch committed first.

    `packs`, `rejects`, `state_files`: the numbers of merged files. If a later step merges a result again, this result
    is counted again. `bytes`: the size of the merged files. `became`: the number of files that the steps wrote or
    moved, or 0 for a dry run.
    """

    versions: int = 0
    packs: int = 0
    rejects: int = 0
    state_files: int = 0
    became: int = 0
    bytes: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStep:
    """A step that merges packs, and replaces them by the results. `rejects`: True if the packs contain rejects."""

    changes: PackChanges
    rejects: bool

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the table in the module docstring."""
        held = base.manifest.rejects if self.rejects else base.packs.values()
        if not {each.id for each in self.changes.removes} <= {pack.id for pack in held}:
            return None
        if self.rejects:
            return Proposal(
                rejects=live_after(held, self.changes), files=self.changes.files, operation=OPERATION
            )
        return Proposal(
            adds=tuple(self.changes.adds),
            removes=tuple(self.changes.removes),
            files=self.changes.files,
            operation=OPERATION,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """A step that merges state files."""

    table: LogTable
    clock: Clock
    merge: Merge

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the table in the module docstring."""
        done = base.manifest.states.after({}, name=lambda: unique_name(self.clock), merge=self.merge)
        if done.merge is None:
            return None
        files = {self.table.layout.state(name): body for name, body in done.bodies.items()}
        return Proposal(states=done.states, files=files, operation=OPERATION)


def compact(table: LogTable, *, dry_run: bool = False, step_bytes: int = STEP_BYTES) -> CompactReport:
    """Merges all small files. A compaction is safe beside batches, and safe to repeat; a killed compaction leaves only
    garbage files.

    `dry_run`: only reads the newest snapshot. The counts of a dry run are a lower bound. Errors: as for
    `LogTable.newest` and `Committer.commit`.
    """
    report = CompactReport()
    found = table.newest()
    if isinstance(found, Absent):
        return report
    clustered = clustered_as(found.metadata)
    kind = _Run if clustered is None else partial(_ClusteredRun, clustered=clustered)
    run = kind(table=table, clock=table.committer.clock, step_bytes=step_bytes, report=report, snapshot=found)
    if dry_run:
        run.foresee()
    else:
        run.packs(rejects=False)
        run.packs(rejects=True)
        run.states()
    return report


@dataclass(slots=True, kw_only=True)
class _Run:
    table: LogTable
    clock: Clock
    step_bytes: int
    report: CompactReport
    snapshot: Snapshot
    _lost: int = field(default=0)

    def foresee(self) -> None:
        for packs, live, rejects in self._kinds():
            for step in _steps(live, packs.sizes, self.step_bytes):
                self._count(step, rejects=rejects)
        states = self.snapshot.manifest.states
        if plan_full_merge(states, only=states.names, budget=self.step_bytes):
            self.report.versions += 1
            self.report.state_files = len(states.files)
            self.report.bytes += states.bytes

    def packs(self, *, rejects: bool) -> None:
        (packs, live, _) = next(kind for kind in self._kinds() if kind[2] == rejects)
        wanted = {pack.path for pack in live}
        while step := next(_steps(self._live(rejects, wanted), packs.sizes, self.step_bytes), None):
            # The table's own pack set is not used, because that pack set would cache the bodies.
            changes = packs.fresh().merged(step)
            if len(changes.adds) >= len(step) and not any(pack.vector for pack in step):
                wanted -= {pack.path for pack in step}  # this merge would not reduce the number of packs
                continue
            if self._commit(PackStep(changes=changes, rejects=rejects)):
                self._count(step, rejects=rejects)
                self.report.became += len(changes.adds)
                wanted |= {add.path for add in changes.adds}
            elif self._gives_up():
                return

    def states(self) -> None:
        only = self.snapshot.manifest.states.names
        while plan := plan_full_merge(self.snapshot.manifest.states, only=only, budget=self.step_bytes):
            done = merge(self.table.states, plan, name=lambda: unique_name(self.clock))
            if self._commit(StateStep(table=self.table, clock=self.clock, merge=done)):
                self.report.versions += 1
                self.report.state_files += len(done.removed)
                self.report.became += len(done.added)
                self.report.bytes += plan.bytes
                only |= {file.name for file in done.added}
            elif self._gives_up():
                return

    def _kinds(self) -> Iterator[tuple[PackSet, Iterable[Add], bool]]:
        yield self.table.data, self.snapshot.packs.values(), False
        yield self.table.quarantine, self.snapshot.manifest.rejects, True

    def _live(self, rejects: bool, wanted: set[str]) -> list[Add]:
        live = self.snapshot.manifest.rejects if rejects else self.snapshot.packs.values()
        return [pack for pack in live if pack.path in wanted]

    def _count(self, step: Sequence[Add], *, rejects: bool) -> None:
        self.report.versions += 1
        self.report.bytes += sum(pack.size for pack in step)
        if rejects:
            self.report.rejects += len(step)
        else:
            self.report.packs += len(step)

    def _commit(self, change: Change) -> bool:
        """Commits one step. Returns True if the step was committed. In any case, the newest snapshot is then read and
        kept.
        """
        try:
            done = self.table.committer.commit_alone(change, self.snapshot)
        except ConflictError:
            done = None
        if isinstance(done, Committed):
            self._lost = 0
            self.table.noted(done)
        else:
            self._lost += 1
            self.report.lost += 1
        # Without a refresh, the snapshot would become too old for the next commit.
        found = self.table.reader.refresh(self.snapshot if done is None else done.snapshot)
        if isinstance(found, Absent):
            raise ConflictError(
                f"the table below {self.table.layout.prefix!r} was removed while it was compacted"
            )
        self.table.memory.keep(found)
        self.snapshot = found
        return isinstance(done, Committed)

    def _gives_up(self) -> bool:
        return self._lost >= LOST


@dataclass(slots=True, kw_only=True)
class _ClusteredRun(_Run):
    """Merges small files of a clustered table, and files with overlapping ranges, into files with separate ranges.

    A result is merged again while its range overlaps too many other ranges, because a step cannot sort all files.
    """

    clustered: Clustered

    def foresee(self) -> None:
        for step in overlapping(self.snapshot.packs.values(), self.clustered, self.step_bytes):
            self._count(step, rejects=False)

    def packs(self, *, rejects: bool) -> None:
        wanted = set() if rejects else {pack.path for pack in self.snapshot.packs.values()}
        for _ in range(SORT_PASSES):
            steps = [*overlapping(self._live(rejects, wanted), self.clustered, self.step_bytes)]
            for step in steps:
                paths = {pack.path for pack in step}
                live = self._live(rejects, paths)
                if len(live) < len(step):
                    continue  # a batch has rewritten one of the packs
                changes = merged(self.table, self.clustered, live)
                if not self._useful(live, changes.adds):
                    wanted -= paths
                elif self._commit(PackStep(changes=changes, rejects=False)):
                    self._count(live, rejects=False)
                    self.report.became += len(changes.adds)
                    wanted |= {add.path for add in changes.adds}
                elif self._gives_up():
                    return
            if not steps:
                return

    def _useful(self, step: Sequence[Add], adds: Sequence[Add]) -> bool:
        """False if there are as many results as merged files, and the results still overlap by their bounds (which may
        be rounded). Each compaction would merge such results again.
        """
        fewer = len(adds) < len(step) or any(pack.vector for pack in step)
        return fewer or separate(adds, self.clustered)

    def states(self) -> None:
        """A clustered table has no object states."""


def _steps(live: Iterable[Add], sizes: PackSizes, step_bytes: int) -> Iterator[list[Add]]:
    """Yields packs to be merged together, oldest labels first. A single pack is rewritten if many of its rows are
    hidden.
    """
    small: list[Add] = []
    for pack in sorted(live, key=lambda pack: (pack.until, pack.since, pack.path)):
        if sizes.class_of(sizes.weight(_live_bytes(pack), pack.live_rows)) is None:
            if _hidden(pack) > sizes.hidden:
                yield [pack]
            continue
        small.append(pack)
        if len(small) > 1 and sum(each.size for each in small) >= step_bytes:
            yield small
            small = []
    if len(small) > 1 or any(_hidden(pack) > sizes.hidden for pack in small):
        yield small


def _live_bytes(pack: Add) -> int:
    return pack.size if pack.rows == UNKNOWN_ROWS else pack.size * pack.live_rows // max(pack.rows, 1)


def _hidden(pack: Add) -> float:
    """The share of the pack's rows that a vector hides."""
    return pack.vector.rows / max(pack.rows, 1) if pack.vector else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The task: merges all small files of these tables, given by name. See `compact` and `of_each_table`."""

    tables: Mapping[str, LogTable]
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        return self._report(dry_run=True)

    def run(self) -> Report:
        """See `Task`."""
        return self._report(dry_run=False)

    def _report(self, *, dry_run: bool) -> Report:
        def lines(name: str, done: CompactReport) -> list[str]:
            return [_line(name, done, dry_run=dry_run)]

        return of_each_table(self.tables, partial(compact, dry_run=dry_run), lines, done="compacted")


def _line(name: str, done: CompactReport, *, dry_run: bool) -> str:
    became = "" if dry_run else f" to {done.became}"
    lost = f"; {done.lost} steps were dropped because a batch committed first" if done.lost else ""
    return (
        f"{name}: {'would merge' if dry_run else 'merged'} {done.packs} packs, {done.rejects} packs of rejects and "
        f"{done.state_files} state files, {done.bytes} bytes{became}, in {done.versions} versions{lost}"
    )
