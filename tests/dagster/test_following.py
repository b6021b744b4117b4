"""Batches that read the queue. Some changes have no entry, and some entries belong to no new change."""

from collections.abc import Callable

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.explain import explain
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.partitions import BATCH_TAG
from s3notify_platform.orchestration.sensor_views import sensor_view
from s3notify_platform.protocols.keyspace import Delete, Publisher, Put
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue
from s3notify_platform.table.reread import backfill
from tests.contracts.fault_proxy import FaultProxy
from tests.support.cursors import store_cursor
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.queued_site import of_bucket, pending
from tests.support.servers import S3Server
from tests.support.site import Site


def test_repeated_late_and_reordered_entries_are_harmless(site: Site) -> None:
    """An entry only names the key, and the object is read from the bucket. If a batch relied on the operation
    of a late entry, the batch would remove the rows of an object that still exists. If late entries stayed,
    they would fill the topic.
    """
    site.write(3, 5)
    site.settle()
    source, queue = site.io.source, site.io.clients.queue
    bucket = source.input.bucket.bucket
    late = [
        Event(key=site.key(3), op="delete", bucket=bucket),
        Event(key=site.key(3), bucket=bucket, etag="0" * 32, size=1, writer="long ago"),
        Event(key=site.key(3), bucket=bucket),
        Event(key=site.key(5), bucket=bucket, etag="0" * 32, size=1, writer="long ago"),
        Event(key=site.key(9), bucket=bucket),
        Event(key="elsewhere/x", bucket=bucket),
    ]
    for event in late:
        queue.push(site.name, event)
    publisher = Publisher(site.store, prefix=source.location.keyspace_prefix, slots=16, queued=True)
    publisher.signal([event.key for event in late])
    site.settle()
    assert site.rows() == {3: [3], 5: [5]}
    assert pending(site) == []


@pytest.mark.thorough
def test_changes_of_an_unqueued_writer_are_found_by_listings(watched: Site, proxy: FaultProxy) -> None:
    """An unqueued writer adds no entry to the topic, so the table would miss its changes without a listing. If each
    slot needed its own LIST, one batch would list the bucket several times.
    """
    site = watched
    site.write_unqueued(3, 4)
    site.settle()
    assert site.rows() == {3: [3], 4: [4]}
    assert of_bucket(site, proxy.answered).count("LIST") == 1
    site.write_unqueued(3, body=site.line(30))
    site.write(3, number=1, body=site.line(31))
    site.settle()
    assert {slot: sorted(rows) for slot, rows in site.rows().items()} == {3: [30, 31], 4: [4]}
    assert site.io.clients.backlog.read().slots == {}


@pytest.mark.thorough
def test_an_unqueued_signal_in_a_slot_with_entries_is_seen(site: Site) -> None:
    """If a queued and an unqueued writer change the slot, the entry must be read, and the slot must be in the rescan
    backlog.
    """
    site.settle()
    site.write(3, number=1, body=site.line(31))
    site.write_unqueued(3)
    site.settle()
    assert {slot: sorted(rows) for slot, rows in site.rows().items()} == {3: [3, 31]}


def test_a_signal_without_entries_leads_to_one_listing_of_the_bucket(
    watched: Site, proxy: FaultProxy
) -> None:
    """`explain` must report the listing before the run and during the run."""
    site, key = watched, watched.key(3)
    source = site.io.source

    def said() -> tuple[str, str]:
        store_cursor(site, site.cursor or "")
        verdict = explain(source, key, sensor=sensor_view(site.instance, source, key)).verdict
        return verdict.kind, verdict.text

    site.write_silently(3)
    assert said()[0] == "unseen"
    source.location.slot_signals().signal([key], queued=())
    kind, text = said()
    assert (kind, "a batch that lists the slot finds the object" in text) == ("signalled", True)
    proxy.answered.clear()
    (request,) = site.tick()
    kind, text = said()
    assert (kind, f"in batch {request.tags[BATCH_TAG]}" in text) == ("in_batch", True)
    assert site.launch(request).success
    assert said()[0] == "committed"
    assert site.rows() == {3: [3]}
    assert of_bucket(site, proxy.answered).count("LIST") == 1
    for _ in range(3):
        assert site.tick() == []
    assert site.io.clients.backlog.read().slots == {}


@pytest.mark.thorough
def test_the_next_listing_waits_for_list_seconds(site_of: Callable[..., Site]) -> None:
    """Until then, each tick must say why it requests nothing."""
    site = site_of(list_seconds=3600)
    site.write(5)
    site.settle()
    site.write_unqueued(3)
    result = site.evaluate()
    assert result.run_requests == []
    assert "the next listing is due in" in (result.skip_message or "")


@pytest.mark.thorough
def test_entries_of_a_dead_run_are_removed_by_the_next_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot must be requested again, and must be found unchanged."""
    site.settle()
    site.write(3)
    with monkeypatch.context() as patched:
        patched.setattr(
            NotificationQueue, "remove", lambda *_: (_ for _ in ()).throw(UnavailableError("gone"))
        )
        (request,) = site.tick()
        assert not site.launch(request).success
    assert pending(site) == [site.key(3)]
    site.settle()
    assert pending(site) == []
    assert site.rows() == {3: [3]}


@pytest.mark.thorough
def test_entries_of_a_failed_slot_stay(site_of: Callable[..., Site]) -> None:
    """Entries must stay until their slot is committed; entries of other slots are removed."""
    site = site_of(transform="tests.support.transforms.unlucky", backoff_seconds=3600.0)
    site.settle()
    site.write(12, 13)
    (request,) = site.tick()
    assert not site.launch(request).success
    assert pending(site) == [site.key(13)]


@pytest.mark.thorough
def test_a_lost_topic_means_one_more_listing(watched: Site, proxy: FaultProxy) -> None:
    """Changes in the lost topic must be found by comparing everything."""
    site = watched
    site.write(3, 5)
    site.io.clients.queue.topics.delete(site.name)
    site.settle()
    assert site.rows() == {3: [3], 5: [5]}
    assert of_bucket(site, proxy.answered).count("LIST") == 1


def test_a_topic_of_another_deployment_is_refused_by_the_sensor(site: Site) -> None:
    """The message must name the topic and the setting to change, and no entry may be taken."""
    queue = site.io.clients.queue
    assert site.tick() == []
    site.write(3)
    settings = queue.topics.get(site.name).settings
    queue.topics.update(site.name, settings, tables=("prod",))
    with pytest.raises(UsageError, match=rf"topic {site.name!r} serves table prod.*queue_prefix"):
        site.tick()
    assert pending(site) == [site.key(3)]
    queue.topics.update(site.name, settings, tables=())
    site.settle()
    assert site.rows() == {3: [3]}
    assert queue.topics.get(site.name).tables == (site.io.source.open_table().id,)


@pytest.mark.thorough
def test_the_whole_source_is_listed_only_once(site_of: Callable[..., Site]) -> None:
    """The write of one object begins before the topic is created, and ends after the listing. Without an entry for this
    write, only another listing of the whole source would find the object.
    """
    site = site_of()
    site.write_silently(3)
    assert not site.io.clients.queue.topics.all()

    def meanwhile(call: Call) -> Fault:
        if (call.method, call.key) == ("put", site.key(5)):
            site.settle()
            assert site.rows() == {3: [3]}, "listed"
        return Fault.NONE

    source = site.io.source
    unqueued = Publisher(
        FaultyStore(site.store, meanwhile),
        prefix=source.location.keyspace_prefix,
        slots=source.location.slots,
    )
    writer = QueuedPublisher(unqueued, site.io.clients.queue, bucket=source.input.bucket.bucket)
    writer.put(site.key(5), site.line(5))
    assert pending(site) == [site.key(5)]
    (request,) = site.tick()
    assert site.launch(request).success
    assert site.rows() == {3: [3], 5: [5]}


@pytest.mark.thorough
@pytest.mark.parametrize("again", [False, True], ids=["the first listing", "after the topic was lost"])
def test_a_listing_of_everything_leaves_no_entry(site: Site, again: bool) -> None:
    """Entries of objects that were deleted again, or that changed nothing, must not stay forever."""
    if again:
        site.write(3)
        site.settle()
        site.io.clients.queue.topics.delete(site.name)
        site.io.clients.ensure_topic(None)
    else:
        assert site.tick() == []
    site.write(3)
    for key in (site.key(5), site.key(5, 1)):
        site.publish([Put(key=key, body=site.line(5))])
        site.publish([Delete(key=key)])
    assert len(pending(site)) == 5
    site.settle()
    assert pending(site) == []
    assert site.rows() == {3: [3]}
    assert site.grid()["materialized"] == {3}


@pytest.mark.thorough
def test_two_sources_on_one_bucket_both_get_every_change(site_of: Callable[..., Site]) -> None:
    """Otherwise a source would take entries of the other source. Each of the two components has its own topic and
    table.
    """
    first = site_of(name="orders")
    second = site_of(
        name="copy", bucket=first.component.bucket, keyspace_prefix=first.io.source.location.keyspace_prefix
    )
    first.settle()
    second.settle()
    first.publish([Put(key=first.key(3), body=first.line(3)), Put(key=first.key(4), body=first.line(4))])
    first.publish([Delete(key=first.key(4))])
    for site in (first, second):
        site.settle()
        assert site.rows() == {3: [3]}
        assert pending(site) == []


@pytest.mark.thorough
def test_a_backfill_reads_the_requested_slots_again(watched: Site) -> None:
    """The next batch must read all objects of these slots once, without a listing."""
    site = watched
    site.write(3, 7)
    site.write(3, number=1, body=site.line(31))
    site.settle()
    site.io.settle_commit_mode()
    source = site.io.source
    found = backfill(source.table(), [Slot(3)], source.location.slot_signals())
    assert (found.slots, found.objects) == ((3,), 2)
    (request,) = site.tick()
    assert site.slots_of(request) == [3]
    assert site.launch(request).success
    assert site.metadata(3)["objects_read"] == 2
    assert site.batch()["batch_unannounced"] == 0
    assert {slot: sorted(rows) for slot, rows in site.rows().items()} == {3: [3, 31], 7: [7]}
    assert site.tick() == []


@pytest.mark.thorough
def test_the_queue_is_plotted_by_topic(watched: Site) -> None:
    """The number of waiting changes must be numeric metadata, and must not be reported twice."""
    site = watched

    def observed() -> dict[str, object]:
        events = [e for e in site.upkeep().asset_events if e.asset_key == dg.AssetKey("orders_queue")]
        return {n: v.value for event in events for n, v in event.metadata.items()}

    site.write(3, 7)
    found = observed()
    assert (found["orders/depth"], found["orders/capacity"], found["orders/dead"]) == (2, 10_000, 0)
    site.settle()
    assert observed()["orders/depth"] == 0
    assert observed() == {}


@pytest.mark.thorough
def test_the_next_batch_continues_a_run_that_had_too_little_time(
    spark: SparkSession, ministack: S3Server, instance: dg.DagsterInstance
) -> None:
    """A run without enough time commits only a part of the object. Then the slot must be requested again, and its entry
    must stay until the whole object is committed.
    """
    site = Site.of(ministack, instance, split_bytes=1000, max_bytes=1000, max_seconds=0)
    site.settle()
    site.write(3, body=b"".join(map(site.line, range(100))))
    for request in site.tick():
        site.launch(request)
    assert 0 < len(site.rows()[3]) < 100
    assert pending(site) == [site.key(3)]
    assert not site.metadata(3)["read_to_the_end"]
    site.settle()
    assert site.rows() == {3: [*range(100)]}
    assert pending(site) == []
    assert site.metadata(3)["read_to_the_end"]
    site.write_unqueued(5, body=b"".join(map(site.line, range(100))))
    site.settle()
    assert site.rows()[5] == [*range(100)]
