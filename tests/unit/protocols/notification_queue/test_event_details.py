"""Details of events: passed on from inlet to delivery, bounded, and never a reason to lose an event."""

import json

import pytest

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.messages import FORMATS
from s3notify_platform.kernel.limits import MAX_EVENT_PAIRS, MAX_EVENT_TEXT
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    Rule,
    TopicSettings,
    decode_events,
    encode_events,
)
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.queued_publisher import World

ENDPOINT = Endpoint(url="https://hooks.example.com/").dumps()

CEPH = {
    "eventVersion": "2.2",
    "eventSource": "ceph:s3",
    "awsRegion": "zonegroup1",
    "eventTime": "2026-01-02T03:04:05.678Z",
    "eventName": "ObjectCreated:Copy",
    "userIdentity": {"principalId": "tester"},
    "requestParameters": {"sourceIPAddress": "192.0.2.7"},
    "responseElements": {"x-amz-request-id": "503a4c37", "x-amz-id-2": "14d2-zone1-zonegroup1"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "mynotif1",
        "bucket": {
            "name": "b",
            "ownerIdentity": {"principalId": "tester"},
            "arn": "arn:aws:s3:zonegroup1::b",
            "id": "503a4c37.5332.38",
        },
        "object": {
            "key": "a b+c%20/é.jpg",
            "size": 1024,
            "eTag": "37b51d194a7513e45b56f6524f2d51f2",
            "versionId": "v1",
            "sequencer": "F7E6D75DC742D108",
            "metadata": [{"key": "x-amz-meta-team", "val": "sales"}],
            "tags": [{"key": "Class", "val": "public"}, {"key": "empty", "val": ""}],
        },
    },
    "eventId": "1.2.e",
}
AMAZON = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "awsRegion": "eu-central-1",
    "eventTime": "2026-01-02T03:04:05.678Z",
    "eventName": "ObjectRemoved:Delete",
    "userIdentity": {"principalId": "AWS:AIDAJDPLRKLG7UEXAMPLE"},
    "requestParameters": {"sourceIPAddress": "127.0.0.1"},
    "responseElements": {"x-amz-request-id": "C3D13FE5", "x-amz-id-2": "FMyUVURIY8/IgAtTv8xRjskZ"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "mine",
        "bucket": {
            "name": "b",
            "ownerIdentity": {"principalId": "A3NL1KOZZKExample"},
            "arn": "arn:aws:s3:::b",
        },
        "object": {"key": "a+b%2Bc", "eTag": "e", "sequencer": "0055AED6DCD90281E5"},
    },
}


@pytest.fixture
def queue() -> NotificationQueue:
    return NotificationQueue(MemoryRecordStore(), parallelism=1)


def delivered(queue: NotificationQueue, name: str, *events: Event) -> list[dict]:
    """The records of the topic's entries after these events were pushed."""
    queue.push_many(name, events)
    entries = sorted(queue.entries(name, range(1000)), key=lambda entry: entry.n)
    _, body = FORMATS["s3"].batch(entries, "")
    return json.loads(body)["Records"]


@pytest.mark.parametrize("sent", [CEPH, AMAZON], ids=["ceph", "amazon"])
def test_a_record_passes_unchanged_from_inlet_to_delivery(queue: NotificationQueue, sent: dict) -> None:
    """Otherwise a consumer would miss region, user, ids, metadata or tags that the sender's record has."""
    queue.topics.create("t", TopicSettings(shards=1, endpoint=ENDPOINT))
    (record,) = delivered(queue, "t", *decode_events(json.dumps({"Records": [sent]})).events)
    expected = json.loads(json.dumps(sent)) | {"eventVersion": "2.1"}
    if sent is CEPH:
        expected["s3"]["object"]["sequencer"] = "5DD7E6F708D142C7"
    assert record == expected
    again = json.dumps({"Records": [record]})
    assert json.loads(encode_events(decode_events(again).events))["Records"] == [record]


def test_cloud_events_name_source_and_region_of_the_sender(queue: NotificationQueue) -> None:
    """Otherwise a consumer of CloudEvents could not tell which store sent an event."""
    queue.topics.create("t", TopicSettings(shards=1, endpoint=ENDPOINT))
    delivered(queue, "t", *decode_events(json.dumps({"Records": [CEPH]})).events)
    (entry,) = queue.entries("t", range(1000))
    _, body = FORMATS["cloudevents"].single(entry, "")
    assert json.loads(body)["source"] == "ceph:s3.zonegroup1.b"


def test_eventbridge_details_get_the_names_of_s3() -> None:
    """Otherwise a consumer would need to know EventBridge's names, too."""
    message = {
        "detail-type": "Object Created",
        "source": "aws.s3",
        "region": "ca-central-1",
        "time": "2026-01-02T03:04:05Z",
        "detail": {
            "bucket": {"name": "b"},
            "object": {"key": "k", "etag": "e", "sequencer": "0A"},
            "request-id": "N4N7GDK58NMKJ12R",
            "requester": "123456789012",
            "source-ip-address": "1.2.3.4",
        },
    }
    (record,) = json.loads(encode_events(decode_events(json.dumps(message)).events))["Records"]
    assert (record["awsRegion"], record["eventSource"]) == ("ca-central-1", "aws:s3")
    assert record["userIdentity"] == {"principalId": "123456789012"}
    assert record["requestParameters"] == {"sourceIPAddress": "1.2.3.4"}
    assert record["responseElements"] == {"x-amz-request-id": "N4N7GDK58NMKJ12R"}


@pytest.mark.parametrize(
    "given",
    [
        {"userIdentity": "me", "eventSource": {"a": "b"}, "awsRegion": 7},
        {"userIdentity": {"principalId": {"deep": ["er"]}}, "awsRegion": "x" * (MAX_EVENT_TEXT + 1)},
        {"userIdentity": {str(n): "x" for n in range(MAX_EVENT_PAIRS + 1)}, "eventId": 7},
        {"userIdentity": {"principalId": "\ud800"}, "eventSource": "\udfff"},
        {"userIdentity": [], "requestParameters": 0, "source": "Internal"},
    ],
)
def test_details_of_unexpected_form_are_dropped(queue: NotificationQueue, given: dict) -> None:
    """Otherwise a change would be lost because its record is strange, or a strange record would store
    unbounded data.
    """
    sent = AMAZON | given
    sent["s3"] = AMAZON["s3"] | {"bucket": {"name": "b", "ownerIdentity": 7, "id": ["x"]}}
    sent["s3"]["object"] = {"key": "k", "metadata": [{"key": "a", "val": "\ud800"}], "tags": {"a": "b"}}
    queue.topics.create("t", TopicSettings(shards=1, endpoint=ENDPOINT))
    (record,) = delivered(queue, "t", *decode_events(json.dumps({"Records": [sent]})).events)
    for name, value in given.items():
        assert record.get(name) != value
    assert record["s3"]["bucket"] == {"name": "b", "arn": "arn:aws:s3:::b"}
    assert record["s3"]["object"] == {"key": "k", "sequencer": record["s3"]["object"]["sequencer"]}


def test_details_that_do_not_fit_are_dropped(queue: NotificationQueue) -> None:
    """Otherwise a change would be refused or lost because its object has much metadata."""
    queue.topics.create("t", TopicSettings(shards=1, endpoint=ENDPOINT, max_event_bytes=400))
    large = Event(key="large", bucket="b", metadata={"note": "x" * 400})
    small = Event(key="small", bucket="b", metadata={"note": "x", "s3notify-writer": "w"})
    records = {
        record["s3"]["object"]["key"]: record["s3"]["object"]
        for record in delivered(queue, "t", large, small)
    }
    assert "metadata" not in records["large"]
    assert records["small"]["metadata"] == [{"key": "x-amz-meta-note", "val": "x"}]


def test_pulled_topics_store_no_details(queue: NotificationQueue) -> None:
    """Otherwise entries would be larger although nobody reads their details."""
    queue.topics.create("t", TopicSettings(shards=1))
    queue.push_many("t", decode_events(json.dumps({"Records": [CEPH]})).events)
    (entry,) = queue.entries("t", range(1000))
    assert (entry.event.details, entry.event.metadata, entry.event.tags) == (None, None, None)


def test_the_configuration_id_comes_from_the_rule_the_sender_or_the_topic(queue: NotificationQueue) -> None:
    """Otherwise a consumer could not tell which rule or notification configuration reported a change."""
    rules = (
        Rule(id="csv", suffix=".csv"),
        Rule(id="sales", metadata=(("team", "sales"),), events=("ObjectCreated:*",)),
        Rule(prefix="raw/"),
    )
    queue.topics.create("t", TopicSettings(shards=1, endpoint=ENDPOINT, rules=rules))
    events = [
        Event(key="raw/a.csv", bucket="b", metadata={"team": "sales"}, configuration_id="theirs"),
        Event(key="raw/b", bucket="b", metadata={"team": "sales"}),
        Event(key="raw/c", bucket="b", configuration_id="theirs"),
        Event(key="raw/d", bucket="b"),
    ]
    named = {record["s3"]["object"]["key"]: record["s3"] for record in delivered(queue, "t", *events)}
    assert {key: s3["configurationId"] for key, s3 in named.items()} == {
        "raw/a.csv": "csv",
        "raw/b": "sales",
        "raw/c": "theirs",
        "raw/d": "t",
    }


@pytest.mark.parametrize(
    ("found", "kept"),
    [({"team": "sales", "more": "x"}, {"team": "sales"}), ({"team": "other"}, None), ({}, None)],
)
def test_metadata_of_a_killed_writer_is_kept_if_the_object_has_it(
    found: dict[str, str], kept: dict[str, str] | None
) -> None:
    """Otherwise an entry would report metadata that the object does not have, or grow beyond its reserved size."""
    world = World()
    world.topic(endpoint=ENDPOINT)
    world.queue.reserve("t", Event(key="k", bucket="b", writer="w", metadata={"team": "sales"}))
    world.objects.put("k", b"1", metadata={**found, "s3notify-writer": "w"})
    assert world.resolve().committed == 1
    (entry,) = world.queue.entries("t", range(1000))
    assert entry.event.metadata == kept
