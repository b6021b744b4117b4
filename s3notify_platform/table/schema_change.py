"""Finds columns that contradict the pinned schema, and plans the change of their types. Pure.

`s3notify schema set` changes the parsing type of a column. If the table's column of this name has the type of the
parsed column, the table's column changes, too. If the two types differ, a transform has made the table's column.
Such a column changes only on request (`--of-transform`).
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.column_names import name_in_objects
from s3notify_platform.table.delta.metadata import LINEAGE
from s3notify_platform.table.pinned_schema import TableSchema
from s3notify_platform.table.type_changes import How, column_ddl, ddl, how, is_same_type

Json = dict[str, Any]

OF_TRANSFORM: Final = "--of-transform"
"""The command's option for a column that a transform makes."""

_OWN: Final = frozenset({*(name for name, _ in LINEAGE), "_rescued"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A contradiction: the column or field at `path` has the type `old`, but is now declared with the type `new`.

    `column`: the column with its new type.
    """

    path: str
    old: Any
    new: Any
    column: Json

    def __str__(self) -> str:
        return f"column {self.path!r} is {ddl(self.old)} in the table and now {ddl(self.new)}"


def contradictions(pinned: str, now: str) -> Iterator[Contradiction]:
    """Yields the columns and fields that have different types in the two schemas (Spark's JSON).

    Names that differ only in case count as different names.
    """
    held = {column["name"]: column["type"] for column in json.loads(pinned).get("fields", ())}
    for column in json.loads(now).get("fields", ()):
        if column["name"] in held:
            for path, old, new in _differing(held[column["name"]], column["type"], column["name"]):
                yield Contradiction(path=path, old=old, new=new, column=column)


def _differing(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, str) or isinstance(new, str) or old["type"] != new["type"]:
        if not is_same_type(old, new):
            yield path, old, new
    elif old["type"] == "struct":
        held = {part["name"]: part["type"] for part in old["fields"]}
        for part in new["fields"]:
            if part["name"] in held:
                yield from _differing(held[part["name"]], part["type"], f"{path}.{part['name']}")
    elif old["type"] == "array":
        yield from _differing(old["elementType"], new["elementType"], f"{path}[]")
    else:
        yield from _differing(old["keyType"], new["keyType"], f"{path}.key")
        yield from _differing(old["valueType"], new["valueType"], f"{path}.value")


def set_command(name: str, columns: Sequence[Json], *options: str) -> str:
    """Returns the command that changes these columns (fields of Spark's JSON) in the table of the source `name`."""
    wanted = ", ".join(column_ddl(column["name"], column["type"]) for column in columns)
    return " ".join(("`s3notify schema set", name, shlex.quote(wanted), *options)) + "`"


def check_types(
    name: str, pinned: str, now: str, *, source: str = "{}", asset: str = "", setting: str = ""
) -> None:
    """Raises `UsageError` if columns have other types in `now` than in `pinned`.

    The message has the command that changes the table. `name`: the source's name. `source`: the current parsing schema
    of the source's objects. `asset`: the slot asset to which the table belongs. `setting`: the setting that declares
    these columns.
    """
    every = [*contradictions(pinned, now)]
    if not every:
        return
    read = {column["name"]: column["type"] for column in json.loads(source).get("fields", ())}

    def made(column: Json) -> bool:
        return column["name"] in read and not is_same_type(read[column["name"]], column["type"])

    columns = {each.column["name"]: each.column for each in every}
    first = made(every[0].column)
    options = [*([OF_TRANSFORM] if first else []), *([f"--asset {asset}"] if asset else [])]
    command = set_command(name, [each for each in columns.values() if made(each) == first], *options)
    other = f"remove the column from {setting}" if setting else "give the column another name"
    raise UsageError(
        f"{setting + ': ' if setting else ''}{every[0]}: {command} changes the table's type; otherwise {other}"
    )


# The change


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A column whose type changes. `how`: as in `type_changes.how`."""

    name: str
    old: Any
    new: Any
    how: How

    def __str__(self) -> str:
        return f"{self.name} {ddl(self.old)} → {ddl(self.new)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A schema after a change of types. `columns`: columns of the table whose type changes.

    `parsed`: columns whose parsing type changes. `names`: for each requested column, its name in the objects, or its
    name in the table if the objects do not have the column.
    """

    schema: TableSchema
    names: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[ColumnChange, ...] = ()
    parsed: tuple[ColumnChange, ...] = field(default=())

    @property
    def every(self) -> tuple[ColumnChange, ...]:
        """All changed columns. Each name occurs once."""
        return tuple({each.name: each for each in (*self.parsed, *self.columns)}.values())


def planned_change(known: TableSchema, wanted: str, *, of_transform: bool = False) -> SchemaChange:
    """Returns the change that gives columns the types in `wanted` (Spark's JSON).

    If `wanted` omits fields of a struct, these fields stay. `of_transform`: only the table's columns change.
    `UsageError`: a column does not exist, or is a column of the platform.
    """
    source, rows = json.loads(known.source), json.loads(known.rows)
    read, held = ({part["name"]: part for part in each.get("fields", ())} for each in (source, rows))
    cases = {name_in_objects(part).casefold(): name for name, part in read.items()}
    cases |= {name.casefold(): name for name in (*read, *held)}
    columns, parsed, names = [], [], dict[str, str]()
    for given in json.loads(wanted)["fields"]:
        name = cases.get(given["name"].casefold(), "")
        if name in _OWN or given["name"] in _OWN:
            raise UsageError(
                f"column {given['name']!r}: its type is the platform's own, and cannot be changed"
            )
        if name not in held and (of_transform or name not in read):
            raise UsageError(
                f"the table has no column {given['name']!r}; new columns are added with the rows that have them. "
                f"It has: {', '.join(held) or 'none'}"
            )
        names[name] = name_in_objects(read.get(name, {"name": name}))
        alike = name in read and name in held and is_same_type(read[name]["type"], held[name]["type"])
        if name in read and not of_transform and (change := _change(read[name], given)):
            parsed.append(change)
        if (
            name in held
            and (of_transform or alike or name not in read)
            and (change := _change(held[name], given))
        ):
            columns.append(change)
    schema = replace(known, source=_with(source, parsed), rows=_with(rows, columns))
    return SchemaChange(schema=schema, names=names, columns=tuple(columns), parsed=tuple(parsed))


def _change(column: Json, given: Json) -> ColumnChange | None:
    new = _retyped(column["type"], given["type"], column["name"])
    found = how(column["type"], new)
    return found and ColumnChange(name=column["name"], old=column["type"], new=new, how=found)


def _retyped(old: Any, new: Any, path: str) -> Any:
    """Returns the type `new`, extended by the fields that only `old` has. `UsageError`: `new` has fields that `old`
    lacks.
    """
    if isinstance(old, str) or isinstance(new, str) or old["type"] != new["type"]:
        return new
    if old["type"] != "struct":
        parts = ("elementType",) if old["type"] == "array" else ("keyType", "valueType")
        return {**old, **{part: _retyped(old[part], new[part], path) for part in parts}}
    given = {part["name"]: part["type"] for part in new["fields"]}
    if more := sorted(given.keys() - {part["name"] for part in old["fields"]}):
        raise UsageError(
            f"column {path!r} has no field {more[0]!r}; new fields are added with the rows that have them"
        )
    return {**old, "fields": [_field(part, given, path) for part in old["fields"]]}


def _field(part: Json, given: Json, path: str) -> Json:
    name = part["name"]
    return part | {"type": _retyped(part["type"], given[name], f"{path}.{name}")} if name in given else part


def _with(schema: Json, changes: Sequence[ColumnChange]) -> str:
    new = {change.name: change.new for change in changes}
    fields = [part | {"type": new.get(part["name"], part["type"])} for part in schema.get("fields", ())]
    return json.dumps({**schema, "fields": fields} if "fields" in schema else schema)
