"""Tables for tests that need only one: DynamoDB's of the platform, and the sides of a source's table."""

from typing import Any

from s3notify_platform.ports import ObjectStore, RecordStore
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.lease_table import LEASE_TABLE
from s3notify_platform.stores.dynamodb.record_store import RECORD_TABLE
from s3notify_platform.stores.dynamodb.table import DynamoTable
from s3notify_platform.stores.dynamodb.table_schema import create_table
from s3notify_platform.table.known import Identity, TableSides
from tests.support.slot_writer import LAYOUT

IDENTITY = Identity(bucket="b", prefix="raw/", slots=10)


def table_sides(store: ObjectStore, records: RecordStore | None = None, **given: Any) -> TableSides:
    """The sides of the table of `slot_writer`; what is known of it is on the same store, unless `records` are given."""
    return TableSides(
        store=store,
        layout=LAYOUT,
        records=records or ObjectRecordStore(store, "", **given),
        key="t",
        source="orders",
        where="bucket 'b'",
        command=lambda name, *more: " ".join(("`s3notify table", name, *more)) + "`",
        **given,
    )


def create_lease_table(config: DynamoConfig) -> bool:
    """See `create_table`."""
    return create_table(DynamoTable(config), LEASE_TABLE)


def create_record_table(config: DynamoConfig) -> bool:
    """See `create_table`."""
    return create_table(DynamoTable(config), RECORD_TABLE)
