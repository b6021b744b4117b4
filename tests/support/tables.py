"""Makes DynamoDB tables of the platform for tests."""

from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.lease_table import LEASE_TABLE
from s3notify_platform.stores.dynamodb.record_store import RECORD_TABLE
from s3notify_platform.stores.dynamodb.table_schema import create_table


def create_lease_table(config: DynamoConfig) -> bool:
    """See `create_table`."""
    return create_table(DynamoTable(config), LEASE_TABLE)


def create_record_table(config: DynamoConfig) -> bool:
    """See `create_table`."""
    return create_table(DynamoTable(config), RECORD_TABLE)
