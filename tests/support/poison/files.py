"""Bad files of Parquet, ORC and Avro."""

import io
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

from tests.support.avro import HOSTILE, block, header, long


def parquet(table: pa.Table, **how: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **how)
    return sink.getvalue()


def nulls(rows: int) -> bytes:
    """A file of a few hundred bytes that decodes to this number of rows."""
    values = pa.chunked_array([pa.nulls(rows // 100, pa.bool_())] * 100)
    return parquet(pa.table({"id": values}), row_group_size=rows, compression="zstd")


def one_long_value(rows: int, size: int, **how: Any) -> bytes:
    """A file in which each row has the same dictionary value."""
    values = pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), pa.array(["x" * size]))
    return parquet(pa.table({"name": values}), row_group_size=rows, compression="zstd", **how)


def harmless_first(rows: int, size: int) -> bytes:
    """A file with two row groups. The first row group has a hundred different names. The second row group repeats a
    long value `rows` times.
    """
    sink = io.BytesIO()
    long_ones = pa.DictionaryArray.from_arrays(
        pa.nulls(rows, pa.int32()).fill_null(0), pa.array(["x" * size])
    )
    with pq.ParquetWriter(sink, pa.schema([("name", long_ones.type)]), compression="zstd") as writer:
        names = pa.array([f"{n:x}" * 40 for n in range(100)]).dictionary_encode()
        writer.write_table(pa.table({"name": names}))
        writer.write_table(pa.table({"name": long_ones}), row_group_size=rows)
    return sink.getvalue()


def nested(levels: int, kind: Callable[[pa.DataType], pa.DataType]) -> bytes:
    inner = pa.int64()
    for _ in range(levels):
        inner = kind(inner)
    return parquet(pa.table({"id": pa.array([1]), "deep": pa.nulls(1, inner)}))


def damaged() -> bytes:
    body = bytearray(parquet(pa.table({"id": list(range(1000)), "name": ["x" * 50] * 1000})))
    body[20:400] = b"\xff" * 380
    return bytes(body)


def avro(record: dict[str, Any], records: bytes, count: int) -> bytes:
    """A file with one block, which is deflated."""
    return header(record, b"deflate") + block(zlib.compress(records, 9, wbits=-15), count)


def record(name: str, *more: dict[str, Any]) -> dict[str, Any]:
    """A record type with an int field `id`, and more fields."""
    return {"type": "record", "name": name, "fields": [{"name": "id", "type": "int"}, *more]}


def fields_of(kind: Callable[[int], Any], count: int = 1900) -> list[dict[str, Any]]:
    return [{"name": f"f{n}", "type": kind(n)} for n in range(count)]


def null_fields(rows: int) -> bytes:
    """Records in which each byte means a thousand nulls."""
    return avro(record("r", *fields_of(lambda _: "null")), b"\x02" * rows, rows)


def null_fields_in_list(items: int) -> bytes:
    """One record whose list has a thousand nulls for each byte."""
    inner = record("i", *fields_of(lambda _: "null"))
    outer = record("r", {"name": "list", "type": {"type": "array", "items": inner}})
    return avro(outer, b"\x02" + long(items) + b"\x02" * items + b"\0", 1)


def empty_records(rows: int) -> bytes:
    kind = lambda n: {"type": "record", "name": f"e{n}", "fields": []}
    return avro(record("r", *fields_of(kind, 900)), b"\x02" * rows, rows)


def orc(table: pa.Table, times: int = 1, **how: Any) -> bytes:
    """A file that repeats the table this number of times in one stripe. Each text is stored once, in a dictionary."""
    sink = io.BytesIO()
    with pa_orc.ORCWriter(
        sink, dictionary_key_size_threshold=1.0, **{"compression": "zstd", **how}
    ) as writer:
        for _ in range(times):
            writer.write(table)
    return sink.getvalue()


def orc_with_blocks_of(size: int) -> bytes:
    """A file whose postscript says that each compressed block has this size.

    For snappy, a reader allocates a buffer of this size.
    """
    body = orc(pa.table({"id": [1]}), compression="snappy")
    post = body[-1 - body[-1] : -1]
    said = b"\x18\x80\x80\x04"
    assert said in post
    digits = [size >> shift & 127 | 128 for shift in range(0, 63, 7)]
    post = post.replace(said, bytes([0x18, *digits, size >> 63]))
    return body[: -1 - body[-1]] + post + bytes([len(post)])


YEARS = {
    "id": pa.array([1, 2, 3, 4]),
    "day": pa.array([-719_163, 2**31 - 1, 0, None], pa.date32()),
    "at": pa.array([2**63 - 1, -62_135_596_800_000_001, 0, None], pa.timestamp("us", tz="UTC")),
    "zone": pa.array([0, 2**62, -(2**62), None], pa.timestamp("us", tz="Foo/Bar")),
}
"""Columns with dates and times that Python cannot represent."""

TWINS = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["t", "t"])


def years_in_avro() -> bytes:
    kinds = {
        "day": ("int", "date"),
        "at": ("long", "timestamp-micros"),
        "near": ("long", "local-timestamp-nanos"),
    }
    fields = [{"name": n, "type": {"type": t, "logicalType": logical}} for n, (t, logical) in kinds.items()]
    return header(record("r", *fields)) + block(
        b"\x02" + long(-719_163) + long(2**63 - 1) + long(-(2**63)), 1
    )


FILES: dict[str, Callable[[], bytes]] = {
    **{f"{name.replace(' ', '-')}.avro": partial(bytes, body) for name, (body, _) in HOSTILE.items()},
    "null-fields.avro": lambda: null_fields(1_000_000),
    "null-fields-in-list.avro": lambda: null_fields_in_list(1_000_000),
    "empty-records.avro": lambda: empty_records(1_000_000),
    "years.avro": years_in_avro,
    "years.parquet": lambda: parquet(pa.table(YEARS)),
    "years.orc": lambda: orc(pa.table({name: YEARS[name] for name in ("id", "day")})),
    "far-times.orc": lambda: orc(pa.table(YEARS)),
    "twins.parquet": lambda: parquet(pa.table({"id": [1], "twins": TWINS})),
    "twins.orc": lambda: orc(pa.table({"id": [1], "twins": TWINS})),
    "repeated.parquet": lambda: one_long_value(3000, 900_000),
    "repeated-text.parquet": lambda: one_long_value(3000, 900_000, store_schema=False),
    "repeated.orc": lambda: orc(pa.table({"name": ["x" * 1_000_000] * 100}), 37),
    "blocks.orc": lambda: orc_with_blocks_of(2**62),
    "large-blocks.orc": lambda: orc_with_blocks_of(2**31 - 1),
    "cut.orc": lambda: orc(pa.table({"id": [1]}))[:-9],
    "postscript.orc": lambda: b"ORC" + b"\xff" * 100 + b"ORC\x64",
    "nulls.parquet": lambda: nulls(400_000_000),
    "long-value.parquet": lambda: one_long_value(200_000, 100_000),
    "long-text.parquet": lambda: one_long_value(200_000, 100_000, store_schema=False),
    "deep-structs.parquet": lambda: nested(45, lambda kind: pa.struct([("a", kind)])),
    "deep-lists.parquet": lambda: nested(45, pa.list_),
    "too-deep.parquet": lambda: nested(130, lambda kind: pa.struct([("a", kind)])),
    "wide.parquet": lambda: parquet(pa.table({f"c{n}": [n] for n in range(5000)})),
    "reserved.parquet": lambda: parquet(pa.table({"_key": [1], "_SLOT": [2], "": [3]})),
    "names.parquet": lambda: parquet(
        pa.table({"a.b": [1], "a`b": [2], "a b": [3], "🙂": [4], "Aa": [5], "aA": [6]})
    ),
    "twice.parquet": lambda: parquet(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    ),
    "types.parquet": lambda: parquet(pa.table({"id": ["x", "y"], "name": [[1], [2]]})),
    "no-columns.parquet": lambda: parquet(pa.table({})),
    "footer.parquet": lambda: b"PAR1" + b"\xff" * 100 + (90).to_bytes(4, "little") + b"PAR1",
    "cut.parquet": lambda: parquet(pa.table({"id": [1]}))[:-9],
    "damaged.parquet": damaged,
}
