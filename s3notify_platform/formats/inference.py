"""A schema from sample objects, in types that Spark has. Pure; data that cannot be read is passed over.

Such data becomes rejects later, when it is parsed with the schema. Timestamps without a zone in text formats
are UTC.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.errors import UsageError
from s3notify_platform.formats.csv import (
    check_csv_records,
    csv_header,
    csv_names,
    csv_options,
    csv_ranges,
    read_csv,
)
from s3notify_platform.formats.jsonl import check_json_lines, filled_lines, read_json
from s3notify_platform.formats.records import Offsets, Ranges, Records, blocks
from s3notify_platform.formats.registry import FIXED_SCHEMAS, RESERVED

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


def in_spark_types(schemas: Iterable[pa.Schema], fmt: str) -> pa.Schema | None:
    """Fields that objects have beyond a schema, as what it can be widened by: the widest types seen, as in `infer`.

    None if there are none, or only such as have a name kept for lineage.
    """
    columns: dict[str, pa.Field] = {}
    for schema in schemas:
        for column in schema:
            found = column.with_type(_zoned(column.type)) if fmt in ("jsonl", "csv") else column
            known = columns.get(column.name)
            columns[column.name] = found if known is None else _widest(known, found, fmt=fmt)
    wider = [pa.field(n, _spark_type(column.type)) for n, column in columns.items() if n not in RESERVED]
    return pa.schema(wider) if wider else None


def _schemas_of(fmt: str, body: bytes) -> Iterator[pa.Schema]:
    match fmt:
        case "jsonl":
            yield from _sampled(body, filled_lines, _json_schema)
        case "csv":
            header = csv_header(body)
            names, fault = csv_names(header, None) if header is not None else ([], "empty")
            if not fault:
                yield pa.schema([pa.field(name, pa.null()) for name in names])
                yield from _sampled(
                    body, lambda b: _skip_first(csv_ranges(b)), lambda r: _csv_schema(r, names)
                )
        case "parquet":
            try:
                yield pq.read_schema(pa.BufferReader(body))
            except Exception:  # noqa: BLE001 - as in `formats`; the object becomes a reject
                return
        case _:
            yield FIXED_SCHEMAS[fmt]


def _skip_first(ranges: tuple[Offsets, Offsets]) -> tuple[Offsets, Offsets]:
    return ranges[0][1:], ranges[1][1:]


def _sampled(body: bytes, ranges: Ranges, schema_of: Callable[[Records], pa.Schema]) -> Iterator[pa.Schema]:
    """Schemas of the first records of an object, halved around those that cannot be read."""
    records = next(blocks([body], lambda b: _first(ranges(b))), None)
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


def _json_schema(records: Records) -> pa.Schema:
    check_json_lines(records)
    found = read_json(records.joined(), None)
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


def _csv_schema(records: Records, names: list[str]) -> pa.Schema:
    check_csv_records(records)
    found = read_csv(records.joined(), names, csv_options(None, None)).schema
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
