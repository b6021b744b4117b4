"""CSV to Arrow rows: the first line of an object names the columns; blank lines are no records.

A quote opens a value only at its start. One that is never closed, or has text behind it, makes its record a reject. A
header that cannot be read, or has no column of a given schema, makes the whole object a reject. An empty field is null,
except in string columns, where it is the empty string. Timestamps without a zone are UTC.
"""

import csv
import io
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from s3notify_platform.errors import CorruptError
from s3notify_platform.formats.columns import check_finite, timestamps, unnamed_columns
from s3notify_platform.formats.records import (
    BOM,
    NEWLINE,
    RETURN,
    UNKNOWN_FIELD,
    Converted,
    Offsets,
    Parser,
    Records,
    Recovered,
    Target,
    ranges_between,
    reason_of,
)
from s3notify_platform.formats.rescue import EXTRA, MISSING, Rescued, as_json, below, fitted
from s3notify_platform.formats.text_format import TextFormat
from s3notify_platform.limits import MAX_COLUMNS

_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_BEFORE: Final = np.isin(np.arange(256), np.frombuffer(b',\n"', np.uint8))
_BEHIND: Final = np.isin(np.arange(256), np.frombuffer(b',\r\n"', np.uint8))
"""What may stand before and behind a quoted value, or next to a quote in one."""

_CSV_VALUE: Final = rb'(?:"(?:[^"]++|"")*+"(?=[,\r\n]|\Z)|(?!")[^,\r\n]*+)'
_CSV_RECORD: Final = re.compile(_CSV_VALUE + b"(?:," + _CSV_VALUE + b")*+")
"""One well-formed record. A quote opens a value only at its start; inside others it is a letter."""

_CSV_NULLS: Final = ("", "NULL", "null", "NA", "N/A", "n/a")
"""Texts that are null, except in a string column."""

HEADER_BYTES: Final = 1 << 20


_OPEN: Final = re.compile(rb'"(?:[^"]++|"")*+"?+\Z')
"""A quoted value whose end may follow behind this text."""


class Csv(TextFormat):
    """See the module."""

    name = "csv"
    suffixes = frozenset({"csv"})
    quoted = True
    header_bytes = HEADER_BYTES

    def header(self, head: bytes) -> slice | None:
        """See `TextFormat`. The first record."""
        starts, ends, _ = csv_cut(head, mark=True, final=True, limit=len(head))
        return slice(int(starts[0]), int(ends[0])) if len(starts) else None

    def cut(self, body: bytes, *, mark: bool, final: bool, limit: int) -> tuple[Offsets, Offsets, int]:
        """See `csv_cut`."""
        return csv_cut(body, mark=mark, final=final, limit=limit)

    def parser(self, header: bytes, target: Target) -> Parser:
        """See `TextFormat`."""
        return CsvRecords(csv_names(header, None if target.inferred else target.schema), target)

    def has_type(self, kind: pa.DataType) -> bool:
        """See `Format`."""
        return not pa.types.is_nested(kind)

    def common_type(self, first: pa.DataType, second: pa.DataType) -> pa.DataType:
        """See `Format`. All values are texts."""
        return pa.string()


def csv_cut(body: bytes, *, mark: bool, final: bool, limit: int) -> tuple[Offsets, Offsets, int]:
    """Byte ranges of the records of a body that begins with one, and where the first begins that may end behind it.

    The header is among them, blank lines are not. Unless `final`, more may follow. A record longer than `limit` counts
    as malformed. `mark`: this is the object's beginning.
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
            and len(body) - whole <= limit
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
    """Whether every second quote closes a value: each is at the border of its value, or is doubled.

    `inside`: whether a quoted value is open behind each byte. A carriage return without a line feed, outside of
    quotes, makes its record malformed, and so is not plain either.
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
    """Whether quotes at all these places may close values."""
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
    """Refuse what pyarrow would split or join otherwise than `csv_cut` did."""
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


class CsvRecords:
    """The parser of blocks of records whose header has these `names`."""

    def __init__(self, names: list[str], target: Target) -> None:
        self.target = target
        self._names = names
        self._unnamed_columns = [name for name in names if name not in target.schema.names]
        # Timestamps are read as strings: the CSV reader insists on a zone, or on none.
        kinds = {c.name: pa.string() if pa.types.is_timestamp(c.type) else c.type for c in target.schema}
        kinds |= dict.fromkeys(self._unnamed_columns, pa.string())
        self._options = csv_options([*target.schema.names, *self._unnamed_columns], pa.schema(kinds))

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`."""
        check_csv_records(records)
        joined = records.joined()
        table = read_csv(joined, self._names, self._options)
        schema = self.target.schema
        columns = [_typed(table[column.name].combine_chunks(), column.type) for column in schema]
        for values in columns:
            check_finite(values, joined)
        named = pa.Table.from_arrays(columns, schema=schema)
        if not self._unnamed_columns:
            return Converted(table=named)
        # An empty field is no value.
        texts = {name: _without_empty(table[name].combine_chunks()) for name in self._unnamed_columns}
        unnamed, found = unnamed_columns(pa.table(texts), pa.schema([]))
        new_fields = None
        if found is not None and self.target.inferred:
            new_fields = read_csv(joined, self._names, csv_options(found.names, None)).schema
        return Converted(table=named, unnamed=unnamed, new_fields=new_fields)

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """See `records.Parser`."""
        return self._unnamed(dict(zip(self._names, _split(raw) or (), strict=False)))

    def recover(self, records: Records) -> Recovered:
        """See `records.Parser`."""
        rescued: list[Rescued | None] = []
        split: list[dict[str, str]] = []
        for number in range(len(records.start)):
            values = _split(records.raw(number))
            if values is None:
                rescued.append(None)
                continue
            found = dict(zip(self._names, values, strict=False))
            one = Rescued(unnamed=self._unnamed(found))
            if extra := values[len(self._names) :]:
                one.mismatches[EXTRA] = as_json(extra)
            if missing := self._names[len(values) :]:
                one.mismatches[MISSING] = as_json(missing)
            rescued.append(one)
            split.append(found)
        kept = [one for one in rescued if one is not None]
        columns = [
            self._fitted([values.get(c.name) for values in split], c, kept) for c in self.target.schema
        ]
        table = pa.Table.from_arrays(columns, schema=self.target.schema)
        new_fields = (
            self._new_fields(split) if self.target.inferred and any(one.unnamed for one in kept) else []
        )
        return Recovered(table=table, rescued=rescued, new_fields=new_fields)

    def infer(self, records: Records) -> pa.Schema:
        """See `records.Parser`."""
        if not len(records.start):
            return pa.schema([pa.field(name, pa.null()) for name in self._names])
        check_csv_records(records)
        found = read_csv(records.joined(), self._names, csv_options(None, None)).schema
        # A column that is not UTF-8 is inferred as binary.
        kinds = (pa.string() if pa.types.is_binary(column.type) else column.type for column in found)
        return pa.schema([column.with_type(kind) for column, kind in zip(found, kinds, strict=True)])

    def _new_fields(self, split: Sequence[dict[str, str]]) -> list[pa.Schema]:
        """The fields of recovered records that an inferred schema lacks."""
        names = [name for name in self._unnamed_columns if any(values.get(name) for values in split)]
        rows = "".join(",".join(_quoted(values.get(name)) for name in names) + "\n" for values in split)
        return [read_csv(rows.encode(), names, csv_options(names, None)).schema]

    def _unnamed(self, values: dict[str, str]) -> dict[str, str]:
        return {below("", name): values[name] for name in self._unnamed_columns if values.get(name)}

    def _fitted(self, values: Sequence[str | None], column: pa.Field, records: Sequence[Rescued]) -> pa.Array:
        def single(number: int) -> pa.Array:
            records[number].mismatches[below("", column.name)] = values[number] or ""
            return pa.nulls(1, column.type)

        if pa.types.is_nested(column.type):  # a text is no value of it, and no text is null
            for number, value in enumerate(values):
                if value:
                    single(number)
            return pa.nulls(len(values), column.type)
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
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        values = pc.utf8_trim_whitespace(values)
        nulls = pc.is_in(values, pa.array(_CSV_NULLS))
        return timestamps(pc.if_else(nulls, pa.scalar(None, pa.string()), values), kind)
    if pa.types.is_decimal(kind):
        # pyarrow 26 accepts 10000 for decimal(6, 2).
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


def csv_names(header: bytes, schema: pa.Schema | None) -> list[str]:
    """The columns that a header names. `CorruptError` if it cannot be one, or has no column of a given `schema`."""
    try:
        names = next(csv.reader(io.StringIO(header.decode("utf-8"), newline=""), strict=True))
    except (UnicodeError, csv.Error, StopIteration) as error:
        raise CorruptError(f"CSV header: {reason_of(error) or 'unreadable'}") from error
    if len(names) > MAX_COLUMNS:
        raise CorruptError(f"CSV header: {len(names)} columns, and a schema has at most {MAX_COLUMNS}")
    if len(set(names)) != len(names):
        raise CorruptError("CSV header: a column name occurs twice")
    if schema is not None and not set(names) & set(schema.names):
        raise CorruptError(f"CSV header: column {names[0]!r} {UNKNOWN_FIELD}")
    return names


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
