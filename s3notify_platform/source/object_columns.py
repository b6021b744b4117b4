"""Columns in addition to a row's data: parts of the object's key, the store's metadata of the object, and the raw
record.

`_modified`, `_size` and `_version` come from the response of the GET that brought the row's bytes, under If-Match. If
an object was read by several GETs, the values are from the first response. The values never come from an earlier
listing or queue entry. An object that is written again with the same bytes has the same ETag. So the object does not
count as changed, and its metadata columns stay the same.

- `partition_columns`: the key raw/dt=2026-01-01/region=eu/1.json has the parts `dt` and `region`. The case of the
  parts' names does not matter. If several parts have the same name, the last part is used. The text behind the last /
  is not a part. Escapes like %20 are decoded.
- A missing part is null, and so is __HIVE_DEFAULT_PARTITION__.
- If a value does not fit its type, or is not UTF-8, `mismatches` decides. Under `quarantine`, the whole object is one
  reject, and is not parsed. Under `rescue`, the value is null, and the key's unchanged text is in `_rescued`.
- `payload_column`: the decoded record, unchanged, without the line end. Bytes that are not UTF-8 become U+FFFD. The
  column is null for formats without raw records, like Parquet.

Values of keys are converted like values of CSV, with two differences: no text is read as null (except
`__HIVE_DEFAULT_PARTITION__`), and `notation` does not apply.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from s3notify_platform.formats.rescue import mismatch_reason
from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.formats.text_values import values_of
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ObjectMeta
from s3notify_platform.source.declared_schema import arrow_columns

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

METADATA: Final = pa.schema(
    [("_modified", pa.timestamp("us", tz="UTC")), ("_size", pa.int64()), ("_version", pa.string())]
)

_NULLS: Final = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectColumns:
    """The columns of a source in addition to the data columns: `paths` from the key, `metadata` from the store, and the
    `payload`, which is the raw record.
    """

    paths: pa.Schema
    metadata: pa.Schema
    payload: pa.Schema

    @classmethod
    def of(cls, partition_columns: str, metadata_columns: str, payload_column: str = "") -> "ObjectColumns":
        """Returns the columns that these settings declare. Raises `UsageError` for a wrong declaration."""
        return _object_columns(partition_columns, metadata_columns, payload_column)

    @property
    def schema(self) -> pa.Schema:
        """All columns: parts of the key first, the payload last."""
        return pa.schema([*self.paths, *self.metadata, *self.payload])

    def check_apart(self, names: Iterable[str]) -> None:
        """Raises `UsageError` if a data column has the name of one of these columns, in any case."""
        own = {name.casefold(): name for name in self.schema.names}
        if name := next((name for name in names if name.casefold() in own), None):
            of_object = "metadata_columns" if own[name.casefold()] in METADATA.names else "partition_columns"
            setting = "payload_column" if own[name.casefold()] in self.payload.names else of_object
            raise UsageError(
                f"column {name!r} is a data column, and also in {setting}: leave the column out of one of the "
                "two, or declare a schema without it if the data's columns are inferred"
            )

    def mismatched(self, key: str) -> Mapping[str, str]:
        """Returns the texts in a key that do not fit their columns, by column name. Pure."""
        return self._parts(key)[1] if self.paths else {}

    def reason(self, key: str) -> str:
        """Returns the reason to reject an object because of the values in the object's key; "" if there is no such
        reason. Pure.
        """
        mismatched = self.mismatched(key)
        return next(
            (mismatch_reason(name, self.paths)(text) + ", in its key" for name, text in mismatched.items()),
            "",
        )

    def values(self, objects: Iterable[tuple[str, ObjectMeta | None]]) -> list[pa.Array]:
        """Returns the values of each column except the payload.

        `objects`: the key and the GET's metadata of each object. With None as metadata, all metadata columns are null.
        """
        if not (self.paths or self.metadata):
            return []
        rows = [(*self._parts(key)[0], *self._of(meta)) for key, meta in objects]
        columns = [*self.paths, *self.metadata]
        return [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(columns)]

    def _parts(self, key: str) -> tuple[tuple[Any, ...], Mapping[str, str]]:
        return _values(self.paths, key.rpartition("/")[0])

    def _of(self, meta: ObjectMeta | None) -> Iterable[Any]:
        if meta is None:
            return [None] * len(self.metadata)
        given = {"_modified": meta.modified_ms * 1000, "_size": meta.size, "_version": meta.version_id}
        return [given[name] for name in self.metadata.names]


@lru_cache(maxsize=32)
def _object_columns(partition_columns: str, metadata_columns: str, payload_column: str) -> ObjectColumns:
    paths = arrow_columns("partition_columns", partition_columns) if partition_columns else pa.schema([])
    for column in paths:
        if column.name.startswith("_") or not column.name:
            raise UsageError(f"partition_columns {partition_columns!r}: names that begin with _ are reserved")
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            raise UsageError(
                f"partition_columns {partition_columns!r}: a part of a key cannot be {sql_type(column.type)}: "
                "use string"
            )
    named = [name.strip() for name in metadata_columns.split(",")] if metadata_columns.strip() else []
    for name in named:
        if name not in METADATA.names or named.count(name) > 1:
            raise UsageError(
                f"metadata_columns {metadata_columns!r}: use some of {', '.join(METADATA.names)}, each once"
            )
    if payload_column.startswith("_") or payload_column.casefold() in map(str.casefold, paths.names):
        raise UsageError(
            f"payload_column {payload_column!r}: names that begin with _ are reserved, and the names in "
            "partition_columns are taken"
        )
    return ObjectColumns(
        paths=paths,
        metadata=pa.schema([METADATA.field(name) for name in named]),
        payload=pa.schema([(payload_column, pa.string())] if payload_column else []),
    )


@lru_cache(maxsize=4096)
def _values(paths: pa.Schema, directory: str) -> tuple[tuple[Any, ...], Mapping[str, str]]:
    """Returns the value of each column from a key's parts, and the texts that do not fit, by column name."""
    parts = (part.partition("=") for part in directory.split("/"))
    texts = {unquote(name).casefold(): text for name, equals, text in parts if equals}
    values: list[Any] = []
    mismatched: dict[str, str] = {}
    for column in paths:
        text = texts.get(column.name.casefold(), HIVE_NULL)
        value = None
        try:
            if text != HIVE_NULL:
                value = _value(unquote(text, errors="strict"), column.type)
        except (pa.ArrowException, UnicodeError):
            mismatched[column.name] = text
        values.append(value)
    return tuple(values), mismatched


def _value(text: str, kind: pa.DataType) -> Any:
    value = values_of(pa.array([text]), kind, _NULLS)[0].as_py()
    if value is None:  # `values_of` reads an empty text as null
        raise pa.ArrowInvalid("an empty text")
    return value
