"""One DynamoDB table, reduced to the few calls that the adapters need.

Guarantees. A write is sent once, and has one of three outcomes: `Applied`, `Refused` with the item that was found, or
`Unknown`. A write is sent again only if the server certainly did not apply it. Reads are consistent, and sent up to
`attempts` times, with backoff and jitter.

| answer | verdict |
|---|---|
| ConditionalCheckFailed, also as the reason of a cancelled transaction | `Refused` |
| throttled, transaction conflict, no connection | not applied: sent again, finally `UnavailableError` |
| 5xx, timeout, connection lost, unreadable answer | write: `Unknown`; read: sent again |
| everything else | `UsageError`: only a person can fix it |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import RefusedError, UnavailableError, UsageError
from s3notify_platform.kernel.limits import REQUEST_ATTEMPTS, RETRY_CEILING_SECONDS
from s3notify_platform.kernel.ports import Conflict, ETag, Unknown, WriteOutcome, Written
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.sdk import NEVER_SENT, SDK_ERRORS, SdkUser, answer_of, count_repeated, unusable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")
Item = Mapping[str, Any]
"""Attributes by name, each in DynamoDB's form: `{"path": {"S": "a"}, "generation": {"N": "3"}}`."""

WriteCall = Literal["put_item", "update_item", "delete_item", "transact_write_items"]

DYNAMO_RETRY_BASE_SECONDS = 0.05

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
    """The write was applied. `attributes`: the item's attributes that the argument `ReturnValues` requested."""

    attributes: Item = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A condition did not hold, and nothing was written. `found` is the existing item, if the server returns it."""

    found: Item | None = None


Outcome = Applied | Refused | Unknown


def port_outcome(outcome: Outcome, etag: ETag | None) -> WriteOutcome:
    """The outcome in the ports' classes; `etag` is the item's ETag if it was written."""
    match outcome:
        case Applied():
            return Written(etag=etag)
        case Refused():
            return Conflict()
        case Unknown():
            return outcome


def absent(attribute: str) -> dict[str, Any]:
    """The condition that no item exists. `attribute`: an attribute that every item of the table has."""
    return {
        "ConditionExpression": "attribute_not_exists(#key)",
        "ExpressionAttributeNames": {"#key": attribute},
    }


class DynamoTable(SdkUser["DynamoDBClient"]):
    """One table. Thread-safe."""

    def __init__(
        self,
        config: DynamoConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        client: "DynamoDBClient | None" = None,
        read_seconds: float = 10.0,
        attempts: int = REQUEST_ATTEMPTS,
    ) -> None:
        super().__init__("dynamodb", config, client, read_seconds=read_seconds)
        self.config = config
        self._clock = clock
        self._attempts = attempts

    def get(self, key: Item) -> Item | None:
        """The item with this key, read consistently. Cost: 1 request."""
        found = self._read(
            lambda: self.client.get_item(TableName=self.config.table, Key=key, ConsistentRead=True)
        )
        item: Item | None = found.get("Item")
        return item

    def get_together(self, keys: Sequence[Item]) -> list[Item | None]:
        """Up to 100 items, read at one moment. Cost: 1 request, which is billed double."""
        gets: Any = [{"Get": {"TableName": self.config.table, "Key": key}} for key in keys]
        found = self._read(lambda: self.client.transact_get_items(TransactItems=gets))
        return [answer.get("Item") for answer in found["Responses"]]

    def query(self, attribute: str, value: str, *, sorted_by: str = "", prefix: str = "") -> Iterator[Item]:
        """Every item with this partition key, in order of the sort key. Cost: 1 request for each megabyte.

        `prefix`: only items whose sort key begins with this text are yielded. `sorted_by`: the sort key's attribute.
        """
        condition, names, values = "#k = :v", {"#k": attribute}, {":v": {"S": value}}
        if prefix:
            condition += " AND begins_with(#s, :p)"
            names["#s"], values[":p"] = sorted_by, {"S": prefix}
        return self._pages(
            "query",
            KeyConditionExpression=condition,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
        )

    def inspect(self, call: "Callable[[DynamoDBClient], T]") -> T:
        """Runs any other call that is safe to repeat; `call` gets the client."""
        answer: T = self._read(lambda: call(self.client))
        return answer

    def keys(self, attribute: str) -> Iterator[str]:
        """The values that a string attribute has in the table's items, in no particular order. Cost: 1 request for each
        megabyte.
        """
        items = self._pages("scan", ProjectionExpression="#k", ExpressionAttributeNames={"#k": attribute})
        return (item[attribute]["S"] for item in items)

    def _pages(self, call: Literal["query", "scan"], **arguments: Any) -> Iterator[Item]:
        arguments |= {"TableName": self.config.table, "ConsistentRead": True}
        while True:
            page = self._read(lambda: getattr(self.client, call)(**arguments))
            yield from page["Items"]
            if not (last := page.get("LastEvaluatedKey")):
                return
            arguments["ExclusiveStartKey"] = last

    def write(self, call: WriteCall, **arguments: Any) -> Outcome:
        """One write, under the condition in its arguments. The method adds `TableName` to the arguments, unless the
        call is a transaction.

        A refused transaction has no `found`.
        """
        if call != "transact_write_items":
            arguments = {"TableName": self.config.table, **arguments}
            if "ConditionExpression" in arguments:
                arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        cause = ""
        for _ in self._attempts_of_one():
            try:
                answer = getattr(self.client, call)(**arguments)
                return Applied(attributes=answer.get("Attributes", {}))
            except SDK_ERRORS as error:
                verdict = _judge(error, self.config)
                if isinstance(verdict, Refused | Unknown):
                    return verdict
                cause = verdict
        raise UnavailableError(f"{self.config.place}: {cause}, {self._attempts} times; nothing was written")

    def _read(self, call: Callable[[], Any]) -> Any:
        cause: object = ""
        for _ in self._attempts_of_one():
            try:
                return call()
            except SDK_ERRORS as error:
                cause = _judge(error, self.config)
        raise UnavailableError(f"{self.config.place}: {cause}, {self._attempts} times")

    def _attempts_of_one(self) -> Iterator[int]:
        for attempt in attempts(
            self._clock, self._attempts, base=DYNAMO_RETRY_BASE_SECONDS, ceiling=RETRY_CEILING_SECONDS
        ):
            if attempt:
                count_repeated("dynamodb")
            yield attempt


def _judge(error: Exception, config: DynamoConfig) -> Refused | Unknown | str:
    """The outcome of a failed request. If the result is a text, the request was certainly not applied. `UsageError` if
    no retry can help; `RefusedError` if DynamoDB refuses the request.
    """
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        raise unusable(error, config) from None
    if isinstance(error, NEVER_SENT):
        return type(error).__name__
    if not isinstance(error, ClientError):
        return Unknown(cause=type(error).__name__)
    status, code, message = answer_of(error)
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
        raise UsageError(f"no {config.place}: create it with `s3notify init`, or correct its name") from None
    if status >= 500 or code == "TransactionInProgressException":
        return Unknown(cause=f"{status} {code}")
    raise RefusedError(
        f"{config.place} refused the request: {code} {message} {sorted(reasons) or ''}".rstrip()
    ) from None
