"""The Parquet files of slots: encoded by what they hold, and read by others."""

import io
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3notify_platform.ingest import slot_files
from s3notify_platform.ingest.slot_files import encoded, new_files
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reader import in_slices, read_file
from tests.support.slot_writer import SLOT, slot_table

COUNT = 3000


def rows(**more: Any) -> pa.Table:
    numbers = range(COUNT)
    return pa.table(
        {
            "_offset": pa.array([n * 205 for n in numbers], pa.int64()),
            "at": pa.array([None if n % 7 == 0 else n * 1_000_001 for n in numbers], pa.int64()).cast(
                pa.timestamp("us", "UTC")
            ),
            "name": [f"name {n * 7919 % 100_003}" for n in numbers],
            "raw": pa.array([b"\x00\xff" + str(n).encode() for n in numbers], pa.binary()),
            "kind": [("a", "b", None)[n % 3] for n in numbers],
            "status": pa.array([n % 5 for n in numbers], pa.int32()),
            "a.b": pa.array([[{"x": "same", "y": n % 2}] for n in numbers]),
            **more,
        }
    )


def encodings(body: bytes) -> dict[str, set[str]]:
    group = pq.ParquetFile(io.BytesIO(body)).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: {*column.encodings} - {"RLE", "PLAIN"} for column in columns}


def test_what_differs_has_no_dictionary() -> None:
    assert encodings(encoded(rows())) == {
        "_offset": {"DELTA_BINARY_PACKED"},
        "at": {"DELTA_BINARY_PACKED"},
        "name": {"DELTA_BYTE_ARRAY"},
        "raw": {"DELTA_BYTE_ARRAY"},
        "kind": {"RLE_DICTIONARY"},
        "status": {"RLE_DICTIONARY"},
        "a.b.list.element.x": {"RLE_DICTIONARY"},
        "a.b.list.element.y": {"RLE_DICTIONARY"},
    }


@pytest.mark.parametrize("count", [0, 1, COUNT])
def test_others_read_it(tmp_path: Path, count: int) -> None:
    table = rows(tags=pa.array([[("k", n)] for n in range(COUNT)], pa.map_(pa.string(), pa.int64())))
    table = table.slice(0, count)
    place = tmp_path / "rows.parquet"
    place.write_bytes(encoded(table))
    assert pq.ParquetFile(place).read().equals(table)
    wanted = [row | {"tags": dict(row["tags"])} for row in table.to_pylist()]
    found = duckdb.sql(f"SET TimeZone = 'UTC'; SELECT * FROM '{place}'").to_arrow_table().to_pylist()
    assert [row | {"tags": dict(row["tags"])} for row in found] == wanted
    plain = table.drop_columns("tags")
    assert pl.read_parquet(place).drop("tags").to_dicts() == plain.to_pylist()


def test_what_is_added_at_once_becomes_files_of_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers decode a file as a whole: rows that repeat a long text take many."""
    monkeypatch.setattr(slot_files, "FILE_BYTES", 100_000)
    table = slot_table(MemoryObjectStore())
    data, _ = new_files(table, SLOT, Generation(1))
    added = pa.table({"_key": ["k"] * 100, "text": ["x" * 10_000] * 100})
    data.add(added)
    data.flush()
    found = [read_file(table, SLOT, file, rejects=False) for file in data.written]
    assert pa.concat_tables(found).equals(added)
    assert all(part.nbytes <= 200_000 for part in found)


def test_slices() -> None:
    """They are the rows in their order, each of at most so many bytes, or one row."""
    batch = pa.record_batch({"text": ["x" * size for size in (1, 10, 5000, 1, 0, 300, 300, 300)]})
    parts = [*in_slices(batch, 700)]
    assert pa.Table.from_batches(parts).combine_chunks().equals(pa.Table.from_batches([batch]))
    assert all(part.nbytes <= 700 or part.num_rows == 1 for part in parts)
    assert len(parts) < batch.num_rows
    assert [part.num_rows for part in in_slices(batch.slice(0, 0), 1)] == [0]
