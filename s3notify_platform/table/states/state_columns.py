"""Converts object states to rows of JSON, and to sorted columns. Pure. The place of a state is (slot, key)."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState

Place = tuple[int, str]

States = Mapping[str, ObjectState]
"""States by key."""

Changes = Mapping[Slot, States]
"""States by slot and key. The states of objects that have left are marked as `gone`."""

FIELDS: Final[dict[str, Any]] = {
    "key": pa.string(),
    "etag": pa.string(),
    "size": pa.int64(),
    "rows": pa.int64(),
    "since": pa.int64(),
    "until": pa.int64(),
    "reach_end": pa.bool_(),
    "offset": pa.int64(),
    "by_record": pa.bool_(),
    "rejects": pa.int64(),
    "reason": pa.string(),
    "trace": pa.string(),
    "expired": pa.bool_(),
    "gone": pa.bool_(),
    "again": pa.bool_(),
}
STATE_SCHEMA: Final = pa.schema(
    [pa.field("slot", pa.int32(), nullable=False)]
    + [pa.field(name, kind, nullable=False) for name, kind in FIELDS.items()]
)

_TYPES: Final = {pa.string(): str, pa.int64(): int, pa.bool_(): bool}
_DEFAULTS: Final[dict[str, Any]] = {
    name: getattr(ObjectState(key="", etag="", size=0), name) for name in FIELDS
}
_IN_ROWS: Final = [name for name in FIELDS if name != "gone"]


def state_row(slot: Slot, state: ObjectState) -> list[object]:
    """Returns a state in the manifest's format. Default values at the end of the row are left out.

    A row with only slot and key is a `gone` mark.
    """
    if state.gone:
        return [slot, state.key]
    rest = trimmed(
        [getattr(state, name) for name in _IN_ROWS[2:]], [_DEFAULTS[name] for name in _IN_ROWS[2:]]
    )
    return [slot, state.key, state.etag, *(int(each) if isinstance(each, bool) else each for each in rest)]


def state_of_row(row: Sequence[Any]) -> tuple[Slot, ObjectState]:
    """Decodes the result of `state_row`. Raises `ValueError` for any other row."""
    if not isinstance(row, list) or not 2 <= len(row) <= 1 + len(_IN_ROWS) or not _is_int(row[0], 31):
        raise ValueError(f"not a state of an object: {str(row)[:200]}")
    values = dict(_DEFAULTS, gone=len(row) == 2)
    for name, value in zip(_IN_ROWS, row[1:], strict=False):
        kind = _TYPES[FIELDS[name]]
        if not (isinstance(value, str) if kind is str else _is_int(value, 63 if kind is int else 1)):
            raise ValueError(f"not a state of an object: {name} is {str(value)[:200]!r}")
        values[name] = kind(value)
    return Slot(row[0]), ObjectState(**values)


def _is_int(value: object, bits: int) -> bool:
    return type(value) is int and 0 <= value < 1 << bits


def columns_of(changes: Changes) -> pa.RecordBatch:
    """Returns the states as columns, sorted by place."""
    rows = [(slot, key, changes[slot][key]) for slot in sorted(changes) for key in sorted(changes[slot])]
    columns = [pa.array([slot for slot, _, _ in rows], pa.int32())]
    columns += [
        pa.array([getattr(state, name) for _, _, state in rows], kind) for name, kind in FIELDS.items()
    ]
    return pa.record_batch(columns, schema=STATE_SCHEMA)


def states_of(columns: pa.RecordBatch) -> dict[str, ObjectState]:
    """Returns the states that are in these columns, by key."""
    names = list(FIELDS)
    values = [columns.column(name).to_pylist() for name in names]
    return {row[0]: ObjectState(**dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)}


def place_at(columns: pa.RecordBatch, row: int) -> Place:
    """Returns the place of a row's state."""
    return columns.column("slot")[row].as_py(), columns.column("key")[row].as_py()


def rows_before(columns: pa.RecordBatch, place: Place, *, including: bool = False) -> int:
    """Returns the number of rows before a place, in sorted columns. With `including`, a row at the place is counted,
    too.
    """
    slots = columns.column("slot").to_numpy()
    low, high = (int(np.searchsorted(slots, place[0], side)) for side in ("left", "right"))
    keys = columns.column("key")
    find = bisect_right if including else bisect_left
    return find(range(high), place[1], lo=low, key=lambda row: keys[row].as_py())


def state_at(columns: pa.RecordBatch, place: Place) -> ObjectState | None:
    """Returns the state at a place, or None if the sorted columns have no state there."""
    row = rows_before(columns, place)
    if row == columns.num_rows or place_at(columns, row) != place:
        return None
    return ObjectState(**{name: columns.column(name)[row].as_py() for name in FIELDS})


def failing_in(columns: pa.RecordBatch) -> pa.BooleanArray:
    """Returns a mask: true for each row whose object is failing."""
    return pc.and_not(pc.not_equal(columns.column("reason"), ""), columns.column("gone"))


def pending_in(columns: pa.RecordBatch) -> pa.BooleanArray:
    """Returns a mask: true for each row whose object is pending."""
    done = pc.or_(columns.column("reach_end"), pc.not_equal(columns.column("reason"), ""))
    return pc.and_not(pc.or_(columns.column("again"), pc.invert(done)), columns.column("gone"))


def trimmed(values: list[Any], defaults: Sequence[Any]) -> list[Any]:
    """Returns the values up to the last value that differs from its default."""
    while values and values[-1] == defaults[len(values) - 1]:
        values.pop()
    return values
