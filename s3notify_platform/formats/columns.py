"""Operations on Arrow columns: timestamps from texts, numbers that are too large, values without a column."""

import re
from collections.abc import Iterator
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
    found: dict[str, Places] = {}
    new_fields = []
    for column in table.schema:
        values = table[column.name].combine_chunks()
        if column.name not in schema.names:
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


_INFINITY: Final = re.compile(rb"(?i)inf")


def check_finite(values: pa.Array, written: int | bytes) -> None:
    """Refuse numbers that are too large for a floating point column: infinities, except those that were `written`.

    `written`: their number, or the text in which they are counted.
    """
    if pa.types.is_floating(values.type) and (found := pc.sum(pc.is_inf(values)).as_py()):
        allowed = written if isinstance(written, int) else len(_INFINITY.findall(written))
        if found > allowed:
            raise pa.ArrowInvalid(f"a number is too large for {values.type}")


def timestamps(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Strings as timestamps, with a zone or (then in UTC) without; cut to microseconds, the precision of Spark."""
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    column = pc.replace_substring_regex(column, r"(\.\d{6})\d+", r"\1")
    zoned = pc.match_substring_regex(column, r":\d\d(\.\d*)?(Z|[+-]\d\d(:?\d\d)?)$")
    none = pa.scalar(None, pa.string())
    utc = pa.timestamp("us", tz="UTC")
    with_zone = pc.cast(pc.if_else(zoned, column, none), utc)
    without = pc.cast(pc.cast(pc.if_else(zoned, none, column), pa.timestamp("us")), utc)
    return pc.cast(pc.coalesce(with_zone, without), kind)
