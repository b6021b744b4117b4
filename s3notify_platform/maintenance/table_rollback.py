"""Goes back to an earlier version of the whole table, by a new version that has the same packs, states and schema.

A rollback is also the remedy after a forbidden change by another engine. The engine's versions stay in the log. The new
version follows the engine's versions, undoes these versions, and names them (`log_state.UNDOES`). Readers ignore the
state of the undone versions.

The new version becomes the generation of each changed slot, so that derived tables and data versions see the change. In
the table, these slots get the signals of the earlier version. So the next run finds that the signals have moved, and
reads everything that has changed after the earlier version.

| after the rollback was planned, another writer … | then the rollback … |
|---|---|
| changed any slot, removed packs, let the schema grow, merged packs | starts again, and drops that version's changes |
| began a vacuum | starts again, or fails if the vacuum may be removing files of the earlier version |
| rolled back, too | continues from there; if the table is already as wanted, nothing is left to do |
| began the table again, under another id | fails with an error |
| is another engine | undoes the engine's version, too |

After two restarts, the rollback holds the table: other writers wait (`Known.held`).

Cost: the requests of `LogReader.open` or `longest`, of `snapshot_of`, and of a commit. Each attempt costs 1 LIST for
each 1000 objects of the table. If a vacuum has cut the log, an attempt costs 5 more requests, and 1 GET for each
version that is younger than the longest run.
"""

from dataclasses import dataclass, replace
from typing import Final

from s3notify_platform.kernel.errors import ConflictError, CorruptError, NotFoundError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.vacuuming import FENCE, files_of_table, named_by, store_now_ms
from s3notify_platform.table.commit import CommitResult, Committer
from s3notify_platform.table.delta.actions import MetaData
from s3notify_platform.table.delta.log_state import UNDOES, OtherLogError, after
from s3notify_platform.table.delta.metadata import VECTORS, raised
from s3notify_platform.table.known import RESTARTS
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Manifest, SlotFacts
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot, state_of
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.versions import ROLLBACK, history, kept_versions, snapshot_of

HOLDER: Final = f"table {ROLLBACK}"

REFUSED_MEANWHILE: Final = 5
"""The maximum number of attempts. Each attempt reads the log again, because another engine may have committed
meanwhile.
"""


@dataclass(slots=True, kw_only=True)
class Rollback:
    """The change back to the snapshot `target`, planned on the snapshot `readable`.

    `refused`: True if the versions after `readable` are refused versions of another engine.
    """

    target: Snapshot
    readable: Snapshot
    refused: bool
    committer: Committer
    asked: int = 0
    checked: bool = True
    """True before the first attempt, because `roll_back` has just checked the files of `target`."""

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the table in the module docstring."""
        if base.table != self.readable.table:
            raise ConflictError(
                f"the table below {self.committer.reader.layout.prefix!r} has another id now: repeat the command"
            )
        self.asked += 1
        if self.asked > RESTARTS:
            self.committer.reader.known.hold(HOLDER)
        if not self.checked:
            check_restorable(self.committer, self.target)
        self.checked = False
        was, before, now = self.target, self.target.manifest, base.manifest
        live, wanted = ({pack.id: pack for pack in packs.values()} for packs in (base.packs, was.packs))
        undoes = [*range(self.readable.version + 1, base.version + 1)] if self._undoes(base) else []
        slots = {
            slot: before.slot(slot)
            for slot in now.slots.keys() | before.slots.keys()
            if now.slot(slot).generation != before.slot(slot).generation
        }
        # Metadata and protocol of refused versions are ignored.
        ours = self.readable if undoes else base
        metadata, protocol = _metadata(was.metadata, ours.metadata), raised(ours.protocol, was.protocol)
        same_files = live.keys() == wanted.keys() and _files(now) == _files(before)
        if same_files and all(_facts(now, slot) == _facts(before, slot) for slot in slots):
            # Another process has already rolled back to the same version.
            slots = {}
            if not undoes and (metadata, protocol) == (base.metadata, base.protocol):
                return None
        now_ms = self.committer.clock.wall_ms()
        return Proposal(
            adds=tuple(replace(pack, data_change=True) for id_, pack in wanted.items() if id_ not in live),
            removes=tuple(pack.removed(now_ms) for id_, pack in live.items() if id_ not in wanted),
            slots=slots,
            states=before.states,
            rejects=before.rejects,
            metadata=metadata,
            protocol=protocol,
            operation="RESTORE",
            note={ROLLBACK: was.version, "slots": sorted(slots), **({UNDOES: undoes} if undoes else {})},
        )

    def _undoes(self, base: Snapshot) -> bool:
        """True if no version has undone the refused versions yet."""
        return self.refused and base.number == self.readable.number


def _metadata(was: MetaData, now: MetaData) -> MetaData:
    """The earlier schema with the present id of the table. Deletion vectors stay allowed if they are allowed now."""
    vectors = {name: value for name, value in now.configuration.items() if name == VECTORS}
    return replace(was, id=now.id, configuration={**was.configuration, **vectors})


def _files(manifest: Manifest) -> tuple[StateSet, frozenset[str]]:
    return manifest.states, frozenset(pack.path for pack in manifest.rejects)


def _facts(manifest: Manifest, slot: Slot) -> SlotFacts:
    return replace(manifest.slot(slot), generation=0)


def roll_back(table: LogTable, version: int) -> CommitResult:
    """Rolls the table back to `version`, which must be kept with all its files.

    The rollback is safe beside batches, and safe to repeat. `NotFoundError` names the oldest version that can be
    restored. `ConflictError`: a vacuum may be removing the version's files, or other writers committed first: try again
    later. `CorruptError`: versions are missing.
    """
    reader, committer = table.reader, table.committer
    try:
        for attempt in range(REFUSED_MEANWHILE):
            try:
                readable, end = _ends(reader)
                if version > readable.version:
                    raise NotFoundError(
                        f"cannot go back to version {version} of the table below {reader.layout.prefix!r}: the newest "
                        f"readable version is {readable.version}"
                    )
                change = Rollback(
                    target=_target(committer, version),
                    readable=readable,
                    refused=end.version > readable.version,
                    committer=committer,
                    asked=attempt,
                )
                done = committer.commit_alone(change, end, holder=HOLDER)
                break
            except (UsageError, OtherLogError):
                # Another engine has committed meanwhile, or another process has rolled back.
                if attempt == REFUSED_MEANWHILE - 1:
                    raise
    finally:
        reader.known.release(HOLDER)
    return table.noted(done)


def _ends(reader: LogReader) -> tuple[Snapshot, Snapshot]:
    """The newest readable snapshot, and the log's end as other engines see it.

    Snapshot and end differ if versions of other engines are refused. In this case no reader of the platform uses the
    end.
    """
    try:
        found = reader.open()
    except UsageError:
        known, record = reader.known.read()
        readable = reader.longest(before_refused=True)
        if readable is None:  # the log has only versions of another program
            raise
        found = replace(readable, known=known, record=record)
        if why := reader.missing(known, found.version, found.table, found.lineage):
            raise CorruptError(
                f"the table below {reader.layout.prefix!r}: {why}: restore the log first"
            ) from None
    if isinstance(found, Absent):
        raise NotFoundError(f"there is no table below {reader.layout.prefix!r}")
    state, key = state_of(found), reader.layout.version
    while (version := reader.version(state.version + 1)) is not None:
        if not version.foreign:
            raise OtherLogError(f"{key(state.version + 1)}: this version was committed meanwhile: try again")
        state = after(state, version, where=key(state.version + 1), undone=True)
    if state.version == found.version:
        return found, found
    meta = reader.store.head(key(state.version))
    return found, replace(
        found,
        version=state.version,
        packs=state.packs,
        metadata=state.metadata or found.metadata,
        protocol=state.protocol or found.protocol,
        etag=meta.etag if meta else None,
    )


def _target(committer: Committer, version: int) -> Snapshot:
    reader = committer.reader
    try:
        found = snapshot_of(reader, version)
        check_restorable(committer, found)
    except (NotFoundError, OtherLogError) as error:
        oldest = _oldest(reader, version)
        ways = (
            f"the oldest version that can be restored is {oldest}"
            if oldest >= 0
            else "no later version is kept either"
        )
        raise NotFoundError(f"version {version} is not kept with all its files: {ways} ({error})") from error
    return found


def _oldest(reader: LogReader, version: int) -> int:
    """The oldest version after `version` whose files are all present; -1: no version."""
    there = {meta.key for meta in files_of_table(reader)}
    for kept in sorted(kept_versions(reader)):
        try:
            found = reader.as_of(kept) if kept > version else None
        except (UsageError, CorruptError):
            continue
        if found is not None and named_by(reader, found) <= there:
            return kept
    return -1


def check_restorable(committer: Committer, target: Snapshot) -> None:
    """Raises `NotFoundError` if a file of this snapshot is missing, and `ConflictError` if a vacuum may be about to
    remove one of the snapshot's files.

    A vacuum keeps the files of versions that it does not cut off. A vacuum cuts the log below a checkpoint that an
    earlier pass has marked. The mark must be older than the longest run. The check assumes that a pass of a vacuum is
    shorter than the longest run.
    """
    reader, run_ms = committer.reader, committer.max_run_seconds * 1000
    marks = {int(meta.key.rsplit("/", 1)[1]): meta for meta in list_all(reader.store, reader.layout.cuts)}
    if marks:
        settled_ms = store_now_ms(reader.store, reader.layout.own, committer.clock) - run_ms
        settled = max((n for n, meta in marks.items() if meta.modified_ms < settled_ms), default=0)
        for event in history(reader) if target.version < settled else ():
            if event.created_ms < settled_ms:
                break
            if event.body.operation == FENCE:
                raise ConflictError(
                    f"vacuum, which began with version {event.version}, may be removing files of version "
                    f"{target.version}: go back to version {settled} or a later one, or repeat the command after "
                    f"{committer.max_run_seconds:.0f} s"
                )
    gone = named_by(reader, target) - {meta.key for meta in files_of_table(reader)}
    if gone:
        raise NotFoundError(
            f"version {target.version}: {min(gone)} and {len(gone) - 1} more files are missing"
        )
