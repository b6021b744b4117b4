"""The DynamoDB tables. `create_tables` creates the tables; `cloudformation` and `terraform` return JSON templates."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.stores.config import Access, DynamoConfig
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.lease_table import LEASE_TABLE
from s3notify_platform.stores.dynamodb.record_store import RECORD_TABLE
from s3notify_platform.stores.dynamodb.table_schema import TableSchema, create_table, examine

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables(Access):
    """Names, location and access of the DynamoDB tables. A table whose name is None is not used."""

    service: ClassVar[str] = DynamoConfig.service

    records: str | None = None
    leases: str | None = None

    @property
    def place(self) -> str:
        """The description of the tables in messages."""
        return "the DynamoDB tables"

    def schemas(self) -> Iterator[tuple[str, DynamoConfig, TableSchema]]:
        """Purpose, place and schema of each table."""
        for purpose, name, schema in (
            ("records", self.records, RECORD_TABLE),
            ("leases", self.leases, LEASE_TABLE),
        ):
            if name:
                yield (
                    purpose,
                    DynamoConfig(
                        table=name, region=self.region, endpoint_url=self.endpoint_url, **self.credentials
                    ),
                    schema,
                )


def create_tables(tables: Tables, *, clock: Clock = SYSTEM_CLOCK) -> dict[str, bool]:
    """Create the missing tables. Returns for each table's name True if the table was created now. Safe to repeat.

    `UsageError` for an existing table with another schema; the table is not changed.
    """
    made = {}
    for _, config, schema in tables.schemas():
        table = DynamoTable(config, clock=clock)
        made[config.table] = create_table(table, schema, clock=clock)
        table.close()
    return made


def examine_tables(tables: Tables, *, clock: Clock = SYSTEM_CLOCK) -> dict[str, tuple[str, ...]]:
    """The problems of each table, by its purpose and name. See `table_schema.examine`."""
    found = {}
    for purpose, config, schema in tables.schemas():
        table = DynamoTable(config, clock=clock)
        found[f"{purpose} table {config.table!r}"] = examine(table, schema, clock=clock)
        table.close()
    return found


def cloudformation(tables: Tables) -> Json:
    """A CloudFormation template with the tables. The tables stay if the stack is deleted."""
    resources: Json = {}
    for purpose, config, schema in tables.schemas():
        properties: Json = {
            "TableName": config.table,
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": schema.keys,
            "AttributeDefinitions": schema.attributes,
        }
        if schema.ttl is not None:
            properties["TimeToLiveSpecification"] = {"AttributeName": schema.ttl, "Enabled": True}
        resources[f"S3Notify{purpose.capitalize()}"] = {
            "Type": "AWS::DynamoDB::Table",
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
            "Properties": properties,
        }
    return {"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}


def terraform(tables: Tables) -> Json:
    """The tables in Terraform's JSON syntax, for a file `*.tf.json`."""
    resources: Json = {}
    for purpose, config, schema in tables.schemas():
        table: Json = {
            "name": config.table,
            "billing_mode": "PAY_PER_REQUEST",
            "hash_key": schema.partition_key,
            "attribute": [
                {"name": item["AttributeName"], "type": item["AttributeType"]} for item in schema.attributes
            ],
        }
        if schema.sort_key is not None:
            table["range_key"] = schema.sort_key
        if schema.ttl is not None:
            table["ttl"] = {"attribute_name": schema.ttl, "enabled": True}
        resources[f"s3notify_{purpose}"] = table
    return {"resource": {"aws_dynamodb_table": resources}}
