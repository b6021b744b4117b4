"""A pusher for tests, and entries that it can push."""

from contextlib import contextmanager

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.http import HttpPush
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.notification_queue.entries import Place

LOOPBACK = Egress.of(["127.0.0.0/8", "::1/128"], allow_http=True)


def entry(number=0):
    event = Event(key=f"k{number}", bucket="b", etag="e", size=1, sequencer="0A")
    place = Place(topic="t", epoch="e", shard=0, key="id.0", quota=0)
    return Entry(place=place, n=number, slot=0, state="committed", event=event)


@contextmanager
def pusher(url, *, egress=LOOPBACK, **fields):
    made = HttpPush(Endpoint(url=url, **{"timeout_seconds": 5.0, "concurrency": 2} | fields), egress)
    try:
        yield made
    finally:
        made.close()


def post(url, **fields):
    with pusher(url, **fields) as made:
        return made.post("t", [entry()])
