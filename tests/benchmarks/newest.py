"""(20) The cost of keeping the newest row of each key.

1,000 of 10 million keys change. The update is compared with a recomputation and with a MERGE. The source's table
exists, and the batch is already committed. Only the update of the newest rows is measured. Each alternative gets the
changed rows without a search. The first alternative is a window of Spark over the whole table, written as Parquet. The
second alternative is a MERGE of 1,000 rows into a Delta table of 10 million rows, by deltalake. The MERGE need not
search for the changed rows. Unlike the platform, the MERGE never brings back an older row of a key after a deletion.
"""

import io
import tempfile
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.window import Window

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.source.source import Source
from s3notify_platform.spark.following import follow
from s3notify_platform.spark.load import load_slots
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.figures import Figure, Seconds, seconds, short, times
from tests.benchmarks.lake import embedded_spark
from tests.support.sources import source_of
from tests.support.spark_options import named

BUCKET = "bench-newest"
CHANGED = 1000
COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("amount", pa.float64()), ("note", pa.string())])


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    rows, objects = (20_000, 4) if small else (10_000_000, 100)
    server.create_bucket(BUCKET)
    config = server.config(BUCKET)
    store = FastObjectStore(config)
    for number in range(objects):
        each = rows // objects
        store.put(f"in/{number:03d}.parquet", _body(np.arange(number * each, (number + 1) * each), 0))
    figures = []
    with embedded_spark() as spark:
        others: list[Seconds] = []
        for overwrites in ("rewrite", "vectors"):
            kept = _Kept(spark, config, overwrites, rows, others)
            figures += kept.figures(store)
            others = kept.others
            store.delete("in/changed.parquet")
    return figures


def _body(ids: np.ndarray, at: int) -> bytes:  # type: ignore[type-arg]
    sink = io.BytesIO()
    pq.write_table(_rows(ids, at), sink)
    return sink.getvalue()


def _rows(ids: np.ndarray, at: int) -> pa.Table:  # type: ignore[type-arg]
    notes = pa.array([f"note {number * 7919 % 100_003}" for number in ids.tolist()])
    times_of = np.full(len(ids), at, dtype=np.int64)
    return pa.table([ids.astype(np.int64), times_of, ids / 4, notes], schema=COLUMNS)


@dataclass
class _Kept:
    """A source, and the newest rows of its table."""

    spark: SparkSession
    config: S3Config
    overwrites: str
    rows: int
    others: list[Seconds] = field(default_factory=list)
    """The times of the recomputation and of the MERGE. The list is empty before the measurement."""
    source: Source = field(init=False)

    def __post_init__(self) -> None:
        self.source = source_of(
            bucket=named(self.config), platform=named(self.config), name=f"newest_{self.overwrites}", prefix="in/",
            format="parquet", commit="native", schema="id bigint, at bigint, amount double, note string",
            overwrites=self.overwrites, latest_key="id", latest_order_by="at",
        )  # fmt: skip

    def figures(self, store: FastObjectStore) -> list[Figure]:
        built = self._after_a_batch()
        ids = np.array(sorted(Random(1).sample(range(self.rows), CHANGED)))
        store.put("in/changed.parquet", _body(ids, 1))
        first, wrote = self._written()
        store.put("in/again.parquet", _body(ids, 2))
        again, wrote_again = self._written()
        store.delete("in/again.parquet")
        back = self._after_a_batch()
        how = "" if self.overwrites == "rewrite" else ", `overwrites: vectors`"
        what = f"{CHANGED:,} changed keys of {self.rows:,}{how}"
        found = [
            Figure(
                what=f"the same keys once more{how}",
                ours=f"{short(again)}; {wrote_again}",
                instead=f"the first time {short(first)}",
                ratio=times(first, again),
            ),
            Figure(
                what=f"the object with these rows is deleted, and the next-newest come back{how}",
                ours=short(back),
                instead=f"all newest rows rebuilt {short(built)}",
                ratio=times(built, back),
            ),
        ]
        self.others = self.others or [self._recomputed(), self._merged(ids)]
        window, merged = self.others
        return [
            Figure(
                what=what,
                ours=f"{short(first)}; {wrote}",
                instead=f"MERGE by deltalake {short(merged)}",
                ratio=times(merged, first),
            ),
            Figure(
                what=f"{what}, against a recomputation",
                ours=short(first),
                instead=f"a window of Spark over all rows {short(window)}; all rebuilt by ours {short(built)}",
                ratio=times(window, first),
            ),
            *found,
        ]

    def _after_a_batch(self) -> Seconds:
        """Updates the newest rows after a batch has ingested the changes."""
        spark_ingest(self.spark, self.source).run(self.source.location.all_slots(), batch="b")
        with seconds() as took:
            done = follow(self.spark, self.source, self.source.location.latest_name, batch="b")
        assert done.rows == self.rows
        return took()

    def _written(self) -> tuple[Seconds, str]:
        """Updates the newest rows. Returns the seconds, and the number of written bytes."""
        table = self.source.table(self.source.location.latest_name)
        before = table.newest()
        took = self._after_a_batch()
        after = table.newest()
        assert isinstance(before, Snapshot)
        assert isinstance(after, Snapshot)
        written = sum(pack.size for path, pack in after.packs.items() if before.packs.get(path) != pack)
        return took, f"{written / (1 << 20):,.1f} MB of packs written"

    def _recomputed(self) -> Seconds:
        newest = Window.partitionBy("id").orderBy(
            *(F.desc(n) for n in ("at", "_modified", "_key", "_offset"))
        )
        with seconds() as took:
            rows = load_slots(self.spark, self.source, None).withColumn("n", F.row_number().over(newest))
            with tempfile.TemporaryDirectory() as folder:
                rows.where("n = 1").drop("n").write.mode("overwrite").parquet(f"file:{folder}/newest")
        return took()

    def _merged(self, ids: np.ndarray) -> Seconds:  # type: ignore[type-arg]
        place = f"s3://{BUCKET}/merged/"
        options = {
            "endpoint_url": str(self.config.endpoint_url),
            "access_key_id": str(self.config.access_key_id),
            "secret_access_key": str(self.config.secret_access_key),
            "region": "us-east-1",
            "allow_http": "true",
            "conditional_put": "etag",
        }
        each = 1_000_000
        for first in range(0, self.rows, each):
            some = _rows(np.arange(first, min(first + each, self.rows)), 0)
            write_deltalake(place, some, mode="append", storage_options=options)
        table = DeltaTable(place, storage_options=options)
        with seconds() as took:
            (
                table.merge(_rows(ids, 1), "t.id = s.id", source_alias="s", target_alias="t")
                .when_matched_update_all("s.at >= t.at")
                .when_not_matched_insert_all()
                .execute()
            )
        return took()
