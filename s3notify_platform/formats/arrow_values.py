"""Operations on Arrow columns.

Some operations convert texts to timestamps. Other operations find values that readers cannot represent, or fields that
a schema lacks.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any, Final

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
    """Yields the path of each field that `kind` lacks, with the numbers of the rows where the field is not null.

    `places`: the row number of each value in `values`.
    """
    found = values.type
    if pa.types.is_struct(found) and pa.types.is_struct(kind):
        kinds = {part.name: part.type for part in kind}
        for part, child in zip(found, values.flatten(), strict=True):
            name = below(path, part.name)
            if part.name not in kinds:
                yield name, places[child.is_valid().to_numpy(zero_copy_only=False)]
            elif pa.types.is_nested(part.type):
                yield from _unnamed_values(child, kinds[part.name], name, places)
    elif has_items(found) and pa.types.is_list(kind):
        parents = pc.list_parent_indices(values).to_numpy(zero_copy_only=False)
        yield from _unnamed_values(values.flatten(), kind.value_type, f"{path}[]", places[parents])
    elif pa.types.is_map(found) and pa.types.is_map(kind):
        lists = entries(values)
        parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
        yield from _unnamed_values(lists.flatten(), entry_of(kind), path, places[parents])


def has_items(kind: pa.DataType) -> bool:
    """True if the type is one of Arrow's list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """True if the type is one of Arrow's types of bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def entry_of(kind: pa.MapType) -> pa.StructType:
    """Returns the type of a map's entry: a struct of `key` and `value`."""
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)])


def entries(maps: pa.Array) -> pa.Array:
    """Converts a column of maps to a column of lists of entries. See `entry_of`."""
    lists = maps.cast(pa.list_(pa.struct([maps.type.key_field, maps.type.item_field])))
    items = pa.StructArray.from_arrays(lists.flatten().flatten(), fields=[*entry_of(maps.type)])
    return pa.ListArray.from_arrays(list_offsets(lists), items, mask=lists.is_null())


def list_offsets(lists: pa.Array) -> pa.Array:
    """Returns the offset of each list in the column's items (`flatten`), and the number of all items."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.append(0, np.cumsum(lengths)), pa.int32())


def unnamed_columns(table: pa.Table, schema: pa.Schema) -> tuple[dict[str, Places], pa.Schema | None]:
    """Finds the fields that `schema` lacks, at any depth.

    Returns, by the field's path, the numbers of the rows in which the field has a value. Also returns the columns that
    contain such a field; None if there is no such column.
    """
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
    """Returns the number of fields of a schema or a type, at any depth."""
    if not isinstance(fields, pa.Schema):
        if not pa.types.is_nested(fields):
            return 0
        if not pa.types.is_struct(fields):
            inner = [fields.key_type, fields.item_type] if pa.types.is_map(fields) else [fields.value_type]
            return sum(map(count_fields, inner))
    return sum(1 + count_fields(part.type) for part in fields)


def in_utc(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with the zone UTC in all its timestamps.

    pyarrow's readers infer a timestamp without a zone even if the texts have a zone. A time whose text has no zone is
    in UTC.
    """
    return pa.schema([column.with_type(_in_utc(column.type)) for column in schema])


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_in_utc(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    return kind


def infinities(values: pa.Array) -> int:
    """Returns the number of infinities in a column, at any depth."""
    kind = values.type
    if pa.types.is_floating(kind):
        return pc.sum(pc.is_inf(values)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(map(infinities, values.flatten()))
    return infinities(values.flatten()) if has_items(kind) else 0


def check_finite(found: int, written: Callable[[], int]) -> None:
    """Raises if a column has more infinities than its texts contain: then a number was too large for the floating point
    type.
    """
    if found and found > written():
        raise pa.ArrowInvalid("a number is too large for its floating point column")


_FIRST_DAY: Final = (date.min - date(1970, 1, 1)).days
_LAST_DAY: Final = (date.max - date(1970, 1, 1)).days
_TIMES_OF_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def check_years(values: pa.Array) -> None:
    """Raises for dates and times outside the years 1 to 9999, at any depth: Python's types cannot hold them."""
    kind = values.type
    if pa.types.is_nested(kind):
        for child in children(values) if _has_dates(kind) else ():
            check_years(child)
    elif pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        ticks = _TIMES_OF_DAY[kind.unit] if pa.types.is_timestamp(kind) else 1
        found = pc.min_max(values)
        if found["min"].is_valid and not (
            _FIRST_DAY * ticks <= found["min"].value and found["max"].value < (_LAST_DAY + 1) * ticks
        ):
            raise pa.ArrowInvalid(f"a {kind} is outside the years 1 to 9999, in UTC")


def _has_dates(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_dates(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def children(values: pa.Array) -> list[pa.Array]:
    """Returns the children of a column of structs, lists or maps.

    Items of null lists, and items outside the slice, are left out.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        return [*values.flatten()]
    if pa.types.is_map(kind):
        return [*entries(values).flatten().flatten()]
    return [values.flatten()]


def check_held(columns: Sequence[pa.Array], written: Callable[[], int]) -> None:
    """Raises if a column cannot hold a value that was read from a text: see `check_finite` and `check_years`."""
    check_finite(sum(map(infinities, columns)), written)
    for values in columns:
        check_years(values)


_USUAL: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d(:?\d\d)?)$"
_UTC: Final = pa.timestamp("us", tz="UTC")


_ZONED: Final = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"


def timestamps(column: pa.Array, kind: pa.DataType, zone: str = "") -> pa.Array:
    """Converts strings to timestamps, cut to microseconds, the precision of Spark. A time without a zone is in `zone`;
    if `zone` is empty, the time is in UTC.

    A local time that occurs twice in `zone` (when clocks go back) means the first occurrence. A local time that never
    occurs is refused.
    """
    found = _in_zone(column, kind, zone) if zone else _timestamps(column, kind)
    check_years(found)
    return found


def _in_zone(column: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    none = pa.scalar(None, pa.string())
    zoned = pc.match_substring_regex(column, _ZONED)
    local = _timestamps(pc.if_else(zoned, none, column), pa.timestamp("us"))
    check_years(local)
    moved = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="raise")
    return pc.coalesce(_timestamps(pc.if_else(zoned, column, none), kind), pc.cast(moved, kind))


def _timestamps(column: pa.Array, kind: pa.DataType) -> pa.Array:
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


def plain(value: pa.Scalar) -> Any:
    """Converts an Arrow scalar to a Python value.

    Times become texts: Python has fewer years, zones and digits. A struct in which two fields have the same name
    becomes a list of pairs.
    """
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_temporal(kind):
        return _text_of_time(value)
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar | pa.UnionScalar | pa.RunEndEncodedScalar):
        return plain(value.value)
    if pa.types.is_struct(kind):
        pairs = [(part.name, plain(value[number])) for number, part in enumerate(kind)]
        return dict(pairs) if len({name for name, _ in pairs}) == len(pairs) else pairs
    if pa.types.is_nested(kind):
        items = [plain(item) for item in value.values]
        return [[*pair.values()] for pair in items] if pa.types.is_map(kind) else items
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        # Without the text, 0.1 would become 0.10000000149011612.
        return float(str(value.cast(pa.string())))
    return value.as_py()


def _text_of_time(value: pa.Scalar) -> str:
    try:
        return str(value.cast(pa.string()))
    except pa.ArrowException:  # an unknown zone
        if not pa.types.is_timestamp(value.type):
            return str(value)
        return f"{pa.scalar(value.value, pa.timestamp(value.type.unit)).cast(pa.string())} {value.type.tz}"
