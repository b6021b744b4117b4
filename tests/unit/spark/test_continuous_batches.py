"""The batches of `ContinuousIngest`, on a real S3 server, without Spark."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.explain import explain
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, UnavailableError
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.spark.continuous import SWEEP_SECONDS, ContinuousIngest
from s3notify_platform.spark.failures import TransformError
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.table.known import KNOWN
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError
from tests.support.ingest_site import POISON, Rests, Site, Works, running_site
from tests.support.ingested import rows_of
from tests.support.servers import S3Server

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("briefly_known")]


@pytest.fixture
def site(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with running_site(ministack.config(ministack.make_bucket()), monkeypatch) as site:
        yield site


KEYS = [f"raw/{number}" for number in range(80)]


def test_slot_that_fails_in_every_run_does_not_block_other_slots(site: Site) -> None:
    """The first batch must commit nineteen of twenty slots. The next batch must ingest the failed slot separately."""
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
    """The key of an object, the key's slot, and the keys of eight other objects of the slot. The proxy is in front of
    all these objects.
    """
    bad, slot = "raw/bad", slot_of("raw/bad", 20)
    good = sorted(key for n in range(300) if slot_of(key := f"raw/{n}", 20) == slot)[:8]
    for key in (bad, *good):
        site.store.put(key, b'{"a":1}\n')
    through = replace(site.source.input.bucket, endpoint_url=proxy.url)
    site.source = replace(site.source, input=replace(site.source.input, bucket=through))
    return bad, slot, good


def once(site: Site, clock: Clock = SYSTEM_CLOCK) -> ContinuousIngest:
    """An ingest like the ingest of a process with `--once`, with three attempts for each slot."""
    continuous = replace(site.ingest(Works()), settings=BatchSettings(max_attempts=3), clock=clock)
    continuous.run(Event(), every_seconds=None)
    return continuous


def rows(site: Site, slot: Slot) -> list[str]:
    return sorted(row["_key"] for row in rows_of(site.source) if row["_slot"] == slot)


def test_attempts_are_counted_over_several_processes(site: Site, ministack: S3Server) -> None:
    """Each attempt is in another process. The refused object must go to quarantine, and the slot's other objects to the
    table.
    """
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
        assert site.planned == [], "the slot is not requested any more"


def test_object_with_a_denied_encryption_key_does_not_block_others(site: Site, ministack: S3Server) -> None:
    """The first process must commit the slot's other objects. The object must be committed after its encryption key is
    allowed.
    """
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


def test_failure_of_a_whole_run_is_reported_with_its_traceback(site: Site) -> None:
    """The traceback must be reported once. The slot's next commit must remove the traceback."""
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


def test_another_machine_continues_where_the_first_machine_ended(site: Site) -> None:
    """At first, all slots must be compared. Later, only changed slots must be compared, even after a restart on another
    machine. A sweep must compare all slots again.
    """
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


def test_a_process_that_keeps_running_compares_all_objects_each_day(site: Site) -> None:
    """Otherwise an unannounced change would never be found, since there is no other sweep without Dagster."""
    clock = HandClock()
    days = Rests(4, lambda _: clock.sleep(SWEEP_SECONDS / 2))
    site.publisher.put("raw/1", b'{"a":1}\n')
    every = {*site.source.location.all_slots()}
    site.before_plan = [lambda: site.store.put("raw/unannounced", b'{"a":3}\n'), lambda: None]
    replace(site.ingest(), clock=clock).run(days, every_seconds=1.0)
    assert site.planned == [every, every]
    assert slot_of("raw/unannounced", 20) in site.committed()


def test_a_process_that_is_restarted_each_hour_compares_all_objects_each_day(site: Site) -> None:
    """Otherwise restarts would delay the sweep for ever, and an unannounced change would never be found."""
    clock = HandClock()
    site.publisher.put("raw/1", b'{"a":1}\n')
    every = {*site.source.location.all_slots()}
    site.before_plan = [lambda: site.store.put("raw/unannounced", b'{"a":3}\n'), lambda: None]
    for _ in range(25):
        replace(site.ingest(), clock=clock).run(Rests(2, lambda _: None), every_seconds=1.0)
        clock.sleep(3600)
    assert site.planned == [every, every]
    assert slot_of("raw/unannounced", 20) in site.committed()


def test_two_processes_compare_all_objects_once_each_day(site: Site) -> None:
    """Otherwise each further machine would pay for a listing of its own. The second process polls during the sweep of
    the first one, since the sweep of both is due at the same time.
    """
    clock, begun, sweeping, polled = HandClock(), Event(), Event(), Event()
    site.publisher.put("raw/1", b'{"a":1}\n')
    every = {*site.source.location.all_slots()}
    replace(site.ingest(), clock=clock).run(Event(), every_seconds=None)

    def second(polls: int) -> None:
        if polls == 1:
            begun.set()
            assert sweeping.wait(60)
        else:
            polled.set()

    def during_the_sweep() -> None:
        sweeping.set()
        assert polled.wait(60)

    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(replace(site.ingest(), clock=clock).run, Rests(2, second), every_seconds=1.0)
        assert begun.wait(60)
        clock.sleep(SWEEP_SECONDS)
        site.before_plan = [during_the_sweep]
        replace(site.ingest(), clock=clock).run(Rests(1), every_seconds=1.0)
        running.result()
    assert site.planned == [every, every], "the first batch, and one sweep"


def test_the_daily_sweep_does_not_accept_the_loss_of_a_table(site: Site) -> None:
    """Only a person may begin a new table, because a new table would hide that the committed table is lost."""
    clock = HandClock()

    def days(_: int) -> None:
        clock.sleep(SWEEP_SECONDS)
        for prefix in (f"{site.source.location.platform_prefix}table/", KNOWN):
            for lost in site.store.list(prefix).objects:
                site.store.delete(lost.key)

    site.publisher.put("raw/1", b'{"a":1}\n')
    with pytest.raises(CorruptError, match="no table is left"):
        replace(site.ingest(), clock=clock).run(Rests(3, days), every_seconds=1.0)


def test_signals_count_as_seen_only_after_the_commit(site: Site) -> None:
    """Otherwise a process that ends between poll and commit would lose the change."""
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


def test_ingest_waits_during_an_outage(site: Site) -> None:
    """The outage must be reported. Changes that were found before the outage must not be lost."""
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.fails = [UnavailableError("no answer"), UnavailableError("no answer")]
    site.ingest().run(Rests(3), every_seconds=0.1)
    assert [text.partition(": ")[2] for text in site.said if text.startswith("retrying in")] == [
        "no answer"
    ] * 2
    assert site.committed() == {slot_of("raw/1", 20)}


def test_listings_have_a_minimum_interval(site: Site) -> None:
    """Without a topic each batch lists the bucket. Changes that come before the interval ends must wait for the next
    listing.
    """

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


def test_signal_without_entries_causes_one_batch(site: Site) -> None:
    """The LIST of the signals shows that the writer does not queue. So one batch must list the bucket."""
    source = site.source
    settings = TopicSettings(slots=20, bucket=source.input.bucket.bucket, prefix=source.input.prefix)
    source.location.queue().topics.create(source.name, settings)
    site.ingest().run(Event(), every_seconds=None)
    site.planned.clear()
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.ingest().run(Event(), every_seconds=None)
    assert site.planned == [{slot_of("raw/1", 20)}]
    assert site.committed() >= {slot_of("raw/1", 20)}


def test_ingest_ends_if_spark_does_not_work(site: Site) -> None:
    """If the JVM is dead, every slot fails in this process. If the process did not end, its supervisor would not start
    a new process, and no object would be ingested any more.
    """

    class Gone:
        def range(self, _: int) -> Any:
            raise Py4JError("Java is gone")

    site.poisoned = True
    site.publisher.put("raw/1", b'{"a":1}\n')
    with pytest.raises(Py4JError, match="Java is gone"):
        site.ingest(Gone()).run(Rests(5), every_seconds=0.1)
    assert [*RescanBacklog(site.source.location.records()).read().slots] == [POISON], (
        "the next process requests the slots again"
    )


def test_process_ingests_the_rescan_backlog_of_another_process(site: Site) -> None:
    """The slots in the rescan backlog must be ingested without a signal."""
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.ingest().run(Event(), every_seconds=None)
    site.planned.clear()
    RescanBacklog(site.source.location.records()).add([Slot(3)])
    site.ingest().run(Event(), every_seconds=None)
    assert site.planned == [{Slot(3)}]


def test_ingest_with_once_ends_when_everything_is_ingested(site: Site) -> None:
    """One call must make two batches. The second batch must list the bucket, and find the change that its writer did
    not queue.
    """
    queue = site.source.location.queue()
    queue.topics.create("orders", TopicSettings(slots=20, shards=1))
    site.ingest().run(Event(), every_seconds=None)
    site.publisher.put("raw/1", b'{"a":1}\n')
    site.ingest().run(Event(), every_seconds=None)
    assert site.committed() == {slot_of("raw/1", 20)}


def test_deletion_of_the_topic_causes_a_listing(site: Site) -> None:
    """After its deletion, a topic has no entries that say what has changed. Without a listing, changes would be
    missed.
    """
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
"""A batch writes these kinds of objects, in this order. Each text is a part of the keys of one kind."""


@contextmanager
def killed_before(part: str) -> Iterator[None]:
    """Ends the process before it writes an object whose key contains `part`. The process ends only after it has written
    an object whose key contains the preceding part of `ORDER`.
    """
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
def test_killed_batch_is_completed_by_the_next_process(site: Site, part: str) -> None:
    """A batch changes the version, `known`, the entries and the backlog, in this order. After a kill before one of
    these steps, the next process must do this step and the later steps.
    """
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
