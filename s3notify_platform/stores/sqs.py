"""One SQS queue as a `ports.MessageQueue`, by boto3. Each request is sent once; failed messages are returned.

Every operation here may be repeated. If an answer is lost, a message only comes again, or later. SQS always delivers
at least once, and in no order.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from s3notify_platform.errors import UnavailableError, UsageError
from s3notify_platform.ports import Message
from s3notify_platform.stores.config import default_region
from s3notify_platform.stores.faults import SDK_ERRORS
from s3notify_platform.stores.sdk import sdk_client

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

BATCH: Final = 10
"""Messages of one request: SQS's own limit."""

WAIT_MAX_SECONDS: Final = 20
VISIBILITY_MAX_SECONDS: Final = 12 * 3600

_BUSY = frozenset({"OverLimit", "RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled"})
_UNREACHABLE = (
    EndpointConnectionError,
    ConnectTimeoutError,
    ProxyConnectionError,
    HTTPClientError,
    SSLError,
    ResponseParserError,
    OSError,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsConfig:
    """One queue. Pickles; its repr shows no secret. Without keys boto3's own credential chain applies."""

    queue_url: str
    region: str = field(default_factory=default_region)
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


class SqsQueue:
    """One queue. Thread-safe; nothing is sent before the first call.

    `UnavailableError`: try again later. `UsageError`: no such queue, or no permission.
    """

    batch_size: int = BATCH

    def __init__(self, config: SqsConfig, *, client: "SQSClient | None" = None) -> None:
        self.config = config
        self._client = client
        self._lock = Lock()

    @property
    def client(self) -> "SQSClient":
        """The SDK's client, made at first use."""
        with self._lock:
            if self._client is None:
                self._client = _new_client(self.config)
            return self._client

    def close(self) -> None:
        """Close the connections. The queue may be used again."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def receive(
        self, *, wait_seconds: int, visibility_seconds: int, limit: int = BATCH
    ) -> tuple[Message, ...]:
        """See `MessageQueue.receive`. SQS waits 20 s at most."""
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
        """See `MessageQueue.delete`. 1 request for 10."""

        def send(entries: list[dict[str, Any]]) -> Any:
            return self.client.delete_message_batch(QueueUrl=self.config.queue_url, Entries=entries)  # type: ignore[arg-type]

        return self._in_batches(send, messages, {})

    def hide(self, messages: Sequence[Message], seconds: float) -> tuple[Message, ...]:
        """See `MessageQueue.hide`, 12 h at most. 1 request for 10."""
        timeout = max(0, min(int(seconds), VISIBILITY_MAX_SECONDS))

        def send(entries: list[dict[str, Any]]) -> Any:
            return self.client.change_message_visibility_batch(
                QueueUrl=self.config.queue_url,
                Entries=entries,  # type: ignore[arg-type]
            )

        return self._in_batches(send, messages, {"VisibilityTimeout": timeout})

    def max_receives(self) -> int | None:
        """See `MessageQueue.max_receives`: its redrive policy."""
        answer = self._send(
            lambda: self.client.get_queue_attributes(
                QueueUrl=self.config.queue_url, AttributeNames=["RedrivePolicy"]
            )
        )
        policy = answer.get("Attributes", {}).get("RedrivePolicy")
        return int(json.loads(policy)["maxReceiveCount"]) if policy else None

    def _in_batches(
        self, send: Callable[[list[dict[str, Any]]], Any], messages: Sequence[Message], extra: dict[str, int]
    ) -> tuple[Message, ...]:
        left: list[Message] = []
        for batch in _batches(messages):
            entries = [
                {"Id": str(number), "ReceiptHandle": message.receipt, **extra}
                for number, message in enumerate(batch)
            ]
            try:
                answer = self._send(lambda: send(entries))  # noqa: B023 - called at once
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


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), BATCH):
        yield messages[start : start + BATCH]


def _error_of(error: Exception, config: SqsConfig) -> UnavailableError | UsageError:
    place = f"queue {config.queue_url!r}"
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status >= 500 or status == 429 or code.rpartition(".")[2] in _BUSY:
            return UnavailableError(f"{place} is unavailable: {status} {code}")
        message = error.response.get("Error", {}).get("Message", "")
        return UsageError(f"{place} refused the request: {status} {code} {message}".rstrip())
    if isinstance(error, _UNREACHABLE):
        return UnavailableError(f"{place} is unavailable: {type(error).__name__}")
    return UsageError(f"{place}: {' '.join(str(error).split())[:300]}")


def _new_client(config: SqsConfig) -> "SQSClient":
    client: SQSClient = sdk_client(
        "sqs", config, f"queue {config.queue_url!r}", read_seconds=WAIT_MAX_SECONDS + 10
    )
    return client
