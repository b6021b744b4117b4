"""Splits of Parquet and binary objects, samples, memory, and objects that change while they are read."""

import gzip
import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.base import HEAD_SAMPLE_BYTES, Limits, SplitEnd
from s3notify_platform.formats.object_bytes import AHEAD, TAIL_BYTES
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS, fixed_schema
from s3notify_platform.formats.text_format import sample_of
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UnavailableError
from s3notify_platform.protocols.source_enumerator import Split
from tests.support.split_reading import (
    AB,
    SCHEMAS,
    Found,
    Remote,
    cut,
    parquet_of,
    places,
    read,
    version,
    whole,
)

# Changed objects


@pytest.mark.parametrize("fmt", ["jsonl", "csv", "text", "parquet", "binary"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConflictError("x"), "superseded"),
        (NotFoundError("x"), "deleted"),
        (UnavailableError("why"), "failed"),
    ],
)
def test_a_split_ends_if_the_object_changes_in_mid_read(fmt: str, error: Exception, status: str) -> None:
    """Any read of the split may notice the change. If a later read's error were ignored, the records before the error
    would be committed as the complete split.
    """
    body = parquet_of(30, 10) if fmt == "parquet" else b"a,b\n" * 100
    schema = fixed_schema("binary") if fmt == "binary" else SCHEMAS.get(fmt, AB)
    split = Split(version=version(body), start=0, end=len(body))
    calm = Remote(body)
    read(calm, split, fmt, schema, limits=Limits(chunk_bytes=50))
    assert len(calm.asked) > 3
    for number in range(len(calm.asked)):
        source = Remote(body, fails={number: error})
        _, end = read(source, split, fmt, schema, limits=Limits(chunk_bytes=50))
        assert (end.status, end.reach_end) == (status, False)
        assert end.reason == ("why" if status == "failed" else "")


# Memory


def test_few_chunks_are_held() -> None:
    """Otherwise a large object would fill the memory of a task that parses more slowly than the store answers."""
    body = b'{"a":1,"b":"x"}\n' * 10_000
    held = 0
    most = 0

    class Chunk(bytes):
        def __del__(self) -> None:
            nonlocal held
            held -= 1

    class Source(Remote):
        def read(self, start: int, end: int) -> bytes:
            nonlocal held, most
            with self._lock:
                held += 1
                most = max(most, held)
            return Chunk(self.body[start:end])

    split = Split(version=version(body), start=1000, end=120_000)
    parts = FORMATS["jsonl"].read(Source(body), split, Target(schema=AB), limits=Limits(chunk_bytes=1000))
    rows = sum(part.table.num_rows for part in parts if isinstance(part, Parsed))
    assert rows == len([at for at in range(0, len(body), 16) if 1000 <= at < 120_000])
    assert most <= AHEAD + 3
    assert held == 0


def test_little_is_read_beyond_a_split() -> None:
    body = b'{"a":1,"b":"x"}\n' * 100_000
    source = Remote(body)
    read(source, Split(version=version(body), start=160, end=16_001), "jsonl", AB, limits=Limits())
    assert source.asked == [(0, 16), (159, 16_001), (16_001, 16_001 + TAIL_BYTES)]
    source = Remote(body)
    read(source, Split(version=version(body), start=160, end=16_000), "jsonl", AB, limits=Limits())
    assert source.asked == [(0, 16), (159, 16_000)], "the last record ends with the split"


@given(st.integers(0, 60), st.integers(1, 20), places)
def test_parquet_splits_give_each_row_once(rows: int, group: int, at: list[int]) -> None:
    body = parquet_of(rows, group)
    together: Found = []
    for split in cut(body, at, "parquet"):
        found, end = read(Remote(body), split, "parquet", AB)
        assert end.status == "ok"
        together += found
        rest = Split(version=split.version, start=end.offset, end=len(body))
        more, last = read(Remote(body), rest, "parquet", AB)
        assert last.reach_end
        if split.start == 0:
            assert found + more == whole(body, "parquet", AB)
    assert end.reach_end
    assert together == whole(body, "parquet", AB)
    assert [offset for offset, _ in together] == list(range(rows))


def test_tiny_row_groups_are_read_once() -> None:
    """A split has the row groups whose middle byte is in its range, and several tiny row groups may have the same
    middle byte. If two splits read the same row group, the table would have the group's rows twice.
    """
    sink = io.BytesIO()
    table = pa.table({"a": pa.array([0] * 50_000, pa.int64()), "b": ["x"] * 50_000})
    with pq.ParquetWriter(sink, table.schema, compression="zstd", use_dictionary=False) as writer:
        for low, high in ((0, 2), (2, 3), (3, 40_000), (40_000, 40_001), (40_001, 40_002), (40_002, 40_100)):
            writer.write_table(table.slice(low, high - low))
    body = sink.getvalue()
    for border in (*range(1, 5), *range(len(body) - 12, len(body))):
        first = Split(version=version(body), start=0, end=border)
        found, end = read(Remote(body), first, "parquet", AB)
        rest, _ = read(Remote(body), replace(first, start=end.offset, end=len(body)), "parquet", AB)
        assert [offset for offset, _ in found + rest] == list(range(40_100))


def test_a_damaged_row_group_is_one_reject() -> None:
    """Otherwise damage in a single row group would keep all other rows of the file out of the table. The offset of the
    reject shows a user where the missing rows begin.
    """
    body = bytearray(parquet_of(30, 10))
    at = body.index(b"row 15")
    body[at - 300 : at] = b"\xff" * 300
    splits = cut(bytes(body), [len(body) // 3, 2 * len(body) // 3], "parquet")
    together: Found = []
    for split in splits:
        together += read(Remote(bytes(body)), split, "parquet", AB)[0]
    rejects = [found for found in together if len(found) == 3]
    assert [found[0] for found in rejects] == [10]
    assert "row group 1" in rejects[0][1]
    assert [found[0] for found in together if len(found) == 2] == [*range(10), *range(20, 30)]
    assert together == whole(bytes(body), "parquet", AB)


@pytest.mark.parametrize(
    "body", [b"", b"x", b"PAR1" * 20, parquet_of(9, 3)[:-9], gzip.compress(parquet_of(9, 3))]
)
def test_a_file_that_is_not_parquet_is_one_reject(body: bytes) -> None:
    found = [read(Remote(body), split, "parquet", AB) for split in cut(body, [5, 40], "parquet")]
    assert found[0][0] == whole(body, "parquet", AB)
    assert len(found[0][0]) == bool(body)
    assert all(rows == [] for rows, _ in found[1:])
    assert found[-1][1].reach_end


def test_a_parquet_split_reads_only_the_footer_and_its_row_groups() -> None:
    body = parquet_of(30_000, 1000)
    source = Remote(body)
    split = Split(version=version(body), start=len(body) // 2, end=len(body) // 2 + 50_000)
    read(source, split, "parquet", AB)
    assert sum(end - start for start, end in source.asked) < 64 * 1024 + 200_000


@pytest.mark.parametrize("body", [b"", b"\x1f\x8b\x08 not decompressed"])
def test_binary_is_one_record(body: bytes) -> None:
    schema = fixed_schema("binary")
    splits = cut(body, [3, 9], "binary")
    found = [read(Remote(body), split, "binary", schema) for split in splits]
    assert [row for rows, _ in found for row in rows] == [(0, {"content": body})]
    assert found[0][1] == SplitEnd(status="ok", offset=len(body), reach_end=True)


def test_a_binary_object_that_is_too_large_fails() -> None:
    huge = replace(version(b""), size=1 << 31)

    class Source(Remote):
        size = 1 << 31

    _, end = read(Source(b""), Split(version=huge, start=0, end=1 << 31), "binary", fixed_schema("binary"))
    assert end.status == "failed"
    assert "larger than" in end.reason


@pytest.mark.parametrize("fmt", ["jsonl", "csv", "text", "parquet"])
def test_empty_objects_are_still_requested(fmt: str) -> None:
    """Without the request, an object that was deleted in the meantime would be committed as an empty object."""
    source = Remote(b"")
    found, end = read(source, Split(version=version(b""), start=0, end=0), fmt, SCHEMAS.get(fmt, AB))
    assert (found, end) == ([], SplitEnd(status="ok", offset=0, reach_end=True))
    assert source.asked == [(0, 0)]


# Samples


def test_a_sample_is_the_beginning_of_the_text() -> None:
    text = b"a,b\n" + b'1,"x\ny"\n' * 300_000
    for body, key in ((text, "k.csv"), (gzip.compress(text), "k"), (text.decode().encode("utf-16"), "k")):
        source = Remote(body)
        sample = sample_of(source, key, "utf-8")
        assert HEAD_SAMPLE_BYTES - 100 < len(sample) <= HEAD_SAMPLE_BYTES
        assert text.startswith(sample)
        assert sample.endswith(b"\n")
        assert sum(end - start for start, end in source.asked) <= 4 * HEAD_SAMPLE_BYTES
    assert sample_of(Remote(b"a,b\n1"), "k", "utf-8") == b"a,b\n1"


def test_the_sample_of_a_parquet_object_is_the_footer() -> None:
    body = parquet_of(50_000, 1000)
    source = Remote(body)
    (schema,) = FORMATS["parquet"].schemas(source, "k", "utf-8")
    assert schema.names == ["a", "b"]
    assert sum(end - start for start, end in source.asked) <= 2 * 64 * 1024
