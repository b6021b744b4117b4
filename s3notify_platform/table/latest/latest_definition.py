"""The definition of a table of newest rows: the columns of the key, and the columns that decide which row is newer.

A keyed row is a row of the source's table with the columns of a newest row, and the column `DELETED`.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import SLOT_COUNT, slot_of
from s3notify_platform.table.latest.ranks import check_key, check_order, key_texts, rank_texts

MODIFIED: Final = "_modified"
"""Column of the source's table: the time when the row's object was written."""

LATEST_COLUMNS: Final = pa.schema(
    [("_slot", pa.int32()), ("_key", pa.string()), ("_etag", pa.string()), ("_offset", pa.int64())]
)
"""The first columns of a newest row: the slot of its key, the key, the row's rank (`ranks`), and the offset 0."""

ORIGIN: Final = pa.schema([("_source_key", pa.string()), ("_source_offset", pa.int64())])
"""The last columns of a newest row: the key of the object from which the row was read, and the row's offset in this
object."""

DELETED: Final = "_deleted"
"""Column of keyed rows: true if the row means that its key is deleted."""

Predicate = Callable[[pa.RecordBatch], pa.BooleanArray]
"""A condition on rows. The result is true, false or null (unknown) for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The definition of a table of newest rows. The definition can be pickled if `deleted` can be pickled.

    `key`: the columns of the key. A row with a null in one of these columns has no key, and is left out. `order_by`:
    the columns that decide which row is newer, the most significant first. Null is older than all values. Ties are
    broken by the time when the row's object was written (`_modified`), then by the object's key, then by the row's
    offset. Rows that a transform made from one record have the same offset, so any of these rows may be the newest.
    `deleted`: selects the rows that mean that their key is deleted. If `deleted` selects the newest row of a key, the
    key has no row in the table. `deleted_when`: the condition of `deleted` as text. `slots`: the number of slots for
    keys.
    """

    key: tuple[str, ...]
    order_by: tuple[str, ...]
    deleted_when: str = ""
    deleted: Predicate | None = None
    slots: int = SLOT_COUNT

    def dumps(self) -> str:
        """Returns a text that identifies the definition. The table's properties have this text."""
        return json.dumps({"key": self.key, "order_by": self.order_by, "deleted_when": self.deleted_when})

    def check(self, columns: pa.Schema) -> None:
        """Raises `UsageError` if a needed column is missing in the source's table, or has an unsuitable type."""
        for name in (*self.key, *self.order_by):
            if name not in columns.names:
                known = ", ".join(columns.names[len(LATEST_COLUMNS) :])
                raise UsageError(f"latest: the table has no column {name!r}: it has {known}")
        if MODIFIED not in columns.names:
            raise UsageError(
                f"latest: the table has no column {MODIFIED!r}, which decides between rows with equal values of "
                "order_by: a transform must keep this column; if the table is older than the setting `latest`, run "
                "`s3notify backfill`, or wait until a batch reads an object"
            )
        for name in self.key:
            check_key(name, columns.field(name).type)
        for name in self.order_by:
            check_order(name, columns.field(name).type)
        if self.deleted is not None:
            self.deleted(pa.RecordBatch.from_pylist([], columns))  # raises an error if a column is missing
        if taken := sorted({*ORIGIN.names, DELETED} & {*columns.names}):
            raise UsageError(f"latest: the table has a column {taken[0]!r}, which is reserved: rename it")

    def order_types(self, columns: pa.Schema) -> list[pa.DataType]:
        """Returns the types of the columns in `order_by`."""
        return [columns.field(name).type for name in self.order_by]

    def keyed_columns(self, source: pa.Schema) -> pa.Schema:
        """Returns the columns of keyed rows: the columns of newest rows, and `DELETED`.

        `source`: the columns of the source's table.
        """
        return pa.schema([*LATEST_COLUMNS, *self._data(source), *ORIGIN, (DELETED, pa.bool_())])

    def keyed_table(self, source: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Converts batches of rows of the source's table to keyed rows. `source`: the columns of these rows."""
        return pa.Table.from_batches(map(self.keyed, batches), self.keyed_columns(source))

    def keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Converts rows of the source's table to keyed rows. Rows without a key are left out."""
        texts = key_texts([rows.column(name) for name in self.key])
        if texts.null_count:
            there = pc.is_valid(texts)
            rows, texts = rows.filter(there), texts.filter(there)
        count = rows.num_rows
        modified, objects, offsets = (rows.column(name) for name in (MODIFIED, "_key", "_offset"))
        ranks = rank_texts([rows.column(name) for name in self.order_by], modified, objects, offsets)
        deleted = pa.repeat(False, count)
        if self.deleted is not None:
            deleted = pc.fill_null(self.deleted(rows), False)
        data = self._data(rows.schema)
        return pa.RecordBatch.from_arrays(
            [
                self._slots(texts),
                texts,
                ranks,
                pa.array(_zeros(count), pa.int64()),
                *(rows.column(each.name) for each in data),
                objects,
                offsets,
                deleted,
            ],
            schema=self.keyed_columns(rows.schema),
        )

    def _slots(self, texts: pa.StringArray) -> pa.Int32Array:
        found = texts.dictionary_encode()
        slots = pa.array([slot_of(text, self.slots) for text in found.dictionary.to_pylist()], pa.int32())
        return slots.take(found.indices)

    @staticmethod
    def _data(source: pa.Schema) -> Sequence[pa.Field]:
        return [each for each in source if each.name not in LATEST_COLUMNS.names]


def _zeros(count: int) -> list[int]:
    return [0] * count


def newest_of(rows: pa.Table) -> pa.Table:
    """Returns the newest row of each key among keyed rows. The result is sorted by slot and key, as in packs. Pure."""
    order = [("_slot", "ascending"), ("_key", "ascending"), ("_etag", "descending")]
    found = rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()
    return found.filter(is_first(found["_slot"], found["_key"]))


def is_first(slots: pa.ChunkedArray, keys: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Returns a mask of sorted rows: true for each row whose key differs from the key of the previous row. Pure."""
    if len(keys) < 2:
        return pa.repeat(True, len(keys))
    other = pc.or_(
        pc.not_equal(slots.slice(1), slots.slice(0, len(slots) - 1)),
        pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)),
    )
    return (
        pa.chunked_array([pa.array([True]), *other.chunks]) if isinstance(other, pa.ChunkedArray) else other
    )
