"""Spark reads packs with any encodings of their columns, and the benchmarks count the bytes that Spark reads."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from s3notify_platform.kernel.limits import BATCH_BYTES
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.reading import read_slots
from tests.benchmarks.clustering_spark import SparkReader
from tests.support.engines import Place
from tests.support.poison.files import one_long_value
from tests.support.spark import Lake


def test_spark_reads_columns_with_and_without_dictionary(spark: SparkSession, tmp_path: Path) -> None:
    count = 3000
    numbers = pa.array(range(count), pa.int64())
    rows = pa.table(
        {
            "_slot": pa.array([0] * count, pa.int32()),
            "_key": [f"{n:04}" for n in range(count)],
            "_offset": numbers,
            "number": numbers,
            "small": numbers.cast(pa.int32()),
            "at": pa.array([n * 1_000_001 for n in range(count)], pa.timestamp("us", "UTC")),
            "day": numbers.cast(pa.int32()).cast(pa.date32()),
            "name": [None if n % 7 == 0 else f"name {n * 7919 % 100_003}" for n in range(count)],
            "raw": [b"\x00\xff" + str(n).encode() for n in range(count)],
            "kind": [("a", "b", None)[n % 3] for n in range(count)],
        }
    )
    (pack,) = write([rows])
    (tmp_path / "rows.parquet").write_bytes(pack.body)
    found = spark.read.parquet(str(tmp_path / "rows.parquet")).toArrow()
    assert found.sort_by("number").to_pylist() == rows.to_pylist()


@pytest.mark.server
def test_table_is_read_in_batches_of_bounded_bytes(lake_of: Callable[..., Lake]) -> None:
    """Otherwise rows that are small in the file and large in memory would exhaust the JVM's memory."""
    lake = lake_of(slots=1, format="parquet", schema="id bigint, name string")
    lake.put("long.parquet", one_long_value(100, 1_000_000))
    assert lake.ingest().slots[lake.slot("long.parquet")].rows == 100
    schema = pa.schema([("_slot", pa.int32()), ("_key", pa.string()), ("name", pa.string())])
    packs, layout = lake.snapshot().packs.values(), lake.source.location.layout
    batches = [*read_slots(lake.store, layout, packs, [lake.slot("long.parquet")], schema)]
    assert sum(batch.num_rows for batch in batches) == 100
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES


@pytest.mark.server
def test_benchmarks_count_all_bytes_that_spark_reads(lake: Lake, tmp_path: Path) -> None:
    """A full scan reads the whole file once, and footers again. Otherwise the benchmark of queries would report too few
    bytes.
    """
    lake.put("rows.jsonl", [{"id": n, "note": sha256(b"%d" % n).hexdigest()} for n in range(20_000)])
    lake.ingest()
    reader = SparkReader(spark=lake.spark, source=lake.source, folder=tmp_path, repeats=1)
    place = Place(uri=lake.source.table().url, config=lake.source.location.platform)
    answer = reader.of_files(DeltaTable(place.uri, storage_options=place.options), "table", "true")
    size = sum(pack.size for pack in lake.snapshot().packs.values())
    assert answer.rows == 20_000
    assert size <= answer.bytes <= 1.2 * size
