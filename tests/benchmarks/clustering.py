"""(21) Queries by date and by customer, on a table in the order of its batches and on a clustered table.

Both tables have the same 10 million rows, which are committed by 2,000 batches of one object. Most rows of an object
have the same day, and random customers. The rows are committed as if they had been read, and each batch updates the
clustered table, which is compacted once at the end.

The alternative is a Delta table of the same rows, which Spark sorts, and writes once. Seconds are medians of a query,
including the time to open the table. Bytes are those of the store's answers; a proxy counts them in a separate pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, convert_to_deltalake
from pyspark.sql import SparkSession

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.source.source import Source
from s3notify_platform.spark.load import load_slots
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import TableSchema, described
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.figures import Figure, Seconds, seconds, short, times
from tests.benchmarks.lake import embedded_spark
from tests.contracts.fault_proxy import FaultProxy
from tests.support.sources import source_of
from tests.support.spark_options import named

BUCKET = "bench-clustering"
REPEATS = 3
CUSTOMERS = 100_000
FIRST_DAY = date(2026, 1, 1)
SPARK = (
    '{"type":"struct","fields":['
    '{"name":"dt","type":"date","nullable":true,"metadata":{}},'
    '{"name":"customer_id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"amount","type":"double","nullable":true,"metadata":{}},'
    '{"name":"note","type":"string","nullable":true,"metadata":{}}]}'
)

Query = Callable[[str, str, S3Config], int]


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    batches, each = (20, 500) if small else (2_000, 5_000)
    server.create_bucket(BUCKET)
    config = server.config(BUCKET)
    source = source_of(
        bucket=named(config), platform=named(config), name="clustering", prefix="in/", commit="native",
        schema="dt date, customer_id bigint, amount double, note string", cluster_by="dt, customer_id",
    )  # fmt: skip
    with seconds() as took:
        led = _filled(source, batches, each)
    compact(source.table(source.location.clustered_name))
    places = {
        "as it came": source.location.layout.prefix,
        "clustered": source.location.table_layout(source.location.clustered_name).prefix,
        "written once, sorted, by Spark": "once/",
    }
    with embedded_spark() as spark:
        _once(spark, source, config)
    day = FIRST_DAY + timedelta(days=batches // 40)
    figures = [
        Figure(
            what=f"{batches * each:,} rows in {batches:,} batches: what leading the clustered table on takes a batch",
            ours=f"{short(led.each(batches))}; {_files(source, source.location.clustered_name)}",
            instead=f"the batch itself, as if it had been read {short(Seconds((took() - led) / batches))}; "
            f"{_files(source, None)}",
            ratio="–",
        )
    ]
    for what, where in (("one day", f"dt = DATE '{day}'"), ("one customer", "customer_id = 4711")):
        for engine, query in ENGINES.items():
            found = {name: _asked(query, config, prefix, where) for name, prefix in places.items()}
            assert len({rows for _, _, rows in found.values()}) == 1
            shown = {
                name: f"{short(took)}, {size / (1 << 20):.1f} MB" for name, (took, size, _) in found.items()
            }
            figures.append(
                Figure(
                    what=f"{what} of {batches * each:,} rows, by {engine}",
                    ours=f"clustered {shown['clustered']}",
                    instead="; ".join(f"{name} {shown[name]}" for name in places if name != "clustered"),
                    ratio=times(found["as it came"][0], found["clustered"][0]),
                )
            )
    return figures


def _filled(source: Source, batches: int, each: int) -> Seconds:
    """Commits the batches, and updates the clustered table after each. Returns the time of the updates."""
    rng = np.random.default_rng(1)
    table, base = source.table(), source.open_table().snapshot
    following = source.following(source.location.clustered_name)
    assert base is not None
    metadata, protocol = described(TableSchema(source=SPARK, rows=SPARK), created_ms=1, table=base.table)
    spent = [Seconds(0)]
    for number in range(batches):
        key, label = f"in/{number:05d}.parquet", base.version + 1
        slot = slot_of(key, source.location.slots)
        late = rng.random(each) < 0.02  # some rows have earlier days
        days = np.where(late, rng.integers(0, number // 20 + 1, each), number // 20)
        rows = pa.table(
            {
                "_slot": pa.array(np.full(each, slot, np.int32)),
                "_key": pa.array([key] * each),
                "_etag": pa.array(["e"] * each),
                "_offset": pa.array(np.arange(each)),
                "dt": pa.array([FIRST_DAY + timedelta(days=int(day)) for day in days]),
                "customer_id": pa.array(rng.integers(0, CUSTOMERS, each)),
                "amount": pa.array(rng.random(each) * 100),
                "note": pa.array([f"note {n}" for n in rng.integers(0, 10_000_000, each).tolist()]),
            }
        )
        packs, bodies = table.data.staged(write([rows], table.data.sizes), label=label)
        for path, body in bodies.items():
            table.reader.store.put(path, body)
        state = ObjectState(key=key, etag="e", size=1, rows=each, since=label, until=label)
        change = RoundChange(
            base=base, slots={slot: SlotRound(changes={key: state})}, table=table, clock=SYSTEM_CLOCK, rows=packs,
            metadata=metadata, protocol=protocol,
        )  # fmt: skip
        done = table.commit(change, base)
        assert isinstance(done, Committed)
        base = done.snapshot
        with seconds() as took:
            following.follow(batch=str(number))
        spent.append(took())
    total = Seconds(sum(spent))
    total.cpu, total.server = sum(one.cpu for one in spent), sum(one.server for one in spent)
    return total


def _once(spark: SparkSession, source: Source, config: S3Config) -> None:
    """Writes the same rows by Spark, sorted, as a Delta table."""
    rows = load_slots(spark, source, None).repartitionByRange(8, "dt", "customer_id")
    place = f"s3a://{BUCKET}/once"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in {
        "endpoint": config.endpoint_url, "access.key": config.access_key_id, "secret.key": config.secret_access_key,
        "path.style.access": "true",
    }.items():  # fmt: skip
        hadoop.set(f"fs.s3a.{name}", str(value))
    rows.sortWithinPartitions("dt", "customer_id").write.parquet(place)
    convert_to_deltalake(f"s3://{BUCKET}/once/", storage_options=_options(config))


def _files(source: Source, asset: str | None) -> str:
    found = source.table(asset).newest()
    assert isinstance(found, Snapshot)
    packs = found.packs.values()
    return f"{len(packs):,} files, {sum(pack.size for pack in packs) / (1 << 20):.1f} MB"


def _asked(query: Query, config: S3Config, prefix: str, where: str) -> tuple[Seconds, int, int]:
    """Seconds of a query, bytes that the store sent, and the number of rows found."""
    taken = []
    for _ in range(REPEATS):
        with seconds() as took:
            rows = query(prefix, where, config)
        taken.append(took())
    with _counted(config) as (proxied, sent):
        query(prefix, where, proxied)
    return sorted(taken)[len(taken) // 2], sent(), rows


@contextmanager
def _counted(config: S3Config) -> Iterator[tuple[S3Config, Callable[[], int]]]:
    with FaultProxy(str(config.endpoint_url)) as proxy:
        yield replace(config, endpoint_url=proxy.url), lambda: sum(each.sent for each in proxy.answered)


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
