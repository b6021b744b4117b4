"""CSV to Arrow rows: the first line of an object names the columns; blank lines are no records.

A quote opens a value only at its start, and one that is never closed, or has text behind it, makes its record
a reject. A header that cannot be read, or has no column of a given schema, makes its whole object one. Nothing
between two commas is null, but for strings, which it leaves empty. Timestamps without a zone are UTC.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from s3notify_platform.formats.records import (
    BOM,
    NEWLINE,
    RETURN,
    UNKNOWN_FIELD,
    Converted,
    Mended,
    Offsets,
    Parsed,
    Records,
    Wanted,
    blocks,
    check_finite,
    convert_or_halve,
    ranges_between,
    reason_of,
    rejected_whole,
    timestamps,
    unnamed_columns,
)
from s3notify_platform.formats.rescue import EXTRA, MISSING, Odd, as_json, below, fitted, renumbered

_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_BEFORE: Final = np.isin(np.arange(256), np.frombuffer(b',\n"', np.uint8))
_BEHIND: Final = np.isin(np.arange(256), np.frombuffer(b',\r\n"', np.uint8))
"""What may stand before and behind a quoted value, or next to a quote in one."""

_CSV_VALUE: Final = rb'(?:"(?:[^"]++|"")*+"(?=[,\r\n]|\Z)|(?!")[^,\r\n]*+)'
_CSV_RECORD: Final = re.compile(_CSV_VALUE + b"(?:," + _CSV_VALUE + b")*+")
"""One well-formed record. A quote opens a value only at its start; inside others it is a letter."""

_CSV_NULLS: Final = ("", "NULL", "null", "NA", "N/A", "n/a")
"""What stands for null, except in a string column."""

HEADER_BYTES: Final = 1 << 20


_OPEN: Final = re.compile(rb'"(?:[^"]++|"")*+"?+\Z')
"""A quoted value that may go on behind the end."""


def csv_ranges(body: bytes) -> tuple[Offsets, Offsets]:
    """Byte ranges of the records of one object, its header line among them; blank lines left out."""
    return csv_cut(body, mark=True, final=True, limit=len(body))[:2]


def csv_cut(body: bytes, *, mark: bool, final: bool, limit: int) -> tuple[Offsets, Offsets, int]:
    """The same of a body that begins with a record, and where the first one begins that may go on behind it.

    Unless `final`, more may follow. A record longer than `limit` counts as malformed. `mark`: this is the object's
    beginning.
    """
    first = len(BOM) if mark and body.startswith(BOM) else 0
    octets = np.frombuffer(body, np.uint8)
    breaks = octets == NEWLINE
    whole = len(body) if final else body.rfind(b"\n") + 1
    if b'"' in body:
        inside = np.logical_xor.accumulate(octets == _QUOTE)
        outer = breaks & ~inside
        if not final:
            last = np.flatnonzero(outer)[-1:]
            whole = int(last[0]) + 1 if len(last) else 0
        if (
            whole
            and quotes_are_plain(octets[first:whole], inside[first:whole])
            and _short(outer, whole, limit)
        ):
            breaks = outer
        else:
            breaks, whole = _scanned_breaks(body, first, final=final, limit=limit)
    starts, ends = ranges_between(body[:whole], breaks[:whole], mark=mark)
    filled = ends > starts
    return starts[filled], ends[filled], whole


def _short(breaks: npt.NDArray[np.bool_], whole: int, limit: int) -> bool:
    """Whether no piece between breaks is longer than `limit`."""
    if whole <= limit:
        return True
    places = np.concatenate([[-1], np.flatnonzero(breaks[:whole]), [whole]])
    return bool((np.diff(places) - 1 <= limit).all())


def quotes_are_plain(octets: npt.NDArray[np.uint8], inside: npt.NDArray[np.bool_]) -> bool:
    """Whether each second quote closes a value: all stand at a border of theirs, or are doubled.

    `inside`: whether a quoted value is open behind each byte. A carriage return that stands alone outside of quotes
    makes its record malformed, and so is not plain either.
    """
    if len(octets) and inside[-1]:
        return False
    edge = np.full(1, NEWLINE, np.uint8)
    padded = np.concatenate([edge, octets, edge])
    places = np.flatnonzero(octets == _QUOTE)
    returns = np.flatnonzero(octets == RETURN)
    alone = returns[padded[returns + 2] != NEWLINE]
    return could_open(padded, places[::2]) and could_close(padded, places[1::2]) and bool(inside[alone].all())


def could_open(padded: npt.NDArray[np.uint8], places: Offsets) -> bool:
    """Whether quotes at all these places, in what is padded by one byte on either side, may open values."""
    return bool(_BEFORE[padded[places]].all())


def could_close(padded: npt.NDArray[np.uint8], places: Offsets) -> bool:
    """The same, of closing."""
    return bool(_BEHIND[padded[places + 2]].all())


def _scanned_breaks(body: bytes, place: int, *, final: bool, limit: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Where records end, found one by one; a malformed record ends with its line."""
    breaks = np.zeros(len(body), np.bool_)
    begin = place
    while begin < len(body):
        record = _CSV_RECORD.match(body, begin)
        end = record.end() if record else begin
        if not final and len(body) - begin <= limit and _may_go_on(body, end):
            break
        if body[end : end + 2] == b"\r\n":
            end += 1
        if end - begin > limit or (end < len(body) and body[end] != NEWLINE):
            end = body.find(b"\n", begin)
        if not 0 <= end < len(body):
            break
        breaks[end] = True
        begin = end + 1
    return breaks, len(body) if final else begin if begin > place else 0


def _may_go_on(body: bytes, end: int) -> bool:
    """Whether what follows could change a record that is well-formed up to `end`."""
    if end >= len(body) - 1:
        return body[end:] != b"\n"
    quote = end + (body[end] == _COMMA)
    return body[quote] == _QUOTE and _OPEN.match(body, quote) is not None


def check_csv_records(records: Records) -> None:
    """Refuse what pyarrow would split or join otherwise than `csv_ranges` did."""
    octets = np.frombuffer(records.body, np.uint8)[records.start[0] : records.end[-1]]
    quotes = octets == _QUOTE
    inside = np.logical_xor.accumulate(quotes) if quotes.any() else quotes
    if quotes_are_plain(octets, inside) and octets[-1] != RETURN:
        return
    for start, end in zip(records.start.tolist(), records.end.tolist(), strict=True):
        if not _CSV_RECORD.fullmatch(records.body, start, end):
            raise pa.ArrowInvalid(
                "a quote is not closed, or has text behind it; or a carriage return stands alone"
            )


def parse_csv(objects: Sequence[bytes], wanted: Wanted) -> Iterator[Parsed]:
    """Objects with a header line; neighbours with the same header are joined."""
    headed = [(number, csv_header(body)) for number, body in enumerate(objects)]
    headed = [(number, header) for number, header in headed if header is not None]
    for header, group in groupby(headed, key=itemgetter(1)):
        yield from _csv_run(objects, [number for number, _ in group], header or b"", wanted)


def csv_header(body: bytes) -> bytes | None:
    """The first record, raw; None if there is none."""
    place = csv_header_place(body)
    return None if place is None else body[slice(*place)]


def csv_header_place(body: bytes) -> tuple[int, int] | None:
    """Where the first record stands in an object that begins with `body`; its first `HEADER_BYTES` matter."""
    starts, ends = csv_ranges(body[:HEADER_BYTES])
    return (int(starts[0]), int(ends[0])) if len(starts) else None


def _csv_run(
    objects: Sequence[bytes], numbers: Sequence[int], header: bytes, wanted: Wanted
) -> Iterator[Parsed]:
    names, fault = csv_names(header, None if wanted.inferred else wanted.schema)
    if fault:
        for number in numbers:
            yield rejected_whole(number, objects[number], f"CSV header: {fault}", wanted.output)
        return
    parser = CsvRecords(names, wanted)

    def without_header(body: bytes) -> tuple[Offsets, Offsets]:
        starts, ends = csv_ranges(body)
        return starts[1:], ends[1:]

    renumber = np.asarray(numbers, np.int64)
    for records in blocks([objects[number] for number in numbers], without_header):
        parsed = convert_or_halve(records, parser)
        parsed.index = renumber[parsed.index]
        parsed.rejects = [replace(reject, index=numbers[reject.index]) for reject in parsed.rejects]
        parsed.unnamed = renumbered(parsed.unnamed, numbers)
        parsed.mismatches = renumbered(parsed.mismatches, numbers)
        yield parsed


class CsvRecords:
    """The parser of blocks of records whose header has these `names`."""

    def __init__(self, names: list[str], wanted: Wanted) -> None:
        self.wanted = wanted
        self._names = names
        self._besides = [name for name in names if name not in wanted.schema.names]
        # Timestamps are read as strings: the CSV reader insists on a zone, or on none.
        kinds = {c.name: pa.string() if pa.types.is_timestamp(c.type) else c.type for c in wanted.schema}
        if not wanted.inferred:
            kinds |= dict.fromkeys(self._besides, pa.string())
        self._options = csv_options([*wanted.schema.names, *self._besides], pa.schema(kinds))

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`."""
        check_csv_records(records)
        joined = records.joined()
        table = read_csv(joined, self._names, self._options)
        schema = self.wanted.schema
        columns = [_typed(table[column.name].combine_chunks(), column.type) for column in schema]
        for values in columns:
            check_finite(values, joined)
        named = pa.Table.from_arrays(columns, schema=schema)
        if not self._besides:
            return Converted(table=named)
        # What is empty is no value.
        besides = {name: _without_empty(table[name].combine_chunks()) for name in self._besides}
        unnamed, beyond = unnamed_columns(pa.table(besides), pa.schema([]))
        return Converted(table=named, unnamed=unnamed, beyond=beyond)

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """See `records.Parser`."""
        return self._unnamed(dict(zip(self._names, _split(raw) or (), strict=False)))

    def mend(self, records: Records) -> Mended:
        """See `records.Parser`."""
        odds: list[Odd | None] = []
        split: list[dict[str, str]] = []
        for number in range(len(records.start)):
            values = _split(records.raw(number))
            if values is None:
                odds.append(None)
                continue
            found = dict(zip(self._names, values, strict=False))
            odd = Odd(unnamed=self._unnamed(found))
            if extra := values[len(self._names) :]:
                odd.mismatches[EXTRA] = as_json(extra)
            if missing := self._names[len(values) :]:
                odd.mismatches[MISSING] = as_json(missing)
            odds.append(odd)
            split.append(found)
        kept = [odd for odd in odds if odd is not None]
        columns = [
            self._fitted([values.get(c.name) for values in split], c, kept) for c in self.wanted.schema
        ]
        table = pa.Table.from_arrays(columns, schema=self.wanted.schema)
        beyond = self._beyond(split) if self.wanted.inferred and any(odd.unnamed for odd in kept) else []
        return Mended(table=table, odds=odds, beyond=beyond)

    def _beyond(self, split: Sequence[dict[str, str]]) -> list[pa.Schema]:
        """What an inferred schema lacks of mended records."""
        names = [name for name in self._besides if any(values.get(name) for values in split)]
        rows = "".join(",".join(_quoted(values.get(name)) for name in names) + "\n" for values in split)
        return [read_csv(rows.encode(), names, csv_options(names, None)).schema]

    def _unnamed(self, values: dict[str, str]) -> dict[str, str]:
        return {below("", name): values[name] for name in self._besides if values.get(name)}

    def _fitted(self, values: Sequence[str | None], column: pa.Field, odds: Sequence[Odd]) -> pa.Array:
        def single(number: int) -> pa.Array:
            odds[number].mismatches[below("", column.name)] = values[number] or ""
            return pa.nulls(1, column.type)

        return fitted(values, column.type, _read_values, single)


def _split(raw: bytes) -> list[str] | None:
    """The values of a record; None if its quotes are not in order, or it is not UTF-8."""
    if not _CSV_RECORD.fullmatch(raw):
        return None
    try:
        return next(csv.reader(io.StringIO(raw.decode(), newline=""), strict=True))
    except (UnicodeError, csv.Error, StopIteration):
        return None


def _without_empty(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    return values


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        values = pc.utf8_trim_whitespace(values)
        nulls = pc.is_in(values, pa.array(_CSV_NULLS))
        return timestamps(pc.if_else(nulls, pa.scalar(None, pa.string()), values), kind)
    if pa.types.is_decimal(kind):
        # pyarrow 26 lets 10000 through for decimal(6, 2).
        values.validate(full=True)
    return values.cast(kind)


def _read_values(values: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Texts as one column."""
    if pa.types.is_string(kind) or pa.types.is_timestamp(kind):
        return _typed(pa.array(values, pa.string()), kind)
    options = csv_options(["v"], pa.schema([("v", kind)]))
    rows = "".join(f"{_quoted(value)}\n" for value in values).encode()
    array = _typed(read_csv(rows, ["v"], options)["v"].combine_chunks(), kind)
    check_finite(array, rows)
    return array


def _quoted(value: str | None) -> str:
    return '"' + (value or "").replace('"', '""') + '"'


def csv_names(header: bytes, schema: pa.Schema | None) -> tuple[list[str], str]:
    """The columns that a header names, and what is wrong with it; for a given `schema`, that it has none of them."""
    try:
        names = next(csv.reader(io.StringIO(header.decode("utf-8"), newline=""), strict=True))
    except (UnicodeError, csv.Error, StopIteration) as error:
        return [], reason_of(error) or "unreadable"
    if len(set(names)) != len(names):
        return names, "a column name stands twice"
    if schema is not None and not set(names) & set(schema.names):
        return names, f"column {names[0]!r} {UNKNOWN_FIELD}"
    return names, ""


def csv_options(names: list[str] | None, types: pa.Schema | None) -> pa_csv.ConvertOptions:
    """How values become `types`; without `names` and `types` the reader infers them."""
    return pa_csv.ConvertOptions(
        column_types=types,
        include_columns=names,
        include_missing_columns=names is not None,
        null_values=list(_CSV_NULLS),
        strings_can_be_null=False,
    )


def read_csv(joined: bytes, names: list[str], options: pa_csv.ConvertOptions) -> pa.Table:
    """Records without a header line, read in one block and one thread."""
    return pa_csv.read_csv(
        pa.BufferReader(joined),
        read_options=pa_csv.ReadOptions(
            use_threads=False, column_names=names, block_size=max(len(joined) + 1, 1 << 20)
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=options,
    )
