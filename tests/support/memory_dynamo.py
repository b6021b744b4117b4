"""A DynamoDB client in memory, for simulations. The client supports transactions of puts and deletes, which are applied
completely or not at all.

The client accepts only the two conditions that `XorAckTable` uses, and refuses every other request.
`tests/contracts/test_xor_ack_table.py` tests the same requests on a real server.
"""

# ruff: noqa: N803 - the SDK names its arguments so

from threading import Lock
from typing import Any

from botocore.exceptions import ClientError


class MemoryDynamo:
    """One table with one string key."""

    def __init__(self, key: str = "tagID") -> None:
        self._key = key
        self._items: dict[str, dict[str, Any]] = {}
        self._lock = Lock()

    def transact_get_items(self, *, TransactItems: list[dict[str, Any]]) -> dict[str, Any]:
        with self._lock:
            found = [self._items.get(item["Get"]["Key"][self._key]["S"]) for item in TransactItems]
        return {"Responses": [{"Item": dict(item)} if item is not None else {} for item in found]}

    def transact_write_items(
        self, *, TransactItems: list[dict[str, Any]], ClientRequestToken: str
    ) -> dict[str, Any]:
        assert len(ClientRequestToken) <= 36
        changes = [next(iter(change.items())) for change in TransactItems]
        keys = [change.get("Item", change.get("Key"))[self._key]["S"] for _, change in changes]
        assert len(set(keys)) == len(keys)
        with self._lock:
            held = [self._holds(key, change) for key, (_, change) in zip(keys, changes, strict=True)]
            if not all(held):
                reasons = [{"Code": "None" if one else "ConditionalCheckFailed"} for one in held]
                raise ClientError(
                    {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons},
                    "TransactWriteItems",
                )
            for key, (kind, change) in zip(keys, changes, strict=True):
                if kind == "Put":
                    self._items[key] = dict(change["Item"])
                else:
                    assert kind == "Delete"
                    self._items.pop(key, None)
        return {}

    def scan(self, **_: Any) -> dict[str, Any]:
        with self._lock:
            return {"Items": [{self._key: {"S": key}} for key in self._items]}

    def _holds(self, key: str, change: dict[str, Any]) -> bool:
        found, condition = self._items.get(key), change["ConditionExpression"]
        if condition == "attribute_not_exists(#key)":
            return found is None
        name, _, value = condition.partition(" = ")
        attribute = change["ExpressionAttributeNames"][name]
        return found is not None and found.get(attribute) == change["ExpressionAttributeValues"][value]
