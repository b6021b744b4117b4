"""`Leases` on a DynamoDB table, with the same items as object_store's DynamoCommit, so both packages can use the same
table.

| attribute | type | value |
|---|---|---|
| path | S | the object's key; this is the partition key |
| etag | S | `*`, or the ETag with its quotes; this is the sort key |
| generation | N | the lease's generation |
| timeout | N | milliseconds; 0 means that the commit is done |
| ttl | N | unix seconds; this is the table's TTL attribute |
| writer | S | our own: the id of the lease's writer, as a string, because object_store can parse only S and N |

Guarantees. Each put is one conditional request: if several writers replace one lease, at most one put is granted. A put
whose answer is lost returns `Unknown`. If this put was applied, the caller's next put finds the lease, with the
caller's own `writer`.

Requests: 1 for each call, and 1 more if a server refuses a put without returning the existing item.
"""

from typing import TYPE_CHECKING, Any, Final, assert_never

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import Unknown
from s3notify_platform.protocols.conditional_commit import CommitLease, Granted, LeaseOutcome, Occupied
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.dynamo_table import Applied, DynamoTable, Item, Refused, absent
from s3notify_platform.stores.dynamodb.table_schema import TableSchema

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

LEASE_TABLE: Final = TableSchema(partition_key="path", sort_key="etag", ttl="ttl")


class DynamoLeases:
    """The leases of one bucket. Thread-safe; no request before a call."""

    def __init__(
        self, config: DynamoConfig, *, clock: Clock = SYSTEM_CLOCK, client: "DynamoDBClient | None" = None
    ) -> None:
        self._table = DynamoTable(config, clock=clock, client=client)

    def close(self) -> None:
        """Closes the connections. The leases may be used again afterwards."""
        self._table.close()

    def put(self, lease: CommitLease, *, seen: CommitLease | None) -> LeaseOutcome:
        match self._table.write("put_item", Item=_item(lease), **_condition(seen)):
            case Applied():
                return Granted()
            case Refused(found=None):
                return Occupied(found=self.read(lease.path, lease.etag))
            case Refused(found=found):
                return Occupied(found=_lease(found))
            case Unknown() as unknown:
                return unknown
            case _ as unreachable:
                assert_never(unreachable)

    def read(self, path: str, etag: str) -> CommitLease | None:
        found = self._table.get({"path": {"S": path}, "etag": {"S": _quoted(etag)}})
        return _lease(found) if found is not None else None


def _condition(seen: CommitLease | None) -> dict[str, Any]:
    if seen is None:
        return absent("path")
    names = {"#generation": "generation", "#writer": "writer"}
    values: dict[str, Any] = {":generation": {"N": str(seen.generation)}}
    if seen.writer is None:
        writer = "attribute_not_exists(#writer)"
    else:
        writer, values[":writer"] = "#writer = :writer", {"S": seen.writer}
    return {
        "ConditionExpression": f"#generation = :generation AND {writer}",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _quoted(etag: str) -> str:
    return etag if etag == "*" else f'"{etag}"'


def _item(lease: CommitLease) -> Item:
    return {
        "path": {"S": lease.path},
        "etag": {"S": _quoted(lease.etag)},
        "generation": {"N": str(lease.generation)},
        "timeout": {"N": str(lease.timeout_ms)},
        "ttl": {"N": str(lease.ttl)},
        **({"writer": {"S": lease.writer}} if lease.writer is not None else {}),
    }


def _lease(item: Item | None) -> CommitLease:
    try:
        assert item is not None
        return CommitLease(
            path=item["path"]["S"],
            etag=item["etag"]["S"].strip('"'),
            generation=int(item["generation"]["N"]),
            timeout_ms=int(item["timeout"]["N"]),
            ttl=int(item["ttl"]["N"]),
            writer=item["writer"]["S"] if "writer" in item else None,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptError(f"{item!r} is not a lease: is this a table for leases?") from error
