"""Gives columns of a table other types, and requests a new read of the values that cannot be converted.

Steps
    1. Commit a version with the new types (`table.retype`). The version also has the requests to read objects again.
    2. Move the signals of all slots that need a batch because of the change (`_waiting`). If no slot needs a batch, but
       derived tables exist, move one signal.
    3. Retry records that are in quarantine because of a value in one of these columns.

If the command is killed at any point, a repetition does the remaining steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.parallel import Track, untracked
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.erasure import slot_assets
from s3notify_platform.maintenance.task import Report
from s3notify_platform.source.declared_schema import arrow_columns
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.arrow_schema import spark_schema
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.quarantined import Choice, Retried, retry
from s3notify_platform.table.reread import changed_last_by
from s3notify_platform.table.retype import HOLDER, Doubts, Wanted, concerned, doubts_of, retyped
from s3notify_platform.table.schema_change import SchemaChange, contradictions
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.type_changes import ddl

UNREAD_LOOK_SECONDS: Final = 2.0
"""The pause between two counts of the objects that are still unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTypes:
    """The task: gives columns of a source's table, or of the slot asset `asset`, the types in `columns` (DDL).

    `of_transform`: changes only the table's columns, not how objects are read. `read_again`: lets the next batch read
    again every object that has one of the columns. `wait`: waits until these objects have been read.
    """

    location: Location
    commit: CommitMode
    columns: str
    asset: str | None = None
    of_transform: bool = False
    read_again: bool = False
    wait: bool = False
    track: Track = untracked
    asks: ClassVar[str] = "Change these columns?"

    def plan(self) -> Report:
        """See `Task`. Reads the columns of all rows, if it is not certain that each value can be converted."""
        self._check_asset()
        store = open_store(self.location.platform)
        table = self.location.table(self.asset, store=store)
        base = self._newest(table)
        change = self._wanted.of(base)
        doubts = doubts_of(table, base, self._wanted, track=self.track)
        packs = [pack.size for pack in base.packs.values()] if change.columns else []
        again = _Again.of(table, base, doubts, change)
        retried = self._retry(table, store, change, dry_run=True)
        assets = self._slot_assets_with(store)
        return self._report(change, again, retried, (len(packs), sum(packs)), assets)

    def run(self) -> Report:
        """See `Task`."""
        self._check_asset()
        location = self.location
        store = open_store(location.platform)
        location.open_table(store)  # raises the errors that a run would raise
        mode = location.settle_commit_mode(self.commit, store)
        table = location.table(self.asset, store=store, commit=mode)
        base = self._newest(table)
        change = self._wanted.of(base)
        done, made = retyped(table, base, self._wanted, track=self.track)
        location.slot_signals(store).signal_slots(self._waiting(table, store, done.snapshot))
        retried = self._retry(table, store, change)
        again = _Again.of(table, done.snapshot, made.doubts, change)
        if self.wait and (left := _unread(self._newest(table))):
            for _ in self.track(_reading(table, left, table.committer.clock), left, "reading again"):
                pass
        became = done.snapshot.version if isinstance(done, Committed) else None
        assets = self._slot_assets_with(store)
        return self._report(change, again, retried, (made.packs, 0), assets, became=became, done=True)

    def _waiting(self, table: LogTable, store: ObjectStore, snapshot: Snapshot) -> set[Slot]:
        """Returns the slots that need a batch because of this change, even if an earlier run committed the change. For
        a slot asset: slots that lack the newest rows of the source. For the source: slots with objects to read again,
        and, if there are slot assets, slots whose last change was such a change of types.
        """
        slots = snapshot.manifest.slots
        if self.asset is not None:
            newest = self._newest(self.location.table(store=store)).manifest.slots
            return {
                slot
                for slot, facts in newest.items()
                if snapshot.manifest.slot(slot).source < facts.generation
            }
        waiting = {slot for slot, facts in slots.items() if facts.pending or facts.backfill}
        if any(slot_assets(self.location, store)):
            with_rows = {slot: facts for slot, facts in slots.items() if facts.rows}
            waiting |= changed_last_by(table, with_rows, HOLDER)
            # A batch advances the derived tables, even if the batch reads no object.
            return waiting or {Slot(0)}
        return waiting

    def _check_asset(self) -> None:
        if self.location.follows_whole(self.asset):
            raise UsageError(
                f"{self.asset} gets its types from the table of source {self.location.name!r}: leave out --asset to "
                "change the types of that table; the next batch changes the asset's table, too"
            )

    @property
    def _wanted(self) -> Wanted:
        return Wanted(
            columns=spark_schema(self._given),
            of_transform=self.of_transform,
            read_again=self.read_again,
            derived=self.asset is not None,
        )

    @property
    def _given(self) -> Any:
        return arrow_columns("schema set", self.columns)

    def _newest(self, table: LogTable) -> Snapshot:
        if isinstance(found := table.newest(), Absent):
            raise self.location.no_table(self.asset)
        return found

    def _retry(
        self, table: LogTable, store: ObjectStore, change: SchemaChange, *, dry_run: bool = False
    ) -> Retried:
        """Requests a new read of records that are in quarantine because of one of these columns."""
        if self.asset is not None:
            return Retried()
        choice = Choice(columns=tuple(change.names.values()))
        signals = self.location.slot_signals(store)
        return retry(table, self.location.all_slots(), signals, choice, dry_run=dry_run)

    def _slot_assets_with(self, store: ObjectStore) -> list[str]:
        """The slot assets whose tables have one of these columns with another type. Cost: the requests of
        `slot_assets`, and of `LogTable.newest` for each slot asset.
        """
        found: list[str] = []
        for asset in () if self.asset is not None else slot_assets(self.location, store):
            newest = self.location.table(asset, store=store).newest()
            if isinstance(newest, Snapshot) and any(
                contradictions(newest.metadata.schema, self._wanted.columns)
            ):
                found.append(asset)
        return found

    def _report(
        self,
        change: SchemaChange,
        again: "_Again",
        retried: Retried,
        packs: tuple[int, int],
        assets: Sequence[str],
        *,
        became: int | None = None,
        done: bool = False,
    ) -> Report:
        lines = [f"{each}" for each in change.every]
        if packs[0]:
            size = f", {packs[1]} bytes," if packs[1] else ""
            lines.append(f"{packs[0]} packs of the table{size} {'were' if done else 'are'} written again")
        if texts := [each.name for each in change.columns if each.how == "text"]:
            lines.append(
                f"texts of {', '.join(texts)} are made from the values, like 7 where an object has 007; "
                "use --read-again to get the texts of the objects"
            )
        if self.asset is not None and again.slots:
            lines.append(f"{len(again.slots)} slots are built again by their next batch")
        elif again.slots:
            lines.append(
                f"the next batch reads {again.objects} objects of {again.bytes} bytes in {len(again.slots)} slots "
                f"again: the table's files do not have the values of {again.rows} rows"
            )
        if retried.objects:
            lines.append(
                f"the next batch reads {retried.objects} objects again: {retried.records} of their records are in "
                "quarantine for these columns"
            )
        lines += [
            f"slot asset {asset} has such a column, too: if it gets the column from the source, its batches fail until "
            f"you run `s3notify schema set {self.location.name} '{self.columns}' --asset {asset}`"
            for asset in assets
        ]
        if not change.every:
            lines.append("the columns already have these types")
        if became is not None:
            lines.append(f"version {became} has the new types")
        document = {
            "columns": {
                each.name: {"from": ddl(each.old), "to": ddl(each.new), "how": each.how}
                for each in change.every
            },
            "packs": packs[0],
            "slots": len(again.slots),
            "objects": again.objects,
            "bytes": again.bytes,
            "rows": again.rows,
            "retried": retried.objects,
            "records": retried.records,
            "slot_assets": [*assets],
            "became": became,
        }
        return Report(lines=tuple(lines), document=document, nothing=not change.every and not retried.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """The data to be read again: its slots, the number and size of its objects, and the number of affected rows."""

    slots: Sequence[Slot]
    objects: int
    bytes: int
    rows: int

    @classmethod
    def of(cls, table: LogTable, base: Snapshot, doubts: Doubts, change: SchemaChange) -> "_Again":
        """Finds the data that the next batch must read again because of a change. A derived table has no objects."""
        objects = size = 0
        for state in concerned(table, base, doubts.keys) if change.every else ():
            objects, size = objects + 1, size + state.size
        return cls(slots=sorted(doubts.keys), objects=objects, bytes=size, rows=doubts.rows)


def _unread(snapshot: Snapshot) -> int:
    """The number of objects that wait to be read again, or to be read to their end."""
    facts = snapshot.manifest.slots.values()
    return sum(max(each.pending, each.objects - each.failing if each.backfill else 0) for each in facts)


def _reading(table: LogTable, left: int, clock: Clock) -> Iterator[None]:
    """Yields once for each object that has been read, until no object is left."""
    while left:
        clock.sleep(UNREAD_LOOK_SECONDS)
        if isinstance(found := table.newest(), Absent):
            return
        now = min(left, _unread(found))
        yield from [None] * (left - now)
        left = now
