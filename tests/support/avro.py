"""Makes Avro files: fastavro writes valid files, and this module writes hostile files byte by byte."""

import io
import json
import zlib
from collections.abc import Sequence
from typing import Any

import fastavro

SYNC = b"0123456789abcdef"
HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
        ],
    }
)
AB_RECORD = [{"name": "a", "type": ["null", "long"]}, {"name": "b", "type": ["null", "string"]}]


def file_of(
    rows: Sequence[dict[str, Any]],
    fields: Sequence[dict[str, Any]] = AB_RECORD,
    *,
    codec: str = "null",
    block: int = 100,
    **more: Any,
) -> bytes:
    sink = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [*fields]} | more
    fastavro.writer(sink, schema, rows, codec=codec, sync_interval=block, sync_marker=SYNC)
    return sink.getvalue()


def header(schema: object, codec: bytes = b"null") -> bytes:
    sink = io.BytesIO()
    found = {"magic": b"Obj\x01", "meta": {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec}}
    fastavro.schemaless_writer(sink, HEADER, found | {"sync": SYNC})
    return sink.getvalue()


def long(number: int) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, "long", number)
    return sink.getvalue()


def block(records: bytes, count: int) -> bytes:
    return long(count) + long(len(records)) + records + SYNC


NOTHING: dict[str, Any] = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "null"}]}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "text": (b"no avro", "no header"),
    "another magic": (b"Obj\x02" + header(NOTHING)[4:], "does not begin"),
    "codec": (header(NOTHING, b"lzo"), "codec 'lzo'"),
    "no schema": (header("long"), "not a record"),
    "no JSON": (header(NOTHING).replace(b'"type": "record"', b'"type": "record '), "schema"),
    "contains itself": (
        header({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}),
        "contains itself",
    ),
    "a union": (
        header({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["long", "string"]}]}),
        "a union of int64, string",
    ),
    "an array of nothing": (
        header(
            {
                "type": "record",
                "name": "r",
                "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}],
            }
        )
        + block(long(2**60) + b"\0", 1),
        "take no bytes",
    ),
    "records of nothing": (header(NOTHING) + block(b"", 2**60), "records in 0 bytes"),
    "too wide": (
        header(
            {"type": "record", "name": "r", "fields": [{"name": f"f{n}", "type": "int"} for n in range(3000)]}
        ),
        "more than 2000 fields",
    ),
    "too deep": (
        header(
            {
                "type": "record",
                "name": "r",
                "fields": [
                    {"name": "a", "type": json.loads('{"type":"array","items":' * 100 + '"int"' + "}" * 100)}
                ],
            }
        ),
        "32 levels",
    ),
    "doubling": (
        header(
            {
                "type": "record",
                "name": "r",
                "fields": [
                    {
                        "name": "a",
                        "type": {"type": "record", "name": "t0", "fields": [{"name": "x", "type": "int"}]},
                    }
                ]
                + [
                    {
                        "name": f"b{n}",
                        "type": {
                            "type": "record",
                            "name": f"t{n}",
                            "fields": [{"name": side, "type": f"t{n - 1}"} for side in "lr"],
                        },
                    }
                    for n in range(1, 30)
                ],
            }
        ),
        "more than 2000 fields",
    ),
    "a bomb": (
        header({"type": "record", "name": "r", "fields": [{"name": "a", "type": "bytes"}]}, b"deflate")
        + block(zlib.compress(bytes(64 << 20), wbits=-15), 1),
        "decompressed",
    ),
    "a long text": (
        header({"type": "record", "name": "r", "fields": [{"name": "b", "type": "string"}]})
        + block(long(2**50), 1),
        "record 0 of 1",
    ),
    "a block of negative size": (
        header({"type": "record", "name": "r", "fields": AB_RECORD}) + long(1) + long(-5),
        "a block of",
    ),
    "a block without end": (
        header({"type": "record", "name": "r", "fields": AB_RECORD}) + b"\xff" * 9,
        "without its length",
    ),
    "another schema's": (
        header({"type": "record", "name": "r", "fields": [{"name": "z", "type": "int"}]}) + block(b"\x02", 1),
        "column 'z' is not in the schema",
    ),
}
