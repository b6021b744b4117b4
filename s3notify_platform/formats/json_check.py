"""A quick look at one JSON record: whether its values are of the kinds that a schema has, found without building them.

Stricter or laxer than the JSON reader in rare cases (NaN, decimals, days that no month has): it finds suspects.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema

from s3notify_platform.formats.forms import DATE, TIMESTAMP


class Checker:
    """Tells whether the values of records are of the kinds that `schema` has."""

    def __init__(self, schema: pa.Schema) -> None:
        self._validate = SchemaValidator(_struct(list(schema))).validate_json

    def unfit(self, body: bytes, starts: Iterable[int], ends: Iterable[int]) -> Iterator[int]:
        """The numbers of those that are not, of records at these places of `body`."""
        validate = self._validate
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            try:
                validate(body[start:end], strict=True)
            except ValidationError:
                yield number


def _struct(fields: list[pa.Field]) -> CoreSchema:
    return core_schema.typed_dict_schema(
        {
            field.name: core_schema.typed_dict_field(
                core_schema.nullable_schema(_kind(field.type)), required=False
            )
            for field in fields
        }
    )


def _kind(kind: pa.DataType) -> CoreSchema:
    if pa.types.is_struct(kind):
        return _struct(list(kind))
    if pa.types.is_list(kind):
        return core_schema.list_schema(core_schema.nullable_schema(_kind(kind.value_type)))
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return core_schema.int_schema(ge=-most, lt=most)
    found: CoreSchema = _KINDS.get(kind.id) or core_schema.any_schema()
    return found


_KINDS: Final[dict[int, CoreSchema]] = {
    pa.bool_().id: core_schema.bool_schema(),
    pa.float32().id: core_schema.float_schema(),
    pa.float64().id: core_schema.float_schema(),
    pa.string().id: core_schema.str_schema(),
    pa.binary().id: core_schema.str_schema(),
    pa.date32().id: core_schema.str_schema(pattern=DATE),
    pa.timestamp("us").id: core_schema.str_schema(pattern=TIMESTAMP),
    pa.decimal128(1).id: core_schema.union_schema([core_schema.float_schema(), core_schema.str_schema()]),
}
