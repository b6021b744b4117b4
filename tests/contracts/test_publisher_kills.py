"""Writers are killed by SIGKILL, on a real server.

Their writes are announced to every topic, although no writer retries.
"""

import json
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.reconcile.reconciler_service import ReconcilerService
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.protocols.keyspace import Publisher, Watcher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.support.programs.dying_writer import KS, SOURCE, STALE_SECONDS, TOPICS

pytestmark = pytest.mark.server


class Site:
    """A bucket on a real server, its queue, its reconciler, and a consumer of each topic."""

    def __init__(self, config):
        self.config = config
        self.store = FastObjectStore(config)
        self.queue = NotificationQueue(queue_records(config), stale_seconds=STALE_SECONDS)
        for name, settings in TOPICS.items():
            self.queue.topics.create(name, settings)
        publisher = Publisher(self.store, prefix=KS)
        self.reconciler = ReconcilerService(
            self.queue,
            self.store,
            [Keyspace(publisher=publisher)],
            bucket=config.bucket,
            unsignalled_seconds=0.5,
            doubtful_seconds=2.0,
        )
        self.watchers = {name: Watcher(self.store, prefix=KS, relist_seconds=1e9) for name in TOPICS}
        self.known = {name: {} for name in TOPICS}

    def consume(self):
        """Works like a source: reads the entries of slots whose signals moved, and the objects of these entries."""
        for name, watcher in self.watchers.items():
            poll = watcher.observe(watcher.state, relist=False)
            entries = self.queue.entries(name, poll.changed)
            for entry in entries:
                found = self.store.head(entry.event.key)
                self.known[name][entry.event.key] = found.etag if found else None
            self.queue.remove(entries)
            watcher.state = watcher.state.advance(poll.changed, poll.signals).at_root(poll.root_etag)

    def settle(self):
        """Runs reconciler and consumers until nothing is left in the queue."""
        ends = time.monotonic() + 20 * STALE_SECONDS
        while sum(self.queue.stats(name).depth for name in TOPICS):
            assert time.monotonic() < ends, [self.queue.stats(name) for name in TOPICS]
            assert not self.reconciler.reconcile().errors
            self.consume()
            time.sleep(0.2)

    def check(self):
        objects = [o for o in list_all(self.store, "") if o.key.startswith(("raw/", "else/"))]
        for name, settings in TOPICS.items():
            known = {key: etag for key, etag in self.known[name].items() if etag is not None}
            assert known == {o.key: o.etag for o in objects if o.key.startswith(settings.prefix)}
        return {o.key for o in objects}

    @contextmanager
    def writer(self, how):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.programs.dying_writer", how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            # The secret is not an argument of the process, since other users can read arguments.
            process.stdin.write(json.dumps(asdict(self.config)) + "\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.mark.thorough
def test_objects_are_announced_if_their_writer_is_killed_between_any_two_requests(seaweed):
    """Each writer is killed one request later than the previous writer. If the reconciler did not resolve the
    reservation of a killed writer, no consumer would see the written object.
    """
    site = Site(seaweed.config(seaweed.make_bucket()))
    for number in range(60):
        site.store.put(f"raw/old {number}", b"1")
        for name in site.known:
            site.known[name][f"raw/old {number}"] = site.store.head(f"raw/old {number}").etag
    with site.writer("steps") as process:
        killed = int(process.stdout.readline())
    # The requests are: reads and reservations in two topics, three writes, a commit for each segment, three or four
    # signals.
    assert killed >= 18
    site.settle()
    there = site.check()
    # The last writers had done everything except the signals; the first writers had done nothing.
    assert f"raw/{killed}" in there
    assert "raw/0" not in there
    assert f"raw/{killed - 1}" in there
    assert sum(key.startswith("else/") for key in there) < killed


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "requests", "parts"),
    [
        # The requests are: reservations in two topics, begin, two announcements, a part, completion, two commits,
        # signals.
        ("streams", 15, 1),
        # The requests are those of a stream, and one more for a second part.
        ("files", 16, 2),
        # The requests include a HEAD, and one copy.
        ("copies", 12, 0),
        # The requests are a HEAD, and then those of a stream.
        ("parts", 16, 1),
    ],
)
def test_upload_of_a_killed_writer_is_announced_only_if_completed(seaweed, how, requests, parts):
    """If a completed upload were not announced, consumers would miss the object. If the parts of an
    unfinished upload stayed in the bucket, the bucket's owner would pay for bytes that nobody can read. If an
    unfinished upload were announced, consumers would look for an object that does not exist.
    """
    site = Site(seaweed.config(seaweed.make_bucket()))
    site.store.put(SOURCE, b"copied")
    with site.writer(how) as process:
        killed = int(process.stdout.readline())
    assert killed >= requests
    client = S3ObjectStore(site.config).client
    assert bool(client.list_multipart_uploads(Bucket=site.config.bucket).get("Uploads")) == (parts > 0)
    site.settle()
    there = site.check()
    assert f"raw/{killed}" in there
    assert f"raw/{killed - 1}" in there
    assert "raw/0" not in there
    assert [known.keys() for known in site.known.values()] == [there, there]
    assert not client.list_multipart_uploads(Bucket=site.config.bucket).get("Uploads")
    assert site.store.head(f"raw/{killed}").etag.partition("-")[2] == (f"{parts}" if parts else "")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [int(os.environ.get("KILL_SEED", "1"))])
def test_objects_are_announced_if_their_writers_are_killed_at_any_moment(ministack, seed):
    """Writers of parallel batches are killed after a random time. If a kill between two parallel requests left an
    object without a reservation, no consumer would see the object.
    """
    site = Site(ministack.config(ministack.make_bucket()))
    draw = random.Random(seed)
    for _ in range(4):
        with site.writer("loop") as process:
            process.stdout.readline()
            time.sleep(draw.uniform(0.0, 0.4))
        site.consume()
    site.settle()
    assert len(site.check()) > 4 * 5
