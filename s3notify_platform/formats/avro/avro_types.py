"""Avro types as Arrow types.

Values are read in their stored type, like integers, and Arrow casts them to dates and times. Python's own types are
avoided: dates have fewer years in Python, and times have no nanoseconds.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.formats.blocks.arrow_file import UnreadableError
from s3notify_platform.kernel.limits import MAX_COLUMNS, MAX_DEPTH

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMES: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "timestamp-nanos": pa.timestamp("ns", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
_NUMBERS: Final = (pa.int32(), pa.int64(), pa.float32(), pa.float64())
"""Each type can represent the values of the types before it, but `float` loses precision."""


class ArrowTypes:
    """Converts one Avro schema to Arrow types. Raises `UnreadableError` for a type that cannot be read."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._fields = 0

    def columns(self, schema: Any) -> pa.Schema:
        """Returns the columns of a file, whose schema must be a record."""
        if not isinstance(schema, Mapping) or schema.get("type") != "record":
            raise UnreadableError("its schema is not a record")
        kind = self._type(schema, "", ())
        return pa.schema([*kind])

    def _type(self, schema: Any, space: str, above: tuple[str, ...]) -> pa.DataType:
        """Returns the Arrow type of an Avro schema.

        `space`: the namespace; `above`: the names of the enclosing records.
        """
        self._fields += 1
        if self._fields > MAX_COLUMNS or len(above) > MAX_DEPTH:
            raise UnreadableError(f"more than {MAX_COLUMNS} fields, or {MAX_DEPTH} levels")
        if isinstance(schema, list):
            return self._union(schema, space, above)
        if isinstance(schema, str):
            return self._of_name(schema, space, above)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._type(kind, space, above)
        made_of = {"array": self._array, "map": self._map, "enum": self._enum, "fixed": self._fixed}
        made_of |= dict.fromkeys(("record", "error"), self._record)
        if kind in made_of:
            return made_of[kind](schema, space, above)
        return (
            _logical(schema, _PRIMITIVES[kind]) if kind in _PRIMITIVES else self._of_name(kind, space, above)
        )

    def _record(self, schema: Any, space: str, above: tuple[str, ...]) -> pa.DataType:
        name, space = self._name(schema, space)
        kinds = ((part["name"], self._type(part["type"], space, (*above, name))) for part in schema["fields"])
        return pa.struct([pa.field(name, kind) for name, kind in kinds])

    def _array(self, schema: Any, space: str, above: tuple[str, ...]) -> pa.DataType:
        items = self._type(schema["items"], space, (*above, ""))
        if not _takes_bytes(items) and not isinstance(schema["items"], list):
            raise UnreadableError("an array of items that take no bytes")
        return pa.list_(items)

    def _map(self, schema: Any, space: str, above: tuple[str, ...]) -> pa.DataType:
        return pa.map_(pa.string(), self._type(schema["values"], space, (*above, "")))

    def _enum(self, schema: Any, space: str, _: tuple[str, ...]) -> pa.DataType:
        self._name(schema, space)
        return pa.string()

    def _fixed(self, schema: Any, space: str, _: tuple[str, ...]) -> pa.DataType:
        self._name(schema, space)
        if int(schema["size"]) < 1:
            raise UnreadableError("a fixed type without bytes")
        return _logical(schema, pa.binary())

    def _name(self, schema: Any, space: str) -> tuple[str, str]:
        name = str(schema["name"])
        space = name.rpartition(".")[0] or str(schema.get("namespace", space))
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = (schema, space)
        return full, space

    def _of_name(self, name: str, space: str, above: tuple[str, ...]) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._named else name
        if full not in self._named:
            raise UnreadableError(f"no type {name!r}")
        if full in above:
            raise UnreadableError(f"type {name!r} contains itself")
        schema, space = self._named[full]
        return self._type(schema, space, above)

    def _union(self, schema: list[Any], space: str, above: tuple[str, ...]) -> pa.DataType:
        kinds = [self._type(one, space, above) for one in schema if one not in ("null", {"type": "null"})]
        if len(kinds) > 1 and not all(kind in _NUMBERS for kind in kinds):
            raise UnreadableError(
                f"a union of {', '.join(map(str, kinds))}: only one type is allowed besides null"
            )
        if {pa.int64(), pa.float32()} <= {*kinds}:
            return pa.float64()
        return max(kinds, key=_NUMBERS.index) if len(kinds) > 1 else kinds[0] if kinds else pa.null()


def _takes_bytes(kind: pa.DataType) -> bool:
    """True if each value of this type takes at least one byte.

    If values took no bytes, a few bytes of an object could declare billions of values.
    """
    if pa.types.is_struct(kind):
        return any(_takes_bytes(part.type) for part in kind)
    return not pa.types.is_null(kind)


def _logical(schema: Mapping[str, Any], kind: pa.DataType) -> pa.DataType:
    logical = schema.get("logicalType")
    if logical == "decimal" and pa.types.is_binary(kind):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise UnreadableError(f"decimal({precision}, {scale}): at most 38 digits are allowed")
        return pa.decimal128(precision, scale)
    found = _TIMES.get(logical) if isinstance(logical, str) else None
    return found if found is not None and kind == _storage(found) else kind


def _storage(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def without_nulls(columns: pa.Schema) -> pa.Schema:
    """Removes the fields that are always null, at any depth, and returns the remaining columns. Pure."""
    return pa.schema([*_without_nulls(pa.struct([*columns]))])


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        kept = [part.with_type(_without_nulls(part.type)) for part in kind if not pa.types.is_null(part.type)]
        return pa.struct(kept)
    if pa.types.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    return pa.map_(kind.key_type, _without_nulls(kind.item_type)) if pa.types.is_map(kind) else kind


def stored(columns: pa.Schema) -> pa.Schema:
    """Returns the columns with their stored types, in which values are read. Pure."""
    return pa.schema([column.with_type(_stored(column.type)) for column in columns])


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_stored(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _stored(kind.item_type))
    return _storage(kind)


def as_read(schema: Any) -> Any:
    """Returns the schema without logical types (except decimals), and without fields that are always null. Pure.

    Fields that are always null take no bytes: a few thousand of these fields could turn one byte into gigabytes.
    """
    if isinstance(schema, list):
        return [as_read(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {"logicalType"} if schema.get("logicalType") == "decimal" else set()
    found = {name: value for name, value in schema.items() if name in kept or name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in found:
            found[name] = as_read(found[name])
    if isinstance(found.get("fields"), list):
        found["fields"] = [as_read(part) for part in found["fields"] if not _is_null(part["type"])]
    return found


def _is_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, Mapping) and _is_null(schema.get("type")))


def empty_fields(columns: pa.Schema | pa.DataType) -> int:
    """Returns the number of fields, at any depth, whose type is a record without any fields. Pure.

    Values of this type also take no bytes.
    """
    if not isinstance(columns, pa.Schema):
        if not pa.types.is_nested(columns):
            return 0
        if not pa.types.is_struct(columns):
            return empty_fields(columns.item_type if pa.types.is_map(columns) else columns.value_type)
    return sum(empty_fields(part.type) + (not _takes_bytes(part.type)) for part in columns)
