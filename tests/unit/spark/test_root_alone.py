"""`s3notify ingest` of a source with `signals: root`, on a real S3 server, without Spark: no change is missed."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import pytest

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.engine.batch.list_or_follow import topic_problem
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.values.slot_plan import Plan
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

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("briefly_known")]

SLOTS = 20
ROW = b'{"a":1}\n'


class Works:
    """A replacement for a Spark session, which only reports that the session works."""

    def range(self, number: int) -> "Works":
        return self

    def count(self) -> int:
        return 1


@dataclass
class Site:
    """A source with only a root signal, and the plans of its batches. `broken`: a slot for which every run fails."""

    proxy: FaultProxy
    source: Source
    batches: list[tuple[set[Slot], bool]] = field(default_factory=list)
    """The slots of each plan, and True if the plan listed the bucket."""
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
        """Runs a process that takes these steps in order, each before a poll."""
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
        """Method and target of the requests for signals and queue since the last call."""
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
                    raise CorruptError("the slot fails every run")
                return super().plan(site.batches[-1][0], *base, **arguments)

        def ingest(_spark: object, source: Source, *, clock: Clock, **_: object) -> Ingest:
            return Ingest(jobs=Jobs(source=source), source=source, clock=clock)

        monkeypatch.setattr("s3notify_platform.spark.continuous.spark_ingest", ingest)
        yield site
        site.store.close()


def test_put_writes_only_the_root_and_a_poll_lists_the_queue(site: Site) -> None:
    """Otherwise `signals: root` would save no requests: each put would also write the signal of a slot, and each poll
    would list the signals. An idle poll may send only 1 HEAD.
    """
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
        # The second LIST is made by the plan.
        assert polled["LIST entries"] == 2
    assert found[4] == {"HEAD signals": 1}
    assert site.batches[1:] == [({slot_of("raw/a", SLOTS)}, False)] * 2


def test_published_objects_are_ingested_by_their_slots(site: Site) -> None:
    """The root signal names no slot. Without the slots from the queue, a change would be missed, or each batch would
    have to list the bucket. The changes are one object, a batch with more slots than a segment names, and a deletion.
    """
    many = [f"raw/{n}" for n in range(60)]
    site.run(
        lambda: site.publisher.put("raw/a", ROW),
        lambda: site.publisher.publish([Put(key=key, body=ROW) for key in many]),
        lambda: site.publisher.delete("raw/a"),
    )
    assert site.keys() == {*many}
    one, all_slots = {slot_of("raw/a", SLOTS)}, {slot_of(key, SLOTS) for key in many}
    assert site.batches[1:] == [(one, False), (all_slots, False), (one, False)]


def test_process_continues_where_another_ended(site: Site) -> None:
    """Changes between two processes must be ingested, and no object may be ingested again."""
    site.run(lambda: site.publisher.put("raw/a", ROW))
    site.publisher.put("raw/b", ROW)
    site.batches.clear()
    site.run()
    site.run()
    assert site.batches == [({slot_of("raw/b", SLOTS)}, False)]
    assert site.keys() == {"raw/a", "raw/b"}


def test_failed_slot_is_requested_again(site: Site) -> None:
    """The entries of the failed slot have not changed, but its signal moves. So the keyspace must be listed, and the
    slot must be requested.
    """
    slot = slot_of("raw/a", SLOTS)

    def again() -> None:
        site.broken = None
        site.later.pop()()

    def fail() -> None:
        site.broken = slot
        site.publisher.publish([Put(key="raw/a", body=ROW), Put(key="raw/b", body=ROW)])

    site.run(fail, again)
    assert site.keys() == {"raw/a", "raw/b"}


def test_unqueued_writer_causes_a_listing(site: Site) -> None:
    """The root signal of an unqueued writer must cause a LIST of the signals, and then of the bucket, even if the slot
    has an entry.
    """

    def both() -> None:
        site.publisher.put("raw/a", ROW)
        site.plain.put("raw/b", ROW)

    site.run(both)
    assert site.keys() == {"raw/a", "raw/b"}
    assert site.batches[1:] == [({slot_of("raw/a", SLOTS), slot_of("raw/b", SLOTS)}, True)]


def test_new_topic_causes_one_comparison_of_everything(site: Site) -> None:
    """Entries of the former topic may be lost, so all objects must be compared once. After that, batches must
    read only the objects that entries name.
    """

    def recreate() -> None:
        site.publisher.put("raw/a", ROW)
        site.queue.topics.delete("orders")
        site.publisher.put("raw/b", ROW)
        site.topic()
        site.publisher.put("raw/c", ROW)

    site.run(recreate, lambda: None, lambda: site.publisher.put("raw/d", ROW))
    assert site.keys() == {f"raw/{name}" for name in "abcd"}
    assert (len(site.batches[-2][0]), site.batches[-2][1]) == (SLOTS, True)
    assert site.batches[-1] == ({slot_of("raw/d", SLOTS)}, False)


def test_source_and_topic_must_have_the_same_signals(site: Site) -> None:
    """A source that expects signals of slots would wait forever if its topic's writers moved only the root signal."""
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
    with pytest.raises(UsageError, match="has the setting signals: slots, but its source has root"):
        site.ingest().run(Event(), every_seconds=None)


def test_topic_made_while_no_process_runs_causes_a_comparison(site: Site) -> None:
    """An inlet ignores changes while there is no topic. Otherwise these changes would wait for another announcement, or
    for the sweep.
    """
    site.run(lambda: site.publisher.put("raw/a", ROW))
    site.queue.topics.delete("orders", served=True)
    site.store.put("raw/b", ROW)
    site.topic()
    for _ in range(2):
        site.ingest().run(Event(), every_seconds=None)
    assert site.keys() == {"raw/a", "raw/b"}
    assert [len(slots) for slots, listed in site.batches if listed] == [SLOTS, SLOTS]


def test_topic_of_a_source_sends_nothing_to_an_endpoint(site: Site) -> None:
    """Each entry goes to one consumer, so the source would miss the changes that the endpoint gets."""
    endpoint = Endpoint(url="https://hooks.example.com/s3", secret_env="S3NOTIFY_PUSH_A").dumps()
    delivered = replace(site.queue.topics.get("orders").settings, endpoint=endpoint)
    site.queue.topics.update("orders", delivered)
    with pytest.raises(UsageError, match="remove the endpoint"):
        site.ingest().run(Event(), every_seconds=None)
    assert "remove the endpoint" in topic_problem(site.source.location)
    site.queue.topics.update("orders", replace(delivered, endpoint=""))
    site.run(lambda: site.publisher.put("raw/a", ROW))
    with pytest.raises(UsageError, match="create another topic for the endpoint"):
        site.queue.topics.update("orders", delivered)
