"""A program in which a test kills executors, or lets tasks run twice: `python -m`, with JSON on stdin."""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from s3notify_platform.protocols.keyspace import Delete, Publisher, Put
from s3notify_platform.spark.datasource.query import register
from s3notify_platform.stores.config import S3Config
from tests.support.spark import Lake, start_spark
from tests.support.spark_options import options_of

OBJECTS = 40
"""The number of objects: enough for two or more tasks."""


class Steps:
    """The steps of the program. `arm` is called before each step that a fault must disturb."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.options = options_of(lake.source, poll_seconds=0)
        self.checkpoint = tempfile.mkdtemp()
        self.streamed: dict[int, list[dict[str, Any]]] = {}

    def arm(self, how: str) -> None:
        print(how, file=sys.stderr)
        self.lake.store.put(f"arm/{how}", b"")

    def check(self, rows: Iterable[dict[str, Any]]) -> None:
        """Checks that `rows` are exactly the rows of the bucket, each once."""
        found = Counter((r["_slot"], r["_key"], r["_etag"], r["_offset"], r["id"]) for r in rows)
        expected = Counter(
            (slot, key, etag, offset, json.loads(row)["id"])
            for slot, key, etag, offset, row in self.lake.second_opinion()
        )
        assert found == expected

    def ingest(self) -> None:
        result = self.lake.ingest()
        assert all(each.ok for each in result.slots.values())
        self.lake.check()

    def batch(self) -> None:
        frame = self.lake.spark.read.format("s3notify").options(**self.options).load()
        self.check(frame.toArrow().to_pylist())

    def stream(self, *, fails: bool = False) -> None:
        def sink(frame: DataFrame, number: int) -> None:
            rows = frame.toArrow().to_pylist()
            before = self.streamed.setdefault(number, rows)
            assert sorted(before, key=str) == sorted(rows, key=str), "a repeated batch has the same rows"
            if fails:
                raise RuntimeError("the sink fails")

        reader = self.lake.spark.readStream.format("s3notify")
        came = reader.options(**self.options, read="table").load()
        writer = came.writeStream.foreachBatch(sink).option("checkpointLocation", self.checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        held: dict[str, list[dict[str, Any]]] = {}
        for number in sorted(self.streamed):
            for key, some in groupby(
                sorted(self.streamed[number], key=itemgetter("_key")), itemgetter("_key")
            ):
                held[key] = [*some]  # the rows of the key's newest version
        there = {key for _, key, *_ in self.lake.second_opinion()}
        self.check(row for key, rows in held.items() if key in there for row in rows)


def main() -> None:
    given = json.load(sys.stdin)
    spark = start_spark(**given["session"])
    register(spark)
    lake = Lake.of(spark, S3Config(**given["bucket"]), schema="id bigint")
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n{"id": %d}\n' % (n, -n) for n in range(OBJECTS)})
    steps = Steps(lake)
    steps.arm("kill")
    steps.ingest()
    steps.arm("kill-pack")
    steps.stream()

    publisher = Publisher(
        lake.store, prefix=lake.source.location.keyspace_prefix, slots=lake.source.location.slots
    )
    overwritten = [Put(key=f"raw/{n}.jsonl", body=b'{"id": %d}\n' % (n + 100)) for n in range(4, OBJECTS)]
    publisher.publish([Delete(key="raw/3.jsonl"), *overwritten])
    steps.arm("twice")
    steps.ingest()
    steps.arm("twice")
    steps.batch()
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        steps.stream(fails=True)
    steps.stream()
    print(json.dumps({"exact": ["ingest", "stream", "ingest again", "batch", "stream again"]}))
    spark.stop()


if __name__ == "__main__":
    main()
