"""The S3 event message: our own messages, and those of other senders."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import unaddressable
from s3notify_platform.protocols.notification_queue import Event, decode_events, encode_events

TIMES = (-62_135_596_800_000, 253_402_300_799_999)
"""The first millisecond of year 1, and the last one of year 9999."""

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(
    key=KEYS,
    op=st.sampled_from(["put", "delete"]),
    size=st.none() | st.integers(0, 5 * 2**40),
    etag=st.none() | st.just("d41d8cd98f00b204e9800998ecf8427e"),
    time_ms=st.sampled_from(TIMES) | st.integers(*TIMES),
    name=st.sampled_from(["Copy", "CompleteMultipartUpload", "DeleteMarkerCreated", "Of tomorrow"]),
    ids=st.tuples(KEYS | st.just(""), KEYS | st.just("")),
)
def test_events_survive_encoding_and_decoding(*, key, op, size, etag, time_ms, name, ids):
    """Otherwise a consumer would get another key, ETag, size, time, name or id than the writer announced."""
    size = size if op == "put" else None
    event = Event(
        key=key,
        op=op,
        bucket="b",
        etag=etag,
        size=size,
        sequencer="0A1",
        time_ms=time_ms,
        name=f"{'ObjectCreated' if op == 'put' else 'ObjectRemoved'}:{name}",
        version_id=ids[0],
        configuration_id=ids[1],
    )
    decoded = decode_events(encode_events([event, event]))
    assert decoded.events == (event, event)
    assert decoded.ignored == 0


@pytest.mark.parametrize(("op", "name"), [("put", "ObjectCreated:Put"), ("delete", "ObjectRemoved:Delete")])
def test_plain_puts_and_deletes_have_default_names(op, name):
    """Otherwise each entry of our own writers would store an event name."""
    (event,) = decode_events(encode_events([Event(key="k", op=op, bucket="b")])).events
    assert (event.name, event.event_name) == ("", name)


@pytest.mark.parametrize("source", ["aws:s3", "minio:s3", "ceph:s3"])
@pytest.mark.parametrize(
    "name",
    [
        "ObjectCreated:Copy",
        "ObjectCreated:CompleteMultipartUpload",
        "ObjectRemoved:DeleteMarkerCreated",
        "ObjectLifecycle:Expiration:Current",
        "LifecycleExpiration:DeleteMarkerCreated",
    ],
)
def test_names_and_ids_are_delivered_unchanged(name, source):
    """Otherwise a consumer would get another event name, version, sequencer or configuration id than the store sent."""
    sent = json.loads(message(f"s3:{name}", "a", source=source, versionId="v1", sequencer="0A1"))
    sent["Records"][0]["s3"]["configurationId"] = "mine"
    (record,) = json.loads(encode_events(decode_events(json.dumps(sent)).events))["Records"]
    assert record["eventName"] == name
    assert record["s3"]["configurationId"] == "mine"
    assert record["s3"]["object"]["versionId"] == "v1"
    assert record["s3"]["object"]["sequencer"] == "0A1"


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ([{"key": "x-amz-meta-team", "val": "sales"}, {"key": "of", "val": 2}], {"team": "sales", "of": "2"}),
        ([{"val": "x"}], {"": "x"}),
        *((other, None) for other in ([], {}, "x", None, [1], ["a"])),
    ],
)
def test_metadata_and_tags_of_ceph_are_decoded(listed, found):
    """Otherwise rules would not match Ceph's metadata and tags, or a change would be lost because its metadata or tags
    have an unknown form.
    """
    sent = json.loads(message("ObjectCreated:Put", "a", source="ceph:s3", metadata=listed, tags=listed))
    (event,) = decode_events(json.dumps(sent)).events
    assert event.metadata == found
    assert (event.tags is None) == (found is None)


def test_the_message_has_the_format_of_s3():
    """Otherwise existing consumers of S3 events could not read our messages."""
    event = Event(
        key="a b/ü+%.json", bucket="b", etag="e", size=3, sequencer="00A", time_ms=1_700_000_000_123
    )
    (record,) = json.loads(encode_events([event]))["Records"]
    assert record["eventVersion"] == "2.1"
    assert record["eventSource"] == "aws:s3"
    assert record["eventName"] == "ObjectCreated:Put"
    assert record["eventTime"] == "2023-11-14T22:13:20.123Z"
    assert record["s3"]["bucket"]["name"] == "b"
    assert record["s3"]["object"] == {
        "key": "a+b/%C3%BC%2B%25.json",
        "size": 3,
        "eTag": "e",
        "sequencer": "00A",
    }


def message(name, key, *, source="aws:s3", **extra):
    record = {
        "eventSource": source,
        "eventName": name,
        "eventTime": "2026-01-02T03:04:05.678Z",
        "s3": {"bucket": {"name": "b"}, "object": {"key": key, **extra}},
    }
    return json.dumps({"Records": [record]})


@pytest.mark.parametrize(
    ("name", "key", "source", "expected"),
    [
        ("ObjectCreated:Put", "a+b%2Fc", "aws:s3", "a b/c"),
        ("s3:ObjectCreated:CompleteMultipartUpload", "a%2Bb", "minio:s3", "a+b"),
        ("ObjectCreated:Put", "a+b%2Fc", "ceph:s3", "a+b%2Fc"),
    ],
)
def test_keys_are_decoded_as_each_sender_encodes_them(name, key, source, expected):
    """Otherwise a key with a space or a plus sign would be read as another key: Amazon S3 and MinIO encode keys, Ceph
    does not."""
    (event,) = decode_events(message(name, key, source=source, size=7, eTag='"e"')).events
    assert (event.key, event.op, event.size, event.etag) == (expected, "put", 7, "e")
    assert event.time_ms == 1_767_323_045_678


@pytest.mark.parametrize(
    "name",
    [
        "ObjectRemoved:Delete",
        "s3:ObjectRemoved:DeleteMarkerCreated",
        "s3:LifecycleExpiration:Delete",
        "s3:LifecycleExpiration:DeleteMarkerCreated",
        "ObjectLifecycle:Expiration:Current",
        "ObjectSynced:Delete",
        "ObjectSynced:DeletionMarkerCreated",
    ],
)
def test_removals_are_decoded_as_deletes(name):
    """Otherwise a removal would be mistaken for a put, or ignored."""
    (event,) = decode_events(message(name, "a")).events
    assert (event.op, event.etag, event.size) == ("delete", None, None)


@pytest.mark.parametrize("name", ["s3:ObjectCreated:Copy", "ObjectSynced:Create", "ObjectCreated:Post"])
def test_creations_are_decoded_as_puts(name):
    """Otherwise a copy, a POST or an object from another zone would be ignored."""
    (event,) = decode_events(message(name, "a", size=0, eTag="e", versionId="v", sequencer="0A")).events
    assert (event.op, event.etag, event.size, event.sequencer) == ("put", "e", 0, "0A")


def sns(body):
    return json.dumps(
        {
            "Type": "Notification",
            "MessageId": "m",
            "TopicArn": "arn:aws:sns:eu-central-1:123456789012:t",
            "Subject": "Amazon S3 Notification",
            "Message": body,
        }
    )


def eventbridge(kind, *, source="aws.s3", **found):
    return json.dumps(
        {
            "version": "0",
            "id": "17793124-05d4-b198-2fde-7ededc63b103",
            "detail-type": kind,
            "source": source,
            "time": "2026-01-02T03:04:05Z",
            "resources": ["arn:aws:s3:::b"],
            "detail": {"version": "0", "bucket": {"name": "b"}, "object": found, "reason": "PutObject"},
        }
    )


def test_messages_in_an_sns_envelope_are_decoded():
    """Otherwise events that arrive through SNS would be refused."""
    plain = message("ObjectCreated:Put", "a+b%2Fc", size=1)
    assert decode_events(sns(plain)) == decode_events(plain)
    assert decode_events(sns('{"Service": "Amazon S3", "Event": "s3:TestEvent"}')).ignored == 1
    created = eventbridge("Object Created", key="a")
    assert decode_events(sns(created)) == decode_events(created)


def test_eventbridge_messages_are_decoded():
    """Otherwise events that arrive through EventBridge would be refused, or their unencoded keys would be decoded."""
    (event,) = decode_events(
        eventbridge("Object Created", key="a+b%2Fc", size=7, etag="e", sequencer="00A")
    ).events
    assert (event.key, event.op, event.bucket) == ("a+b%2Fc", "put", "b")
    assert (event.size, event.etag, event.sequencer) == (7, "e", "00A")
    assert event.time_ms == 1_767_323_045_000
    (event,) = decode_events(eventbridge("Object Deleted", key="a", etag="e", sequencer="00B")).events
    assert (event.key, event.op, event.size) == ("a", "delete", None)


@pytest.mark.parametrize(
    ("kind", "detail", "name"),
    [
        ("Created", {"reason": "PutObject"}, "ObjectCreated:Put"),
        ("Created", {"reason": "POST Object"}, "ObjectCreated:Post"),
        ("Created", {"reason": "CopyObject"}, "ObjectCreated:Copy"),
        ("Created", {"reason": "CompleteMultipartUpload"}, "ObjectCreated:CompleteMultipartUpload"),
        ("Created", {"reason": ["?"]}, "ObjectCreated:Put"),
        ("Deleted", {"reason": "DeleteObject"}, "ObjectRemoved:Delete"),
        (
            "Deleted",
            {"reason": "DeleteObject", "deletion-type": "Delete Marker Created"},
            "ObjectRemoved:DeleteMarkerCreated",
        ),
        (
            "Deleted",
            {"reason": "Lifecycle Expiration", "deletion-type": "Permanently Deleted"},
            "LifecycleExpiration:Delete",
        ),
        (
            "Deleted",
            {"reason": "Lifecycle Expiration", "deletion-type": "Delete Marker Created"},
            "LifecycleExpiration:DeleteMarkerCreated",
        ),
    ],
)
def test_eventbridge_reasons_become_event_names(kind, detail, name):
    """Otherwise a rule for copies or expirations would not match events from EventBridge."""
    sent = json.loads(eventbridge(f"Object {kind}", key="a", **{"version-id": "v1"}))
    sent["detail"] |= detail
    (event,) = decode_events(json.dumps(sent)).events
    assert (event.event_name, event.version_id) == (name, "v1")


def test_records_that_are_no_changes_are_ignored():
    """Otherwise a restore, a tag or the test event of S3 would count as a change, or fail the message."""
    assert decode_events(message("ObjectTagging:Put", "a")).ignored == 1
    # MinIO also sends this name.
    assert decode_events(message("s3:ObjectCreated:PutTagging", "a")).ignored == 1
    assert decode_events(message("ObjectLifecycle:Expiration:NonCurrent", "a")).ignored == 1
    assert decode_events(eventbridge("Object Tags Added", key="a")).ignored == 1
    assert decode_events(eventbridge("Object Created", source="aws.ec2")).ignored == 1
    assert decode_events('{"Service": "Amazon S3", "Event": "s3:TestEvent"}').ignored == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"Records"',
        b'{"Records": [1]}',
        b'{"Records": [{"eventName": "ObjectCreated:Put"}]}',
        b"\xff",
        b"[" * 200_000,
        b'{"detail-type": "Object Created", "source": "aws.s3", "detail": {}}',
        b'{"Type": "Notification", "TopicArn": "t", "Message": "hello"}',
        b'{"Type": "SubscriptionConfirmation", "TopicArn": "t", "Message": "confirm"}',
        message("ObjectCreated:Put", "a", size=1).replace('"size": 1', '"size": 1e999').encode(),
    ],
)
def test_other_messages_are_refused(body):
    """Otherwise a foreign message would crash the inlet instead of being put aside."""
    with pytest.raises(UsageError, match="no S3 event message"):
        decode_events(body)


def test_only_the_event_of_a_key_that_is_not_utf8_is_refused():
    """Otherwise all events of a message would be refused because of one invalid key."""
    (event,) = decode_events(message("ObjectCreated:Put", "a%ff").encode()).events
    assert unaddressable(event.key) == "it is not UTF-8"


@pytest.mark.parametrize("time", ["yesterday", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_an_unreadable_time_becomes_zero(time):
    """Otherwise a change would be lost because its time cannot be parsed, or cannot be written in UTC, although only
    people need the time.
    """
    body = message("ObjectCreated:Put", "a").replace("2026-01-02T03:04:05.678Z", time)
    assert decode_events(body).events[0].time_ms == 0


@pytest.mark.parametrize(
    ("source", "sent", "expected"),
    [
        # The first two sequencers are real. The second was sent 28 s after the first.
        ("ceph:s3", "E380016B41AAB438", "6B0180E338B4AA41"),
        ("ceph:s3", "FF80016B065ADB0D", "6B0180FF0DDB5A06"),
        ("ceph:s3", "", ""),
        ("ceph:s3", "E380", "E380"),
        ("aws:s3", "00E380016B41AAB4", "00E380016B41AAB4"),
    ],
)
def test_sequencers_of_ceph_are_converted(source, sent, expected):
    """Otherwise later events of a key would have smaller sequencers, because Ceph's sequencers begin with the lowest
    byte.
    """
    body = message("ObjectCreated:Put", "a", source=source, sequencer=sent)
    assert decode_events(body).events[0].sequencer == expected


@pytest.mark.parametrize(
    ("source", "expired"),
    [
        ({"userAgent": "Internal: [ILM-Expiry]"}, True),
        ({"host": "Internal: [ILM-EXPIRY]", "userAgent": ""}, True),
        ({"userAgent": "MinIO (linux; amd64)"}, False),
        ("Internal: [ILM-Expiry]", False),
        (None, False),
    ],
)
def test_removals_by_minios_lifecycle_are_recognised(source: object, expired: bool) -> None:
    """Otherwise an expired object would count as deleted by a client, because MinIO's events differ only in the
    client's name.
    """
    record = {
        "eventSource": "minio:s3",
        "eventName": "s3:ObjectRemoved:DeleteMarkerCreated",
        "s3": {"bucket": {"name": "b"}, "object": {"key": "a"}},
        "source": source,
    }
    (event,) = decode_events(json.dumps({"Records": [record]})).events
    assert (event.op, event.is_expiry) == ("delete", expired)
