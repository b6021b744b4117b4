"""Changes of versions that replace rows without a change of an object's state: a rollback, and a change of a column's
type that also changes values.

The log does not say which rows of such a version differ. So the feed gives all rows of the slots that a rollback has
changed, or all rows of the table after a change of a type: first the rows as of the feed's first version as deletions,
then the rows as of its last version as insertions.
A consumer that applies these changes has the rows of the last version, like after any other change.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.kernel.ports import Ranged
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.change_columns import change_values, changed, columns_to_read
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.reading import ReadTask, plan_read, read
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.versions import RETYPED, ROLLBACK, VALUES

ROLLED_BACK: Final = "rolled back"
OTHER_VALUES: Final = "retyped"

ALL_SLOTS: Final = frozenset(map(Slot, range(SLOT_COUNT)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A version that replaces the rows of slots. `did`: what the version did, as the end of a sentence. `at_ms`: the
    version's time in Unix milliseconds.
    """

    version: int
    at_ms: int
    reason: str
    did: str
    slots: frozenset[Slot]

    @classmethod
    def of(cls, version: int, body: LogVersion) -> "Replacement | None":
        """Returns the replacement that this version is, or None. Pure."""
        note, slots = body.note, ALL_SLOTS
        if ROLLBACK in note and note.get("slots"):
            reason, did = ROLLED_BACK, f"went back to version {note[ROLLBACK]}"
            slots = frozenset(map(Slot, note["slots"]))
        elif RETYPED in note and note.get(VALUES):
            # Rows that left their slot before this version are in files of the earlier type.
            reason, did = OTHER_VALUES, f"gave {', '.join(note[RETYPED])} another type and other values"
        else:
            return None
        return cls(version=version, at_ms=body.created_ms, reason=reason, did=did, slots=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedRows:
    """Rows of replaced slots, as deletions or insertions (`kind`). See `row_changes.Share`.

    `columns`: the columns of the table that has the rows. If `output` wants another type of a column, the values are
    null. Only deletions have such columns.
    """

    task: ReadTask
    kind: str
    columns: pa.Schema
    by: Replacement

    @property
    def bytes(self) -> int:
        """See `Share`."""
        return self.task.bytes

    def read(self, store: Ranged, layout: TableLayout, output: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `Share`."""
        columns = pa.schema(
            [each for each in columns_to_read(output, by_key=True) if self._type(each) == each.type]
        )
        for rows in read(store, layout, self.task, columns):
            count = rows.num_rows
            changes = change_values(self.kind, self.by.version, self.by.at_ms, self.by.reason, count=count)
            yield changed(output, rows, changes)

    def _type(self, wanted: pa.Field) -> pa.DataType:
        return self.columns.field(wanted.name).type if wanted.name in self.columns.names else wanted.type


@dataclass(slots=True, kw_only=True)
class ReplacedSlots:
    """The slots whose rows are replaced between two versions, each with the last version that replaces them.

    `before`, `after`: the table as of the first version (None: before version 0) and as of the last version.
    """

    by_slot: dict[Slot, Replacement] = field(default_factory=dict)
    before: Snapshot | None = None
    after: Snapshot | None = None

    def add(self, found: Replacement) -> None:
        """Adds a version."""
        self.by_slot |= dict.fromkeys(found.slots, found)

    @property
    def last(self) -> Replacement | None:
        """The last version that replaces rows."""
        return max(self.by_slot.values(), key=lambda each: each.version, default=None)

    def others(self, slots: Collection[Slot] | None) -> Collection[Slot] | None:
        """Returns the slots among `slots` (None: all slots) whose rows are not replaced. Pure."""
        if not self.by_slot:
            return slots
        return {*(ALL_SLOTS if slots is None else slots)} - self.by_slot.keys()

    def deletes(self, slots: Collection[Slot] | None, tasks: int) -> list[ReplacedRows]:
        """Returns the rows of replaced slots as of the first version, in at most `tasks` shares for each version that
        replaces rows. Pure.
        """
        return self._shares("delete", self.before, slots, tasks)

    def inserts(self, slots: Collection[Slot] | None, tasks: int) -> list[ReplacedRows]:
        """Returns the rows of replaced slots as of the last version. See `deletes`. Pure."""
        return self._shares("insert", self.after, slots, tasks)

    def _shares(
        self, kind: str, snapshot: Snapshot | None, slots: Collection[Slot] | None, tasks: int
    ) -> list[ReplacedRows]:
        if snapshot is None or not snapshot.packs:
            return []
        groups: dict[int, tuple[Replacement, set[Slot]]] = {}
        for slot, by in self.by_slot.items():
            if slots is None or slot in slots:
                groups.setdefault(by.version, (by, set()))[1].add(slot)
        columns: Any = arrow_schema(snapshot.metadata.schema)
        return [
            ReplacedRows(task=task, kind=kind, columns=columns, by=by)
            for by, some in groups.values()
            for task in plan_read(snapshot.packs.values(), some, tasks=tasks)
        ]
