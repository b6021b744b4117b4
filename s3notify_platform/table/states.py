"""Object states of one slot: in pages sorted by key, and in deltas that the commits carry.

A commit names its slot's pages, each with its first key, and carries the changes since they were written as deltas.
More than `DELTA_LIMIT` deltas are folded into the pages that they belong to, and only those pages are written again. So
a change costs at most one page, for any number of objects. A page is a Parquet file of at most `PAGE_OBJECTS` states.
"""

import io
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.protocols.source_enumerator import ObjectState

DELTA_LIMIT: Final = 256
"""How many object states a commit carries itself, before they are folded into pages."""

PAGE_OBJECTS: Final = 4096

States = dict[str, ObjectState]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePage:
    """States of the keys from `first` to below the next page's `first`. The first page also has smaller keys."""

    name: str
    objects: int
    first: str


_FIELDS: Final[dict[str, Any]] = {
    field.name: field.type for field in fields(ObjectState) if field.name != "gone"
}
"""What pages and commits hold of a state, in this order, with its type. A key that is gone is in deltas alone."""

_ARROW: Final = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
STATE_SCHEMA: Final = pa.schema(
    [pa.field(name, _ARROW[kind], nullable=False) for name, kind in _FIELDS.items()]
)


def encode_states(states: Mapping[str, ObjectState]) -> bytes:
    """A page: Parquet, sorted by key."""
    sink = io.BytesIO()
    pq.write_table(columns_of(states[key] for key in sorted(states)), sink, compression="zstd")
    return sink.getvalue()


def state_columns(body: bytes) -> pa.Table:
    """What a page holds, as columns: `states_of` makes states of them."""
    return pq.ParquetFile(pa.BufferReader(body)).read()


def columns_of(states: Iterable[ObjectState]) -> pa.Table:
    """Inverse of `states_of`."""
    rows = [{name: getattr(state, name) for name in _FIELDS} for state in states]
    return pa.Table.from_pylist(rows, schema=STATE_SCHEMA)


def states_of(columns: pa.Table) -> States:
    """The states by key."""
    found = columns.to_pydict()
    rows = zip(*found.values(), strict=True)
    return {row[0]: ObjectState(**dict(zip(found, row, strict=True))) for row in rows}


def state_row(state: ObjectState) -> list[object]:
    """A state in the form that a commit carries; a key alone has left."""
    if state.gone:
        return [state.key]
    values = [getattr(state, name) for name in _FIELDS]
    return [int(value) if isinstance(value, bool) else value for value in values]


def state_of_row(row: Sequence[Any]) -> ObjectState:
    """Inverse of `state_row`; `ValueError` or `TypeError` for anything else."""
    if len(row) == 1:
        return ObjectState(key=str(row[0]), etag="", size=0, gone=True)
    pairs = zip(_FIELDS.items(), row, strict=True)
    values: dict[str, Any] = {name: bool(v) if kind is bool else v for (name, kind), v in pairs}
    return ObjectState(**values)


def apply_deltas(earlier: Mapping[str, ObjectState], deltas: Iterable[ObjectState]) -> States:
    """The live states: `earlier`, overridden by `deltas` in order."""
    states = dict(earlier)
    for delta in deltas:
        if delta.gone:
            states.pop(delta.key, None)
        else:
            states[delta.key] = delta
    return states


def page_of(pages: Sequence[StatePage], key: str) -> int:
    """Which page holds `key`, if one does. Pure."""
    return max(0, bisect_right([page.first for page in pages], key) - 1)


def pages_of(pages: Sequence[StatePage], keys: Iterable[str]) -> list[StatePage]:
    """The pages that may hold `keys`. Pure."""
    if not pages:
        return []
    firsts = [page.first for page in pages]
    return [pages[n] for n in sorted({max(0, bisect_right(firsts, key) - 1) for key in keys})]


def fold(
    pages: Sequence[StatePage],
    deltas: Iterable[ObjectState],
    load: Callable[[Sequence[StatePage]], Sequence[States]],
) -> list[StatePage | States]:
    """All states in key order: unchanged pages as they are, and the new contents of those that `deltas` change.

    `load` returns the contents of pages.
    """
    by_page: dict[int, list[ObjectState]] = {}
    for delta in deltas:
        by_page.setdefault(page_of(pages, delta.key) if pages else 0, []).append(delta)
    touched = sorted(by_page)
    contents = dict(zip(touched, load([pages[n] for n in touched]) if pages else [{}], strict=True))
    result: list[StatePage | States] = []
    for number in range(max(len(pages), 1)):
        if number not in contents:
            result.append(pages[number])
            continue
        states = apply_deltas(contents[number], by_page[number])
        if result and isinstance(result[-1], dict) and len(result[-1]) + len(states) <= PAGE_OBJECTS // 2:
            result[-1] |= states
        elif states:
            result += _cut(states)
    return result


def _cut(states: States) -> list[States]:
    count = -(-len(states) // PAGE_OBJECTS)
    size = -(-len(states) // count)
    keys = sorted(states)
    return [{key: states[key] for key in keys[n : n + size]} for n in range(0, len(keys), size)]
