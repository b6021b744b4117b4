"""The SQS queue that receives events, and the statement of its policy that allows one sender."""

import json
from dataclasses import dataclass
from typing import Final

from s3notify_platform.deploy.events.event_part import Json, StatementPart, allowing
from s3notify_platform.deploy.events.event_site import TAG, EventSite
from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.stores.aws.service_requests import ServiceRequests, policy_in

RETENTION_SECONDS: Final = 14 * 24 * 3600
"""SQS's own limit for keeping a message."""

SHOWN_ATTEMPTS: Final = 8
"""Maximum number of attempts until SQS shows a new queue."""

ATTRIBUTES: Final = {"MessageRetentionPeriod": str(RETENTION_SECONDS), "ReceiveMessageWaitTimeSeconds": "20"}


@dataclass(slots=True, kw_only=True, eq=False)
class Queue:
    """The source's queue at SQS."""

    site: EventSite
    sqs: ServiceRequests
    clock: Clock = SYSTEM_CLOCK

    def url(self) -> str | None:
        """The queue's URL; None if there is no such queue. Cost: 1 request."""
        found = self.sqs.ask("get_queue_url", QueueName=self.site.queue_name)
        return str(found["QueueUrl"]) if found else None

    def attributes(self, *names: str) -> dict[str, str] | None:
        """Some of the queue's attributes; None if there is no such queue. Cost: 2 requests."""
        if (url := self.url()) is None:
            return None
        found = self.sqs.ask("get_queue_attributes", QueueUrl=url, AttributeNames=list(names))
        return None if found is None else dict(found.get("Attributes", {}))

    def waiting(self) -> int | None:
        """The approximate number of messages that were not received yet; None if there is no such queue. Cost: 2
        requests.
        """
        found = self.attributes("ApproximateNumberOfMessages")
        return None if found is None else int(found.get("ApproximateNumberOfMessages", "0"))

    def policy(self) -> Json | None:
        """The queue's policy; None if there is no such queue. For a queue without a policy, the result has no
        statements. Cost: 2 requests.
        """
        found = self.attributes("Policy")
        return None if found is None else policy_in(found.get("Policy"), f"queue {self.site.queue_name!r}")

    def set_policy(self, policy: Json) -> None:
        """Replace the queue's policy. Cost: 2 requests."""
        if (url := self.url()) is not None:
            text = json.dumps(policy) if policy["Statement"] else ""
            self.sqs.ask("set_queue_attributes", QueueUrl=url, Attributes={"Policy": text})

    def is_ours(self) -> bool:
        """True if the queue was made here. Cost: 2 requests."""
        found = self.sqs.ask("list_queue_tags", QueueUrl=url) if (url := self.url()) else None
        return found is not None and found.get("Tags", {}).get(TAG) == self.site.name

    @property
    def title(self) -> str:
        """The queue's title, for people."""
        return f"SQS queue {self.site.queue_name!r}, which keeps messages for 14 days"

    def lacks(self) -> str:
        """See `Part`. Cost: 1 request."""
        return "" if self.url() else "is missing"

    def make(self) -> None:
        """See `Part`. An existing queue stays unchanged: 1 request. A new queue costs at least 3 requests, because the
        method waits until SQS shows the queue.

        After a queue is deleted, SQS refuses the queue's name for 60 s.
        """
        for _ in attempts(self.clock, SHOWN_ATTEMPTS, base=0.5):
            if self.url() is not None:
                return
            tags = {TAG: self.site.name}
            self.sqs.ask("create_queue", QueueName=self.site.queue_name, Attributes=ATTRIBUTES, tags=tags)

    def remains(self) -> str:
        """See `Part`. A queue that was not made here stays. Cost: 5 requests."""
        if not self.is_ours():
            return ""
        return f"SQS queue {self.site.queue_name!r}, and the messages in it: about {self.waiting() or 0}"

    def remove(self) -> None:
        """See `Part`. Cost: 2 or 3 requests."""
        if self.is_ours() and (url := self.url()):
            self.sqs.ask("delete_queue", QueueUrl=url)


def sending(queue: Queue, service: str, source_arn: str, account: str = "") -> StatementPart:
    """The statement of the queue's policy that allows only `service` to send, on behalf of the sender `source_arn`.
    With `account`, the sender must belong to this account.
    """
    site = queue.site
    return StatementPart(
        title=f"policy of the queue: only {service} may send to it, for {source_arn}",
        statement=allowing(
            site.name,
            service=service,
            action="sqs:SendMessage",
            resource=site.queue_arn,
            source=source_arn,
            account=account,
        ),
        read=queue.policy,
        clock=queue.clock,
        write=queue.set_policy,
    )
