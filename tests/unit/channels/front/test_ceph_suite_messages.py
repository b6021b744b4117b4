"""Ceph's own tests of bucket notifications, as far as they read the messages that a receiver got.

Source and method: see test_ceph_suite. Adopted:

- test_notification_http, _multi_delete, test_multipart_*: each change is one record at the receiver. As in Ceph's file,
  the topics have no queue.
- test_notification_cloudevents: the headers that Ceph's HTTPPostHandler checks.
- test_topic_permissions_*: `persistent` is set by SetTopicAttributes.
- test_creation_triggers_amqp, test_post_object_upload_amqp, test_lifecycle_http, _kafka: a configuration takes some
  kinds of creations or deletions.
- test_metadata_amqp, test_tags_amqp, test_versioning_amqp: records have metadata, tags and version ids.
- test_persistent_notification_large_amqp: opaque data of 2,048 characters.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from s3notify_platform.protocols.notification_queue import Event, decode_events
from tests.support.endpoints import Receiver
from tests.support.front import BUCKET, Front, configured, topic


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as made:
        yield made


def direct(front: Front, receiver: Receiver, **attributes: str) -> None:
    """A topic without a queue, and a configuration that takes all changes."""
    arn = topic(front, "t", **{"push-endpoint": receiver.url, "persistent": "false"}, **attributes)
    configured(front, {"Id": "n", "TopicArn": arn, "Events": []})


def records_of(receiver: Receiver) -> list[dict[str, Any]]:
    return [record for _, body in receiver.requests for record in json.loads(body)["Records"]]


def from_ceph(name: str, key: str = "k", **of_object: object) -> Event:
    """Returns the event that an inlet reads from a record in RGW's form."""
    record = {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "awsRegion": "zonegroup1",
        "eventTime": "2026-01-02T03:04:05.678901Z",
        "eventName": name,
        "responseElements": {"x-amz-request-id": "tx000001.42", "x-amz-id-2": "4155-default"},
        "s3": {"bucket": {"name": BUCKET}, "object": {"key": key, "eTag": "e", "size": 3, **of_object}},
    }
    (event,) = decode_events(json.dumps({"Records": [record]})).events
    return event


def test_changes_are_sent_without_a_queue(front: Front, receiver: Receiver) -> None:
    """Otherwise a receiver would miss a reported change, or get it twice."""
    direct(front, receiver)
    keys = [str(number) for number in range(10)]
    for op in ("put", "delete"):
        front.changed(*(Event(key=key, op=op, bucket=BUCKET, size=3, etag="e") for key in keys))
        records = records_of(receiver)
        assert [record["s3"]["object"]["key"] for record in records] == keys
        assert {record["eventName"].partition(":")[0] for record in records} == {
            "ObjectCreated" if op == "put" else "ObjectRemoved"
        }
        assert {record["s3"]["configurationId"] for record in records} == {"n"}
        receiver.requests.clear()
    front.changed(from_ceph("ObjectCreated:CompleteMultipartUpload", "obj"))
    assert [record["eventName"] for record in records_of(receiver)] == [
        "ObjectCreated:CompleteMultipartUpload"
    ]
    assert front.delivered("t") == {}


def test_cloudevents_have_cephs_headers(front: Front, receiver: Receiver) -> None:
    """Otherwise a receiver of Ceph's CloudEvents could not read the messages of this package."""
    direct(front, receiver, cloudevents="true")
    front.changed(from_ceph("ObjectCreated:Put", "a"), from_ceph("ObjectRemoved:Delete", "b"))
    assert len(receiver.requests) == 2
    for headers, body in receiver.requests:
        event = {name.lower().removeprefix("ce-"): value for name, value in headers.items()}
        (record,) = json.loads(body)["Records"]
        response = record["responseElements"]
        assert event["specversion"] == "1.0"
        assert event["id"] == response["x-amz-request-id"] + "." + response["x-amz-id-2"]
        assert event["source"] == "ceph:s3." + record["awsRegion"] + "." + record["s3"]["bucket"]["name"]
        assert event["type"] == "com.amazonaws." + record["eventName"]
        assert event["content-type"] == "application/json"
        assert event["subject"] == record["s3"]["object"]["key"]
        assert event["time"] == record["eventTime"]


def test_a_topic_gets_and_loses_its_queue(front: Front, receiver: Receiver) -> None:
    """Otherwise a client could not change or see whether a topic keeps its changes."""
    arn = topic(front, "t", **{"push-endpoint": receiver.url, "OpaqueData": "mine"})
    configured(front, {"Id": "n", "TopicArn": arn, "Events": []})
    for value, key in (("true", "queued"), ("false", "sent"), ("true", "queued-too")):
        front.client("sns").set_topic_attributes(
            TopicArn=arn, AttributeName="persistent", AttributeValue=value
        )
        assert f"<Persistent>{value}</Persistent>" in front.action("GetTopic", TopicArn=arn)[1]
        front.changed(Event(key=key, bucket=BUCKET))
    assert receiver.keys == {"sent": 1}
    assert {*front.delivered("t")} == {"queued", "queued-too"}
    (record,) = records_of(receiver)
    assert record["opaqueData"] == "mine"


@pytest.mark.parametrize(
    ("events", "taken"),
    [
        (
            ["s3:ObjectCreated:Put", "s3:ObjectCreated:Copy", "s3:ObjectCreated:CompleteMultipartUpload"],
            ["Created:CompleteMultipartUpload", "Created:Copy", "Created:Put"],
        ),
        (["s3:ObjectCreated:Post"], ["Created:Post"]),
        (
            ["s3:ObjectLifecycle:Expiration:*", "s3:LifecycleExpiration:*"],
            ["LifecycleExpiration:Delete", "ObjectLifecycle:Expiration:Current"],
        ),
    ],
    ids=["put, copy and upload", "post", "lifecycle"],
)
def test_configurations_take_only_their_kinds_of_changes(
    front: Front, events: list[str], taken: list[str]
) -> None:
    """Otherwise a receiver would get changes that its configuration excludes."""
    configured(front, {"Id": "n", "TopicArn": topic(front, "t"), "Events": events})
    names = [f"ObjectCreated:{kind}" for kind in ("Put", "Copy", "Post", "CompleteMultipartUpload")]
    names += ["ObjectRemoved:Delete", "LifecycleExpiration:Delete", "ObjectLifecycle:Expiration:Current"]
    front.changed(*(from_ceph(name, name) for name in names))
    assert (
        sorted(name.removeprefix("Object") if "Created" in name else name for name in front.delivered("t"))
        == taken
    )


def test_records_have_metadata_tags_and_versions(front: Front, receiver: Receiver) -> None:
    """Otherwise a receiver would lack metadata, tags or version ids, also for deletions and copies."""
    direct(front, receiver)
    metadata = [{"key": "x-amz-meta-meta1", "val": "This is my metadata value"}]
    tags = [{"key": "hello", "val": "world"}, {"key": "ka", "val": "boom"}]
    for name in ("ObjectCreated:Put", "ObjectCreated:Copy", "ObjectRemoved:Delete"):
        front.changed(from_ceph(name, "foo", metadata=metadata, tags=tags, versionId=name))
    records = records_of(receiver)
    assert len(records) == 3
    for record in records:
        found = record["s3"]["object"]
        assert (found["metadata"], found["tags"]) == (metadata, tags)
        assert found["versionId"] == record["eventName"]


def test_opaque_data_may_be_large(front: Front, receiver: Receiver) -> None:
    """Otherwise a topic that Ceph accepts would be refused."""
    direct(front, receiver, OpaqueData="o" * 2048)
    front.changed(Event(key="k" * 63, bucket=BUCKET))
    assert [record["opaqueData"] for record in records_of(receiver)] == ["o" * 2048]
