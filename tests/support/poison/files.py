"""Bad files of Parquet and Avro."""

import io
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.avro import HOSTILE, block, header, long


def parquet(table: pa.Table, **how: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **how)
    return sink.getvalue()


def nulls(rows: int) -> bytes:
    """A few hundred bytes that decode to so many rows."""
    values = pa.chunked_array([pa.nulls(rows // 100, pa.bool_())] * 100)
    return parquet(pa.table({"id": values}), row_group_size=rows, compression="zstd")


def one_long_value(rows: int, size: int, **how: Any) -> bytes:
    """One value of a dictionary, in each row."""
    values = pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), pa.array(["x" * size]))
    return parquet(pa.table({"name": values}), row_group_size=rows, compression="zstd", **how)


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
    """One block, deflated."""
    return header(record, b"deflate") + block(zlib.compress(records, 9, wbits=-15), count)


def record(name: str, *more: dict[str, Any]) -> dict[str, Any]:
    """Of an int `id`, and more fields."""
    return {"type": "record", "name": name, "fields": [{"name": "id", "type": "int"}, *more]}


def fields_of(kind: Callable[[int], Any], count: int = 1900) -> list[dict[str, Any]]:
    return [{"name": f"f{n}", "type": kind(n)} for n in range(count)]


def null_fields(rows: int) -> bytes:
    """Records of which each byte stands for a thousand nulls."""
    return avro(record("r", *fields_of(lambda _: "null")), b"\x02" * rows, rows)


def null_fields_in_list(items: int) -> bytes:
    """The same, as items of one record."""
    inner = record("i", *fields_of(lambda _: "null"))
    outer = record("r", {"name": "list", "type": {"type": "array", "items": inner}})
    return avro(outer, b"\x02" + long(items) + b"\x02" * items + b"\0", 1)


def empty_records(rows: int) -> bytes:
    kind = lambda n: {"type": "record", "name": f"e{n}", "fields": []}
    return avro(record("r", *fields_of(kind, 900)), b"\x02" * rows, rows)


FILES: dict[str, Callable[[], bytes]] = {
    **{f"{name.replace(' ', '-')}.avro": partial(bytes, body) for name, (body, _) in HOSTILE.items()},
    "null-fields.avro": lambda: null_fields(1_000_000),
    "null-fields-in-list.avro": lambda: null_fields_in_list(1_000_000),
    "empty-records.avro": lambda: empty_records(1_000_000),
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
