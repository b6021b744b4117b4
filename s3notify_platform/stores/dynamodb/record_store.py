r"""`RecordStore` on a DynamoDB table: for high rates, and for buckets that lack `If-Match`.

| attribute | type | value |
|---|---|---|
| partition | S | `{scope}{partition}`; this is the partition key |
| key | S | the record's key; this is the sort key, which DynamoDB orders by UTF-8 bytes, so scans are in key order |
| version | S | 32 hex digits, drawn for each write |
| value | B | value of a record |
| count | N | value of a counter, in place of `value` |

Guarantees. Every write is one conditional request, and gives the record a new version: a random token. So if several
writers expect one version, at most one succeeds. A write with an unknown outcome returns `Unknown`, and is never sent
again here: callers read the record (`protocols.updates`). After an addition with an unknown outcome, the counter is
read once, and its token shows if the addition was applied. Reads are consistent. Several sources can share a table if
each has its own scope.

| operation | requests, undisturbed |
|---|---|
| create, read, replace, remove, add | 1 |
| scan | 1 for each megabyte |

Limits. An item may have up to 400 KB. A scope and its partition may together have up to 2048 bytes, and a key may have
up to 1024 bytes. Anything larger is refused with `UsageError` before it is sent. Only records made by `add` are
counters. A creation request that the network delays may take effect after the record was removed. The record then has a
version that no caller knows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, assert_never

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import Conflict, ETag, Record, Unknown, Version, WriteOutcome
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.dynamo_table import (
    Applied,
    DynamoTable,
    Item,
    Outcome,
    Refused,
    absent,
    port_outcome,
)
from s3notify_platform.stores.dynamodb.table_schema import TableSchema

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

RECORD_TABLE: Final = TableSchema(partition_key="partition", sort_key="key")

ITEM_MAX_BYTES: Final = 400 * 1024
PARTITION_MAX_BYTES: Final = 2048
KEY_MAX_BYTES: Final = 1024

_OVERHEAD_BYTES: Final = len("partitionkeyvalueversion") + 32
"""Bytes that the attributes' names and the version take."""


class DynamoRecordStore:
    """Records in one table; `scope` names the part of the table to use. Thread-safe; no request before a call."""

    def __init__(
        self,
        config: DynamoConfig,
        *,
        scope: str = "",
        clock: Clock = SYSTEM_CLOCK,
        client: "DynamoDBClient | None" = None,
    ) -> None:
        self._table = DynamoTable(config, clock=clock, client=client)
        self._scope = scope
        self._clock = clock

    def close(self) -> None:
        """Closes the connections. The store may be used again afterwards."""
        self._table.close()

    def create(self, partition: str, key: str, value: bytes) -> WriteOutcome:
        return self._put(self._key(partition, key), value, None)

    def read(self, partition: str, key: str) -> Record | None:
        item = self._table.get(self._key(partition, key))
        return _record(item) if item is not None else None

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> WriteOutcome:
        return self._put(self._key(partition, key), value, expected)

    def remove(self, partition: str, key: str, *, expected: Version) -> WriteOutcome:
        return _outcome(
            self._table.write("delete_item", Key=self._key(partition, key), **_condition(expected)), None
        )

    def scan(
        self,
        partition: str,
        *,
        prefix: str = "",
        known: Mapping[str, Record] | None = None,  # noqa: ARG002 - a scan reads all records anyway
        keys_only: Callable[[str], bool] | None = None,
        wanted: Callable[[str], bool] | None = None,
    ) -> Iterator[Record]:
        """See `RecordStore.scan`. The scan is not a snapshot: each page is read when the caller asks for its first
        record.

        A page contains whole records. So `known` is ignored, and records that are not `wanted` are read too.
        """
        for item in self._table.query(
            "partition", self._partition(partition), sorted_by="key", prefix=prefix
        ):
            record = _record(item)
            if wanted is None or wanted(record.key):
                yield (
                    replace(record, value=b"") if keys_only is not None and keys_only(record.key) else record
                )

    def add(
        self, partition: str, key: str, amount: int, *, ceiling: int | None = None
    ) -> int | Conflict | Unknown:
        """See `RecordStore.add`. `Unknown` if the answer was lost and another writer has added to the counter
        afterwards.
        """
        place = self._key(partition, key)
        if amount < 0:
            condition, bound = "#count >= :bound", -amount
        elif amount > 0 and ceiling is not None:
            if amount > ceiling:
                return Conflict()
            condition = "attribute_not_exists(#version) OR #count <= :bound"
            bound = ceiling - amount
        else:
            condition, bound = "attribute_not_exists(#version) OR #count >= :bound", 0
        token = unique_name(self._clock)
        outcome = self._table.write(
            "update_item",
            Key=place,
            UpdateExpression="ADD #count :amount SET #version = :token",
            ConditionExpression=condition,
            ExpressionAttributeNames={"#count": "count", "#version": "version"},
            ExpressionAttributeValues={
                ":amount": {"N": str(amount)},
                ":bound": {"N": str(bound)},
                ":token": {"S": token},
            },
            ReturnValues="ALL_NEW",
        )
        match outcome:
            case Applied(attributes=attributes):
                return int(attributes["count"]["N"])
            case Refused(found=found):
                if (item := found or self._table.get(place)) is not None and "count" not in item:
                    raise CorruptError(f"{place}: holds {_record(item).value[:60]!r}, which is not a counter")
                return Conflict()
            case Unknown():
                return outcome if (count := self._counted(place, token)) is None else count
            case _ as unreachable:
                assert_never(unreachable)

    def _counted(self, place: Item, token: str) -> int | None:
        """The counter's value, if the counter's last addition has this token; else None. An addition is sent only once,
        because a repeated addition could count twice.
        """
        try:
            item = self._table.get(place)
        except UnavailableError:
            return None
        ours = item is not None and item.get("version", {}).get("S") == token
        return int(item["count"]["N"]) if item is not None and ours else None

    def _put(self, place: Mapping[str, Any], value: bytes, expected: Version | None) -> WriteOutcome:
        size = sum(len(name["S"].encode()) for name in place.values()) + len(value) + _OVERHEAD_BYTES
        if size > ITEM_MAX_BYTES:
            raise UsageError(f"{place}: a record of {size} bytes; DynamoDB accepts {ITEM_MAX_BYTES}")
        # Each attempt has its own token. So if an attempt is applied late, after the record was removed, the record
        # gets a version that no caller knows.
        token = unique_name(self._clock)
        item = {**place, "value": {"B": value}, "version": {"S": token}}
        return _outcome(self._table.write("put_item", Item=item, **_condition(expected)), ETag(token))

    def _partition(self, partition: str) -> str:
        if not partition:
            raise UsageError("a record's partition must not be empty")
        return _checked(f"{self._scope}{partition}", PARTITION_MAX_BYTES)

    def _key(self, partition: str, key: str) -> dict[str, Any]:
        if not key:
            raise UsageError("a record's key must not be empty")
        return {"partition": {"S": self._partition(partition)}, "key": {"S": _checked(key, KEY_MAX_BYTES)}}


def _checked(name: str, limit: int) -> str:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError(f"{name[:60]!r} is not UTF-8: rename the record") from None
    if size > limit:
        raise UsageError(
            f"{name[:60]!r}… has {size} bytes; DynamoDB accepts {limit} here: use a shorter name"
        )
    return name


def _condition(expected: Version | None) -> dict[str, Any]:
    if expected is None:
        return absent("version")
    return {
        "ConditionExpression": "#version = :expected",
        "ExpressionAttributeNames": {"#version": "version"},
        "ExpressionAttributeValues": {":expected": {"S": expected}},
    }


def _outcome(outcome: Outcome, etag: ETag | None) -> WriteOutcome:
    if isinstance(outcome, Refused) and outcome.found:
        return Conflict(found=_record(outcome.found))
    return port_outcome(outcome, etag)


def _record(item: Item) -> Record:
    try:
        value = bytes(item["value"]["B"]) if "value" in item else item["count"]["N"].encode()
        return Record(key=item["key"]["S"], value=value, version=Version(item["version"]["S"]))
    except KeyError as missing:
        raise CorruptError(
            f"the item {sorted(item)} lacks {missing}: it was not written by this package"
        ) from None
