"""(7) The cost of one changed object, in buckets of 1k to 1M objects, and in slots of 10 to 100,000 objects.

The steady state is measured: the writer is a `QueuedPublisher`, and the run plans from the entries of the source's
topic.

The alternative is a user's own program without Spark. The program lists the bucket by obstore, and compares the ETags
with a state file on the bucket. The program reads and parses the objects that differ, writes them as Parquet, and then
writes the state file. If the program is killed between these writes, or runs twice at the same time, rows are lost or
doubled.

Seconds are medians of runs in a running session. Warm-ups are a bucket of 10 objects, and a first change. Requests and
bytes are counted by a proxy, in a separate pass. The million objects are simulated: their states are committed as if
they had been read, and `simulated_listing` lists them without a delay. `request_rows` makes the rows that count only
requests.
"""

import io
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.ports import StoredObject, Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.benchmarks.figures import Figure, counted, seconds, short, times
from tests.benchmarks.lake import (
    SCHEMA,
    body_of,
    embedded_spark,
    followed,
    key_of,
    many_of,
    prefix_of,
    small_objects,
    source_of,
)
from tests.benchmarks.prices import kind_of
from tests.benchmarks.request_rows import request_rows
from tests.benchmarks.simulated_listing import listed_key, simulated_listing
from tests.benchmarks.slow_proxy import ROUND_TRIP_MS
from tests.benchmarks.sweeping import BUCKET, MILLION, million
from tests.benchmarks.ways import etags
from tests.contracts.fault_proxy import Answered, FaultProxy, in_sequence
from tests.support.sources import with_settings
from tests.support.spark_options import named

REPEATS = 3
_batches = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one change."""

    seconds: float
    requests: Counter[str]
    in_sequence: int
    read: int
    written: int

    @classmethod
    def of(cls, seconds: float, answered: Sequence[Answered]) -> "Cost":
        return cls(
            seconds=seconds,
            requests=Counter(kind_of(request.method, request.path) for request in answered),
            in_sequence=in_sequence(answered),
            read=sum(request.sent for request in answered),
            written=sum(len(request.body) for request in answered),
        )

    def __str__(self) -> str:
        sizes = f"{self.read / 1024:,.0f} KB read, {self.written / 1024:,.0f} KB written"
        return f"{short(self.seconds)}; {counted(self.requests)}, {self.in_sequence} in sequence; {sizes}"


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    totals = (10, 100) if small else (1_000, 10_000, 100_000)
    in_slot = (10, 100) if small else (10, 1_000, 100_000)
    config = small_objects(server, max(totals))
    with embedded_spark() as spark:
        _in_bucket(spark, config, 10)  # to warm up the JVM
        figures = [_in_bucket(spark, config, total) for total in totals]
        figures.append(_in_million(spark, server, small=small))
        figures += request_rows(spark, server, small=small)
        costs = {total: _in_slot(spark, config, total) for total in in_slot}
        most = in_slot[-1]
        hidden, _ = _in_slot(spark, config, most, overwrites="vectors")
        vectors = Figure(
            what=f"one overwritten object in a slot of {most:,} objects, `overwrites: vectors`",
            ours=str(hidden),
            instead=f"plain files: {short(costs[most][0].seconds)}",
            ratio=times(costs[most][0].seconds, hidden.seconds),
        )
    for number, change in enumerate(("overwritten", "new")):
        least = costs[in_slot[0]][number]
        for total in in_slot:
            cost = costs[total][number]
            figures.append(
                Figure(
                    what=f"one {change} object in a slot of {total:,} objects",
                    ours=str(cost),
                    instead="–" if cost is least else f"in a slot of {in_slot[0]}: {short(least.seconds)}",
                    ratio="–" if cost is least else times(least.seconds, cost.seconds),
                )
            )
    return [*figures, vectors]


def _in_bucket(spark: SparkSession, config: S3Config, total: int) -> Figure:
    source = followed(many_of(config, total))
    result = spark_ingest(spark, source).run(source.location.all_slots(), batch="first", only_found=True)
    assert sum(slot.live_objects for slot in result.slots.values()) == total
    keys = [key_of(n * (total // 10) + 1) for n in range(REPEATS + 3)]
    ours = _cost(spark, source, keys)
    return _against_listing(total, ours, config, source, keys[0])


def _in_million(spark: SparkSession, server: LocalS3Server, *, small: bool) -> Figure:
    total = 2_000 if small else MILLION
    with simulated_listing(total, 0) as listing:
        source = followed(with_settings(million(server, listing, total), bucket=named(server.config(BUCKET))))
        keys = [listed_key(n * (total // 10) + 1) for n in range(REPEATS + 3)]
        ours = _cost(spark, source, keys)
        return _against_listing(total, ours, listing, source, keys[0], label=", state and listing simulated")


def _in_slot(
    spark: SparkSession, config: S3Config, total: int, *, overwrites: str = "rewrite"
) -> tuple[Cost, Cost]:
    """The cost of an overwritten object, and the cost of a new object."""
    name = f"slot_{total}_{overwrites}"
    source = followed(source_of(config, name, prefix_of(total), slots=1, overwrites=overwrites))
    result = spark_ingest(spark, source).run(source.location.all_slots(), batch="first")
    assert result.slots[source.location.all_slots()[0]].objects == total
    overwritten = _cost(spark, source, [key_of(n * (total // 10) + 1) for n in range(REPEATS + 3)])
    added = [f"{prefix_of(total)}new-{n}.jsonl" for n in range(REPEATS + 3)]
    new = _cost(spark, source, added)
    for key in added:
        FastObjectStore(config).delete(key)
    return overwritten, new


# The platform


def _cost(spark: SparkSession, source: Source, keys: Sequence[str]) -> Cost:
    """The requests of the second change through the proxy, and the seconds of later changes without the proxy."""
    with watched(source) as (seen, answered):
        _changed(spark, source, seen, keys[0])
        answered.clear()
        _changed(spark, source, seen, keys[1])
    _changed(spark, source, source, keys[2])  # the first change opens connections
    return Cost.of(median(_changed(spark, source, source, key) for key in keys[3:]), answered)


@contextmanager
def watched(source: Source) -> Iterator[tuple[Source, list[Answered]]]:
    """Yields the source, and the list of answered requests. A proxy in front of the source adds a round trip to each
    request.
    """
    with FaultProxy(str(source.input.bucket.endpoint_url)) as proxy:
        proxy.before = lambda *_: time.sleep(ROUND_TRIP_MS / 1000)  # makes concurrent requests overlap
        seen = with_settings(
            source,
            bucket=replace(source.input.bucket, endpoint_url=proxy.url),
            platform=replace(source.location.platform, endpoint_url=proxy.url),
        )
        yield seen, proxy.answered


def _changed(spark: SparkSession, source: Source, seen: Source, key: str) -> float:
    """The seconds of the run that ingests a change of `key`. The run uses `seen`, and the writer uses `source`."""
    number = next(_batches)
    slot = slot_of(key, source.location.slots)
    with ExitStack() as stack:
        store = FastObjectStore(source.input.bucket)
        plain = Publisher(
            store, prefix=source.location.keyspace_prefix, slots=source.location.slots, queued=True
        )
        publisher = QueuedPublisher(plain, source.location.queue(), bucket=source.input.bucket.bucket)
        assert isinstance(publisher.put(key, body_of(number, note="c")), Written)
        topic = source.location.queue().topics.get(source.name).epoch  # a warm process knows the epoch
        took = stack.enter_context(seconds())
        result = spark_ingest(spark, seen).run((slot,), batch=f"change-{number}", listing=False, topic=topic)
        seen.location.queue().remove(result.entries[slot])
    assert result.slots[slot].status == "committed"
    assert result.slots[slot].objects == 1
    return took()


# The alternative


def _against_listing(
    total: int, ours: Cost, listing: S3Config, source: Source, key: str, *, label: str = ""
) -> Figure:
    taken, requests = _by_listing(listing, source, key)
    return Figure(
        what=f"one changed object in a bucket of {total:,}{label}",
        ours=str(ours),
        instead="full LIST by obstore, compare, read one, nothing conditional, no Spark: "
        f"{short(taken)}; {counted(requests)}",
        ratio=times(taken, ours.seconds),
    )


def _by_listing(listing: S3Config, source: Source, key: str) -> tuple[float, Counter[str]]:
    """The seconds and the requests of a run of the alternative, which finds that only the object `key` has changed."""
    store = FastObjectStore(source.input.bucket)
    known = etags(listing, source.input.prefix)
    known.pop(key)
    _remember(store, known)
    requests: Counter[str] = Counter(GET=2, LIST=-(-len(known) // 1000), PUT=2)
    with seconds() as took:
        remembered = store.get(STATE)
        assert isinstance(remembered, StoredObject)
        table = pq.read_table(pa.BufferReader(remembered.body))
        known = dict(zip(table["key"].to_pylist(), table["etag"].to_pylist(), strict=True))
        now = etags(listing, source.input.prefix)
        changed = [name for name, etag in now.items() if known.get(name) != etag]
        for name in changed:
            found = store.get(name)
            assert isinstance(found, StoredObject)
            rows = pj.read_json(
                pa.BufferReader(found.body), parse_options=pj.ParseOptions(explicit_schema=SCHEMA)
            )
            sink = io.BytesIO()
            pq.write_table(rows, sink, compression="zstd")
            store.put(f"out/growth/{source.name}.parquet", sink.getvalue())
        _remember(store, now)
    assert changed == [key]
    return took(), requests


STATE = "out/growth/state.parquet"


def _remember(store: FastObjectStore, known: dict[str, str]) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"key": list(known), "etag": list(known.values())}), sink, compression="zstd")
    store.put(STATE, sink.getvalue())
