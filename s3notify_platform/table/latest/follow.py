"""Keeps a table of newest rows in step with its source's table, exactly once.

Steps
    1. The manifest of the newest rows says which version of the source's table they were made from (`follows`). All
       that changed since is the change feed from there (`row_changes`), as much of it at a time as fits into memory.
    2. The changes of keys follow from it (`latest_round`).
    3. One version of the table has the rows, the states of the keys, and the version of the source's table that it
       leads to. So a step that is repeated finds nothing left to do, and one that was killed is begun again.

The table is made anew as one version (`latest_build`): at first; where the feed is not kept, or a version went back;
where more changed at once than fits; where another definition, or another type of a column, is wanted.

Requests of a step with little to do: those of `LogTable.newest` for both tables and of `row_changes`, 1 GET for each
pack that has come or left, those of `StateReader.lookup`, and of a commit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import ConflictError, FencedError, NotFoundError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.changes import key_hash
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.delta.metadata import united
from s3notify_platform.table.feed import NoFeedError
from s3notify_platform.table.known import Identity
from s3notify_platform.table.latest.definition import MODIFIED, OWN, Latest, newest_of
from s3notify_platform.table.latest.latest_build import BuiltPart, NewTable
from s3notify_platform.table.latest.latest_jobs import LatestJobs
from s3notify_platform.table.latest.latest_round import FollowingRound, key_changes, staged
from s3notify_platform.table.latest.latest_schema import DEFINITION, latest_schema
from s3notify_platform.table.latest.ranks import object_key_of
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Followed
from s3notify_platform.table.open_table import TableName, open_table
from s3notify_platform.table.pinned_schema import NO_SCHEMA, described, schema_of
from s3notify_platform.table.proposal import Change
from s3notify_platform.table.round import RoundChange
from s3notify_platform.table.row_changes import RowChanges, row_changes, sizes_of
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.versions import snapshot_of

STEP_OBJECTS: Final = 100_000
STEP_BYTES: Final = 256 << 20
"""Changed objects, and bytes that came with them, of one step; if one version has more, the table is made anew."""

_NAMED: Final = pa.schema([OWN.field(name) for name in OWN.names[:3]])

CONFLICTS: Final = 6
"""Times that another writer may be first."""


class _TooMuchError(Exception):
    """More changed at once than fits into a step."""


@dataclass(slots=True, kw_only=True)
class FollowedTable:
    """How it ended: the version of the newest rows (-1: none), and that of the source's table that they are made from.

    `changed`: keys that got another row, or left. `made_again`: why it was made anew; "" if it was not.
    """

    version: int = -1
    source: int = -1
    rows: int = 0
    changed: int = 0
    made_again: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRows:
    """A table of newest rows, and the table that it follows. `name`, `identity`: as in `open_table`."""

    latest: Latest
    source: LogTable
    table: LogTable
    jobs: LatestJobs
    name: TableName
    identity: Identity | None = None
    vectors: bool = False
    clock: Clock = SYSTEM_CLOCK
    step_objects: int = STEP_OBJECTS
    step_bytes: int = STEP_BYTES

    def follow(self, *, batch: str = "", anew: bool = False) -> FollowedTable:
        """Lead the newest rows to the newest version of the source's table. Safe to repeat, also at once.

        `anew`: make it again, whatever it has. `UsageError`: columns of the definition are missing, or are of no use.
        `ConflictError`: others were first again and again. Errors of `open_table` and `Committer.commit` else.
        """
        done = FollowedTable()
        conflicts = 0
        while True:
            now = self.source.newest()
            if isinstance(now, Absent) or (
                schema_of(now.metadata) is None and isinstance(self.table.newest(), Absent)
            ):
                return done
            held = self._opened()
            done.version, done.rows = held.version, held.rows
            follows = held.manifest.follows
            done.source = follows.version if follows else -1
            if not anew and follows == Followed(table=now.table, version=now.version) and self._is_of(held):
                return done
            why = "asked for" if anew else self._why_anew(held, now)
            try:
                change, counts, why = self._change(held, now, why, batch)
                committed = self.table.commit(change, held)
            except (ConflictError, FencedError):
                committed = None
            if isinstance(committed, Committed):
                done.changed += counts
                done.made_again = done.made_again or why
                anew = False
                continue
            conflicts += 1
            if conflicts > CONFLICTS:
                raise ConflictError(
                    f"the newest rows of source {self.name.source!r}: other writers were first {conflicts} times: try "
                    "again"
                )

    def _opened(self) -> Snapshot:
        first = described(NO_SCHEMA, created_ms=self.clock.wall_ms())
        found = open_table(self.table, self.name, self.identity, create=first)
        assert found.snapshot is not None, "it was created"
        return found.snapshot

    def _is_of(self, held: Snapshot) -> bool:
        return held.metadata.configuration.get(DEFINITION) == self.latest.dumps()

    def _change(self, held: Snapshot, now: Snapshot, why: str, batch: str) -> tuple[Change, int, str]:
        """The next change, how many keys it changes, and why the table is made anew by it; "" if it is not."""
        if not why:
            try:
                return (*self._step(held, now, batch), "")
            except (NotFoundError, NoFeedError, _TooMuchError) as error:
                why = str(error)
        return (*self._anew(held, now, why, batch), why)

    # Anew

    def _why_anew(self, held: Snapshot, now: Snapshot) -> str:
        """Why the table is to be made anew; "" if it can go on from where it is."""
        follows = held.manifest.follows
        if follows is None:
            return "it was never made"
        if follows.table != now.table or follows.version > now.version:
            return f"it was made from table {follows.table}, in whose place there is {now.table}"
        if schema_of(now.metadata) is None:
            return "the source's table is as before its first batch"
        if not self._is_of(held):
            return "its definition is another one"
        metadata, _ = self._schema(now)
        if united(held.metadata.schema, metadata.schema) is None:
            return "a column has another type"
        return ""

    def _anew(self, held: Snapshot, now: Snapshot, why: str, batch: str) -> tuple[Change, int]:
        metadata, protocol = held.metadata, held.protocol
        parts: Sequence[BuiltPart] = ()
        if schema_of(now.metadata) is not None:
            self.latest.check(arrow_schema(now.metadata.schema))
            metadata, protocol = self._schema(now)
            parts = self.jobs.build(self.latest, now, held.version + 1)
        keys = sum(part.keys.total() for part in parts)
        change = NewTable(
            base=held,
            parts=parts,
            follows=Followed(table=now.table, version=now.version),
            metadata=replace(metadata, id=held.table),
            protocol=protocol,
            now_ms=self.clock.wall_ms(),
            note={
                "batch": batch,
                "source": now.version,
                "rows": sum(part.rows.total() for part in parts),
                "why": why,
            },
        )
        return change, keys

    def _schema(self, now: Snapshot) -> tuple[MetaData, Protocol]:
        return latest_schema(now.metadata, self.latest, created_ms=self.clock.wall_ms(), vectors=self.vectors)

    # A step

    def _step(self, held: Snapshot, now: Snapshot, batch: str) -> tuple[Change, int]:
        follows = held.manifest.follows
        assert follows is not None, "else it is made anew"
        until = self._until(follows.version, now.version)
        target = now if until == now.version else snapshot_of(self.source.reader, until)
        columns = arrow_schema(target.metadata.schema)
        self.latest.check(columns)
        feed = row_changes(self.source.reader, follows.version, until)
        came, left = self._came(feed, columns), self._left(feed, held, columns)
        found = key_changes(self.table, held, came, left, partial(self.jobs.search, self.latest, target))
        metadata, protocol = self._schema(target)
        metadata = replace(metadata, id=held.table)
        grew = united(held.metadata.schema, metadata.schema) != held.metadata.schema
        rows = staged(self.table, found.rows, held.version + 1)
        changed = sum(len(each.changes) for each in found.slots.values())
        change = FollowingRound(
            round=RoundChange(
                base=held,
                slots=found.slots,
                table=self.table,
                clock=self.clock,
                rows=rows,
                metadata=metadata if grew else None,
                protocol=protocol if grew else None,
            ),
            follows=Followed(table=now.table, version=until),
            note={"batch": batch, "source": until, "rows": found.rows.num_rows, "keys": changed},
        )
        return change, changed

    def _until(self, since: int, now: int) -> int:
        """The last version of the next step."""
        objects, size, last = 0, 0, since
        for version, more_objects, more_bytes in sizes_of(self.source.reader, since, now):
            objects, size = objects + more_objects, size + more_bytes
            if objects > self.step_objects or size > self.step_bytes:
                if last == since:
                    raise _TooMuchError(f"{objects} objects, {size} bytes changed at once")
                return last
            last = version
        return last

    def _came(self, feed: RowChanges, columns: pa.Schema) -> pa.Table:
        rows = (rows for share in feed.inserts() for rows in share.read(*self._place, columns))
        return newest_of(self.latest.keyed_table(columns, rows))

    def _left(self, feed: RowChanges, held: Snapshot, columns: pa.Schema) -> pa.Table:
        """Slot, key and rank of each row that left."""
        ranked = replace(self.latest, deleted=None)
        names = {*OWN.names, *ranked.key, *ranked.order_by, MODIFIED}
        needed = pa.schema([each for each in columns if each.name in names])
        shares = [share for share in feed.deletes() if share.task is not None]
        rows = (rows for share in shares for rows in share.read(*self._place, needed))
        found = ranked.keyed_table(needed, rows).select(OWN.names[:3])
        if feed.erased:
            found = pa.concat_tables([found, *self._erased(feed, held, columns)])
        return found

    @property
    def _place(self) -> tuple[ObjectStore, TableLayout]:
        """Where the source's table is."""
        return self.source.reader.store, self.source.layout

    def _erased(self, feed: RowChanges, held: Snapshot, columns: pa.Schema) -> Iterator[pa.Table]:
        """The keys whose newest row is of an erased object. Reads all states: what is erased is named by a hash."""
        kinds = self.latest.order_types(columns)
        every = [*map(Slot, range(self.latest.slots))]
        for _, states in self.table.states.columns(held.manifest.states, every):
            ranks = states.column("etag").to_pylist()
            gone = pa.array(
                [key_hash(object_key_of(rank, kinds)) in feed.erased for rank in ranks], pa.bool_()
            )
            found = states.select(["slot", "key", "etag"]).filter(gone)
            yield pa.Table.from_batches([found]).rename_columns(OWN.names[:3]).cast(_NAMED)
