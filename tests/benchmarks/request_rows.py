"""The number of requests of one changed object, of a batch, and of a put, each compared with its aim.

A running `ingest`, with Spark, polls and commits. A `QueuedPublisher` writes. The `ingest` and the publisher share no
caches, as if they were separate processes. A proxy counts all requests, and delays each of them, so that concurrent
requests overlap.
"""

import time
from collections import Counter
from dataclasses import replace

from pyspark.sql import SparkSession

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.limits import TOPICS_KNOWN_SECONDS
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.benchmarks.figures import Figure, counted, times
from tests.benchmarks.lake import body_of, followed, source_of
from tests.benchmarks.slow_proxy import ROUND_TRIP_MS
from tests.contracts.fault_proxy import FaultProxy
from tests.support import request_counts
from tests.support.request_counts import Requests
from tests.support.spark_options import named

BUCKET = "bench-requests"
OBJECTS, SLOTS = 694, 500
ENTRIES = 256
"""The largest number of entries in a segment of the queue."""


def request_rows(spark: SparkSession, server: LocalS3Server, *, small: bool) -> list[Figure]:
    """Measures the third change of one object, and the second batch. By then, the process is warm."""
    objects, slots = (30, 20) if small else (OBJECTS, SLOTS)
    server.create_bucket(BUCKET)
    with FaultProxy(server.endpoint_url) as proxy:
        config = named(replace(server.config(BUCKET), endpoint_url=proxy.url))
        source = followed(source_of(config, "requests", "in/", slots=slots))
        signals = Publisher(
            FastObjectStore(config), prefix=source.location.keyspace_prefix, slots=slots, queued=True
        )
        records = queue_records(config, store=FastObjectStore(config))
        queue = NotificationQueue(records, known_seconds=TOPICS_KNOWN_SECONDS)
        publisher = QueuedPublisher(signals, queue, bucket=BUCKET)
        for number in range(3):  # after these puts, the publisher knows its topics, and holds spare quota
            publisher.put(f"in/warm/{number}", body_of(number))
        proxy.before = lambda *_: time.sleep(ROUND_TRIP_MS / 1000)

        def change(number: int) -> None:
            if number < 3:
                publisher.put(f"in/{number}", body_of(number))
            else:
                publisher.publish([Put(key=f"in/{number}/{n}", body=body_of(n)) for n in range(objects)])

        ingest = ContinuousIngest(spark=spark, source=source, later=lambda *_: None, list_seconds=0)
        _, second, third, _, batch = request_counts.counted(ingest, proxy, 5, change)
    puts = min(
        (second[0], third[0]), key=lambda each: each.total
    )  # one of the two puts may read the topics again
    segments = -(-objects // ENTRIES)
    return [
        _row(
            "one changed object by `ingest`, warm, with its GET and the poll's HEAD",
            third[1],
            16,
            "9 in sequence after the poll's HEAD",
        ),
        _row(
            f"a batch of {objects} changed objects over {slots} slots by `ingest`, warm, besides the objects' GETs",
            _less(batch[1], "GET", objects),
            40 + 2 * segments,
            f"40 and 2 for each of {segments} segments",
        ),
        _row(
            "a lone put by a publisher, besides the object's own",
            replace(_less(puts, "PUT", 1), in_sequence=puts.in_sequence - 1),
            5,
            "4 in sequence",
        ),
    ]


def _less(found: Requests, method: str, count: int) -> Requests:
    """The requests in `found`, without `count` requests of this method."""
    return replace(found, counts=found.counts - Counter({method: count}))


def _row(what: str, found: Requests, aim: int, more: str) -> Figure:
    return Figure(
        what=f"requests: {what}",
        ours=f"{found.total}: {counted(found.counts)}; {found.in_sequence} in sequence",
        instead=f"aim: {aim} requests, {more}",
        ratio=times(aim, found.total),
    )
