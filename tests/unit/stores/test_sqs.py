"""The SQS adapter, on moto."""

import json

import boto3
import pytest

from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import Message
from s3notify_platform.stores.config import SqsConfig
from s3notify_platform.stores.sqs import SqsQueue


@pytest.fixture
def client(moto_aws):
    return boto3.session.Session().client("sqs", region_name="us-east-1")


@pytest.fixture
def queue(client):
    url = client.create_queue(QueueName="events")["QueueUrl"]
    return SqsQueue(SqsConfig(queue_url=url))


def receive(queue, **settings):
    return queue.receive(
        wait_seconds=0, visibility_seconds=settings.pop("visibility_seconds", 30), **settings
    )


def test_messages_are_received_and_hidden_and_deleted(client, queue):
    """Otherwise messages beyond a batch of ten would be skipped, or hidden messages would not return."""
    for number in range(12):
        client.send_message(QueueUrl=queue.config.queue_url, MessageBody=f"m{number}")
    messages = [*receive(queue), *receive(queue)]
    assert sorted(m.body for m in messages) == sorted(f"m{n}" for n in range(12))
    assert {m.receives for m in messages} == {1}
    assert receive(queue) == ()
    assert queue.hide(messages, 0) == ()
    again = [*receive(queue), *receive(queue)]
    assert len(again) == 12
    assert {m.receives for m in again} == {2}
    assert queue.delete(again) == ()
    assert queue.hide([], 0) == ()
    assert receive(queue) == ()


def test_messages_that_failed_in_a_batch_are_returned(client, queue):
    client.send_message(QueueUrl=queue.config.queue_url, MessageBody="m")
    (message,) = receive(queue)
    gone = Message(id="x", body="", receipt="unknown", receives=1)
    assert queue.delete([message, gone]) == (gone,)


def test_the_redrive_policy_is_read(client, queue):
    """Otherwise an inlet would delete malformed messages, or leave them in a queue without a dead-letter queue."""
    assert queue.max_receives() is None
    dead = client.create_queue(QueueName="dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    client.set_queue_attributes(
        QueueUrl=queue.config.queue_url,
        Attributes={"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 7})},
    )
    assert queue.max_receives() == 7


def test_a_missing_queue_is_reported(queue):
    missing = SqsQueue(SqsConfig(queue_url=queue.config.queue_url + "x"))
    with pytest.raises(UsageError, match="eventsx"):
        receive(missing)
    missing.close()


def test_an_unreachable_queue_is_unavailable():
    """Otherwise an outage would end the inlet, or the error would show a credential."""
    queue = SqsQueue(
        SqsConfig(
            queue_url="http://127.0.0.1:9/q",
            endpoint_url="http://127.0.0.1:9",
            access_key_id="the-id",
            secret_access_key="the-secret",
        )
    )
    with pytest.raises(UnavailableError, match="EndpointConnectionError") as found:
        receive(queue)
    assert "the-" not in str(found.value) + repr(queue.config)
    assert len(queue.delete([Message(id="x", body="", receipt="r", receives=1)])) == 1
    queue.close()
