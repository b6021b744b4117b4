"""The requests of a batch that reads the queue, and their order."""

import time
from dataclasses import replace
from urllib.parse import urlsplit

from s3notify_platform.engine.batch.heartbeats import HEARTBEATS
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import Event
from tests.contracts.fault_proxy import FaultProxy, in_sequence
from tests.support.queued_site import of_bucket, pending
from tests.support.site import Site


def test_a_batch_in_steady_state_lists_nothing(watched: Site, proxy: FaultProxy) -> None:
    """Creates, overwrites and deletes must be found by their entries, which are removed after the commit."""
    site = watched
    site.write(3, 7)
    site.settle()
    site.write(3, body=site.line(30))
    site.delete(7)
    site.write(9)
    site.settle()
    assert site.rows() == {3: [30], 9: [9]}
    assert "LIST" not in of_bucket(site, proxy.answered)
    assert pending(site) == []
    assert site.batch()["batch_found_by"] == "queue"


TOPICS, BEATS = "/queue/topics/", f"/{HEARTBEATS}/"
"""Processes repeat some requests after some time. The path of such a request contains one of these texts."""


def test_one_changed_object_costs_few_requests(watched: Site, proxy: FaultProxy) -> None:
    """More requests would cost more for each changed object, and more sequential requests would delay the
    object's rows.

    Heartbeats and a tick's reads of the topic are not counted, because their number depends on the machine's
    speed. On a busy machine, concurrent requests may look sequential. So the test measures two batches, and
    checks the smaller number of sequential requests.
    """
    site = watched
    site.write(3)
    site.settle()
    proxy.before = lambda *_: time.sleep(0.05)  # so that concurrent requests overlap
    found: list[list[tuple[int, int]]] = []

    def counted(*timed: str) -> None:
        sent = [each for each in proxy.answered if not any(part in each.path for part in timed)]
        found[-1].append((len(sent), in_sequence(sent)))
        proxy.answered.clear()

    for slot in (5, 7):
        found.append([])
        site.write(slot)
        proxy.answered.clear()
        (request,) = site.tick()
        counted(TOPICS, BEATS)
        assert site.launch(request).success
        counted(BEATS)
        assert site.tick() == []
        counted(TOPICS, BEATS)
    for (tick, _), (run, _), (last, _) in found:
        assert tick <= 6, found
        assert run <= 15, found
        assert last <= 3, found
    fewest = [min(sequence for _, sequence in step) for step in zip(*found, strict=True)]
    assert all(number <= limit for number, limit in zip(fewest, (4, 9, 3), strict=True)), found


def test_a_round_writes_in_a_crash_safe_order(watched: Site, proxy: FaultProxy) -> None:
    """A round first writes the version of the table, then the known record, then the queue, and then the ack chain. So
    all work that a crash interrupts is requested again.

    In another order, a crash would lose changes: no entry would name them, or nobody would look for them.
    """
    site = watched
    site.write(3, 7)
    (request,) = site.tick()
    proxy.answered.clear()
    assert site.launch(request).success
    places = {
        "/table/_delta_log/": "commit",
        "_s3notify-known/": "known",
        "/queue/queue.": "queue",
        "/records/ack/": "chain",
    }
    writes = [urlsplit(each.path).path for each in proxy.answered if each.method in ("PUT", "DELETE", "POST")]
    steps = [name for path in writes for part, name in places.items() if part in path]
    assert [step for n, step in enumerate(steps) if n == 0 or steps[n - 1] != step] == [
        "commit", "known", "queue", "chain",
    ]  # fmt: skip


def test_an_object_announced_by_a_publisher_is_read_without_a_head(watched: Site, proxy: FaultProxy) -> None:
    """An entry of a publisher has the object's writer, ETag and size. If a batch sent a HEAD for such an entry, each
    published object would cost a second request.
    """
    site = watched
    source, queue = site.io.source, site.io.clients.queue
    written = site.store.put(site.key(3), site.line(3))
    announced = Event(
        key=site.key(3), bucket=source.input.bucket.bucket, etag=written.etag, size=len(site.line(3))
    )
    queue.push(site.name, replace(announced, writer="w1"))
    site.store.put(site.key(5), site.line(5))
    queue.push(site.name, Event(key=site.key(5), bucket=source.input.bucket.bucket))
    proxy.answered.clear()
    Publisher(site.store, prefix=source.location.keyspace_prefix, slots=16, queued=True).signal(
        [site.key(3), site.key(5)]
    )
    site.settle()
    three, five = (site.key(slot).rpartition("/")[2] for slot in (3, 5))
    assert sorted(of_bucket(site, proxy.answered)) == sorted([f"GET {three}", f"HEAD {five}", f"GET {five}"])
