"""The bucket's notifications: overlaps, and changes of one notification beside those of other users."""

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
def test_overlapping_notifications_are_recognised(one: Notification, other: Notification, both: bool) -> None:
    assert one.overlaps(other) is both
    assert other.overlaps(one) is both


def test_a_notification_that_covers_another_one_is_recognised() -> None:
    whole = note("a", CREATED, REMOVED)
    assert whole.covers(note("b", PUT, prefix="raw/"))
    assert not whole.covers(note("b", CREATED, "s3:LifecycleExpiration:*"))
    assert not note("a", CREATED, prefix="raw/x/").covers(note("b", CREATED, prefix="raw/"))
    assert not note("a", CREATED, suffix=".csv").covers(note("b", CREATED))


def test_an_edit_does_not_change_other_notifications() -> None:
    """Otherwise another user's notification would be changed or lost, for example one with unknown fields."""
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
    """A bucket that is reached through a proxy, with a queue and another user's notification."""

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
        """Overwrites the notifications, as another user would."""
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
def test_our_notification_is_added_and_removed_beside_others(bucket: Bucket) -> None:
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
    """Otherwise a lost answer would end the setup, or cause a second write."""
    bucket.proxy.faults.extend(["pass", fault])
    assert bucket.add() is True
    assert set(bucket.events.read().each) == {bucket.theirs, bucket.ours}
    assert bucket.proxy.requests.count("PUT") == (1 if fault == "lose_response" else 2)


@pytest.mark.server
def test_a_change_undone_by_another_writer_is_made_again(bucket: Bucket) -> None:
    """Otherwise our notification would be lost unnoticed if another writer reads before our write and writes
    after it.
    """
    looks = 0
    late = note("late", REMOVED, arn=bucket.arn, prefix="late/")

    def before(method: str, path: str, _headers: object) -> None:
        nonlocal looks
        looks += method == "GET"
        if method == "GET" and looks == 3:  # the second GET after our write
            bucket.put(BucketNotifications().having(bucket.theirs).having(late))

    bucket.proxy.before = before
    assert bucket.add() is True
    assert set(bucket.events.read().each) == {bucket.theirs, late, bucket.ours}
    assert bucket.proxy.requests.count("PUT") == 2


@pytest.mark.server
def test_a_write_names_the_expected_owner_of_the_bucket(bucket: Bucket) -> None:
    """Otherwise the notification could be written to another account's bucket of the same name."""
    bucket.add()
    (put,) = (sent for sent in bucket.proxy.answered if sent.method == "PUT")
    assert put.headers["x-amz-expected-bucket-owner"] == "000000000000"


@pytest.mark.server
def test_a_missing_queue_is_refused_after_some_attempts(bucket: Bucket) -> None:
    """S3 may refuse a queue for a while, because it still uses the queue's old policy. So the setup must neither fail
    immediately nor try for ever.
    """
    ours = replace(bucket.ours, arn="arn:aws:sqs:us-east-1:000000000000:none")
    with pytest.raises(RefusedError, match="Unable to validate"):
        bucket.events.change(lambda found: found.having(ours))
    assert 1 < bucket.proxy.requests.count("PUT") <= CHANGE_ATTEMPTS
    assert set(bucket.events.read().each) == {bucket.theirs}


@pytest.mark.server
def test_the_kind_of_server_is_recognised(bucket: Bucket, seaweed: S3Server) -> None:
    assert bucket.events.server() == "aws"
    missing = BucketEvents(replace(bucket.config, bucket="no-such-bucket"), clock=HurriedClock())
    with pytest.raises(UsageError, match="no bucket 'no-such-bucket'"):
        missing.server()
