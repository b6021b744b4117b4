"""What `ContinuousIngest` takes in, batch by batch: on a real S3 server, without Spark."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.values.plan import Plan
from s3notify_platform.explain import explain
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, UnavailableError
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.spark.failures import TransformError
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.table.snapshot import Snapshot
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError
from tests.support.ingested import rows_of
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import source_of

pytestmark = [pytest.mark.spark, pytest.mark.server]


POISON = Slot(7)


@dataclass(slots=True, kw_only=True)
class Site:
    """A source of 20 slots, and an ingest of it without Spark."""

    source: Source
    store: S3ObjectStore
    planned: list[set[int]] = field(default_factory=list)
    """Slots of each plan."""
    fails: list[Exception] = field(default_factory=list)
    """What the next batches raise."""
    before_plan: list[Callable[[], object]] = field(default_factory=list)
    """What happens right before the next plans."""
    poisoned: bool = False
    said: list[str] = field(default_factory=list)

    @property
    def publisher(self) -> Publisher:
        location = self.source.location
        return Publisher(self.store, prefix=location.keyspace_prefix, slots=location.slots)

    def ingest(self, spark: Any = None) -> ContinuousIngest:
        return ContinuousIngest(
            spark=spark, source=self.source, later=lambda *_: None, progress=self.said.append, list_seconds=7
        )

    def committed(self) -> set[Slot]:
        found = self.newest()
        slots = found.manifest.slots.items() if found else ()
        return {slot for slot, facts in slots if facts.generation}

    def newest(self) -> Snapshot | None:
        found = self.source.table().newest()
        return found if isinstance(found, Snapshot) else None

    def failing(self, slot: Slot) -> set[str]:
        found = self.newest()
        states = self.source.table().states
        return {*states.failing(found.manifest.states, [slot]).get(slot, {})} if found else set()


class Works:
    """A Spark session, as far as it is asked whether it works."""

    def range(self, number: int) -> "Works":
        return self

    def count(self) -> int:
        return 1


class Rests(Event):
    """Is set once it was waited for so often; knows how long, and calls a function each time."""

    def __init__(self, most: int, then: Callable[[int], object] = lambda _: None) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._most = most
        self._then = then

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        self._then(len(self.seconds))
        if len(self.seconds) >= self._most:
            self.set()
        return self.is_set()


@pytest.fixture
def site(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    config = ministack.config(ministack.make_bucket())
    source = source_of(
        bucket=config,
        platform=config,
        name="orders",
        prefix="raw/",
        format="jsonl",
        slots=20,
        commit="native",
    )
    site = Site(source=source, store=S3ObjectStore(config))

    class Jobs(LocalJobs):
        def plan(self, slots: Iterable[Slot], *base: Any, **arguments: Any) -> Plan:
            site.planned.append({*slots})
            if site.before_plan:
                site.before_plan.pop()()
            if site.poisoned and POISON in site.planned[-1]:
                raise CorruptError("a run that has to do with it ends")
            return super().plan(site.planned[-1], *base, **arguments)

    def ingest(_spark: Any, source: Source, *, clock: Clock, **_: Any) -> Ingest:
        if site.fails:
            raise site.fails.pop()
        return Ingest(jobs=Jobs(source=source), source=source, clock=clock)

    monkeypatch.setattr("s3notify_platform.spark.continuous.spark_ingest", ingest)
    yield site
    site.store.close()


KEYS = [f"raw/{number}" for number in range(80)]


def test_a_slot_that_ends_every_run_keeps_no_other(site: Site) -> None:
    """Of twenty, nineteen are committed by the same batch; the next one takes it in apart from them."""
    for key in KEYS:
        site.store.put(key, b'{"a":1}\n')
    site.poisoned, slots = True, site.source.location.all_slots()
    taking = site.ingest()
    result = taking.take(dict.fromkeys(slots), batch="b1")
    assert [slot for slot, each in result.slots.items() if not each.ok] == [POISON]
    assert site.committed() == {slot_of(key, 20) for key in KEYS} - {POISON}
    assert set(taking.failing) == {POISON}
    assert len(site.planned) <= 2 * 5 + 1
    site.planned.clear()
    taking.take(dict.fromkeys(slots), batch="b2")
    assert site.planned == [{*slots} - {POISON}, {POISON}]


def with_eight_neighbours(site: Site, proxy: FaultProxy) -> tuple[str, Slot, list[str]]:
    """A key, its slot, and eight other objects of that, all read through the proxy."""
    bad, slot = "raw/bad", slot_of("raw/bad", 20)
    good = sorted(key for n in range(300) if slot_of(key := f"raw/{n}", 20) == slot)[:8]
    for key in (bad, *good):
        site.store.put(key, b'{"a":1}\n')
    through = replace(site.source.input.bucket, endpoint_url=proxy.url)
    site.source = replace(site.source, input=replace(site.source.input, bucket=through))
    return bad, slot, good


def once(site: Site, clock: Clock = SYSTEM_CLOCK) -> ContinuousIngest:
    """As a process of `--once`, with three attempts."""
    continuous = replace(site.ingest(Works()), settings=BatchSettings(max_attempts=3), clock=clock)
    continuous.run(Event(), every_seconds=None)
    return continuous


def rows(site: Site, slot: Slot) -> list[str]:
    return sorted(row["_key"] for row in rows_of(site.source) if row["_slot"] == slot)


def test_attempts_are_kept_with_the_backlog(site: Site, ministack: S3Server) -> None:
    """Of processes that end: one refused key keeps no other, and is in quarantine in the end."""
    with FaultProxy(ministack.endpoint_url) as proxy:
        bad, slot, good = with_eight_neighbours(site, proxy)
        proxy.answers[bad] = (403, "AccessDenied", b"Access Denied")
        for attempt in (1, 2):
            assert once(site).failing[slot].attempts == attempt
            assert rows(site, slot) == good
        failed = RescanBacklog(site.source.location.records()).read().failed
        assert (failed[slot].attempts, "AccessDenied" in failed[slot].reason) == (2, True)
        found = explain(site.source, bad, objects=site.store)
        assert (found.verdict.kind, found.failing) == ("failing", failed[slot])
        assert not once(site).failing
        assert site.failing(slot) == {bad}
        rescans = RescanBacklog(site.source.location.records()).read()
        assert (rescans.failed, rescans.slots) == ({}, {})
        site.planned.clear()
        assert not once(site).failing
        assert site.planned == [], "it is not asked for any more"


def test_an_object_that_the_store_cannot_give_is_no_poison(site: Site, ministack: S3Server) -> None:
    """Its encryption key is denied: its eight neighbours come in with the first process, it whenever that ends."""
    clock = HandClock()
    with FaultProxy(ministack.endpoint_url) as proxy:
        bad, slot, good = with_eight_neighbours(site, proxy)
        proxy.answers[bad] = (
            403,
            "AccessDenied",
            b"not authorized to perform: kms:Decrypt on resource: key/2",
        )
        for attempt in range(1, 6):
            assert once(site, clock).failing[slot].attempts == attempt
            assert rows(site, slot) == good
            assert site.failing(slot) == set()
        proxy.answers.clear()
        assert not once(site, clock).failing
        assert rows(site, slot) == sorted([bad, *good])


def test_a_failure_of_a_whole_run_is_explained(site: Site) -> None:
    """With its traceback, which is said once, and goes with the slot's next commit."""
    for key in KEYS:
        site.store.put(key, b'{"a":1}\n')
    try:
        raise KeyError("no such customer")
    except KeyError as error:
        raised = TransformError("KeyError: 'no such customer'")
        raised.__cause__ = error
    site.fails = [raised] * 100
    site.ingest(Works()).run(Event(), every_seconds=None)
    traces = [text for text in site.said if text.startswith("Traceback")]
    assert len(traces) < len(KEYS)
    found = explain(site.source, KEYS[0])
    assert found.failing is not None
    assert found.failing.reason == "KeyError: 'no such customer'"
    traced = [key for key in KEYS if explain(site.source, key).trace]
    assert traced
    lines = explain(site.source, traced[0]).lines
    assert "    KeyError: 'no such customer'" in lines
    site.fails = []
    site.ingest().run(Event(), every_seconds=None)
    assert explain(site.source, traced[0]).failing is None
    assert site.committed() == {slot_of(key, 20) for key in KEYS}


def test_any_machine_goes_on_where_another_was(site: Site) -> None:
    """All slots at first; then, also after a restart, those that changed; and with a sweep all again."""
    site.publisher.put("raw/1", b'{"a":1}\n')
    every = {*site.source.location.all_slots()}
    site.ingest().run(Event(), every_seconds=None)
    assert site.planned == [every]
    site.ingest().run(Event(), every_seconds=None)
    assert site.planned == [every], "nothing changed"
    site.publisher.put("raw/2", b'{"a":2}\n')
    site.store.put("raw/unannounced", b'{"a":3}\n')
    site.ingest().run(Event(), every_seconds=None)
    assert site.planned == [every, {slot_of("raw/2", 20)}]
    site.ingest().run(Event(), every_seconds=None, sweep=True)
    assert site.planned[2:] == [every]
    assert site.committed() == {slot_of(f"raw/{name}", 20) for name in (1, 2, "unannounced")}


def test_what_was_seen_counts_once_it_is_committed(site: Site) -> None:
    """A process that ends between the poll and the commit has seen nothing."""
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.fails = [UnavailableError("no answer")]
    with pytest.raises(UnavailableError):
        site.ingest().run(Event(), every_seconds=None)
    site.ingest().run(Event(), every_seconds=None)
    assert site.committed() == {slot_of("raw/1", 20)}
    site.publisher.put("raw/2", b'{"a":1}\n')
    site.fails = [UnavailableError("no answer")]
    with pytest.raises(UnavailableError):
        site.ingest().run(Event(), every_seconds=None)
    site.ingest().run(Event(), every_seconds=None)
    assert site.committed() == {slot_of("raw/1", 20), slot_of("raw/2", 20)}


def test_an_outage_is_waited_out(site: Site) -> None:
    """And said; what was found before it is not forgotten."""
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.fails = [UnavailableError("no answer"), UnavailableError("no answer")]
    site.ingest().run(Rests(3), every_seconds=0.1)
    assert [text.partition(": ")[2] for text in site.said if text.startswith("retrying in")] == [
        "no answer"
    ] * 2
    assert site.committed() == {slot_of("raw/1", 20)}


def test_listings_are_seconds_apart(site: Site) -> None:
    """Without a topic each batch lists the bucket: what changes meanwhile waits for the next one."""

    def change(rests: int) -> None:
        if rests <= 2:
            site.publisher.put(f"raw/{rests}", b'{"a":1}\n')

    rests = Rests(2, change)
    site.publisher.put("raw/0", b'{"a":1}\n')
    site.ingest().run(rests, every_seconds=0.1)
    assert len(site.planned) == 1
    assert rests.seconds[0] == 0.1
    assert 5 < rests.seconds[1] <= 7, "until the next listing is due"
    site.ingest().run(Event(), every_seconds=None)
    assert site.committed() == {slot_of(f"raw/{n}", 20) for n in range(3)}, "at once by the next process"


def test_a_signal_without_entries_leads_to_one_batch(site: Site) -> None:
    """It lists: the LIST of the signals says that its writer does not queue."""
    source = site.source
    settings = TopicSettings(slots=20, bucket=source.input.bucket.bucket, prefix=source.input.prefix)
    source.location.queue().topics.create(source.name, settings)
    site.ingest().run(Event(), every_seconds=None)
    site.planned.clear()
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.ingest().run(Event(), every_seconds=None)
    assert site.planned == [{slot_of("raw/1", 20)}]
    assert site.committed() >= {slot_of("raw/1", 20)}


def test_it_ends_once_spark_does_not_work(site: Site) -> None:
    """A supervisor starts it again: in a process whose Java has died, every slot would fail for ever."""

    class Gone:
        def range(self, _: int) -> Any:
            raise Py4JError("Java is gone")

    site.poisoned = True
    site.publisher.put("raw/1", b'{"a":1}\n')
    with pytest.raises(Py4JError, match="Java is gone"):
        site.ingest(Gone()).run(Rests(5), every_seconds=0.1)
    assert [*RescanBacklog(site.source.location.records()).read().slots] == [POISON], (
        "so the next one asks again"
    )


def test_a_process_takes_up_what_another_has_left(site: Site) -> None:
    """Its rescan backlog, without a signal."""
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.ingest().run(Event(), every_seconds=None)
    site.planned.clear()
    RescanBacklog(site.source.location.records()).add([Slot(3)])
    site.ingest().run(Event(), every_seconds=None)
    assert site.planned == [{Slot(3)}]


def test_once_ends_when_all_is_taken_in(site: Site) -> None:
    """A change that its writer did not queue is found by a second batch, which lists."""
    queue = site.source.location.queue()
    queue.topics.create("orders", TopicSettings(slots=20, shards=1))
    site.ingest().run(Event(), every_seconds=None)
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.ingest().run(Event(), every_seconds=None)
    assert site.committed() == {slot_of("raw/1", 20)}


def test_a_topic_that_is_deleted_meanwhile(site: Site) -> None:
    """Its entries cannot be followed any more: the next batch lists."""
    queue = site.source.location.queue()
    queue.topics.create("orders", TopicSettings(slots=20, shards=1))
    site.ingest().run(Event(), every_seconds=None)
    QueuedPublisher(
        Publisher(site.store, prefix=site.source.location.keyspace_prefix, slots=20, queued=True),
        queue,
        bucket=site.source.input.bucket.bucket,
    ).put("raw/1", b'{"a":1}\n')
    site.before_plan = [lambda: queue.topics.delete("orders")]
    site.ingest().run(Rests(3), every_seconds=0.1)
    assert any("was created again meanwhile" in text for text in site.said)
    assert site.committed() == {slot_of("raw/1", 20)}


ORDER = ("table/_delta_log/", "_s3notify-known/", "queue/queue.", "enumerator/to_list")
"""Parts of the keys that are written for a batch, one after the other."""


@contextmanager
def killed_before(part: str) -> Iterator[None]:
    """Have the process end before it writes such an object, once it has written one of the part before."""
    before, written = ORDER[max(0, ORDER.index(part) - 1)], [ORDER[0]] if part == ORDER[0] else []

    def dying(apply: Callable[..., object]) -> Callable[..., object]:
        def call(store: FastObjectStore, key: str, *arguments: Any, **options: Any) -> object:
            if part in key and any(before in each for each in written):
                raise CrashedError(f"before {key}")
            written.append(key)
            return apply(store, key, *arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for method in ("put", "delete"):
            patch.setattr(FastObjectStore, method, dying(getattr(FastObjectStore, method)))
        yield


@pytest.mark.parametrize("part", ORDER)
def test_a_batch_is_committed_before_it_is_forgotten(site: Site, part: str) -> None:
    """Version, known, entries, backlog: killed before each of them, all that comes after it is still to be done."""
    location, slot = site.source.location, slot_of("raw/1", 20)
    queue, backlog = location.queue(), RescanBacklog(location.records())
    queue.topics.create("orders", TopicSettings(slots=20, shards=1, bucket=location.platform.bucket))
    site.ingest().run(Event(), every_seconds=None)
    unannounced = next(key for key in KEYS if key != "raw/1" and slot_of(key, 20) == slot)
    site.store.put(unannounced, b'{"a":2}\n')
    backlog.add([slot])
    signals = Publisher(site.store, prefix=location.keyspace_prefix, slots=20, queued=True)
    QueuedPublisher(signals, queue, bucket=location.platform.bucket).put("raw/1", b'{"a":1}\n')

    def done() -> tuple[bool, ...]:
        known, newest = location.known().read()[0], site.newest()
        assert known is not None
        assert newest is not None
        return (
            slot in site.committed(),
            slot in site.committed() and known.version == newest.version,
            not queue.entries("orders", [slot]),
            not backlog.read().slots,
        )

    assert done() == (False,) * 4
    with killed_before(part), pytest.raises(CrashedError):
        site.ingest().run(Event(), every_seconds=None)
    assert done() == tuple(each < ORDER.index(part) for each in range(4))
    site.ingest().run(Event(), every_seconds=None)
    assert done() == (True,) * 4
    assert sorted(row["a"] for row in rows_of(site.source) if row["_slot"] == slot) == [1, 2]
