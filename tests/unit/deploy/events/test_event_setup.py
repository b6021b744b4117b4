"""Events on AWS, for each way of sending them: changes arrive in the queue, and the queue's policy allows no other
sender.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest

from s3notify_platform.deploy.events.event_setup import EventSetup, announced, problem_of
from s3notify_platform.deploy.events.event_site import EventSite, Way, account_of
from s3notify_platform.kernel.errors import RefusedError, S3NotifyError, UsageError
from s3notify_platform.protocols.notification_queue import decode_events
from s3notify_platform.stores.aws.bucket_notifications import BucketNotifications, Notification
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HurriedClock
from tests.support.servers import S3Server, running_ministack
from tests.support.waiting import until

pytestmark = pytest.mark.server

WAYS: tuple[Way, ...] = ("sqs", "sns", "eventbridge")
ACCOUNT = "000000000000"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that enforces the policies of queues and topics."""
    with running_ministack(tmp_path_factory.mktemp("strict"), strict=True) as server:
        yield server


@pytest.fixture
def proxy(strict: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(strict.endpoint_url) as proxy:
        yield proxy


class Account:
    """An account with a bucket. The tested code reaches the account's services through the proxy. Clients that `client`
    returns bypass the proxy.
    """

    def __init__(self, server: S3Server, proxy: FaultProxy) -> None:
        self.server = server
        self.bucket = replace(server.config(server.make_bucket()), endpoint_url=proxy.url)
        self.proxy = proxy

    def setup(self, source: str = "orders", prefix: str = "raw/", **more: Any) -> EventSetup:
        places = {"platform_prefix": f"_s3notify/{source}/", "queue_prefix": "_s3notify/queue/", **more}
        site = EventSite(
            source=source,
            bucket=self.bucket,
            prefix=prefix,
            platform_bucket=self.bucket.bucket,
            account=ACCOUNT,
            bucket_account=ACCOUNT,
            services_url=self.proxy.url,
            **places,
        )
        return EventSetup(site=site, clock=HurriedClock())

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.server.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def put(self, key: str) -> None:
        S3ObjectStore(replace(self.bucket, endpoint_url=self.server.endpoint_url)).put(key, b"1")

    def announce(self, *others: Notification) -> None:
        """Sets these notifications of the bucket, as another user would."""
        wanted = BucketNotifications()
        for one in others:
            wanted = wanted.having(one)
        self.client("s3").put_bucket_notification_configuration(
            Bucket=self.bucket.bucket, NotificationConfiguration=wanted.stored
        )

    def queue(self, name: str, *, allow: bool = True) -> str:
        """Makes another user's queue, and returns its ARN. If `allow`, anybody may send to this queue."""
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"
        statement = {"Sid": "theirs", "Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": arn}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.client("sqs").create_queue(QueueName=name, Attributes={"Policy": policy} if allow else {})
        return arn

    def received(self, setup: EventSetup) -> set[tuple[str, str]]:
        """Returns the changes in the queue, and deletes their messages."""
        sqs, url, found = self.client("sqs"), setup.queue.url(), set()
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", ()):
            found |= {(event.op, event.key) for event in decode_events(message["Body"]).events}
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found

    def arrives(self, setup: EventSetup, key: str) -> bool:
        self.put(key)
        found: set[tuple[str, str]] = set()

        def came() -> bool:
            found.update(self.received(setup))
            return ("put", key) in found

        return until(came)

    def state(self) -> dict[str, Any]:
        """Returns everything in the account that concerns events."""
        s3, sqs, sns, events = map(self.client, ("s3", "sqs", "sns", "events"))
        stored = s3.get_bucket_notification_configuration(Bucket=self.bucket.bucket)
        stored.pop("ResponseMetadata")
        queues = sqs.list_queues().get("QueueUrls", [])
        topics = [one["TopicArn"] for one in sns.list_topics()["Topics"]]
        policies = {url: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"]) for url in queues}
        return {
            "bucket": stored,
            "queues": {url: found.get("Attributes") for url, found in policies.items()},
            "topics": {arn: sns.get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"] for arn in topics},
            "subscribed": sorted(one["Endpoint"] for one in sns.list_subscriptions()["Subscriptions"]),
            "rules": [one["Name"] for one in events.list_rules()["Rules"]],
        }


@pytest.fixture
def account(strict: S3Server, proxy: FaultProxy) -> Account:
    return Account(strict, proxy)


def make(setup: EventSetup, way: Way) -> None:
    parts = setup.parts(way)
    setup.check(parts)
    for part in parts:
        if part.lacks():
            part.make()


def remove(setup: EventSetup, way: Way) -> None:
    for part in [part for part in setup.parts(way)[::-1] if part.remains()]:
        part.remove()


@pytest.mark.parametrize("way", WAYS)
def test_events_are_set_up_and_removed_without_a_trace(account: Account, way: Way) -> None:
    """Otherwise changes would not arrive, or another user's notification would be changed."""
    theirs = account.queue(f"theirs-{account.bucket.bucket}")
    account.announce(
        Notification(id="theirs", kind="queue", arn=theirs, events=frozenset({"s3:ObjectCreated:*"}), prefix="other/")
    )  # fmt: skip
    before, setup = account.state(), account.setup()
    assert setup.way_in_place() is None
    make(setup, way)
    assert setup.way_in_place() is not None
    assert setup.way_in_place()[0] == way  # type: ignore[index]
    assert problem_of(setup.parts(way)) == ""
    assert account.arrives(setup, "raw/1 + ü.jsonl")
    account.put("elsewhere/1")
    account.client("s3").delete_object(Bucket=account.bucket.bucket, Key="raw/1 + ü.jsonl")
    found: set[tuple[str, str]] = set()
    until(lambda: found.update(account.received(setup)) or ("delete", "raw/1 + ü.jsonl") in found)
    assert all(key.startswith("raw/") for _, key in found)

    whole, sent = account.state(), len(account.proxy.answered)
    make(setup, way)
    assert account.state() == whole
    assert not [each for each in account.proxy.answered[sent:] if each.method in ("PUT", "DELETE")]

    remove(setup, way)
    after = account.state()
    if way == "eventbridge":  # other users may rely on EventBridge by now
        assert after["bucket"].pop("EventBridgeConfiguration") == {}
    assert after == before
    remove(setup, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_setup_killed_at_any_request_can_be_repeated(account: Account, way: Way) -> None:
    """Otherwise a killed setup or removal could not be finished by repeating it."""
    setup, before = account.setup(), account.state()
    for work, done in ((make, lambda: problem_of(setup.parts(way)) == ""), (remove, lambda: True)):
        for allowed in range(1, 200, 1 if way == "sqs" else 3):
            left = [allowed]

            def spent(left: list[int] = left) -> bool:
                left[0] -= 1
                return left[0] < 0

            account.proxy.outage = spent
            try:
                work(setup, way)
            except S3NotifyError:
                continue
            finally:
                account.proxy.outage = lambda: False
            break
        work(setup, way)
        assert done()
    after = account.state()
    after["bucket"].pop("EventBridgeConfiguration", None)
    assert after == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "throttle"])
def test_lost_answers_do_not_break_the_setup(account: Account, way: Way, fault: Any) -> None:
    """The setup must succeed and be complete even if every third request or answer is lost."""
    setup = account.setup()
    account.proxy.faults.extend(["pass", "pass", fault] * 40)
    make(setup, way)
    account.proxy.faults.clear()
    assert problem_of(setup.parts(way)) == ""
    assert account.arrives(setup, "raw/1")
    remove(setup, way)


@pytest.mark.parametrize("way", WAYS)
def test_the_queue_accepts_only_its_sender(account: Account, way: Way) -> None:
    """Otherwise another service, bucket or account could send events to the queue."""
    setup = account.setup()
    make(setup, way)
    (statement,) = (setup.queue.policy() or {})["Statement"]
    assert statement["Action"] == "sqs:SendMessage"
    assert statement["Resource"] == setup.site.queue_arn
    sources = {
        "sqs": ("s3.amazonaws.com", setup.site.bucket_arn),
        "sns": ("sns.amazonaws.com", setup.site.topic_arn),
        "eventbridge": ("events.amazonaws.com", setup.site.rule_arn),
    }
    service, source = sources[way]
    assert statement["Principal"] == {"Service": service}
    assert statement["Condition"]["ArnEquals"] == {"aws:SourceArn": source}
    if way == "sqs":
        assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": ACCOUNT}
    other = Account(account.server, account.proxy)
    with pytest.raises(RefusedError, match="Unable to validate"):  # another bucket may not send to the queue
        other.setup().bucket.change(
            lambda found: found.having(setup.site.notification("queue", setup.site.queue_arn))
        )
    remove(setup, way)


def test_an_overlapping_notification_is_reported_before_any_write(account: Account) -> None:
    """Otherwise the setup would stop half-way with S3's error. EventBridge can be used beside the other
    notification.
    """
    theirs = account.queue(f"theirs-{account.bucket.bucket}")
    account.announce(
        Notification(id="crawler", kind="queue", arn=theirs, events=frozenset({"s3:ObjectCreated:Put"}), suffix=".csv")
    )  # fmt: skip
    before, setup = account.state(), account.setup()
    with pytest.raises(UsageError, match=r"'crawler' .*S3 refuses that: .*--by eventbridge"):
        make(setup, "sqs")
    with pytest.raises(UsageError, match="'crawler'"):
        make(setup, "sns")
    assert account.state() == before
    make(setup, "eventbridge")
    assert account.arrives(setup, "raw/1.csv")
    remove(setup, "eventbridge")


def test_an_existing_topic_with_these_events_is_used(account: Account) -> None:
    """Otherwise a second environment could not get the same events, or its removal would delete the topic of the first
    environment.
    """
    first, second = account.setup(), account.setup(platform_prefix="_s3notify/dev/orders/")
    make(first, "sns")
    with pytest.raises(UsageError, match="--by sns subscribes the queue to the SNS topic"):
        make(second, "sqs")
    make(second, "sns")
    assert second.site.name != first.site.name
    assert len(account.state()["topics"]) == 1
    account.put("raw/1")
    for setup in (first, second):
        until(lambda setup=setup: ("put", "raw/1") in account.received(setup))
    with pytest.raises(UsageError, match="has other subscribers"):
        remove(first, "sns")
    assert problem_of(first.parts("sns")) == ""
    remove(second, "sns")
    assert account.arrives(first, "raw/2")
    remove(first, "sns")
    assert account.state()["topics"] == {}


def test_two_environments_use_eventbridge_independently(account: Account) -> None:
    first, second = account.setup(), account.setup(queue_prefix="_s3notify/dev/queue/")
    for setup in (first, second):
        make(setup, "eventbridge")
    account.put("raw/1")
    for setup in (first, second):
        until(lambda setup=setup: ("put", "raw/1") in account.received(setup))
    remove(first, "eventbridge")
    assert account.arrives(second, "raw/2")
    remove(second, "eventbridge")


def test_an_existing_queue_is_used_and_kept(account: Account) -> None:
    """Otherwise another user's queue would be deleted, or lose statements of its policy."""
    name = f"before-{account.bucket.bucket}"
    account.queue(name)
    setup = account.setup(event_queue=name)
    make(setup, "sqs")
    assert [one["Sid"] for one in (setup.queue.policy() or {})["Statement"]] == ["theirs", setup.site.name]
    assert account.arrives(setup, "raw/1")
    remove(setup, "sqs")
    assert [one["Sid"] for one in (setup.queue.policy() or {})["Statement"]] == ["theirs"]


def test_another_way_than_before_is_refused(account: Account) -> None:
    setup = account.setup()
    make(setup, "sqs")
    with pytest.raises(
        UsageError, match=r"already arrive by sqs: run `s3notify init orders --events --remove` first"
    ):
        setup.parts("eventbridge")
    remove(setup, "sqs")


def _drop_queue(account: Account, setup: EventSetup) -> None:
    account.client("sqs").delete_queue(QueueUrl=setup.queue.url())


def _drop_policy(account: Account, setup: EventSetup) -> None:
    account.client("sqs").set_queue_attributes(QueueUrl=setup.queue.url(), Attributes={"Policy": ""})


def _drop_notifications(account: Account, _setup: EventSetup) -> None:
    account.announce()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_drop_queue, "SQS queue .*: is missing"),
        (_drop_policy, "policy of the queue: .*: is missing"),
        (_drop_notifications, "notification .*: is missing"),
    ],
)
def test_a_missing_part_is_reported_and_made_again(
    account: Account, damage: Callable[[Account, EventSetup], None], named: str
) -> None:
    setup = account.setup()
    make(setup, "sqs")
    damage(account, setup)
    problem = problem_of(setup.parts("sqs"))
    assert re.match(named, problem), problem
    make(setup, "sqs")
    assert account.arrives(setup, "raw/1")
    remove(setup, "sqs")


def test_the_receiver_of_a_buckets_events_is_found(account: Account) -> None:
    setup = account.setup()
    assert announced(setup.bucket, "raw/") == ("nothing", None)
    theirs = account.queue(f"theirs-{account.bucket.bucket}")
    one = Notification(
        id="x", kind="queue", arn=theirs, events=frozenset({"s3:ObjectCreated:*"}), prefix="raw/"
    )
    account.announce(one)
    assert announced(setup.bucket, "raw/orders/") == ("announced", one)
    assert announced(setup.bucket, "other/") == ("nothing", None)


def test_names_fit_each_services_limit(account: Account) -> None:
    """Otherwise a service would refuse the setup of a source with a long name. S3 cannot send to FIFO queues."""
    site = account.setup(source="a" * 63).site
    assert len(site.name) == 64
    assert site.name == account.setup(source="a" * 63, prefix="other/").site.name
    assert account_of(account.bucket, account.proxy.url) == ACCOUNT
    with pytest.raises(UsageError, match="FIFO"):
        replace(site, event_queue="events.fifo")
    with pytest.raises(UsageError, match="12 digits"):
        replace(site, account="acme")
