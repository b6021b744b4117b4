"""Mistakes of clients in SNS's actions: each one is answered 4xx, never 500."""

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote_from_bytes

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.channels.front.topic_attributes import NAMES
from s3notify_platform.kernel.clock import SystemClock
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from tests.support.front import HTTP, REGION, Front, configured, running_front

URL = HTTP["push-endpoint"]
PUSHED = TopicSettings(without_rules="none", endpoint=f'{{"url":"{URL}"}}')
TOPICS = ("plain", "paused", "served", "source")


class Hurried(SystemClock):
    """A clock that does not wait."""

    def sleep(self, seconds: float) -> None:
        pass


@pytest.fixture
def hurried() -> Iterator[Front]:
    with running_front(clock=Hurried()) as made:
        yield made


def prepared(queue: NotificationQueue) -> None:
    """Replaces all topics by one topic for each state that an operator can give a topic."""
    for topic in queue.topics.all():
        queue.topics.delete(topic.name)
    queue.topics.create("plain", PUSHED)
    queue.topics.create("paused", PUSHED)
    queue.topics.pause("paused")
    queue.topics.create("served", replace(PUSHED, endpoint=""), tables=("table",))
    queue.topics.create("source", TopicSettings())


BYTES = st.binary(max_size=4) | st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass"))
VALUES = BYTES | st.sampled_from(
    (
        b"https://[::1",
        b"https://a:99999/",
        b"9" * 10,
        b"-1",
        b"1e9",
        b"nan",
        b"S3NOTIFY_PUSH_A",
        b"a:1,b",
        b"x" * 3000,
    )
)
NAMED = st.sampled_from([name.encode() for name in NAMES])
VALID = (
    ("push-endpoint", URL),
    ("push-endpoint", "kafka://k"),
    ("push-endpoint", ""),
    ("persistent", "false"),
    ("verify-ssl", "false"),
    ("OpaqueData", "x"),
    ("max_retries", "None"),
    ("time_to_live", "9"),
)
ATTRIBUTE = st.sampled_from([(name.encode(), value.encode()) for name, value in VALID]) | st.tuples(
    NAMED | BYTES, VALUES
)
KNOWN = st.sampled_from([name.encode() for name in TOPICS])
TOPIC = KNOWN | KNOWN | st.sampled_from((b"none", b"../x", b"")) | BYTES
ACTIONS = (
    *("CreateTopic", "SetTopicAttributes") * 3,
    *("GetTopic", "GetTopicAttributes", "ListTopics", "DeleteTopic", "Publish"),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """The body of a request: an action, and parameters that may be invalid."""
    action = draw(st.sampled_from(ACTIONS))
    wanted: dict[str, bytes] = {"Action": action.encode()}
    if action == "CreateTopic":
        wanted["Name"] = draw(TOPIC)
        attributes = draw(st.lists(ATTRIBUTE, max_size=3, unique_by=lambda pair: pair[0]))
        for number, (name, value) in enumerate(attributes, 1):
            wanted |= {f"Attributes.entry.{number}.key": name, f"Attributes.entry.{number}.value": value}
    elif action == "ListTopics":
        wanted["NextToken"] = draw(BYTES)
    else:
        wanted["TopicArn"] = draw(TOPIC.map(lambda name: f"arn:aws:sns:{REGION}::".encode() + name) | BYTES)
    if action == "SetTopicAttributes":
        wanted["AttributeName"], wanted["AttributeValue"] = draw(ATTRIBUTE)
    return "&".join(f"{name}={quote_from_bytes(value, safe='')}" for name, value in wanted.items()).encode()


def test_no_request_of_a_client_is_answered_500(hurried: Front) -> None:
    """Otherwise a client would interpret its own mistake as a fault of the service, and would repeat the request
    instead of correcting it.
    """

    @given(st.lists(requests(), min_size=1, max_size=4))
    def check(bodies: list[bytes]) -> None:
        prepared(hurried.queue)
        for body in bodies:
            status, text = hurried.ask("POST", "/", body)
            assert status in (200, 400, 403, 404), (body, text)
        assert hurried.action("ListTopics")[0] == 200

    check()


@pytest.mark.parametrize(
    ("name", "attributes", "why"),
    [
        ("paused", {"push-endpoint": URL, "persistent": "false"}, "is paused"),
        ("served", {"push-endpoint": URL}, "serves table table"),
    ],
)
def test_a_change_that_the_topic_does_not_allow_is_answered_400(
    hurried: Front, name: str, attributes: dict[str, str], why: str
) -> None:
    """Otherwise the client would not learn the reason, and the front's log would report a fault."""
    prepared(hurried.queue)
    before = hurried.queue.topics.get(name)
    (last, value) = [*attributes.items()][-1]
    given_attributes = {
        f"Attributes.entry.{n}.{part}": text
        for n, pair in enumerate(attributes.items(), 1)
        for part, text in zip(("key", "value"), pair, strict=True)
    }
    for action, parameters in (
        ("CreateTopic", {"Name": name, **given_attributes}),
        (
            "SetTopicAttributes",
            {"TopicArn": f"arn:aws:sns:{REGION}::{name}", "AttributeName": last, "AttributeValue": value},
        ),
    ):
        status, text = hurried.action(action, **parameters)
        assert (status, "<Code>InvalidParameter</Code>" in text, why in text) == (400, True, True), text
    assert hurried.queue.topics.get(name) == before


def test_a_parameter_that_is_not_utf_8_is_answered_400(hurried: Front) -> None:
    """Otherwise such an attribute would be stored, and each later ListTopics of all clients would be answered 500."""
    endpoint = f"Attributes.entry.1.key=push-endpoint&Attributes.entry.1.value={URL}"
    for last in (b"ca-location&Attributes.entry.2.value=%80", b"%80&Attributes.entry.2.value=", b"&%80="):
        body = f"Action=CreateTopic&Name=t&{endpoint}&Attributes.entry.2.key=".encode() + last
        status, text = hurried.ask("POST", "/", body)
        assert (status, "<Code>InvalidParameter</Code>" in text) == (400, True)
    assert hurried.queue.topics.all() == ()


def test_a_notification_that_its_topic_does_not_allow_is_answered_400(hurried: Front) -> None:
    """Otherwise a mistake that only the operator's command can correct would look like a fault of the front."""
    prepared(hurried.queue)
    hurried.queue.topics.update("plain", PUSHED, tables=("table",))
    with pytest.raises(ClientError, match="serves table table") as error:
        configured(
            hurried,
            {"Id": "n", "TopicArn": f"arn:aws:sns:{REGION}::plain", "Events": ["s3:ObjectCreated:*"]},
        )
    assert error.value.response["Error"]["Code"] == "InvalidArgument"
