"""CSV to Arrow rows: the first line of an object names the columns; blank lines are no records.

A quote opens a value only at its start, and one that is never closed, or has text behind it, makes its record
a reject. A header that cannot be read, or does not fit the schema, makes its whole object one. Timestamps
without a zone are UTC.
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

from s3notify_platform.spark.records import (
    BOM,
    NEWLINE,
    RETURN,
    UNKNOWN_FIELD,
    Convert,
    Offsets,
    Parsed,
    Records,
    blocks,
    convert_or_halve,
    ranges_between,
    reason_of,
    rejected_whole,
)

_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")

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
    padded = np.concatenate([[NEWLINE], octets, [NEWLINE]])
    opening, closing = quote_borders(padded)
    places = np.flatnonzero(octets == _QUOTE)
    returns = np.flatnonzero(octets == RETURN)
    alone = returns[padded[returns + 2] != NEWLINE]
    return bool(opening[places[::2]].all() and closing[places[1::2]].all() and inside[alone].all())


def quote_borders(padded: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of each byte but the first and last, whether a quote there could open or close a value."""
    before, behind = padded[:-2], padded[2:]
    opening = (before == _COMMA) | (before == NEWLINE) | (before == _QUOTE)
    closing = (behind == _COMMA) | (behind == NEWLINE) | (behind == RETURN) | (behind == _QUOTE)
    return opening, closing


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
    inside = np.logical_xor.accumulate(octets == _QUOTE)
    if RETURN not in octets and quotes_are_plain(octets, inside):
        return
    for start, end in zip(records.start.tolist(), records.end.tolist(), strict=True):
        if not _CSV_RECORD.fullmatch(records.body, start, end):
            raise pa.ArrowInvalid(
                "a quote is not closed, or has text behind it; or a carriage return stands alone"
            )


def parse_csv(objects: Sequence[bytes], schema: pa.Schema, *, inferred: bool) -> Iterator[Parsed]:
    """Objects with a header line; neighbours with the same header are joined."""
    headed = [(number, csv_header(body)) for number, body in enumerate(objects)]
    headed = [(number, header) for number, header in headed if header is not None]
    for header, group in groupby(headed, key=itemgetter(1)):
        yield from _csv_run(
            objects, [number for number, _ in group], header or b"", schema, inferred=inferred
        )


def csv_header(body: bytes) -> bytes | None:
    """The first record, raw; None if there is none."""
    place = csv_header_place(body)
    return None if place is None else body[slice(*place)]


def csv_header_place(body: bytes) -> tuple[int, int] | None:
    """Where the first record stands in an object that begins with `body`; its first `HEADER_BYTES` matter."""
    starts, ends = csv_ranges(body[:HEADER_BYTES])
    return (int(starts[0]), int(ends[0])) if len(starts) else None


def _csv_run(
    objects: Sequence[bytes], numbers: Sequence[int], header: bytes, schema: pa.Schema, *, inferred: bool
) -> Iterator[Parsed]:
    names, fault = csv_names(header, schema, inferred=inferred)
    if fault:
        for number in numbers:
            yield rejected_whole(number, objects[number], f"CSV header: {fault}", schema)
        return

    convert = csv_block(names, schema)

    def without_header(body: bytes) -> tuple[Offsets, Offsets]:
        starts, ends = csv_ranges(body)
        return starts[1:], ends[1:]

    renumber = np.asarray(numbers, np.int64)
    for records in blocks([objects[number] for number in numbers], without_header):
        parsed = convert_or_halve(records, schema, convert)
        parsed.index = renumber[parsed.index]
        parsed.rejects = [replace(reject, index=numbers[reject.index]) for reject in parsed.rejects]
        yield parsed


def csv_block(names: list[str], schema: pa.Schema) -> Convert:
    """A converter of blocks of records with the columns `names` to tables in `schema`."""
    # Timestamps are read as strings: the CSV reader insists on a zone, or on none.
    stamps = [column.name for column in schema if pa.types.is_timestamp(column.type)]
    reading = pa.schema([c.with_type(pa.string()) if c.name in stamps else c for c in schema])
    options = csv_options(schema.names, reading)

    def convert(records: Records) -> pa.Table:
        check_csv_records(records)
        table = read_csv(records.joined(), names, options)
        for name in stamps:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, _timestamps(table[name], schema.field(name).type))
        return table.cast(schema)

    return convert


def csv_names(header: bytes, schema: pa.Schema | None, *, inferred: bool) -> tuple[list[str], str]:
    """The columns that a header names, and what is wrong with it."""
    try:
        names = next(csv.reader(io.StringIO(header.decode("utf-8"), newline=""), strict=True))
    except (UnicodeError, csv.Error, StopIteration) as error:
        return [], reason_of(error) or "unreadable"
    if len(set(names)) != len(names):
        return names, "a column name stands twice"
    unknown = [name for name in names if schema is not None and name not in schema.names]
    if unknown and (inferred or len(unknown) == len(names)):
        return names, f"column {unknown[0]!r} {UNKNOWN_FIELD}"
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
