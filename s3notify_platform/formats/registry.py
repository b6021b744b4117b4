"""Bytes of objects to Arrow rows and rejects: JSONL, CSV, Parquet, text, binary. Pure, no Spark.

The entry to parsing: `parse` hands JSONL to `jsonl` and CSV to `csv_records`, which find their bad records as
`records` says, and Parquet to `parquet`; the other formats are here. Rows and rejects together are as many as the
records; a row group that cannot be read is one reject. `inference` finds schemas. What is compressed or encoded has
been decoded before, by `codecs`.

`_offset` is the byte at which a record starts in its object; for Parquet, the row number.

Values that do not fit their column, and fields that the schema does not name: see `rescue`. Without it, a mismatch
makes its record a reject. Fields that a given schema does not name are left out, as declared, and counted; with an
inferred one the record is a reject, because nobody has decided to lose them.

Timestamps without a zone are UTC.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from s3notify_platform.errors import UsageError
from s3notify_platform.formats.codecs import without_suffix
from s3notify_platform.formats.csv import parse_csv
from s3notify_platform.formats.jsonl import JsonLines, filled_lines
from s3notify_platform.formats.parquet import parse_parquet
from s3notify_platform.formats.records import (
    Converted,
    Mended,
    Parsed,
    Records,
    Wanted,
    line_ranges,
    parse_lines,
)
from s3notify_platform.formats.rescue import RESCUED, Mismatches

Format = Literal["auto", "jsonl", "csv", "parquet", "text", "binary"]
FORMATS: Final = ("auto", "jsonl", "csv", "parquet", "text", "binary")

FIXED_SCHEMAS: Final = {
    "text": pa.schema([pa.field("value", pa.string())]),
    "binary": pa.schema([pa.field("content", pa.binary())]),
}
_SUFFIXES: Final = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": "csv", "parquet": "parquet", "txt": "text",
    "log": "text",
}  # fmt: skip

RESERVED: Final = frozenset({"_kind", "_slot", "_key", "_etag", "_offset", "_note", "_raw", RESCUED.name})
"""Names that a source's columns cannot have."""


def format_of(key: str, declared: str) -> str | None:
    """The format of an object: as declared, or under `auto` by the key's last suffix, or None.

    The suffix of a compression is passed over.
    """
    if declared != "auto":
        return declared
    return _SUFFIXES.get(without_suffix(key.rsplit("/", 1)[-1]).rsplit(".", 1)[-1].lower())


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
    objects: Sequence[bytes],
    schema: pa.Schema,
    fmt: str,
    *,
    inferred: bool = False,
    mismatches: Mismatches = "quarantine",
) -> Iterator[Parsed]:
    """Parse whole objects of one format, in order, block by block. Never raises for bad data."""
    wanted = Wanted(schema=schema, inferred=inferred, rescue=mismatches == "rescue")
    match fmt:
        case "jsonl":
            yield from parse_lines(objects, JsonLines(wanted), filled_lines)
        case "text":
            yield from parse_lines(objects, TextLines(wanted), line_ranges)
        case "csv":
            yield from parse_csv(objects, wanted)
        case "parquet":
            for index, body in enumerate(objects):
                yield from parse_parquet(index, body, wanted)
        case "binary":
            count = len(objects)
            table = wanted.rows(only_column("content", pa.array(objects, pa.binary()), schema))
            yield Parsed(table=table, index=np.arange(count), offset=np.zeros(count, np.int64))
        case _:
            raise UsageError(f"format {fmt!r}: use one of {', '.join(FORMATS)}")


class TextLines:
    """The parser of lines that are one value each."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`."""
        lines = [records.raw(number).decode("utf-8") for number in range(len(records.start))]
        return Converted(table=only_column("value", pa.array(lines, pa.string()), self.wanted.schema))

    def unnamed(self, raw: bytes) -> dict[str, str]:  # noqa: ARG002 - a line has nothing besides
        """See `records.Parser`."""
        return {}

    def mend(self, records: Records) -> Mended:
        """See `records.Parser`. A line is one value, or none."""
        return Mended(table=self.wanted.schema.empty_table(), odds=[None] * len(records.start))


def only_column(name: str, values: pa.Array, schema: pa.Schema) -> pa.Table:
    """A table with values in one column."""
    columns = [values if column.name == name else pa.nulls(len(values), column.type) for column in schema]
    return pa.Table.from_arrays(columns, schema=schema)
