"""The parts of the setup for one source's events, for each way to the queue. Parts are planned and checked here."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from s3notify_platform.deploy.events.bucket_part import EventBridgeSwitch, NotificationPart, check_apart
from s3notify_platform.deploy.events.event_part import Part, statements_of
from s3notify_platform.deploy.events.event_site import SENDERS, EventSite, Way
from s3notify_platform.deploy.events.queue_part import Queue, sending
from s3notify_platform.deploy.events.rule_part import RulePart
from s3notify_platform.deploy.events.topic_part import SubscriptionPart, Topic
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import RefusedError, UnavailableError, UsageError
from s3notify_platform.stores.aws.bucket_notifications import BucketEvents, BucketNotifications, Notification


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A part with its state. `state`: the result of `lacks` or `remains`; "" if there is nothing to do."""

    part: Part
    state: str


@dataclass(frozen=True, kw_only=True)
class EventSetup:
    """The events of a source on AWS, or on a compatible server. Only the methods of this class send requests."""

    site: EventSite
    clock: Clock = SYSTEM_CLOCK

    @cached_property
    def bucket(self) -> BucketEvents:
        """The bucket's notifications."""
        return BucketEvents(self.site.bucket, clock=self.clock)

    @cached_property
    def queue(self) -> Queue:
        """The queue."""
        return Queue(site=self.site, sqs=self.site.requests("sqs", clock=self.clock), clock=self.clock)

    @cached_property
    def topic(self) -> Topic:
        """The topic that is made here."""
        return Topic(site=self.site, sns=self.site.requests("sns", clock=self.clock), clock=self.clock)

    @cached_property
    def rule(self) -> RulePart:
        """The rule."""
        return RulePart(site=self.site, events=self.site.requests("events", clock=self.clock))

    def way_in_place(self, *, surely: bool = False) -> tuple[Way, str] | None:
        """The way by which events reach the queue, and the sender's ARN; None if nothing was set up here.

        The queue's policy shows the way, because the policy is written before every part that sends to the queue, and
        removed after that part. If others deleted the queue or its policy, the parts that are left show the way. If a
        service refuses to show its parts, these parts count as missing, since a server may have only SQS. With
        `surely`, such a refusal causes `UsageError`. Cost: 3 requests; without a policy and a notification up to 7
        more.
        """
        for one in statements_of(self.queue.policy(), self.site.name):
            if way := SENDERS.get(str(one.get("Principal", {}).get("Service", ""))):
                return way, str(one.get("Condition", {}).get("ArnEquals", {}).get("aws:SourceArn", ""))
        found = self.bucket.read()
        if (own := found.find(self.site.name)) is not None:
            return ("sns" if own.kind == "topic" else "sqs"), own.arn
        return self._way_left(found, surely=surely)

    def _way_left(self, found: BucketNotifications, *, surely: bool) -> tuple[Way, str] | None:
        topic_arn = self._topic_arn(found)
        looks: tuple[tuple[Callable[[], object], Way, str], ...] = (
            (self.topic.is_ours, "sns", self.site.topic_arn),
            (lambda: self._subscribed(topic_arn), "sns", topic_arn),
            (self.rule.is_ours, "eventbridge", self.site.rule_arn),
        )
        for is_left, way, sender in looks:
            try:
                if is_left():
                    return way, sender
            except (RefusedError, UnavailableError) as error:
                if surely:
                    raise UsageError(f"{error}: to remove only the parts of one way, give --by") from error
        return None

    def _subscribed(self, topic_arn: str) -> bool:
        """True if the queue has a subscription to the topic, and if the queue was made here or no longer exists. The
        subscription of any other queue may be the work of the queue's owner: subscriptions have no tag that shows their
        maker.
        """
        ours = self.queue.is_ours() or self.queue.url() is None
        return ours and bool(self._subscription(topic_arn).remains())

    def bucket_account(self) -> str:
        """The account of the bucket, from the policy of the queue or topic that is already set up; "" if the policy
        names no account. Requests: as many as `way_in_place`, and 1 or 2 more.
        """
        by_own_topic = self.way_in_place() == ("sns", self.site.topic_arn)
        policy = self.topic.policy() if by_own_topic else self.queue.policy()
        accounts = (
            str(one.get("Condition", {}).get("StringEquals", {}).get("aws:SourceAccount", ""))
            for one in statements_of(policy, self.site.name)
        )
        return next((account for account in accounts if re.fullmatch(r"\d{12}", account)), "")

    def parts(self, way: Way) -> tuple[Part, ...]:
        """The parts, in the order in which they are made. Requests: as many as `way_in_place`, and 1 more for SNS.

        `UsageError` if another way was set up.
        """
        if (there := self.way_in_place()) is not None and there[0] != way:
            raise UsageError(
                f"events of source {self.site.source!r} already arrive by {there[0]}: run `s3notify init "
                f"{self.site.source} --events --remove` first, then --by {way}"
            )
        topic_arn = (there[1] if there else self._topic_arn(self.bucket.read())) if way == "sns" else ""
        return self.parts_by(way, topic_arn)

    def parts_by(self, way: Way, topic_arn: str = "") -> tuple[Part, ...]:
        """The parts of a way. For SNS, `topic_arn` names the topic: an existing topic, or the topic that these parts
        make. No request.
        """
        site, queue, owner = self.site, self.queue, self.site.bucket_account
        match way:
            case "sqs":
                sender = sending(queue, "s3.amazonaws.com", site.bucket_arn, owner)
                return queue, sender, self._notification("queue", site.queue_arn)
            case "sns":
                return self._by_topic(topic_arn)
            case "eventbridge":
                sender = sending(queue, "events.amazonaws.com", site.rule_arn)
                return queue, sender, self.rule, EventBridgeSwitch(bucket=self.bucket, owner=owner)

    def _topic_arn(self, found: BucketNotifications) -> str:
        """The topic to which the bucket announces all keys of the source already; else the topic to make."""
        return self.site.their_topic(found) or self.site.topic_arn

    def _subscription(self, topic_arn: str) -> SubscriptionPart:
        return SubscriptionPart(site=self.site, sns=self.topic.sns, topic_arn=topic_arn)

    def check(self, parts: Sequence[Part]) -> None:
        """`UsageError` if S3 would refuse the notification among the parts. Cost: 1 request; 0 without a
        notification.
        """
        for part in parts:
            if isinstance(part, NotificationPart):
                check_apart(self.bucket.read(), part.notification)

    def _by_topic(self, topic_arn: str) -> tuple[Part, ...]:
        queue, topic, subscription = self.queue, self.topic, self._subscription(topic_arn)
        sender = sending(queue, "sns.amazonaws.com", topic_arn)
        if topic_arn != self.site.topic_arn:
            return queue, sender, subscription
        notification = self._notification("topic", topic_arn)
        return queue, sender, topic, topic.publishing(), subscription, notification

    def _notification(self, kind: Literal["queue", "topic"], arn: str) -> NotificationPart:
        return NotificationPart(
            bucket=self.bucket,
            notification=self.site.notification(kind, arn),
            owner=self.site.bucket_account,
        )


def planned(parts: Sequence[Part], ask: Callable[[Part], str]) -> list[Planned]:
    """Each part with its state; `ask` returns the state of a part. Requests: as many as `ask`."""
    return [Planned(part=part, state=ask(part)) for part in parts]


def problem_of(parts: Sequence[Part]) -> str:
    """The first part that differs from the wanted state, for people; "" if no part differs. Requests: as many as
    `lacks`.
    """
    return next((f"{part.title}: {lacks}" for part in parts if (lacks := part.lacks())), "")


Announced = Literal["announced", "eventbridge", "nothing"]


def announced(bucket: BucketEvents, prefix: str) -> tuple[Announced, Notification | None]:
    """The way by which the bucket sends events of keys below this prefix: a notification, or EventBridge. Cost: 1
    GET.
    """
    found = bucket.read()
    near = [one for one in found.each if prefix.startswith(one.prefix) or one.prefix.startswith(prefix)]
    if near:
        return "announced", near[0]
    return ("eventbridge" if found.eventbridge else "nothing"), None
