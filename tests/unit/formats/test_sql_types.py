"""Names of types in SQL."""

import pyarrow as pa
import pytest

from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.kernel.texts import sql_name
from s3notify_platform.source.declared_schema import arrow_columns

TYPES = (
    "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "decimal(12,2)", "array<bigint>", "map<string,array<int>>", "struct<x bigint, `y z` array<date>>",
)  # fmt: skip


@pytest.mark.parametrize("declared", TYPES)
def test_a_type_is_named_as_the_user_declares_it(declared: str) -> None:
    """Otherwise a reason would name a type that `s3notify schema set` refuses."""
    (column,) = arrow_columns("schema", f"a {declared}")
    assert sql_type(column.type) == declared


def test_a_type_that_sql_lacks_keeps_the_name_of_arrow() -> None:
    assert sql_type(pa.uint64()) == "uint64"
    assert sql_type(pa.list_(pa.large_string())) == "array<large_string>"


@pytest.mark.parametrize(("name", "named"), [("order_id", "order_id"), ("a b", "`a b`"), ("a`b", "`a``b`")])
def test_a_name_is_quoted_only_if_needed(name: str, named: str) -> None:
    """Otherwise a pasted type would not parse."""
    assert sql_name(name) == named
