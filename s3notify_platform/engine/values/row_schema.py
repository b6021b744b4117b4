"""Tables of values between the driver and its tasks. Each row is a dataclass, so that each value is declared once.

`Rows` has the Arrow schema and the Spark DDL of a table whose rows are of one or several kinds. Each field is a column.
Kinds that have a field of the same name share one column, which has the same meaning for all these kinds. The column is
null in rows of kinds without this field. Column `kind` is the number of a row's kind, in the order of the declaration.

    integers, strings, booleans, bytes   a column of that type; a slot and a task are 32 bits wide
    another dataclass                    the columns of its own fields; if the dataclass may be None, their names begin
                                         with the name of the outer field
    mappings, tuples, `AS_JSON`          a string column with JSON, as `json_of` writes it
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from operator import attrgetter
from types import UnionType
from typing import Any, Final, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.kernel.slots import Slot

R = TypeVar("R")
Task = NewType("Task", int)

Batches = Iterator[pa.RecordBatch]

AS_JSON: Final[Mapping[str, Any]] = {"json": True}
"""Metadata for a field that is stored as JSON in one column, even if its value is a dataclass."""

_ARROW: Final[Mapping[Any, pa.DataType]] = {
    int: pa.int64(), str: pa.string(), bool: pa.bool_(), bytes: pa.binary(), Slot: pa.int32(), Task: pa.int32(),
}  # fmt: skip

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def json_of(value: object) -> str:
    """Returns the JSON of a dataclass, or of mappings, sequences and plain values.

    Nested dataclasses become JSON objects.
    """
    return json.dumps(
        value, default=lambda one: {f.name: getattr(one, f.name) for f in fields(one)}, separators=(",", ":")
    )


def of_json(hint: Any, value: Any) -> Any:
    """Converts a result of `json.loads` to a value of the type `hint`.

    Raises KeyError, TypeError or AttributeError if `value` does not fit.
    """
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return hint(**{name: of_json(_hints(hint)[name], part) for name, part in value.items()})
    if get_origin(hint) is tuple:
        return tuple(of_json(get_args(hint)[0], part) for part in value)
    if get_origin(hint) is Mapping:
        return {key: of_json(get_args(hint)[1], part) for key, part in value.items()}
    return value


def runs_of(batch: pa.RecordBatch, name: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cuts the batch where the value of an integer column changes. Yields each piece with its value; -1 means null."""
    if batch.num_rows == 0:
        return
    values = pc.fill_null(batch.column(name), -1).to_numpy(zero_copy_only=False)
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), batch.num_rows]
    for low, high in pairwise(cuts):
        yield int(values[low]), batch.slice(low, high - low)


def numbers_of(batches: Batches) -> Iterator[int]:
    """Yields the task numbers in these batches, which have no other data."""
    return (int(number) for batch in batches for number in batch.column(0).to_pylist())


class Rows(Generic[R]):
    """A table with rows of these kinds. `prefix`: the prefix of all column names. Can be pickled."""

    def __init__(self, *kinds: type[R], prefix: str = "") -> None:
        self._kinds = kinds
        self._prefix = prefix
        declared = [_declared(kind, prefix) for kind in kinds]
        self._columns = [{column.name: column for column in columns} for columns, _ in declared]
        self._loaders = [loader for _, loader in declared]
        types: dict[str, pa.DataType] = {f"{prefix}kind": pa.int32()}
        for columns in self._columns:
            for name, column in columns.items():
                assert types.setdefault(name, column.type) == column.type, f"two types of column {name}"
        self.schema = pa.schema(list(types.items()))
        self.ddl = ", ".join(f"`{column.name}` {sql_type(column.type)}" for column in self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rows, (self._kinds, self._prefix)

    def kind(self, kind: type[R]) -> int:
        """Returns the number of a kind in column `kind`."""
        return self._kinds.index(kind)

    def batch(self, rows: Iterable[R]) -> pa.RecordBatch:
        """Returns the rows as a batch, in order."""
        rows = list(rows)
        kinds = [self._kinds.index(type(row)) for row in rows]
        arrays = [pa.array(kinds, pa.int32())]
        for column in list(self.schema)[1:]:
            of_kind = [columns.get(column.name) for columns in self._columns]
            values = [
                of.dump(row) if (of := of_kind[kind]) is not None else None
                for kind, row in zip(kinds, rows, strict=True)
            ]
            arrays.append(_array(values, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def columns(self, kind: type[R], values: Mapping[str, Sequence[object]]) -> pa.RecordBatch:
        """Makes a batch of rows of one kind from columns, by name. Missing columns are null."""
        count = len(next(iter(values.values())))
        numbers = pa.array(np.full(count, self._kinds.index(kind), np.int32))
        arrays = [
            pa.array(values[column.name], column.type)
            if column.name in values
            else pa.nulls(count, column.type)
            for column in list(self.schema)[1:]
        ]
        return pa.RecordBatch.from_arrays([numbers, *arrays], schema=self.schema)

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[R]:
        """Yields the rows of batches that have these columns, and possibly other columns."""
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in self.schema.names}
            for number, kind in enumerate(columns[self._prefix + "kind"]):
                yield self._loaders[kind](columns, number)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # an error message with bytes that are not text
        texts = (each if each is None else each.encode(errors="backslashreplace").decode() for each in values)
        return pa.array(texts, kind)


def _rows(kinds: tuple[type[Any], ...], prefix: str) -> Rows[Any]:
    return Rows(*kinds, prefix=prefix)


_Loader = Callable[[Mapping[str, list[Any]], int], Any]


class _Column:
    """A column for a field's value. `path`: the attributes that lead from a row to the value.

    `name`: the column's name. `optional`: an enclosing value may be None.
    """

    def __init__(self, name: str, path: tuple[str, ...], hint: Any, *, optional: bool = False) -> None:
        self.name = name
        self._path = path
        self._hint = hint
        while isinstance(hint, NewType) and hint not in _ARROW:
            hint = hint.__supertype__
        found = _ARROW.get(str if get_origin(hint) is Literal else hint)
        self._json = found is None
        self._none: Any = () if get_origin(hint) is tuple else {}
        self._empty = "[]" if get_origin(hint) is tuple else "{}"
        self.type = pa.string() if found is None else found
        plain = not (self._json or optional)
        self.dump: Callable[[Any], Any] = attrgetter(".".join(path)) if plain else self._dump

    def _dump(self, row: Any) -> Any:
        for name in self._path:
            row = None if row is None else getattr(row, name)
        if self._json and row is not None:
            return json_of(row) if row else self._empty  # most mappings and tuples are empty
        return row

    def load(self, columns: Mapping[str, list[Any]], number: int) -> Any:
        value = columns[self.name][number]
        if self._json and value is not None:
            return self._none if value == self._empty else of_json(self._hint, json.loads(value))
        return value


def _declared(
    kind: type[Any], prefix: str, path: tuple[str, ...] = (), *, optional: bool = False, within: bool = False
) -> tuple[list[_Column], _Loader]:
    """Returns the columns of a dataclass, and a function that makes the dataclass from a row's values.

    `optional`: true if the dataclass may be None; `within`: true if an enclosing value may be None.
    """
    columns: list[_Column] = []
    parts: dict[str, _Loader] = {}
    for each in fields(kind):
        hint, may_miss = _hints(kind)[each.name], False
        if get_origin(hint) in (Union, UnionType):
            (hint,) = (one for one in get_args(hint) if one is not type(None))
            may_miss = True
        at = (*path, each.name)
        if is_dataclass(hint) and not each.metadata.get("json"):
            assert isinstance(hint, type)
            inner = f"{prefix}{each.name}_" if may_miss else prefix
            found, parts[each.name] = _declared(hint, inner, at, optional=may_miss, within=may_miss or within)
            columns += found
        else:
            columns.append(column := _Column(prefix + each.name, at, hint, optional=within))
            parts[each.name] = column.load
    first = columns[0].name

    def load(values: Mapping[str, list[Any]], number: int) -> Any:
        if optional and values[first][number] is None:
            return None
        return kind(**{name: part(values, number) for name, part in parts.items()})

    return columns, load
