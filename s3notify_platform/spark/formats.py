"""Bytes of objects to Arrow rows and rejects: JSONL, CSV, Parquet, text, binary. Pure, no Spark.

The entry to parsing: `parse` hands JSONL to `jsonl` and CSV to `csv_records`, which find their bad records as
`records` says; the other formats are here. Rows and rejects together are as many as the records. A Parquet
file that cannot be read is one reject, and none of its rows are taken in. `inference` finds schemas.

`_offset` is the byte at which a record starts in its object; for Parquet, the row number.

Fields the schema does not name: with a given schema they are left out, as declared; with an inferred one the
record is a reject (`Reject.unknown_field`), because nobody has decided to lose them.

Timestamps without a zone are UTC.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.errors import UsageError
from s3notify_platform.spark.csv_records import parse_csv
from s3notify_platform.spark.jsonl import filled_lines, json_block
from s3notify_platform.spark.records import (
    UNKNOWN_FIELD,
    Parsed,
    Records,
    line_ranges,
    parse_lines,
    reason_of,
    rejected_whole,
)

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

RESERVED: Final = frozenset({"_kind", "_slot", "_key", "_etag", "_offset", "_note", "_raw"})
"""Names that a source's columns cannot have."""


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
            yield from parse_lines(objects, schema, json_block(schema, inferred=inferred), filled_lines)
        case "text":
            yield from parse_lines(objects, schema, _text_block, line_ranges)
        case "csv":
            yield from parse_csv(objects, schema, inferred=inferred)
        case "parquet":
            yield from _parquet(objects, schema, inferred=inferred)
        case "binary":
            count = len(objects)
            table = pa.table({"content": pa.array(objects, pa.binary())}, schema=schema)
            yield Parsed(table=table, index=np.arange(count), offset=np.zeros(count, np.int64))
        case _:
            raise UsageError(f"format {fmt!r}: use one of {', '.join(FORMATS)}")


def _text_block(records: Records) -> pa.Table:
    view = records.body
    lines = [
        view[s:e].decode("utf-8") for s, e in zip(records.start.tolist(), records.end.tolist(), strict=True)
    ]
    return pa.table({"value": pa.array(lines, pa.string())})


def _parquet(objects: Sequence[bytes], schema: pa.Schema, *, inferred: bool) -> Iterator[Parsed]:
    for index, body in enumerate(objects):
        if not body:
            continue
        try:
            # The whole object first: half an object's rows are never taken in.
            table = _read_parquet(body, schema, inferred=inferred)
        except Exception as error:  # noqa: BLE001 - a corrupt file can raise anything, and must stop no other
            yield rejected_whole(index, body, f"Parquet: {reason_of(error)}", schema)
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
