"""Bytes of objects to Arrow rows and rejects: JSONL, CSV, Parquet, text, binary. Pure, no Spark.

Small objects are joined and parsed at once (5 to 10 times faster than one by one); when that fails, or gives
another number of rows than there are records, the block is halved until the bad records stand alone, and each
of them becomes a reject with its offset, reason and raw bytes. No record stops another: rows and rejects
together are as many as the records. Blank lines of JSONL and CSV are no records.

`_offset` is the byte at which a record starts in its object; for Parquet, the row number.

Fields the schema does not name: with a given schema they are left out, as declared; with an inferred one the
record is a reject (`Reject.unknown_field`), because nobody has decided to lose them.

Timestamps without a zone are UTC. CSV: the first line names the columns; a quote opens a value only at its
start, and one that is never closed, or has text behind it, makes its record a reject.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from s3notify_platform.errors import UsageError
from s3notify_platform.table.reader import MAX_RAW_BYTES

Format = Literal["auto", "jsonl", "csv", "parquet", "text", "binary"]
FORMATS: Final = ("auto", "jsonl", "csv", "parquet", "text", "binary")

BLOCK_BYTES: Final = 8 << 20
"""Records are parsed in blocks of about this size."""

FIXED_SCHEMAS: Final = {
    "text": pa.schema([pa.field("value", pa.string())]),
    "binary": pa.schema([pa.field("content", pa.binary())]),
}
_SUFFIXES: Final = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": "csv", "parquet": "parquet", "txt": "text",
    "log": "text",
}  # fmt: skip
_BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
_QUOTE: Final = ord('"')

UNKNOWN_FIELD: Final = "is not in the schema"
"""Part of the reason of such rejects."""

RESERVED: Final = frozenset({"_kind", "_slot", "_key", "_etag", "_offset", "_note", "_raw"})
"""Names that a source's columns cannot have."""
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A record that could not be taken in. `raw` is cut at `MAX_RAW_BYTES`."""

    index: int
    offset: int
    reason: str
    raw: bytes

    @property
    def unknown_field(self) -> bool:
        """Whether the record has a field that the inferred schema does not have."""
        return UNKNOWN_FIELD in self.reason


@dataclass(slots=True, kw_only=True)
class Parsed:
    """Rows of several objects in the schema's columns; `index` and `offset` say where each is from."""

    table: pa.Table
    index: Offsets
    offset: Offsets
    rejects: list[Reject] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """Records of a block: byte ranges into `body`, and which object and offset each came from."""

    body: bytes
    start: Offsets
    end: Offsets
    index: Offsets
    offset: Offsets

    def part(self, low: int, high: int) -> "_Records":
        cut = slice(low, high)
        return _Records(
            body=self.body,
            start=self.start[cut],
            end=self.end[cut],
            index=self.index[cut],
            offset=self.offset[cut],
        )

    def joined(self) -> bytes:
        if len(self.start) == 0:
            return b""
        # A line end of one or two bytes, or a blank line: the readers pass over either.
        if bool(np.all(self.start[1:] - self.end[:-1] <= 2)):
            return self.body[self.start[0] : self.end[-1]] + b"\n"
        view = memoryview(self.body)
        return (
            b"\n".join(view[s:e] for s, e in zip(self.start.tolist(), self.end.tolist(), strict=True)) + b"\n"
        )


def format_of(key: str, declared: str) -> str | None:
    """The format of an object: as declared, or under `auto` by the key's last suffix, or None."""
    if declared != "auto":
        return declared
    return _SUFFIXES.get(key.rsplit("/", 1)[-1].rsplit(".", 1)[-1].lower())


def check_schema(schema: pa.Schema, declared: str) -> None:
    """`UsageError` for a column that the format cannot give, or whose name is taken. Pure."""
    for column in schema:
        if column.name in RESERVED:
            raise UsageError(f"column {column.name!r}: the name is kept for lineage; rename it")
        if declared in ("jsonl", "auto") and not _json_gives(column.type):
            raise UsageError(f"column {column.name!r}: JSON gives no {column.type}; declare another type")
        if declared in ("csv", "auto") and pa.types.is_nested(column.type):
            raise UsageError(f"column {column.name!r}: CSV gives no {column.type}; declare another type")


def _json_gives(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_json_gives(part.type) for part in kind)
    if pa.types.is_list(kind):
        return _json_gives(kind.value_type)
    return not (pa.types.is_map(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind))


def parse(
    objects: Sequence[bytes], schema: pa.Schema, fmt: str, *, inferred: bool = False
) -> Iterator[Parsed]:
    """Parse whole objects of one format, in order, block by block. Never raises for bad data."""
    match fmt:
        case "jsonl":
            yield from _lines(objects, schema, _json_block(schema, inferred=inferred), _filled_lines)
        case "text":
            yield from _lines(objects, schema, _text_block, _line_ranges)
        case "csv":
            yield from _csv(objects, schema, inferred=inferred)
        case "parquet":
            yield from _parquet(objects, schema, inferred=inferred)
        case "binary":
            count = len(objects)
            table = pa.table({"content": pa.array(objects, pa.binary())}, schema=schema)
            yield Parsed(table=table, index=np.arange(count), offset=np.zeros(count, np.int64))
        case _:
            raise UsageError(f"format {fmt!r}: use one of {', '.join(FORMATS)}")


def rejected_whole(index: int, body: bytes, reason: str, schema: pa.Schema) -> Parsed:
    """An object that is a reject as a whole."""
    none = np.zeros(0, np.int64)
    reject = Reject(index=index, offset=0, reason=reason, raw=body[:MAX_RAW_BYTES])
    return Parsed(table=schema.empty_table(), index=none, offset=none, rejects=[reject])


# Line-wise formats


def _line_ranges(body: bytes) -> tuple[Offsets, Offsets]:
    """Byte ranges of the lines of one object, without their line ends and without a byte order mark."""
    return _ranges(body, np.frombuffer(body, np.uint8) == _NEWLINE)


def _ranges(body: bytes, breaks: npt.NDArray[np.bool_]) -> tuple[Offsets, Offsets]:
    """The same, of the pieces between `breaks`."""
    octets = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(breaks).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])
    ends = np.concatenate([ends, np.full(1, len(body), np.int64)])
    if starts[-1] == len(body):
        starts, ends = starts[:-1], ends[:-1]
    if len(starts) == 0:
        return starts, ends
    if body.startswith(_BOM):
        starts[0] = len(_BOM)
    returned = (ends > starts) & (octets[np.maximum(ends - 1, 0)] == _RETURN)
    return starts, ends - returned


def _filled_lines(body: bytes) -> tuple[Offsets, Offsets]:
    """`_line_ranges` without blank lines."""
    starts, ends = _line_ranges(body)
    filled = ends > starts
    return starts[filled], ends[filled]


Ranges = Callable[[bytes], tuple[Offsets, Offsets]]


def _blocks(objects: Sequence[bytes], ranges: Ranges) -> Iterator[_Records]:
    """The records of `objects`, joined into blocks of about `BLOCK_BYTES`."""
    bodies: list[bytes] = []
    parts: list[tuple[Offsets, Offsets, Offsets, Offsets]] = []
    base = 0

    def flush() -> _Records:
        start, end, index, offset = (np.concatenate(column) for column in zip(*parts, strict=True))
        return _Records(body=b"\n".join(bodies), start=start, end=end, index=index, offset=offset)

    for number, body in enumerate(objects):
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


Convert = Callable[[_Records], pa.Table]


def _lines(objects: Sequence[bytes], schema: pa.Schema, convert: Convert, ranges: Ranges) -> Iterator[Parsed]:
    for records in _blocks(objects, ranges):
        yield _convert_or_halve(records, schema, convert)


def _convert_or_halve(records: _Records, schema: pa.Schema, convert: Convert) -> Parsed:
    tables: list[pa.Table] = []
    good: list[tuple[int, int]] = []
    rejects: list[Reject] = []
    pending = [(0, len(records.start))]
    while pending:
        low, high = pending.pop()
        part = records.part(low, high)
        try:
            table = convert(part)
            if table.num_rows != high - low:
                raise pa.ArrowInvalid(f"{table.num_rows} records where one was expected")
        except (pa.ArrowException, UnicodeError) as error:
            if high - low > 1:
                middle = (low + high) // 2
                pending += [(middle, high), (low, middle)]
                continue
            raw = records.body[part.start[0] : part.end[0]]
            if not raw.strip():
                continue
            rejects.append(
                Reject(
                    index=int(part.index[0]),
                    offset=int(part.offset[0]),
                    reason=_reason(error),
                    raw=raw[:MAX_RAW_BYTES],
                )
            )
            continue
        tables.append(table)
        good.append((low, high))
    none = np.zeros(0, np.int64)
    return Parsed(
        table=pa.concat_tables(tables) if tables else schema.empty_table(),
        index=np.concatenate([records.index[low:high] for low, high in good]) if good else none,
        offset=np.concatenate([records.offset[low:high] for low, high in good]) if good else none,
        rejects=rejects,
    )


def _reason(error: Exception) -> str:
    reason = str(error).replace(" in row 0", "").strip()[:500]
    return f"a field {UNKNOWN_FIELD}" if "unexpected field" in reason else reason


def _json_block(schema: pa.Schema, *, inferred: bool) -> Convert:
    # The JSON reader has no dates: they are read as strings and cast.
    reading = pa.schema([column.with_type(_without_dates(column.type)) for column in schema])
    options = pa_json.ParseOptions(
        explicit_schema=reading, unexpected_field_behavior="error" if inferred else "ignore"
    )

    def convert(records: _Records) -> pa.Table:
        _check_json_lines(records)
        return _read_json(records.joined(), options).select(schema.names).cast(schema)

    return convert


def _read_json(joined: bytes, options: pa_json.ParseOptions | None) -> pa.Table:
    joined.decode("utf-8")  # the JSON reader would pass on what is not UTF-8
    read = pa_json.ReadOptions(use_threads=False, block_size=max(len(joined) + 1, 1 << 20))
    return pa_json.read_json(pa.BufferReader(joined), read_options=read, parse_options=options)


def _check_json_lines(records: _Records) -> None:
    """Refuse lines that are not one object each.

    A record that does not span its line could be completed by the next one, and hide both; and a `null` in
    place of the first object ends the process inside pyarrow 26.
    """
    octets = np.frombuffer(records.body, np.uint8)
    first, last = octets[records.start], octets[records.end - 1]
    for number in np.flatnonzero((first != ord("{")) | (last != ord("}"))).tolist():
        line = records.body[records.start[number] : records.end[number]].strip(b" \t\r\n")
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise pa.ArrowInvalid("the line is not a JSON object")


def _without_dates(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_without_dates(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_dates(kind.value_type))
    return kind


def _text_block(records: _Records) -> pa.Table:
    view = records.body
    lines = [
        view[s:e].decode("utf-8") for s, e in zip(records.start.tolist(), records.end.tolist(), strict=True)
    ]
    return pa.table({"value": pa.array(lines, pa.string())})


# CSV

_CSV_VALUE: Final = rb'(?:"(?:[^"]++|"")*+"(?=[,\r\n]|\Z)|(?!")[^,\r\n]*+)'
_CSV_RECORD: Final = re.compile(_CSV_VALUE + b"(?:," + _CSV_VALUE + b")*+")
"""One well-formed record. A quote opens a value only at its start; inside others it is a letter."""

_CSV_NULLS: Final = ("", "NULL", "null", "NA", "N/A", "n/a")
"""What stands for null, except in a string column."""


def _csv_ranges(body: bytes) -> tuple[Offsets, Offsets]:
    """Byte ranges of the records of one object, its header line among them; blank lines left out."""
    octets = np.frombuffer(body, np.uint8)
    breaks = octets == _NEWLINE
    if b'"' in body:
        if _quotes_are_plain(octets):
            breaks &= ~np.logical_xor.accumulate(octets == _QUOTE)
        else:
            breaks = _scanned_breaks(body)
    starts, ends = _ranges(body, breaks)
    filled = ends > starts
    return starts[filled], ends[filled]


def _quotes_are_plain(octets: npt.NDArray[np.uint8]) -> bool:
    """Whether every quote stands at the border of its value, or is doubled: then each second one closes."""
    places = np.flatnonzero(octets == _QUOTE)
    if len(places) % 2:
        return False
    padded = np.concatenate([[_NEWLINE], octets, [_NEWLINE]])
    return bool(
        np.isin(padded[places[::2]], _BORDERS).all() and np.isin(padded[places[1::2] + 2], _BORDERS).all()
    )


_BORDERS: Final = np.frombuffer(b',\r\n"', np.uint8)


def _scanned_breaks(body: bytes) -> npt.NDArray[np.bool_]:
    """Where records end, found one by one; a malformed record ends with its line."""
    breaks = np.zeros(len(body), np.bool_)
    place = len(_BOM) if body.startswith(_BOM) else 0
    while place < len(body):
        record = _CSV_RECORD.match(body, place)
        end = record.end() if record else place
        if body[end : end + 2] == b"\r\n":
            end += 1
        if end < len(body) and body[end] != _NEWLINE:
            end = body.find(b"\n", place)
        if not 0 <= end < len(body):
            break
        breaks[end] = True
        place = end + 1
    return breaks


def _check_csv_records(records: _Records) -> None:
    """Refuse what pyarrow would split or join otherwise than `_csv_ranges` did."""
    octets = np.frombuffer(records.body, np.uint8)[records.start[0] : records.end[-1]]
    if _RETURN not in octets and _quotes_are_plain(octets):
        return
    for start, end in zip(records.start.tolist(), records.end.tolist(), strict=True):
        if not _CSV_RECORD.fullmatch(records.body, start, end):
            raise pa.ArrowInvalid(
                "a quote is not closed, or has text behind it; or a carriage return stands alone"
            )


def _csv(objects: Sequence[bytes], schema: pa.Schema, *, inferred: bool) -> Iterator[Parsed]:
    """Objects with a header line; neighbours with the same header are joined."""
    headed = [(number, _csv_header(body)) for number, body in enumerate(objects)]
    headed = [(number, header) for number, header in headed if header is not None]
    for header, group in groupby(headed, key=itemgetter(1)):
        yield from _csv_run(
            objects, [number for number, _ in group], header or b"", schema, inferred=inferred
        )


def _csv_header(body: bytes) -> bytes | None:
    """The first record, raw; None if there is none."""
    starts, ends = _csv_ranges(body[:_HEADER_BYTES])
    return body[starts[0] : ends[0]] if len(starts) else None


_HEADER_BYTES: Final = 1 << 20


def _csv_run(
    objects: Sequence[bytes], numbers: Sequence[int], header: bytes, schema: pa.Schema, *, inferred: bool
) -> Iterator[Parsed]:
    names, fault = _csv_names(header, schema, inferred=inferred)
    if fault:
        for number in numbers:
            yield rejected_whole(number, objects[number], f"CSV header: {fault}", schema)
        return

    # Timestamps are read as strings: the CSV reader insists on a zone, or on none.
    stamps = [column.name for column in schema if pa.types.is_timestamp(column.type)]
    reading = pa.schema([c.with_type(pa.string()) if c.name in stamps else c for c in schema])
    options = _csv_options(schema.names, reading)

    def convert(records: _Records) -> pa.Table:
        _check_csv_records(records)
        table = _read_csv(records.joined(), names, options)
        for name in stamps:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, _timestamps(table[name], schema.field(name).type))
        return table.cast(schema)

    def without_header(body: bytes) -> tuple[Offsets, Offsets]:
        starts, ends = _csv_ranges(body)
        return starts[1:], ends[1:]

    renumber = np.asarray(numbers, np.int64)
    for records in _blocks([objects[number] for number in numbers], without_header):
        parsed = _convert_or_halve(records, schema, convert)
        parsed.index = renumber[parsed.index]
        parsed.rejects = [replace(reject, index=numbers[reject.index]) for reject in parsed.rejects]
        yield parsed


def _csv_names(header: bytes, schema: pa.Schema | None, *, inferred: bool) -> tuple[list[str], str]:
    """The columns that a header names, and what is wrong with it."""
    try:
        names = next(csv.reader(io.StringIO(header.decode("utf-8"), newline=""), strict=True))
    except (UnicodeError, csv.Error, StopIteration) as error:
        return [], _reason(error) or "unreadable"
    if len(set(names)) != len(names):
        return names, "a column name stands twice"
    unknown = [name for name in names if schema is not None and name not in schema.names]
    if unknown and (inferred or len(unknown) == len(names)):
        return names, f"column {unknown[0]!r} {UNKNOWN_FIELD}"
    return names, ""


def _csv_options(names: list[str] | None, types: pa.Schema | None) -> pa_csv.ConvertOptions:
    return pa_csv.ConvertOptions(
        column_types=types,
        include_columns=names,
        include_missing_columns=names is not None,
        null_values=list(_CSV_NULLS),
        strings_can_be_null=False,
    )


def _read_csv(joined: bytes, names: list[str], options: pa_csv.ConvertOptions) -> pa.Table:
    return pa_csv.read_csv(
        pa.BufferReader(joined),
        read_options=pa_csv.ReadOptions(
            use_threads=False, column_names=names, block_size=max(len(joined) + 1, 1 << 20)
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=options,
    )


def _timestamps(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Strings as timestamps, with a zone or (then in UTC) without."""
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), kind)])
    column = pc.utf8_trim_whitespace(column)
    column = pc.if_else(pc.is_in(column, pa.array(_CSV_NULLS)), pa.scalar(None, pa.string()), column)
    zoned = pc.match_substring_regex(column, r":\d\d(\.\d*)?(Z|[+-]\d\d(:?\d\d)?)$")
    none = pa.scalar(None, pa.string())
    utc = pa.timestamp("us", tz="UTC")
    with_zone = pc.cast(pc.if_else(zoned, column, none), utc)
    without = pc.cast(pc.cast(pc.if_else(zoned, none, column), pa.timestamp("us")), utc)
    return pc.cast(pc.coalesce(with_zone, without), kind)


# Parquet


def _parquet(objects: Sequence[bytes], schema: pa.Schema, *, inferred: bool) -> Iterator[Parsed]:
    for index, body in enumerate(objects):
        if not body:
            continue
        try:
            # The whole object first: half an object's rows are never taken in.
            table = _read_parquet(body, schema, inferred=inferred)
        except Exception as error:  # noqa: BLE001 - a corrupt file can raise anything, and must stop no other
            yield rejected_whole(index, body, f"Parquet: {_reason(error)}", schema)
            continue
        count = table.num_rows
        yield Parsed(table=table, index=np.full(count, index), offset=np.arange(count))


def _read_parquet(body: bytes, schema: pa.Schema, *, inferred: bool) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(body))
    names = file.schema_arrow.names
    unknown = [name for name in names if name not in schema.names]
    if unknown and (inferred or len(unknown) == len(names)):
        raise pa.ArrowInvalid(f"column {unknown[0]!r} {UNKNOWN_FIELD}")
    table = file.read(columns=[name for name in schema.names if name in names], use_threads=False)
    table.validate(full=True)
    columns = []
    for column in schema:
        if column.name in names:
            # Spark's time ends at microseconds.
            options = pc.CastOptions(target_type=column.type, allow_time_truncate=True)
            columns.append(pc.cast(table[column.name], options=options))
        else:
            columns.append(pa.nulls(table.num_rows, column.type))
    return pa.Table.from_arrays(columns, schema=schema)


# Inference

SAMPLE_RECORDS: Final = 1000
"""Records of one object that inference looks at."""


def infer(objects: Sequence[tuple[str, bytes]]) -> pa.Schema | None:
    """A schema from sample objects given as `(format, body)`, nullable; None without data.

    Types are the widest seen. Where two cannot be one, text formats give a string if either was one, and else
    the first seen stands: what does not fit it is rejected later, and stops nothing now. Types that Spark
    lacks become their nearest wider one; columns that are null everywhere become strings.
    """
    columns: dict[str, pa.Field] = {}
    for fmt, body in objects:
        for schema in _schemas_of(fmt, body):
            for column in schema:
                known = columns.get(column.name)
                columns[column.name] = column if known is None else _widest(known, column, fmt=fmt)
    if taken := sorted(RESERVED & columns.keys()):
        raise UsageError(
            f"column {taken[0]!r} of the data has a name kept for lineage: give a schema without it"
        )
    if not columns:
        return None
    return pa.schema([pa.field(name, _spark_type(column.type)) for name, column in columns.items()])


def _schemas_of(fmt: str, body: bytes) -> Iterator[pa.Schema]:
    match fmt:
        case "jsonl":
            yield from _sampled(body, _filled_lines, _json_schema)
        case "csv":
            header = _csv_header(body)
            names, fault = _csv_names(header, None, inferred=True) if header is not None else ([], "empty")
            if not fault:
                yield pa.schema([pa.field(name, pa.null()) for name in names])
                yield from _sampled(
                    body, lambda b: _skip_first(_csv_ranges(b)), lambda r: _csv_schema(r, names)
                )
        case "parquet":
            try:
                yield pq.read_schema(pa.BufferReader(body))
            except Exception:  # noqa: BLE001 - as in `_parquet`; the object becomes a reject
                return
        case _:
            yield FIXED_SCHEMAS[fmt]


def _skip_first(ranges: tuple[Offsets, Offsets]) -> tuple[Offsets, Offsets]:
    return ranges[0][1:], ranges[1][1:]


def _sampled(body: bytes, ranges: Ranges, schema_of: Callable[[_Records], pa.Schema]) -> Iterator[pa.Schema]:
    """Schemas of the first records of an object, halved around those that cannot be read."""
    records = next(_blocks([body], lambda b: _first(ranges(b))), None)
    pending = [records] if records is not None else []
    while pending:
        part = pending.pop()
        try:
            yield schema_of(part)
        except (pa.ArrowException, UnicodeError):
            count = len(part.start)
            if count > 1:
                pending += [part.part(count // 2, count), part.part(0, count // 2)]


def _first(ranges: tuple[Offsets, Offsets]) -> tuple[Offsets, Offsets]:
    return ranges[0][:SAMPLE_RECORDS], ranges[1][:SAMPLE_RECORDS]


def _json_schema(records: _Records) -> pa.Schema:
    _check_json_lines(records)
    found = _read_json(records.joined(), None)
    if found.num_rows != len(records.start):
        raise pa.ArrowInvalid("not one object in each line")
    return pa.schema([column.with_type(_zoned(column.type)) for column in found.schema])


def _zoned(kind: pa.DataType) -> pa.DataType:
    """The JSON reader takes timestamps with a zone for such without."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_zoned(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_zoned(kind.value_type))
    return kind


def _csv_schema(records: _Records, names: list[str]) -> pa.Schema:
    _check_csv_records(records)
    found = _read_csv(records.joined(), names, _csv_options(None, None)).schema
    # What is not UTF-8 is inferred as binary.
    kinds = (pa.string() if pa.types.is_binary(column.type) else _zoned(column.type) for column in found)
    return pa.schema([column.with_type(kind) for column, kind in zip(found, kinds, strict=True)])


def _widest(known: pa.Field, found: pa.Field, *, fmt: str) -> pa.Field:
    try:
        return pa.unify_schemas([pa.schema([known]), pa.schema([found])], promote_options="permissive").field(
            0
        )
    except pa.ArrowException:
        stamps = {pa.string(), pa.timestamp("us", tz="UTC")}
        text = fmt == "csv" or (fmt == "jsonl" and {known.type, found.type} == stamps)
        return known.with_type(pa.string()) if text else known


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """The nearest type that Spark has; string where there is none."""
    if isinstance(kind, pa.BaseExtensionType):
        return _spark_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pa.types.is_nested(kind):
        return _spark_nested(kind)
    for holds, spark in _SPARK_TYPES:
        if holds(kind):
            return spark or kind
    return pa.string()


def _spark_nested(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        # Parquet has no struct without fields.
        fields = [pa.field(part.name, _spark_type(part.type)) for part in kind]
        return pa.struct(fields or [pa.field("_", pa.string())])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    return pa.string()


_SPARK_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType | None], ...]] = (
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_unsigned_integer, pa.int64()),
    (lambda kind: bool(pa.types.is_timestamp(kind)) and kind.tz is None, pa.timestamp("us")),
    (pa.types.is_timestamp, pa.timestamp("us", tz="UTC")),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date, pa.date32()),
    (lambda kind: "binary" in str(kind), pa.binary()),
    (pa.types.is_boolean, None),
    (pa.types.is_integer, None),
    (pa.types.is_floating, None),
    (pa.types.is_decimal128, None),
)
"""What Spark has in place of an Arrow type; None stands for the type itself."""
