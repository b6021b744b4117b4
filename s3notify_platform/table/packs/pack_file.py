"""One pack: a Parquet file of rows of many slots, sorted by (`_slot`, `_key`, `_offset`).

If slots are small, a row group ends where a slot ends. Row groups have statistics of `_slot`. So a read of a slot's
rows needs only the file's footer and a few ranges. `_slot` and `_key` are the first columns, so both are in one range
of each row group.
"""

import io
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.table.delta.actions import LAST_KEY, Add
from s3notify_platform.table.delta.statistics import add_of, without_nan

ORDER: Final = ("_slot", "_key", "_offset")

LOOKED_AT: Final = 256
"""The number of rows that are examined to choose the encoding of a file's columns."""

LEVEL: Final = 3
"""The compression level of zstd. With this level, files are 4% smaller than with level 1, and the time is about the
same. Higher levels take twice the time, and files are only 2% smaller."""

_INTEGERS: Final = (pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us"))
_DELTAS: Final = {kind.id: "DELTA_BINARY_PACKED" for kind in _INTEGERS} | {
    pa.string().id: "DELTA_BYTE_ARRAY",
    pa.binary().id: "DELTA_BYTE_ARRAY",
}
"""Encodings for columns whose values are mostly distinct. Spark, DuckDB, Polars and pyarrow can read these
encodings."""

Rows = npt.NDArray[np.int64]
"""Row numbers in a pack, counted from 0, in ascending order."""

Place = tuple[Any, ...]
"""The place of a row in the order of a pack: (slot, key, offset), or only (slot) if rows are sorted only by slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSizes:
    """The sizes of packs, in bytes, and the number of small packs.

    `row`: each row counts as at least this number of bytes, because well-compressed rows take as long to rewrite as
    other rows. `target`: a file of at least this size is full, and is not merged. No file is much larger than twice
    `target`. Smaller files are in size classes: up to `smallest`, up to `fan` times `smallest`, and so on. Each class
    has at most `in_class` files. `group`: Arrow bytes of a row group. `hidden`: the share of a pack's rows that a
    vector may hide. `budget`: the largest number of bytes of the packs that a round merges. `by_slot`: all rows of a
    slot are replaced together (`round_packs.write`). With `by_slot`, rows are sorted only by `_slot`, and a pack with
    rows of only one slot is full from `own` bytes on.
    """

    target: int = 64 << 20
    smallest: int = 1 << 20
    fan: int = 4
    in_class: int = 8
    group: int = 8 << 20
    hidden: float = 0.25
    budget: int = 64 << 20
    by_slot: bool = False
    own: int = 64 << 20
    row: int = 0

    def weight(self, size: int, rows: int) -> int:
        """Returns the weight of a file in bytes: its size, or `row` bytes for each row if this is more. Pure."""
        return max(size, rows * self.row)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns by which rows are sorted."""
        return ORDER[:1] if self.by_slot else ORDER

    def class_of(self, size: int) -> int | None:
        """Returns the size class of a file, from 0, or None if the file is full. Pure."""
        if size >= self.target:
            return None
        number, limit = 0, self.smallest
        while size >= limit and limit < self.target:
            number, limit = number + 1, limit * self.fan
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPack:
    """A pack that is not stored yet. `slots`: the number of rows by slot. `keys`: the least and the greatest key.

    `no_nan`: float columns without NaN, which may have bounds (`statistics`).
    """

    body: bytes
    slots: Mapping[int, int]
    keys: tuple[str, str]
    no_nan: frozenset[tuple[str, ...]] = frozenset()

    @property
    def rows(self) -> int:
        """The number of rows in the pack."""
        return sum(self.slots.values())

    def add(self, path: str, *, now_ms: int, since: int, until: int, data_change: bool = True) -> Add:
        """Returns the action that makes the pack live. `since` and `until`: the lowest and the highest label of the
        pack's rows.
        """
        return add_of(
            path,
            pq.ParquetFile(pa.BufferReader(self.body)).metadata,
            size=len(self.body),
            modified_ms=now_ms,
            since=since,
            until=until,
            data_change=data_change,
            no_nan=self.no_nan,
        )


@dataclass(slots=True, kw_only=True)
class OpenPack:
    """A pack that is being written: rows are added in their order. `UsageError`: the rows are not in order."""

    schema: pa.Schema
    sizes: PackSizes
    _sink: io.BytesIO = field(default_factory=io.BytesIO)
    _writer: pq.ParquetWriter | None = None
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0
    _slots: Counter[int] = field(default_factory=Counter)
    _keys: tuple[str, str] | None = None
    _last: tuple[object, ...] | None = None
    _no_nan: frozenset[tuple[str, ...]] | None = None

    @property
    def size(self) -> int:
        """The weight in bytes of the rows that are already written (`PackSizes.weight`).

        Rows that wait for their row group are not counted.
        """
        return self.sizes.weight(self._sink.tell(), self._slots.total())

    def add(self, rows: pa.Table) -> None:
        """Adds rows of one slot, in order. The rows must fit into one row group."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self.sizes.group:
            self._flush()

    def close(self) -> NewPack | None:
        """Ends the pack, and returns it, or None if it has no rows.

        `CorruptError`: readers could not open the file. The error message says how to change the columns.
        """
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        body = self._sink.getvalue()
        _check_readable(body, self._slots.total(), self.schema)
        return NewPack(
            body=body,
            slots=dict(self._slots),
            keys=self._keys or ("", LAST_KEY),
            no_nan=self._no_nan or frozenset(),
        )

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._waiting_bytes = [], 0
        if not rows.num_rows:
            return
        self._check_order(rows)
        slots, counts = np.unique(rows["_slot"].to_numpy(), return_counts=True)
        self._slots.update(dict(zip(slots.tolist(), counts.tolist(), strict=True)))
        if not self.sizes.by_slot:
            span = pc.min_max(rows["_key"]).as_py()
            low, high = self._keys or (span["min"], span["max"])
            self._keys = min(low, span["min"]), max(high, span["max"])
        no_nan = without_nan(rows)
        self._no_nan = no_nan if self._no_nan is None else self._no_nan & no_nan
        if self._writer is None:
            self._writer = _writer(self._sink, rows, self.sizes.order)
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def _check_order(self, rows: pa.Table) -> None:
        columns = [rows[name].combine_chunks() for name in self.sizes.order]
        before, after = slice(None, -1), slice(1, None)
        later: pa.Array = pa.array([True] * (rows.num_rows - 1), pa.bool_())
        for column in reversed(columns):
            one, next_one = column[before], column[after]
            same = pc.and_(pc.equal(one, next_one), later)
            later = pc.or_(pc.less(one, next_one), same)
        first, last = (tuple(column[n].as_py() for column in columns) for n in (0, -1))
        null = any(column.null_count for column in columns)
        if null or (self._last and first < self._last) or not pc.all(later, min_count=0).as_py():
            raise UsageError(
                f"rows of a pack must be sorted by {' and '.join(self.sizes.order)}, without nulls in these "
                "columns"
            )
        self._last = last


def place_of(rows: pa.Table, number: int, order: tuple[str, ...] = ORDER) -> Place:
    """Returns the place of a row in the order of a pack."""
    return tuple(rows[name][number].as_py() for name in order)


def rows_before(rows: pa.Table, place: Place, order: tuple[str, ...] = ORDER) -> int:
    """Returns how many of these sorted rows come before a place. Pure."""
    return bisect_left(range(rows.num_rows), place, key=lambda number: place_of(rows, number, order))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReader:
    """A stored pack, without the rows that its vector hides. `file`: the whole pack, or a file that reads ranges of the
    pack.
    """

    file: pq.ParquetFile
    hidden: Rows | None = None

    @classmethod
    def of(cls, source: bytes | pa.NativeFile, hidden: Rows | None = None, *, where: str) -> "PackReader":
        """Opens a pack. `CorruptError`, with `where` in its message: `source` is not a Parquet file."""
        try:
            whole = pa.BufferReader(source) if isinstance(source, bytes) else source
            return cls(file=pq.ParquetFile(whole, pre_buffer=True), hidden=hidden)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(f"{where}: not a Parquet file ({error}): restore it") from error

    @property
    def schema(self) -> pa.Schema:
        """The schema of the pack's rows."""
        return self.file.schema_arrow.remove_metadata()

    def groups(self) -> Iterator[pa.Table]:
        """Yields the live rows, one row group at a time."""
        start = 0
        for number in range(self.file.num_row_groups):
            rows = self.file.read_row_group(number).combine_chunks()
            yield rows.filter(self._live(start, rows.num_rows)) if self.hidden is not None else rows
            start += rows.num_rows

    def places(self, slots: npt.NDArray[np.int64]) -> Iterator[tuple[int, pa.Table]]:
        """Reads the columns `_slot` and `_key` of the row groups that may have one of `slots` (ascending). A pack
        without `_key` gives only `_slot`.

        Each result consists of the number of a row group's first row, and all rows of the row group in these columns.
        If the file is read by ranges, the call reads the footer and one range of each row group in the result.
        """
        start = 0
        metadata = self.file.metadata
        columns = [name for name in ("_slot", "_key") if name in self.file.schema_arrow.names]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if len(slots) and self._may_have(group.column(0), slots):
                yield start, self.file.read_row_group(number, columns=columns)
            start += group.num_rows

    @staticmethod
    def _may_have(column: pq.ColumnChunkMetaData, slots: npt.NDArray[np.int64]) -> bool:
        stats = column.statistics
        if column.path_in_schema != "_slot" or stats is None or not stats.has_min_max:
            return True
        low, high = np.searchsorted(slots, stats.min), np.searchsorted(slots, stats.max, "right")
        return bool(low < high)

    def _live(self, start: int, count: int) -> pa.Array:
        live = np.ones(count, dtype=bool)
        assert self.hidden is not None
        low, high = np.searchsorted(self.hidden, (start, start + count))
        live[self.hidden[low:high] - start] = False
        return pa.array(live)


def _writer(sink: io.BytesIO, first: pa.Table, order: tuple[str, ...]) -> pq.ParquetWriter:
    """Returns a writer of Parquet files. A column gets no dictionary if most values in the first rows are distinct."""
    deltas = deltas_of(first)
    dictionaries = [path for column in first.schema if column.name not in deltas for path in leaves(column)]
    return pq.ParquetWriter(
        sink,
        first.schema,
        compression="zstd",
        compression_level=LEVEL,
        use_dictionary=dictionaries,
        column_encoding=deltas,
        sorting_columns=pq.SortingColumn.from_ordering(
            first.schema, [(name, "ascending") for name in order], null_placement="at_end"
        ),
    )


def deltas_of(rows: pa.Table) -> dict[str, str]:
    """Returns the encodings of columns whose values are mostly distinct. These columns get no dictionary. Pure."""
    first = rows.slice(0, LOOKED_AT)
    return {
        column.name: encoding
        for column in rows.schema
        if (encoding := _DELTAS.get(column.type.id))
        and pc.count_distinct(first[column.name]).as_py() > len(first) // 2
    }


def leaves(column: pa.Field, above: str = "") -> Iterator[str]:
    """Yields the paths of the leaf columns of a column, as in a Parquet file. Pure."""
    path, kind = above + column.name, column.type
    if pa.types.is_list(kind):
        yield from leaves(kind.value_field.with_name("element"), f"{path}.list.")
    elif pa.types.is_map(kind):
        yield from leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pa.types.is_struct(kind):
        for part in kind:
            yield from leaves(part, f"{path}.")
    else:
        yield path


def _check_readable(body: bytes, rows: int, schema: pa.Schema) -> None:
    """Raises `CorruptError` if readers could not open the file, because a version must never name an unreadable
    file.
    """
    try:
        read = pq.ParquetFile(pa.BufferReader(body))
        same = read.metadata.num_rows == rows and read.schema_arrow.names == schema.names
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(
            f"a file of these rows could not be read again ({error}): leave out columns"
        ) from error
    if not same:
        raise CorruptError("a file of these rows would not hold the same columns and rows: rename columns")
