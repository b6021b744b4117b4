"""Common parts of formats with records: byte ranges, blocks, rows and rejects.

Small objects are joined and parsed together, which is 5 to 10 times faster than one by one (see `row_conversion`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from s3notify_platform.formats.notation import USUAL, Notation
from s3notify_platform.formats.rescue import RESCUED, Rescued, Tally, as_json, rescued_column, shortened
from s3notify_platform.kernel.limits import MAX_COLUMNS, MAX_RAW_BYTES, MAX_SCHEMA_BYTES

BLOCK_BYTES: Final = 8 << 20
"""Records are parsed in blocks of about this size."""

UNKNOWN_FIELD: Final = "is not in the schema"
"""Part of a reject's reason: the record has a field that the inferred schema lacks."""

FIELD_COLUMNS: Final = 2
"""Number of columns to reserve for a new field, which may be a struct with one field."""
FIELD_BYTES: Final = 160
"""Number of bytes to reserve for a new field in a schema, besides the field's name."""

BOM: Final = b"\xef\xbb\xbf"
NEWLINE: Final = ord("\n")
RETURN: Final = ord("\r")

Offsets = npt.NDArray[np.int64]

_NONE: Final = np.zeros(0, np.int64)


# `Reject` is not frozen: a frozen object takes three times as long to create, and each record may be a reject.
@dataclass(slots=True, kw_only=True)
class Reject:
    """A record that could not be loaded. `raw` is cut at `MAX_RAW_BYTES`."""

    index: int
    offset: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Describes the rows that records become: rows with the columns of `schema`.

    `inferred`: true if `schema` was inferred. In this case, fields that `schema` lacks must not be dropped. `rescue`:
    true if a value that does not fit goes to `_rescued`, the last column. Without `rescue`, the record is a reject.
    `size`: the stored schema's number of columns and number of bytes, which both have limits. `name`: the source's
    name, if its schema was inferred.
    """

    schema: pa.Schema
    inferred: bool = False
    rescue: bool = False
    size: tuple[int, int] = (0, 0)
    name: str = ""

    @property
    def output(self) -> pa.Schema:
        """The columns of rows."""
        return self.schema.append(RESCUED) if self.rescue else self.schema

    def unknown(self, path: str) -> str:
        """Returns the reason to reject a record with a field that `schema` lacks.

        If the schema is full, the reason contains the schema's limit.
        """
        reason = f"field {shortened(path)!r} {UNKNOWN_FIELD}"
        columns, size = self.size
        for found, limit, needed, unit in (
            (columns, MAX_COLUMNS, FIELD_COLUMNS, "columns"),
            (size, MAX_SCHEMA_BYTES, FIELD_BYTES + len(as_json(path)), "bytes"),
        ):
            if self.inferred and found + needed > limit:
                return (
                    f"{reason}, which is full: {found} of at most {limit} {unit}: declare `schema` (fields that it "
                    "lacks are left out), or set mismatches: rescue"
                )
        return reason

    def rows(self, table: pa.Table, rescued: Sequence[Rescued | None] | None = None) -> pa.Table:
        """Makes rows of an Arrow table that has the columns of `schema`.

        `rescued`: the rescued values of each row, or None.
        """
        if not self.rescue:
            return table
        texts = rescued_column(rescued) if rescued else pa.nulls(table.num_rows, RESCUED.type)
        return pa.Table.from_arrays([*table.columns, texts], schema=self.output)

    def column(self, name: str, values: pa.Array) -> pa.Table:
        """Returns an Arrow table with the columns of `schema`.

        Column `name` has these values, and all other columns have nulls.
        """
        columns = [values if c.name == name else pa.nulls(len(values), c.type) for c in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)


@dataclass(slots=True, kw_only=True)
class Parsed:
    """Rows of several objects, with the columns of a `Target`; `index` and `offset` have each row's object and offset.

    `unnamed` counts, by object and path, the values of fields that the schema lacks. If the schema was declared, these
    values are dropped. If it was inferred, `new_fields` has the missing fields. `mismatches` counts the values that do
    not fit their columns. If the format has records, `records` has the raw records, and `numbers` has for each row the
    number of its record.
    """

    table: pa.Table
    index: Offsets
    offset: Offsets
    records: "Records | None" = None
    numbers: Offsets = field(default_factory=lambda: _NONE)
    rejects: list[Reject] = field(default_factory=list)
    unnamed: Tally = field(default_factory=dict)
    mismatches: Tally = field(default_factory=dict)
    new_fields: list[pa.Schema] = field(default_factory=list)

    def raw(self, row: int) -> bytes:
        """Returns the raw record of a row; the row's values as JSON if `records` is None."""
        if self.records is not None:
            return self.records.raw(self.numbers[row])
        return as_json(self.table.slice(row, 1).to_pylist()[0]).encode()

    def texts(self) -> pa.Array:
        """Returns the raw records of the rows as strings, with U+FFFD for bytes that are not UTF-8.

        If `records` is None, all strings are null.
        """
        if self.records is None:
            return pa.nulls(len(self.index), pa.string())
        return self.records.take(self.numbers).texts()

    def without(self, rows: npt.NDArray[np.bool_]) -> "Parsed":
        """Returns this result without the rows for which `rows` is true."""
        kept = ~rows
        return replace(
            self,
            table=self.table.filter(pa.array(kept)),
            index=self.index[kept],
            offset=self.offset[kept],
            numbers=self.numbers[kept] if self.records is not None else self.numbers,
        )

    def of(self, index: int) -> "Parsed":
        """Returns a copy in which object 0 has the number `index`."""
        return replace(
            self,
            index=np.full(len(self.index), index),
            rejects=[replace(reject, index=index) for reject in self.rejects],
            unnamed={index: self.unnamed[0]} if self.unnamed else {},
            mismatches={index: self.mismatches[0]} if self.mismatches else {},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of a block.

    `start`, `end`: the byte range of each record in `body`; `index`, `offset`: the record's object and offset.
    """

    body: bytes
    start: Offsets
    end: Offsets
    index: Offsets
    offset: Offsets

    @classmethod
    def of(cls, raw: bytes) -> "Records":
        """Returns one record."""
        start, end = np.array([0]), np.array([len(raw)])
        return cls(body=raw, start=start, end=end, index=start, offset=start)

    def part(self, low: int, high: int) -> "Records":
        """Returns the records from `low` to before `high`."""
        return self.take(slice(low, high))

    def take(self, numbers: Offsets | slice) -> "Records":
        """Returns the records with these numbers."""
        return Records(
            body=self.body,
            start=self.start[numbers],
            end=self.end[numbers],
            index=self.index[numbers],
            offset=self.offset[numbers],
        )

    def raw(self, number: int) -> bytes:
        """Returns the bytes of one record."""
        return self.body[self.start[number] : self.end[number]]

    def texts(self) -> pa.Array:
        """Returns the records as strings; bytes that are not UTF-8 become U+FFFD."""
        # Parts 0, 2, 4, … are records; the other parts are line ends.
        bounds = np.column_stack([self.start, self.end]).ravel()
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.body)]
        parts = pa.Array.from_buffers(pa.large_binary(), max(len(bounds) - 1, 0), buffers)
        raw = parts.take(pa.array(np.arange(0, len(bounds), 2)))
        try:
            return raw.cast(pa.large_string()).cast(pa.string())
        except pa.ArrowException:
            return pa.array([one.decode(errors="replace") for one in raw.to_pylist()], pa.string())

    def joined(self) -> bytes:
        """Returns the bytes of all records, with a line end behind each record."""
        if len(self.start) == 0:
            return b""
        # Between two of these records there are only line ends of one or two bytes, and blank lines, which
        # pyarrow's readers skip.
        if bool(np.all(self.start[1:] - self.end[:-1] <= 2)):
            first, last = int(self.start[0]), int(self.end[-1])
            # The line end behind the last record is included, if there is one. Thus the body is not copied if these
            # records are the whole body.
            for behind in (b"\n", b"\r\n"):
                if self.body.startswith(behind, last):
                    return self.body[first : last + len(behind)]
            return self.body[first:last] + b"\n"
        view = memoryview(self.body)
        breaks = np.flatnonzero(self.start[1:] - self.end[:-1] > 2) + 1
        first, last = self.start[np.append(0, breaks)], self.end[np.append(breaks - 1, -1)]
        return b"\n".join(view[s:e] for s, e in zip(first.tolist(), last.tolist(), strict=True)) + b"\n"


NO_RECORDS: Final = Records(body=b"", start=_NONE, end=_NONE, index=_NONE, offset=_NONE)


def not_utf8(records: Records) -> Iterator[int]:
    """Yields the numbers of records that are not UTF-8."""
    if not len(records.start) or records.body.isascii():
        return
    high = np.flatnonzero(np.frombuffer(records.body, np.uint8) & 128)
    for number in np.unique(np.searchsorted(records.end, high)).tolist():
        try:
            if number < len(records.end):
                records.raw(number).decode()
        except UnicodeDecodeError:
            yield number


def no_rows(target: Target, rejects: Sequence[Reject]) -> Parsed:
    """Returns a result that has these rejects, and no rows."""
    return Parsed(table=target.output.empty_table(), index=_NONE, offset=_NONE, rejects=[*rejects])


def rejected_whole(index: int, body: bytes, reason: str, target: Target) -> Parsed:
    """Returns the result for an object that is rejected as a whole."""
    return no_rows(target, [Reject(index=index, offset=0, reason=reason, raw=body[:MAX_RAW_BYTES])])


def ranges_between(
    body: bytes, breaks: npt.NDArray[np.bool_], *, mark: bool = True
) -> tuple[Offsets, Offsets]:
    """Returns the starts and ends of the records between `breaks`, without line ends and without a byte order mark.

    `mark`: the body is the object's beginning, the only place that may have a byte order mark.
    """
    octets = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(breaks).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])
    ends = np.concatenate([ends, np.full(1, len(body), np.int64)])
    if starts[-1] == len(body):
        starts, ends = starts[:-1], ends[:-1]
    if len(starts) == 0:
        return starts, ends
    if mark and body.startswith(BOM):
        starts[0] = len(BOM)
    returned = (ends > starts) & (octets[np.maximum(ends - 1, 0)] == RETURN)
    return starts, ends - returned


Ranges = Callable[[bytes], tuple[Offsets, Offsets]]


def blocks(objects: Iterable[tuple[int, bytes]], ranges: Ranges) -> Iterator[Records]:
    """Joins the records of numbered `objects` into blocks of about `BLOCK_BYTES`."""
    bodies: list[bytes] = []
    parts: list[tuple[Offsets, Offsets, Offsets, Offsets]] = []
    base = 0

    def flush() -> Records:
        start, end, index, offset = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Records(body=b"\n".join(bodies), start=start, end=end, index=index, offset=offset)

    for number, body in objects:
        start, end = ranges(body)
        low = 0
        while low < len(start):
            high = max(low + 1, int(np.searchsorted(end, start[low] + BLOCK_BYTES)))
            part = slice(low, high)
            first, last = int(start[low]), int(end[high - 1])
            shift = base - first
            parts.append((start[part] + shift, end[part] + shift, np.full(high - low, number), start[part]))
            bodies.append(body[first:last])
            base += last - first + 1
            low = high
            if base >= BLOCK_BYTES:
                yield flush()
                bodies, parts, base = [], [], 0
    if parts:
        yield flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMismatches:
    """The mismatches at one path: their texts, and the numbers of their rows in the Arrow table."""

    path: str
    places: Offsets
    texts: list[str]

    def pairs(self) -> Iterator[tuple[int, str]]:
        """Yields the row number and the text of each value."""
        return zip(self.places.tolist(), self.texts, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Records as an Arrow table. `left`: the numbers of the records that the Arrow table lacks.

    `unnamed`: for each path that the schema lacks, the rows with a value. `mismatches` are null in the Arrow table.
    """

    table: pa.Table
    unnamed: dict[str, Offsets] = field(default_factory=dict)
    new_fields: pa.Schema | None = None
    mismatches: Sequence[ColumnMismatches] = ()
    left: Offsets = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Records that were converted value by value.

    A record that cannot be split into values is None in `rescued`, and is missing in `table`.
    """

    table: pa.Table
    rescued: list[Rescued | None]
    new_fields: Sequence[pa.Schema] = ()


class Parser(Protocol):
    """Converts one format's records to columns.

    For records that do not fit, each method except `recover` raises `pa.ArrowException` or `UnicodeError`, and no other
    error.
    """

    target: Target
    notation: Notation = USUAL

    def convert(self, records: Records) -> Converted:
        """Converts all records together; raises if any record does not fit."""
        ...

    def convert_most(self, records: Records) -> Converted:
        """Like `convert`, but may leave out records that probably do not fit, or may return mismatches."""
        return self.convert(records)

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """Returns the texts of the values that have no column in the schema, by path. `raw`: a record that fits."""
        ...

    def recover(self, records: Records) -> Recovered:
        """Converts value by value.

        Never raises for bad data. Records that are not recovered are converted one by one later.
        """
        ...

    def infer(self, records: Records) -> pa.Schema:
        """Infers the schema from these records or, if there are no records, from the header."""
        ...

    def halves(self, records: Records) -> list[Records]:
        """Returns parts of a single record from which `infer` could not infer a schema, each as one record. Returns
        nothing if the record has no parts.
        """
        return []


def reason_of(error: Exception) -> str:
    """Returns the text of an error as the reason of a reject."""
    return str(error).replace(" in row 0", "").strip()[:500]
