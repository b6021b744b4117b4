"""Compares the whole bucket with the whole table, independently of the project: only by boto3, pyarrow and the standard
library.

Every object is read again completely. A record that is malformed on purpose contains `BROKEN-` and a unique number. So
the expected rejects can be found without any parser.
"""

import bz2
import csv
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import boto3
import deltalake
import deltalake.exceptions
import fastavro
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from pyarrow import orc

BROKEN = re.compile(rb"BROKEN-\d+")
UNKNOWN_PLACE = -1
"""The value in place of an offset, if offsets are not compared."""
_UNPLACED = ("csv", "avro", "orc")

LINEAGE = ("_slot", "_key", "_etag", "_offset")

Row = tuple[str, str, int, Hashable]
"""Key, ETag, offset, values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A source and its table. `schema`: the Arrow types of the columns, with which all values are compared."""

    endpoint_url: str
    bucket: str
    prefix: str
    format: str
    table_prefix: str
    schema: pa.Schema
    access_key_id: str = "test"
    secret_access_key: str = "test"

    def client(self) -> Any:
        return boto3.session.Session().client(
            "s3", endpoint_url=self.endpoint_url, region_name="us-east-1",
            aws_access_key_id=self.access_key_id, aws_secret_access_key=self.secret_access_key,
        )  # fmt: skip


def differences(place: Place) -> str:
    """Differences between bucket and table; empty if equal."""
    found = differing(place)
    shown = "\n".join(f"{key}: {what}" for key, what in sorted(found.items())[:5])
    return f"{len(found)} objects differ\n{shown}" if found else ""


def differing(place: Place) -> dict[str, str]:
    """Differences between bucket and table, by key."""
    s3 = place.client()
    wrong: dict[str, list[str]] = {}
    for what, bucket, table in zip(
        ("row", "reject"), _of_bucket(s3, place), _of_table(s3, place), strict=True
    ):
        for name, rows in (("missing", bucket - table), ("too many", table - bucket)):
            by_key: dict[str, list[Any]] = {}
            for row in rows.elements():
                by_key.setdefault(row[0], []).append(row[1:])
            for key, of_key in by_key.items():
                wrong.setdefault(key, []).append(
                    f"{len(of_key)} {what}s {name}, like {sorted(of_key, key=str)[:2]}"
                )
    return {key: "; ".join(parts) for key, parts in wrong.items()}


def rows_of(place: Place) -> Counter[str]:
    """The number of rows in the bucket's objects, by key."""
    found: Counter[str] = Counter()
    for (key, *_), count in _of_bucket(place.client(), place)[0].items():
        found[key] += count
    return found


# The bucket


def _of_bucket(s3: Any, place: Place) -> tuple[Counter[Row], Counter[Any]]:
    rows: Counter[Row] = Counter()
    rejects: Counter[Any] = Counter()
    with ThreadPoolExecutor(8) as pool:
        for key, (etag, body) in pool.map(lambda key: (key, _get(s3, place, key)), _keys(s3, place)):
            for offset, values, broken in _records(place, key, body):
                if broken:
                    rejects[key, etag, broken] += 1
                else:
                    rows[key, etag, offset, values] += 1
    return rows, rejects


def _keys(s3: Any, place: Place, prefix: str | None = None) -> list[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=place.bucket, Prefix=place.prefix if prefix is None else prefix
    )
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


def _get(s3: Any, place: Place, key: str) -> tuple[str, bytes]:
    answer = s3.get_object(Bucket=place.bucket, Key=key)
    return answer["ETag"].strip('"'), answer["Body"].read()


def _records(place: Place, key: str, body: bytes) -> Iterator[tuple[int, Hashable, bytes]]:
    """Each record of an object: its offset, its values, and its mark if it is malformed."""
    fmt = _format(place, key)
    if fmt in _FILES:
        yield from _file_rows(place, fmt, body)
    elif fmt == "binary":
        yield 0, _values({"content": body}), b""
    else:
        text = decompressed(body, key)
        yield from {"jsonl": _jsonl, "csv": _csv, "text": _text}[fmt](place, text)


def _format(place: Place, key: str) -> str:
    return place.format if place.format != "auto" else _suffix(key)


def _suffix(key: str) -> str:
    parts = key.split(".")
    last = parts[-2] if parts[-1] in ("gz", "zst", "bz2", "sz", "snappy") else parts[-1]
    return {"txt": "text", "bin": "binary"}.get(last, last)


def decompressed(body: bytes, key: str = "") -> bytes:
    """The decompressed content.

    The first bytes decide the compression, but Hadoop's snappy blocks are recognized by the name.
    """
    if body.startswith(b"\x1f\x8b"):
        return gzip.decompress(body)
    if body.startswith(b"BZh"):
        return bz2.decompress(body)
    if body.startswith(b"\x28\xb5\x2f\xfd"):
        return pa.input_stream(pa.BufferReader(body), compression="zstd").read()
    if body.startswith(b"\xff\x06\x00\x00sNaPpY"):
        return _snappy_frames(body)
    return _snappy_blocks(body) if key.endswith(".snappy") else body


def _snappy_frames(body: bytes) -> bytes:
    found: list[bytes] = []
    place = 0
    while place < len(body):
        kind, length = body[place], int.from_bytes(body[place + 1 : place + 4], "little")
        frame = body[place + 8 : place + 4 + length]  # the data come after the checksum
        if kind == 0:
            found.append(pa.Codec("snappy").decompress(frame, _varint(frame), asbytes=True))
        elif kind == 1:
            found.append(frame)
        place += 4 + length
    return b"".join(found)


def _snappy_blocks(body: bytes) -> bytes:
    found: list[bytes] = []
    place = 0
    while place < len(body):
        missing, place = int.from_bytes(body[place : place + 4]), place + 4
        while missing:
            length = int.from_bytes(body[place : place + 4])
            part = body[place + 4 : place + 4 + length]
            found.append(pa.Codec("snappy").decompress(part, _varint(part), asbytes=True))
            missing -= len(found[-1])
            place += 4 + length
    return b"".join(found)


def _varint(data: bytes) -> int:
    value = shift = 0
    for octet in data:
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            break
        shift += 7
    return value


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    for line in text.split(b"\n"):
        if line or place < len(text):
            yield place, line.removesuffix(b"\r")
        place += len(line) + 1


def _jsonl(place: Place, text: bytes) -> Iterator[tuple[int, Hashable, bytes]]:
    good: list[tuple[int, bytes]] = []
    for offset, line in _lines(text):
        if mark := BROKEN.search(line):
            yield offset, (), mark[0]
        elif line.strip():
            good.append((offset, line))
    if not good:
        return
    options = pa_json.ParseOptions(explicit_schema=place.schema, unexpected_field_behavior="ignore")
    body = b"".join(line + b"\n" for _, line in good)
    table = pa_json.read_json(
        io.BytesIO(body), pa_json.ReadOptions(use_threads=False, block_size=len(body) + 1), options
    )
    assert table.num_rows == len(good)
    for (offset, _), row in zip(good, table.to_pylist(), strict=True):
        yield offset, _values(row), b""


def _csv(place: Place, text: bytes) -> Iterator[tuple[int, Hashable, bytes]]:
    rows = csv.reader(io.StringIO(text.decode(), newline=""))
    header = next(rows, None)
    for row in rows:
        if not row:
            continue
        if mark := BROKEN.search("".join(row).encode()):
            yield UNKNOWN_PLACE, (), mark[0]
            continue
        assert header is not None
        assert len(row) == len(header)
        named = dict(zip(header, row, strict=True))
        typed = {field.name: _typed(named[field.name], field.type) for field in place.schema}
        yield UNKNOWN_PLACE, _values(typed), b""


def _typed(value: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return value
    if value == "":
        return None
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    return datetime.fromisoformat(value)


def _text(place: Place, text: bytes) -> Iterator[tuple[int, Hashable, bytes]]:
    for offset, line in _lines(text):
        try:
            yield offset, _values({"value": line.decode()}), b""
        except UnicodeDecodeError:
            mark = BROKEN.search(line)
            assert mark is not None
            yield offset, (), mark[0]


_FILES = {"parquet": b"PAR1", "orc": b"ORC", "avro": b"Obj\x01"}


def _file_rows(place: Place, fmt: str, body: bytes) -> Iterator[tuple[int, Hashable, bytes]]:
    if not body:
        return
    if mark := BROKEN.search(body):
        assert body.startswith(_FILES[fmt])
        yield UNKNOWN_PLACE if fmt != "parquet" else 0, (), mark[0]
        return
    rows: Iterable[Any]
    if fmt == "avro":
        rows = fastavro.reader(io.BytesIO(body))
    else:
        source = pa.BufferReader(body)
        table = pq.read_table(source) if fmt == "parquet" else orc.ORCFile(source).read()
        rows = table.cast(place.schema).to_pylist()
    for number, row in enumerate(rows):
        yield number if fmt == "parquet" else UNKNOWN_PLACE, _values(row), b""


def _values(row: dict[str, Any]) -> Hashable:
    """Values in a form that can be compared, independent of their type. Nulls are left out."""

    def plain(value: Any) -> str:
        if isinstance(value, datetime):
            value = value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC).isoformat()
        return f"{value.normalize()}" if isinstance(value, Decimal) else repr(value)

    return tuple((name, plain(value)) for name, value in sorted(row.items()) if value is not None)


# The table


def _of_table(s3: Any, place: Place) -> tuple[Counter[Row], Counter[Any]]:
    options = {
        "AWS_ENDPOINT_URL": place.endpoint_url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": place.access_key_id, "AWS_SECRET_ACCESS_KEY": place.secret_access_key,
    }  # fmt: skip
    try:
        table = deltalake.DeltaTable(f"s3://{place.bucket}/{place.table_prefix}", storage_options=options)
    except deltalake.exceptions.TableNotFoundError:
        return Counter(), Counter()
    rows: Counter[Row] = Counter()
    for row in table.to_pyarrow_table().to_pylist():
        offset = UNKNOWN_PLACE if _format(place, row["_key"]) in _UNPLACED else row["_offset"]
        values = {name: value for name, value in row.items() if name not in LINEAGE}
        rows[row["_key"], row["_etag"], offset, _values(values)] += 1
    rejects: Counter[Any] = Counter()
    number = table.transaction_version(str(table.metadata().id))
    manifest = json.loads(_get(s3, place, f"{place.table_prefix}_s3notify/manifest/{number}.json")[1])
    assert manifest["version"] == table.version()
    for path, count in ((each[0], each[2]) for each in manifest["rejects"]):
        body = _get(s3, place, f"{place.table_prefix}{path}")[1]
        found = pq.ParquetFile(pa.BufferReader(body)).read().to_pylist()
        assert len(found) == count, f"{path}: {len(found)} rows, and {count} in the manifest"
        for row in found:
            mark = BROKEN.search(row["raw"] or b"")
            rejects[row["_key"], row["_etag"], mark[0] if mark else row["raw"]] += 1
    return rows, rejects
