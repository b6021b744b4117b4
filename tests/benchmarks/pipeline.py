"""(3) The time to bring 5,000 objects of 2 KB from the bucket to the committed table. For comparison, the same Spark
session reads the objects with boto3.

The alternative is a user's own program. The program lists the bucket by obstore, and spreads the keys over tasks. Each
task reads with boto3 in 32 threads, parses by pyarrow, and writes one Parquet file. At the end, the program writes a
manifest. The alternative has no slots, states or quarantine, so it writes far fewer objects than the platform. The
warm-ups are ten slots for the platform, and ten objects for the other program.

The proxy that adds latency is a separate process on the same cores. The proxy's CPU time counts as CPU time of the
server. Another proxy counts the requests in a further run of each program, because counting takes time.
"""

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import obstore
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.explain.prices import dollars
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.benchmarks.figures import Figure, counted, short, timed, times
from tests.benchmarks.lake import boto3_client, embedded_spark
from tests.benchmarks.prices import billed
from tests.benchmarks.profiled import round_trips
from tests.benchmarks.slow_proxy import FAR, ROUND_TRIP_MS, slow_proxy
from tests.benchmarks.ways import etags
from tests.contracts.fault_proxy import FaultProxy, in_sequence
from tests.support.sources import source_of, with_settings
from tests.support.spark_options import named

BUCKET = "bench-pipeline"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())])
DDL = "id bigint, name string, note string"


CORES = 2
"""The cores of the session."""

THREADS = 32


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    count = 100 if small else 5_000
    server.create_bucket(BUCKET)
    config = named(server.config(BUCKET))
    asyncio.run(_fill(config, count))
    with embedded_spark(f"local[{CORES}]") as spark:
        boto(spark, config, limit=10)
        near, _ = _compare(spark, config, count, "near", "on loopback")
        with slow_proxy(server.endpoint_url) as url:
            far = replace(config, endpoint_url=url)
            slow, phases = _compare(spark, far, count, "far", FAR)
        ours = _requests(config, lambda far: _ingest(spark, _source(far, "requests")))
        theirs = _requests(config, partial(boto, spark))
    slow = replace(slow, ours=f"{slow.ours}; {ours}", instead=f"{slow.instead}; {theirs}")
    return [near, slow, _profile(config, phases)]


def _compare(
    spark: SparkSession, config: S3Config, count: int, name: str, where: str
) -> tuple[Figure, Mapping[str, float]]:
    """The row of the comparison, and the seconds of each phase of the platform's run."""
    source = _source(config, name)
    warm = with_settings(source, name=f"warm_{name}", platform_prefix="", keyspace_prefix="")
    spark_ingest(spark, warm).run(tuple(Slot(n) for n in range(10)), batch="warm")
    ours, result = timed(partial(_ingest, spark, source))
    assert sum(slot.rows for slot in result.slots.values()) == 10 * count, "rows"
    phases = ", ".join(f"{phase} {short(took)}" for phase, took in result.seconds.items())
    took, rows = timed(partial(boto, spark, config))
    assert rows == 10 * count
    figure = Figure(
        what=f"{count:,} objects of 2 KB, bucket to committed table, {where}",
        ours=f"{short(ours)}: {phases}",
        instead=f"boto3, {THREADS} threads a task, not exactly once, no quarantine: {short(took)}",
        ratio=times(took, ours),
    )
    return figure, result.seconds


def _ingest(spark: SparkSession, source: Source) -> BatchResult:
    return spark_ingest(spark, source).run(source.location.all_slots(), batch="bench", only_found=True)


def _requests(config: S3Config, run: Callable[[S3Config], object]) -> str:
    """The requests of a run with latency, and their price."""
    with FaultProxy(str(config.endpoint_url)) as proxy:
        proxy.before = lambda *_: time.sleep(ROUND_TRIP_MS / 1000)
        run(replace(config, endpoint_url=proxy.url))
        counts = billed(proxy.answered)
        return f"{counted(counts)}, {in_sequence(proxy.answered)} in sequence; ${dollars(counts):.4f}"


def _profile(config: S3Config, phases: Mapping[str, float]) -> Figure:
    """The phases of the run with latency, and the requests of one of its tasks. To count these requests, this process
    repeats the work of the task.
    """
    whole = sum(phases.values())
    shares = ", ".join(f"{phase} {took / whole:.0%}" for phase, took in phases.items())
    spent = round_trips(_source(config, "profile"), CORES)
    return Figure(
        what="the same: where the time goes (the job's tasks read and stage)",
        ours=f"{shares}; {spent}",
        instead="–",
        ratio="–",
    )


def _source(config: S3Config, name: str) -> Source:
    return source_of(
        name=name, bucket=config, prefix="in/", format="jsonl", platform=config, schema=DDL, commit="native"
    )


def boto(spark: SparkSession, config: S3Config, *, limit: int | None = None) -> int:
    """The hand-written pipeline; returns the number of rows that it wrote."""
    client = boto3_client(config)
    keys = [*etags(config, "in/")][:limit]
    frame = spark.createDataFrame(pa.table({"key": keys})).repartition(4)
    written = frame.mapInArrow(_task(config), "name string, rows bigint").toArrow().to_pylist()
    client.put_object(Bucket=BUCKET, Key="out/manifest", Body=json.dumps(written).encode())
    return sum(row["rows"] for row in written)


def _task(config: S3Config) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = boto3_client(config)
        keys = [key for batch in batches for key in batch["key"].to_pylist()]
        if not keys:
            return

        def read(key: str) -> pa.Table:
            body = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            return pj.read_json(
                pa.BufferReader(body),
                read_options=pj.ReadOptions(use_threads=False),
                parse_options=pj.ParseOptions(explicit_schema=SCHEMA),
            )

        with ThreadPoolExecutor(THREADS) as pool:
            tables = list(pool.map(read, keys))
        sink = io.BytesIO()
        table = pa.concat_tables(tables)
        pq.write_table(table, sink, compression="zstd")
        name = f"out/{keys[0].replace('/', '_')}"
        client.put_object(Bucket=BUCKET, Key=name, Body=sink.getvalue())
        yield pa.record_batch({"name": [name], "rows": [table.num_rows]})

    return run


async def _fill(config: S3Config, count: int) -> None:
    store = obstore_store(config)
    gate = asyncio.Semaphore(64)

    async def one(number: int) -> None:
        lines = [
            json.dumps({"id": number * 10 + n, "name": f"name {n}", "note": "n" * 150}) for n in range(10)
        ]
        async with gate:
            await obstore.put_async(store, f"in/{number:06d}.jsonl", ("\n".join(lines) + "\n").encode())

    await asyncio.gather(*(one(n) for n in range(count)))
