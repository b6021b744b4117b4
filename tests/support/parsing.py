"""Parses bytes, and returns a form that tests can compare: rows with their places, and rejects."""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.formats import inference
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Parsed, Reject, Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.formats.rescue import RESCUED, Mismatches

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
Row = tuple[int, int, dict[str, Any]]


def take(
    objects: list[bytes],
    schema: pa.Schema,
    fmt: str,
    *,
    inferred: bool = False,
    mismatches: Mismatches = "quarantine",
    seen: list[Parsed] | None = None,
) -> tuple[list[Row], list[Reject]]:
    """Rows as (object, offset, values), and rejects, in the order of their places.

    The parsed batches are appended to `seen`.
    """
    rows: list[Row] = []
    rejects: list[Reject] = []
    target = Target(schema=schema, inferred=inferred, rescue=mismatches == "rescue")
    for parsed in FORMATS[fmt].parse([("k", body) for body in objects], target):
        assert parsed.table.schema == (schema.append(RESCUED) if mismatches == "rescue" else schema)
        parsed.table.validate(full=True)
        if seen is not None:
            seen.append(parsed)
        assert parsed.table.num_rows == len(parsed.index) == len(parsed.offset)
        rows += zip(parsed.index.tolist(), parsed.offset.tolist(), parsed.table.to_pylist(), strict=True)
        rejects += parsed.rejects
    return sorted(rows, key=lambda r: r[:2]), sorted(rejects, key=lambda r: (r.index, r.offset))


def infer(objects: Sequence[tuple[str, bytes]]) -> pa.Schema | None:
    """The schema that is inferred from all these objects together. Each object is a pair of format and body."""
    return inference.infer(
        schema for fmt, body in objects for schema in FORMATS[fmt].schemas(BytesInMemory(body), "k", "utf-8")
    )


def values(objects: list[bytes], schema: pa.Schema, fmt: str) -> list[dict[str, Any]]:
    rows, rejects = take(objects, schema, fmt)
    assert rejects == []
    return [row for _, _, row in rows]


def reject(body: bytes, schema: pa.Schema, fmt: str, *, inferred: bool = False) -> Reject:
    rows, rejects = take([body], schema, fmt, inferred=inferred)
    assert rows == []
    (only,) = rejects
    return only


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
