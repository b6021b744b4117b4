"""Requests for the setup of events, to AWS's services: retries, refusals and policies."""

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
def test_requests_are_retried_in_an_outage(proxy: FaultProxy, fault: object) -> None:
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
def test_a_missing_resource_is_none(
    proxy: FaultProxy, service: str, operation: str, arguments: dict[str, str]
) -> None:
    """Otherwise a missing queue, topic or rule would end the setup, or be requested again."""
    assert of(proxy.url, service).ask(operation, **arguments) is None
    assert len(proxy.requests) == 1


@pytest.mark.server
def test_a_refused_request_is_not_repeated(proxy: FaultProxy) -> None:
    """Otherwise a request with a wrong argument would be repeated, or the service's reason would be hidden."""
    with pytest.raises(RefusedError, match=r"EVENTS at .* refused the request: 400 InvalidEventPattern"):
        of(proxy.url, "events").ask("put_rule", Name="rule", EventPattern="no pattern")
    assert len(proxy.requests) == 1


def test_an_unreachable_service_is_reported() -> None:
    with pytest.raises(UnavailableError, match=r"SNS at http://127\.0\.0\.1:9"):
        of("http://127.0.0.1:9", "sns").ask("list_topics")


def test_policies_are_parsed_or_refused() -> None:
    """Otherwise a policy whose only statement is not in a list could not be read, or a text that is no policy would be
    overwritten.
    """
    assert policy_in(None, "q")["Statement"] == []
    assert policy_in('{"Version": "2008-10-17", "Id": "x", "Statement": {"Sid": "a"}}', "q") == {
        "Version": "2008-10-17", "Id": "x", "Statement": [{"Sid": "a"}],
    }  # fmt: skip
    for text in ("{", "[]", "{}", "7"):
        with pytest.raises(UsageError, match="queue 'q': its policy is not valid JSON with a Statement"):
            policy_in(text, "queue 'q'")
