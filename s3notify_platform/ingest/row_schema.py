"""Tables whose rows are dataclasses: what travels between the driver and its tasks is declared once.

`Rows` gives the Arrow schema and the Spark DDL of a table whose rows are of one or several kinds. Each field is a
column; kinds that have a field of one name share its column, which means the same for all of them, and is null in
rows of kinds without it. Column `kind` is the number of the kind, in the order of the declaration.

    integers, strings, booleans, bytes   a column of that type; a slot and a task are 32 bits wide
    another dataclass                    its fields, in its place; if it may be None, named after it as well
    mappings, tuples, `AS_JSON`          a string column with JSON
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Final, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from s3notify_platform.slots import Slot

R = TypeVar("R")
Task = NewType("Task", int)

Batches = Iterator[pa.RecordBatch]

AS_JSON: Final[Mapping[str, Any]] = {"json": True}
"""Metadata of a field that is one column, whatever its type."""

_DDL: Final = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
}


class Rows(Generic[R]):
    """A table of rows of these kinds. `prefix` is that of all its columns. Pickles."""

    def __init__(self, *kinds: type[R], prefix: str = "") -> None:
        self._kinds = kinds
        self._prefix = prefix
        self._columns = [{column.name: column for column in _columns_of(kind)} for kind in kinds]
        self._loaders = [_loader_of(kind, prefix) for kind in kinds]
        types: dict[str, pa.DataType] = {"kind": pa.int32()}
        for columns in self._columns:
            for name, column in columns.items():
                assert types.setdefault(name, column.type) == column.type, f"two types of column {name}"
        self.schema = pa.schema([(prefix + name, kind) for name, kind in types.items()])
        self.ddl = ", ".join(f"`{column.name}` {_DDL[column.type]}" for column in self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rows, (self._kinds, self._prefix)

    def kind(self, kind: type[R]) -> int:
        """The number of a kind in column `kind`."""
        return self._kinds.index(kind)

    def batch(self, rows: Iterable[R]) -> pa.RecordBatch:
        """The rows, in their order."""
        rows = list(rows)
        kinds = [self._kinds.index(type(row)) for row in rows]
        arrays = [pa.array(kinds, pa.int32())]
        for column in list(self.schema)[1:]:
            name = column.name.removeprefix(self._prefix)
            dumps = [columns[name].dump if name in columns else _nothing for columns in self._columns]
            values = [dumps[kind](row) for kind, row in zip(kinds, rows, strict=True)]
            arrays.append(pa.array(values, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[R]:
        """The rows of batches with these columns, which may have others besides."""
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in self.schema.names}
            for number, kind in enumerate(columns[self._prefix + "kind"]):
                yield self._loaders[kind](columns, number)


def _rows(kinds: tuple[type[Any], ...], prefix: str) -> Rows[Any]:
    return Rows(*kinds, prefix=prefix)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: pa.DataType
    dump: Callable[[Any], object]


_Loader = Callable[[Mapping[str, list[Any]], int], Any]


def _nothing(_: Any) -> None:
    return None


def _type_of(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether it may be None."""
    if get_origin(hint) in (Union, UnionType):
        (one,) = (each for each in get_args(hint) if each is not type(None))
        return one, True
    return hint, False


def _arrow_of(hint: Any) -> pa.DataType | None:
    """The type of a plain column, None if values of the type are JSON."""
    if hint in (Slot, Task):
        return pa.int32()
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if get_origin(hint) is Literal:
        hint = str
    return {int: pa.int64(), str: pa.string(), bool: pa.bool_(), bytes: pa.binary()}.get(hint)


def _columns_of(
    kind: type[Any], prefix: str = "", get: Callable[[Any], Any] | None = None
) -> Iterator[_Column]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        value = _getter(each.name, get)
        hint, optional = _type_of(hints[each.name])
        if is_dataclass(hint) and not each.metadata.get("json"):
            assert isinstance(hint, type)
            yield from _columns_of(hint, f"{each.name}_" if optional else prefix, value)
        elif (plain := _arrow_of(hint)) is not None:
            yield _Column(prefix + each.name, plain, value)
        else:
            yield _Column(prefix + each.name, pa.string(), _json_of(value))


def _getter(name: str, get: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def value(row: Any) -> Any:
        if get is not None:
            row = get(row)
        return None if row is None else getattr(row, name)

    return value


def _json_of(get: Callable[[Any], Any]) -> Callable[[Any], object]:
    def value(row: Any) -> object:
        found = get(row)
        return None if found is None else json.dumps(found, default=_plain)

    return value


def _plain(value: Any) -> Any:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _loader_of(kind: type[Any], prefix: str, *, optional: bool = False) -> _Loader:
    hints = get_type_hints(kind)
    parts: dict[str, _Loader] = {}
    for each in fields(kind):
        hint, may_miss = _type_of(hints[each.name])
        if is_dataclass(hint) and not each.metadata.get("json"):
            assert isinstance(hint, type)
            inner = f"{each.name}_" if may_miss else prefix
            parts[each.name] = _loader_of(hint, inner, optional=may_miss)
        else:
            parts[each.name] = _value_of(prefix + each.name, hint)
    first = next(iter(parts))

    def load(columns: Mapping[str, list[Any]], number: int) -> Any:
        if optional and columns[prefix + first][number] is None:
            return None
        return kind(**{name: part(columns, number) for name, part in parts.items()})

    return load


def _value_of(column: str, hint: Any) -> _Loader:
    if _arrow_of(hint) is not None:
        return lambda columns, number: columns[column][number]

    def load(columns: Mapping[str, list[Any]], number: int) -> Any:
        value = columns[column][number]
        return None if value is None else _of_json(hint, json.loads(value))

    return load


def _of_json(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        assert isinstance(hint, type)
        hints = get_type_hints(hint)
        return hint(**{name: _of_json(hints[name], part) for name, part in value.items()})
    if get_origin(hint) is tuple:
        return tuple(_of_json(get_args(hint)[0], part) for part in value)
    return value
