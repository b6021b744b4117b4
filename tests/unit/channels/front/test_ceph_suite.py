"""Ceph's own tests of bucket notifications, as far as they concern the REST front, through boto3.

Source: ceph/ceph, src/test/rgw/bucket_notification/test_bn.py. The names below are names of Ceph's tests. These tests
start an RGW and a receiver, and write objects. This file has the requests and expectations of Ceph's tests, rewritten.
An inlet reports the objects in place of RGW, and the topics' records are read from the queue.

Adopted here:

- test_topic, test_topic_admin, test_topic_name: topics are made, made again, shown and deleted, and names are checked.
- test_list_topics: the topics of one user are listed.
- test_notification_configuration(_admin): three configurations are put, one is shown, one is deleted, and all are
  deleted.
- test_notification_empty_config: an empty put removes all configurations.
- test_notification_filter_amqp: filters by prefix, suffix, regex and metadata, and ids in records.
- test_notification_errors: an unknown event, name, ARN, topic or bucket.
- test_metadata_filter_*, test_tags_amqp: filters by metadata and by tags, also for deletions.
- test_versioned_deletion_amqp: a configuration takes one kind of deletion.
- test_opaque_data, test_persistent_topic_configs_*: attributes are stored and used.
- test_persistent_multiple_endpoints_*: two puts of one configuration each, with on_put=merge.
- test_persistent_topic_stats_*, test_kafka_batch_size(_mismatch): an endpoint is changed by making its topic again.
- test_notification_caching, test_connection_caching: one attribute is changed, namely the endpoint or `use-ssl`.
- test_topic_migration_to_an_account: the same id is put with another topic.

Adopted in test_ceph_suite_messages: the tests that read the messages that a receiver got.

Not applicable, with the reason:

- test_notification_amqp, _kafka, _kafka_multiple_brokers_*, _kafka_security_*, …_idle*, test_creation_triggers_ssl,
  _external, test_persistent_notification_amqp, _kafka, _http, _pushback: messages through brokers, TLS, and a slow
  endpoint. `s3notify deliver` sends these messages. This command is tested in tests/unit/channels/delivery and
  tests/contracts.
- test_lifecycle_abort_mpu: the abort of an upload changes no object, so no topic here gets an event for it.
- test_ps_s3_x_amz_request_id_on_master: RGW makes the request's id. RGW's posts are received in tests/ceph.
- test_persistent_cleanup, _reload, _topic_dump, *_sharded_topic_*, test_1K_topics: they test RGW's queue. Our queue is
  tested in tests/unit/protocols/notification_queue and tests/simulation, and shown by `s3notify topics stats` and
  `dump`.
- test_list_topics_migration, _v1, test_data_path_v2_*: they test RGW's formats of topics. One of these tests puts 110
  configurations on a bucket. The front allows 100 configurations on a bucket, as S3 does.
- test_topic_permissions_*, test_topic_no_permissions, …_account, tenants, `Policy`: they test RGW's users. The front
  gives each key all permissions.
- test_topic_with_secret, test_topic_update, test_notification_update, test_multiple_topics_notification,
  test_persistent_gateways_recovery and test_persistent_multiple_gateways have no body in Ceph's file.

Differences:

- `s3notify topics` is used in place of radosgw-admin.
- GetTopic, ListTopics and ?notification=ID are signed with version 4. The front refuses version 2.
- If two configurations of one topic take the same change, RGW sends two records. The front sends one record, with the
  first id.
- RGW allows two tags with the same name. S3 does not.
- A topic is persistent by default. In RGW, a topic is persistent only if it has persistent=true.
- No attribute contains a secret. Instead, `login-env` names an environment variable of the worker.
- Kafka's login mechanism is set by `?sasl=` in the URL, and not by the attribute `mechanism`.
"""

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from botocore.exceptions import ClientError

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.messages import FORMATS
from s3notify_platform.protocols.notification_queue import Event
from tests.support.front import BUCKET, HTTP, REGION, Front, configured, running_front, topic

AMQP = {
    "push-endpoint": "amqp://127.0.0.1:7001/vhost_1",
    "amqp-exchange": "amqp.direct",
    "amqp-ack-level": "none",
}


def elements(text: str) -> list[tuple[str, str]]:
    return [(part.tag.rpartition("}")[2], part.text or "") for part in ET.fromstring(text).iter()]


def value(text: str, name: str) -> str:
    return next(found for tag, found in elements(text) if tag == name)


def found(front: Front) -> list[dict[str, Any]]:
    got = front.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)
    return got.get("TopicConfigurations", [])


def key_filter(**rules: str) -> dict[str, Any]:
    return {"Key": {"FilterRules": [{"Name": name, "Value": text} for name, text in rules.items()]}}


def test_topics_are_created_shown_and_deleted(front: Front) -> None:
    """Otherwise clients of SNS could not manage topics. An ARN names the region and the topic."""
    sns = front.client("sns")
    arns = [topic(front, "t_1", **AMQP)]
    arns += [topic(front, f"t_{n}", **{"push-endpoint": f"http://127.0.0.1:900{n}"}) for n in (2, 3)]
    assert arns == [f"arn:aws:sns:{REGION}::t_{n}" for n in (1, 2, 3)]
    status, shown = front.action("GetTopic", TopicArn=arns[2])
    assert status == 200
    assert value(shown, "TopicArn") == arns[2]
    assert value(shown, "EndpointAddress") == "http://127.0.0.1:9003"
    assert value(shown, "Persistent") == "true"
    assert topic(front, "t_3", **{"push-endpoint": "http://127.0.0.1:9003"}) == arns[2]  # an existing topic
    sns.delete_topic(TopicArn=arns[0])
    status, shown = front.action("GetTopic", TopicArn=arns[0])
    assert (status, value(shown, "Code")) == (404, "NotFound")
    assert [each["TopicArn"] for each in sns.list_topics()["Topics"]] == arns[1:]
    sns.delete_topic(TopicArn=arns[0])  # the deletion of a missing topic is no error
    for arn in arns[1:]:
        sns.delete_topic(TopicArn=arn)
    assert sns.list_topics()["Topics"] == []


@pytest.mark.parametrize("name", ["a+b_topic", "", "A", "a" * 64, "a/b"])
def test_invalid_names_of_topics_are_refused(front: Front, name: str) -> None:
    status, said = front.action("CreateTopic", Name=name)
    assert (status, value(said, "Code")) == (400, "InvalidParameter")


def test_configurations_are_put_shown_and_deleted(front: Front) -> None:
    """Otherwise clients of S3 could not manage notifications with filters by key, metadata or tags."""
    arn = topic(front, **AMQP)
    wanted = [
        {
            "Id": "n_1",
            "TopicArn": arn,
            "Events": ["s3:ObjectCreated:*"],
            "Filter": key_filter(prefix="test", suffix="txt"),
        },
        {
            "Id": "n_2",
            "TopicArn": arn,
            "Events": ["s3:ObjectRemoved:*"],
            "Filter": {
                "Metadata": {
                    "FilterRules": [
                        {"Name": "x-amz-meta-foo", "Value": "bar"},
                        {"Name": "x-amz-meta-hello", "Value": "world"},
                    ]
                }
            },
        },
        {
            "Id": "n_3",
            "TopicArn": arn,
            "Events": [],
            "Filter": {
                "Tags": {"FilterRules": [{"Name": "tag1", "Value": "v 1"}, {"Name": "Tag2", "Value": "v&2"}]}
            },
        },
    ]
    configured(front, *wanted)
    assert [each if each.get("Events") else each | {"Events": []} for each in found(front)] == wanted
    status, one = front.ask("GET", f"/{BUCKET}?notification=n_1")
    assert status == 200
    assert [text for tag, text in elements(one) if tag in ("Id", "Topic")] == ["n_1", arn]
    status, _ = front.ask("DELETE", f"/{BUCKET}?notification=n_2")
    assert status == 204
    assert [each["Id"] for each in found(front)] == ["n_1", "n_3"]
    status, said = front.ask("GET", f"/{BUCKET}?notification=n_2")
    assert (status, value(said, "Code")) == (404, "NoSuchKey")
    assert front.ask("DELETE", f"/{BUCKET}?notification")[0] == 204
    assert found(front) == []
    assert front.ask("DELETE", f"/{BUCKET}?notification=n_1")[0] == 204


def test_an_empty_put_removes_all_configurations(front: Front) -> None:
    """In Ceph, a put with configurations only adds them. Without the empty put, Ceph's clients could not remove all
    configurations with one request.
    """
    configured(front, {"Id": "n_1", "TopicArn": topic(front), "Events": []})
    assert [each["Id"] for each in found(front)] == ["n_1"]
    configured(front)
    assert found(front) == []


def test_filters_select_changes_by_key_and_metadata() -> None:
    """Otherwise a receiver would get the wrong changes, or would not learn which configuration selected them. A second
    put keeps the first configuration, as in Ceph.
    """
    with running_front(on_put="merge") as front:
        arn = topic(front)
        created = {"TopicArn": arn, "Events": ["s3:ObjectCreated:*"]}
        configured(
            front,
            {"Id": "n_1", **created, "Filter": key_filter(prefix="hello")},
            {"Id": "n_2", **created, "Filter": key_filter(prefix="world", suffix="log")},
            {"Id": "n_3", "TopicArn": arn, "Events": [], "Filter": key_filter(regex=r"([a-z]+)\.txt")},
        )
        meta = [
            {"Name": f"x-amz-meta-{name}", "Value": text}
            for name, text in (("foo", "bar"), ("hello", "world"))
        ]
        both = {"Metadata": {"FilterRules": meta}, **key_filter(regex="([a-z]+)")}
        configured(front, {**created, "Id": "n_4", "Filter": both})
        names = {rule["Name"] for each in found(front) for rule in each["Filter"]["Key"]["FilterRules"]}
        assert names == {"prefix", "suffix", "regex"}
        expected = {
            "n_1": ["hello.kaboom", "hello.txt", "hello123.txt", "hello"],
            "n_2": ["world1.log", "world2log", "world3.log"],
            "n_3": ["hell.txt", "worldlog.txt"],
        }
        filtered = [
            "hell.kaboom",
            "world.og",
            "world.logg",
            "he123ll.txt",
            "wo",
            "log",
            "h",
            "txt",
            "world.log.txt",
        ]
        keys = [key for of_one in expected.values() for key in of_one]
        front.changed(*(Event(key=key, bucket=BUCKET) for key in (*keys, *filtered)))
        has = {"foo": "bar", "hello": "world", "goodbye": "cruel world"}
        front.changed(*(Event(key=key, bucket=BUCKET, metadata=has) for key in ("foo", "bar", "world")))
        front.changed(
            *(Event(key=key, bucket=BUCKET, metadata=has | {"foo": "nobar"}) for key in ("nofoo", "nobar"))
        )
        taken = {key: identity for identity, of_one in expected.items() for key in of_one}
        assert front.delivered("prefix-1_topic") == taken | {"foo": "n_4", "bar": "n_4", "world": "n_4"}


def test_filters_by_tags_and_metadata_apply_to_deletions(front: Front) -> None:
    """Otherwise filters by tags or metadata would miss deletions. RGW reports tags and metadata for deletions, too."""
    arn = topic(front)
    tags = [{"Name": "hello", "Value": "world"}, {"Name": "ka", "Value": "boom"}]
    meta = [{"Name": "x-amz-meta-meta1", "Value": "This is my metadata value"}]
    events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
    configured(
        front,
        {"Id": "tags", "TopicArn": arn, "Events": events, "Filter": {"Tags": {"FilterRules": tags}}},
        {"Id": "meta", "TopicArn": arn, "Events": events, "Filter": {"Metadata": {"FilterRules": meta}}},
    )
    for op in ("put", "delete"):
        front.changed(
            Event(key=f"{op}1", op=op, bucket=BUCKET, tags={"hello": "world", "ka": "boom"}),
            Event(key=f"{op}2", op=op, bucket=BUCKET, tags={"hello": "world", "foo": "bar", "ka": "boom"}),
            Event(key=f"{op}3", op=op, bucket=BUCKET),
            Event(key=f"{op}4", op=op, bucket=BUCKET, tags={"hello": "helloworld", "ka": "boom"}),
            Event(key=f"{op}5", op=op, bucket=BUCKET, tags={"hello": "world"}),
            Event(key=f"{op}6", op=op, bucket=BUCKET, metadata={"meta1": "This is my metadata value"}),
            Event(key=f"{op}7", op=op, bucket=BUCKET, metadata={"meta1": "kaboom"}),
        )
    assert front.delivered("prefix-1_topic") == {
        key: identity
        for op in ("put", "delete")
        for key, identity in ((f"{op}1", "tags"), (f"{op}2", "tags"), (f"{op}6", "meta"))
    }


def test_filters_distinguish_kinds_of_deletions(front: Front) -> None:
    """Otherwise a receiver would get the wrong deletions. If several configurations match, the event names the first
    one.
    """
    arn = topic(front)
    configured(
        front,
        {"Id": "n_2", "TopicArn": arn, "Events": ["s3:ObjectRemoved:DeleteMarkerCreated"]},
        {"Id": "n_3", "TopicArn": arn, "Events": ["s3:ObjectRemoved:Delete"]},
        {"Id": "n_1", "TopicArn": arn, "Events": ["s3:ObjectRemoved:*"]},
    )
    front.changed(
        Event(key="put", bucket=BUCKET),
        Event(key="marked", op="delete", bucket=BUCKET, name="ObjectRemoved:DeleteMarkerCreated"),
        Event(key="version", op="delete", bucket=BUCKET, version_id="v1"),
    )
    assert front.delivered("prefix-1_topic") == {"marked": "n_2", "version": "n_3"}


@pytest.mark.parametrize(
    ("configuration", "code"),
    [
        ({"Events": ["s3:ObjectCreated:Kaboom"]}, "InvalidArgument"),
        ({"Id": ""}, "InvalidArgument"),
        ({"TopicArn": "kaboom"}, "InvalidArgument"),
        ({"TopicArn": "arn:aws:sns:a::kaboom"}, "InvalidArgument"),
        ({"TopicArn": f"arn:aws:sns:{REGION}::kaboom"}, "InvalidArgument"),
        ({"TopicArn": "arn:aws:sns:a::prefix-1_topic"}, "InvalidArgument"),
    ],
)
def test_invalid_configurations_are_refused(front: Front, configuration: dict[str, Any], code: str) -> None:
    """Otherwise a put with one invalid configuration would still change the other configurations."""
    good = {"Id": "n", "TopicArn": topic(front), "Events": ["s3:ObjectCreated:Put"]}
    configured(front, good)
    with pytest.raises(ClientError) as error:
        configured(front, good | {"Id": "other"}, good | configuration)
    assert error.value.response["Error"]["Code"] == code
    assert found(front) == [good]


def test_another_bucket_is_not_found(front: Front) -> None:
    with pytest.raises(ClientError) as error:
        configured(
            front, {"Id": "n", "TopicArn": topic(front), "Events": ["s3:ObjectCreated:Put"]}, bucket="kaboom"
        )
    assert error.value.response["Error"]["Code"] == "NoSuchBucket"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_attributes_are_stored_and_used(front: Front) -> None:
    """Otherwise records would lack the opaque data, or entries would have another lifetime or number of retries."""
    given = {
        **HTTP,
        "OpaqueData": "http://1.2.3.4:8888",
        "persistent": "true",
        "time_to_live": "30",
        "max_retries": "7",
        "retry_sleep_duration": "2",
    }
    arn = topic(front, "t", **given)
    configured(front, {"Id": "n", "TopicArn": arn, "Events": []})
    front.changed(Event(key="k", bucket=BUCKET))
    settings = front.queue.topics.get("t").settings
    assert (settings.ttl_seconds, settings.max_attempts, settings.retry_seconds) == (30.0, 7, 2.0)
    (entry,) = front.queue.entries("t", range(1000))
    opaque = Endpoint.loads(settings.endpoint).opaque_data
    (record,) = json.loads(FORMATS["s3"].batch([entry], opaque)[1])["Records"]
    assert (record["opaqueData"], record["s3"]["configurationId"]) == ("http://1.2.3.4:8888", "n")
    attributes = front.client("sns").get_topic_attributes(TopicArn=arn)["Attributes"]
    assert attributes["OpaqueData"] == "http://1.2.3.4:8888"
    shown = json.loads(attributes["EndPoint"])
    assert shown["EndpointAddress"] == HTTP["push-endpoint"]
    assert (shown["TimeToLive"], shown["MaxRetries"], shown["RetrySleepDuration"]) == ("30", "7", "2")


def test_an_endpoint_can_be_changed(front: Front) -> None:
    """Otherwise queued entries would be lost when the endpoint changes. A client changes the endpoint by creating the
    topic again, or by setting one attribute.
    """
    arn = topic(front, "t")
    configured(front, {"Id": "n", "TopicArn": arn, "Events": []})
    front.changed(Event(key="k", bucket=BUCKET))
    topic(front, "t", **{"push-endpoint": "http://127.0.0.1:9002", "OpaqueData": "mine"})
    sns = front.client("sns")
    sns.set_topic_attributes(TopicArn=arn, AttributeName="max_retries", AttributeValue="3")
    settings = front.queue.topics.get("t").settings
    endpoint = Endpoint.loads(settings.endpoint)
    assert (endpoint.url, endpoint.opaque_data) == ("http://127.0.0.1:9002", "mine")
    assert settings.max_attempts == 3
    assert front.delivered("t") == {"k": "n"}
    assert [each["Id"] for each in found(front)] == ["n"]


def test_tls_to_a_broker_can_be_switched_on_and_off(front: Front) -> None:
    """Otherwise a change of `use-ssl` would change the broker's host or port."""
    arn = topic(
        front, "t", **{"push-endpoint": "kafka://broker.example", "use-ssl": "true", "OpaqueData": "o"}
    )
    sns = front.client("sns")
    for value_of, url in (("false", "kafka://broker.example:9092"), ("true", "kafkas://broker.example:9092")):
        sns.set_topic_attributes(TopicArn=arn, AttributeName="use-ssl", AttributeValue=value_of)
        endpoint = Endpoint.loads(front.queue.topics.get("t").settings.endpoint)
        assert (endpoint.url, endpoint.opaque_data) == (url, "o")


@pytest.mark.parametrize(("on_put", "left"), [("merge", {"n_1", "n_2"}), ("replace", {"n_2"})])
def test_a_second_put_merges_or_replaces_configurations(on_put: str, left: set[str]) -> None:
    """Otherwise a put with `merge` would remove other configurations, or a put with `replace` would keep them. Two
    configurations never have the same id.
    """
    with running_front(on_put=on_put) as front:
        one, other = topic(front, "one"), topic(front, "other")
        configured(front, {"Id": "n_1", "TopicArn": one, "Events": ["s3:ObjectCreated:*"]})
        configured(front, {"Id": "n_2", "TopicArn": one, "Events": ["s3:ObjectCreated:*"]})
        if on_put == "replace":
            assert [each["Id"] for each in found(front)] == ["n_2"]
        second = {"Id": "n_2", "TopicArn": other, "Events": ["s3:ObjectRemoved:*"]}
        configured(front, second)
        configured(front, second)
        assert {each["Id"] for each in found(front)} == left
        assert [each for each in found(front) if each["Id"] == "n_2"] == [second]
