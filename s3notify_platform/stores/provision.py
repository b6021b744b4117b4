"""What the platform needs in an AWS account: its DynamoDB tables, and the least policy for each role.

`create_tables` makes the tables; `cloudformation` and `terraform` say the same as templates, in JSON, which both
read. `policy` gives the IAM policy of a role: every action that the role's code calls, on the prefixes and tables
it calls them on, and nothing else.

S3's own rules that a reader of the policies may wonder at: HEAD and GET are `s3:GetObject`; `If-Match` on PUT or
DELETE needs it too; without `s3:ListBucket` on the whole bucket S3 answers 403, not 404, for what is not there.
Objects under a customer's KMS key need that key's permissions besides.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, assert_never

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import UsageError
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamo_leases import LEASE_TABLE
from s3notify_platform.stores.dynamo_schema import TableSchema, create_table, examine
from s3notify_platform.stores.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb import RECORD_TABLE
from s3notify_platform.stores.queue_records import QUEUE_PREFIX

Role = Literal["writer", "run", "reader", "sweep", "outlet"]
"""`writer` publishes objects; `run` is the sensor and its runs; `reader` loads committed rows and watches the
keyspace; `sweep` is the daily checks and `vacuum`; `outlet` delivers to endpoints. Where they are one process, it
needs the union."""

ROLES: Final[tuple[Role, ...]] = ("writer", "run", "reader", "sweep", "outlet")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables to have, by name, and where. None: not used."""

    records: str | None = None
    leases: str | None = None
    region: str = "us-east-1"
    endpoint_url: str | None = None

    def schemas(self) -> Iterator[tuple[str, DynamoConfig, TableSchema]]:
        """Purpose, place and schema of each."""
        for purpose, name, schema in (
            ("records", self.records, RECORD_TABLE),
            ("leases", self.leases, LEASE_TABLE),
        ):
            if name:
                yield (
                    purpose,
                    DynamoConfig(table=name, region=self.region, endpoint_url=self.endpoint_url),
                    schema,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What the policies of one source are about. `account`: 12 digits, needed if there are tables."""

    bucket: str
    prefix: str
    platform_bucket: str
    platform_prefix: str
    keyspace_prefix: str
    tables: Tables
    account: str | None = None
    queue_prefix: str = QUEUE_PREFIX

    def __post_init__(self) -> None:
        if (self.tables.records or self.tables.leases) and not re.fullmatch(r"\d{12}", self.account or ""):
            raise UsageError(
                f"a policy for tables names their account: give its 12 digits, not {self.account!r}"
            )
        for prefix in (self.prefix, self.platform_prefix, self.keyspace_prefix, self.queue_prefix):
            if {"*", "?", "$"} & {*prefix}:
                raise UsageError(f"prefix {prefix!r}: * ? and $ mean something else in a policy")


def create_tables(tables: Tables, *, clock: Clock = SYSTEM_CLOCK) -> dict[str, bool]:
    """Create what is not there yet; by table's name, whether it was created now. Safe to repeat.

    `UsageError` if one is there with another schema; it is left as it is.
    """
    made = {}
    for _, config, schema in tables.schemas():
        table = DynamoTable(config, clock=clock)
        made[config.table] = create_table(table, schema, clock=clock)
        table.close()
    return made


def examine_tables(tables: Tables, *, clock: Clock = SYSTEM_CLOCK) -> dict[str, tuple[str, ...]]:
    """By purpose and name, what is wrong with a table. See `dynamo_schema.examine`."""
    found = {}
    for purpose, config, schema in tables.schemas():
        table = DynamoTable(config, clock=clock)
        found[f"{purpose} table {config.table!r}"] = examine(table, schema, clock=clock)
        table.close()
    return found


def cloudformation(tables: Tables) -> Json:
    """A template with the tables. Deleting the stack keeps them."""
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


def policy(role: Role, places: Places) -> Json:
    """The least IAM policy of a role. Pure."""
    statements = [
        {"Effect": "Allow", "Action": sorted(actions), "Resource": resource}
        for resource, actions in _grants(role, places).items()
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def _grants(role: Role, places: Places) -> Mapping[str, set[str]]:  # noqa: C901 - a case for each role
    """Actions by resource."""
    aws = _partition(places.tables.region)
    source = f"arn:{aws}:s3:::{places.bucket}"
    platform = f"arn:{aws}:s3:::{places.platform_bucket}"
    objects = f"{source}/{places.prefix}*"
    own = f"{platform}/{places.platform_prefix}*"
    signals = f"{platform}/{places.keyspace_prefix}*"
    queue = f"{platform}/{places.queue_prefix}*"
    grants: dict[str, set[str]] = {}

    def grant(resource: str, *actions: str) -> None:
        grants.setdefault(resource, set()).update(actions)

    def grant_table(name: str | None, *actions: str) -> None:
        if name:
            where = f"arn:{aws}:dynamodb:{places.tables.region}:{places.account}:table/{name}"
            grant(where, *(f"dynamodb:{action}" for action in actions))

    match role:
        case "writer":
            grant(objects, "s3:PutObject", "s3:DeleteObject", "s3:GetObject")
            grant(signals, "s3:PutObject")
            if places.tables.leases:
                grant(source, "s3:ListBucket")
            grant_table(places.tables.leases, "GetItem", "PutItem")
        case "run":
            grant(source, "s3:ListBucket")
            grant(platform, "s3:ListBucket")
            grant(objects, "s3:GetObject")
            grant(own, "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
            grant(signals, "s3:GetObject", "s3:PutObject")
            grant_table(places.tables.records, "GetItem", "PutItem", "DeleteItem")
            grant_table(places.tables.leases, "GetItem", "PutItem")
        case "reader":
            grant(platform, "s3:ListBucket")
            grant(own, "s3:GetObject")
            grant(signals, "s3:GetObject")
        case "sweep":
            grant(source, "s3:ListBucket")
            grant(platform, "s3:ListBucket")
            grant(own, "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
            grant(signals, "s3:PutObject")
            grant_table(places.tables.records, "GetItem", "Query", "DeleteItem")
        case "outlet" if places.tables.records:
            grant_table(places.tables.records, "GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query")
        case "outlet":
            grant(platform, "s3:ListBucket")
            grant(queue, "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
        case _ as unreachable:
            assert_never(unreachable)
    if places.keyspace_prefix.startswith(places.platform_prefix) and own in grants:
        # What `own` grants, it grants on the signals too.
        grants[signals] = grants[signals] - grants[own]
    return {resource: actions for resource, actions in grants.items() if actions}


def _partition(region: str) -> str:
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"
