"""`/metrics`: a service's counts, the queue's fill level, requests, and the HTTP server of the page."""

import urllib.request
from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from s3notify_platform.channels.metrics import KEPT_SECONDS, QUEUE_LOOK_SECONDS, Metrics, served
from s3notify_platform.channels.queue_gauges import queue_facts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import Record
from s3notify_platform.local.process import free_ports
from s3notify_platform.protocols.notification_queue import Event as Change
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.protocols.notification_queue.entries import dead_partition
from s3notify_platform.stores.memory import MemoryRecordStore
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.clocks import HandClock
from tests.support.counted import CountedRecords
from tests.support.faults import Fault, FaultyStore
from tests.support.servers import S3Server
from tests.support.waiting import until


def page(metrics: Metrics) -> Mapping[tuple[str, ...], float]:
    """Returns the samples of the page: each value by the metric's name and the values of its labels."""
    (port,) = free_ports(1, SYSTEM_CLOCK)
    with (
        served(f"127.0.0.1:{port}", metrics),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def queue_of_one(records: Any, clock: HandClock) -> NotificationQueue:
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("orders", TopicSettings(bucket="b", capacity=100))
    queue.push("orders", Change(op="put", key="a", bucket="b", time_ms=clock.wall_ms() - 5000))
    return queue


def test_counts_are_counters_gauges_or_seconds() -> None:
    """Otherwise rates and means could not be computed from the page."""
    found = page(Metrics("deliver", lambda: {"delivered": 3, "waited_ms": 1500, "shards": 2}))
    assert found["s3notify_deliver_delivered_total",] == 3
    assert found["s3notify_deliver_waited_seconds_total",] == 1.5
    assert found["s3notify_deliver_shards",] == 2


DEPTH = ("s3notify_queue_depth", "orders")


def test_the_queue_is_read_at_most_once_a_minute() -> None:
    """Otherwise each scrape would send requests, and wait for them."""
    clock = HandClock()
    records = CountedRecords(MemoryRecordStore())
    queue = queue_of_one(records, clock)
    metrics = Metrics("http", dict, queue, clock)
    until(lambda: DEPTH in page(metrics))
    found = page(metrics)
    assert found["s3notify_queue_depth", "orders"] == 1
    assert found["s3notify_queue_capacity", "orders"] == 100
    assert found["s3notify_queue_oldest_age_seconds", "orders"] == 5
    assert found["s3notify_queue_dead", "orders"] == 0
    assert records.cost(lambda: page(metrics)) == {}
    queue.push("orders", Change(op="put", key="c", bucket="b"))
    clock.sleep(QUEUE_LOOK_SECONDS)
    until(lambda: page(metrics)[DEPTH] == 2)


def test_dead_letters_are_counted_by_their_keys() -> None:
    """Otherwise each scrape would read the bodies of all dead letters, and there may be many dead letters."""
    records = MemoryRecordStore()
    queue = NotificationQueue(records)
    queue.topics.create("orders", TopicSettings(bucket="b", capacity=100))
    for number in range(3):
        records.create(dead_partition("orders"), f"{number:03d}.x", b"no letter")
    assert queue_facts(queue, queue.topics.get("orders"))["dead"] == 3, "these bodies cannot be decoded"


def test_metrics_and_status_show_the_same_numbers_of_a_topic() -> None:
    """Otherwise an operator would see one depth in an alert and another depth in `status`, which shows the numbers of
    `stats`. Topics of more than `SCANNED_MAX` entries are an exception, because metrics never scan them.
    """
    queue = queue_of_one(MemoryRecordStore(), HandClock())
    shown = queue.stats("orders")
    facts = queue_facts(queue, queue.topics.get("orders"))
    assert facts["depth"] == 1
    assert facts == {name: getattr(shown, name) for name in facts}


def test_a_hanging_store_does_not_delay_the_page() -> None:
    """Otherwise counts would be missing during an outage, or old numbers of the queue would be shown for ever."""
    clock = HandClock()
    hangs, goes_on = Event(), Event()

    class Slow(MemoryRecordStore):
        def scan(self, partition: str, **how: Any) -> Iterator[Record]:
            if hangs.is_set():
                goes_on.wait()
            return super().scan(partition, **how)

    metrics = Metrics("http", lambda: {"received": 1}, queue_of_one(Slow(), clock), clock)
    until(lambda: DEPTH in page(metrics))
    hangs.set()
    clock.sleep(QUEUE_LOOK_SECONDS)
    for _ in range(3):
        found = page(metrics)
        assert (found["s3notify_http_received_total",], found[DEPTH]) == (1, 1)
    clock.sleep(KEPT_SECONDS)
    found = page(metrics)
    assert found["s3notify_http_received_total",] == 1
    assert DEPTH not in found
    goes_on.set()
    until(lambda: DEPTH in page(metrics))


def test_an_outage_removes_the_numbers_of_the_queue_from_the_page() -> None:
    """Otherwise old numbers would look like current numbers. The counts stay on the page."""
    clock = HandClock()
    away: list[bool] = []
    store = FaultyStore(MemoryRecordStore(), lambda _: Fault.THROTTLED if away else Fault.NONE)
    metrics = Metrics("http", lambda: {"received": 1}, queue_of_one(store, clock), clock)
    until(lambda: DEPTH in page(metrics))
    clock.sleep(QUEUE_LOOK_SECONDS)
    away.append(True)
    until(lambda: DEPTH not in page(metrics))
    assert page(metrics)["s3notify_http_received_total",] == 1


@pytest.mark.server
def test_requests_of_boto3_and_obstore_are_counted(ministack: S3Server) -> None:
    store = S3ObjectStore(ministack.config(ministack.make_bucket()))
    before = page(Metrics("http", dict))
    store.put("a", b"1")
    store.get("a")
    store.get("b")
    after = page(Metrics("http", dict))
    for operation, number in {"PutObject": 1, "GetObject": 2}.items():  # labels in alphabetical order
        name = ("s3notify_requests_total", operation, "s3")
        assert after[name] - before.get(name, 0) == number


@pytest.mark.parametrize("address", ["9464", "localhost:", ":1", "localhost:x", "localhost:70000"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"), served(address, Metrics("http", dict)):
        pass


def test_a_port_in_use_is_refused() -> None:
    (port,) = free_ports(1, SYSTEM_CLOCK)
    metrics = Metrics("http", dict)
    with (
        served(f"127.0.0.1:{port}", metrics),
        pytest.raises(UsageError, match="another port"),
        served(f"127.0.0.1:{port}", metrics),
    ):
        pass
