"""Advances a derived table to the newest version of its source, which is another table. Each change takes effect
exactly once.

Steps
    1. The manifest of the derived table names the version of the source from which the table was made (`follows`). The
       change feed has all changes of the source after this version (`row_changes`). One step takes as many changes as
       fit into memory.
    2. The table's kind (`Kind`) turns the feed into a change of the table. A derived table has either the newest row of
       each key (`latest`), or the same rows as its source in another order (`clustered`).
    3. One version of the derived table records both the change and the reached version of the source. So a repeated
       step changes nothing. If a step was killed, the next step begins at the same version.

The derived table is rebuilt as one version in these cases:

    - The table is new.
    - A version that the feed needs is no longer kept, or a version of the source is a rollback.
    - One version of the source has more changes than a step may take.
    - The table's definition, or the type of a column, has changed.

Requests of a step with few changes:

    - the requests of `LogTable.newest` for both tables, and of `row_changes`
    - 1 GET for each pack that was added or removed
    - the requests of the derived table's kind, and the requests of a commit
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from s3notify_platform.table.row_changes import RowChanges, replaced_error, row_changes, sizes_of
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.versions import snapshot_of

STEP_OBJECTS: Final = 100_000
FOLLOW_STEP_BYTES: Final = 256 << 20
STEP_MEMORY_BYTES: Final = 2 << 30
"""The limits of one step: the number of changed objects, the number of bytes that these objects add, and the
approximate memory in bytes. The limit of memory applies to the added rows, and separately to the rows that left. If a
single version of the source exceeds a limit, the derived table is rebuilt.
"""

CONFLICTS: Final = 6
"""A call of `follow` fails if other writers are first more than this number of times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The data for one change of `table`, on top of its snapshot `held`.

    After the change, the table has the rows of `target`, a snapshot of `source`. `columns`: the columns of `target`.
    `metadata`, `protocol`: the new values for the table, or None if they stay unchanged. `note`: data for the history.
    `memory`: the limit of memory in bytes, separately for the added rows and for the rows that left.
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
    memory: int = STEP_MEMORY_BYTES

    def check(self, size: int) -> None:
        """Raises `TooMuchError` if rows with this number of bytes in memory are too much for a step."""
        if size > self.memory:
            raise TooMuchError(f"the changes of one version take more than {self.memory} bytes of memory")

    def within(
        self, batches: Iterable[pa.RecordBatch], *, copies: int = 1, per_row: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yields the batches. Raises `TooMuchError` as soon as the batches are too much for a step.

        `copies`: the number of copies of these rows that the step will have in memory. `per_row`: the number of bytes
        that each row takes besides its Arrow values.
        """
        size = 0
        for rows in batches:
            size += copies * rows.nbytes + per_row * rows.num_rows
            self.check(size)
            yield rows

    @property
    def label(self) -> int:
        """The label of the rows that the step writes."""
        return self.held.version + 1

    @property
    def follows(self) -> Followed:
        """The version of the source to which the step advances the table."""
        return Followed(table=self.target.table, version=self.target.version)

    @property
    def place(self) -> tuple[ObjectStore, TableLayout]:
        """The store and the layout of the table from which rows are read."""
        return self.source.reader.store, self.source.layout


class Kind(Protocol):
    """A kind of derived table, which is made from another table. The changes of a kind must set the manifest's
    `follows` to `Step.follows`.
    """

    @property
    def definition(self) -> str:
        """A text that identifies the kind and its definition. The table keeps this text as a property."""
        ...

    def check(self, columns: pa.Schema) -> None:
        """Raises `UsageError` if a column that the kind needs is missing in the source, or is unusable."""
        ...

    def schema(
        self, source: MetaData, *, created_ms: int, vectors: bool
    ) -> tuple[MetaData, actions.Protocol]:
        """Returns the `metaData` (without id and definition) and the `protocol` of the derived table. `source`: the
        `metaData` of the table's source.

        Pure.
        """
        ...

    def changed(self, step: Step, feed: RowChanges) -> tuple[Change, int]:
        """Returns the change for this feed, and the number of rows or keys that it changes.

        `NoFeedError`: the table must be rebuilt. `TooMuchError`: a step with fewer versions may succeed.
        """
        ...

    def rebuild(self, step: Step) -> tuple[Change, int]:
        """Returns the change that makes the whole table from `step.target`, and removes all earlier rows of the table.

        `step.columns` is empty if the source has no schema yet.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A change that rebuilds the table on top of `base`. `slots`: the counts of the slots that have rows or keys.

    If another writer has advanced the table after `base`, nothing is committed.
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


class TooMuchError(Exception):
    """The changes do not fit into one step."""


@dataclass(slots=True, kw_only=True)
class FollowResult:
    """The table after the call. `version`: the table's version, or -1 if there is no table. `source`: the version of
    the source from which the table is made.

    `changed`: the number of changed rows or keys, as the kind counts them. `rebuilt`: the reason why the table was
    rebuilt, or "" if it was not rebuilt.
    """

    version: int = -1
    source: int = -1
    rows: int = 0
    changed: int = 0
    rebuilt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingTable:
    """A derived table of the kind `kind`. `source`: the table from which the derived table is made. `name`, `identity`:
    as in `open_table`.
    """

    source: LogTable
    table: LogTable
    kind: Kind
    name: TableName
    identity: Identity | None = None
    vectors: bool = False
    clock: Clock = SYSTEM_CLOCK
    step_objects: int = STEP_OBJECTS
    step_bytes: int = FOLLOW_STEP_BYTES
    step_memory: int = STEP_MEMORY_BYTES

    def follow(self, *, batch: str = "", rebuild: bool = False) -> FollowResult:
        """Advances the table to the newest version of its source. Calls may be repeated, and may run concurrently.

        `rebuild`: True if the table must be made from all rows of the source. `UsageError`: columns that the kind needs
        are missing or unusable. `ConflictError`: other writers were first again and again. `open_table` and
        `Committer.commit` may raise other errors.
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
                    f"the table below {self.table.layout.prefix!r}: other writers were first {conflicts} times: "
                    "try again"
                )

    def _opened(self) -> Snapshot:
        first = described(NO_SCHEMA, created_ms=self.clock.wall_ms())
        found = open_table(self.table, self.name, self.identity, create=first, derived=True)
        assert found.snapshot is not None, "the table was just created"
        return found.snapshot

    def _is_of(self, held: Snapshot) -> bool:
        return held.metadata.configuration.get(DEFINITION) == self.kind.definition

    def _why_rebuilt(self, held: Snapshot, now: Snapshot) -> str:
        """Returns the reason why the table must be rebuilt, or "" if the change feed is enough."""
        follows = held.manifest.follows
        if follows is None:
            return "the table was never built"
        if follows.table != now.table or follows.version > now.version:
            return (
                f"it was made from version {follows.version} of table {follows.table}, and the source is at "
                f"version {now.version} of table {now.table}"
            )
        if schema_of(now.metadata) is None:
            return "the source's table has no schema yet"
        if not self._is_of(held):
            return "its definition has changed"
        metadata, _ = self._schema(held, now)
        if united(held.metadata.schema, metadata.schema) is None:
            return "a column has another type"
        return ""

    def _change(self, held: Snapshot, now: Snapshot, why: str, batch: str) -> tuple[Change, int, str]:
        """Returns the next change, the number of changed rows or keys, and the reason of a rebuild. The reason is "" if
        the change is not a rebuild.
        """
        if not why:
            try:
                return (*self._step(held, now, batch), "")
            except (NotFoundError, NoFeedError, TooMuchError) as error:
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
        assert follows is not None, "a table that follows nothing is rebuilt"
        until = self._until(follows.version, now.version)
        while True:
            try:
                return self._step_to(until, follows.version, held, now, batch)
            except TooMuchError:
                if until <= follows.version + 1:
                    raise
                until = (follows.version + until) // 2

    def _step_to(
        self, until: int, since: int, held: Snapshot, now: Snapshot, batch: str
    ) -> tuple[Change, int]:
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
            memory=self.step_memory,
        )
        feed = row_changes(self.source.reader, since, until)
        if feed.replaced.by_slot:
            raise replaced_error(feed)
        return self.kind.changed(step, feed)

    def _schema(self, held: Snapshot, source: Snapshot) -> tuple[MetaData, actions.Protocol]:
        """Returns the table's `metaData` and `protocol` for the schema that the snapshot `source` has."""
        found, protocol = self.kind.schema(
            source.metadata, created_ms=self.clock.wall_ms(), vectors=self.vectors
        )
        properties = {**found.configuration, DEFINITION: self.kind.definition}
        return replace(found, id=held.table, configuration=properties), protocol

    def _until(self, since: int, now: int) -> int:
        """Returns the version of the source to which the next step advances the table. The choice depends on the sizes
        of the changes in the log.
        """
        objects, size, last = 0, 0, since
        for version, more_objects, more_bytes in sizes_of(self.source.reader, since, now):
            objects, size = objects + more_objects, size + more_bytes
            if objects > self.step_objects or size > self.step_bytes:
                if last == since:
                    raise TooMuchError(
                        f"one version has more changes than a step may take: {objects} objects, {size} bytes"
                    )
                return last
            last = version
        return last
