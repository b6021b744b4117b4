"""`s3notify ingest` of a source with `signals: root`, on a real S3 server, without Spark: no change is missed."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.values.plan import Plan
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.ingested import rows_of
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import source_of, with_settings

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOTS = 20
ROW = b'{"a":1}\n'


class Works:
    """A Spark session, as far as it is asked whether it works."""

    def range(self, number: int) -> "Works":
        return self

    def count(self) -> int:
        return 1


@dataclass
class Site:
    """A source whose root moves alone, and what its batches planned. `broken`: a slot whose runs end at once."""

    proxy: FaultProxy
    source: Source
    batches: list[tuple[set[Slot], bool]] = field(default_factory=list)
    """The slots of each plan, and whether it listed the bucket."""
    broken: Slot | None = None
    later: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = S3ObjectStore(self.source.input.bucket)
        self.queue = self.source.location.queue()
        self.plain = Publisher(self.store, prefix=self.source.location.keyspace_prefix, slots=SLOTS)
        self.topic()

    def topic(self, signals: Any = "root") -> None:
        settings = TopicSettings(slots=SLOTS, bucket=self.store.config.bucket, signals=signals)
        self.queue.topics.create("orders", settings)

    @property
    def publisher(self) -> QueuedPublisher:
        bucket = self.source.input.bucket.bucket
        return QueuedPublisher(
            self.plain, self.source.location.queue(), bucket=bucket, topic="orders", linger_seconds=0
        )

    def ingest(self) -> ContinuousIngest:
        return ContinuousIngest(
            spark=Works(),  # type: ignore[arg-type]
            source=self.source,
            list_seconds=0,
            later=lambda _, act: self.later.append(act),
        )

    def run(self, *steps: Callable[[], object]) -> None:
        """A process that takes these steps, one after the other, each before a poll."""
        left = list(steps)

        class Rests(Event):
            def wait(self, timeout: float | None = None) -> bool:
                if not left:
                    self.set()
                    return True
                left.pop(0)()
                return False

        self.ingest().run(Rests(), every_seconds=0.01)

    def requests(self) -> list[str]:
        """Method and what it was of, for what concerns signals and queue; since this was last asked for."""
        names = {"/keyspace/": "signals", "queue.2eorders": "entries"}
        found = []
        for each in self.proxy.answered:
            path = each.path.replace("%2F", "/")
            kind = next((name for part, name in names.items() if part in path), "")
            if kind:
                found.append(f"{'LIST' if 'list-type' in path else each.method} {kind}")
        self.proxy.answered.clear()
        return found

    def keys(self) -> set[str]:
        return {row["_key"] for row in rows_of(self.source)}


@pytest.fixture
def site(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url)
        source = source_of(
            bucket=config, platform=config, name="orders", prefix="raw/", format="jsonl", slots=SLOTS,
            commit="native", signals="root",
        )  # fmt: skip
        site = Site(proxy, source)

        class Jobs(LocalJobs):
            def plan(self, slots: Any, *base: Any, **arguments: Any) -> Plan:
                site.batches.append(({*slots}, arguments["entries"] is None))
                if site.broken in site.batches[-1][0]:
                    raise CorruptError("it ends every run")
                return super().plan(site.batches[-1][0], *base, **arguments)

        def ingest(_spark: object, source: Source, *, clock: Clock, **_: object) -> Ingest:
            return Ingest(jobs=Jobs(source=source), source=source, clock=clock)

        monkeypatch.setattr("s3notify_platform.spark.continuous.spark_ingest", ingest)
        yield site
        site.store.close()


def test_a_changed_poll_lists_the_queue_and_a_put_moves_the_root(site: Site) -> None:
    """Poll: 1 HEAD of the root, and with a change 1 LIST of the segments. Put: the root's PUT, and no slot's."""
    found: list[Counter[str]] = []

    def put() -> None:
        site.requests()
        site.publisher.put("raw/a", ROW)
        found.append(Counter(site.requests()))

    def note() -> None:
        found.append(Counter(site.requests()))

    site.run(put, note, put, note, note)
    for puts, polled in (found[:2], found[2:4]):
        assert (puts["PUT signals"], puts["LIST signals"]) == (1, 0)
        assert (polled["HEAD signals"], polled["LIST signals"]) == (1, 0)
        # The second is the plan's.
        assert polled["LIST entries"] == 2
    assert found[4] == {"HEAD signals": 1}
    assert site.batches[1:] == [({slot_of("raw/a", SLOTS)}, False)] * 2


def test_all_that_is_published_is_taken_in_by_its_slots(site: Site) -> None:
    """Alone, in a batch of more slots than a segment names, and deleted."""
    many = [f"raw/{n}" for n in range(60)]
    site.run(
        lambda: site.publisher.put("raw/a", ROW),
        lambda: site.publisher.publish([Put(key=key, body=ROW) for key in many]),
        lambda: site.publisher.delete("raw/a"),
    )
    assert site.keys() == {*many}
    one, all_slots = {slot_of("raw/a", SLOTS)}, {slot_of(key, SLOTS) for key in many}
    assert site.batches[1:] == [(one, False), (all_slots, False), (one, False)]


def test_a_process_goes_on_where_another_ended(site: Site) -> None:
    """What was changed in between is taken in, and nothing else again."""
    site.run(lambda: site.publisher.put("raw/a", ROW))
    site.publisher.put("raw/b", ROW)
    site.batches.clear()
    site.run()
    site.run()
    assert site.batches == [({slot_of("raw/b", SLOTS)}, False)]
    assert site.keys() == {"raw/a", "raw/b"}


def test_a_slot_that_failed_is_asked_for_again(site: Site) -> None:
    """Its signal moves, and so the keyspace is listed, although its entries are the same as before."""
    slot = slot_of("raw/a", SLOTS)

    def again() -> None:
        site.broken = None
        site.later.pop()()

    def fail() -> None:
        site.broken = slot
        site.publisher.publish([Put(key="raw/a", body=ROW), Put(key="raw/b", body=ROW)])

    site.run(fail, again)
    assert site.keys() == {"raw/a", "raw/b"}


def test_an_unqueued_writer_beside_them(site: Site) -> None:
    """Its root says so: the signals are listed, and then its slot by the bucket; also with an entry before it."""

    def both() -> None:
        site.publisher.put("raw/a", ROW)
        site.plain.put("raw/b", ROW)

    site.run(both)
    assert site.keys() == {"raw/a", "raw/b"}
    assert site.batches[1:] == [({slot_of("raw/a", SLOTS), slot_of("raw/b", SLOTS)}, True)]


def test_a_topic_that_is_made_again(site: Site) -> None:
    """Whatever its entries were, all is compared once; then entries are followed again."""

    def anew() -> None:
        site.publisher.put("raw/a", ROW)
        site.queue.topics.delete("orders")
        site.publisher.put("raw/b", ROW)
        site.topic()
        site.publisher.put("raw/c", ROW)

    site.run(anew, lambda: None, lambda: site.publisher.put("raw/d", ROW))
    assert site.keys() == {f"raw/{name}" for name in "abcd"}
    assert (len(site.batches[-2][0]), site.batches[-2][1]) == (SLOTS, True)
    assert site.batches[-1] == ({slot_of("raw/d", SLOTS)}, False)


def test_source_and_topic_must_agree(site: Site) -> None:
    """Either way; and a source that expects signals of slots does not wait for ever for what never comes."""
    site.run(lambda: site.publisher.put("raw/a", ROW))
    site.source = with_settings(site.source, signals="slots")
    with pytest.raises(UsageError, match="signals: root"):
        site.ingest().run(Event(), every_seconds=None)
    site.queue.topics.delete("orders", served=True)
    site.topic("slots")
    site.publisher.put("raw/a", b'{"a":2}\n')
    site.ingest().run(Event(), every_seconds=None)
    site.source = with_settings(site.source, signals="root")
    site.publisher.put("raw/a", b'{"a":3}\n')
    with pytest.raises(UsageError, match="has signals: slots, and its source root"):
        site.ingest().run(Event(), every_seconds=None)
