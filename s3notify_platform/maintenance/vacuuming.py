"""Removes versions outside the retention, and files that no kept version names.

Invariants
    - The retention is never shorter than the longest run. A file that is younger than the longest run is never removed,
      because the next commit of a run may name this file.
    - Before files are removed, the vacuum creates a version that changes nothing. The commit request of a writer that
      has staged one of these files may still be in flight. After the vacuum's version, this request gets a conflict.
    - The log is cut below a checkpoint that `_last_checkpoint` named before any present run began: the time since then
      is longer than the longest run. So no reader and no writer still uses earlier versions. `_last_checkpoint` does
      not show former checkpoints. So each pass writes a mark, a small object, for the present checkpoint. A later pass
      cuts below the newest mark that is old enough.
    - Every kept version can be read: the log begins with a checkpoint, and versions are removed one by one, oldest
      first.

| after the vacuum was planned, another writer … | then the vacuum's version … |
|---|---|
| changed slots, let the schema grow, merged or removed packs | is committed on top; files that are named now stay |
| is another engine whose version is accepted | is committed on top; files that are named now stay |
| is another engine whose version is refused | fails with an error, and no file is removed |

Ages are measured by the store's clock, from a probe object that is written at the start.

Requests: 1 LIST for each 1000 objects of the table. If files must be removed: the requests of a commit, 2 GETs for each
kept version, and 1 DELETE for each removed object.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.deletion import delete_for_certain
from s3notify_platform.kernel.errors import (
    ConflictError,
    CorruptError,
    UsageError,
)
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import Track, in_parallel, untracked
from s3notify_platform.kernel.ports import ObjectMeta, ObjectStore, list_all
from s3notify_platform.maintenance.task import Report, of_each_table
from s3notify_platform.table.commit import Committed, Committer
from s3notify_platform.table.delta.actions import Add, LogVersion, Remove
from s3notify_platform.table.delta.log_state import NO_VERSION
from s3notify_platform.table.delta.vectors import file_of
from s3notify_platform.table.known import PUT_BACK
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """The objects that one pass has removed and kept, or, after a dry run, the objects that a pass would remove and
    keep.

    `names`: removed keys, in the order of removal.
    """

    versions_removed: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    versions_kept: int = 0
    files_kept: int = 0
    names: tuple[str, ...] = ()


FENCE: Final = "VACUUM START"
"""The operation of a version after which files may be removed."""


class Fence:
    """A change that creates a version and changes nothing else."""

    def onto(self, base: Snapshot) -> Proposal | None:  # noqa: ARG002 - as `Change`
        """See `Change`, and the table in the module docstring."""
        return Proposal(operation=FENCE)


@dataclass(slots=True, kw_only=True)
class _Log:
    """The objects of the log, by version. `erased`: empty objects, whose only purpose is that no writer uses their
    version numbers again.
    """

    versions: dict[int, ObjectMeta] = field(default_factory=dict)
    erased: dict[int, ObjectMeta] = field(default_factory=dict)
    checkpoints: dict[int, ObjectMeta] = field(default_factory=dict)


def vacuum(
    committer: Committer,
    snapshot: Snapshot,
    *,
    retention_seconds: float,
    clock: Clock,
    track: Track = untracked,
    dry_run: bool = False,
) -> VacuumReport:
    """Does one pass over the whole table. The pass is safe beside batches, and beside another vacuum.

    A dry run writes only the probe object. `UsageError`: the retention is shorter than the longest run.
    """
    reader = committer.reader
    if retention_seconds < committer.max_run_seconds:
        raise UsageError(
            f"retention {retention_seconds:.0f} s is shorter than a run may take "
            f"({committer.max_run_seconds:.0f} s): a paused run could find its files removed"
        )
    now_ms = store_now_ms(reader.store, reader.layout.own, clock)
    settled_ms = now_ms - committer.max_run_seconds * 1000
    files = files_of_table(reader)
    live = named_by(reader, snapshot)
    unnamed = [meta for meta in files if meta.modified_ms < settled_ms and meta.key not in live]
    log = _listed(reader)
    cut_below = _cut_below(reader, log, settled_ms=settled_ms, oldest_ms=now_ms - retention_seconds * 1000)
    kept = [version for version in log.versions if version >= cut_below]
    below = log.versions | log.erased
    doomed = [below[version] for version in sorted(below) if version < cut_below]
    cut = len(doomed)
    doomed += [log.checkpoints[version] for version in sorted(log.checkpoints) if version < cut_below]
    if unnamed:
        if not dry_run:
            done = committer.commit(Fence(), snapshot)
            if not isinstance(done, Committed):
                raise ConflictError("vacuum could not commit its own version: try again")
            snapshot, log = done.snapshot, _listed(reader)
            kept = [version for version in log.versions if version >= cut_below]
        named = _named_by_versions(reader, snapshot, kept, track)
        doomed += [meta for meta in unnamed if meta.key not in named]
    if not dry_run:
        _mark(reader, now_ms=now_ms, settled_ms=settled_ms)
        for meta in track(doomed, len(doomed), "removing objects"):
            # Objects are removed in order, and no object after a failure: the remaining versions must have no gap.
            delete_for_certain(reader.store, meta.key)
    removed = len(doomed) - cut
    return VacuumReport(
        versions_removed=cut,
        files_removed=removed,
        bytes_removed=sum(meta.size for meta in doomed),
        versions_kept=len(kept),
        files_kept=len(files) - removed,
        names=tuple(meta.key for meta in doomed),
    )


def store_now_ms(store: ObjectStore, prefix: str, clock: Clock) -> int:
    """The time by the store's clock. Cost: 1 PUT, 1 LIST, 1 DELETE."""
    key = f"{prefix}now/{unique_name(clock)}"
    store.put(key, b"now")
    page = store.list(key, limit=1)
    store.delete(key)
    return page.objects[0].modified_ms


def files_of_table(reader: LogReader) -> list[ObjectMeta]:
    """All objects that a version may name, except the log itself."""
    layout = reader.layout
    states = (layout.states, layout.rejects, layout.changes, layout.manifests)
    folders = (layout.data, layout.vectors, *states, layout.staged)
    return [meta for folder in folders for meta in list_all(reader.store, folder)]


def _listed(reader: LogReader) -> _Log:
    log = _Log()
    for meta in list_all(reader.store, reader.layout.log):
        if (version := reader.layout.version_of(meta.key)) is not None:
            (log.versions if meta.size else log.erased)[version] = meta
        elif (version := reader.layout.checkpoint_of(meta.key)) is not None:
            log.checkpoints[version] = meta
    return log


def _cut_below(reader: LogReader, log: _Log, *, settled_ms: float, oldest_ms: float) -> int:
    """The version below which the log is cut. This version has a checkpoint, and stays. 0: the log is not cut."""
    marks = list_all(reader.store, reader.layout.cuts)
    settled = [int(meta.key.rsplit("/", 1)[1]) for meta in marks if meta.modified_ms < settled_ms]
    young = [version for version, meta in log.versions.items() if meta.modified_ms >= oldest_ms]
    # The version that was the newest version when the retention began must stay readable.
    wanted = min(max(settled, default=0), min(young, default=max(log.versions, default=0)))
    return max((version for version in log.checkpoints if version <= wanted), default=0)


def _mark(reader: LogReader, *, now_ms: int, settled_ms: float) -> None:
    """Writes a mark for the present checkpoint. Marks below the newest mark that is old enough are removed."""
    layout, store = reader.layout, reader.store
    marks = {int(meta.key.rsplit("/", 1)[1]): meta for meta in list_all(store, layout.cuts)}
    settled = max((n for n, meta in marks.items() if meta.modified_ms < settled_ms), default=NO_VERSION)
    for version in marks:
        if version < settled:
            store.delete(layout.cut(version))
    last = reader.last_checkpoint()
    if last != NO_VERSION and last not in marks:
        # A mark is not written again, because the time of its first write counts.
        store.put(layout.cut(last), str(now_ms).encode())


def _named_by_versions(reader: LogReader, snapshot: Snapshot, kept: Iterable[int], track: Track) -> set[str]:
    """Keys of all files that a kept version names.

    A file of a kept version's snapshot is also a file of the newest snapshot, or is removed by a later version.
    """
    versions = sorted(kept)
    named = named_by(reader, snapshot)

    def of(version: int) -> tuple[LogVersion | None, set[str]]:
        body = reader.version(version)
        # No kept version has the files that the oldest kept version removes.
        return body, set() if body is None else _named_by_version(reader, body, removed=version > versions[0])

    number = 0
    for body, found in track(
        in_parallel(of, versions, REQUESTS_IN_FLIGHT), len(versions), "reading versions"
    ):
        named |= found
        if body is not None and not body.foreign:
            if number and body.parent != number:
                # Without this check, the files of the replaced version would be removed, because no version names them.
                raise CorruptError(
                    f"a version of the table below {reader.layout.prefix!r} was replaced: put it back before files are "
                    f"removed: `{PUT_BACK}`"
                )
            number = body.number
    return named


def _named_by_version(reader: LogReader, version: LogVersion, *, removed: bool) -> set[str]:
    files = files_of(reader, version.adds)
    if removed:
        files |= files_of(reader, version.removes)
    if version.foreign:
        return files
    manifest = reader.manifest(version.number)
    own = {reader.layout.manifest(version.number), reader.layout.staged_version(version.number)}
    return files | own | named_by_manifest(reader, manifest)


def named_by(reader: LogReader, snapshot: Snapshot) -> set[str]:
    """Keys of the files that a snapshot names: packs, their vectors, manifest, states, rejects, changes."""
    named = files_of(reader, snapshot.packs.values())
    return named | {reader.layout.manifest(snapshot.number)} | named_by_manifest(reader, snapshot.manifest)


def named_by_manifest(reader: LogReader, manifest: Manifest) -> set[str]:
    """Keys of the files of states, rejects and changes that a manifest names."""
    paths = {each.path for each in manifest.rejects}
    if manifest.changes_file is not None:
        paths.add(manifest.changes_file.path)
    states = {reader.layout.state(name) for name in manifest.states.names}
    return states | {reader.layout.file(path) for path in paths}


def files_of(reader: LogReader, packs: Collection[Add | Remove]) -> set[str]:
    """Keys of these packs, and of the files with their deletion vectors."""
    paths = {each.path for each in packs}
    vectors = (file_of(each.vector) for each in packs if each.vector)
    return {reader.layout.file(path) for path in paths.union(filter(None, vectors))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuum:
    """The task: one pass over each of these tables, given by name. See `vacuum` and `of_each_table`."""

    tables: Mapping[str, LogTable]
    retention_seconds: float
    track: Track = untracked
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`. The report has a line for each object that would be removed."""
        return self._report(dry_run=True)

    def run(self) -> Report:
        """See `Task`."""
        return self._report(dry_run=False)

    def _report(self, *, dry_run: bool) -> Report:
        def lines(name: str, done: VacuumReport) -> list[str]:
            return [*(done.names if dry_run else ()), _line(name, done, dry_run=dry_run)]

        return of_each_table(self.tables, partial(self._pass, dry_run=dry_run), lines, done="vacuumed")

    def _pass(self, table: LogTable, *, dry_run: bool) -> VacuumReport:
        found = table.newest()
        if isinstance(found, Absent):
            return VacuumReport()
        return vacuum(
            table.committer,
            found,
            retention_seconds=self.retention_seconds,
            clock=table.committer.clock,
            track=self.track,
            dry_run=dry_run,
        )


def _line(name: str, done: VacuumReport, *, dry_run: bool) -> str:
    removed, kept = ("would remove", "would keep") if dry_run else ("removed", "kept")
    return (
        f"{name}: {removed} {done.versions_removed} versions and {done.files_removed} other objects, "
        f"{done.bytes_removed} bytes; {kept} {done.versions_kept} versions and {done.files_kept} files"
    )
