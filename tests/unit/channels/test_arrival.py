"""The delay of events, measured by a probe object, or by the newest object and its signal."""

from typing import Any

import pytest

from s3notify_platform.channels.arrival import TOPIC, newest_arrival, probe_arrival
from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.kernel.errors import RefusedError, UnavailableError
from s3notify_platform.kernel.ports import Unknown, list_all
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.stores.probe import PROBE
from tests.support.clocks import HandClock

SIGNALS = "_s3notify/orders/keyspace/"


class Reporting(HandClock):
    """A clock that, while it sleeps, reports written objects to an intake when these reports are due."""

    def __init__(self) -> None:
        super().__init__()
        self.due: dict[str, float] = {}
        self.intake: Intake | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for key in [key for key, moment in self.due.items() if moment <= self.now]:
            del self.due[key]
            assert self.intake is not None
            self.intake.accept([Event(key=key, bucket="b")])


class Bucket(MemoryObjectStore):
    """A bucket that reports objects below `raw/` after `late` seconds, or never if `late` is None."""

    def __init__(self, clock: Reporting, late: float | None) -> None:
        super().__init__(clock=clock)
        self.reporting, self.late = clock, late

    def put(self, key: str, body: bytes, **more: Any) -> Any:
        if key.startswith("raw/") and self.late is not None:
            self.reporting.due[key] = self.reporting.now + self.late
        return super().put(key, body, **more)


class Site:
    """A bucket, its queue, and an inlet's intake."""

    def __init__(self, late: float | None = 1.0) -> None:
        self.clock = Reporting()
        self.bucket = Bucket(self.clock, late)
        self.queue = NotificationQueue(ObjectRecordStore(self.bucket, "_s3notify/queue/"), clock=self.clock)
        self.publisher = Publisher(self.bucket, prefix=SIGNALS, slots=4, clock=self.clock)
        keyspace = Keyspace(publisher=self.publisher, prefix="raw/", topic="orders", skips_hidden=True)
        self.clock.intake = Intake(self.queue, [keyspace], bucket="b")

    def probe(self, bucket: Any = None, **more: Any) -> float | None:
        given = {"source": "orders", "bucket_name": "b", "prefix": "raw/", "wait_seconds": 30.0}
        return probe_arrival(self.queue, bucket or self.bucket, clock=self.clock, **(given | more))

    def keys(self) -> set[str]:
        """The keys of all objects except the objects of the queue."""
        return {meta.key for meta in list_all(self.bucket, "") if not meta.key.startswith("_s3notify/queue/")}


def test_the_probe_measures_the_seconds_until_the_queue_has_the_change() -> None:
    """The probe must leave no objects behind, and must cause no batch of the source."""
    site = Site(late=1.0)
    site.queue.topics.create("orders", TopicSettings(slots=4, shards=1, bucket="b", prefix="raw/"))
    found = site.probe()
    assert found is not None
    assert 1.0 <= found < 2.0
    assert site.queue.entries("orders", range(4)) == ()
    assert [topic.name for topic in site.queue.topics.all()] == ["orders"]
    assert site.keys() == set()


def test_the_probe_gives_up_after_its_time_or_if_no_event_can_arrive() -> None:
    """Otherwise `s3notify doctor` would wait for ever, or leave objects behind, if no event arrives."""
    site = Site(late=None)
    began = site.clock.now
    assert site.probe() is None
    assert 30 <= site.clock.now - began < 35
    asked: list[float] = []

    def hopeless() -> bool:
        asked.append(site.clock.now)
        return len(asked) == 2

    began = site.clock.now
    assert site.probe(hopeless=hopeless) is None
    assert 8 <= asked[0] - began < 10
    assert site.clock.now - began < 13
    assert site.keys() == set()
    assert site.queue.topics.all() == ()


def test_the_next_probe_takes_over_the_topic_of_a_killed_one() -> None:
    """Otherwise a killed probe would leave a topic with an entry, which would make all later probes fail."""
    site = Site()
    settings = TopicSettings(slots=1, shards=1, bucket="b", prefix=f"raw/{PROBE}")
    site.queue.topics.create(f"{TOPIC}orders", settings)
    site.queue.push(f"{TOPIC}orders", Event(key=f"raw/{PROBE}before", bucket="b"))
    found = site.probe()
    assert found is not None
    assert found >= 1.0
    assert site.queue.topics.all() == ()


class Failing(MemoryObjectStore):
    """A bucket whose writes return or raise `outcome`."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome
        self.deleted: list[str] = []

    def put(self, key: str, body: bytes, **more: Any) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def delete(self, key: str, **more: Any) -> Any:
        self.deleted.append(key)


def test_a_bucket_without_write_permission_is_reported() -> None:
    site, bucket = Site(), Failing(RefusedError("no"))
    with pytest.raises(RefusedError):
        site.probe(bucket)
    assert site.queue.topics.all() == ()
    assert bucket.deleted == []


def test_a_probe_object_in_doubt_is_deleted() -> None:
    site, bucket = Site(), Failing(Unknown(cause="lost"))
    with pytest.raises(UnavailableError, match="lost"):
        site.probe(bucket)
    assert site.queue.topics.all() == ()
    assert len(bucket.deleted) == 1


@pytest.mark.parametrize("root", [False, True])
def test_the_newest_object_and_its_signal_show_the_delay_of_events(root: bool) -> None:
    """Otherwise `s3notify doctor` would report a wrong delay or no delay for a bucket without write permission."""
    site = Site(late=None)

    def newest() -> Any:
        chosen = list_all(site.bucket, "raw/")
        return newest_arrival(site.bucket, keyspace_prefix=SIGNALS, slots=4, root=root, chosen=chosen)

    assert newest() is None
    site.bucket.put("raw/1", b"1")
    assert (newest().key, newest().seconds) == ("raw/1", None)
    site.clock.now += 2
    site.publisher.signal(["raw/1"])
    assert newest().seconds == pytest.approx(2, abs=0.1)
    site.clock.now += 5
    site.bucket.put("raw/0", b"2")
    assert (newest().key, newest().seconds) == ("raw/0", None)
