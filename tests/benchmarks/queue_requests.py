"""Counts the requests that the notification queue makes to its store, for each notification and for each put."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

from s3notify_platform.channels.delivery.delivery_worker import Delivery
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.ports import RecordStore, Written
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.benchmarks.figures import Figure, timed
from tests.support.counted import CountedRecords
from tests.support.programs.outlet import Place, endpoint
from tests.support.recorder import Recorder

BODY = b"x" * 2048
WRITERS = 16
BATCH = 200


def _topic(queue: NotificationQueue, place: Place, name: str, **settings: Any) -> str:
    queue.topics.create(name, TopicSettings(bucket=place.bucket.bucket, prefix="in/", **settings))
    return name


@dataclass(frozen=True, slots=True)
class _Counted:
    """A queue whose requests are counted.

    If the records are in a bucket, the requests to the bucket are counted. If the records are in a table, the requests
    to the table are counted.
    """

    queue: NotificationQueue
    requests: Callable[[], int]

    @classmethod
    def of(cls, place: Place) -> "_Counted":
        if place.table is None:
            store = CountingStore(FastObjectStore(place.bucket))
            records: RecordStore = queue_records(place.bucket, store=store)
            return cls(NotificationQueue(records), lambda: sum(store.counts.values()))
        counted: Any = CountedRecords(queue_records(place.bucket, table=place.table))
        return cls(NotificationQueue(counted), lambda: sum(counted.counts.values()))


def _asked(place: Place, batches: int) -> float:
    """The number of the queue's requests for each notification, from its reservation until it is delivered and removed.

    The worker starts before the first notification, and the requests of its idle time are not counted.
    """
    counted = _Counted.of(place)
    egress = Egress.of(["127.0.0.0/8"], allow_http=True)
    stop = Event()
    with Recorder() as recorder:
        topic = _topic(counted.queue, place, "asked", endpoint=endpoint(recorder.url()))
        plain = Publisher(
            FastObjectStore(place.bucket), prefix="_keyspace/", parallelism=WRITERS, queued=True
        )
        publisher = QueuedPublisher(plain, counted.queue, bucket=place.bucket.bucket)
        delivery = Delivery(counted.queue, egress=egress)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(delivery.run, stop, lambda _: None)
            try:
                publisher.put("in/first", BODY)
                recorder.wait(1)
                before = counted.requests()
                for batch in range(batches):
                    publisher.publish([Put(key=f"in/{batch}.{n}", body=BODY) for n in range(BATCH)])
                recorder.wait(1 + batches * BATCH)
                while counted.queue.stats(topic).depth:
                    time.sleep(0.1)
                found = counted.requests() - before
            finally:
                stop.set()
            running.result()
        counted.queue.topics.delete(topic)
    return found / (batches * BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Puts:
    """The number of requests of a put, without the PUT of the object: for threads that share a publisher, and for one
    thread alone.

    `rate`: the puts per second of the threads.
    """

    shared: float
    rate: float
    alone: float


def _shared(place: Place, puts: int) -> _Puts:
    """Single objects are put by threads that share a publisher, and then by one thread."""
    counted = _Counted.of(place)
    _topic(counted.queue, place, "shared", capacity=10 * puts * WRITERS)
    store = CountingStore(FastObjectStore(place.bucket))
    publisher = QueuedPublisher(
        Publisher(store, prefix="_keyspace/", parallelism=WRITERS, queued=True),
        counted.queue,
        bucket=place.bucket.bucket,
    )
    publisher.put("in/warm", BODY)

    def requests() -> int:
        return counted.requests() + sum(store.counts.values())

    def write(thread: int) -> None:
        for number in range(puts):
            assert isinstance(publisher.put(f"in/{thread}.{number}", BODY), Written)

    def all_at_once() -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))

    total, before = puts * WRITERS, requests()
    took, _ = timed(all_at_once)
    shared, before = requests() - before, requests()
    write(WRITERS)
    alone = requests() - before
    counted.queue.topics.delete("shared")
    return _Puts(shared=shared / total - 1, rate=total / took, alone=alone / puts - 1)


def requests_figures(places: Mapping[str, Place], *, small: bool) -> list[Figure]:
    """The figures of a queue in each of the places."""
    asked = {name: _asked(place, 2 if small else 10) for name, place in places.items()}
    shared = {name: _shared(place, 5 if small else 40) for name, place in places.items()}
    return [*_figures(asked, shared)]


def _figures(asked: dict[str, float], shared: dict[str, _Puts]) -> Iterator[Figure]:
    for name, each in asked.items():
        yield Figure(
            what=f"requests to the queue for each notification, in batches of {BATCH}, pushed; queue: {name}",
            ours=f"{each:.2f}, signals and the posts aside",
            instead="RGW: not counted, it writes to its own omap",
            ratio="–",
        )
    for name, puts in shared.items():
        yield Figure(
            what=f"requests of a put, {WRITERS} threads of one process, besides the object's own; queue: {name}",
            ours=f"{puts.shared:.2f}, one of them the slot's signal; {puts.rate:.0f} puts a second",
            instead=f"one thread alone: {puts.alone:.2f}",
            ratio="–",
        )
