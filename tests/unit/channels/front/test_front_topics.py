"""Topics by SNS's actions: attributes, invalid requests, and topics that the front does not touch."""

from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.front import sns_topics
from s3notify_platform.channels.front.topic_attributes import attributes_of, settings_of
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import Event, Rule, Topic, TopicSettings, TopicUser
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.front import BUCKET, REGION, Front, running_front

URL = "https://hooks.example.com/s3"


def code_of(error: Any) -> tuple[int, str]:
    response = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def endpoint_of(front: Front, name: str) -> Endpoint:
    return Endpoint.loads(front.queue.topics.get(name).settings.endpoint)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"push-endpoint": URL}, {"url": URL}),
        ({"push-endpoint": URL, "verify-ssl": "false"}, {"verify": False}),
        (
            {"push-endpoint": URL, "cloudevents": "true", "ca-location": "ours.pem"},
            {"format": "cloudevents-binary", "ca_file": "ours.pem", "events_max": 1},
        ),
        (
            {"push-endpoint": "amqps://mq.example/v", "amqp-exchange": "ex 1", "amqp-ack-level": "broker"},
            {"url": "amqps://mq.example/v?exchange=ex%201&ack=broker"},
        ),
        (
            {"push-endpoint": "kafka://k.example/t", "use-ssl": "true", "kafka-ack-level": "none"},
            {"url": "kafkas://k.example:9092/t?ack=none"},
        ),
        (
            {"push-endpoint": "kafka://k.example?sasl=PLAIN", "kafka-brokers": "k2.example:99,k3.example"},
            {
                "url": "kafka://k.example?sasl=PLAIN&brokers=k2.example:99,k3.example",
                "brokers": ("k.example:9092", "k2.example:99", "k3.example:9092"),
            },
        ),
        ({"push-endpoint": "kafka://k.example:99", "use-ssl": "TRUE"}, {"url": "kafkas://k.example:99"}),
        (
            {"push-endpoint": URL, "secret-env": "S3NOTIFY_PUSH_A", "login-env": "S3NOTIFY_SEND_A"},
            {"secret_env": "S3NOTIFY_PUSH_A", "login_env": "S3NOTIFY_SEND_A"},
        ),
    ],
)
def test_attributes_become_settings(
    front: Front, attributes: dict[str, str], expected: dict[str, Any]
) -> None:
    """Otherwise a topic would be delivered in another way than its attributes say, or the front would show wrong
    attributes.
    """
    arn = front.client("sns").create_topic(Name="t", Attributes=attributes)["TopicArn"]
    endpoint = endpoint_of(front, "t")
    assert {name: getattr(endpoint, name) for name in expected} == expected
    settings = front.queue.topics.get("t").settings
    assert settings_of(attributes_of(settings)).endpoint == settings.endpoint
    assert front.client("sns").get_topic_attributes(TopicArn=arn)["Attributes"]["TopicArn"] == arn


@given(
    ttl=st.none() | st.integers(1, 10**9 - 1),
    attempts=st.none() | st.integers(1, 10**9 - 1),
    retry=st.none() | st.integers(0, 86_400),
)
def test_numbers_survive_conversion_to_settings_and_back(
    ttl: int | None, attempts: int | None, retry: int | None
) -> None:
    """Otherwise a topic would change when a client reads its attributes and writes them back. The value `None` means
    the default.
    """
    named = {"time_to_live": ttl, "max_retries": attempts, "retry_sleep_duration": retry}
    settings = settings_of({name: str(number) for name, number in named.items()})
    assert settings_of(attributes_of(settings)) == settings
    assert settings_of({}) == TopicSettings(without_rules="none")


def test_an_attribute_changes_only_the_setting_that_it_describes(front: Front) -> None:
    """Otherwise a client that changes one attribute would reset an operator's settings, even settings that no attribute
    can express.
    """
    arn = front.client("sns").create_topic(Name="t", Attributes={"push-endpoint": URL})["TopicArn"]
    endpoint = Endpoint(url=URL, batch_size=1, concurrency=1, timeout_seconds=60.0, format="cloudevents")
    before = replace(
        front.queue.topics.get("t").settings,
        endpoint=endpoint.dumps(),
        retry_seconds=0.4,
        ttl_seconds=None,
        max_attempts=5,
    )
    for name, value, expected in (
        ("max_retries", "7", {"max_attempts": 7}),
        ("OpaqueData", "x", {"endpoint": replace(endpoint, opaque_data="x").dumps()}),
        ("cloudevents", "false", {"endpoint": replace(endpoint, format="s3").dumps()}),
        ("cloudevents", "true", {"endpoint": replace(endpoint, format="cloudevents-binary").dumps()}),
        ("retry_sleep_duration", "0", {"retry_seconds": 0.0}),
        ("time_to_live", "None", {"ttl_seconds": TopicSettings().ttl_seconds}),
        ("max_retries", "None", {"max_attempts": TopicSettings().max_attempts}),
    ):
        front.queue.topics.update("t", before)
        front.client("sns").set_topic_attributes(TopicArn=arn, AttributeName=name, AttributeValue=value)
        assert front.queue.topics.get("t").settings == replace(before, **expected)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"Policy": "{}"}, "there is no attribute 'Policy'"),
        ({"DisplayName": "t"}, "there is no attribute"),
        ({"user-name": "a", "password": "b"}, "there is no attribute"),
        ({"kafka-brokers": "a,b"}, "give a push-endpoint, too"),
        (
            {"push-endpoint": "kafka://k", "kafka-brokers": "user:password@k2:9092"},
            "give brokers as HOST:PORT",
        ),
        ({"push-endpoint": "kafka://k", "cloudevents": "true"}, "only for http endpoints"),
        ({"persistent": "false"}, "not persistent needs an endpoint"),
        ({"push-endpoint": URL, "persistent": "maybe"}, "persistent: give true or false"),
        ({"push-endpoint": "ftp://hooks.example.com"}, "give https://host/path"),
        ({"push-endpoint": "https://user:password@hooks.example.com"}, "must not contain a user, password"),
        ({"push-endpoint": "kafka://alice:secret@broker:9094", "use-ssl": "true"}, "must not contain a user"),
        ({"push-endpoint": "https://[::1"}, "Invalid IPv6"),
        ({"push-endpoint": "http://hooks\n.example.com"}, "printable ASCII"),
        ({"push-endpoint": "amqp://mq", "verify-ssl": "false"}, "only for http endpoints"),
        ({"push-endpoint": URL, "secret-env": "PATH"}, "S3NOTIFY_PUSH_"),
        ({"push-endpoint": URL, "login-env": "AWS_SECRET_ACCESS_KEY"}, "S3NOTIFY_SEND_"),
        ({"push-endpoint": URL, "OpaqueData": "x" * 2049}, "2048 printable"),
        ({"OpaqueData": "x"}, "give a push-endpoint, too"),
        ({"verify-ssl": "perhaps"}, "true or false"),
        ({"amqp-ack-level": "all"}, "none, broker, routable"),
        ({"kafka-ack-level": "routable"}, "none, broker"),
        ({"max_retries": "many"}, "a whole number"),
        ({"max_retries": "0"}, "must be at least 1"),
        ({"time_to_live": "0"}, "above 0"),
        ({"retry_sleep_duration": "1e9"}, "a whole number"),
    ],
)
def test_invalid_attributes_are_refused(front: Front, attributes: dict[str, str], why: str) -> None:
    """Otherwise a topic would be created that can never be delivered, or that reads the worker's secrets."""
    sns = front.client("sns")
    with pytest.raises(ClientError, match=why) as error:
        sns.create_topic(Name="t", Attributes=attributes)
    assert code_of(error) == (400, "InvalidParameter")
    assert front.queue.topics.all() == ()
    arn = sns.create_topic(Name="t", Attributes={"push-endpoint": URL})["TopicArn"]
    before = front.queue.topics.get("t")
    (name, value), *_ = attributes.items()
    with pytest.raises(ClientError):
        sns.create_topic(Name="t", Attributes=attributes)
    if len(attributes) == 1 and name not in ("OpaqueData", "kafka-brokers", "persistent"):
        with pytest.raises(ClientError):
            sns.set_topic_attributes(TopicArn=arn, AttributeName=name, AttributeValue=value)
    assert front.queue.topics.get("t") == before


def test_a_topic_may_have_no_endpoint(front: Front) -> None:
    """Creating a topic again without attributes must not remove its endpoint."""
    sns = front.client("sns")
    assert sns.create_topic(Name="t")["TopicArn"] == f"arn:aws:sns:{REGION}::t"
    sns.create_topic(Name="t", Attributes={"push-endpoint": URL})
    sns.create_topic(Name="t")
    assert endpoint_of(front, "t").url == URL


def test_topics_that_the_front_did_not_make_are_not_touched(front: Front) -> None:
    """Otherwise a client of the front could see, change or delete the topics of sources."""
    topics = front.queue.topics
    topics.create("orders", TopicSettings(bucket=BUCKET, rules=(Rule(id="n", bucket=BUCKET, prefix="raw/"),)))
    topics.create("served", TopicSettings(without_rules="none"))
    topics.serve(topics.get("served"), TopicUser(table="table", slots=1000))
    sns, s3 = front.client("sns"), front.client("s3")
    assert [each["TopicArn"] for each in sns.list_topics()["Topics"]] == [f"arn:aws:sns:{REGION}::served"]
    before = topics.all()
    arn = f"arn:aws:sns:{REGION}::orders"
    for call, expected in (
        (
            lambda: sns.create_topic(Name="orders", Attributes={"push-endpoint": URL}),
            (400, "InvalidParameter"),
        ),
        (lambda: sns.create_topic(Name="orders"), (400, "InvalidParameter")),
        (lambda: sns.get_topic_attributes(TopicArn=arn), (404, "NotFound")),
        (
            lambda: sns.set_topic_attributes(TopicArn=arn, AttributeName="max_retries", AttributeValue="1"),
            (404, "NotFound"),
        ),
        (lambda: sns.delete_topic(TopicArn=arn), (403, "AuthorizationError")),
        (lambda: sns.delete_topic(TopicArn=arn.replace("orders", "served")), (403, "AuthorizationError")),
        (
            lambda: s3.put_bucket_notification_configuration(
                Bucket=BUCKET,
                NotificationConfiguration={
                    "TopicConfigurations": [{"Id": "n", "TopicArn": arn, "Events": ["s3:ObjectCreated:*"]}]
                },
            ),
            (400, "InvalidArgument"),
        ),
    ):
        with pytest.raises(ClientError) as error:
            call()
        assert code_of(error) == expected
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket=BUCKET)
    s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration={})
    assert topics.all() == before


def test_topics_are_listed_in_pages(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise boto3's paginator would miss topics, or repeat them."""
    monkeypatch.setattr(sns_topics, "PAGE", 2)
    sns = front.client("sns")
    made = [sns.create_topic(Name=f"t{n}")["TopicArn"] for n in range(5)]
    pages = [page["Topics"] for page in sns.get_paginator("list_topics").paginate()]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [topic["TopicArn"] for page in pages for topic in page] == made


@pytest.mark.parametrize(
    ("action", "parameters", "status", "code"),
    [
        ("Publish", {"TopicArn": "x"}, 400, "InvalidAction"),
        ("", {}, 400, "InvalidAction"),
        ("CreateTopic", {}, 400, "InvalidParameter"),
        ("CreateTopic", {"Name": "t", "Tags.member.1.Key": "a"}, 400, "InvalidParameter"),
        ("CreateTopic", {"Name": "t", "Attributes.entry.1.key": "OpaqueData"}, 400, "InvalidParameter"),
        (
            "CreateTopic",
            {
                "Name": "t",
                **{f"Attributes.entry.{n}.key": "OpaqueData" for n in (1, 2)},
                **{f"Attributes.entry.{n}.value": "a" for n in (1, 2)},
            },
            400,
            "InvalidParameter",
        ),
        ("CreateTopic", {f"n{n}": "" for n in range(201)}, 400, "InvalidParameter"),
        ("GetTopic", {}, 400, "InvalidParameter"),
        ("GetTopic", {"TopicArn": "kaboom"}, 400, "InvalidParameter"),
        ("GetTopic", {"TopicArn": f"arn:aws:sns:{REGION}::none"}, 404, "NotFound"),
        ("GetTopic", {"TopicArn": f"arn:aws:sns:{REGION}::../x"}, 404, "NotFound"),
        ("DeleteTopic", {"TopicArn": "kaboom"}, 400, "InvalidParameter"),
        ("SetTopicAttributes", {"TopicArn": f"arn:aws:sns:{REGION}::none"}, 404, "NotFound"),
    ],
)
def test_invalid_actions_are_refused(
    front: Front, action: str, parameters: dict[str, str], status: int, code: str
) -> None:
    answered, text = front.action(action, **parameters)
    assert (answered, f"<Code>{code}</Code>" in text) == (status, True), text
    assert text.startswith(
        '<?xml version="1.0" encoding="UTF-8"?>\n<ErrorResponse xmlns="https://sns.amazonaws.com/'
    )
    assert front.queue.topics.all() == ()


def test_bodies_that_are_not_a_form_are_refused(front: Front) -> None:
    """Otherwise two parsers could read the same signed body differently."""
    for body, headers in (
        (b'{"Action": "ListTopics"}', {"content-type": "application/json"}),
        (b"Action=ListTopics&x=\xff", {}),
        (b"Action=ListTopics&Action=DeleteTopic", {}),
    ):
        status, text = front.send("POST", "/", body, front.signed("POST", "/", body, headers))
        assert (status, "<Code>InvalidParameter</Code>" in text) == (400, True)


def test_answers_are_escaped(front: Front) -> None:
    """Otherwise a client could put XML elements into the answers that another client gets."""
    given_data = '<a href="x">&\'</a>'
    arn = front.client("sns").create_topic(
        Name="t", Attributes={"push-endpoint": f"{URL}?a=1&b=%3C", "OpaqueData": given_data}
    )["TopicArn"]
    assert front.client("sns").get_topic_attributes(TopicArn=arn)["Attributes"]["OpaqueData"] == given_data
    status, text = front.action("CreateTopic\x00<b>", Name="t")
    assert status == 400
    assert "<b>" not in text


def test_concurrent_changes_of_a_topic_are_both_applied(front: Front) -> None:
    """Otherwise rules that a notification adds during another change of the topic would be lost."""
    front.client("sns").create_topic(Name="t", Attributes={"push-endpoint": URL})
    rules = (Rule(id="n", bucket=BUCKET, suffix=".csv"),)
    changing = front.queue.topics.get("t").settings
    revised: list[TopicSettings] = []

    def revise(before: Topic) -> TopicSettings:
        if not revised:
            front.queue.topics.revise("t", lambda now: replace(now.settings, rules=rules))
        revised.append(settings_of({"push-endpoint": URL, "max_retries": "3"}, before.settings))
        return revised[-1]

    front.queue.topics.revise("t", revise)
    settings = front.queue.topics.get("t").settings
    assert len(revised) == 2
    assert (settings.rules, settings.max_attempts) == (rules, 3)
    assert settings.endpoint == changing.endpoint


def test_requests_are_answered_503_while_the_store_is_down(front: Front) -> None:
    """Otherwise clients would give up in an outage, since only 503 makes them retry."""
    records = front.queue.topics._records
    down = [True]

    def fault(call: Call) -> Fault:
        return Fault.THROTTLED if down[0] else Fault.NONE

    faulty = FaultyStore(records, fault)
    front.queue.topics._records = faulty
    front.queue.topics._updates._records = faulty
    with pytest.raises(ClientError) as error:
        front.client("sns").create_topic(Name="t")
    assert code_of(error) == (503, "ServiceUnavailable")
    with pytest.raises(ClientError) as error:
        front.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)
    assert code_of(error) == (503, "ServiceUnavailable")
    assert front.front.counts()["unavailable"] == 2
    down[0] = False
    assert front.client("sns").create_topic(Name="t")["TopicArn"]


def test_errors_that_only_an_operator_can_fix_are_answered_500(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise one such error would end the front, or would not be logged."""

    def broken(*_: object, **__: object) -> None:
        raise UsageError("no such bucket")

    topics = front.queue.topics
    all_, topics.all = topics.all, broken  # type: ignore[method-assign]
    with pytest.raises(ClientError) as error:
        front.client("sns").list_topics()
    assert code_of(error) == (500, "InternalError")
    assert "no such bucket" in caplog.text
    topics.all = all_  # type: ignore[method-assign]
    assert front.client("sns").list_topics()["Topics"] == []


def test_a_deleted_topic_loses_its_notifications_and_entries() -> None:
    """Otherwise a new topic with the same name would deliver entries of the deleted topic. SNS does not deliver entries
    of a deleted topic either.
    """
    with running_front() as front:
        sns, s3 = front.client("sns"), front.client("s3")
        arn = sns.create_topic(Name="t")["TopicArn"]
        configuration = {"Id": "n", "TopicArn": arn, "Events": ["s3:ObjectCreated:*"]}
        s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"TopicConfigurations": [configuration]}
        )
        front.changed(Event(key="k", bucket=BUCKET))
        sns.delete_topic(TopicArn=arn)
        assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket=BUCKET)
        sns.create_topic(Name="t")
        assert front.delivered("t") == {}
