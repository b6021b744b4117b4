"""The bucket's notifications: which go together, and that ours is added beside those of others, whatever happens."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest

from s3notify_platform.kernel.errors import RefusedError, UsageError
from s3notify_platform.stores.aws.bucket_notifications import (
    CHANGE_ATTEMPTS,
    BucketEvents,
    BucketNotifications,
    Notification,
)
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HurriedClock
from tests.support.servers import S3Server

CREATED, REMOVED, PUT = "s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:ObjectCreated:Put"


def note(
    name: str, *events: str, arn: str = "arn:aws:sqs:us-east-1:000000000000:q", **more: Any
) -> Notification:
    return Notification(id=name, kind="queue", arn=arn, events=frozenset(events), **more)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (note("a", CREATED), note("b", REMOVED), False),
        (note("a", CREATED), note("b", PUT), True),
        (note("a", PUT), note("b", CREATED, REMOVED), True),
        (note("a", CREATED, prefix="raw/"), note("b", CREATED, prefix="raw/orders/"), True),
        (note("a", CREATED, prefix="raw/"), note("b", CREATED, prefix="other/"), False),
        (note("a", CREATED, prefix="raw/"), note("b", CREATED), True),
        (note("a", CREATED, suffix=".csv"), note("b", CREATED, suffix=".json"), False),
        (note("a", CREATED, suffix=".csv"), note("b", CREATED, suffix="s.csv"), True),
        (note("a", CREATED, prefix="raw/", suffix=".csv"), note("b", CREATED, prefix="raw/"), True),
        (note("a", "s3:ObjectTagging:*"), note("b", CREATED), False),
    ],
)
def test_which_s3_refuses_beside_each_other(one: Notification, other: Notification, both: bool) -> None:
    assert one.overlaps(other) is both
    assert other.overlaps(one) is both


def test_which_announces_all_that_another_one_does() -> None:
    whole = note("a", CREATED, REMOVED)
    assert whole.covers(note("b", PUT, prefix="raw/"))
    assert not whole.covers(note("b", CREATED, "s3:LifecycleExpiration:*"))
    assert not note("a", CREATED, prefix="raw/x/").covers(note("b", CREATED, prefix="raw/"))
    assert not note("a", CREATED, suffix=".csv").covers(note("b", CREATED))


def test_an_edit_leaves_all_others_as_they_were() -> None:
    """Also what this version knows nothing of."""
    lambda_ = {"Id": "theirs", "LambdaFunctionArn": "arn:l", "Events": [PUT], "Unknown": {"Deep": [1]}}
    nameless = {"QueueArn": "arn:q", "Events": [REMOVED]}
    stored = {
        "LambdaFunctionConfigurations": [lambda_],
        "QueueConfigurations": [nameless],
        "Later": {"On": "yes"},
    }
    before = BucketNotifications(stored=stored)
    ours = note("ours", CREATED, prefix="raw/")
    after = before.having(ours)
    assert after.find("ours") == ours
    assert after.having(ours) is after
    assert after.without("ours") == before
    moved = after.having(replace(ours, kind="topic", arn="arn:t"))
    assert [one.kind for one in moved.each if one.id == "ours"] == ["topic"]
    assert moved.without("ours") == before
    assert before.without("ours") == before
    assert before.to_eventbridge().eventbridge
    assert before.to_eventbridge().stored["Later"] == {"On": "yes"}


class Bucket:
    """A bucket of the server behind a proxy, with a queue, and a notification of somebody else."""

    def __init__(self, server: S3Server, proxy: FaultProxy) -> None:
        self.proxy = proxy
        name = server.make_bucket()
        self.config = replace(server.config(name), endpoint_url=proxy.url)
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        self.s3: Any = boto3.client("s3", endpoint_url=server.endpoint_url, **keys)
        sqs: Any = boto3.client("sqs", endpoint_url=server.endpoint_url, **keys)
        sqs.create_queue(QueueName=f"{name}-q")
        self.arn = f"arn:aws:sqs:us-east-1:000000000000:{name}-q"
        self.theirs = note("theirs", REMOVED, arn=self.arn, prefix="elsewhere/", suffix=".csv")
        self.ours = note("ours", CREATED, arn=self.arn, prefix="raw/")
        self.put(BucketNotifications().having(self.theirs))
        self.events = BucketEvents(self.config, clock=HurriedClock())

    def put(self, wanted: BucketNotifications) -> None:
        """As others do."""
        self.s3.put_bucket_notification_configuration(
            Bucket=self.config.bucket, NotificationConfiguration=wanted.stored
        )

    def add(self) -> bool:
        return self.events.change(lambda found: found.having(self.ours), owner="000000000000")


@pytest.fixture
def bucket(ministack: S3Server) -> Iterator[Bucket]:
    with FaultProxy(ministack.endpoint_url) as proxy:
        yield Bucket(ministack, proxy)


@pytest.mark.server
def test_ours_is_added_and_taken_out_beside_theirs(bucket: Bucket) -> None:
    assert bucket.add() is True
    assert set(bucket.events.read().each) == {bucket.theirs, bucket.ours}
    sent = len(bucket.proxy.requests)
    assert bucket.add() is False
    assert bucket.proxy.requests[sent:] == ["GET"]
    assert bucket.events.change(lambda found: found.without("ours")) is True
    assert set(bucket.events.read().each) == {bucket.theirs}


@pytest.mark.server
@pytest.mark.parametrize("fault", ["lose_request", "lose_response", "500", "slow_down"])
def test_the_outcome_of_a_write_in_doubt_is_looked_up(bucket: Bucket, fault: Any) -> None:
    """Of a write that was applied there is no second one."""
    bucket.proxy.faults.extend(["pass", fault])
    assert bucket.add() is True
    assert set(bucket.events.read().each) == {bucket.theirs, bucket.ours}
    assert bucket.proxy.requests.count("PUT") == (1 if fault == "lose_response" else 2)


@pytest.mark.server
def test_a_writer_that_undoes_ours_is_noticed(bucket: Bucket) -> None:
    """Somebody read before our write, and writes after it: at the second look ours is missing, and is made again."""
    looks = 0
    late = note("late", REMOVED, arn=bucket.arn, prefix="late/")

    def before(method: str, path: str, _headers: object) -> None:
        nonlocal looks
        looks += method == "GET"
        if method == "GET" and looks == 3:  # before our write, after it, and once more
            bucket.put(BucketNotifications().having(bucket.theirs).having(late))

    bucket.proxy.before = before
    assert bucket.add() is True
    assert set(bucket.events.read().each) == {bucket.theirs, late, bucket.ours}
    assert bucket.proxy.requests.count("PUT") == 2


@pytest.mark.server
def test_a_write_names_the_account_that_the_bucket_has_to_be_of(bucket: Bucket) -> None:
    """S3 refuses it where the bucket is another one's; the server of the tests does not."""
    bucket.add()
    (put,) = (sent for sent in bucket.proxy.answered if sent.method == "PUT")
    assert put.headers["x-amz-expected-bucket-owner"] == "000000000000"


@pytest.mark.server
def test_a_queue_that_is_missing_is_refused(bucket: Bucket) -> None:
    """S3 asks the queue first. As its policy may be too new for S3, it is asked again a few times."""
    ours = replace(bucket.ours, arn="arn:aws:sqs:us-east-1:000000000000:none")
    with pytest.raises(RefusedError, match="Unable to validate"):
        bucket.events.change(lambda found: found.having(ours))
    assert 1 < bucket.proxy.requests.count("PUT") <= CHANGE_ATTEMPTS
    assert set(bucket.events.read().each) == {bucket.theirs}


@pytest.mark.server
def test_which_store_it_is(bucket: Bucket, seaweed: S3Server) -> None:
    assert bucket.events.server() == "aws"
    missing = BucketEvents(replace(bucket.config, bucket="no-such-bucket"), clock=HurriedClock())
    with pytest.raises(UsageError, match="no bucket 'no-such-bucket'"):
        missing.server()
