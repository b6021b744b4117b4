"""Other ways to convert a bucket of JSONL to Parquet: Spark without the platform, and programs without Spark.

Spark's own reader (`over_s3a`, `over_files`) commits everything or nothing, and does not remember earlier reads. s3a is
configured to read many small files in one task. With the default setting, each opened file counts as 4 MB, so a task
would read only 32 files.

`alone` shows how fast a reader can be: it is one process that fetches with obstore and parses with pyarrow.
`thrown_away` only fetches objects.
"""

import asyncio
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from s3notify_platform.spark.session import session_conf
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.benchmarks.figures import Seconds, seconds
from tests.benchmarks.lake import DDL, SCHEMA, spark_of

JARS = "org.apache.hadoop:hadoop-aws:3.5.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "s3notify-bench-jars"
WARM = "warm/"

IN_FLIGHT = 64
CHUNK_BYTES = 8 << 20
FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """The cost of one way. `reading`: the seconds from the first read byte to the last commit."""

    seconds: Seconds
    reading: float
    objects: int
    bytes: int
    rows: int = 0
    notes: str = ""

    def rate(self) -> str:
        return f"{self.objects / self.seconds:,.0f} objects/s, {self.bytes / 1e6 / self.seconds:,.0f} MB/s"

    def speed(self, *, big: bool) -> float:
        return (self.bytes if big else self.objects) / self.seconds

    def cpu_each(self, *, big: bool) -> float:
        """CPU seconds for each byte or each object, without the CPU seconds of servers."""
        return self.seconds.cpu / (self.bytes if big else self.objects)


def warm_objects(config: S3Config) -> None:
    """Writes a few objects, which a first job reads as the warm-up."""
    store = obstore_store(config)
    for number in range(4):
        obstore.put(store, f"{WARM}{number}.jsonl", b'{"id": 1, "name": "a", "note": "b"}\n')


# Spark without the platform


def over_s3a(config: S3Config, prefix: str) -> Took:
    """Spark's reader over s3a. Raises an error if the jars are not available."""
    warm_objects(config)
    conf = {
        "spark.jars.packages": JARS,
        "spark.jars.ivy": str(CACHE),
        "spark.hadoop.fs.s3a.endpoint": str(config.endpoint_url),
        "spark.hadoop.fs.s3a.endpoint.region": config.region,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.connection.maximum": str(IN_FLIGHT),
        "spark.hadoop.fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials."
        "EnvironmentVariableCredentialsProvider",
        # The default committer (version 1) renames each file twice, and a rename on S3 is a copy.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    }
    root = f"s3a://{config.bucket}/"
    sizes = [size for _, size in listed(config, prefix)]
    with _plain_spark(conf) as spark:
        return _converted(spark, sizes, root + prefix, root + WARM, root + "out/spark")


def over_files(folder: str) -> Took:
    """Spark's reader over the files that `copied` wrote."""
    sizes = [path.stat().st_size for path in Path(folder, "in").rglob("*.jsonl")]
    with _plain_spark({}) as spark:
        return _converted(spark, sizes, f"{folder}/in", f"{folder}/warm", f"{folder}/out")


def _plain_spark(conf: dict[str, str]) -> AbstractContextManager[SparkSession]:
    """A session of Spark with its default settings, on the loopback interface."""
    wanted = ("spark.master", "spark.driver.", "spark.ui.")
    ours = {k: v for k, v in session_conf(master="local[*]").items() if k.startswith(wanted)}
    return spark_of({**ours, "spark.sql.files.openCostInBytes": str(64 << 10), **conf})


def _converted(spark: SparkSession, sizes: Sequence[int], path: str, warm: str, target: str) -> Took:
    reader = spark.read.schema(DDL).option("recursiveFileLookup", "true").option("mode", "FAILFAST")
    reader.json(warm).write.mode("overwrite").parquet(f"{target}-warm")
    with seconds() as took:
        frame = reader.json(path)
        with seconds() as reading:
            frame.write.mode("overwrite").option("compression", "zstd").parquet(target)
    rows = spark.read.parquet(target).count()
    return Took(seconds=took(), reading=reading(), objects=len(sizes), bytes=sum(sizes), rows=rows)


def copied(config: S3Config, prefix: str, folder: Path) -> None:
    store = obstore_store(config)
    (folder / "warm").mkdir()
    (folder / "warm" / "1.jsonl").write_bytes(b'{"id": 1, "name": "a", "note": "b"}\n')

    def copy(item: tuple[str, int]) -> None:
        place = folder / "in" / item[0].removeprefix(prefix)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            for chunk in obstore.get(store, item[0]).stream(min_chunk_size=CHUNK_BYTES):
                file.write(chunk)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, listed(config, prefix)))


# Without Spark


def listed(config: S3Config, prefix: str) -> list[tuple[str, int]]:
    pages = obstore.list(obstore_store(config), prefix.rpartition("/")[0], chunk_size=1000)
    found = [(meta["path"], meta["size"]) for page in pages for meta in page]
    return sorted(item for item in found if item[0].startswith(prefix))


def etags(config: S3Config, prefix: str) -> dict[str, str]:
    """The ETags of all objects by key, by the fastest client available. Cost: 1 LIST for each 1,000 objects."""
    pages = obstore.list(obstore_store(config), prefix.rpartition("/")[0], chunk_size=1000)
    return {meta["path"]: str(meta["e_tag"]).strip('"') for page in pages for meta in page}


async def _bodies(config: S3Config, keys: Sequence[tuple[str, int]], *, keep: bool) -> list[bytes]:
    """The bytes of the objects, range by range, in order. Without `keep`, the bytes are not kept."""
    store = obstore_store(config)
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(key: str, start: int, end: int) -> bytes:
        async with gate:
            result = await obstore.get_async(store, key, options={"range": (start, end)})
            body = await result.bytes_async()
            return bytes(body) if keep else b""

    ranges = [
        (key, start, min(start + CHUNK_BYTES, size))
        for key, size in keys
        for start in range(0, size, CHUNK_BYTES)
    ]
    return await asyncio.gather(*(one(*part) for part in ranges))


def thrown_away(config: S3Config, prefix: str) -> Took:
    keys = listed(config, prefix)
    with seconds() as took:
        for low in range(0, len(keys), 10_000):
            asyncio.run(_bodies(config, keys[low : low + 10_000], keep=False))
    return Took(seconds=took(), reading=took(), objects=len(keys), bytes=sum(size for _, size in keys))


def alone(config: S3Config, prefix: str) -> Took:
    """Reads all objects in one process. While some objects are parsed together, the next objects are fetched."""
    with seconds() as took:
        keys = listed(config, prefix)
        with seconds() as reading, ThreadPoolExecutor(1) as ahead:
            rows = number = 0
            waiting: list[pa.Table] = []
            windows = list(_windows(keys))
            fetches = iter(windows)
            upcoming = ahead.submit(_fetched, config, next(fetches))
            for _ in windows:
                body = upcoming.result()
                if (following := next(fetches, None)) is not None:
                    upcoming = ahead.submit(_fetched, config, following)
                waiting.append(_parsed(body))
                rows += waiting[-1].num_rows
                if sum(table.nbytes for table in waiting) >= FILE_BYTES:
                    _written(config, number, waiting)
                    number, waiting = number + 1, []
            if waiting:
                _written(config, number, waiting)
    return Took(
        seconds=took(),
        reading=reading(),
        objects=len(keys),
        bytes=sum(size for _, size in keys),
        rows=rows,
    )


def _windows(keys: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    window: list[tuple[str, int]] = []
    for key in keys:
        if window and (len(window) >= 512 or sum(size for _, size in window) + key[1] > 32 << 20):
            yield window
            window = []
        window.append(key)
    if window:
        yield window


def _fetched(config: S3Config, keys: Sequence[tuple[str, int]]) -> bytes:
    # Each object ends with a line end.
    return b"".join(asyncio.run(_bodies(config, keys, keep=True)))


def _parsed(body: bytes) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(body),
        read_options=pj.ReadOptions(block_size=CHUNK_BYTES),
        parse_options=pj.ParseOptions(explicit_schema=SCHEMA),
    )


def _written(config: S3Config, number: int, tables: Sequence[pa.Table]) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.concat_tables(tables), sink, compression="zstd")
    obstore.put(
        obstore_store(config), f"out/alone/{number:05d}.parquet", sink.getvalue(), use_multipart=False
    )
