"""Changes that only RGW reports: its notifications, posted to our receiver, become committed rows."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from s3notify_platform.channels.inlets.http_inlet import HttpInlet, HttpInletSettings
from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.open_store import queue_records
from tests.ceph.test_notifications import FIRST_POST_SECONDS
from tests.support.ceph import Ceph
from tests.support.site import Site
from tests.support.waiting import until

pytestmark = [pytest.mark.ceph, pytest.mark.spark]

SECRET = "a-secret-of-some-length"
SLOTS = 16


@contextmanager
def receiving(site: Site, queue: NotificationQueue) -> Iterator[HttpInlet]:
    """A receiver for the site's bucket, which serves within the block."""
    publisher = Publisher(
        site.store, prefix=site.io.source.location.keyspace_prefix, slots=SLOTS, queued=True
    )
    intake = Intake(
        queue,
        [Keyspace(prefix="raw/", publisher=publisher)],
        bucket=site.component.bucket,
        excluded=("_s3notify/",),
    )
    receiver = HttpInlet(HttpInletSettings(secret_envs=["S3NOTIFY_TEST_RECEIVER"], port=0), intake)
    stop = threading.Event()
    thread = threading.Thread(target=receiver.run, args=(stop, print))
    thread.start()
    try:
        assert receiver.ready.wait(20)
        yield receiver
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def test_posts_of_rgw_become_committed_rows(site: Site, ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise changes of a client without our code would be missing from the table. One receiver serves during the
    whole test. If an endpoint has refused posts for some seconds, RGW 16 may post nothing more to it until the gateway
    is restarted.
    """
    monkeypatch.setenv("S3NOTIFY_TEST_RECEIVER", SECRET)
    bucket = site.component.bucket
    queue = NotificationQueue(queue_records(ceph.config(bucket)))
    queue.topics.create("orders", TopicSettings(bucket=bucket, prefix="raw/", slots=SLOTS, shards=2))
    site.settle()

    with receiving(site, queue) as receiver:
        # The notification has no filter. So RGW also reports our own objects, which must have no effect.
        ceph.notify(bucket, "receiver", f"http://rgw:{SECRET}@127.0.0.1:{receiver.address[1]}/")
        site.write_silently(1, 2, 3)
        until(lambda: receiver.counts()["queued"] == 3, seconds=FIRST_POST_SECONDS)
        site.settle()
        assert site.rows() == {1: [1], 2: [2], 3: [3]}

        site.write_silently(2, body=site.line(20))
        site.store.delete(site.key(3))
        site.write_silently(7)
        until(lambda: receiver.counts()["queued"] == 6, seconds=60)
        site.settle()
        assert site.rows() == {1: [1], 2: [20], 7: [7]}
        counts = receiver.counts()
        assert (counts["queued"], counts["failed"], counts["posts_unauthorized"]) == (6, 0, 0)
        assert counts["ignored"] > 0
