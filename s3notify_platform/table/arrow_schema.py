"""The columns of a table, and of its rejects, in Arrow's types. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

REJECT_SCHEMA: Final = pa.schema(
    [
        pa.field("_slot", pa.int32()),
        pa.field("_key", pa.string()),
        pa.field("_etag", pa.string()),
        pa.field("_offset", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("raw", pa.binary()),
    ]
)
"""The columns of a rejected record: the record's place in its object, the reason of the rejection, and the record's
first bytes (at most `MAX_RAW_BYTES`)."""

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


_NAMES: Final = {kind: name for name, kind in _PRIMITIVES.items()}


def spark_schema(columns: pa.Schema) -> str:
    """Returns these columns as Spark's schema JSON: the inverse of `arrow_schema`. Each column is nullable. Pure."""
    return json.dumps({"type": "struct", "fields": [*map(_spark_field, columns)]})


def _spark_field(column: pa.Field) -> dict[str, Any]:
    return {"name": column.name, "type": _spark_type(column.type), "nullable": True, "metadata": {}}


def _spark_type(kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_spark_field(kind.field(at)) for at in range(kind.num_fields)]}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        key, value = _spark_type(kind.key_type), _spark_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return _NAMES[kind]


def arrow_schema(schema: str) -> pa.Schema:
    """Returns the columns of a table (`MetaData.schema`) in Arrow's types, with times in UTC. Pure."""
    return pa.schema([*_fields(json.loads(schema)["fields"])])


def _fields(columns: Sequence[dict[str, Any]]) -> Iterator[pa.Field]:
    for each in columns:
        yield pa.field(each["name"], _type(each["type"]))


def _type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = (int(part) for part in kind[8:-1].split(","))
            return pa.decimal128(precision, scale)
        return _PRIMITIVES[kind]
    match kind["type"]:
        case "struct":
            return pa.struct([*_fields(kind["fields"])])
        case "array":
            return pa.list_(_type(kind["elementType"]))
        case _:
            return pa.map_(_type(kind["keyType"]), _type(kind["valueType"]))
