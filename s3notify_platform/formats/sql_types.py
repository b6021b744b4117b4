"""Names of columns and types in SQL, in the form that `schema` and `s3notify schema set` accept. Pure."""

from typing import Final

import pyarrow as pa

from s3notify_platform.kernel.texts import sql_name

_NAMES: Final = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
}


def sql_type(kind: pa.DataType) -> str:
    """Returns the name of a type. A type that SQL lacks keeps Arrow's name."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{sql_name(part.name)} {sql_type(part.type)}' for part in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_type(kind.key_type)},{sql_type(kind.item_type)}>"
    return _NAMES.get(kind, str(kind))
