"""Makes the statistics of a pack from its Parquet footer. By these statistics, a query can skip the pack. Pure.

Guarantee: no row is outside the bounds, in the order in which engines compare values. A column for which no bound is
safe has no bound. So a query finds the same rows with statistics as without them.

- Bounds of strings are cut after `STRING_CHARS` characters. The last character of a cut upper bound is replaced by the
  next character. Texts have the same order by code points as by their bytes in UTF-8. Texts in lineage columns are not
  cut.
- Lower bounds of times are rounded down to the millisecond, and upper bounds are rounded up.
- Engines may read decimals as doubles. So decimals with more than `EXACT_DIGITS` digits are rounded: lower bounds down,
  upper bounds up.
- The bounds in footers ignore NaN. But some engines treat NaN as the greatest value, and other engines treat NaN as the
  least value. So a column of floats has bounds only if the writer has checked that the column has no NaN
  (`without_nan`).
- Booleans and binaries have only a count of nulls. Lists and maps, and the fields inside them, have no statistics.
- A value that the log cannot express (the year 10000, infinity) does not become a bound.

A deletion vector does not change the bounds. So the bounds may be too wide for the visible rows, and the function
`hidden` sets `tightBounds` to false.

Source: Delta Transaction Log Protocol, "Per-file Statistics".
"""

import datetime as dt
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.table.delta.actions import Add, Vector
from s3notify_platform.table.delta.metadata import LINEAGE

STATISTICS_COLUMNS: Final = 32
"""At most this number of columns have statistics. A field inside a struct counts as a column."""

STRING_CHARS: Final = 32
"""The largest number of characters in a bound of strings."""

EXACT_DIGITS: Final = 15
"""The number of digits that a decimal keeps when it is converted to a double and back."""

_LAST: Final = "\U0010ffff"
_WHOLE: Final = frozenset(name for name, _ in LINEAGE)
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()
_MS: Final = {"s": Decimal(1000), "ms": Decimal(1), "us": Decimal("1e-3"), "ns": Decimal("1e-6")}
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last millisecond of the years 1 to 9999."""

Path = tuple[str, ...]


@dataclass(slots=True)
class _Column:
    """The statistics of a leaf column, over the row groups that were read so far. `least`, `greatest`: bounds in the
    footer's format.
    """

    kind: pa.DataType
    nulls: int | None = 0
    bounded: bool = True
    least: Any = None
    greatest: Any = None

    def take(self, chunk: pq.ColumnChunkMetaData) -> None:
        if not chunk.num_values:
            return
        found = chunk.statistics
        if found is None or not found.has_null_count:
            self.nulls, self.bounded = None, False
            return
        if self.nulls is not None:
            self.nulls += found.null_count
        if found.has_min_max:
            low, high = _raw(found, self.kind)
            self.least = low if self.least is None else min(self.least, low)
            self.greatest = high if self.greatest is None else max(self.greatest, high)
        elif found.num_values:  # no bounds: the values are too long for the footer
            self.bounded = False


@dataclass(slots=True)
class _Tree:
    """JSON texts of values, by column. A struct is a tree inside the tree."""

    parts: dict[str, "str | _Tree"] = field(default_factory=dict)

    def put(self, path: Path, text: str) -> None:
        *above, name = path
        tree = self
        for part in above:
            inner = tree.parts.setdefault(part, _Tree())
            assert isinstance(inner, _Tree)
            tree = inner
        tree.parts[name] = text

    def text(self) -> str:
        parts = (
            f"{json.dumps(name, ensure_ascii=False)}:{part if isinstance(part, str) else part.text()}"
            for name, part in self.parts.items()
        )
        return f"{{{','.join(parts)}}}"


def add_of(
    path: str,
    footer: pq.FileMetaData,
    *,
    size: int,
    modified_ms: int,
    since: int,
    until: int,
    data_change: bool = True,
    no_nan: Collection[Path] = (),
) -> Add:
    """Returns the action that adds this pack. `path`: the pack's path in the log.

    `no_nan`: the float columns without NaN, which may have bounds.
    """
    stats = stats_of(footer, no_nan=no_nan)
    found = {"path": path, "size": size, "modificationTime": modified_ms, "stats": stats}
    return replace(Add.of(found), since=since, until=until, data_change=data_change)


def stats_of(footer: pq.FileMetaData, *, no_nan: Collection[Path] = ()) -> str:
    """Returns the statistics of a file, in the text format of an action."""
    least, greatest, nulls = _Tree(), _Tree(), _Tree()
    for path, column in _columns(footer):
        if column.nulls is not None:
            nulls.put(path, str(column.nulls))
        if column.least is None or not column.bounded:
            continue
        low, high = _bounds(path, column, no_nan)
        if low is not None:
            least.put(path, low)
        if high is not None:
            greatest.put(path, high)
    return (
        f'{{"numRecords":{footer.num_rows},"minValues":{least.text()},'
        f'"maxValues":{greatest.text()},"nullCount":{nulls.text()}}}'
    )


def without_nan(rows: pa.Table) -> frozenset[Path]:
    """Returns the float columns without NaN in these rows.

    If a file is written in parts, the function is called for each part. A column has no NaN if all results contain the
    column.
    """
    found: set[Path] = set()

    def look(path: Path, values: pa.ChunkedArray) -> None:
        if pa.types.is_struct(values.type):
            for at in range(values.type.num_fields):
                look((*path, values.type.field(at).name), pc.struct_field(values, [at]))
        elif pa.types.is_floating(values.type) and not pc.any(pc.is_nan(values)).as_py():
            found.add(path)

    for name, values in zip(rows.schema.names, rows.columns, strict=True):
        look((name,), values)
    return frozenset(found)


def hidden(add: Add, vector: Vector, *, data_change: bool = True) -> Add:
    """Returns an action that adds the same file again with `vector`, which hides some rows. The caller must remove the
    old `add`.
    """
    stats: dict[str, Any] = json.loads(add.stats or "{}")
    stats["tightBounds"] = False
    # A bound of another engine may have half of a surrogate pair, which only JSON's escapes can express.
    text = json.dumps(stats, separators=(",", ":"))
    return replace(add, vector=vector, stats=text, data_change=data_change)


# From the footer


def _columns(footer: pq.FileMetaData) -> Iterator[tuple[Path, _Column]]:
    """Yields at most `STATISTICS_COLUMNS` columns that get statistics: the lineage columns, the columns by which the
    file is sorted, and then the first other columns that can have statistics.
    """
    leaves = list(_leaves(footer.schema.to_arrow_schema()))
    single = [(at, path, kind) for at, (path, kind) in enumerate(leaves) if path is not None]
    groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
    ordered = {each.column_index for group in groups[:1] for each in group.sorting_columns}
    first = [each for each in single if _own(each[1]) or each[0] in ordered]
    others = islice((each for each in single if each not in first), max(0, STATISTICS_COLUMNS - len(first)))
    for at, path, kind in [*first, *others]:
        column = _Column(kind)
        for group in groups:
            column.take(group.column(at))
        yield path, column


def _own(path: Path) -> bool:
    return len(path) == 1 and path[0] in _WHOLE


def _leaves(fields: Any, above: Path | None = ()) -> Iterator[tuple[Any, pa.DataType]]:
    """Yields the path and type of each leaf column of a Parquet file, in order. The path is None inside lists and
    maps.
    """
    for part in fields:
        path = None if above is None else (*above, part.name)
        kind = part.type
        if pa.types.is_struct(kind):
            yield from _leaves([kind.field(at) for at in range(kind.num_fields)], path)
        elif pa.types.is_map(kind):
            yield from _leaves([kind.key_field, kind.item_field], None)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            yield from _leaves([kind.value_field], None)
        else:
            yield path, kind


def _raw(found: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Returns the bounds of a row group: decimals unchanged, texts as bytes, dates and times as numbers.

    Dates and times are numbers, because they may be beyond Python's range of dates.
    """
    return (found.min, found.max) if pa.types.is_decimal(kind) else (found.min_raw, found.max_raw)


# To JSON


def _bounds(path: Path, column: _Column, no_nan: Collection[Path]) -> tuple[str | None, str | None]:
    kind, low, high = column.kind, column.least, column.greatest
    if pa.types.is_integer(kind):
        return str(low), str(high)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        chars = None if _own(path) else STRING_CHARS
        return _text(low, lambda text: text[:chars]), _text(high, lambda text: _raised(text, chars))
    if pa.types.is_floating(kind):
        return (_float(low), _float(high)) if path in no_nan else (None, None)
    if pa.types.is_decimal(kind):
        return _decimal(low, kind, ROUND_FLOOR), _decimal(high, kind, ROUND_CEILING)
    if pa.types.is_date32(kind):
        return _date(low), _date(high)
    if pa.types.is_timestamp(kind):
        return _time(low, kind, math.floor), _time(high, kind, math.ceil)
    return None, None


def _text(value: bytes, cut: Callable[[str], str | None]) -> str | None:
    try:
        text = cut(value.decode())
    except UnicodeDecodeError:  # Parquet does not check that strings are UTF-8
        return None
    return None if text is None else json.dumps(text, ensure_ascii=False)


def _raised(text: str, chars: int | None) -> str | None:
    """Returns an upper bound for a text. A short text is its own bound. The bound of a long text is its beginning, with
    the last character replaced by the next character. The bound is None if no character has a next character.
    """
    if chars is None or len(text) <= chars:
        return text
    kept = text[:chars].rstrip(_LAST)
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if after == 0xD800 else after)  # surrogates are not characters


def _float(value: float) -> str | None:
    return repr(float(value)) if math.isfinite(value) else None


def _decimal(value: Decimal, kind: Any, rounding: str) -> str | None:
    rounded = Context(prec=EXACT_DIGITS, rounding=rounding).plus(value)
    if rounded.is_zero():
        return "0"
    if (
        rounded.adjusted() >= kind.precision - kind.scale
    ):  # rounding has added a digit, and the type has no room for it
        return None
    return format(rounded, "f")


def _date(days: int) -> str | None:
    at = days + _EPOCH
    return f'"{dt.date.fromordinal(at).isoformat()}"' if 1 <= at <= dt.date.max.toordinal() else None


def _time(value: int, kind: Any, rounded: Callable[[Decimal], int]) -> str | None:
    ms = rounded(value * _MS[kind.unit])
    if not _FIRST_MS <= ms <= _LAST_MS:
        return None
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)
    zone = "Z" if kind.tz is not None else ""
    return f'"{at.replace(tzinfo=None).isoformat(timespec="milliseconds")}{zone}"'
