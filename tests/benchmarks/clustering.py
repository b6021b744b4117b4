"""(21) Queries by date and by customer, on a table in the order of its batches and on a clustered table.

Both tables have the same 10 million rows, which are committed by 2,000 batches of one object. Most rows of an object
have the same day, and random customers. The rows are committed as if they had been read, and each batch updates the
clustered table, which is compacted once at the end.

The alternative is a Delta table of the same rows, which Spark sorts and writes in one step. Seconds are the median of
several runs of a query, including the time to open the table. Bytes are the bytes of the store's answers. A proxy
counts these bytes in a separate pass.

Two figures show the cost of two searches in a source's table that had the order of the clustered table. One search
finds the rows of one slot. The other search finds the rows of one object. Each overwrite needs the second search.
DuckDB reads the source's table and the clustered table, and skips files and row groups by their statistics. The last
figures (`clustering_changes`) are the costs of three operations of the platform: a read of a slot, an overwrite, and a
deletion. These costs are compared with the bytes that the same operations would read and write if a clustered table
were the only table.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, convert_to_deltalake
from pyspark.sql import SparkSession

from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.source.source import Source
from s3notify_platform.spark.load import load_slots
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.apart import apart
from tests.benchmarks.clustering_changes import changes
from tests.benchmarks.clustering_rows import FIRST_DAY, Batches, key_of
from tests.benchmarks.clustering_spark import Answer, SparkReader, median_of
from tests.benchmarks.figures import Figure, Seconds, seconds, short, times
from tests.benchmarks.lake import embedded_spark
from tests.contracts.fault_proxy import FaultProxy
from tests.support.sources import source_of
from tests.support.spark_options import KEY_ID, SECRET, named

BUCKET = "bench-clustering"
REPEATS = 3

Query = Callable[[str, str, S3Config], int]
Asked = Callable[[S3Config, str, str], Answer]


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    count, each = (20, 500) if small else (2_000, 5_000)
    server.create_bucket(BUCKET)
    config = server.config(BUCKET)
    source = source_of(
        bucket=named(config), platform=named(config), name="clustering", prefix="in/", commit="native",
        schema="dt date, customer_id bigint, amount double, note string", cluster_by="dt, customer_id",
    )  # fmt: skip
    batches = Batches(slots=source.location.slots, each=each)
    with seconds() as took:
        led = _filled(source, batches, count)
    compact(source.table(source.location.clustered_name))
    places = {
        "as it came": source.location.layout.prefix,
        "clustered": source.location.table_layout(source.location.clustered_name).prefix,
        "written once, sorted, by Spark": "once/",
    }
    day, rows = FIRST_DAY + timedelta(days=count // 40), f"{count * each:,} rows"
    asks = {f"one day of {rows}": f"dt = DATE '{day}'", f"one customer of {rows}": "customer_id = 4711"}
    with tempfile.TemporaryDirectory(prefix="s3notify-clustering-") as name, embedded_spark() as spark:
        _once(spark, source, config, Path(name) / "once")
        reader = SparkReader(spark=spark, source=source, folder=Path(name), repeats=REPEATS)
        engines: dict[str, Asked] = {name: partial(_asked, query) for name, query in ENGINES.items()}
        engines["Spark, over a copy of the files on the local disk"] = partial(_by_spark, reader)
        return [
            _led_on(source, count, each, led, took()),
            *_queries(config, places, engines, reader, asks),
            *_places(source, config, places, count),
            *changes(source, batches, count),
        ]


def _led_on(source: Source, count: int, each: int, led: Seconds, whole: Seconds) -> Figure:
    return Figure(
        what=f"{count * each:,} rows in {count:,} batches: what a batch costs to update the clustered table",
        ours=f"{short(led.each(count))}; {_files(source, source.location.clustered_name)}",
        instead=f"the batch itself, as if it had been read {short(Seconds((whole - led) / count))}; "
        f"{_files(source, None)}",
        ratio="–",
    )


def _queries(
    config: S3Config,
    places: Mapping[str, str],
    engines: Mapping[str, Asked],
    reader: SparkReader,
    asks: Mapping[str, str],
) -> Iterator[Figure]:
    for what, where in asks.items():
        for engine, asked in engines.items():
            found = {name: asked(config, prefix, where) for name, prefix in places.items()}
            assert len({answer.rows for answer in found.values()}) == 1, (engine, found)
            yield Figure(
                what=f"{what}, by {engine}",
                ours=f"clustered {found['clustered']}",
                instead="; ".join(
                    f"{name} {answer}" for name, answer in found.items() if name != "clustered"
                ),
                ratio=times(found["as it came"].seconds, found["clustered"].seconds),
            )
        whole = reader.of_data_source(_proxied(config), where)
        assert whole.rows == found["clustered"].rows
        yield Figure(
            what=f"{what}, by Spark's data source `s3notify`, which pushes no filters",
            ours=f"as it came {whole}",
            instead="it reads only the source's own table",
            ratio="–",
        )


def _places(source: Source, config: S3Config, places: Mapping[str, str], count: int) -> Iterator[Figure]:
    """The cost of finding the rows of one slot, and the cost of finding the rows of one overwritten object, in both
    orders.
    """
    key = key_of(count // 2)
    slot = slot_of(key, source.location.slots)
    for what, where in (
        (f"the rows of one slot of {source.location.slots:,}", f"_slot = {slot}"),
        ("the rows of one overwritten object", f"_slot = {slot} AND _key = '{key}'"),
    ):
        by_slot, clustered = (
            _asked(_by_duckdb, config, places[name], where) for name in ("as it came", "clustered")
        )
        assert by_slot.rows == clustered.rows > 0
        yield Figure(
            what=f"{what}, by DuckDB",
            ours=f"in the table by slot {by_slot}",
            instead=f"in the clustered table {clustered}",
            ratio=times(clustered.seconds, by_slot.seconds),
        )


def _filled(source: Source, batches: Batches, count: int) -> Seconds:
    """Commits the batches, and updates the clustered table after each batch. Returns the total time of the updates."""
    table, base = source.table(), source.open_table().snapshot
    following = source.following(source.location.clustered_name)
    assert base is not None
    spent = [Seconds(0)]
    for number in range(count):
        base = batches.commit(table, base, number)
        with seconds() as took:
            following.follow(batch=str(number))
        spent.append(took())
    total = Seconds(sum(spent))
    total.cpu, total.server = sum(one.cpu for one in spent), sum(one.server for one in spent)
    return total


def _once(spark: SparkSession, source: Source, config: S3Config, folder: Path) -> None:
    """Sorts the same rows with Spark, and writes them as a Delta table. Spark writes the files to `folder` first."""
    rows = load_slots(spark, source, None).repartitionByRange(8, "dt", "customer_id")
    rows.sortWithinPartitions("dt", "customer_id").write.parquet(str(folder))
    store = FastObjectStore(config)
    for path in folder.glob("*.parquet"):
        store.put(f"once/{path.name}", path.read_bytes())
    convert_to_deltalake(f"s3://{BUCKET}/once/", storage_options=_options(config))


def _files(source: Source, asset: str | None) -> str:
    found = source.table(asset).newest()
    assert isinstance(found, Snapshot)
    packs = found.packs.values()
    return f"{len(packs):,} files, {sum(pack.size for pack in packs) / (1 << 20):.1f} MB"


def _asked(query: Query, config: S3Config, prefix: str, where: str) -> Answer:
    """The cost of a query by an engine that reads the bucket.

    Requests are counted while a separate process sends them. In the same process, delta-rs would hold Python's lock, so
    the proxy's threads would wait.
    """
    took = median_of(REPEATS, lambda: query(prefix, where, config))
    with _proxied(config) as (reached, spent):
        rows, _ = apart(_in_process, query, prefix, where, str(reached.endpoint_url))
        requests, size = spent()
    return Answer(seconds=took, bytes=size, rows=rows, requests=requests)


def _in_process(query: Query, prefix: str, where: str, endpoint_url: str) -> int:
    """Runs the query in this process, whose environment has the credentials."""
    keys = {"access_key_id": os.environ[KEY_ID], "secret_access_key": os.environ[SECRET]}
    return query(prefix, where, S3Config(bucket=BUCKET, endpoint_url=endpoint_url, **keys))


def _by_spark(reader: SparkReader, config: S3Config, prefix: str, where: str) -> Answer:
    table = DeltaTable(f"s3://{BUCKET}/{prefix}", storage_options=_options(config))
    return reader.of_files(table, prefix, where)


@contextmanager
def _proxied(config: S3Config) -> Iterator[tuple[S3Config, Callable[[], tuple[int, int]]]]:
    with FaultProxy(str(config.endpoint_url)) as proxy:
        yield (
            replace(config, endpoint_url=proxy.url),
            lambda: (len(proxy.answered), sum(each.sent for each in proxy.answered)),
        )


def _options(config: S3Config) -> dict[str, str]:
    return {
        "endpoint_url": str(config.endpoint_url), "access_key_id": str(config.access_key_id),
        "secret_access_key": str(config.secret_access_key), "region": "us-east-1", "allow_http": "true",
        "conditional_put": "etag",
    }  # fmt: skip


def _by_polars(prefix: str, where: str, config: S3Config) -> int:
    frame = pl.scan_delta(f"s3://{BUCKET}/{prefix}", storage_options=_options(config))
    context = pl.SQLContext(t=frame)
    return int(context.execute(f"SELECT * FROM t WHERE {where}").collect().height)


def _by_deltalake(prefix: str, where: str, config: S3Config) -> int:
    table = DeltaTable(f"s3://{BUCKET}/{prefix}", storage_options=_options(config))
    found = QueryBuilder().register("t", table).execute(f"SELECT * FROM t WHERE {where}").read_all()
    return int(pa.table(found).num_rows)


def _by_duckdb(prefix: str, where: str, config: S3Config) -> int:
    with duckdb.connect() as connection:
        for extension in (duckdb_extension_httpfs, duckdb_extension_delta):
            path = next(Path(extension.__file__).parent.rglob("*.duckdb_extension"))
            connection.execute(f"LOAD '{path}'")
        host = str(config.endpoint_url).removeprefix("http://")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{config.access_key_id}', SECRET '{config.secret_access_key}', "
            f"ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path', REGION 'us-east-1')"
        )
        place = f"s3://{BUCKET}/{prefix}"
        return len(connection.execute(f"SELECT * FROM delta_scan('{place}') WHERE {where}").fetchall())


ENGINES: dict[str, Query] = {"DuckDB": _by_duckdb, "Polars": _by_polars, "delta-rs": _by_deltalake}
