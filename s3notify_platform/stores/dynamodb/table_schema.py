"""The schema of a DynamoDB table, for its creation and for the checks of `s3notify doctor`.

Tables are billed by request, so an idle table costs only its storage. Creation is idempotent. An existing table with
the same keys is left unchanged. A table with other keys is refused.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UsageError
from s3notify_platform.stores.dynamodb.dynamo_table import Applied, DynamoTable, Item, Refused, absent

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ACTIVE_LOOKS: Final = 120
POLL_CEILING_SECONDS: Final = 2.0
"""The longest pause between two checks of a new table. `ACTIVE_LOOKS` checks take two minutes on average. AWS creates a
table in about 10 s.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The keys of a table, which are strings. `ttl`: the attribute (unix seconds) by which items expire, if there is
    one.
    """

    partition_key: str
    sort_key: str | None = None
    ttl: str | None = None

    @property
    def keys(self) -> list[dict[str, str]]:
        """The keys in the form that DynamoDB and CloudFormation use."""
        names = [(self.partition_key, "HASH"), *([(self.sort_key, "RANGE")] if self.sort_key else [])]
        return [{"AttributeName": name, "KeyType": kind} for name, kind in names]

    @property
    def attributes(self) -> list[dict[str, str]]:
        """The types of the keys, in the form that DynamoDB and CloudFormation use."""
        return [{"AttributeName": key["AttributeName"], "AttributeType": "S"} for key in self.keys]

    def __str__(self) -> str:
        return ", ".join(f"{key['AttributeName']} (S, {key['KeyType']})" for key in self.keys)


def create_table(table: DynamoTable, schema: TableSchema, *, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Creates the table and waits until it can be used; returns False if it existed. Cost: about 4 requests.

    `UsageError` if the table exists with other keys, or if the table's items expire by another attribute. In both
    cases, the table is left unchanged.
    """
    created = False
    for _ in attempts(clock, ACTIVE_LOOKS, ceiling=POLL_CEILING_SECONDS):
        found = describe(table)
        if found is None:
            # The next attempt finds out if the creation worked.
            created |= table.inspect(lambda client: _create(client, table.config.table, schema))
            continue
        if wrong := _wrong_keys(found, schema):
            raise UsageError(f"{table.config.place} {wrong}: name another table")
        if found["TableStatus"] in ("ACTIVE", "UPDATING") and _expires(table, schema):
            return created
    raise UnavailableError(f"{table.config.place} is not ready to use yet: run this again")


def examine(table: DynamoTable, schema: TableSchema, *, clock: Clock = SYSTEM_CLOCK) -> tuple[str, ...]:
    """The problems of the table, as texts for people; empty if it can be used. Cost: 6 requests.

    Puts an item twice under a condition; the second put must be refused. Then removes the item.
    """
    try:
        found = describe(table)
        if found is None:
            return ("does not exist: create it with `s3notify init`",)
        if wrong := _wrong_keys(found, schema):
            return (wrong,)
        problems = []
        if schema.ttl is not None and _ttl(table) != schema.ttl:
            problems.append(f"does not expire items by {schema.ttl!r}: run `s3notify init` to switch this on")
        if not _keeps_conditions(table, schema, clock):
            problems.append("does not honour conditions on puts: no commit is safe on it")
        return tuple(problems)
    except S3NotifyError as error:
        return (str(error),)


def describe(table: DynamoTable) -> Item | None:
    """DynamoDB's own description of the table; None if the table does not exist. Cost: 1 request."""

    def ask(client: "DynamoDBClient") -> Any:
        try:
            return client.describe_table(TableName=table.config.table)["Table"]
        except client.exceptions.ResourceNotFoundException:
            return None

    return table.inspect(ask)  # type: ignore[no-any-return]


def _create(client: "DynamoDBClient", name: str, schema: TableSchema) -> bool:
    try:
        client.create_table(
            TableName=name,
            KeySchema=schema.keys,  # type: ignore[arg-type]
            AttributeDefinitions=schema.attributes,  # type: ignore[arg-type]
            BillingMode="PAY_PER_REQUEST",
        )
    except client.exceptions.ResourceInUseException:
        return False
    return True


def _wrong_keys(found: Item, schema: TableSchema) -> str:
    types = {item["AttributeName"]: item["AttributeType"] for item in found["AttributeDefinitions"]}
    spelled = ", ".join(
        f"{key['AttributeName']} ({types[key['AttributeName']]}, {key['KeyType']})"
        for key in found["KeySchema"]
    )
    return "" if spelled == str(schema) else f"has the keys {spelled}, not {schema}"


def _ttl(table: DynamoTable) -> str | None:
    def ask(client: "DynamoDBClient") -> str | None:
        found = client.describe_time_to_live(TableName=table.config.table)["TimeToLiveDescription"]
        on = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
        return found.get("AttributeName") if on else None

    return table.inspect(ask)


def _expires(table: DynamoTable, schema: TableSchema) -> bool:
    """True if items expire by the schema's attribute, or if the schema has no such attribute. Otherwise switches expiry
    on, and returns False. The next attempt checks again.
    """
    if schema.ttl is None or (found := _ttl(table)) == schema.ttl:
        return True
    if found is not None:
        raise UsageError(
            f"{table.config.place} expires items by {found!r}, not {schema.ttl!r}: switch its TTL off, or name "
            "another table"
        )
    wanted: Any = {"Enabled": True, "AttributeName": schema.ttl}
    table.inspect(
        lambda client: client.update_time_to_live(
            TableName=table.config.table, TimeToLiveSpecification=wanted
        )
    )
    return False


def _keeps_conditions(table: DynamoTable, schema: TableSchema, clock: Clock) -> bool:
    scratch = {key["AttributeName"]: {"S": f".s3notify-probe-{unique_name(clock)}"} for key in schema.keys}
    outcomes = [table.write("put_item", Item=scratch, **absent(schema.partition_key)) for _ in range(2)]
    table.write("delete_item", Key=scratch)
    return isinstance(outcomes[0], Applied) and isinstance(outcomes[1], Refused)
