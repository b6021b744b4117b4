"""The names and places of the resources that announce the changes of one source."""

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import RefusedError, UsageError
from s3notify_platform.stores.aws.bucket_notifications import BucketNotifications, Notification
from s3notify_platform.stores.aws.service_requests import ServiceConfig, ServiceRequests
from s3notify_platform.stores.config import S3Config, aws_partition

Way = Literal["sqs", "sns", "eventbridge"]
"""The service by which events of a bucket on AWS reach the queue."""

SENDERS: Final[dict[str, Way]] = {
    "s3.amazonaws.com": "sqs",
    "sns.amazonaws.com": "sns",
    "events.amazonaws.com": "eventbridge",
}
"""The `Way` that belongs to each AWS service. A queue's policy may allow these services to send messages."""

AWS_EVENTS: Final = ("s3:LifecycleExpiration:*", "s3:ObjectCreated:*", "s3:ObjectRemoved:*")
TAG: Final = "s3notify"
"""Tag of resources that were made here; the tag's value is the resource's name."""

_SOURCE_MAX: Final = 46
"""Maximum number of characters of the source's name in a rule's name, which has at most 64 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSite:
    """The origin of one source's events, and their destination. No request.

    `account`: the account of queue, topic and rule, in 12 digits. `bucket_account`: the bucket's account, in 12 digits.
    `services_url`: the endpoint of SQS, SNS and EventBridge; None means AWS's own endpoint. `event_queue`: the queue's
    name, if it is not the default.
    """

    source: str
    bucket: S3Config
    prefix: str
    platform_bucket: str
    platform_prefix: str
    queue_prefix: str
    account: str = ""
    bucket_account: str = ""
    services_url: str | None = None
    event_queue: str = ""

    def __post_init__(self) -> None:
        if self.event_queue and not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", self.event_queue):
            raise UsageError(
                f"queue {self.event_queue!r}: use 1 to 80 letters, digits, - and _ (S3 sends to no FIFO queue)"
            )
        if self.bucket.bucket.startswith("arn:"):
            raise UsageError(
                f"{self.bucket.bucket}: only a bucket sends events: give its name, not an access point"
            )
        for account in filter(None, (self.account, self.bucket_account)):
            if not re.fullmatch(r"\d{12}", account):
                raise UsageError(f"account {account!r}: give its 12 digits")

    @property
    def name(self) -> str:
        """The name of all resources that are made. The name is derived from the source's name, and from the places of
        the source's objects and queue.
        """
        place = [self.bucket.bucket, self.platform_bucket, self.platform_prefix, self.queue_prefix]
        digest = blake2b(json.dumps(place).encode(), digest_size=4).hexdigest()
        return f"s3notify-{self.source[:_SOURCE_MAX]}-{digest}"

    @property
    def queue_name(self) -> str:
        """The name of the queue."""
        return self.event_queue or self.name

    @property
    def bucket_arn(self) -> str:
        """ARN of the bucket."""
        return f"arn:{aws_partition(self.bucket.region)}:s3:::{self.bucket.bucket}"

    @property
    def queue_arn(self) -> str:
        """ARN of the queue."""
        return self._arn("sqs", self.queue_name)

    @property
    def topic_arn(self) -> str:
        """ARN of the topic that is made here."""
        return self._arn("sns", self.name)

    @property
    def rule_arn(self) -> str:
        """ARN of the rule."""
        return self._arn("events", f"rule/{self.name}")

    def notification(self, kind: Literal["queue", "topic"], arn: str) -> Notification:
        """The bucket's notification to this queue or topic."""
        return Notification(
            id=self.name, kind=kind, arn=arn, events=frozenset(AWS_EVENTS), prefix=self.prefix
        )

    def their_topic(self, found: BucketNotifications) -> str:
        """ARN of another user's topic to which the bucket announces all keys of the source already; "" if there is no
        such topic. `found`: the bucket's notifications.
        """
        wanted = self.notification("topic", self.topic_arn)
        topics = (one for one in found.each if one.kind == "topic" and one.id != self.name)
        return next((one.arn for one in topics if one.covers(wanted)), "")

    def pattern(self) -> dict[str, Any]:
        """The events that the rule matches."""
        key = {"object": {"key": [{"prefix": self.prefix}]}} if self.prefix else {}
        return {
            "source": ["aws.s3"],
            "detail-type": ["Object Created", "Object Deleted"],
            "detail": {"bucket": {"name": [self.bucket.bucket]}, **key},
        }

    def requests(self, service: str, *, clock: Clock = SYSTEM_CLOCK) -> ServiceRequests:
        """A client of a service: `sqs`, `sns`, `events`, `sts`. No request."""
        return service_of(service, self.bucket, self.services_url, clock=clock)

    def _arn(self, service: str, resource: str) -> str:
        region = self.bucket.region
        return f"arn:{aws_partition(region)}:{service}:{region}:{self.account}:{resource}"


def service_of(
    service: str, bucket: S3Config, url: str | None, *, clock: Clock = SYSTEM_CLOCK
) -> ServiceRequests:
    """A client of a service in this bucket's region, with the bucket's credentials. No request."""
    config = ServiceConfig(name=service, region=bucket.region, endpoint_url=url, **bucket.credentials)
    return ServiceRequests(config, clock=clock)


def account_of(bucket: S3Config, url: str | None) -> str:
    """The account of the credentials. Cost: 1 request to STS, which needs no permission."""
    try:
        found = service_of("sts", bucket, url).ask("get_caller_identity") or {}
    except RefusedError as error:
        raise UsageError(
            f"{error}: events need AWS, or a store with its own SQS: give --queue-endpoint-url and --account"
        ) from error
    if not (account := found.get("Account")):
        raise UsageError("STS does not return the account of these credentials: give --account")
    return str(account)
