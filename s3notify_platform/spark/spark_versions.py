"""Handles the differences between the supported versions of PySpark, 4.1 to 4.3."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

# In PySpark before 4.3, a boolean parameter selects UTC, and is true by default.
_UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(types.to_arrow_schema).parameters else {}


def to_arrow_schema(columns: StructType, *, check_names: bool = False) -> pa.Schema:
    """Converts Spark's columns to Arrow's columns, with times in UTC.

    `check_names`: raise an error for duplicate names in a struct.
    """
    return types.to_arrow_schema(columns, error_on_duplicated_field_names_in_struct=check_names, **_UTC)  # type: ignore[arg-type]
