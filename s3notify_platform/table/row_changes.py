"""The change feed: the rows that were added to a table, and the rows that left the table, between two versions.

Guarantees
    - The feed turns the rows as of the first version into the rows as of the last version. A consumer only has to
      remove the rows that left, and to insert the added rows.
    - A row that came and left again between the two versions is not in the feed. So the feed has at most one change of
      each row.
    - Each change has its version, the time of this version, and the reason why the object changed.

The rows that a version adds are in new packs, which have the label of the version's round. A version also rewrites
earlier packs, to withdraw rows or to merge packs. A rewritten pack has earlier labels, or no rows of the round's slots,
so the feed does not read its rows. The rows that left are in packs that were live as of the first version, and are no
longer live as of the last version.

For an erased object, the feed has a single deletion, instead of a deletion of each row. The deletion has the object's
slot, and the `state_changes.key_hash` of its key. After a rollback, the feed has all rows of the changed slots. After a
change of a column's type that changes values, the feed has all rows (`replaced_rows`).

`row_changes` makes the requests of `feed.changes_of`, and 1 GET if rows have left. If rows are replaced, it also reads
two snapshots (`versions.snapshot_of`). Each task makes the requests of `reading.read`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.ports import Ranged
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.change_columns import change_values, changed, columns_to_read, has_changes
from s3notify_platform.table.delta.actions import Add, Remove
from s3notify_platform.table.feed import NoFeedError, VersionChanges, changes_of, not_kept
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.reading import ReadTask, plan_read, read, shaped
from s3notify_platform.table.replaced_rows import ReplacedSlots, Replacement
from s3notify_platform.table.snapshot import LogReader, Snapshot
from s3notify_platform.table.state_changes import StateChange
from s3notify_platform.table.versions import snapshot_of

NO_REASONS: Final = pa.RecordBatch.from_pylist(
    [],
    schema=pa.schema(
        [
            ("key", pa.string()),
            ("slot", pa.int32()),
            ("version", pa.int64()),
            ("at_ms", pa.int64()),
            ("reason", pa.string()),
        ]
    ),
)
"""An empty batch of changed objects. The columns are the object's key and slot, a version that changed the object, this
version's time, and the reason of the change.
"""


def sizes_of(reader: LogReader, since: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Yields each version after `since`, up to `until`, with the number of changed objects and the approximate number
    of added bytes.

    `NotFoundError`: as in `changes_of`.
    """
    for each in changes_of(reader, since, until):
        yield each.version, each.count, sum(add.size for add in each.body.adds if add.data_change)


def row_changes(reader: LogReader, since: int, until: int, *, deletes: bool = True) -> "RowChanges":
    """Returns the changes after the version `since`, up to and including `until`.

    `deletes`: True if rows that left are wanted. With `deletes`, the version `since` must still be kept. Memory holds
    the key of each object that was changed or has left.

    `NotFoundError`: as in `changes_of`. `NoFeedError`: a version replaces rows, and `deletes` is false, so the reader
    would keep the replaced rows.
    """
    found = RowChanges()
    base = since
    for each in changes_of(reader, since, until):
        found.add(each)
        if found.replaced.by_slot and not deletes:
            raise replaced_error(found)
        if each.version == since + 1 and found.erased:
            # This version is an erasure. The erasure has deleted the files that this version removes from the table.
            # Only erased objects lost rows in this version. So the feed searches for later losses in this version's
            # files.
            base = each.version
            found.forget_files()
    left = deletes and (found.first or found.replaced.by_slot)
    if left and base >= 0 and reader.version(base) is None:
        raise not_kept(reader, base)  # a later erasure may have removed the files of version `base`
    if found.replaced.by_slot:
        found.replaced.before = snapshot_of(reader, base) if base >= 0 else None
        found.replaced.after = snapshot_of(reader, until)
    return found


def replaced_error(found: "RowChanges") -> NoFeedError:
    """Returns the error of a reader that cannot use changes with replaced rows."""
    last = found.replaced.last
    assert last is not None, "some rows were replaced"
    return NoFeedError(
        f"version {last.version} {last.did}: rows read before may have left. A reader of an earlier version must begin "
        f"again: either with a snapshot, or after version {last.version}"
    )


def all_rows(
    snapshot: Snapshot, slots: Collection[Slot] | None = None, *, at_ms: int = 0, tasks: int = 1
) -> "list[Inserts]":
    """Returns all rows of `slots` (None: all) as inserts. The inserts have the snapshot's version and the time `at_ms`.

    Pure.
    """
    return [
        Inserts(parts=(Brought(task=task, version=snapshot.version, at_ms=at_ms),))
        for task in plan_read(snapshot.packs.values(), slots, tasks=tasks)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Rows that one version added. `at_ms`: the version's time. `reasons`: the changed objects that existed before this
    version, each with the reason of its change.
    """

    task: ReadTask
    version: int
    at_ms: int
    reasons: pa.RecordBatch = field(default_factory=lambda: NO_REASONS)


class Share(Protocol):
    """The part of the feed that one task reads."""

    @property
    def bytes(self) -> int:
        """The approximate number of bytes that the task reads."""
        ...

    def read(self, store: Ranged, layout: TableLayout, output: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields the rows with the columns of `output`, which may include `CHANGE_COLUMNS`. See `reading.read`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserts:
    """Added rows, in the order of versions.

    `left`: objects that lost rows, each with the last version that removed rows of the object.
    """

    parts: tuple[Brought, ...]
    left: pa.RecordBatch = field(default_factory=lambda: NO_REASONS)

    @property
    def bytes(self) -> int:
        """See `Share`."""
        return sum(part.task.bytes for part in self.parts)

    def read(self, store: Ranged, layout: TableLayout, output: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `Share`."""
        changes = has_changes(output)
        by_key = self.left.num_rows > 0 or changes
        for part in self.parts:
            for rows in read(store, layout, part.task, columns_to_read(output, by_key=by_key)):
                kept = self._kept(rows, part.version) if self.left.num_rows else rows
                if kept.num_rows:
                    yield changed(output, kept, self._changes(part, kept) if changes else {})

    def _kept(self, rows: pa.RecordBatch, version: int) -> pa.RecordBatch:
        """Returns the rows that no version after `version` has removed."""
        later = pc.take(self.left.column("version"), _places(rows, self.left))
        return rows.filter(pc.invert(pc.fill_null(pc.greater(later, version), False)))

    @staticmethod
    def _changes(part: Brought, rows: pa.RecordBatch) -> dict[str, Any]:
        reasons = pc.take(part.reasons.column("reason"), _places(rows, part.reasons))
        reasons = pc.fill_null(reasons, "new")
        return change_values("insert", part.version, part.at_ms, reasons, count=rows.num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """The rows that left the table. `left`: the objects of these rows, each with the first version that removed rows of
    the object.

    `task` is None if these objects were erased. In this case, each object has one row, with nulls for values that are
    not kept.
    """

    task: ReadTask | None
    left: pa.RecordBatch

    @property
    def bytes(self) -> int:
        """See `Share`."""
        return 0 if self.task is None else self.task.bytes

    def read(self, store: Ranged, layout: TableLayout, output: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `Share`."""
        if self.task is None:
            erased = {"_slot": self.left.column("slot"), "_key": self.left.column("key")}
            yield shaped(output, self.left.num_rows, erased | _deletions(self.left))
            return
        for rows in read(store, layout, self.task, columns_to_read(output, by_key=True)):
            places = _places(rows, self.left)
            found = pc.is_valid(places)
            if (gone := rows.filter(found)).num_rows:
                yield changed(output, gone, _deletions(self.left.take(places.filter(found))))


Change = tuple[Slot, int, int, str]
"""The change of an object: its slot, the version, the version's time in Unix milliseconds, and the reason."""


@dataclass(slots=True, kw_only=True)
class RowChanges:
    """The changes between two versions, as made by `row_changes`. The methods `inserts` and `deletes` divide these
    changes into tasks.

    `came`: for each version, the packs that it added, the changed objects that existed before it, and the slots whose
    rows it added (None: all slots in the packs). `left`: packs that were live as of the first version, and are no
    longer live as of the last version. `first`, `last`: for each object that lost rows, the first and the last change
    that removed rows of the object. `replaced`: the slots whose rows were replaced as a whole.
    """

    came: list[tuple[VersionChanges, list[Add], pa.RecordBatch, set[Slot] | None]] = field(
        default_factory=list
    )
    left: dict[tuple[str, str], Remove] = field(default_factory=dict)
    first: dict[str, Change] = field(default_factory=dict)
    last: dict[str, Change] = field(default_factory=dict)
    erased: dict[str, Change] = field(default_factory=dict)
    replaced: ReplacedSlots = field(default_factory=ReplacedSlots)
    _added: set[tuple[str, str]] = field(default_factory=set)

    def add(self, each: VersionChanges) -> None:
        """Adds the changes of the next version."""
        if (replacement := Replacement.of(each.version, each.body)) is not None:
            self.replaced.add(replacement)
        labels: dict[int, set[Slot]] = {}
        reasons: dict[str, Change] = {}
        for change in each.changes:
            old, new, stay = change.old, change.new, _stay(change)
            of_key = change.slot, each.version, each.body.created_ms, change.reason
            if new is not None and not (stay and old is not None and new.until == old.until):
                labels.setdefault(new.until, set()).add(change.slot)
            if new is not None and change.reason != "new":
                reasons[change.key] = of_key
            if change.reason == "erased":
                self.erased[change.key] = of_key
            elif old is not None and not stay:
                self.first.setdefault(change.key, of_key)
                self.last[change.key] = of_key
        adds, batch = each.body.adds, _batch(reasons)
        # A version may have rounds with different labels, because these rounds were planned on different versions. Such
        # a version may rewrite packs that have the label of one of its rounds, but no rows of this round's slots.
        again = {gone.until for gone in each.body.removes if gone.since == gone.until}
        for label, slots in labels.items():
            packs = [add for add in adds if add.data_change and add.since == add.until == label]
            self.came.append((each, packs, batch, slots if label in again else None))
        self.left |= {gone.id: gone for gone in each.body.removes if gone.id not in self._added}
        self._added |= {add.id for add in adds}

    def forget_files(self) -> None:
        """Empties `left`. Later, `left` gets only packs that were live as of the version that was added last."""
        self.left.clear()
        self._added.clear()

    def shares(self, slots: Collection[Slot] | None = None, *, tasks: int = 1) -> "Sequence[Share]":
        """Returns all changes of `slots` (None: all slots): first the deletes, then the inserts. The number of shares
        is about twice `tasks`. Pure.
        """
        return [*self.deletes(slots, tasks=tasks), *self.inserts(slots, tasks=tasks)]

    def inserts(self, slots: Collection[Slot] | None = None, *, tasks: int = 1) -> "list[Share]":
        """Returns the added rows of `slots` (None: all slots) in the order of versions, divided into about `tasks`
        shares. Replaced rows are in further shares. Pure.
        """
        others = self.replaced.others(slots)
        parts = [
            Brought(
                task=task,
                version=each.version,
                at_ms=each.body.created_ms,
                reasons=_within(reasons, [task]),
            )
            for each, packs, reasons, only in self.came
            for task in plan_read(packs, _in_both(only, others), tasks=tasks)
        ]
        left = _batch(self.last)
        added = [
            Inserts(parts=tuple(some), left=_within(left, [part.task for part in some]))
            for some in _dealt(parts, tasks)
        ]
        return [*added, *self.replaced.inserts(slots, tasks)]

    def deletes(self, slots: Collection[Slot] | None = None, *, tasks: int = 1) -> "list[Share]":
        """Returns the rows of `slots` (None: all slots) that left, divided into at most `tasks` shares. The erased
        objects, and replaced rows, are in further shares. Pure.
        """
        found: list[Share] = [*self.replaced.deletes(slots, tasks)]
        others = self.replaced.others(slots)
        first = {key: of for key, of in self.first.items() if others is None or of[0] in others}
        erased = {key: of for key, of in self.erased.items() if slots is None or of[0] in slots}
        if first:
            left, of_keys = _batch(first), {of[0] for of in first.values()}
            packs = [gone.file for gone in self.left.values()]
            dealt = plan_read(packs, of_keys, tasks=tasks)
            found += [Deletes(task=task, left=_within(left, [task])) for task in dealt]
        if erased:
            found.append(Deletes(task=None, left=_batch(erased)))
        return found


def _stay(change: StateChange) -> bool:
    """Returns true if the earlier rows of the object stay."""
    old, new = change.old, change.new
    return old is not None and new is not None and (old.etag, old.since) == (new.etag, new.since)


def _in_both(one: Collection[Slot] | None, other: Collection[Slot] | None) -> Collection[Slot] | None:
    """Returns the slots that are in both collections. None: all slots."""
    if one is None or other is None:
        return other if one is None else one
    return {*one} & {*other}


def _batch(changes: Mapping[str, Change]) -> pa.RecordBatch:
    columns = zip(*((key, *of_key) for key, of_key in changes.items()), strict=True)
    if not changes:
        return NO_REASONS
    return pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=NO_REASONS.schema)


def _within(objects: pa.RecordBatch, tasks: Sequence[ReadTask]) -> pa.RecordBatch:
    """Returns the objects whose rows these tasks may read."""
    if not objects.num_rows:
        return objects
    bounds = [part.slots for task in tasks for part in task.parts]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    slots = objects.column("slot")
    return objects.filter(pc.and_(pc.greater_equal(slots, low), pc.less_equal(slots, high)))


def _dealt(parts: Iterable[Brought], tasks: int) -> Iterator[list[Brought]]:
    """Yields the parts in order, in about `tasks` groups with similar numbers of bytes."""
    parts = [*parts]
    share = sum(part.task.bytes for part in parts) / tasks
    some: list[Brought] = []
    for part in parts:
        if some and sum(each.task.bytes for each in some) >= share:
            yield some
            some = []
        some.append(part)
    if some:
        yield some


def _places(rows: pa.RecordBatch, objects: pa.RecordBatch) -> pa.Array:
    """Returns the index of each row's object among `objects`, or null if the object is not in `objects`."""
    return pc.index_in(rows.column("_key"), objects.column("key"))


def _deletions(objects: pa.RecordBatch) -> dict[str, Any]:
    version, at_ms, reason = (objects.column(name) for name in ("version", "at_ms", "reason"))
    return change_values("delete", version, at_ms, reason, count=objects.num_rows)
