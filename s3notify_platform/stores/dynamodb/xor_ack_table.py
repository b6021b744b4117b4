r"""Ack chains in the table of the npm package xor-ack-dynamodb: users of the package and of this platform can stamp the
same chains.

    {partition_key}: tag               stamp (binary)                      the package's item, its only one
    {partition_key}: tag "\0s3notify"  record, version, ttl (once closed)  ours: names, operations, tombstone

The package replaces its whole item with every stamp. Therefore, the package's item cannot hold our fields. The package
deletes its item when the XOR is zero. The two items of a chain are read in one transaction. The two items are also
written in one transaction, each under the condition that it is unchanged. The version of a record covers both items.

| found | read as |
|---|---|
| only the package's item | a chain that the package began: only a stamp. Our first write adds our item |
| both, ours open | the chain in our item, with the stamp of the package's item |
| only ours, open | acked: the package reached zero and deleted its item (or its user deleted the tag) |
| only ours, closed | the tombstone: closing a chain deletes the package's item |
| both, ours closed | a chain that the package began again under the tag |

Guarantees. The records of `SharedChains` have all guarantees of `RecordStore`. If the package writes between our read
and our write, our write is a conflict. If we write between the package's read and its write, the package gets
`StaleLocalData`.

Limits. The package has no operation ids, names, deadlines or failures. If the package stamps twice, both stamps are
applied. The package does not see that a chain has failed: for the package, the chain does not exist. While our
transaction contains an item, a write of the package to this item may be refused with `TransactionConflictException`.
The package's caller must then repeat the write. The package must not begin a chain again under a tag while our item of
this tag is open. `ttl` (unix seconds) only frees space: switch TTL on for that attribute, or call `SharedChains.purge`.
Items in the table that are not part of a chain are refused.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.ports import Conflict, ETag, Record, Unknown, Version, WriteOutcome
from s3notify_platform.protocols.ack_chain.shared.plans import acked
from s3notify_platform.protocols.ack_chain.shared.record import Chain, decode, encode
from s3notify_platform.protocols.ack_chain.stamps import TOMBSTONE_SECONDS
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable, Item, absent, port_outcome

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SUFFIX: Final = "\0s3notify"
NONE: Final = "-"
TAGS_TOGETHER: Final = 25
"""Number of chains that a scan reads in one request."""


class XorAckTable:
    """A `RecordStore` for `SharedChains(records, partition=partition)`. Thread-safe.

    Cost of create, read, replace and remove: 1 request each, a transaction of two items. Cost of a scan: 1 request for
    each megabyte of the table, and 1 for each `TAGS_TOGETHER` chains.
    """

    def __init__(
        self,
        config: DynamoConfig,
        *,
        partition_key: str = "tagID",
        partition: str = "ack",
        clock: Clock = SYSTEM_CLOCK,
        client: "DynamoDBClient | None" = None,
    ) -> None:
        self._table = DynamoTable(config, clock=clock, client=client)
        self._key = partition_key
        self._partition = partition
        self._clock = clock

    def close(self) -> None:
        """Closes the connections."""
        self._table.close()

    def create(self, partition: str, key: str, value: bytes) -> WriteOutcome:
        return self._write(self._tag(partition, key), decode(key, value), stamp=NONE, version=NONE)

    def read(self, partition: str, key: str) -> Record | None:
        if partition != self._partition:
            return None
        theirs, ours = self._table.get_together(self._both(self._tag(partition, key)))
        return _record(key, theirs, ours)

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> WriteOutcome:
        stamp, version = _taken_apart(expected)
        return self._write(self._tag(partition, key), decode(key, value), stamp=stamp, version=version)

    def remove(self, partition: str, key: str, *, expected: Version) -> WriteOutcome:
        stamp, version = _taken_apart(expected)
        tag = self._tag(partition, key)
        return self._transact(
            self._gone(tag, stamp=stamp), self._gone(tag + SUFFIX, version=version), etag=None
        )

    def scan(
        self,
        partition: str,
        *,
        prefix: str = "",
        known: Mapping[str, Record] | None = None,  # noqa: ARG002 - a scan reads all records anyway
        keys_only: Callable[[str], bool] | None = None,  # noqa: ARG002 - as above
        wanted: Callable[[str], bool] | None = None,
    ) -> Iterator[Record]:
        """See `RecordStore.scan`. The scan is not a snapshot: chains are read `TAGS_TOGETHER` at a time."""
        if partition != self._partition:
            return
        found = {key.removesuffix(SUFFIX) for key in self._table.keys(self._key)}
        tags = sorted(tag for tag in found if tag.startswith(prefix) and (wanted is None or wanted(tag)))
        for first in range(0, len(tags), TAGS_TOGETHER):
            some = tags[first : first + TAGS_TOGETHER]
            items = self._table.get_together([item for tag in some for item in self._both(tag)])
            for number, tag in enumerate(some):
                if (record := _record(tag, *items[2 * number : 2 * number + 2])) is not None:
                    yield record

    def add(
        self, partition: str, key: str, amount: int, *, ceiling: int | None = None
    ) -> int | Conflict | Unknown:
        """Raises `UsageError`, because this table has no counters."""
        raise UsageError(
            f"{partition}/{key}: the table of ack chains keeps no counters ({amount}, {ceiling})"
        )

    def _tag(self, partition: str, key: str) -> str:
        if partition != self._partition:
            raise UsageError(
                f"this table keeps only the ack chains of partition {self._partition!r}, "
                f"not the chains of {partition!r}"
            )
        if not key or "\0" in key:
            raise UsageError(f"ack chain {key!r}: a tag must not be empty, and must not contain NUL here")
        return key

    def _both(self, tag: str) -> list[Item]:
        return [{self._key: {"S": tag}}, {self._key: {"S": tag + SUFFIX}}]

    def _write(self, tag: str, chain: Chain, *, stamp: str, version: str) -> WriteOutcome:
        """Writes the chain, if the package's item has this stamp and our item has this version. `NONE` means that the
        item must not exist.
        """
        drawn = unique_name(self._clock)
        ours: dict[str, Any] = {
            "record": {"B": encode(replace(chain, stamp=b""))},
            "version": {"S": drawn},
        }
        if chain.expires_ms is not None:
            ours["ttl"] = {"N": str(chain.expires_ms // 1000)}
        is_open = chain.status == "open"
        theirs = (
            self._put(tag, {"stamp": {"B": chain.stamp}}, stamp=stamp)
            if is_open
            else self._gone(tag, stamp=stamp)
        )
        etag = ETag(f"{chain.stamp.hex() if is_open else NONE} {drawn}")
        return self._transact(theirs, self._put(tag + SUFFIX, ours, version=version), etag=etag)

    def _transact(self, *changes: Mapping[str, Any], etag: ETag | None) -> WriteOutcome:
        # Each transaction has its own token, so it is applied once even if it is sent again.
        outcome = self._table.write(
            "transact_write_items", TransactItems=list(changes), ClientRequestToken=unique_name(self._clock)
        )
        return port_outcome(outcome, etag)

    def _put(self, key: str, attributes: Mapping[str, Any], **was: str) -> dict[str, Any]:
        return {"Put": self._under(was) | {"Item": {self._key: {"S": key}, **attributes}}}

    def _gone(self, key: str, **was: str) -> dict[str, Any]:
        return {"Delete": self._under(was) | {"Key": {self._key: {"S": key}}}}

    def _under(self, was: Mapping[str, str]) -> dict[str, Any]:
        """The condition that an item's attribute is unchanged."""
        ((name, value),) = was.items()
        table = {"TableName": self._table.config.table}
        if value == NONE:
            return table | absent(self._key)
        expected: Mapping[str, Any] = {"B": bytes.fromhex(value)} if name == "stamp" else {"S": value}
        return table | {
            "ConditionExpression": f"#{name} = :was",
            "ExpressionAttributeNames": {f"#{name}": name},
            "ExpressionAttributeValues": {":was": expected},
        }


def _taken_apart(version: Version) -> tuple[str, str]:
    stamp, _, drawn = version.partition(" ")
    return stamp, drawn


def _record(tag: str, theirs: Item | None, ours: Item | None) -> Record | None:
    """The chain that the package's item and our item form together. The table in the module's docstring has the
    cases.
    """
    if theirs is None and ours is None:
        return None
    try:
        stamp: bytes | None = bytes(theirs["stamp"]["B"]) if theirs is not None else None
        chain = decode(tag, bytes(ours["record"]["B"])) if ours is not None else None
        version = str(ours["version"]["S"]) if ours is not None else NONE
    except (KeyError, TypeError) as error:
        raise CorruptError(f"the items of {tag!r} are not an ack chain: {theirs} {ours}") from error
    if stamp is not None:
        ours_open = chain is not None and chain.status == "open"
        chain = replace(chain, stamp=stamp) if chain and ours_open else Chain(identity="", stamp=stamp)
    elif chain is not None and chain.status == "open":
        # The time of the chain's end is not known, so the tombstone expires `TOMBSTONE_SECONDS` after the chain's
        # creation.
        chain = acked(replace(chain, last=b""), chain.created_ms + int(TOMBSTONE_SECONDS * 1000))
    assert chain is not None
    return Record(
        key=tag,
        value=encode(chain),
        version=Version(f"{stamp.hex() if stamp is not None else NONE} {version}"),
    )
