"""Rolls the whole table of a source back to an earlier version, and prepares the next run.

The signals of the changed slots move, and the next listing compares these slots. An object that has changed after the
earlier version is read again, as it is in the bucket now. So if objects were ingested by mistake, first remove or
correct them in the bucket.

The slot assets are not rolled back: the next batches build their slots again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import ClassVar, Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.table_rollback import check_restorable, roll_back
from s3notify_platform.maintenance.task import COLUMNS_SHOWN, KEYS_SHOWN, Report
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.location import Location
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.commit import CommitResult, Committed
from s3notify_platform.table.feed import changes_of
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.pinned_schema import NO_SCHEMA, added_fields, schema_of
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.versions import snapshot_of, version_at

OBJECTS_MAX: Final = 100_000
"""The maximum number of changed objects that are counted; each object is counted once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The changes that a rollback would make. `rows` and `objects`: the counts now and after the rollback.

    `slots`: the slots that change. `columns`: paths of columns that leave the schema. `again`: the number of objects
    that have changed after the earlier version, at most `OBJECTS_MAX`. The next run reads these objects again if they
    are in the bucket. `keys`: the keys of some of these objects.
    """

    version: int
    newest: int
    slots: tuple[Slot, ...]
    rows: tuple[int, int]
    objects: tuple[int, int]
    columns: tuple[str, ...] = ()
    again: int = 0
    keys: tuple[str, ...] = ()
    facts: Mapping[Slot, tuple[int, int]] = field(default_factory=dict)
    """The number of rows in each of these slots, now and after the rollback."""


def version_of(location: Location, at: datetime, *, store: ObjectStore | None = None) -> int:
    """The version that was the newest at the time `at`, which must have a time zone.

    `NotFoundError`: all kept versions are newer than this time.
    """
    return version_at(location.table(store=store).reader, round(at.timestamp() * 1000))


def plan_rollback(location: Location, version: int, *, store: ObjectStore | None = None) -> RollbackPlan:
    """The changes that a rollback to this version would make. The call writes nothing, except a probe object if a
    vacuum has begun.

    `NotFoundError`: the version, or one of its files, is not kept. `ConflictError`: a vacuum may be removing the
    version's files.
    Cost: the requests of `snapshot_of`, of `check_restorable`, and of `changes_of` for each later version.
    """
    table = location.table(store=store)
    now = _readable(location, table)
    then = snapshot_of(table.reader, version)
    check_restorable(table.committer, then)
    changed = _changed(now, then)
    again = _changed_objects(table, version, now.version)
    return RollbackPlan(
        version=version,
        newest=now.version,
        slots=changed,
        rows=(now.rows, then.rows),
        objects=(_objects(now), _objects(then)),
        columns=_columns(now, then),
        again=len(again),
        keys=tuple(sorted(again)[:KEYS_SHOWN]),
        facts={slot: (now.manifest.slot(slot).rows, then.manifest.slot(slot).rows) for slot in changed},
    )


def rollback(
    source: Source, version: int, *, platform: ObjectStore | None = None, clock: Clock = SYSTEM_CLOCK
) -> CommitResult:
    """Rolls back to this version. The rollback is safe beside batches, and safe to repeat. A repetition signals the
    slots of the rollback again.

    The commit mode of `source` must be settled (`settle_commit_mode`). `platform`: a store to use instead of the
    source's own store. Errors: as for `table_rollback`. Cost: the requests of `table_rollback`; 1 read and 1 write of
    the rescan backlog; 1 PUT for each changed slot.
    """
    location = source.location
    store = platform if platform is not None else open_store(location.platform)
    table = source.table(store=store, clock=clock)
    backlog = RescanBacklog(location.records(store), clock=clock)
    then = snapshot_of(table.reader, version)
    # The slots are added before the commit, too. So no comparison is lost if the process is killed after the commit. If
    # the process is killed before the commit, some comparisons are needless.
    backlog.add(_changed(_readable(location, table), then))
    done = roll_back(table, version)
    # An earlier call may have committed the rollback and been killed before it moved the signals. Then `_changed`
    # returns the same slots.
    slots = _changed(done.snapshot, then)
    backlog.add(slots)
    location.slot_signals(store, clock=clock).signal_slots(slots)
    return done


def _readable(location: Location, table: LogTable) -> Snapshot:
    """The newest version. If the newest versions are refused, because another engine wrote them: the last version
    before the refused versions.
    """
    try:
        found = table.newest()
    except UsageError:
        if (readable := table.reader.longest(before_refused=True)) is None:
            raise
        return readable
    if isinstance(found, Absent):
        raise location.no_table()
    return found


def _changed(now: Snapshot, then: Snapshot) -> tuple[Slot, ...]:
    mine, theirs = now.manifest, then.manifest
    every = sorted(mine.slots.keys() | theirs.slots.keys())
    return tuple(slot for slot in every if mine.slot(slot).generation != theirs.slot(slot).generation)


def _objects(snapshot: Snapshot) -> int:
    return sum(facts.objects for facts in snapshot.manifest.slots.values())


def _columns(now: Snapshot, then: Snapshot) -> tuple[str, ...]:
    today, earlier = (schema_of(each.metadata) or NO_SCHEMA for each in (now, then))
    return tuple(sorted(added_fields(earlier.rows, today.rows)))


def _changed_objects(table: LogTable, since: int, until: int) -> set[str]:
    found: set[str] = set()
    for version in changes_of(table.reader, since, until):
        for change in version.changes:
            if change.reason != "erased":  # the key of an erased object is not kept
                found.add(change.key)
            if len(found) >= OBJECTS_MAX:
                return found
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackTo:
    """The task: rolls a source's table back to a version. Nothing is written until a check has shown that the rollback
    is possible.
    """

    source: Source
    version: int
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        return self._report(plan_rollback(self.source.location, self.version))

    def run(self) -> Report:
        """See `Task`."""
        planned = plan_rollback(self.source.location, self.version)
        source = self.source.settle_commit_mode(open_store(self.source.location.platform))
        done = rollback(source, self.version)
        if isinstance(done, Committed):
            newest = done.snapshot.version
            return self._report(
                planned, f"rolled back to version {self.version}, as version {newest}", newest
            )
        newest = done.snapshot.version if done is not None else None
        return self._report(planned, f"the table already has the state of version {self.version}", newest)

    @staticmethod
    def _report(planned: RollbackPlan, done: str = "", became: int | None = None) -> Report:
        lines = [
            (
                f"version {planned.version} instead of {planned.newest}: {len(planned.slots)} slots change; "
                f"{planned.rows[1]} rows, now {planned.rows[0]}; {planned.objects[1]} objects, now {planned.objects[0]}"
            )
        ]
        if planned.columns:
            names = ", ".join(map(repr, planned.columns[:COLUMNS_SHOWN]))
            lines.append(f"{len(planned.columns)} columns leave the schema: {names}")
        if planned.again:
            more = ", …" if planned.again > len(planned.keys) else ""
            lines.append(
                f"{planned.again} objects have changed since, and are read again if they are in the bucket: "
                f"{', '.join(map(repr, planned.keys))}{more}"
            )
        facts = {name: value for name, value in asdict(planned).items() if name != "facts"}
        return Report(lines=(*lines, done) if done else tuple(lines), document=facts | {"became": became})
