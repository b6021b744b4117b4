"""`/metrics`: what a service counts, how full the queue is, what was sent; and where it is served."""

import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from s3notify_platform.channels.metrics import LOOK_SECONDS, Metrics, served
from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import UsageError
from s3notify_platform.local.process import free_ports
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.memory import MemoryRecordStore
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.clocks import HandClock
from tests.support.counted import CountedRecords
from tests.support.faults import Fault, FaultyStore
from tests.support.servers import S3Server


def page(metrics: Metrics) -> Mapping[tuple[str, ...], float]:
    """The samples, as a client reads them: the value by name and the values of labels."""
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
    queue.push("orders", Event(op="put", key="a", bucket="b", time_ms=clock.wall_ms() - 5000))
    return queue


def test_counts_are_shown() -> None:
    """By kind: what only grows, what goes down too, and time in seconds."""
    found = page(Metrics("deliver", lambda: {"delivered": 3, "waited_ms": 1500, "shards": 2}))
    assert found["s3notify_deliver_delivered_total",] == 3
    assert found["s3notify_deliver_waited_seconds_total",] == 1.5
    assert found["s3notify_deliver_shards",] == 2


def test_the_queue_is_looked_at_once_a_minute() -> None:
    """However often the page is read."""
    clock = HandClock()
    records = CountedRecords(MemoryRecordStore())
    queue = queue_of_one(records, clock)
    metrics = Metrics("http", dict, queue, clock)
    found = page(metrics)
    assert found["s3notify_queue_depth", "orders"] == 1
    assert found["s3notify_queue_capacity", "orders"] == 100
    assert found["s3notify_queue_oldest_age_seconds", "orders"] == 5
    assert found["s3notify_queue_dead", "orders"] == 0
    assert records.cost(lambda: page(metrics)) == {}
    queue.push("orders", Event(op="put", key="c", bucket="b"))
    clock.sleep(LOOK_SECONDS)
    assert page(metrics)["s3notify_queue_depth", "orders"] == 2


def test_an_outage_shows_no_old_figures() -> None:
    """The counts go on."""
    clock = HandClock()
    away: list[bool] = []
    store = FaultyStore(MemoryRecordStore(), lambda _: Fault.THROTTLED if away else Fault.NONE)
    metrics = Metrics("http", lambda: {"received": 1}, queue_of_one(store, clock), clock)
    assert ("s3notify_queue_depth", "orders") in page(metrics)
    clock.sleep(LOOK_SECONDS)
    away.append(True)
    found = page(metrics)
    assert found["s3notify_http_received_total",] == 1
    assert not [sample for sample in found if sample[0] == "s3notify_queue_depth"]


@pytest.mark.server
def test_requests_are_counted(ministack: S3Server) -> None:
    """By boto3's client and without it."""
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
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"), served(address, Metrics("http", dict)):
        pass


def test_a_taken_port_is_refused() -> None:
    (port,) = free_ports(1, SYSTEM_CLOCK)
    metrics = Metrics("http", dict)
    with (
        served(f"127.0.0.1:{port}", metrics),
        pytest.raises(UsageError, match="another port"),
        served(f"127.0.0.1:{port}", metrics),
    ):
        pass
