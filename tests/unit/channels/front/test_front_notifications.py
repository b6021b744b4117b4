"""A bucket's notification configuration: hostile documents, valid forms, several topics, whole records."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import Event, Rule, TopicSettings
from s3notify_platform.protocols.notification_queue.topic_rules import RULES_MAX
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.endpoints import Receiver
from tests.support.front import BUCKET, REGION, Front
from tests.support.pushing import pusher

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
ARN = f"arn:aws:sns:{REGION}::t"
TARGET = f"/{BUCKET}?notification"


def configuration(inner: str) -> bytes:
    return f'<NotificationConfiguration xmlns="{NAMESPACE}">{inner}</NotificationConfiguration>'.encode()


def one(inner: str = "", identity: str = "<Id>n</Id>", topic: str = f"<Topic>{ARN}</Topic>") -> bytes:
    return configuration(f"<TopicConfiguration>{identity}{topic}{inner}</TopicConfiguration>")


def of_each(*topics: str) -> bytes:
    """One configuration for each topic, with the topic's name as its id."""
    each = (
        f"<TopicConfiguration><Id>{name}</Id><Topic>{ARN[:-1]}{name}</Topic></TopicConfiguration>"
        for name in topics
    )
    return configuration("".join(each))


def filters(kind: str, **rules: str) -> str:
    pairs = (f"<FilterRule><Name>{n}</Name><Value>{v}</Value></FilterRule>" for n, v in rules.items())
    return f"<Filter><{kind}>{''.join(pairs)}</{kind}></Filter>"


@pytest.fixture
def topic(front: Front) -> Front:
    """A front with a topic `t`."""
    front.client("sns").create_topic(Name="t", Attributes={"push-endpoint": "https://hooks.example.com/"})
    return front


def ids(front: Front) -> list[str]:
    got = front.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)
    return [each["Id"] for each in got.get("TopicConfigurations", [])]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MalformedXML"),
        (b"hello", "MalformedXML"),
        (b"<NotificationConfiguration>", "MalformedXML"),
        (b"<Other/>", "MalformedXML"),
        (b"\xff\xfe<\x00N\x00/\x00>\x00", "MalformedXML"),
        (
            b'<!DOCTYPE a [<!ENTITY b "c">]><NotificationConfiguration>&b;</NotificationConfiguration>',
            "MalformedXML",
        ),
        (
            b'<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>',
            "MalformedXML",
        ),
        (one(identity="<Id>n</Id><Id>m</Id>"), "MalformedXML"),
        (one("<Filter><S3Key><FilterRule><Name>prefix</Name></FilterRule></S3Key></Filter>"), "MalformedXML"),
        (one("<Filter><S3Key><Rule/></S3Key></Filter>"), "MalformedXML"),
        (configuration("<QueueConfiguration><Id>q</Id></QueueConfiguration>"), "InvalidArgument"),
        (configuration("<CloudFunctionConfiguration/>"), "InvalidArgument"),
        (configuration("<EventBridgeConfiguration/>"), "InvalidArgument"),
        (one("<Other/>"), "InvalidArgument"),
        (one(topic=""), "InvalidArgument"),
        (one(identity="<Id> </Id>"), "InvalidArgument"),
        (one(identity=f"<Id>{'x' * 256}</Id>"), "InvalidArgument"),
        (one("<Event>s3:ObjectTagging:*</Event>"), "InvalidArgument"),
        (one("<Event>s3:*</Event>"), "InvalidArgument"),
        (one("<Event>s3:ObjectCreated:Put</Event>" * 21), "InvalidArgument"),
        (one(filters("S3Key", infix="a")), "InvalidArgument"),
        (one(filters("S3Key", prefix="a").replace("</S3Key>", "</S3Key><S3Key/>")), "InvalidArgument"),
        (one(filters("S3Other", prefix="a")), "InvalidArgument"),
        (one(filters("S3Key", prefix="a", Prefix="b")), "InvalidArgument"),
        (one(filters("S3Key", regex="(")), "InvalidArgument"),
        (one(filters("S3Key", regex="b.*", prefix="a")), "InvalidArgument"),
        (one(filters("S3Key", prefix="x" * 1025)), "InvalidArgument"),
        (one(filters("S3Tags", **{f"t{n}": "x" for n in range(11)})), "InvalidArgument"),
        (
            one(filters("S3Metadata", **{"x-amz-meta-a": "1", "X-Amz-Meta-A": "2"})),
            "InvalidArgument",
        ),
        (of_each("t", "t"), "InvalidArgument"),
        (of_each(*(f"t{n}" for n in range(RULES_MAX + 1))), "InvalidArgument"),
    ],
)
def test_invalid_documents_are_refused(topic: Front, body: bytes, code: str) -> None:
    """Otherwise a hostile document could change topics, read files or fill the memory."""
    before = topic.queue.topics.all()
    status, text = topic.ask("PUT", TARGET, body)
    assert (status, f"<Code>{code}</Code>" in text) == (400, True), text
    assert topic.queue.topics.all() == before


def test_other_valid_forms_of_documents_are_accepted(topic: Front) -> None:
    """Otherwise clients that leave out the namespace or the Id, or write names in capitals, could not configure
    notifications. If spaces within values were removed, the rule would match other keys than the client named.
    """
    body = one(
        "<Event> s3:ObjectCreated:* </Event>" + filters("S3Key", Prefix=" raw/", SUFFIX="é&amp;"), identity=""
    ).replace(f' xmlns="{NAMESPACE}"'.encode(), b"")
    assert topic.ask("PUT", TARGET, body)[0] == 200
    (rule,) = topic.queue.topics.get("t").settings.rules
    assert rule == Rule(id=rule.id, bucket=BUCKET, prefix=" raw/", suffix="é&", events=("ObjectCreated:*",))
    assert len(rule.id) >= 16
    (found,) = topic.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)["TopicConfigurations"]
    assert found["Id"] == rule.id
    assert found["Filter"]["Key"]["FilterRules"] == [
        {"Name": "prefix", "Value": " raw/"},
        {"Name": "suffix", "Value": "é&"},
    ]


def test_rules_stay_if_the_front_did_not_make_them(topic: Front) -> None:
    """Otherwise a put would also remove other rules of the topic: rules without an id, and rules for other buckets."""
    others = (Rule(prefix="mine/"), Rule(id="theirs", bucket="other"))
    topic.queue.topics.update("t", TopicSettings(without_rules="none", rules=others))
    assert topic.ask("PUT", TARGET, one())[0] == 200
    assert ids(topic) == ["n"]
    assert topic.ask("DELETE", TARGET)[0] == 204
    assert topic.queue.topics.get("t").settings.rules == others


def test_too_many_rules_of_one_topic_are_refused(topic: Front) -> None:
    """Otherwise some topics would be changed before the put fails. Rules of other buckets count towards the topic's
    limit, too.
    """
    topic.client("sns").create_topic(Name="a")
    others = tuple(Rule(id=str(n), bucket="other") for n in range(RULES_MAX))
    topic.queue.topics.update("t", TopicSettings(without_rules="none", rules=others))
    status, text = topic.ask("PUT", TARGET, of_each("a", "t"))
    assert (status, "<Code>InvalidArgument</Code>" in text) == (400, True)
    assert ids(topic) == []


def test_a_put_waits_until_writers_know_the_change(front: Front) -> None:
    """Otherwise a write that begins after the put was answered might not be announced. A put for two topics must not
    wait longer than a put for one topic.
    """
    for name in ("a", "b"):
        front.client("sns").create_topic(Name=name)
    waited: list[float] = []
    clock = front.queue.topics._clock

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(clock, name)

        def sleep(self, seconds: float) -> None:
            waited.append(seconds)

    front.queue.topics._clock = Watched()  # type: ignore[assignment]
    parts = of_each("a", "b")
    assert front.ask("PUT", TARGET, parts)[0] == 200
    assert waited == [front.queue.topics.outdated_seconds] * 2
    assert front.ask("PUT", TARGET, parts)[0] == 200  # an identical put changes nothing
    assert len(waited) == 2
    assert {topic.phase for topic in front.queue.topics.all()} == {"known"}


def test_a_put_to_a_topic_that_is_deleted_meanwhile_is_aborted(
    topic: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the client would not learn that it must put the configuration again."""

    def gone(*_: object, **__: object) -> None:
        raise NotFoundError("no topic 't'")

    monkeypatch.setattr(topic.queue.topics, "revise", gone)
    with pytest.raises(ClientError) as error:
        topic.client("s3").put_bucket_notification_configuration(
            Bucket=BUCKET,
            NotificationConfiguration={
                "TopicConfigurations": [{"Id": "n", "TopicArn": ARN, "Events": ["s3:ObjectCreated:*"]}]
            },
        )
    assert error.value.response["Error"]["Code"] == "OperationAborted"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 409


def test_queued_entries_stay_when_a_notification_is_deleted(topic: Front) -> None:
    """Otherwise the deletion of a notification would lose earlier entries, or later changes would still be added."""
    assert topic.ask("PUT", TARGET, one())[0] == 200
    topic.changed(Event(key="before", bucket=BUCKET))
    assert topic.ask("DELETE", TARGET)[0] == 204
    topic.changed(Event(key="after", bucket=BUCKET))
    assert topic.delivered("t") == {"before": "n"}


def test_events_of_our_publisher_name_their_configuration(topic: Front) -> None:
    """Otherwise an endpoint would get records without the configuration's id, the opaque data or the object's
    metadata.
    """
    sns, s3 = topic.client("sns"), topic.client("s3")
    with Receiver().serving() as server:
        sns.create_topic(Name="t", Attributes={"push-endpoint": server.url, "OpaqueData": "mine"})
        wanted = {
            "Id": "reports",
            "TopicArn": ARN,
            "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
            "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": ".csv"}]}},
        }
        s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"TopicConfigurations": [wanted]}
        )
        publisher = QueuedPublisher(Publisher(MemoryObjectStore(), prefix="ks/"), topic.queue, bucket=BUCKET)
        publisher.put("a.csv", b"1", metadata={"team": "sales"})
        publisher.put("a.txt", b"1")
        publisher.delete("a.csv")
        entries = topic.queue.entries("t", range(1000))
        with pusher(server.url, opaque_data="mine") as made:
            made.post("t", entries)
        _, body = server.requests[0]
    records = json.loads(body)["Records"]
    assert sorted(record["eventName"] for record in records) == ["ObjectCreated:Put", "ObjectRemoved:Delete"]
    assert {record["s3"]["configurationId"] for record in records} == {"reports"}
    assert {record["opaqueData"] for record in records} == {"mine"}
    assert [{"key": "x-amz-meta-team", "val": "sales"}] in [
        r["s3"]["object"].get("metadata") for r in records
    ]


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/", 501, "NotImplemented"),
        ("GET", f"/{BUCKET}", 501, "NotImplemented"),
        ("GET", f"/{BUCKET}/key?notification", 501, "NotImplemented"),
        ("POST", f"/{BUCKET}?notification", 501, "NotImplemented"),
        ("PUT", f"/{BUCKET}/key", 501, "NotImplemented"),
        ("GET", f"/{BUCKET}?tagging", 501, "NotImplemented"),
        ("GET", "/other?notification", 404, "NoSuchBucket"),
        ("GET", "/?notification", 501, "NotImplemented"),
        ("PUT", f"/{BUCKET}?notification=n", 400, "InvalidArgument"),
    ],
)
def test_other_requests_are_refused(topic: Front, method: str, target: str, status: int, code: str) -> None:
    """Otherwise a client could mistake the front for an object store."""
    headers = topic.signed(method, target) if target != "/" else topic.signed(method, "/?")
    answered, text = topic.send(method, target, b"", headers)
    assert (answered, f"<Code>{code}</Code>" in text) == (status, True), text
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>')


def test_a_bucket_in_the_host_name_is_found(topic: Front) -> None:
    """Otherwise clients that put the bucket into the host name could not use the front."""
    host = f"{BUCKET}.front.example"
    headers = topic.signed("GET", "/?notification", headers={"host": host})
    assert topic.send("GET", "/?notification", b"", headers)[0] == 200


def test_a_request_with_expected_bucket_owner_is_refused(topic: Front) -> None:
    """Otherwise a client would believe that the bucket's owner was checked."""
    with pytest.raises(ClientError) as error:
        topic.client("s3").get_bucket_notification_configuration(
            Bucket=BUCKET, ExpectedBucketOwner="123456789012"
        )
    assert error.value.response["Error"]["Code"] == "NotImplemented"
