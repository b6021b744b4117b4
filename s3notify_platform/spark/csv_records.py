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
_BORDERS: Final = np.frombuffer(b',\r\n"', np.uint8)

_CSV_VALUE: Final = rb'(?:"(?:[^"]++|"")*+"(?=[,\r\n]|\Z)|(?!")[^,\r\n]*+)'
_CSV_RECORD: Final = re.compile(_CSV_VALUE + b"(?:," + _CSV_VALUE + b")*+")
"""One well-formed record. A quote opens a value only at its start; inside others it is a letter."""

_CSV_NULLS: Final = ("", "NULL", "null", "NA", "N/A", "n/a")
"""What stands for null, except in a string column."""

_HEADER_BYTES: Final = 1 << 20


def csv_ranges(body: bytes) -> tuple[Offsets, Offsets]:
    """Byte ranges of the records of one object, its header line among them; blank lines left out."""
    octets = np.frombuffer(body, np.uint8)
    breaks = octets == NEWLINE
    if b'"' in body:
        if _quotes_are_plain(octets):
            breaks &= ~np.logical_xor.accumulate(octets == _QUOTE)
        else:
            breaks = _scanned_breaks(body)
    starts, ends = ranges_between(body, breaks)
    filled = ends > starts
    return starts[filled], ends[filled]


def _quotes_are_plain(octets: npt.NDArray[np.uint8]) -> bool:
    """Whether every quote stands at the border of its value, or is doubled: then each second one closes."""
    places = np.flatnonzero(octets == _QUOTE)
    if len(places) % 2:
        return False
    padded = np.concatenate([[NEWLINE], octets, [NEWLINE]])
    return bool(
        np.isin(padded[places[::2]], _BORDERS).all() and np.isin(padded[places[1::2] + 2], _BORDERS).all()
    )


def _scanned_breaks(body: bytes) -> npt.NDArray[np.bool_]:
    """Where records end, found one by one; a malformed record ends with its line."""
    breaks = np.zeros(len(body), np.bool_)
    place = len(BOM) if body.startswith(BOM) else 0
    while place < len(body):
        record = _CSV_RECORD.match(body, place)
        end = record.end() if record else place
        if body[end : end + 2] == b"\r\n":
            end += 1
        if end < len(body) and body[end] != NEWLINE:
            end = body.find(b"\n", place)
        if not 0 <= end < len(body):
            break
        breaks[end] = True
        place = end + 1
    return breaks


def check_csv_records(records: Records) -> None:
    """Refuse what pyarrow would split or join otherwise than `csv_ranges` did."""
    octets = np.frombuffer(records.body, np.uint8)[records.start[0] : records.end[-1]]
    if RETURN not in octets and _quotes_are_plain(octets):
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
    starts, ends = csv_ranges(body[:_HEADER_BYTES])
    return body[starts[0] : ends[0]] if len(starts) else None


def _csv_run(
    objects: Sequence[bytes], numbers: Sequence[int], header: bytes, schema: pa.Schema, *, inferred: bool
) -> Iterator[Parsed]:
    names, fault = csv_names(header, schema, inferred=inferred)
    if fault:
        for number in numbers:
            yield rejected_whole(number, objects[number], f"CSV header: {fault}", schema)
        return

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

    def without_header(body: bytes) -> tuple[Offsets, Offsets]:
        starts, ends = csv_ranges(body)
        return starts[1:], ends[1:]

    renumber = np.asarray(numbers, np.int64)
    for records in blocks([objects[number] for number in numbers], without_header):
        parsed = convert_or_halve(records, schema, convert)
        parsed.index = renumber[parsed.index]
        parsed.rejects = [replace(reject, index=numbers[reject.index]) for reject in parsed.rejects]
        yield parsed


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
