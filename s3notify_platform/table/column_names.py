"""The names of columns in the table, and the names of the same fields in the objects. Pure.

A parsing schema (`TableSchema.source`) uses the table's names, at any depth. A field that has another name in the
objects keeps that name in its metadata. A column never changes its name in the table: new fields, or a change of the
setting for names, affect only the names of new columns.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

_IN_OBJECTS: Final = "s3notify.name"
"""Key in a field's metadata: the field's name in the objects, if the table uses another name."""


def safe_name(name: str) -> str:
    """Returns a safe name for the column, with only letters, digits and _.

    Engines need no quotes for a safe name, and Delta needs no column mapping. A sequence of other characters becomes
    one _. At the two ends of a name, other characters are removed: `Amount (EUR)` becomes `Amount_EUR`.
    """
    return re.sub(r"\W+", "_", re.sub(r"^\W+|\W+$", "", name)) or "column"


def table_names(schema: str, held: str = "{}", *, safe: bool, taken: Collection[str] = ()) -> str:
    """Returns the schema with the table's names. `schema` is Spark's JSON with the names that the fields have in
    objects.

    `held`: the current parsing schema. The fields of this schema keep their names. If `safe` is set, new fields get
    safe names (`safe_name`). Otherwise new fields get the names that they have in objects. A name gets a number
    (`a_b_2`) if another field already has this name, ignoring case. A safe name that is in `taken` gets a number, too.
    """
    naming = _Naming(safe=safe, taken={name.casefold() for name in taken})
    return json.dumps(naming.named(json.loads(schema), json.loads(held)))


def object_names(schema: str) -> str:
    """Returns a parsing schema with the names that its fields have in objects: the inverse of `table_names`."""
    return json.dumps(_each_field(json.loads(schema), _as_in_objects))


def bare_names(schema: str) -> str:
    """Returns a parsing schema without the names that its fields have in objects."""
    return json.dumps(_each_field(json.loads(schema), _bare))


def name_in_objects(column: Mapping[str, Any]) -> str:
    """Returns the name that a field of a parsing schema has in objects."""
    return str(column.get("metadata", {}).get(_IN_OBJECTS, column["name"]))


def _bare(column: Json) -> Json:
    metadata = {name: value for name, value in column.get("metadata", {}).items() if name != _IN_OBJECTS}
    return {**column, "metadata": metadata}


def _as_in_objects(column: Json) -> Json:
    return {**_bare(column), "name": name_in_objects(column)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Naming:
    safe: bool
    taken: Collection[str]

    def named(self, kind: Any, held: Any) -> Any:
        """Returns the type `kind`, with the table's names. `held` is the type of the same field in the current parsing
        schema.
        """
        if not isinstance(kind, dict):
            return kind
        earlier = held if isinstance(held, dict) else {}
        if "fields" in kind:
            return {**kind, "fields": self.fields(kind["fields"], earlier.get("fields", ()))}
        return {
            **kind,
            **{part: self.named(kind[part], earlier.get(part)) for part in _PARTS if part in kind},
        }

    def fields(self, fields: Sequence[Json], held: Sequence[Json]) -> list[Json]:
        """Returns these fields of a struct, with the table's names.

        Unchanged names are assigned first, so that no safe name is equal to an unchanged name.
        """
        earlier = {name_in_objects(field): field for field in held}
        used = {field["name"].casefold() for field in held}
        names = {}
        for name in sorted((field["name"] for field in fields), key=lambda name: self._wanted(name) != name):
            names[name] = earlier[name]["name"] if name in earlier else self._unused(name, used)
            used.add(names[name].casefold())
        return [self._field(field, names[field["name"]], earlier.get(field["name"])) for field in fields]

    def _wanted(self, name: str) -> str:
        return safe_name(name) if self.safe else name

    def _unused(self, name: str, used: Collection[str]) -> str:
        wanted = found = self._wanted(name)
        number = 1
        while found.casefold() in used or (found != name and found.casefold() in self.taken):
            number += 1
            found = f"{wanted}_{number}"
        return found

    def _field(self, field: Json, name: str, held: Json | None) -> Json:
        kind = self.named(field["type"], held and held["type"])
        found = _bare({**field, "name": name, "type": kind})
        return (
            found
            if name == field["name"]
            else {**found, "metadata": found["metadata"] | {_IN_OBJECTS: field["name"]}}
        )


_PARTS: Final = ("elementType", "keyType", "valueType")


def _each_field(kind: Any, change: Callable[[Json], Json]) -> Any:
    """Returns the type, with `change` applied to each of its fields at any depth."""
    if not isinstance(kind, dict):
        return kind
    if "fields" in kind:
        fields = [change({**field, "type": _each_field(field["type"], change)}) for field in kind["fields"]]
        return {**kind, "fields": fields}
    return {**kind, **{part: _each_field(kind[part], change) for part in _PARTS if part in kind}}
