"""A DynamoDB table in memory, for simulations. The table supports only the calls and conditions that the adapters use.

    table = TableInMemory("partition", "key")                 a store for `run_simulation`
    DynamoRecordStore(CONFIG, clock=clock, client=Client(store))    in an actor, with its store

Faults happen in calls of `TableInMemory`. `Client` then raises the same exceptions as botocore.
"""

import re
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.ports import Unknown
from s3notify_platform.stores.config import DynamoConfig

CONFIG = DynamoConfig(table="simulated")

Item = dict[str, Any]


class Refusal(dict[str, Any]):
    """The error of a request whose condition did not hold. The error has the existing item, if there is one."""


class TableInMemory:
    """Items by key. Each call is atomic. A condition that the adapters do not use raises an error."""

    def __init__(self, *key: str) -> None:
        self.items: dict[tuple[str, ...], Item] = {}
        self._key = key

    def put_item(self, *, Item: Item, **arguments: Any) -> Item:  # noqa: N803 - botocore's names
        found = self.items.get(self._name(Item))
        if not _holds(found, arguments):
            return Refusal(found or {})
        self.items[self._name(Item)] = dict(Item)
        return {}

    def delete_item(self, *, Key: Item, **arguments: Any) -> Item:  # noqa: N803
        found = self.items.get(self._name(Key))
        if not _holds(found, arguments):
            return Refusal(found or {})
        self.items.pop(self._name(Key), None)
        return {}

    def update_item(self, *, Key: Item, UpdateExpression: str, **arguments: Any) -> Item:  # noqa: N803
        assert UpdateExpression == "ADD #count :amount SET #version = :token"
        found = self.items.get(self._name(Key))
        if not _holds(found, arguments):
            return Refusal(found or {})
        values = arguments["ExpressionAttributeValues"]
        count = int((found or {}).get("count", {"N": "0"})["N"]) + int(values[":amount"]["N"])
        item = {**Key, **(found or {}), "count": {"N": str(count)}, "version": values[":token"]}
        self.items[self._name(Key)] = item
        return {"Attributes": item}

    def get_item(self, *, Key: Item, **_: Any) -> Item:  # noqa: N803
        found = self.items.get(self._name(Key))
        return {} if found is None else {"Item": dict(found)}

    def query(self, *, ExpressionAttributeValues: Item, **_: Any) -> Item:  # noqa: N803
        partition = ExpressionAttributeValues[":v"]["S"]
        prefix = ExpressionAttributeValues.get(":p", {"S": ""})["S"]
        found = [name for name in sorted(self.items) if name[0] == partition and name[-1].startswith(prefix)]
        return {"Items": [self.items[name] for name in found]}

    def _name(self, item: Item) -> tuple[str, ...]:
        return tuple(item[name]["S"] for name in self._key)


class Client:
    """The methods of botocore's client that `DynamoTable` calls, on a table that may fail."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, call: str) -> Any:
        function = getattr(self._table, call)

        def send(**arguments: Any) -> Any:
            try:
                answer = function(**arguments)
            except UnavailableError:
                raise ReadTimeoutError(endpoint_url="simulated") from None
            if isinstance(answer, Unknown):
                raise ReadTimeoutError(endpoint_url="simulated")
            if isinstance(answer, Refusal):
                error = {"Error": {"Code": "ConditionalCheckFailedException", "Message": "refused"}}
                raise ClientError(error | ({"Item": dict(answer)} if answer else {}), call)
            return answer

        return send


def _holds(item: Item | None, arguments: Item) -> bool:
    condition = arguments.get("ConditionExpression")
    return condition is None or any(
        all(_term(item or {}, term, arguments) for term in either.split(" AND "))
        for either in condition.split(" OR ")
    )


def _term(item: Item, term: str, arguments: Item) -> bool:
    names = arguments["ExpressionAttributeNames"]
    if absent := re.fullmatch(r"attribute_not_exists\((#\w+)\)", term):
        return names[absent[1]] not in item
    parts = re.fullmatch(r"(#\w+) (=|<=|>=) (:\w+)", term)
    assert parts is not None, f"unknown condition: {term}"
    found, wanted = item.get(names[parts[1]]), arguments["ExpressionAttributeValues"][parts[3]]
    if found is None:
        return False
    if parts[2] == "=":
        return found == wanted
    one, other = int(found["N"]), int(wanted["N"])
    return one <= other if parts[2] == "<=" else one >= other
