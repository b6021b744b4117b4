"""Inlet from SQS: S3's notifications, as S3, SNS or EventBridge put them into a queue. `pull_inlet` has the loop.

SQS hides at most 120,000 messages. While so many messages are hidden, SQS delivers no other messages.
"""

from dataclasses import dataclass
from typing import Annotated

from s3notify_platform.channels.inlets.pull_inlet import PullInletSettings
from s3notify_platform.channels.service import ServiceContext
from s3notify_platform.kernel.ports import MessageQueue
from s3notify_platform.kernel.setting import About
from s3notify_platform.stores.config import SqsConfig
from s3notify_platform.stores.sqs import SqsQueue


@dataclass(frozen=True, kw_only=True)
class SqsInletSettings(PullInletSettings):
    """Receive S3's event notifications from an SQS queue: sent by S3 directly, by SNS, or by EventBridge.

    Run `s3notify init NAME --events` once to set up the queue, and the bucket's notification for the source's keys.
    Only the source's bucket, or the topic or rule between bucket and queue, may send to this queue. By hand: allow
    s3.amazonaws.com to send to the queue (sqs:SendMessage, on condition that aws:SourceArn is the bucket), and let the
    queue keep messages for 14 days. Let the bucket notify the queue of s3:ObjectCreated:*, s3:ObjectRemoved:* and
    s3:LifecycleExpiration:*, filtered by the source's prefix. Without the filter, the platform's own objects in the
    same bucket are reported, too; they are ignored, but cost requests.

    A redrive policy should allow 100 receives or more, since a full topic uses receives, too. Without a redrive policy,
    messages that cannot be parsed are kept by `s3notify inlet poison`.

    The inlet itself sends events to topics that are not persistent: the options `--allow-…` and `--ca-folder` permit
    their endpoints. Permissions: `s3notify init NAME --print iam --role inlet`.
    """

    queue_url: Annotated[
        str, About("URL of the SQS queue, like https://sqs.eu-central-1.amazonaws.com/123456789012/events")
    ]
    region: Annotated[
        str | None,
        About("The queue's region, like eu-central-1; default: the bucket's", option="--queue-region"),
    ] = None
    endpoint_url: Annotated[
        str | None,
        About("SQS endpoint, like http://127.0.0.1:9324; default: AWS", option="--queue-endpoint-url"),
    ] = None

    def messages(self, context: ServiceContext) -> MessageQueue:
        """The SQS queue, with the credentials of the bucket."""
        s3 = context.platform
        return SqsQueue(
            SqsConfig(
                queue_url=self.queue_url,
                region=self.region or s3.region,
                endpoint_url=self.endpoint_url,
                **s3.credentials,
            )
        )
