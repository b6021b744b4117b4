"""(9) The time to count the rows of a table from many small batches, compared with a table that was written in one
step.

As in the steady state of a bucket, each batch has new objects in many slots. Then Spark counts the rows of both tables;
the first count is a warm-up. The target for the ratio is 0.83 or more: the count of the table from many batches takes
at most 1.2 times as long as the other count.
"""

from functools import partial

from pyspark.sql import SparkSession

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.source.source import Source
from s3notify_platform.spark.datasource.query import register
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.figures import Figure, seconds, short, timed, times
from tests.benchmarks.lake import LINES, body_of, embedded_spark, followed, source_of
from tests.support.spark_options import named, options_of

BUCKET = "bench-reading"
PREFIX = "in/"
REPEATS = 5


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    batches, objects = (3, 20) if small else (300, 694)
    server.create_bucket(BUCKET)
    config = named(server.config(BUCKET))
    many, once = (source_of(config, name, PREFIX) for name in ("many", "once"))
    followed(many)
    with embedded_spark() as spark:
        register(spark)
        with seconds() as took:
            for number in range(batches):
                _batch(spark, many, number, objects)
        spark_ingest(spark, once).run(once.location.all_slots(), batch="once")
        counts = []
        for source in (many, once):
            count = partial(_count, spark, source)
            assert count() == batches * objects * LINES  # Spark is warm now
            counts.append(timed(count, REPEATS)[0])
    return [
        Figure(
            what=f"count of {batches * objects * LINES:,} rows of {batches * objects:,} objects, in {batches} batches",
            ours=f"{short(counts[0])}: {_files(many)}; {short(took().each(batches))} a batch",
            instead=f"written at once {short(counts[1])}: {_files(once)}",
            ratio=times(counts[1], counts[0]),
        )
    ]


def _batch(spark: SparkSession, source: Source, number: int, objects: int) -> None:
    """Publishes new objects, and ingests them."""
    queue, place = source.location.queue(), source.location
    store = FastObjectStore(source.input.bucket)
    signals = Publisher(store, prefix=place.keyspace_prefix, slots=place.slots, queued=True)
    publisher = QueuedPublisher(signals, queue, bucket=source.input.bucket.bucket)
    first = number * objects
    keys = {f"{PREFIX}{n:06d}.jsonl": body_of(n) for n in range(first, first + objects)}
    publisher.publish([Put(key=key, body=body) for key, body in keys.items()])
    slots = sorted({slot_of(key, place.slots) for key in keys})
    result = spark_ingest(spark, source).run(slots, batch=f"batch-{number}", listing=False)
    assert sum(slot.objects for slot in result.slots.values()) == objects
    queue.remove(entry for entries in result.entries.values() for entry in entries)


def _count(spark: SparkSession, source: Source) -> int:
    return spark.read.format("s3notify").options(**options_of(source, read="table")).load().count()


def _files(source: Source) -> str:
    found = source.table().newest()
    assert isinstance(found, Snapshot)
    packs = found.packs.values()
    return f"{len(packs):,} files, {sum(pack.size for pack in packs) / (1 << 20):.1f} MB"
