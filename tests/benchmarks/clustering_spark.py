"""The queries of `clustering` by Spark: by the platform's data source, and by Spark's own reader of Parquet files.

Spark's own reader reads a copy of the version's files on the local disk, because s3a does not belong to Spark. For this
reader, the figure of bytes is the number of bytes that the JVM read from the files, in a separate pass without vectored
reads: Hadoop does not count vectored reads of local files. The data source reads a source's own table, and pushes no
filters.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import obstore
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.source.source import Source
from s3notify_platform.spark.datasource.query import register
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.benchmarks.figures import Seconds, seconds, short
from tests.support.spark_options import options_of

Proxied = AbstractContextManager[tuple[S3Config, Callable[[], tuple[int, int]]]]
"""A proxy to the store: the store's configuration with the proxy's address, and a function that returns the requests
and bytes so far.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The cost of a query: seconds, and the bytes that were read. `requests` is None if nobody counted them."""

    seconds: Seconds
    bytes: int
    rows: int
    requests: int | None = None

    def __str__(self) -> str:
        requests = "" if self.requests is None else f", {self.requests} requests"
        return f"{short(self.seconds)}, {self.bytes / (1 << 20):.1f} MB{requests}"


def median_of(repeats: int, ask: Callable[[], int]) -> Seconds:
    taken = []
    for _ in range(repeats):
        with seconds() as took:
            ask()
        taken.append(took())
    return sorted(taken)[len(taken) // 2]


@dataclass(frozen=True, kw_only=True)
class SparkReader:
    """Runs the queries in a Spark session. `folder`: the place of the copied files."""

    spark: SparkSession
    source: Source
    folder: Path
    repeats: int
    _copies: dict[str, list[str]] = field(default_factory=dict)

    def of_files(self, table: DeltaTable, prefix: str, where: str) -> Answer:
        """Spark's own reader, over the files that the log names."""
        paths = self._copied(table, prefix)

        def ask(*, vectored: bool = True) -> int:
            reading = self.spark.read.option("parquet.hadoop.vectored.io.enabled", vectored)
            return _counted(reading.parquet(*paths), where)

        took = median_of(self.repeats, ask)
        before = self._bytes_read()
        rows = ask(vectored=False)
        return Answer(seconds=took, bytes=self._bytes_read() - before, rows=rows)

    def of_data_source(self, proxied: Proxied, where: str) -> Answer:
        """The platform's data source, with its rows filtered by Spark."""
        register(self.spark)

        def ask(endpoint: str | None) -> int:
            options = options_of(self.source, read="table", endpoint_url=endpoint)
            return _counted(self.spark.read.format("s3notify").options(**options).load(), where)

        took = median_of(self.repeats, lambda: ask(self.source.input.bucket.endpoint_url))
        with proxied as (config, spent):
            rows = ask(config.endpoint_url)
            requests, size = spent()
        return Answer(seconds=took, bytes=size, rows=rows, requests=requests)

    def _copied(self, table: DeltaTable, prefix: str) -> list[str]:
        """The paths of local copies of the files of a table's newest version."""
        if prefix not in self._copies:
            store, paths = obstore_store(self.source.input.bucket), []
            for number, uri in enumerate(table.file_uris()):
                path = self.folder / prefix.replace("/", "_") / f"{number}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                key = unquote(uri.partition("://")[2].partition("/")[2])
                path.write_bytes(bytes(obstore.get(store, key).bytes()))
                paths.append(str(path))
            self._copies[prefix] = paths
        return self._copies[prefix]

    def _bytes_read(self) -> int:
        """The bytes that the JVM has read from local files."""
        jvm: Any = self.spark._jvm
        return sum(each.getBytesRead() for each in jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics())


def _counted(rows: DataFrame, where: str) -> int:
    """The number of rows, after Spark has read all their columns."""
    return len(rows.where(where).toArrow())
