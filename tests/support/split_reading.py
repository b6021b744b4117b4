"""Objects in memory, which are read split by split, and the rows and rejects that reading finds."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from s3notify_platform.formats.base import Format, Limits, SplitEnd
from s3notify_platform.formats.object_bytes import BytesInMemory, ObjectBytes
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS, fixed_schema
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
SCHEMAS = {"jsonl": AB, "csv": AB, "text": fixed_schema("text")}
places = st.lists(st.integers(0, 10_000), max_size=6)

TINY = Limits(chunk_bytes=7, block_bytes=11, record_bytes=1 << 20)

Found = list[tuple[Any, ...]]
"""Rows as (offset, values), rejects as (offset, reason, raw), sorted."""


@dataclass
class Remote:
    """An object that is read in ranges, and that records the requested ranges."""

    body: bytes
    asked: list[tuple[int, int]] = field(default_factory=list)
    fails: dict[int, Exception] = field(default_factory=dict)
    """The exception that a request raises, by the number of the request."""
    _lock: Lock = field(default_factory=Lock)

    @property
    def size(self) -> int:
        return len(self.body)

    def read(self, start: int, end: int) -> bytes:
        with self._lock:
            number = len(self.asked)
            self.asked.append((start, end))
        if number in self.fails:
            raise self.fails[number]
        assert 0 <= start <= end <= len(self.body)
        return self.body[start:end]


def version(body: bytes, key: str = "k") -> ObjectVersion:
    return ObjectVersion(slot=Slot(0), key=key, etag=ETag("e"), size=len(body))


def whole_split(one: ObjectVersion) -> Split:
    return Split(version=one, start=0, end=one.size)


def listed(parts: Sequence[Parsed], schema: pa.Schema) -> Found:
    found: Found = []
    for parsed in parts:
        assert parsed.table.schema == schema
        assert parsed.table.num_rows == len(parsed.index) == len(parsed.offset)
        assert set(parsed.index.tolist()) <= {0}
        found += zip(parsed.offset.tolist(), parsed.table.to_pylist(), strict=True)
        found += [(r.offset, r.reason, r.raw) for r in parsed.rejects]
    return sorted(found, key=lambda row: (row[0], len(row)))


def whole(body: bytes, fmt: str, schema: pa.Schema, *, inferred: bool = False) -> Found:
    """The rows and rejects if the object is parsed as a whole, and not split by split."""
    target = Target(schema=schema, inferred=inferred)
    return listed(list(FORMATS[fmt].parse([("k", body)], target)), schema)


def read(
    source: ObjectBytes,
    split: Split,
    fmt: str,
    schema: pa.Schema,
    *,
    inferred: bool = False,
    encoding: str = "utf-8",
    limits: Limits = TINY,
) -> tuple[Found, SplitEnd]:
    target = Target(schema=schema, inferred=inferred)
    *parts, end = FORMATS[fmt].read(source, split, target, encoding=encoding, limits=limits)
    assert isinstance(end, SplitEnd)
    assert all(isinstance(part, Parsed) for part in parts)
    return listed(parts, schema), end  # type: ignore[arg-type]


def cut(body: bytes, places: Sequence[int], fmt: str, key: str = "k") -> list[Split]:
    """Splits of an object at these places. Each split may be read alone.

    If quotes matter in the format (CSV), there is a single split.
    """
    if FORMATS[fmt].quoted:
        return [whole_split(version(body, key))]
    borders = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    ends = borders[1:] or [len(body)]
    return [Split(version=version(body, key), start=s, end=e) for s, e in zip(borders, ends, strict=False)]


def in_turn(
    form: Format, body: bytes, places: Sequence[int], target: Target, *, limits: Limits = TINY, key: str = "k"
) -> list[Parsed]:
    """The rows and rejects of splits that end at these places. Each split is read from the offset where the split
    before it ended.
    """
    of, start, found = version(body, key), 0, list[Parsed]()
    for place in (*sorted({place % (len(body) + 1) for place in places}), len(body)):
        if place < start or (place == start and start):
            continue
        split = Split(version=of, start=start, end=place)
        *pieces, end = form.read(BytesInMemory(body), split, target, limits=limits)
        assert isinstance(end, SplitEnd)
        assert end.status in ("ok", "by_record")
        found += [piece for piece in pieces if isinstance(piece, Parsed)]
        if end.reach_end:
            break
        start = end.offset
    return found


def parquet_of(rows: int, group: int) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"a": list(range(rows)), "b": [f"row {n}" * (1 + n % 7) for n in range(rows)]})
    pq.write_table(table, sink, row_group_size=group, compression="none", use_dictionary=False)
    return sink.getvalue()
