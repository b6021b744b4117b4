"""Counts the requests to a real server: for the put of a changed object, and for the ingest of this object by a running
process. Overwritten objects, a process that has just started, and commits by leases have separate tests.

Sequential requests are counted, too: on a real store, each sequential request takes 20 to 60 ms. A test on loopback
would not notice additional requests, which take almost no time there.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import Event

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.limits import ROOM_HELD, TOPICS_KNOWN_SECONDS
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.commit import CHECKPOINT_EVERY
from s3notify_platform.table.open_table import OpenTable
from s3notify_platform.table.snapshot import Snapshot
from tests.contracts.fault_proxy import FaultProxy
from tests.support.ingested import rows_of
from tests.support.local_jobs import LocalJobs
from tests.support.request_counts import Requests, counted
from tests.support.servers import S3Server
from tests.support.sources import source_of, with_settings
from tests.support.tables import create_lease_table

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("briefly_known")]

ROUND_TRIP_SECONDS = 0.05
"""This delay is long enough for concurrent requests to overlap."""


@dataclass(frozen=True, slots=True)
class Site:
    """A source with 1000 slots; all its requests pass through the proxy."""

    proxy: FaultProxy
    source: Source
    publisher: QueuedPublisher

    def put(self, key: str, value: int) -> None:
        self.publisher.put(key, b'{"a":%d}\n' % value)

    def publish(self, keys: Iterable[str], value: int) -> None:
        body = b'{"a":%d}\n' % value
        self.publisher.publish([Put(key=key, body=body) for key in keys])

    def values(self) -> dict[str, int]:
        """The value of each object that a test wrote. Each such object has one row."""
        rows = [row for row in rows_of(self.source) if row["a"]]
        found = {row["_key"]: row["a"] for row in rows}
        assert len(found) == len(rows)
        return found

    def cold(self) -> "Site":
        """The same source, as a process that has just started sees it: with another secret, so that no cache of this
        process is used.
        """
        config = replace(self.source.location.platform, secret_access_key="cold")
        return replace(self, source=with_settings(self.source, bucket=config, platform=config))


@pytest.fixture
def site_of(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    """Returns a function that makes a site. `leases`: True if versions are committed by leases."""

    def without_spark(
        _spark: object, source: Source, *, clock: Clock, opened: OpenTable | None, **_: object
    ) -> Ingest:
        return Ingest(jobs=LocalJobs(source=source), source=source, clock=clock, opened=opened)

    monkeypatch.setattr("s3notify_platform.spark.continuous.spark_ingest", without_spark)
    with FaultProxy(ministack.endpoint_url) as proxy:

        def made(*, leases: bool = False) -> Site:
            config = replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url)
            table = replace(ministack.table_config(), endpoint_url=proxy.url) if leases else None
            if table is not None:
                create_lease_table(table)
            source = source_of(
                bucket=config,
                platform=config,
                lease_table=table,
                name="orders",
                prefix="raw/",
                format="jsonl",
                schema="a int",
                commit="dynamodb" if leases else "native",
            )
            queue = source.location.queue()
            queue.topics.create("orders", TopicSettings(slots=source.location.slots, bucket=config.bucket))
            signals = Publisher(S3ObjectStore(config), prefix=source.location.keyspace_prefix, queued=True)
            # The writers get a queue with empty caches, as in a separate process.
            records = queue_records(config, store=S3ObjectStore(config))
            writers = NotificationQueue(records, known_seconds=TOPICS_KNOWN_SECONDS)
            publisher = QueuedPublisher(signals, writers, bucket=config.bucket)
            for number in range(12):  # these puts fill the caches
                publisher.put(f"raw/warm/{number}", b'{"a":0}\n')
            proxy.before = lambda *_: time.sleep(ROUND_TRIP_SECONDS)
            return Site(proxy, source, publisher)

        yield made


@pytest.fixture
def site(site_of: Callable[..., Site]) -> Site:
    return site_of()


def counts(site: Site, rounds: int, put: Callable[[int], object]) -> list[tuple[Requests, Requests]]:
    """The requests of each put, and of its batch by a running process."""
    return counted(ingest_of(site), site.proxy, rounds, put)


def ingest_of(site: Site) -> ContinuousIngest:
    return ContinuousIngest(
        spark=None,  # type: ignore[arg-type]  # the session is never used
        source=site.source,
        later=lambda *_: None,
        list_seconds=0,
    )


IN_SEQUENCE = 1 + 9
"""The poll's HEAD, and the batch's sequential requests.

The budget includes the HEAD of the one poll that finds the change. It does not include idle polls, each of which is
also one HEAD. The nine requests after the HEAD are: LIST of the signals, LIST of the queue (at the same time, the
table's newest version is read), GET of the segment, GET of the object, PUT of the pack, PUT of the version, PUT of
`known`, removal of the segment, and PUT of the signals seen. Each of these requests must wait for the answer to the
request before it:

- The queue is listed after the signals. Otherwise a change that is announced between both LISTs would have a signal
  that counts as seen, but no entry in the LIST of the queue.
- The segment is removed after `known` is written, and the signals seen are written last. So all work that a crash
  interrupts is requested again.
"""


def fewest_in_sequence(found: Iterable[tuple[Requests, Requests]]) -> int:
    """The smallest number of sequential requests of a batch. On a busy machine, some concurrent requests do not
    overlap, so other batches may have more.
    """
    return min(batch.in_sequence for _, batch in found)


def test_one_changed_object_needs_few_requests(site: Site) -> None:
    """Each further request would cost money for each changed object, and each further sequential request would delay
    the object's rows by a round trip. The counts include the object's own PUT and GET, and the HEAD of the poll.
    """
    _, *warm = counts(site, 3, lambda number: site.put(f"raw/{number}", 1))
    for puts, batch in warm:
        assert puts.total <= 6, puts
        assert batch.total <= 16, batch
    assert fewest_in_sequence(warm) <= IN_SEQUENCE, warm
    assert site.values() == {f"raw/{number}": 1 for number in range(3)}


def test_a_put_needs_few_sequential_requests(site: Site) -> None:
    """Each further sequential request would delay each writer by a round trip. A publisher that knows the topics and
    has room in the queue needs at most 4 sequential requests besides the object's own PUT. On a busy machine, some
    concurrent requests do not overlap, so only the smallest number is compared.
    """
    for number in range(8):
        site.put(f"raw/first/{number}", 1)
    puts = []
    for number in range(4):
        site.proxy.answered.clear()
        site.put(f"raw/{number}", 1)
        puts.append(Requests.at(site.proxy))
    assert min(put.in_sequence for put in puts) <= 1 + 4, puts


def test_a_put_needs_four_requests_in_the_mean(site: Site) -> None:
    """A publisher reserves room for many entries at a time. Otherwise each put would need a fifth request.

    The object's own PUT is not counted, nor are reads of the topics: their number depends on the speed of the machine,
    since a publisher reads the topics again after `TOPICS_KNOWN_SECONDS`.
    """
    site.proxy.before = lambda *_: None
    for number in range(4 * ROOM_HELD):  # after these puts, the publisher reserves as much room as it may
        site.put(f"raw/first/{number}", 1)
    site.proxy.answered.clear()
    for number in range(4 * ROOM_HELD):
        site.put(f"raw/{number}", 1)
    sent = [each for each in site.proxy.answered if "topics" not in each.path]
    assert len(sent) <= (1 + 4) * 4 * ROOM_HELD + 4, f"{len(sent)} requests for {4 * ROOM_HELD} puts"


BATCHES = CHECKPOINT_EVERY
"""Enough batches for merges of packs and of states, and for a checkpoint."""


def test_one_changed_object_needs_few_requests_in_the_mean(site: Site) -> None:
    """Otherwise merges and checkpoints could cost more requests than the batches themselves."""
    site.proxy.before = lambda *_: None  # this test counts no sequential requests
    _, *warm = counts(site, 1 + BATCHES, lambda number: site.put(f"raw/{number}", 1))
    found = [batch.total for _, batch in warm]
    assert max(found) > 16, "merges and a checkpoint are among these batches"
    assert sum(found) <= 18 * BATCHES, found
    assert site.values() == {f"raw/{number}": 1 for number in range(1 + BATCHES)}


def test_an_overwritten_object_needs_only_a_few_more_requests(site: Site) -> None:
    """Otherwise a source with frequent overwrites would pay for a search through many states and packs at each change.
    A known key may cost one request for its state, and two for the pack that had its rows.
    """
    _, *warm = counts(site, 3, lambda number: site.put("raw/0", number + 1))
    for puts, batch in warm:
        assert puts.total <= 6, puts
        assert batch.total <= 16 + 1 + 2, batch
    assert fewest_in_sequence(warm) <= IN_SEQUENCE + 3, warm
    assert site.values() == {"raw/0": 3}


def test_commits_by_leases_need_four_more_requests(site_of: Callable[..., Site]) -> None:
    """Otherwise users of a store without conditional writes would wait longer, and pay more, for each commit. The four
    requests stage the version, look it up, take its lease, and release the lease. Requests to DynamoDB count, too.
    """
    site = site_of(leases=True)
    _, *warm = counts(site, 3, lambda number: site.put(f"raw/{number}", 1))
    for _, batch in warm:
        assert batch.counts["PutItem"], batch
        assert batch.total <= 16 + 4, batch
    assert fewest_in_sequence(warm) <= IN_SEQUENCE + 4, warm
    assert site.values() == {f"raw/{number}": 1 for number in range(3)}


def test_a_process_that_has_just_started_needs_only_a_few_more_requests(site: Site) -> None:
    """Otherwise each run in a new process would be slower and cost more. One request for each version since the
    checkpoint, and six others, are allowed. The six requests read the abilities of the store, the signals seen, the
    topic, the pointer to the checkpoint, the manifest, and the queue's count of entries.
    """
    counts(site, 2, lambda number: site.put(f"raw/{number}", 1))
    site.put("raw/cold", 1)
    newest = site.source.table().newest()
    assert isinstance(newest, Snapshot)
    site.proxy.answered.clear()
    ingest_of(site.cold()).run(Event(), every_seconds=None)
    batch = Requests.at(site.proxy)
    assert batch.total <= 16 + 6 + newest.version + 1, batch
    assert site.values().keys() == {"raw/0", "raw/1", "raw/cold"}


SLOTS, OBJECTS, SEGMENTS = 500, 694, 3
"""The slots and objects of a batch in the tests below, and the queue's segments that name the objects."""


def test_batch_needs_no_request_for_each_slot(site: Site) -> None:
    """If each slot needed a request, the batch with 500 slots would need 500 requests more. The batch also
    has 694 changed objects. The test allows two requests for each segment, and one GET for each object.
    """
    _, second = counts(
        site, 2, lambda number: site.publish([f"raw/{number}/{each}" for each in range(OBJECTS)], 1)
    )
    puts, batch = second
    assert puts.total - OBJECTS <= SLOTS + 20, puts
    assert batch.total - OBJECTS <= 40 + 2 * SEGMENTS, batch
    assert len(site.values()) == 2 * OBJECTS


def test_batch_of_overwrites_needs_two_more_requests_for_each_rewritten_pack(site: Site) -> None:
    """If each key needed a request besides its object's GET, the batch would need 694 requests more. A warm process
    knows the states of these few objects.
    """
    keys = [f"raw/{each}" for each in range(OBJECTS)]
    _, second, third = counts(site, 3, lambda number: site.publish(keys, number + 1))
    table = site.source.table()
    newest = table.newest()
    assert isinstance(newest, Snapshot)
    for version, (_, batch) in zip((newest.version - 1, newest.version), (second, third), strict=True):
        body = table.reader.version(version)
        assert body is not None
        rewritten = len(body.removes)
        assert rewritten
        assert batch.total - OBJECTS <= 40 + 2 * SEGMENTS + 2 * rewritten, (batch, rewritten)
    assert site.values() == dict.fromkeys(keys, 3)


def test_batch_of_single_puts_needs_two_requests_for_each_segment(site: Site) -> None:
    """Each put makes a segment of its own. So a third request for each segment would mean 694 requests more for the
    batch.
    """
    site.proxy.before = lambda *_: None  # this test counts no sequential requests
    keys = [f"raw/{each}" for each in range(OBJECTS)]

    def put(number: int) -> None:
        for key in keys if number else ["raw/first"]:
            site.put(key, 1)

    _, (puts, batch) = counts(site, 2, put)
    assert puts.total <= (1 + 5) * OBJECTS, puts
    assert batch.total - OBJECTS <= 40 + 2 * OBJECTS, batch
    assert site.values().keys() == {"raw/first", *keys}


def test_batch_of_a_process_that_has_just_started_needs_no_request_for_each_slot(site: Site) -> None:
    """Otherwise the first batch after each start of a process would need 500 requests more. A process that
    has just started may send six further requests, and one request for each version since the checkpoint.
    """
    site.proxy.before = lambda *_: None  # this test counts no sequential requests
    counts(site, 1, lambda number: site.publish([f"raw/{number}/{each}" for each in range(OBJECTS)], 1))
    site.publish([f"raw/1/{each}" for each in range(OBJECTS)], 1)
    newest = site.source.table().newest()
    assert isinstance(newest, Snapshot)
    site.proxy.answered.clear()
    ingest_of(site.cold()).run(Event(), every_seconds=None)
    batch = Requests.at(site.proxy)
    assert batch.total - OBJECTS <= 40 + 2 * SEGMENTS + 6 + newest.version + 1, batch
    assert len(site.values()) == 2 * OBJECTS
