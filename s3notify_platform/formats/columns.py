"""Operations on Arrow columns: timestamps from texts, numbers that are too large, values without a column."""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.rescue import below

Places = npt.NDArray[np.int64]
"""Row numbers."""


def _unnamed_values(
    values: pa.Array, kind: pa.DataType, path: str, places: Places
) -> Iterator[tuple[str, Places]]:
    """Paths of fields of `values` that `kind` does not have, each with the `places` where it is not null."""
    found = values.type
    if pa.types.is_struct(found) and pa.types.is_struct(kind):
        kinds = {part.name: part.type for part in kind}
        for part, child in zip(found, values.flatten(), strict=True):
            name = below(path, part.name)
            if part.name not in kinds:
                yield name, places[child.is_valid().to_numpy(zero_copy_only=False)]
            elif pa.types.is_nested(part.type):
                yield from _unnamed_values(child, kinds[part.name], name, places)
    elif _has_items(found) and pa.types.is_list(kind):
        parents = pc.list_parent_indices(values).to_numpy(zero_copy_only=False)
        yield from _unnamed_values(values.flatten(), kind.value_type, f"{path}[]", places[parents])


def _has_items(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def unnamed_columns(table: pa.Table, schema: pa.Schema) -> tuple[dict[str, Places], pa.Schema | None]:
    """The fields of a table, at any depth, that `schema` does not name: the rows by path, and the columns with them."""
    rows = np.arange(table.num_rows)
    named = {*schema.names}
    found: dict[str, Places] = {}
    new_fields = []
    for column in table.schema:
        values = table[column.name].combine_chunks()
        if column.name not in named:
            parts = [(below("", column.name), rows[values.is_valid().to_numpy(zero_copy_only=False)])]
        elif pa.types.is_nested(column.type):
            kind = schema.field(column.name).type
            parts = list(_unnamed_values(values, kind, below("", column.name), rows))
        else:
            continue
        having = {path: places for path, places in parts if len(places)}
        found |= having
        if having:
            new_fields.append(column)
    return found, pa.schema(new_fields) if new_fields else None


def count_fields(fields: pa.Schema | pa.DataType) -> int:
    """Fields of a schema or a type, at any depth."""
    if not isinstance(fields, pa.Schema):
        if not pa.types.is_nested(fields):
            return 0
        if not pa.types.is_struct(fields):
            inner = [fields.key_type, fields.item_type] if pa.types.is_map(fields) else [fields.value_type]
            return sum(map(count_fields, inner))
    return sum(1 + count_fields(part.type) for part in fields)


def infinities(values: pa.Array) -> int:
    """Infinite numbers in a column, at any depth."""
    kind = values.type
    if pa.types.is_floating(kind):
        return pc.sum(pc.is_inf(values)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(map(infinities, values.flatten()))
    return infinities(values.flatten()) if _has_items(kind) else 0


def check_finite(found: int, written: Callable[[], int]) -> None:
    """Refuse `found` infinities if fewer were `written`: numbers that are too large for a floating point column."""
    if found and found > written():
        raise pa.ArrowInvalid("a number is too large for its floating point column")


_USUAL: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d(:?\d\d)?)$"
_UTC: Final = pa.timestamp("us", tz="UTC")


def timestamps(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Strings as timestamps, with a zone or (then in UTC) without; cut to microseconds, the precision of Spark."""
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    none = pa.scalar(None, pa.string())
    usual = pc.match_substring_regex(column, _USUAL).fill_null(True)
    if pc.all(usual).as_py():
        return pc.cast(pc.cast(column, _UTC), kind)
    others = pc.invert(usual)
    rest = pc.replace_substring_regex(column.filter(others), r"(\.\d{6})\d+", r"\1")
    zoned = pc.match_substring_regex(rest, r":\d\d(\.\d*)?(Z|[+-]\d\d(:?\d\d)?)$")
    without = pc.cast(pc.cast(pc.if_else(zoned, none, rest), pa.timestamp("us")), _UTC)
    rest = pc.coalesce(pc.cast(pc.if_else(zoned, rest, none), _UTC), without)
    found = pc.cast(pc.if_else(usual, column, none), _UTC)
    return pc.cast(pc.replace_with_mask(found, others, rest), kind)
