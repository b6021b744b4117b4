"""The pinned column types of a table.

A schema object is created if absent under the next generation number, like a commit. It holds two schemas as Spark's
JSON: `source`, with which the objects are parsed, and `rows`, the columns of the data files. A commit names the schema
generation that it was written under. A later generation has every field of the earlier ones, with its type, at any
depth, unless a person went back (`ingest.rollback`). So schemas only grow, and each generation records what it added,
when, and for which batch.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import takewhile
from typing import Any, Final

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import ConflictError, CorruptError, UsageError
from s3notify_platform.limits import MAX_COLUMNS, MAX_DEPTH, MAX_SCHEMA_BYTES
from s3notify_platform.ports import ObjectStore, StoredObject, Written, list_all
from s3notify_platform.protocols.conditional_commit import ConditionalCommit
from s3notify_platform.table.layout import TableLayout, generation_of

PIN_ATTEMPTS = 8
"""Conflicts after which `pin` stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One generation. `source` and `rows` are Spark schema JSON; `inferred`: a sample made `source`.

    `added`: the fields of `rows` that the generation before did not have, by path, with their types; empty for the
    first one. `batch` and `created_ms`: for which batch, and when.
    """

    generation: int
    source: str
    rows: str
    inferred: bool
    added: Mapping[str, str] = field(default_factory=dict)
    batch: str = ""
    created_ms: int = 0


@dataclass(slots=True)
class _Room:
    """How much a schema may still grow."""

    columns: int
    bytes: int

    def take(self, column: Any) -> bool:
        """Whether there was room for one more column; what its type has in it is taken for itself."""
        size = len(json.dumps(column | {"type": _kind(column["type"]) or column["type"]})) + _NESTED_BYTES
        if self.columns < 1 or self.bytes < size:
            return False
        self.columns, self.bytes = self.columns - 1, self.bytes - size
        return True


_NESTED_BYTES: Final = 60
"""What a nested type takes besides the fields in it."""


def check_size(schema: str, *, times: int = 1) -> None:
    """`UsageError` for a schema beyond the limits, or so many times them. Pure."""
    columns, size = size_of(schema)
    for what, found, limit in (
        ("columns", columns, times * MAX_COLUMNS),
        ("bytes", size, times * MAX_SCHEMA_BYTES),
        ("levels", _depth(json.loads(schema)), times * MAX_DEPTH),
    ):
        if found > limit:
            raise UsageError(f"the schema has {found} {what}, and may have {limit}: leave out columns")


def size_of(schema: str) -> tuple[int, int]:
    """The fields of a schema at any depth, which `MAX_COLUMNS` limits, and its bytes, `MAX_SCHEMA_BYTES`. Pure."""
    return _count(json.loads(schema)), len(schema)


def _inner(kind: Any) -> list[Any]:
    """The types that a type has in it."""
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
    """`old` with the fields that only `new` has, inside of structs, arrays and maps too. Pure.

    If both have a field, that of `old` is kept; if their types differ and `strict`, `UsageError` names it. A field
    whose name differs from another one's only in case is left out, or refused if `strict`: Spark ignores case. So is,
    if `bounded`, one with which the schema would be larger or deeper than it may be.
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
        """One type. `level`: how deep its parts are."""
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
            raise UsageError(
                f"column {path!r} is {_name(old)} in the table and now {_name(new)}: "
                "give the column another name, or the source another table"
            )
        return old

    def fields(self, old: list[Any], new: list[Any], path: str, level: int) -> list[Any]:
        """The fields of a struct."""
        strict = self.strict
        found = {column["name"]: column for column in new}
        result = []
        for column in old:
            if (other := found.get(column["name"])) is None:
                # Later rows will not have it.
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
        """As much of a new column's type as there is room for; None for nothing."""
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
    """The fields that `new` has and `old` does not have, by path, with their types. Pure."""
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
                    yield place, _name(column["type"])
        case "array", "array":
            yield from _added(old["elementType"], new["elementType"], f"{path}[]")
        case "map", "map":
            yield from _added(old["valueType"], new["valueType"], f"{path}.value")


def _kind(kind: Any) -> str:
    return str(kind.get("type", "struct")) if isinstance(kind, dict) else ""


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(kind: Any) -> str:
    """A type as text for people."""
    match _kind(kind):
        case "struct":
            return (
                f"struct<{', '.join(part['name'] + ': ' + _name(part['type']) for part in kind['fields'])}>"
            )
        case "array":
            return f"array<{_name(kind['elementType'])}>"
        case "map":
            return f"map<{_name(kind['keyType'])}, {_name(kind['valueType'])}>"
        case _:
            return str(kind)


class SchemaRegistry:
    """Reads the schema of one table and, given `commits`, advances it."""

    def __init__(
        self,
        store: ObjectStore,
        layout: TableLayout,
        commits: ConditionalCommit | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._layout = layout
        self._commits = commits
        self._clock = clock

    def head(self) -> TableSchema | None:
        """The newest schema, or None. 1 LIST of one key and 1 GET."""
        page = self._store.list(self._layout.schemas, limit=1)
        return self._read(page.objects[0].key) if page.objects else None

    def history(self, *, after: int = 0) -> list[TableSchema]:
        """The generations later than `after`, newest first. 1 LIST, and 1 GET for each of them."""
        keys = (meta.key for meta in list_all(self._store, self._layout.schemas))
        return [self._read(key) for key in takewhile(lambda key: generation_of(key) > after, keys)]

    def _read(self, key: str) -> TableSchema:
        found = self._store.get(key)
        if not isinstance(found, StoredObject):
            raise CorruptError(f"{key}: the schema object is missing; restore it")
        known = {name.name for name in fields(TableSchema)}
        try:
            body = json.loads(found.body)
            # Fields of a later version are ignored.
            schema = TableSchema(**{name: value for name, value in body.items() if name in known})
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptError(f"{key}: not a schema object ({error})") from error
        if schema.generation != generation_of(key):
            raise CorruptError(f"{key}: holds generation {schema.generation}")
        return schema

    def pin(self, *, source: str, rows: str, inferred: bool, batch: str = "") -> TableSchema | None:
        """The table's schema, advanced for `batch` so that it covers `rows` and parses with `source`.

        None if `source` is inferred and lacks, or contradicts, what another caller pinned: merge with `head`
        (`merged`), and pin again. `UsageError` if a column of `rows` contradicts the table, or a schema is beyond the
        limits. 1 LIST + 1 GET, and 1 PUT if it advanced.
        """
        check_size(source)
        for _ in range(PIN_ATTEMPTS):
            head = self.head()
            generation = 1 if head is None else head.generation + 1
            added: dict[str, str] = {}
            if head is not None:
                if inferred and not _same(merged(head.source, source, strict=False), source):
                    return None
                rows = merged(head.rows, rows, strict=True)
                if _same(source, head.source) and _same(rows, head.rows) and inferred == head.inferred:
                    return head
                added = added_fields(head.rows, rows)
            check_size(rows, times=2)
            wanted = TableSchema(
                generation=generation,
                source=source,
                rows=rows,
                inferred=inferred,
                added=added,
                batch=batch,
                created_ms=self._clock.wall_ms(),
            )
            if self._commits is None:
                raise UsageError(f"{self._layout.prefix}: opened without `commits`, so it can only be read")
            body = json.dumps(asdict(wanted)).encode()
            outcome = self._commits.put_if_absent(self._layout.schema(generation), body)
            if isinstance(outcome, Written):
                return wanted
        raise ConflictError("the table's schema kept changing; try again")

    def pin_again(self, earlier: TableSchema) -> TableSchema:
        """Pin an earlier generation as the newest: the one way in which a schema shrinks. See `ingest.rollback`.

        `ConflictError` if another caller pins one at the same time. 1 LIST, 1 GET and 1 PUT.
        """
        head = self.head()
        if self._commits is None or head is None:
            raise UsageError(f"{self._layout.prefix}: opened without `commits`, or nothing is pinned")
        wanted = replace(
            earlier,
            generation=head.generation + 1,
            added={},
            batch=f"rollback to {earlier.generation}",
            created_ms=self._clock.wall_ms(),
        )
        body = json.dumps(asdict(wanted)).encode()
        if isinstance(self._commits.put_if_absent(self._layout.schema(wanted.generation), body), Written):
            return wanted
        raise ConflictError("the table's schema was changed at the same time: stop its runs, and try again")


def _same(one: str, other: str) -> bool:
    return bool(json.loads(one) == json.loads(other))
