"""Declared schemas are checked without Spark. `tests/spark/test_schema.py` compares the results with the results of
Spark.
"""

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.declared_schema import check_declared

GOOD = [
    "id bigint",
    "id BIGINT NOT NULL COMMENT 'a, b) > c', name string",
    "`the name` string, `a``b` int, `größe` double",
    "amount decimal(12, 2), code varchar(3), flag boolean",
    "id: int, name: string",
    "lines array<struct<sku: string COMMENT 'it''s', n: int NOT NULL>>",
    "lines array<struct<sku string, tags array<string>>>, m map<string, array<decimal(4,1)>>",
    "empty struct<>, t timestamp_ntz, i interval day to second",
    "id bigint -- a comment\n, name string",
    "date date, map map<int,int>, array array<int>",
]
BAD = [
    "id bigit",
    "id bigint,",
    ", id bigint",
    "bigint",
    "id",
    "id bigint name string",
    "lines array<int",
    "lines array<int>>",
    "lines array int",
    "m map<string>",
    "s struct<a>",
    "amount decimal(12, 2",
    "not a schema at all",
    "id bigint; name string",
]
LEFT_TO_SPARK = {
    "id bigint name string",
    "lines array<int>>",
    "amount decimal(12, 2",
    "id bigint; name string",
}


@pytest.mark.parametrize("schema", GOOD)
def test_valid_schemas_are_accepted(schema: str) -> None:
    check_declared(schema)


@pytest.mark.parametrize("schema", sorted({*BAD} - LEFT_TO_SPARK))
def test_invalid_schemas_are_refused(schema: str) -> None:
    """The message must contain the schema as it was given."""
    with pytest.raises(UsageError, match="does not parse") as raised:
        check_declared(schema)
    assert repr(schema) in str(raised.value)
