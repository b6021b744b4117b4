"""The content of RGW's own persistent notifications, and the conversion of these notifications to entries of our queue.

RGW posts the notifications to a `Recorder`, which can fail on demand. In `test_receiver`, RGW posts to our own
receiver.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    Rule,
    TopicSettings,
    decode_events,
    encode_events,
)
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.contracts.object_store_suite import ODD_KEYS
from tests.support.ceph import Ceph
from tests.support.recorder import Recorder

pytestmark = pytest.mark.ceph

FIRST_POST_SECONDS = 60.0
"""The time to wait for the first post, because RGW looks for new topics every half minute."""


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with Recorder() as running:
        yield running


@pytest.fixture(scope="module")
def notified(ceph: Ceph, recorder: Recorder) -> S3Config:
    """A bucket whose changes are posted to the recorder; the first post has arrived."""
    bucket = ceph.server.make_bucket()
    ceph.notify(bucket, "rgw", recorder.url("rgw"), opaque="opaque")
    FastObjectStore(ceph.config(bucket)).put("first", b"1")
    recorder.wait(1, "rgw", seconds=FIRST_POST_SECONDS)
    return ceph.config(bucket)


def events_of(recorder: Recorder, since: int = 0) -> list[Event]:
    """The events in the posts after the first `since` posts."""
    return [event for post in recorder.posts("rgw")[since:] for event in decode_events(post.body).events]


def test_posts_decode_to_the_written_objects(notified: S3Config, recorder: Recorder) -> None:
    """Otherwise keys would stay URL-encoded, or entries would have another size, ETag or bucket."""
    store, before = FastObjectStore(notified), len(recorder.posts("rgw"))
    known = len(set(recorder.posted_keys("rgw")))
    etags = {key: store.put(key, kind.encode()).etag for kind, key in ODD_KEYS.items()}
    recorder.wait(known + len(ODD_KEYS), "rgw")
    created = {event.key: event for event in events_of(recorder, before)}
    assert {key: event.etag for key, event in created.items()} == etags
    assert all(event.op == "put" and event.bucket == notified.bucket for event in created.values())
    assert {event.size for event in created.values()} == {len(kind) for kind in ODD_KEYS}


def test_posts_have_metadata_and_tags(notified: S3Config, recorder: Recorder, ceph: Ceph) -> None:
    """Otherwise rules by metadata and tags would not work with Ceph."""
    before = len(recorder.posts("rgw"))
    s3 = ceph.client("s3")
    s3.put_object(
        Bucket=notified.bucket, Key="described", Body=b"1", Metadata={"team": "sales"}, Tagging="class=public"
    )
    s3.put_object(Bucket=notified.bucket, Key="plain", Body=b"1")
    recorder.wait_posts(before + 2)
    events = [event for event in events_of(recorder, before) if event.key in ("described", "plain")]
    (event,) = [event for event in events if event.key == "described"]
    assert event.metadata is not None
    assert event.metadata["team"] == "sales"
    assert event.tags == {"class": "public"}
    # The platform passes events on unchanged, in RGW's own form.
    (record,) = json.loads(encode_events([event]))["Records"]
    assert record["eventSource"] == "ceph:s3"
    assert record["userIdentity"] == {"principalId": "test"}
    assert record["responseElements"]["x-amz-request-id"]
    assert record["s3"]["configurationId"] == "rgw"
    assert record["s3"]["bucket"]["id"]
    assert {"key": "x-amz-meta-team", "val": "sales"} in record["s3"]["object"]["metadata"]
    assert record["s3"]["object"]["tags"] == [{"key": "class", "val": "public"}]

    # The queue is in another bucket. Otherwise RGW would report the queue's records, too.
    queue = NotificationQueue(queue_records(ceph.config(ceph.server.make_bucket())))
    sales, others = Rule(metadata=(("team", "sales"),)), Rule(metadata=(("team", "support"),))
    public, private = Rule(tags=(("class", "public"),)), Rule(tags=(("class", "private"),))
    rules = {
        "all": (),
        "sales": (sales,),
        "others": (others,),
        "public": (public,),
        "private": (private,),
        "both": (replace(sales, tags=public.tags),),
        "one": (replace(sales, tags=private.tags),),
        "either": (others, public),
        "neither": (others, private),
    }
    for name, some in rules.items():
        settings = TopicSettings(slots=16, shards=1, bucket=notified.bucket, rules=some)
        queue.topics.create(name, settings)
    taken = Intake(queue, [], bucket=notified.bucket).accept(events)
    assert taken.outcomes == ("queued", "queued")
    found = {name: {entry.event.key for entry in queue.entries(name, range(16))} for name in rules}
    takers = {"sales", "public", "both", "either"}
    assert {name for name in rules if "described" in found[name]} == {"all", *takers}
    assert {name for name in rules if "plain" in found[name]} == {"all"}


def test_sequencers_of_one_key_rise(notified: S3Config, recorder: Recorder) -> None:
    """RGW's sequencers are in the machine's byte order. If the platform assumed the other byte order, a later sequencer
    would seem to be earlier.
    """
    store, before = FastObjectStore(notified), len(recorder.posts("rgw"))
    for number in range(12):
        store.put("again", b"%d" % number)
    store.delete("again")
    recorder.wait_posts(before + 13)
    ends = [event for event in events_of(recorder, before) if event.key == "again"]
    ends.sort(key=lambda event: (len(event.sequencer), event.sequencer))
    assert [event.op for event in ends] == ["put"] * 12 + ["delete"]
    assert ends[-2].etag == ends[-1].etag


def test_every_change_below_the_prefix_becomes_an_entry(
    ceph: Ceph, notified: S3Config, recorder: Recorder
) -> None:
    """Otherwise changes would be lost while an endpoint refuses posts, or the queue's own objects would be reported."""
    notified = ceph.config(ceph.server.make_bucket())
    ceph.notify(notified.bucket, "rgw", recorder.url("rgw"), prefix="raw/")
    store, before = FastObjectStore(notified), len(recorder.posts("rgw"))
    known = len(set(recorder.posted_keys("rgw")))
    recorder.answer(500)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.put(f"raw/{number}", b"x" * number), range(200)))
    recorder.answer(200)
    recorder.wait(known + 200, "rgw")

    queue = NotificationQueue(queue_records(notified))
    queue.topics.create("t", TopicSettings(slots=16, shards=2, bucket=notified.bucket, prefix="raw/"))
    queue.push_many("t", events_of(recorder, before))
    entries = queue.entries("t", range(16))
    assert {entry.event.key: entry.event.size for entry in entries} == {f"raw/{n}": n for n in range(200)}
    store.put("raw/last", b"1")
    recorder.wait(known + 201, "rgw")
    assert {event.key.partition("/")[0] for event in events_of(recorder, before)} == {"raw"}
