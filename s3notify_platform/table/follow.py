"""Keeps a table in step with another one that it is made from as a whole, exactly once.

Steps
    1. The manifest of the table says which version of its source it was made from (`follows`). All that changed since
       is the change feed from there (`row_changes`), as much of it at a time as fits into memory.
    2. Its kind (`Kind`) makes a change of that: the newest row of each key (`latest`), or the same rows in another
       order (`clustered`).
    3. One version of the table has the change, and the version of the source that it leads to. So a step that is
       repeated finds nothing left to do, and one that was killed is begun again.

The table is rebuilt as one version: at first; where the feed is not kept, or a version went back; where more changed
at once than fits; where another definition, or another type of a column, is wanted.

Requests of a step with little to do: those of `LogTable.newest` for both tables and of `row_changes`, 1 GET for each
pack that has come or left, those of the kind, and of a commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import pyarrow as pa

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import ConflictError, FencedError, NotFoundError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta import actions
from s3notify_platform.table.delta.actions import MetaData
from s3notify_platform.table.delta.metadata import united
from s3notify_platform.table.feed import NoFeedError
from s3notify_platform.table.known import Identity
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import EMPTY_SLOT, Followed, SlotFacts
from s3notify_platform.table.open_table import TableName, open_table
from s3notify_platform.table.packs.pack_set import StagedPack
from s3notify_platform.table.pinned_schema import DEFINITION, NO_SCHEMA, described, schema_of
from s3notify_platform.table.proposal import Change, Proposal
from s3notify_platform.table.row_changes import RowChanges, row_changes, sizes_of
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.versions import snapshot_of

STEP_OBJECTS: Final = 100_000
STEP_BYTES: Final = 256 << 20
"""Changed objects, and bytes that came with them, of one step; if one version has more, the table is rebuilt."""

CONFLICTS: Final = 6
"""Times that another writer may be first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change to be made on top of the snapshot `held` of `table`, which leads to `target` of `source`.

    `columns`: those of `target`. `metadata`, `protocol`: of the table from now on; None: as they are. `note`: for the
    history.
    """

    table: LogTable
    source: LogTable
    held: Snapshot
    target: Snapshot
    columns: pa.Schema
    metadata: MetaData | None
    protocol: actions.Protocol | None
    note: Mapping[str, Any]
    clock: Clock

    @property
    def label(self) -> int:
        """That of its rows."""
        return self.held.version + 1

    @property
    def follows(self) -> Followed:
        """Where it leads to."""
        return Followed(table=self.target.table, version=self.target.version)

    @property
    def place(self) -> tuple[ObjectStore, TableLayout]:
        """Where the rows of the source are."""
        return self.source.reader.store, self.source.layout


class Kind(Protocol):
    """A way to make one table of another. Changes leave `Step.follows` in the manifest, or nothing of them."""

    @property
    def definition(self) -> str:
        """A text that no other kind or definition has; it is kept with the table."""
        ...

    def check(self, columns: pa.Schema) -> None:
        """`UsageError` if these columns of the source are not those that it needs."""
        ...

    def schema(
        self, source: MetaData, *, created_ms: int, vectors: bool
    ) -> tuple[MetaData, actions.Protocol]:
        """The `metaData` and `protocol` for a source of this `metaData`, without an id and the definition. Pure."""
        ...

    def changed(self, step: Step, feed: RowChanges) -> tuple[Change, int]:
        """The change that the feed leads to, and how many rows or keys it changes. `NoFeedError`: rebuild it."""
        ...

    def rebuild(self, step: Step) -> tuple[Change, int]:
        """The change by which all of the table is made from `step.target`; None of it is left of before.

        `step.columns` is empty if the source has no schema yet.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """All of a table, rebuilt, on top of `base`. `slots`: the facts of those that have rows or keys.

    If another writer has led the table on since, nothing of it is left to do.
    """

    base: Snapshot
    packs: Sequence[StagedPack]
    slots: Mapping[Slot, SlotFacts]
    follows: Followed
    metadata: MetaData | None
    protocol: actions.Protocol | None
    now_ms: int
    states: StateSet = field(default_factory=StateSet)
    note: Mapping[str, Any] = field(default_factory=dict)

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`."""
        if base.table != self.base.table or base.manifest.follows != self.base.manifest.follows:
            return None
        facts = {**dict.fromkeys(base.manifest.slots, EMPTY_SLOT), **self.slots}
        return Proposal(
            adds=tuple(pack.add for pack in self.packs),
            removes=tuple(pack.removed(self.now_ms) for pack in base.packs.values()),
            slots=facts,
            states=self.states,
            follows=self.follows,
            metadata=self.metadata,
            protocol=self.protocol,
            note={**self.note, "slots": sorted(facts)},
        )


class _TooMuchError(Exception):
    """More changed at once than fits into a step."""


@dataclass(slots=True, kw_only=True)
class FollowResult:
    """How it ended: the version of the table (-1: none), and that of its source that it is made from; its rows.

    `changed`: rows or keys, as the kind counts them. `rebuilt`: why it was rebuilt; "" if it was not.
    """

    version: int = -1
    source: int = -1
    rows: int = 0
    changed: int = 0
    rebuilt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingTable:
    """A table, the one that it follows, and what it is made of that. `name`, `identity`: as in `open_table`."""

    source: LogTable
    table: LogTable
    kind: Kind
    name: TableName
    identity: Identity | None = None
    vectors: bool = False
    clock: Clock = SYSTEM_CLOCK
    step_objects: int = STEP_OBJECTS
    step_bytes: int = STEP_BYTES

    def follow(self, *, batch: str = "", rebuild: bool = False) -> FollowResult:
        """Lead the table to the newest version of its source. Safe to repeat, also at once.

        `rebuild`: from all rows, whatever it has. `UsageError`: the kind's columns are missing, or are of no use.
        `ConflictError`: others were first again and again. Errors of `open_table` and `Committer.commit` else.
        """
        done, conflicts = FollowResult(), 0
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
            if (
                not rebuild
                and follows == Followed(table=now.table, version=now.version)
                and self._is_of(held)
            ):
                return done
            why = "asked for" if rebuild else self._why_rebuilt(held, now)
            try:
                change, count, why = self._change(held, now, why, batch)
                committed = self.table.commit(change, held)
            except (ConflictError, FencedError):
                committed = None
            if isinstance(committed, Committed):
                done.changed += count
                done.rebuilt = done.rebuilt or why
                rebuild = False
                continue
            conflicts += 1
            if conflicts > CONFLICTS:
                raise ConflictError(
                    f"the table below {self.table.layout.prefix!r}: other writers were first {conflicts} times: try "
                    "again"
                )

    def _opened(self) -> Snapshot:
        first = described(NO_SCHEMA, created_ms=self.clock.wall_ms())
        found = open_table(self.table, self.name, self.identity, create=first)
        assert found.snapshot is not None, "it was created"
        return found.snapshot

    def _is_of(self, held: Snapshot) -> bool:
        return held.metadata.configuration.get(DEFINITION) == self.kind.definition

    def _why_rebuilt(self, held: Snapshot, now: Snapshot) -> str:
        """Why the table is to be rebuilt; "" if it can go on from where it is."""
        follows = held.manifest.follows
        if follows is None:
            return "it was never made"
        if follows.table != now.table or follows.version > now.version:
            return f"it was made from table {follows.table}, in whose place there is {now.table}"
        if schema_of(now.metadata) is None:
            return "the source's table is as before its first batch"
        if not self._is_of(held):
            return "its definition is another one"
        metadata, _ = self._schema(held, now)
        if united(held.metadata.schema, metadata.schema) is None:
            return "a column has another type"
        return ""

    def _change(self, held: Snapshot, now: Snapshot, why: str, batch: str) -> tuple[Change, int, str]:
        """The next change, how much it changes, and why the table is rebuilt by it; "" if it is not."""
        if not why:
            try:
                return (*self._step(held, now, batch), "")
            except (NotFoundError, NoFeedError, _TooMuchError) as error:
                why = str(error)
        step = Step(
            table=self.table,
            source=self.source,
            held=held,
            target=now,
            columns=pa.schema([]),
            metadata=held.metadata,
            protocol=held.protocol,
            note={"batch": batch, "source": now.version, "why": why},
            clock=self.clock,
        )
        if schema_of(now.metadata) is not None:
            columns = arrow_schema(now.metadata.schema)
            self.kind.check(columns)
            metadata, protocol = self._schema(held, now)
            step = replace(step, columns=columns, metadata=metadata, protocol=protocol)
        return (*self.kind.rebuild(step), why)

    def _step(self, held: Snapshot, now: Snapshot, batch: str) -> tuple[Change, int]:
        follows = held.manifest.follows
        assert follows is not None, "else it is rebuilt"
        until = self._until(follows.version, now.version)
        target = now if until == now.version else snapshot_of(self.source.reader, until)
        columns = arrow_schema(target.metadata.schema)
        self.kind.check(columns)
        metadata, protocol = self._schema(held, target)
        grew = united(held.metadata.schema, metadata.schema) != held.metadata.schema
        grew |= not metadata.configuration.items() <= held.metadata.configuration.items()
        step = Step(
            table=self.table,
            source=self.source,
            held=held,
            target=target,
            columns=columns,
            metadata=metadata if grew else None,
            protocol=protocol if grew else None,
            note={"batch": batch, "source": until},
            clock=self.clock,
        )
        return self.kind.changed(step, row_changes(self.source.reader, follows.version, until))

    def _schema(self, held: Snapshot, source: Snapshot) -> tuple[MetaData, actions.Protocol]:
        """Schema and protocol of the table, for these columns of its source."""
        found, protocol = self.kind.schema(
            source.metadata, created_ms=self.clock.wall_ms(), vectors=self.vectors
        )
        properties = {**found.configuration, DEFINITION: self.kind.definition}
        return replace(found, id=held.table, configuration=properties), protocol

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
