"""One SQS queue as a `ports.MessageQueue`, by boto3. Each request is sent only once. `delete` and `hide` return
the messages for which their request failed.

Every operation here may be repeated. If an answer is lost, the only effect is that a message arrives again, or later.
SQS always delivers at least once, and in no particular order.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore.exceptions import ClientError

from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import Message
from s3notify_platform.stores.config import SqsConfig
from s3notify_platform.stores.sdk import LOST, NEVER_SENT, SDK_ERRORS, SdkUser, answer_of, unusable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

BATCH: Final = 10
"""Maximum number of messages of one request: SQS's own limit."""

WAIT_MAX_SECONDS: Final = 20
VISIBILITY_MAX_SECONDS: Final = 12 * 3600

_BUSY = frozenset({"OverLimit", "RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled"})

T = TypeVar("T")


class SqsQueue(SdkUser["SQSClient"]):
    """One queue. Thread-safe.

    `UnavailableError`: try again later. `UsageError`: no such queue, or no permission.
    """

    batch_size: int = BATCH

    def __init__(self, config: SqsConfig, *, client: "SQSClient | None" = None) -> None:
        super().__init__("sqs", config, client, read_seconds=WAIT_MAX_SECONDS + 10)
        self.config = config

    def receive(
        self, *, wait_seconds: int, visibility_seconds: int, limit: int = BATCH
    ) -> tuple[Message, ...]:
        """See `MessageQueue.receive`. SQS waits at most 20 s."""
        answer = self._send(
            lambda: self.client.receive_message(
                QueueUrl=self.config.queue_url,
                MaxNumberOfMessages=limit,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=visibility_seconds,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        )
        return tuple(
            Message(
                id=found["MessageId"],
                body=found["Body"],
                receipt=found["ReceiptHandle"],
                receives=int(found.get("Attributes", {}).get("ApproximateReceiveCount", "1")),
            )
            for found in answer.get("Messages", ())
        )

    def delete(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """See `MessageQueue.delete`. Cost: 1 request for each 10 messages."""
        return self._in_batches("delete_message_batch", messages)

    def hide(self, messages: Sequence[Message], seconds: float) -> tuple[Message, ...]:
        """See `MessageQueue.hide`; SQS hides messages for at most 12 h. Cost: 1 request for each 10 messages."""
        timeout = max(0, min(int(seconds), VISIBILITY_MAX_SECONDS))
        return self._in_batches("change_message_visibility_batch", messages, VisibilityTimeout=timeout)

    def max_receives(self) -> int | None:
        """See `MessageQueue.max_receives`. The number is in the queue's redrive policy. Cost: 1 request."""
        answer = self._send(
            lambda: self.client.get_queue_attributes(
                QueueUrl=self.config.queue_url, AttributeNames=["RedrivePolicy"]
            )
        )
        policy = answer.get("Attributes", {}).get("RedrivePolicy")
        return int(json.loads(policy)["maxReceiveCount"]) if policy else None

    def _in_batches(self, call: str, messages: Sequence[Message], **extra: int) -> tuple[Message, ...]:
        """Calls SQS for all messages, `BATCH` in one request. Returns the messages for which the call failed."""

        def send(entries: Sequence[Mapping[str, object]]) -> Any:
            return getattr(self.client, call)(QueueUrl=self.config.queue_url, Entries=entries)

        left: list[Message] = []
        for start in range(0, len(messages), BATCH):
            batch = messages[start : start + BATCH]
            entries = [
                {"Id": str(number), "ReceiptHandle": message.receipt, **extra}
                for number, message in enumerate(batch)
            ]
            try:
                answer = self._send(partial(send, entries))
            except UnavailableError:
                left.extend(batch)
            else:
                left.extend(batch[int(failed["Id"])] for failed in answer.get("Failed", ()))
        return tuple(left)

    def _send(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except SDK_ERRORS as error:
            raise _error_of(error, self.config) from error


def _error_of(error: Exception, config: SqsConfig) -> UnavailableError | UsageError:
    if isinstance(error, ClientError):
        status, code, message = answer_of(error)
        if status >= 500 or status == 429 or code.rpartition(".")[2] in _BUSY:
            return UnavailableError(f"{config.place} is unavailable: {status} {code}")
        return UsageError(f"{config.place} refused the request: {status} {code} {message}".rstrip())
    if isinstance(error, (*NEVER_SENT, *LOST)):
        return UnavailableError(f"{config.place} is unavailable: {type(error).__name__}")
    return unusable(error, config)
