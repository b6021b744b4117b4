"""What formats of records share: byte ranges, blocks, rows and rejects, and the search for bad records.

Small objects are joined and parsed at once (5 to 10 times faster than one by one); when that fails, or gives
another number of rows than there are records, those that a quick look suspects are converted value by value and the
others at once; as long as that fails, halved. A record with values that do not fit is a reject with its offset, reason
and raw bytes; with `rescue` it keeps the values that fit. No record stops another: rows and rejects together are as
many as the records.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from s3notify_platform.formats.columns import count_fields
from s3notify_platform.formats.rescue import (
    RESCUED,
    Rescued,
    Tally,
    count,
    mismatch_reason,
    rescued_column,
)
from s3notify_platform.limits import MAX_CELLS, MAX_RAW_BYTES

BLOCK_BYTES: Final = 8 << 20
"""Records are parsed in blocks of about this size."""

UNKNOWN_FIELD: Final = "is not in the schema"
"""Part of the reason of a reject that has a field which an inferred schema does not name."""

BOM: Final = b"\xef\xbb\xbf"
RECOVER_RECORDS: Final = 32
"""A block of at most so many records that fails is converted value by value."""

RECOVERED_AT_ONCE: Final = 4096
"""Suspects that are converted value by value together: their texts are in memory as Python objects."""

NEWLINE: Final = ord("\n")
RETURN: Final = ord("\r")

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A record that could not be ingested. `raw` is cut at `MAX_RAW_BYTES`."""

    index: int
    offset: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What records are to become: rows in the columns of `schema`.

    `inferred`: `schema` was inferred, so fields that it does not name must not be dropped. `rescue`: values that do not
    fit go to `_rescued`, a column after those of `schema`; else the record is a reject.
    """

    schema: pa.Schema
    inferred: bool = False
    rescue: bool = False

    @property
    def output(self) -> pa.Schema:
        """The columns of rows."""
        return self.schema.append(RESCUED) if self.rescue else self.schema

    def rows(self, table: pa.Table, rescued: Sequence[Rescued | None] | None = None) -> pa.Table:
        """A table in `schema` as rows; None for records in which all fits."""
        if not self.rescue:
            return table
        texts = rescued_column(rescued) if rescued else pa.nulls(table.num_rows, RESCUED.type)
        return pa.Table.from_arrays([*table.columns, texts], schema=self.output)

    def column(self, name: str, values: pa.Array) -> pa.Table:
        """A table in `schema` with values in one column, and nulls in any other."""
        columns = [values if c.name == name else pa.nulls(len(values), c.type) for c in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)


@dataclass(slots=True, kw_only=True)
class Parsed:
    """Rows of several objects in the columns of a `Target`; `index` and `offset` say where each is from.

    `unnamed` counts, by object and path, the values that the schema does not name: they are left out of rows if the
    schema was given, and `new_fields` says what an inferred one would need to name them. `mismatches` counts the
    values that do not fit their columns.
    """

    table: pa.Table
    index: Offsets
    offset: Offsets
    rejects: list[Reject] = field(default_factory=list)
    unnamed: Tally = field(default_factory=dict)
    mismatches: Tally = field(default_factory=dict)
    new_fields: list[pa.Schema] = field(default_factory=list)

    def of(self, index: int) -> "Parsed":
        """Rows and rejects of object 0, as those of object number `index`."""
        return replace(
            self,
            index=np.full(len(self.index), index),
            rejects=[replace(reject, index=index) for reject in self.rejects],
            unnamed={index: self.unnamed[0]} if self.unnamed else {},
            mismatches={index: self.mismatches[0]} if self.mismatches else {},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records of a block: byte ranges into `body`, and which object and offset each came from."""

    body: bytes
    start: Offsets
    end: Offsets
    index: Offsets
    offset: Offsets

    def part(self, low: int, high: int) -> "Records":
        """The records from `low` to before `high`."""
        return self.take(slice(low, high))

    def take(self, numbers: Offsets | slice) -> "Records":
        """The records of these numbers."""
        return Records(
            body=self.body,
            start=self.start[numbers],
            end=self.end[numbers],
            index=self.index[numbers],
            offset=self.offset[numbers],
        )

    def raw(self, number: int) -> bytes:
        """The bytes of one record."""
        return self.body[self.start[number] : self.end[number]]

    def joined(self) -> bytes:
        """The bytes of all records, with line ends between them and behind the last."""
        if len(self.start) == 0:
            return b""
        # A line end of one or two bytes, or a blank line: the readers skip both.
        if bool(np.all(self.start[1:] - self.end[:-1] <= 2)):
            first, last = int(self.start[0]), int(self.end[-1])
            # With the line end behind it, if there is one: then the whole body is not copied.
            for behind in (b"\n", b"\r\n"):
                if self.body.startswith(behind, last):
                    return self.body[first : last + len(behind)]
            return self.body[first:last] + b"\n"
        view = memoryview(self.body)
        breaks = np.flatnonzero(self.start[1:] - self.end[:-1] > 2) + 1
        first, last = self.start[np.append(0, breaks)], self.end[np.append(breaks - 1, -1)]
        return b"\n".join(view[s:e] for s, e in zip(first.tolist(), last.tolist(), strict=True)) + b"\n"


_NONE: Final = np.zeros(0, np.int64)
NO_RECORDS: Final = Records(body=b"", start=_NONE, end=_NONE, index=_NONE, offset=_NONE)


def not_utf8(records: Records) -> Iterator[int]:
    """The numbers of records that are not UTF-8."""
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
    """No rows, only rejects."""
    return Parsed(table=target.output.empty_table(), index=_NONE, offset=_NONE, rejects=[*rejects])


def rejected_whole(index: int, body: bytes, reason: str, target: Target) -> Parsed:
    """An object that is a reject as a whole."""
    return no_rows(target, [Reject(index=index, offset=0, reason=reason, raw=body[:MAX_RAW_BYTES])])


def ranges_between(
    body: bytes, breaks: npt.NDArray[np.bool_], *, mark: bool = True
) -> tuple[Offsets, Offsets]:
    """Byte ranges of the records between `breaks`, without their line ends and without a byte order mark.

    `mark`: this is the object's beginning, the only place where there may be one.
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
    """The records of numbered `objects`, joined into blocks of about `BLOCK_BYTES`."""
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
class Converted:
    """Records that fit, as a table. `unnamed`: by path, which of them have values that the schema does not name."""

    table: pa.Table
    unnamed: dict[str, Offsets] = field(default_factory=dict)
    new_fields: pa.Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Records converted value by value. One that cannot be split into values is None, and not in `table`."""

    table: pa.Table
    rescued: list[Rescued | None]
    new_fields: Sequence[pa.Schema] = ()


class Parser(Protocol):
    """One format's way from records to columns. All but `recover` raise what pyarrow raises, or `UnicodeError`."""

    target: Target

    def convert(self, records: Records) -> Converted:
        """All records together; raises if any does not fit."""
        ...

    def suspects(self, records: Records) -> Offsets:
        """The numbers of records that probably do not fit, found fast.

        It need not be exact: those that fit after all become rows, and what is missed is found by halving.
        """
        return _NONE

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """Of a record that fits, the texts of the values that the schema does not name, by path."""
        ...

    def recover(self, records: Records) -> Recovered:
        """Value by value. Never raises for bad data."""
        ...

    def infer(self, records: Records) -> pa.Schema:
        """The schema inferred from these records; without records, from the header."""
        ...


def converted(records: Records, parser: Parser) -> Iterator[Parsed]:
    """The records of a block, as many at once as their columns allow."""
    step = max(1, MAX_CELLS // max(1, count_fields(parser.target.output)))
    for low in range(0, len(records.start), step):
        yield convert_or_halve(records.part(low, low + step), parser)


def convert_or_halve(records: Records, parser: Parser) -> Parsed:
    """One block converted. If that fails, suspect records are recovered value by value, or are rejects.

    What is bad besides is found by halving.
    """
    rows = _Rows(records, parser)
    pending = [np.arange(len(records.start))]
    sieved = len(records.start) <= RECOVER_RECORDS
    while pending:
        numbers = pending.pop()
        part = records.take(numbers)
        try:
            found = parser.convert(part)
            if found.table.num_rows != len(numbers):
                raise pa.ArrowInvalid(f"{found.table.num_rows} records where one was expected")
        except (pa.ArrowException, UnicodeError) as error:
            if len(numbers) <= RECOVER_RECORDS:
                left = rows.take_recovered(numbers, parser.recover(part))
                if len(numbers) == 1 and len(left):
                    rows.reject(int(numbers[0]), reason_of(error))
                else:
                    pending += [*left.reshape(-1, 1)]
            elif sieved or not len(suspects := parser.suspects(part)):
                pending += reversed(np.array_split(numbers, 2))
            else:
                for some in np.array_split(numbers[suspects], len(suspects) // RECOVERED_AT_ONCE + 1):
                    pending += [*rows.take_recovered(some, parser.recover(records.take(some))).reshape(-1, 1)]
                if len(rest := np.delete(numbers, suspects)):
                    pending.append(rest)
            sieved = True
            continue
        rows.take(numbers, found)
    return rows.result()


class _Rows:
    """The rows and rejects of a block, as they are found."""

    def __init__(self, records: Records, parser: Parser) -> None:
        self.records = records
        self.parser = parser
        self.found = no_rows(parser.target, [])
        self.tables: list[pa.Table] = []
        self.numbers: list[Offsets] = []

    def take(self, numbers: Offsets, found: Converted) -> None:
        """Records that fit, by their numbers; they may have values that the schema does not name."""
        target = self.parser.target
        if not found.unnamed:
            self._add(numbers, target.rows(found.table))
            return
        for path, places in found.unnamed.items():
            objects, times = np.unique(self.records.index[numbers[places]], return_counts=True)
            for index, values in zip(objects.tolist(), times.tolist(), strict=True):
                count(self.found.unnamed, index, [path], values)
        if target.inferred and found.new_fields is not None:
            self.found.new_fields.append(found.new_fields)
        having = np.unique(np.concatenate(list(found.unnamed.values())))
        if target.rescue:
            rescued: list[Rescued | None] = [None] * len(numbers)
            kept = np.ones(len(numbers), bool)
            for place in having.tolist():
                try:
                    rescued[place] = Rescued(unnamed=self.parser.unnamed(self.records.raw(numbers[place])))
                except ValueError as error:  # a field that is there twice: alone it is refused
                    self.reject(numbers[place], reason_of(error))
                    kept[place] = False
            rows = target.rows(found.table, rescued)
            self._add(numbers[kept], rows if kept.all() else rows.filter(pa.array(kept)))
        elif target.inferred:
            names = {place: path for path, places in found.unnamed.items() for place in places.tolist()}
            for place in having.tolist():
                self.reject(numbers[place], f"field {names[place]!r} {UNKNOWN_FIELD}")
            kept = np.setdiff1d(np.arange(len(numbers)), having)
            self._add(numbers[kept], found.table.take(pa.array(kept)))
        else:
            self._add(numbers, found.table)

    def take_recovered(self, numbers: Offsets, recovered: Recovered) -> Offsets:
        """Records that were looked at value by value. Returns the numbers of those that could not be."""
        target = self.parser.target
        kept: list[tuple[int, int, Rescued]] = []
        left: list[int] = []
        place = 0
        for number, rescued in zip(numbers.tolist(), recovered.rescued, strict=True):
            if rescued is None:
                left.append(number)
                continue
            index = int(self.records.index[number])
            count(self.found.mismatches, index, rescued.mismatches)
            if target.rescue or not rescued.mismatches:
                count(self.found.unnamed, index, rescued.unnamed)
            if rescued.mismatches and not target.rescue:
                self.reject(number, mismatch_reason(rescued, target.schema))
            elif rescued.unnamed and target.inferred and not target.rescue:
                self.reject(number, f"field {next(iter(rescued.unnamed))!r} {UNKNOWN_FIELD}")
            else:
                kept.append((number, place, rescued))
            place += 1
        if kept:
            found, places, texts = zip(*kept, strict=True)
            table = recovered.table if len(kept) == place else recovered.table.take(pa.array(places))
            self._add(np.array(found, np.int64), target.rows(table, texts))
        self.found.new_fields += recovered.new_fields
        return np.array(left, np.int64)

    def reject(self, number: int, reason: str) -> None:
        """Reject a record."""
        raw = self.records.raw(number)
        if raw.strip():
            index, offset = int(self.records.index[number]), int(self.records.offset[number])
            reject = Reject(index=index, offset=offset, reason=reason[:500], raw=raw[:MAX_RAW_BYTES])
            self.found.rejects.append(reject)

    def _add(self, numbers: Offsets, rows: pa.Table) -> None:
        self.tables.append(rows)
        self.numbers.append(numbers)

    def result(self) -> Parsed:
        """All that was found, in the order of the records."""
        if self.tables:
            numbers = np.concatenate(self.numbers)
            table = pa.concat_tables(self.tables)
            if np.any(numbers[1:] < numbers[:-1]):
                order = np.argsort(numbers)
                numbers, table = numbers[order], table.take(pa.array(order))
            self.found.table = table
            self.found.index, self.found.offset = self.records.index[numbers], self.records.offset[numbers]
        self.found.rejects.sort(key=lambda reject: (reject.index, reject.offset))
        return self.found


def reason_of(error: Exception) -> str:
    """The error as the reason of a reject."""
    return str(error).replace(" in row 0", "").strip()[:500]
