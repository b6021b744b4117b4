"""(10) The time to parse records, of which some have a value that does not fit its column. For comparison, records
without such values are parsed.

Only the parsers run, without S3 and Spark. Each figure is compared with the same format without such values, or with
the format's library.
"""

import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from tests.benchmarks.figures import Figure, short, timed, times

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("pos", pa.struct([("x", pa.float64()), ("y", pa.int64())])),
    ]
)
MISMATCHES: dict[str, Any] = {
    "id": "none",
    "price": "unknown",
    "at": "yesterday",
    "tags": [1, "x"],
    "pos": {"x": 1.0, "y": "q"},
}
SHARES = (0.01, 0.3)
REPEATS = 5


def run(_folder: Path, *, small: bool) -> list[Figure]:
    records = 2000 if small else 250_000
    lines = (("jsonl", _jsonl), ("csv", _csv))
    found = [figure for name, dump in lines for figure in _figures(name, dump, records)]
    return [*found, *_of_libraries(records)]


def _of_libraries(records: int) -> Iterator[Figure]:
    """The figures of formats that a library can read without the platform. The library returns the same table, but no
    rejects and no offsets, and does not check limits.
    """
    rows = [{"id": n, "name": f"user {n % 977} of the house", "price": n * 0.37} for n in range(records)]
    table = pa.Table.from_pylist(rows)
    sinks = pa.BufferOutputStream(), pa.BufferOutputStream()
    pq.write_table(table, sinks[0])
    pa_orc.write_table(table, sinks[1])
    bodies = [sink.getvalue() for sink in sinks]
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    avro = io.BytesIO()
    fields.append({"name": "price", "type": "double"})
    fastavro.writer(avro, {"type": "record", "name": "r", "fields": fields}, rows, codec="deflate")
    alone: dict[str, tuple[bytes, Callable[[], object]]] = {
        "parquet": (bodies[0].to_pybytes(), lambda: pq.read_table(pa.BufferReader(bodies[0]))),
        "orc": (bodies[1].to_pybytes(), lambda: pa_orc.read_table(pa.BufferReader(bodies[1]))),
        "avro": (
            avro.getvalue(),
            lambda: pa.Table.from_pylist([*fastavro.reader(io.BytesIO(avro.getvalue()))], table.schema),
        ),
    }
    for name, (body, read) in alone.items():
        instead, _ = timed(read, REPEATS)
        took, rejects = timed(partial(_parse, name, body, table.schema), REPEATS)
        assert rejects == 0
        yield Figure(
            what=f"{name}, {records} records of three columns: to a table",
            ours=short(took),
            instead=f"its library alone: {short(instead)}",
            ratio=times(instead, took),
        )


def _figures(name: str, dump: Callable[[Sequence[dict[str, Any]]], bytes], records: int) -> Iterator[Figure]:
    nested = name == "jsonl"
    schema = SCHEMA if nested else pa.schema([c for c in SCHEMA if not pa.types.is_nested(c.type)])
    clean = dump(_records(records, schema, 0.0))
    for share in SHARES:
        dirty = dump(_records(records, schema, share))
        _parse(name, dirty, schema)
        (instead, found), (took, rejects) = (
            timed(partial(_parse, name, body, schema), REPEATS) for body in (clean, dirty)
        )
        assert found == 0
        assert 0.5 * share * records < rejects < 1.5 * share * records
        kind = "nested values among them" if nested else "five columns"
        yield Figure(
            what=f"{name}, {len(clean) >> 20} MB, {kind}: {share:.0%} of the records do not fit",
            ours=short(took),
            instead=f"all fit: {short(instead)}",
            ratio=times(instead, took),
        )


def _parse(name: str, body: bytes, schema: pa.Schema) -> int:
    """The number of rejects."""
    return sum(len(parsed.rejects) for parsed in FORMATS[name].parse([("key", body)], Target(schema=schema)))


def _records(count: int, schema: pa.Schema, share: float) -> list[dict[str, Any]]:
    chance = random.Random(1)
    mismatches = [name for name in MISMATCHES if name in schema.names]
    found = []
    for n in range(count):
        record: dict[str, Any] = {
            "id": n,
            "name": f"user {n % 977} of the house",
            "price": n * 0.37,
            "at": f"2024-05-{1 + n % 28:02d}T07:08:{n % 60:02d}Z",
            "ok": n % 2 == 0,
            "tags": ["a", "bb", f"t{n % 13}"],
            "pos": {"x": n / 7, "y": n},
        }
        if chance.random() < share:
            name = chance.choice(mismatches)
            record[name] = MISMATCHES[name]
        found.append({name: record[name] for name in schema.names})
    return found


def _jsonl(records: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _csv(records: Sequence[dict[str, Any]]) -> bytes:
    rows = [list(records[0]), *(record.values() for record in records)]
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
