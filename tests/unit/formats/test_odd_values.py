"""Values that Python's types or the time zone data cannot represent.

A record with such a value becomes a row or a reject, and each row can be read.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest

from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.registry import FORMATS
from tests.support.parsing import take

DAY = pa.date32()
UTC = pa.timestamp("us", tz="UTC")
LAST_US = 253_402_300_799_999_999
FIRST_US = -62_135_596_800_000_000

ODD: dict[str, pa.Array] = {
    "day of year 0": pa.array([-719_163], DAY),
    "last day of all": pa.array([2**31 - 1], DAY),
    "milliseconds of a day": pa.array([86_400_000 * 10**8], pa.date64()),
    "time of year 0": pa.array([FIRST_US - 1], UTC),
    "time of year 10000": pa.array([LAST_US + 1], UTC),
    "last time of all": pa.array([2**63 - 1], UTC),
    "seconds": pa.array([2**62], pa.timestamp("s")),
    "nanoseconds": pa.array([2**62 + 1], pa.timestamp("ns")),
    "no zone": pa.array([LAST_US + 1], pa.timestamp("us")),
    "unknown zone": pa.array([0], pa.timestamp("us", tz="Foo/Bar")),
    "far zone": pa.array([0], pa.timestamp("us", tz="+25:00")),
    "year 10000 in a zone": pa.array([LAST_US + 1], pa.timestamp("us", tz="-10:00")),
    "duration": pa.array([2**62], pa.duration("s")),
    "time of a day": pa.array([86_399_999_999_999], pa.time64("ns")),
    "twins": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["t", "t"]),
    "empty": pa.array([{}], pa.struct([])),
    "bytes": pa.array([b"\xff\x00"]),
    "large": pa.array([2**64 - 1], pa.uint64()),
    "decimal": pa.array([10**37], pa.decimal128(38, 0)),
}
GOOD: dict[str, pa.Array] = {
    "first day": pa.array([-719_162], DAY),
    "last day": pa.array([2_932_896], DAY),
    "first time": pa.array([FIRST_US], UTC),
    "last time": pa.array([LAST_US], UTC),
}

WRAPPED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "column": lambda values: values,
    "struct": lambda values: pa.StructArray.from_arrays([values], names=["x"]),
    "list": lambda values: pa.ListArray.from_arrays([0, 1], values),
    "map": lambda values: pa.MapArray.from_arrays([0, 1], pa.array(["k"]), values),
    "map key": lambda values: pa.MapArray.from_arrays([0, 1], values, pa.array([1])),
    "list of structs": lambda values: pa.ListArray.from_arrays(
        [0, 1], pa.StructArray.from_arrays([values], names=["x"])
    ),
}
KINDS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "column": lambda kind: kind,
    "struct": lambda kind: pa.struct([("x", kind)]),
    "list": pa.list_,
    "map": lambda kind: pa.map_(pa.string(), kind),
    "map key": lambda kind: pa.map_(kind, pa.int64()),
    "list of structs": lambda kind: pa.list_(pa.struct([("x", kind)])),
}
TYPES = (
    pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.binary(), pa.decimal128(12, 2), DAY, UTC,
    pa.timestamp("us"), pa.struct([("t", pa.int64())]),
)  # fmt: skip
"""Column types that Spark supports."""

AVRO = {
    "day of year 0": ({"type": "int", "logicalType": "date"}, -719_163),
    "last day of all": ({"type": "int", "logicalType": "date"}, 2**31 - 1),
    "time of year 0": ({"type": "long", "logicalType": "timestamp-micros"}, FIRST_US - 1),
    "last time of all": ({"type": "long", "logicalType": "timestamp-millis"}, 2**63 - 1),
    "nanoseconds": ({"type": "long", "logicalType": "local-timestamp-nanos"}, 2**63 - 1),
    "no zone": ({"type": "long", "logicalType": "local-timestamp-micros"}, LAST_US + 1),
    "last time": ({"type": "long", "logicalType": "timestamp-micros"}, LAST_US),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}, b"\x07" * 16),
    "twins": (
        {"type": "record", "name": "n", "fields": [{"name": "t", "type": "long"}, {"name": "t", "type": "long"}]},
        {"t": 2},
    ),
    "bytes": ("bytes", b"\xff\x00"),
}  # fmt: skip


FAR = {"milliseconds of a day", "seconds", "no zone", "first time", "last time"}
FAR |= {name for name in ODD if name.startswith(("time of year", "last time", "year 10000"))}
"""Times that pyarrow cannot read from ORC: its ORC reader supports only the years 1677 to 2262."""


def parquet(values: pa.Array) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [1], "v": values}), sink)
    return sink.getvalue()


def orc(values: pa.Array) -> bytes:
    sink = io.BytesIO()
    pa_orc.write_table(pa.table({"id": [1], "v": values}), sink)
    return sink.getvalue()


def avro(place: str, kind: Any, value: Any) -> bytes:
    one = {"type": "record", "name": "one", "fields": [{"name": "x", "type": kind}]}
    wrapped = {
        "column": (kind, value), "struct": (one, {"x": value}),
        "list": ({"type": "array", "items": kind}, [value]),
        "map": ({"type": "map", "values": kind}, {"k": value}),
        "list of structs": ({"type": "array", "items": one}, [{"x": value}]),
    }  # fmt: skip
    kind, value = wrapped[place]
    fields = [{"name": "id", "type": "long"}, {"name": "v", "type": kind}]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [{"id": 1, "v": value}])
    return sink.getvalue()


def _files(place: str, values: Mapping[str, pa.Array]) -> Iterator[tuple[str, str, bytes]]:
    for name, array in values.items():
        for fmt, write in (("parquet", parquet), ("orc", orc)):
            try:
                yield name, fmt, write(WRAPPED[place](array))
            except (pa.ArrowException, ValueError):
                continue  # the writer of this format cannot write this value
    for name, (kind, value) in AVRO.items():
        if place != "map key" and name in values:
            yield name, "avro", avro(place, kind, value)


def ends(body: bytes, fmt: str, schema: pa.Schema, *, inferred: bool, rescue: bool) -> list[dict[str, Any]]:
    """Checks that the object's one record is a row or a reject. Returns the rows as Python values. The conversion to
    Python reads each value.
    """
    mode = "rescue" if rescue else "quarantine"
    rows, rejects = take([body], schema, fmt, inferred=inferred, mismatches=mode)
    assert len(rows) + len(rejects) == 1
    assert all(reject.reason for reject in rejects)
    for _, _, row in rows:
        json.loads(row.get("_rescued") or "{}")
    return [row for _, _, row in rows]


@pytest.mark.parametrize("rescue", [False, True])
@pytest.mark.parametrize("place", WRAPPED)
def test_each_value_becomes_a_row_or_a_reject(place: str, rescue: bool) -> None:
    """If a value raised an error in the parser, other objects in the same call would get no rows. If `as_py` failed, no
    Python program could read the row.
    """
    tried = 0
    for name, fmt, body in _files(place, ODD):
        absent = pa.schema([("id", pa.int64())])
        for inferred in (False, True):
            found = ends(body, fmt, absent, inferred=inferred, rescue=rescue)
            assert found or (inferred and not rescue) or (fmt == "orc" and name in FAR), (name, fmt)
            if rescue and found:
                assert "v" in json.loads(found[0]["_rescued"]), (name, fmt)
        for kind in TYPES:
            for wrapped in {KINDS[place](kind), kind}:
                schema = absent.append(pa.field("v", wrapped))
                found = ends(body, fmt, schema, inferred=False, rescue=rescue)
                if rescue and found:
                    assert found[0]["v"] is not None or found[0]["_rescued"], (name, fmt, wrapped)
                tried += 1
    assert tried > 300


@pytest.mark.parametrize("place", WRAPPED)
def test_an_inferred_schema_rejects_values_that_python_cannot_hold(place: str) -> None:
    """Python's dates end with the year 9999. If a later date were loaded, no Python program could read its row. The
    first and the last valid date must become rows, because a stricter check would lose correct data.
    """
    odd = 0
    for values in (ODD, GOOD):
        files = [*_files(place, values)]
        assert {fmt for _, fmt, _ in files} == {"parquet", "orc", *(["avro"] if place != "map key" else [])}
        for name, fmt, body in files:
            form = FORMATS[fmt]
            schema = infer(form.schemas(BytesInMemory(body), "k", "utf-8"))
            assert schema is not None, (name, fmt)
            for rescue in (False, True):
                found = ends(body, fmt, schema, inferred=True, rescue=rescue)
                unread = fmt == "orc" and name in FAR
                assert found or values is ODD or unread, (name, fmt)
                if unread:
                    assert not found, name
                elif "year" in name or "of all" in name or name == "no zone":
                    odd += 1
                    assert [row["_rescued"] for row in found] if rescue else not found, (name, fmt)
    assert odd


TEXTS = (
    "0000-01-01", "0000-12-31", "9999-12-31T23:59-10:00", "0001-01-01T00:00:00+10:00", "10000-01-01", "-0001-01-01",
    "9999-12-31T23:59:59.9999999-00:01", "0000-01-01T00:00:00", "99999999-01-01",
)  # fmt: skip
FINE = ("0001-01-01", "9999-12-31", "0001-01-01T00:00:00Z", "9999-12-31 23:59:59.999999999")


@pytest.mark.parametrize("kind", [DAY, UTC, pa.timestamp("us")])
def test_odd_times_in_texts_affect_only_their_record(kind: pa.DataType) -> None:
    """The times of many records are converted together. If a single odd time made such a conversion fail, good records
    in the same block would become rejects.
    """
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    texts = [text for text in (*TEXTS, *FINE) if kind != DAY or ("T" not in text and ":" not in text)]
    fine = {n for n, text in enumerate(texts) if text in FINE}
    csv = "id,v\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts))
    lines = "".join(json.dumps({"id": n, "v": text}) + "\n" for n, text in enumerate(texts))
    document = "[" + ",\n".join(lines.splitlines()) + "]"
    for fmt, body in (("csv", csv), ("jsonl", lines), ("json", document)):
        rows, rejects = take([body.encode()], schema, fmt)
        assert {row["id"] for _, _, row in rows} == fine, fmt
        assert len(rejects) == len(texts) - len(fine), fmt
        rescued, none = take([body.encode()], schema, fmt, mismatches="rescue")
        assert not none
        kept = {row["id"]: json.loads(row["_rescued"]) for _, _, row in rescued if row["_rescued"]}
        assert kept == {n: {"v": text} for n, text in enumerate(texts) if n not in fine}, fmt


def test_odd_times_in_structs_and_lists_affect_only_their_record() -> None:
    """Otherwise a time of the year 0 inside a struct or a list would make rejects of good records in the same block."""
    inside = pa.schema([("s", pa.struct([("t", UTC)])), ("l", pa.list_(DAY)), ("t", UTC)])
    body = b'{"s":{"t":"0000-01-01"}}\n{"l":["0001-01-01","0000-01-01"]}\n{"s":{"t":"0001-01-01"},"l":[]}\n'
    rows, rejects = take([body], inside, "jsonl")
    assert (len(rows), len(rejects)) == (1, 2)
    rows, rejects = take([body], inside, "jsonl", mismatches="rescue")
    assert [row["_rescued"] for _, _, row in rows] == ['{"s.t":"0000-01-01"}', '{"l[1]":"0000-01-01"}', None]
    table = pa.table({"t": ["9999-12-31T23:59-10:00", "9999-12-31T23:59Z"]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    rows, _ = take([sink.getvalue()], inside, "parquet", mismatches="rescue")
    assert [row["_rescued"] for _, _, row in rows] == ['{"t":"9999-12-31T23:59-10:00"}', None]


def test_fields_with_the_same_name_are_kept() -> None:
    """A cast would drop one of the fields. So the struct counts as a mismatch, and is rescued as pairs of name and
    value.
    """
    body = parquet(ODD["twins"])
    schema = pa.schema([("id", pa.int64()), ("v", pa.struct([("t", pa.int64())]))])
    assert take([body], schema, "parquet")[0] == []
    ((_, _, row),), _ = take([body], schema, "parquet", mismatches="rescue")
    assert row == {"id": 1, "v": None, "_rescued": '{"v":"[[\\"t\\",1],[\\"t\\",2]]"}'}
