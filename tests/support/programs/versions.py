"""Ingests, and reads the committed rows, with the versions of libraries that are installed. Prints the result and these
versions.

`python -m tests.support.programs.versions` with the bucket's configuration as JSON on stdin.
"""

import json
import platform
import sys
import tempfile
from threading import Event

import pyspark

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.spark.datasource.query import register
from s3notify_platform.stores.config import S3Config
from tests.support.spark import Lake, start_spark


def main() -> None:
    spark = start_spark(master="local[2]")
    lake = Lake.of(spark, S3Config(**json.load(sys.stdin)))
    for n in range(20):
        lake.put(f"{n}.jsonl", [{"id": n, "at": "2026-01-01T00:00:00Z", "parts": [{"x": n}]}])
    lake.ingest()
    lake.put("0.jsonl", [{"id": 100, "note": "a new field"}])
    lake.delete("1.jsonl")
    lake.put("3.jsonl", b"broken\n")
    lake.put("4.jsonl", [{"id": 41}, {"id": 42}])
    lake.ingest(transform=lambda rows: rows.where("id <> 41"))
    lake.put("5.jsonl", [{"id": 5}, {"id": 50}])
    ContinuousIngest(spark=spark, source=lake.source).run(Event(), every_seconds=None, sweep=True)
    register(spark)
    bucket = lake.source.input.bucket
    options = {"name": "orders", "bucket": bucket.bucket, "prefix": "raw/", "format": "jsonl", "slots": "8"}
    options |= {"endpoint_url": str(bucket.endpoint_url), "region": bucket.region, "commit": "native"}
    table = spark.read.format("s3notify").options(**options, read="table").load()
    found = {
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "rows": sorted(row["id"] for row in lake.load()),
        "table": sorted(row["id"] for row in table.toArrow().to_pylist()),
        "rejects": len(lake.rejects()),
    }
    stream = spark.readStream.format("s3notify").options(**options, read="table").load().writeStream
    stream = stream.format("memory").queryName("streamed").option("checkpointLocation", tempfile.mkdtemp())
    try:
        stream.trigger(availableNow=True).start().awaitTermination()
        found["streamed"] = spark.table("streamed").count()
    except Exception as error:  # errors of Java, or errors of the platform
        if UsageError.__name__ not in str(error):
            raise
        found["streamed"] = "need PySpark 4.2 or newer" in str(error)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
