"""The parts for SNS: a topic that receives the bucket's events, and the queue's subscription to it."""

import json
from dataclasses import dataclass

from s3notify_platform.deploy.events.event_part import Json, StatementPart, allowing
from s3notify_platform.deploy.events.event_site import TAG, EventSite
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.aws.service_requests import ServiceRequests, policy_in


@dataclass(slots=True, kw_only=True, eq=False)
class Topic:
    """The topic that is made here."""

    site: EventSite
    sns: ServiceRequests
    clock: Clock = SYSTEM_CLOCK

    def policy(self) -> Json | None:
        """The topic's policy; None if there is no such topic. Cost: 1 request."""
        found = self.sns.ask("get_topic_attributes", TopicArn=self.site.topic_arn)
        return found and policy_in(found["Attributes"].get("Policy"), f"topic {self.site.topic_arn}")

    def set_policy(self, policy: Json) -> None:
        """Replace the topic's policy. Cost: 1 request."""
        self.sns.ask(
            "set_topic_attributes",
            TopicArn=self.site.topic_arn,
            AttributeName="Policy",
            AttributeValue=json.dumps(policy),
        )

    @property
    def title(self) -> str:
        """The topic's title, for people."""
        return f"SNS topic {self.site.name!r}"

    def lacks(self) -> str:
        """See `Part`. Cost: 1 request."""
        return "" if self._exists() else "is missing"

    def make(self) -> None:
        """See `Part`. Cost: 1 or 2 requests."""
        if not self._exists():
            self.sns.ask("create_topic", Name=self.site.name, Tags=[{"Key": TAG, "Value": self.site.name}])

    def remains(self) -> str:
        """See `Part`. `UsageError` if the topic has other subscribers: without the topic, these would get no events.
        Cost: 2 or 3 requests.
        """
        if not self.is_ours():
            return ""
        others = [
            one["Endpoint"]
            for one in self.sns.pages(
                "list_subscriptions_by_topic", "Subscriptions", TopicArn=self.site.topic_arn
            )
            if one.get("Endpoint") != self.site.queue_arn
        ]
        if others:
            raise UsageError(
                f"topic {self.site.topic_arn} has other subscribers, like {others[0]}: remove them first"
            )
        return self.title

    def remove(self) -> None:
        """See `Part`. Cost: 2 or 3 requests."""
        if self.is_ours():
            self.sns.ask("delete_topic", TopicArn=self.site.topic_arn)

    def publishing(self) -> StatementPart:
        """The statement of the topic's policy that allows only the bucket to publish."""
        return StatementPart(
            title=f"policy of the topic: only s3.amazonaws.com may publish, for {self.site.bucket_arn}",
            statement=allowing(
                self.site.name,
                service="s3.amazonaws.com",
                action="sns:Publish",
                resource=self.site.topic_arn,
                source=self.site.bucket_arn,
                account=self.site.bucket_account,
            ),
            read=self.policy,
            clock=self.clock,
            write=self.set_policy,
        )

    def is_ours(self) -> bool:
        """True if the topic was made here. Cost: 1 or 2 requests."""
        if not self._exists():
            return False
        found = self.sns.ask("list_tags_for_resource", ResourceArn=self.site.topic_arn)
        tags = {one["Key"]: one["Value"] for one in (found or {}).get("Tags", ())}
        return tags.get(TAG) == self.site.name

    def _exists(self) -> bool:
        return self.sns.ask("get_topic_attributes", TopicArn=self.site.topic_arn) is not None


@dataclass(slots=True, kw_only=True, eq=False)
class SubscriptionPart:
    """The queue's subscription to our topic or to another topic. Messages arrive unchanged, as S3 wrote them."""

    site: EventSite
    sns: ServiceRequests
    topic_arn: str

    @property
    def title(self) -> str:
        """The subscription's title, for people."""
        return f"subscription of the queue to {self.topic_arn}"

    def lacks(self) -> str:
        """See `Part`. Cost: 1 request for each 100 subscriptions."""
        return "" if self._arn() else "is missing"

    def make(self) -> None:
        """See `Part`. Cost: 1 request for each 100 subscriptions, and 1 more."""
        if not self._arn():
            self.sns.ask(
                "subscribe",
                TopicArn=self.topic_arn,
                Protocol="sqs",
                Endpoint=self.site.queue_arn,
                Attributes={"RawMessageDelivery": "true"},
                ReturnSubscriptionArn=True,
            )

    def remains(self) -> str:
        """See `Part`. Cost: 1 request for each 100 subscriptions."""
        return self.title if self._arn() else ""

    def remove(self) -> None:
        """See `Part`. Cost: 1 request for each 100 subscriptions, and 1 more."""
        if arn := self._arn():
            self.sns.ask("unsubscribe", SubscriptionArn=arn)

    def _arn(self) -> str:
        subscribed = self.sns.pages("list_subscriptions_by_topic", "Subscriptions", TopicArn=self.topic_arn)
        found = (one["SubscriptionArn"] for one in subscribed if one.get("Endpoint") == self.site.queue_arn)
        return str(next(found, ""))
