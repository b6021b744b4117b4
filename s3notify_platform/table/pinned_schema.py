"""The pinned schema of a table, which is kept in the table's log. Pure.

The log's `metaData` has the columns of the rows. A property of the table has the parsing schema: the schema with which
objects are parsed. So the columns and the parsing schema change in the version with the first rows of the new schema. A
later schema has every field of an earlier schema, with the same type, at any depth. `rollback` and `s3notify schema
set` are the only exceptions.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_COLUMNS, MAX_DEPTH, MAX_SCHEMA_BYTES
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.delta.metadata import LINEAGE, delta_schema, united
from s3notify_platform.table.type_changes import ddl

SOURCE: Final = "s3notify.source"
"""Property of the table: the parsing schema, as Spark's JSON."""

INFERRED: Final = "s3notify.inferred"
"""Property of the table: `true` if the parsing schema was inferred."""

DEFINITION: Final = "s3notify.definition"
"""Property of a derived table (`follow`): the definition by which the table was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The pinned schema, as Spark's JSON. `source`: the parsing schema. `rows`: the table's columns, except the lineage
    columns.

    `inferred`: True if `source` was inferred from a sample.
    """

    source: str = "{}"
    rows: str = "{}"
    inferred: bool = False


NO_SCHEMA: Final = TableSchema()


def schema_of(metadata: MetaData, *, derived: bool = False) -> TableSchema | None:
    """Returns the pinned schema of a table, or None if nothing was committed yet. `derived`: as in `delta_schema`.
    Pure.
    """
    if SOURCE not in metadata.configuration:
        return None
    own = {name for name, _ in LINEAGE[: 1 if derived else None]}
    columns = [_plain(each) for each in json.loads(metadata.schema)["fields"] if each["name"] not in own]
    return TableSchema(
        source=metadata.configuration[SOURCE],
        rows=json.dumps({"type": "struct", "fields": columns}),
        inferred=metadata.configuration.get(INFERRED) == "true",
    )


def _plain(kind: Any) -> Any:
    """Returns the type, without the metadata that Delta adds (names and ids of column mapping)."""
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    if isinstance(kind, dict):
        return {name: _plain(part) for name, part in kind.items() if not name.startswith("delta.")}
    return kind


def is_same(one: TableSchema, other: TableSchema | None) -> bool:
    """Returns true if the two schemas are equal. Pure."""
    return (
        other is not None
        and all(
            json.loads(mine) == json.loads(theirs)
            for mine, theirs in ((one.source, other.source), (one.rows, other.rows))
        )
        and one.inferred == other.inferred
    )


def grown(known: TableSchema | None, *, source: str, rows: str, inferred: bool) -> TableSchema:
    """Returns the table's schema, extended by the columns of `rows`, and with `source` as the parsing schema. Pure.

    `UsageError`: a column of `rows` has another type in the table, or the schema exceeds the limits.
    """
    check_size(source)
    if known is not None:
        rows = merged(known.rows, rows, strict=True)
    check_size(rows, times=2)
    return TableSchema(source=source, rows=rows, inferred=inferred)


def described(
    schema: TableSchema,
    *,
    created_ms: int,
    table: str = "",
    vectors: bool = False,
    derived: bool = False,
) -> tuple[MetaData, Protocol]:
    """Returns the `metaData` and `protocol` of a table with this schema. Pure. Raises `UsageError` like
    `delta_schema`.
    """
    found = delta_schema(None if schema == NO_SCHEMA else schema.rows, vectors=vectors, derived=derived)
    own = {} if schema == NO_SCHEMA else {SOURCE: schema.source, INFERRED: str(schema.inferred).lower()}
    metadata = MetaData(
        id=table, schema=found.schema, created_ms=created_ms, configuration={**found.properties, **own}
    )
    return metadata, found.protocol


def both_sources(theirs: Mapping[str, str], mine: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of both writers. If both writers set a property, the value in `mine` is used.

    The result's parsing schema has the fields of both parsing schemas. Pure.
    """
    properties = {**theirs, **mine}
    if SOURCE in theirs and SOURCE in mine:
        properties[SOURCE] = merged(theirs[SOURCE], mine[SOURCE], strict=False)
    return properties


def was_retyped(theirs: MetaData, mine: MetaData, *, since: MetaData) -> bool:
    """Returns true if another writer (`theirs`) gave a column another type than this writer (`mine`), or changed a
    column's parsing type after `since`. Pure.

    The source may declare other parsing types in each run, although the table's columns stay the same.
    """
    if united(theirs.schema, mine.schema) is None:
        return True
    was, read, own = (_parsing(each) for each in (since, theirs, mine))
    return united(read, was) is None and united(read, own) is None


def _parsing(metadata: MetaData) -> str:
    return json.dumps({"type": "struct", "fields": []} | json.loads(metadata.configuration.get(SOURCE, "{}")))


@dataclass(slots=True)
class _Room:
    """The columns and bytes that may still be added to a schema."""

    columns: int
    bytes: int

    def take(self, column: Any) -> bool:
        """Counts one more column if the limits allow it. Otherwise returns False. Fields inside the column's type are
        counted separately.
        """
        size = len(json.dumps(column | {"type": _kind(column["type"]) or column["type"]})) + _NESTED_BYTES
        if self.columns < 1 or self.bytes < size:
            return False
        self.columns, self.bytes = self.columns - 1, self.bytes - size
        return True


_NESTED_BYTES: Final = 60
"""The bytes of a nested type, without its fields."""


def check_size(schema: str, *, times: int = 1) -> None:
    """Raises `UsageError` if a schema exceeds a limit. The limits are first multiplied by `times`. Pure."""
    columns, size = size_of(schema)
    for what, found, limit in (
        ("columns", columns, times * MAX_COLUMNS),
        ("bytes", size, times * MAX_SCHEMA_BYTES),
        ("levels", _depth(json.loads(schema)), times * MAX_DEPTH),
    ):
        if found > limit:
            raise UsageError(f"the schema has {found} {what}, but may have {limit}: leave out columns")


def size_of(schema: str) -> tuple[int, int]:
    """Returns the number of fields at any depth (limit `MAX_COLUMNS`), and the number of bytes (limit
    `MAX_SCHEMA_BYTES`).

    Pure.
    """
    return _count(json.loads(schema)), len(schema)


def _inner(kind: Any) -> list[Any]:
    """Returns the types inside a type."""
    match _kind(kind):
        case "struct":
            return [part["type"] for part in kind.get("fields", ())]
        case "array":
            return [kind["elementType"]]
        case "map":
            return [kind["keyType"], kind["valueType"]]
    return []


def _count(kind: Any) -> int:
    own = len(kind.get("fields", ())) if _kind(kind) == "struct" else 0
    return own + sum(map(_count, _inner(kind)))


def _depth(kind: Any) -> int:
    return 1 + max(map(_depth, _inner(kind)), default=0) if _kind(kind) else 0


def merged(old: str, new: str, *, strict: bool, bounded: bool = False) -> str:
    """Returns the schema `old`, extended by the fields that only `new` has, also inside structs, arrays and maps. Pure.

    A field that both schemas have stays as in `old`. If `strict` is set and the types differ, `UsageError` names the
    field. Spark ignores the case of names. So a new field is left out if its name differs from another name only in
    case. With `strict`, such a field raises `UsageError` instead. If `bounded` is set, fields that would make the
    schema too large or too deep are left out.
    """
    empty: dict[str, Any] = {"type": "struct", "fields": []}
    one, other = empty | json.loads(old), empty | json.loads(new)
    room = None
    if bounded:
        room = _Room(columns=MAX_COLUMNS - _count(one), bytes=MAX_SCHEMA_BYTES - len(json.dumps(one)))
    return json.dumps(_Merge(strict=strict, room=room).merged(one, other, "", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    strict: bool
    room: _Room | None

    def merged(self, old: Any, new: Any, path: str, level: int) -> Any:
        """Returns the merged type. `level`: the depth of the fields in this type."""
        strict = self.strict
        match _kind(old), _kind(new):
            case "struct", "struct":
                return {**old, "fields": self.fields(old["fields"], new["fields"], path, level)}
            case "array", "array":
                element = self.merged(old["elementType"], new["elementType"], f"{path}[]", level + 1)
                return {
                    **old,
                    "elementType": element,
                    "containsNull": old["containsNull"] or new["containsNull"],
                }
            case "map", "map":
                key = self.merged(old["keyType"], new["keyType"], f"{path}.key", level + 1)
                value = self.merged(old["valueType"], new["valueType"], f"{path}.value", level + 1)
                nulls = old["valueContainsNull"] or new["valueContainsNull"]
                return {**old, "keyType": key, "valueType": value, "valueContainsNull": nulls}
        if strict and old != new:
            raise UsageError(f"column {path!r} is {ddl(old)} in the table and now {ddl(new)}")
        return old

    def fields(self, old: list[Any], new: list[Any], path: str, level: int) -> list[Any]:
        """Returns the merged fields of two structs."""
        strict = self.strict
        found = {column["name"]: column for column in new}
        result = []
        for column in old:
            if (other := found.get(column["name"])) is None:
                # New rows do not have this column, so the column must be nullable.
                result.append(column | {"nullable": True})
                continue
            kind = self.merged(column["type"], other["type"], _below(path, column["name"]), level + 1)
            result.append(column | {"type": kind, "nullable": column["nullable"] or other["nullable"]})
        known = {column["name"]: column["name"] for column in old}
        cases = {name.casefold(): name for name in known}
        for column in new:
            name = column["name"]
            if name in known:
                continue
            if (twin := cases.get(name.casefold())) is not None:
                if strict:
                    raise UsageError(
                        f"column {_below(path, name)!r} differs from {twin!r} of the table only in case: rename it"
                    )
                continue
            if self.room is not None:
                if not self.room.take(column):
                    continue
                column |= {"type": self.added(column["type"], level)}
                if column["type"] is None:
                    continue
            cases[name.casefold()] = name
            result.append(column | {"nullable": True})
        return result

    def added(self, kind: Any, level: int) -> Any:
        """Returns the part of a new column's type that fits within the limits, or None if nothing fits."""
        if _kind(kind) and level >= MAX_DEPTH:
            return None
        match _kind(kind):
            case "struct":
                return (
                    {**kind, "fields": parts}
                    if (parts := self.fields([], kind["fields"], "", level + 1))
                    else None
                )
            case "array":
                element = self.added(kind["elementType"], level + 1)
                return element and {**kind, "elementType": element}
            case "map":
                value = self.added(kind["valueType"], level + 1)
                return value and {**kind, "valueType": value}
        return kind


def added_fields(old: str, new: str) -> dict[str, str]:
    """Returns the fields that only `new` has, by path, with their types. Pure."""
    return dict(_added(json.loads(old), json.loads(new), ""))


def _added(old: Any, new: Any, path: str) -> Iterator[tuple[str, str]]:
    match _kind(old), _kind(new):
        case "struct", "struct":
            known = {column["name"]: column["type"] for column in old.get("fields", ())}
            for column in new.get("fields", ()):
                place = _below(path, column["name"])
                if column["name"] in known:
                    yield from _added(known[column["name"]], column["type"], place)
                else:
                    yield place, ddl(column["type"])
        case "array", "array":
            yield from _added(old["elementType"], new["elementType"], f"{path}[]")
        case "map", "map":
            yield from _added(old["valueType"], new["valueType"], f"{path}.value")


def _kind(kind: Any) -> str:
    return str(kind.get("type", "struct")) if isinstance(kind, dict) else ""


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
