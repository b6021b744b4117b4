"""The parts on Ceph RGW: a topic that posts to our HTTP inlet, and the bucket's notification to this topic.

RGW accepts an endpoint with a secret only in a request over TLS, and shows the endpoint only in an answer over TLS.
"""

import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from s3notify_platform.deploy.events.event_part import Part
from s3notify_platform.deploy.events.event_site import EventSite, service_of
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import RefusedError, UsageError
from s3notify_platform.stores.aws.bucket_notifications import BucketEvents, Notification
from s3notify_platform.stores.aws.service_requests import ServiceRequests

_EVENTS: Final = frozenset(("s3:ObjectCreated:*", "s3:ObjectRemoved:*"))
_LIFECYCLE: Final = "s3:ObjectLifecycle:Expiration:Current"
"""Gateways that are older than Ceph Reef do not know this event."""


def receiver_url(url: str, secret: str) -> str:
    """The inlet's URL with its secret as password. `UsageError` if a gateway cannot post to the URL. Pure."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise UsageError(f"receiver {url!r}: give the inlet's URL, like https://inlet.example.com:8086/")
    return urlunsplit(parts._replace(netloc=f"s3notify:{quote(secret, safe='')}@{parts.netloc}"))


@dataclass(slots=True, kw_only=True, eq=False)
class GatewayTopic:
    """The topic, which keeps posting each change until the inlet answers. `receiver`: the inlet's URL without its
    secret.
    """

    name: str
    receiver: str
    secret: str
    sns: ServiceRequests

    @property
    def title(self) -> str:
        """The topic's title, for people."""
        return (
            f"topic {self.name!r} of the gateway, which keeps each change until {self.receiver or 'the inlet'} has "
            "answered"
        )

    def arn(self) -> str | None:
        """The topic's ARN at the gateway; None if there is no such topic. Cost: 1 request for each page of topics."""
        listed = (str(one["TopicArn"]) for one in self.sns.pages("list_topics", "Topics"))
        return next((arn for arn in listed if arn.rpartition(":")[2] == self.name), None)

    def lacks(self) -> str:
        """See `Part`. Cost: the requests of `arn`, and 1 more. If the gateway shows the receiver, the receiver is
        compared, too.
        """
        if (arn := self.arn()) is None:
            return "is missing"
        shown = self._endpoint(arn) if self.receiver else ""
        return "posts elsewhere" if shown and shown != receiver_url(self.receiver, self.secret) else ""

    def make(self) -> None:
        """See `Part`. An existing topic gets this receiver and this secret. Cost: 1 request."""
        attributes = {"push-endpoint": receiver_url(self.receiver, self.secret), "persistent": "true"}
        self.sns.ask("create_topic", Name=self.name, Attributes=attributes)

    def remains(self) -> str:
        """See `Part`. Requests: as many as `arn`."""
        return f"topic {self.name!r} of the gateway, and the changes that wait in it" if self.arn() else ""

    def remove(self) -> None:
        """See `Part`. Cost: the requests of `arn`, and 1 more."""
        if arn := self.arn():
            self.sns.ask("delete_topic", TopicArn=arn)

    def _endpoint(self, arn: str) -> str:
        """The URL that the topic posts to; "" if the gateway does not show the URL, for example without TLS."""
        try:
            found = self.sns.ask("get_topic_attributes", TopicArn=arn) or {}
            return str(json.loads(found["Attributes"]["EndPoint"])["EndpointAddress"])
        except (RefusedError, ValueError, KeyError, TypeError):
            return ""


@dataclass(slots=True, kw_only=True, eq=False)
class GatewayNotification:
    """The bucket's notification to the topic. Notifications with other ids stay unchanged."""

    topic: GatewayTopic
    bucket: BucketEvents
    prefix: str

    @property
    def title(self) -> str:
        """The notification's title, for people."""
        keys = f"keys below {self.prefix!r}" if self.prefix else "all keys"
        return f"notification {self.topic.name!r} of bucket {self.bucket.config.bucket!r}: {keys}"

    def lacks(self) -> str:
        """See `Part`. Cost: 1 request."""
        found = self.bucket.read().find(self.topic.name)
        if found is None:
            return "is missing"
        right = found.prefix == self.prefix and found.events >= _EVENTS
        return "" if right and found.arn.rpartition(":")[2] == self.topic.name else "is another"

    def make(self) -> None:
        """See `Part`. Cost: the requests of `BucketEvents.change`, plus the requests of the topic's `arn`."""
        if (arn := self.topic.arn()) is None:
            raise UsageError(f"{self.topic.title}: it was removed meanwhile: repeat this command")
        try:
            self._make(arn, _EVENTS | {_LIFECYCLE})
        except RefusedError:
            self._make(arn, _EVENTS)

    def remains(self) -> str:
        """See `Part`. Cost: 1 request."""
        return self.title if self.bucket.read().find(self.topic.name) else ""

    def remove(self) -> None:
        """See `Part`. Requests: as many as `BucketEvents.change`."""
        self.bucket.change(lambda found: found.without(self.topic.name), only=self.topic.name)

    def _make(self, arn: str, events: frozenset[str]) -> None:
        one = Notification(id=self.topic.name, kind="topic", arn=arn, events=events, prefix=self.prefix)
        self.bucket.change(lambda found: found.having(one), only=one.id)


def gateway_parts(
    site: EventSite,
    bucket: BucketEvents,
    *,
    receiver: str = "",
    secret: str = "",
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Part, ...]:
    """The parts, in the order in which they are made. Only `make` needs `receiver` and `secret`. No request.

    `UsageError` if a gateway cannot post to the receiver.
    """
    if receiver:
        receiver_url(receiver, secret)
    sns = service_of("sns", site.bucket, bucket.endpoint_url, clock=clock)
    topic = GatewayTopic(name=site.name, receiver=receiver, secret=secret, sns=sns)
    return topic, GatewayNotification(topic=topic, bucket=bucket, prefix=site.prefix)
