"""Counts the requests to a real server: for the put of a changed object, and for the ingest of this object by a running
process.

Sequential requests are counted, too: on a real store, each sequential request takes 20 to 60 ms. A test on loopback
would not notice additional requests, which take almost no time there.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Event

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.limits import TOPICS_KNOWN_SECONDS
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.open_table import OpenTable
from tests.contracts.fault_proxy import FaultProxy, in_sequence
from tests.support.ingested import rows_of
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import source_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

ROUND_TRIP_SECONDS = 0.05
"""This delay is long enough for concurrent requests to overlap."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The number of requests by method, and the number of requests that were sent one after another."""

    counts: Counter[str]
    in_sequence: int

    @property
    def total(self) -> int:
        return self.counts.total()


@dataclass(frozen=True, slots=True)
class Site:
    """A source with 1000 slots; all its requests pass through the proxy."""

    proxy: FaultProxy
    source: Source
    publisher: QueuedPublisher

    def requests(self) -> Requests:
        """The requests since the last call."""
        found = [*self.proxy.answered]
        self.proxy.answered.clear()
        return Requests(Counter(each.method for each in found), in_sequence(found))


@pytest.fixture
def site(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    def without_spark(
        _spark: object, source: Source, *, clock: Clock, opened: OpenTable | None, **_: object
    ) -> Ingest:
        return Ingest(jobs=LocalJobs(source=source), source=source, clock=clock, opened=opened)

    monkeypatch.setattr("s3notify_platform.spark.continuous.spark_ingest", without_spark)
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url)
        source = source_of(
            bucket=config,
            platform=config,
            name="orders",
            prefix="raw/",
            format="jsonl",
            schema="a int",
            commit="native",
        )
        queue = source.location.queue()
        queue.topics.create("orders", TopicSettings(slots=source.location.slots, bucket=config.bucket))
        signals = Publisher(S3ObjectStore(config), prefix=source.location.keyspace_prefix, queued=True)
        # Caches are emptied, as in a separate process.
        records = queue_records(config, store=S3ObjectStore(config))
        writers = NotificationQueue(records, known_seconds=TOPICS_KNOWN_SECONDS)
        publisher = QueuedPublisher(signals, writers, bucket=config.bucket)
        for number in range(12):  # some puts to warm up
            publisher.put(f"raw/warm/{number}", b'{"a":0}\n')
        proxy.before = lambda *_: time.sleep(ROUND_TRIP_SECONDS)
        yield Site(proxy, source, publisher)


def counted(site: Site, rounds: int, put: Callable[[int], object]) -> list[tuple[Requests, Requests]]:
    """The requests of each call of `put`, and of the following poll and batch."""
    found: list[tuple[Requests, Requests]] = []

    class Rests(Event):
        puts: Requests | None = None

        def wait(self, timeout: float | None = None) -> bool:
            if self.puts is not None:
                found.append((self.puts, site.requests()))
            if len(found) == rounds:
                self.set()
                return True
            site.requests()
            put(len(found))
            self.puts = site.requests()
            return False

    ingest = ContinuousIngest(
        spark=None,  # type: ignore[arg-type]  # nobody asks it
        source=site.source,
        later=lambda *_: None,
        list_seconds=0,
    )
    ingest.run(Rests(), every_seconds=0.1)
    return found


def test_one_changed_object_needs_few_requests(site: Site) -> None:
    """The counts include the object's own PUT and GET, and the HEAD of the poll. The process is warm."""

    def put(number: int) -> None:
        site.publisher.put(f"raw/{number}", b'{"a":1}\n')

    _, second, third = counted(site, 3, put)
    for puts, batch in (second, third):
        assert puts.total <= 6, puts
        assert batch.total <= 16, batch
        assert batch.in_sequence <= 10, batch
    keys = [row["_key"] for row in rows_of(site.source) if row["a"]]
    assert keys == ["raw/0", "raw/1", "raw/2"]


def test_batch_needs_no_request_for_each_slot(site: Site) -> None:
    """694 changed objects in 500 slots may cause only two requests for each segment, and one GET for each object."""

    def put(number: int) -> None:
        body = b'{"a":1}\n'
        site.publisher.publish([Put(key=f"raw/{number}/{each}", body=body) for each in range(694)])

    _, second = counted(site, 2, put)
    slots, segments = 500, 3
    puts, batch = second
    assert puts.total - 694 <= slots + 20, puts
    assert batch.total - 694 <= 40 + 2 * segments, batch
    assert len([row for row in rows_of(site.source) if row["a"]]) == 2 * 694
