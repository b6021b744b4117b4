"""Events of a real bucket reach the inlet through a real SQS queue; the server notifies by SQS or SNS."""

import contextlib
import json
import threading

import pytest

from s3notify_platform.channels.inlets.intake import intake_of
from s3notify_platform.channels.inlets.pull_inlet import PullInlet
from s3notify_platform.channels.service import ServiceContext, SourceKeyspace
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, signal_key
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.config import S3Config, SqsConfig
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.sqs import SqsQueue
from tests.support.waiting import until

pytestmark = pytest.mark.server

SIGNALS = "_s3notify/orders/keyspace/"
KEYS = ["raw/plain", "raw/a b+c%2F/ü&=.json", "raw/日本語/ключ/🙂.parquet", "raw/\u00a0'\"<>"]


class World:
    """A bucket that sends events to an SQS queue, and the platform in another bucket."""

    def __init__(self, server, by="sqs", *, versioned=False):
        self.server = server
        self.bucket, self.platform = server.make_bucket(), server.make_bucket()
        self.store = S3ObjectStore(server.config(self.bucket))
        self.signals = S3ObjectStore(server.config(self.platform))
        session = self._session()
        self.sqs, self.sns, self.events = session("sqs"), session("sns"), session("events")
        self.url = self.sqs.create_queue(QueueName=self.bucket)["QueueUrl"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        self.arn = found["Attributes"]["QueueArn"]
        policy = {
            "Version": "2012-10-17",
            "Statement": [
                {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": self.arn}
            ],
        }
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes={"Policy": json.dumps(policy)})
        if versioned:
            self.store.client.put_bucket_versioning(
                Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"}
            )
        self._notify(by)
        self.queue = NotificationQueue(queue_records(self.config(self.platform)))
        self.queue.topics.create("orders", TopicSettings(bucket=self.bucket, prefix="raw/"))

    def config(self, bucket) -> S3Config:
        return self.server.config(bucket)

    def _session(self):
        import boto3

        keys = self.server.config("")
        return lambda name: boto3.session.Session().client(
            name,
            region_name="us-east-1",
            endpoint_url=self.server.endpoint_url,
            aws_access_key_id=keys.access_key_id,
            aws_secret_access_key=keys.secret_access_key,
        )

    def _notify(self, by):
        events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        if by == "sqs":
            configuration = {"QueueConfigurations": [{"QueueArn": self.arn, "Events": events}]}
        elif by == "eventbridge":
            pattern = {"source": ["aws.s3"], "detail": {"bucket": {"name": [self.bucket]}}}
            self.events.put_rule(Name=self.bucket, EventPattern=json.dumps(pattern))
            self.events.put_targets(Rule=self.bucket, Targets=[{"Id": "1", "Arn": self.arn}])
            configuration = {"EventBridgeConfiguration": {}}
        else:
            topic = self.sns.create_topic(Name=self.bucket)["TopicArn"]
            attributes = {"RawMessageDelivery": "true"} if by == "sns, raw" else {}
            self.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=self.arn, Attributes=attributes)
            policy = {
                "Version": "2012-10-17",
                "Statement": [
                    {"Effect": "Allow", "Principal": "*", "Action": "sns:Publish", "Resource": topic}
                ],
            }
            self.sns.set_topic_attributes(
                TopicArn=topic, AttributeName="Policy", AttributeValue=json.dumps(policy)
            )
            configuration = {"TopicConfigurations": [{"TopicArn": topic, "Events": events}]}
        self.store.client.put_bucket_notification_configuration(
            Bucket=self.bucket, NotificationConfiguration=configuration
        )

    def inlet(self, **settings):
        keys = self.server.config("")
        config = SqsConfig(
            queue_url=self.url,
            endpoint_url=self.server.endpoint_url,
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
        )
        intake = intake_of(
            ServiceContext(
                name="sqs",
                queue=self.queue,
                platform=self.config(self.platform),
                bucket=self.bucket,
                keyspaces=(SourceKeyspace(signals=SIGNALS, prefix="raw/"),),
            )
        )
        return PullInlet(SqsQueue(config), intake, name="sqs", wait_seconds=1, **settings)

    def entries(self):
        return {
            (entry.event.op, entry.event.key): entry.event
            for entry in self.queue.entries("orders", range(1000))
        }

    def left(self):
        """The number of messages in the queue, visible or hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    @contextlib.contextmanager
    def running(self, inlet):
        stop = threading.Event()
        runner = threading.Thread(target=inlet.run, args=(stop, lambda _: None))
        runner.start()
        try:
            yield
        finally:
            stop.set()
            runner.join(30)
            assert not runner.is_alive()

    def settle(self, wanted, seconds=30):
        until(lambda: wanted <= self.entries().keys() and not self.left(), seconds=seconds)
        assert self.entries().keys() == wanted


@pytest.mark.parametrize("by", ["sqs", "sns", "sns, raw", "eventbridge"])
def test_changes_of_the_bucket_are_queued_and_signalled(ministack, by):
    """If the inlet decoded a key, an ETag or a version id wrongly, a batch would look for an object that does
    not exist, and would miss the changed object. If a test event counted as invalid, an operator would find
    needless poison.
    """
    world = World(ministack, by, versioned=True)
    inlet = world.inlet()
    for key in KEYS:
        world.store.put(key, key.encode())
    metas = {key: world.store.head(key) for key in KEYS}
    world.store.put("other/x", b"x")
    world.store.copy(KEYS[0], "raw/copied")
    world.store.delete(KEYS[0])
    with world.running(inlet):
        world.settle({*(("put", key) for key in (*KEYS, "raw/copied")), ("delete", KEYS[0])})
    assert world.entries()["put", "raw/copied"].event_name == "ObjectCreated:Copy"
    assert world.entries()["put", KEYS[1]].event_name == "ObjectCreated:Put"
    for key in KEYS:
        seen = world.entries()["put", key]
        assert (seen.etag, seen.size, seen.bucket) == (metas[key].etag, len(key.encode()), world.bucket)
        if by != "eventbridge":  # ministack writes `versionId`, where AWS writes `version-id`
            assert seen.version_id == metas[key].version_id != ""
        assert world.signals.head(signal_key(SIGNALS, slot_of(key))).metadata == {QUEUED: "1"}
    assert inlet.counts()["messages_poison"] == 0
    assert inlet.counts()["ignored"] == 1


def test_delete_marker_is_a_deletion(ministack):
    """In a versioned bucket, a delete leaves a marker. If the inlet ignored the event of the marker, consumers would
    keep the deleted object.
    """
    world = World(ministack, versioned=True)
    world.store.put("raw/a", b"1")
    world.store.put("raw/a", b"2")
    world.store.delete("raw/a")
    with world.running(world.inlet()):
        world.settle({("put", "raw/a"), ("delete", "raw/a")})
    found = world.entries()["delete", "raw/a"]
    assert found.event_name == "ObjectRemoved:DeleteMarkerCreated"
    assert found.version_id
    assert found.configuration_id


def test_invalid_message_is_kept_with_its_reason(ministack):
    """Otherwise, an invalid message could block the queue, or be lost."""
    world = World(ministack)
    world.sqs.send_message(QueueUrl=world.url, MessageBody="hello")
    world.store.put("raw/a", b"1")
    inlet = world.inlet()
    with world.running(inlet):
        world.settle({("put", "raw/a")})
    (poison,) = inlet._intake.poison.all()
    assert (poison.body, poison.origin) == (b"hello", "sqs")


@pytest.mark.thorough
def test_invalid_message_goes_to_the_queues_dead_letters(ministack):
    """If the inlet deleted an invalid message, an operator would not find the message in the dead-letter queue of
    SQS. If the inlet also kept the message as poison, an operator would find the message in two places.
    """
    world = World(ministack)
    dead = world.sqs.create_queue(QueueName=f"{world.bucket}-dead")["QueueUrl"]
    found = world.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    redrive = {"deadLetterTargetArn": found["Attributes"]["QueueArn"], "maxReceiveCount": 1}
    world.sqs.set_queue_attributes(QueueUrl=world.url, Attributes={"RedrivePolicy": json.dumps(redrive)})
    world.sqs.send_message(QueueUrl=world.url, MessageBody="hello")
    world.store.put("raw/a", b"1")
    inlet = world.inlet(visibility_seconds=3)
    with world.running(inlet):
        world.settle({("put", "raw/a")})
        found = world.sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=10)
    assert [message["Body"] for message in found["Messages"]] == ["hello"]
    assert inlet._intake.poison.all() == ()


@pytest.mark.thorough
def test_two_inlets_queue_many_events(ministack):
    """If an inlet deleted a message before its event is queued, no inlet would receive the message again, and the
    event would be lost. If a message stayed in SQS, SQS would deliver the message again and again.
    """
    world = World(ministack)
    keys = [f"raw/{number}" for number in range(300)]
    inlets = [world.inlet(), world.inlet()]
    with world.running(inlets[0]), world.running(inlets[1]):
        for key in keys:
            world.store.put(key, key.encode())
        world.settle({("put", key) for key in keys}, seconds=60)
    assert sum(inlet.counts()["queued"] for inlet in inlets) >= len(keys)
