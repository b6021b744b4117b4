"""Tables of DynamoDB: they are created once, and problems of existing tables are named."""

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.record_store import RECORD_TABLE
from s3notify_platform.stores.dynamodb.table_schema import TableSchema, create_table, examine


@pytest.mark.usefixtures("moto_aws")
def test_expiry_by_another_attribute_is_refused():
    """Otherwise items of another program would no longer expire, or our items would expire too early."""
    table = DynamoTable(DynamoConfig(table="t"))
    create_table(table, TableSchema(partition_key="path", ttl="other"))
    with pytest.raises(UsageError, match="'other', not 'ttl'"):
        create_table(table, TableSchema(partition_key="path", ttl="ttl"))


@pytest.mark.usefixtures("moto_aws")
def test_examine_reports_all_problems_of_a_table():
    """Otherwise `s3notify doctor` would accept a table without TTL or with other keys, or leave an item behind in the
    table.
    """
    table = DynamoTable(DynamoConfig(table="t"))
    wanted = TableSchema(partition_key="path", sort_key="etag", ttl="ttl")
    assert examine(table, wanted) == ("does not exist: create it with `s3notify init`",)
    create_table(table, TableSchema(partition_key="path", sort_key="etag"))
    (problem,) = examine(table, wanted)
    assert "does not expire items by 'ttl'" in problem
    create_table(table, wanted)
    assert examine(table, wanted) == ()
    assert table.client.scan(TableName="t")["Count"] == 0
    (problem,) = examine(table, RECORD_TABLE)
    assert "has the keys path" in problem


@pytest.mark.usefixtures("moto_aws")
def test_examine_finds_ignored_conditions(monkeypatch):
    """Otherwise commits by leases would overwrite each other if the table ignores conditions."""
    table = DynamoTable(DynamoConfig(table="t"))
    create_table(table, RECORD_TABLE)
    write = DynamoTable.write

    def ignoring(self, call, **arguments):
        for name in ("ConditionExpression", "ExpressionAttributeNames"):
            arguments.pop(name, None)
        return write(self, call, **arguments)

    monkeypatch.setattr(DynamoTable, "write", ignoring)
    (problem,) = examine(table, RECORD_TABLE)
    assert "does not honour conditions" in problem
