"""A program that ingests, with all settings in its configuration: `python -m tests.support.programs.clusters`, with
JSON on stdin.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.spark.datasource.query import register
from s3notify_platform.spark.session import is_remote, parallelism
from s3notify_platform.spark.warm_sessions import fresh_session
from s3notify_platform.stores.config import S3Config
from tests.support.spark import Lake, start_spark
from tests.support.spark_options import options_of


def where_is_the_package(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import s3notify_platform

    for batch in batches:
        yield pa.record_batch({"path": pa.array([s3notify_platform.__file__] * batch.num_rows, pa.string())})


def ids_of(rows: DataFrame) -> list[int]:
    return sorted(row["id"] for row in rows.toArrow().to_pylist())


def main() -> None:
    given = json.load(sys.stdin)
    spark = start_spark(**given["session"])
    lake = Lake.of(spark, S3Config(**given["bucket"]))
    lake.ingest()
    lake.check()
    lake.put("0.jsonl", [{"id": 100}])
    lake.delete("1.jsonl")
    lake.put("2.jsonl", [{"id": 2, "note": "a new field"}])
    lake.put("3.jsonl", b"broken\n")
    if not is_remote(spark):  # the second ingest is like the next run of a warm worker
        lake.spark = fresh_session(spark)
    result = lake.ingest()
    lake.check()
    assert all(r.ok for r in result.slots.values())
    assert len(lake.rejects()) == 1
    missing = replace(lake.source.input.bucket, bucket="no-such-bucket")
    with pytest.raises(UsageError, match="no-such-bucket"):
        lake.with_source(bucket=missing).ingest()
    lake.put("4.jsonl", [{"id": 41}, {"id": 42}])
    lake.ingest(transform=lambda rows: rows.where("id <> 41").withColumn("twice", F.col("id") * 2))
    register(spark)
    options = options_of(lake.source, schema="id bigint")
    read = spark.read.format("s3notify").options(**options).load()
    stream = spark.readStream.format("s3notify").options(**options, read="table").load().writeStream
    stream = stream.format("memory").queryName("streamed").option("checkpointLocation", tempfile.mkdtemp())
    stream.trigger(availableNow=True).start().awaitTermination()
    print(
        json.dumps(
            {
                "read": ids_of(read.where("_change = 'row'")),
                "streamed": ids_of(spark.table("streamed")),
                "ids": sorted(row["id"] for row in lake.load()),
                "twice": [row["twice"] for row in lake.load() if row["twice"] is not None],
                "package": spark.range(1)
                .mapInArrow(where_is_the_package, "path string")
                .toArrow()
                .to_pylist(),
                "remote": is_remote(spark),
                "parallelism": parallelism(spark),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
