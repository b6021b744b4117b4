"""Spark reads the Parquet files of slots, whatever the encodings of their columns."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from s3notify_platform.ingest.slot_files import encoded


def test_columns_with_and_without_dictionary(spark: SparkSession, tmp_path: Path) -> None:
    count = 3000
    numbers = pa.array(range(count), pa.int64())
    rows = pa.table(
        {
            "number": numbers,
            "small": numbers.cast(pa.int32()),
            "at": pa.array([n * 1_000_001 for n in range(count)], pa.timestamp("us", "UTC")),
            "day": numbers.cast(pa.int32()).cast(pa.date32()),
            "name": [None if n % 7 == 0 else f"name {n * 7919 % 100_003}" for n in range(count)],
            "raw": [b"\x00\xff" + str(n).encode() for n in range(count)],
            "kind": [("a", "b", None)[n % 3] for n in range(count)],
        }
    )
    (tmp_path / "rows.parquet").write_bytes(encoded(rows))
    found = spark.read.parquet(str(tmp_path / "rows.parquet")).toArrow()
    assert found.sort_by("number").to_pylist() == rows.to_pylist()
