"""One DynamoDB table, reduced to the few calls that the adapters need.

Guarantees. A write is sent once, and has one of three outcomes: `Applied`, `Refused` with the item that was there,
`Unknown`. It is sent again only if the server certainly did nothing with it. Reads are consistent, and sent up to
`attempts` times, with backoff and jitter.

| answer | verdict |
|---|---|
| ConditionalCheckFailed, also as the reason of a cancelled transaction | `Refused` |
| throttled, transaction conflict, no connection | nothing happened: sent again, finally `UnavailableError` |
| 5xx, timeout, connection lost, unreadable answer | write: `Unknown`; read: sent again |
| everything else | `UsageError`: only a person can fix it |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
)

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.errors import UnavailableError, UsageError
from s3notify_platform.ports import Unknown
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.faults import SDK_ERRORS
from s3notify_platform.stores.sdk import sdk_client

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")
Item = Mapping[str, Any]
"""Attributes by name, each in DynamoDB's form: `{"path": {"S": "a"}, "generation": {"N": "3"}}`."""

WriteCall = Literal["put_item", "update_item", "delete_item", "transact_write_items"]

ATTEMPTS = 5
RETRY_BASE_SECONDS = 0.05
RETRY_CEILING_SECONDS = 2.0

_NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
_NOTHING_HAPPENED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "Throttling",
        "LimitExceededException",
        "TransactionConflictException",
        "TransactionConflict",
        "ThrottlingError",
        "ProvisionedThroughputExceeded",
    }
)
_REFUSED = frozenset({"ConditionalCheckFailedException", "ConditionalCheckFailed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The write is applied; `attributes` as `ReturnValues` requested them."""

    attributes: Item = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A condition did not hold, and nothing was written. `found` is the item there, if the server returns it."""

    found: Item | None = None


Outcome = Applied | Refused | Unknown


class DynamoTable:
    """One table. Thread-safe; nothing is sent, and no credential looked up, before the first call."""

    def __init__(
        self,
        config: DynamoConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        client: "DynamoDBClient | None" = None,
        pool_size: int = 32,
        connect_seconds: float = 5.0,
        read_seconds: float = 10.0,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.config = config
        self._clock = clock
        self._client = client
        self._client_settings = (pool_size, connect_seconds, read_seconds)
        self._attempts = attempts
        self._lock = Lock()

    @property
    def client(self) -> "DynamoDBClient":
        """The SDK's client, created at first use."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = _new_client(self.config, *self._client_settings)
        return self._client

    def close(self) -> None:
        """Close the connections. The table may be used again."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def get(self, key: Item) -> Item | None:
        """The item of this key, consistently read. 1 request."""
        found = self._read(
            lambda: self.client.get_item(TableName=self.config.table, Key=key, ConsistentRead=True)
        )
        item: Item | None = found.get("Item")
        return item

    def get_together(self, keys: Sequence[Item]) -> list[Item | None]:
        """Up to 100 items as they were at one moment. 1 request, which costs double."""
        gets = [{"Get": {"TableName": self.config.table, "Key": key}} for key in keys]
        found = self._read(lambda: self.client.transact_get_items(TransactItems=gets))  # type: ignore[arg-type]
        return [answer.get("Item") for answer in found["Responses"]]

    def query(self, attribute: str, value: str, *, sorted_by: str = "", prefix: str = "") -> Iterator[Item]:
        """Every item with this partition key, in order of the sort key. 1 request for each megabyte.

        With `prefix`, those whose sort key, the attribute `sorted_by`, begins with it.
        """
        arguments: dict[str, Any] = {
            "TableName": self.config.table,
            "ConsistentRead": True,
            "KeyConditionExpression": "#k = :v",
            "ExpressionAttributeNames": {"#k": attribute},
            "ExpressionAttributeValues": {":v": {"S": value}},
        }
        if prefix:
            arguments["KeyConditionExpression"] += " AND begins_with(#s, :p)"
            arguments["ExpressionAttributeNames"]["#s"] = sorted_by
            arguments["ExpressionAttributeValues"][":p"] = {"S": prefix}
        while True:
            page = self._read(lambda: self.client.query(**arguments))
            yield from page["Items"]
            if not (last := page.get("LastEvaluatedKey")):
                return
            arguments["ExclusiveStartKey"] = last

    def inspect(self, call: "Callable[[DynamoDBClient], T]") -> T:
        """Any other call that is safe to repeat, with the client."""
        answer: T = self._read(lambda: call(self.client))
        return answer

    def keys(self, attribute: str) -> Iterator[str]:
        """A string attribute of every item of the table, in no order. 1 request for each megabyte."""
        arguments: dict[str, Any] = {
            "TableName": self.config.table,
            "ConsistentRead": True,
            "ProjectionExpression": "#k",
            "ExpressionAttributeNames": {"#k": attribute},
        }
        while True:
            page = self._read(lambda: self.client.scan(**arguments))
            yield from (item[attribute]["S"] for item in page["Items"])
            if not (last := page.get("LastEvaluatedKey")):
                return
            arguments["ExclusiveStartKey"] = last

    def write(self, call: WriteCall, **arguments: Any) -> Outcome:
        """One write, under the condition that it contains. `TableName` is added except for transactions.

        A refused transaction has no `found`.
        """
        if call != "transact_write_items":
            arguments = {"TableName": self.config.table, **arguments}
            if "ConditionExpression" in arguments:
                arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        cause = ""
        for attempt in range(self._attempts):
            try:
                answer = getattr(self.client, call)(**arguments)
                return Applied(attributes=answer.get("Attributes", {}))
            except SDK_ERRORS as error:
                verdict = _judge(error, self.config)
                if isinstance(verdict, Refused | Unknown):
                    return verdict
                cause = verdict
            self._pause(attempt)
        raise UnavailableError(f"{place(self.config)}: {cause}, {self._attempts} times; nothing was written")

    def _read(self, call: Callable[[], Any]) -> Any:
        cause: object = ""
        for attempt in range(self._attempts):
            try:
                return call()
            except SDK_ERRORS as error:
                cause = _judge(error, self.config)
            self._pause(attempt)
        raise UnavailableError(f"{place(self.config)}: {cause}, {self._attempts} times")

    def _pause(self, attempt: int) -> None:
        self._clock.sleep(
            backoff_seconds(attempt, self._clock, base=RETRY_BASE_SECONDS, ceiling=RETRY_CEILING_SECONDS)
        )


def place(config: DynamoConfig) -> str:
    """Table and endpoint, for messages."""
    return f"table {config.table!r} at {config.endpoint_url or f'AWS DynamoDB ({config.region})'}"


def _judge(error: Exception, config: DynamoConfig) -> Refused | Unknown | str:
    """What a failed request means; a text if certainly nothing happened. `UsageError` if no retry can help."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        raise UsageError(
            f"no credentials for {place(config)}: give this machine AWS credentials (environment, profile or "
            "instance role), or name them in the configuration"
        ) from None
    if isinstance(error, _NEVER_SENT):
        return type(error).__name__
    if not isinstance(error, ClientError):
        return Unknown(cause=type(error).__name__)
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    reasons = {
        str(reason.get("Code"))
        for reason in error.response.get("CancellationReasons", [])
        if reason.get("Code") not in (None, "None")
    }
    if code in _REFUSED or reasons & _REFUSED:
        return Refused(found=error.response.get("Item"))  # type: ignore[arg-type]
    if code in _NOTHING_HAPPENED or (reasons and reasons <= _NOTHING_HAPPENED):
        return code
    if code == "ResourceNotFoundException":
        raise UsageError(f"no {place(config)}: create it with `s3notify init`, or correct its name") from None
    if status >= 500 or code == "TransactionInProgressException":
        return Unknown(cause=f"{status} {code}")
    message = str(error.response.get("Error", {}).get("Message", ""))
    raise UsageError(
        f"{place(config)} refused the request: {code} {message} {sorted(reasons) or ''}".rstrip()
    ) from None


def _new_client(
    config: DynamoConfig, pool_size: int, connect_seconds: float, read_seconds: float
) -> "DynamoDBClient":
    client: DynamoDBClient = sdk_client(
        "dynamodb",
        config,
        place(config),
        pool_size=pool_size,
        connect_seconds=connect_seconds,
        read_seconds=read_seconds,
    )
    return client
