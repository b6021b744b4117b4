"""Requests to services by which events are set up: what is asked again, what is not, and what a policy is."""

from collections.abc import Iterator

import pytest

from s3notify_platform.kernel.errors import RefusedError, UnavailableError, UsageError
from s3notify_platform.stores.aws.service_requests import ServiceConfig, ServiceRequests, policy_in
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HurriedClock
from tests.support.servers import S3Server


def of(url: str, name: str = "sqs") -> ServiceRequests:
    config = ServiceConfig(name=name, endpoint_url=url, access_key_id="test", secret_access_key="test")
    return ServiceRequests(config, clock=HurriedClock())


@pytest.fixture
def proxy(ministack: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(ministack.endpoint_url) as proxy:
        yield proxy


@pytest.mark.server
@pytest.mark.parametrize("fault", ["lose_request", "lose_response", "500", "503", "throttle"])
def test_an_outage_is_outlasted(proxy: FaultProxy, fault: object) -> None:
    proxy.faults.extend([fault] * 4)  # type: ignore[list-item]
    assert of(proxy.url).ask("list_queues", QueueNamePrefix="no-such-queue") is not None
    assert len(proxy.requests) == 5
    proxy.faults.extend([fault] * 9)  # type: ignore[list-item]
    with pytest.raises(UnavailableError, match=f"SQS at {proxy.url} is unavailable"):
        of(proxy.url).ask("list_queues")
    assert len(proxy.requests) == 10


@pytest.mark.server
@pytest.mark.parametrize(
    ("service", "operation", "arguments"),
    [
        ("sqs", "get_queue_url", {"QueueName": "no-such-queue"}),
        ("sns", "get_topic_attributes", {"TopicArn": "arn:aws:sns:us-east-1:000000000000:none"}),
        ("events", "describe_rule", {"Name": "no-such-rule"}),
        (
            "events",
            "list_tags_for_resource",
            {"ResourceARN": "arn:aws:events:us-east-1:000000000000:rule/none"},
        ),
    ],
)
def test_what_does_not_exist(
    proxy: FaultProxy, service: str, operation: str, arguments: dict[str, str]
) -> None:
    """Is no error, and asked about once."""
    assert of(proxy.url, service).ask(operation, **arguments) is None
    assert len(proxy.requests) == 1


@pytest.mark.server
def test_what_is_refused(proxy: FaultProxy) -> None:
    """Once, with what the service says."""
    with pytest.raises(RefusedError, match=r"EVENTS at .* refused the request: 400 InvalidEventPattern"):
        of(proxy.url, "events").ask("put_rule", Name="rule", EventPattern="no pattern")
    assert len(proxy.requests) == 1


def test_nobody_there() -> None:
    with pytest.raises(UnavailableError, match=r"SNS at http://127\.0\.0\.1:9"):
        of("http://127.0.0.1:9", "sns").ask("list_topics")


def test_policies() -> None:
    """One statement may stand without a list; what is no policy is named."""
    assert policy_in(None, "q")["Statement"] == []
    assert policy_in('{"Version": "2008-10-17", "Id": "x", "Statement": {"Sid": "a"}}', "q") == {
        "Version": "2008-10-17", "Id": "x", "Statement": [{"Sid": "a"}],
    }  # fmt: skip
    for text in ("{", "[]", "{}", "7"):
        with pytest.raises(UsageError, match="queue 'q': its policy cannot be read"):
            policy_in(text, "queue 'q'")
