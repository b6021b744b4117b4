"""Rows between the driver and its tasks, each declared once, as a dataclass.

`Rows` gives the Arrow schema and the Spark DDL of a table whose rows are of one or several kinds. Each field is a
column; kinds that have a field of one name share its column, which means the same for all of them, and is null in
rows of kinds without it. Column `kind` is the number of the kind, in the order of the declaration.

    integers, strings, booleans, bytes   a column of that type; a slot and a task are 32 bits wide
    another dataclass                    its fields, in its place; if it may be None, named after it as well
    mappings, tuples, `AS_JSON`          a string column with JSON
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Final, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from s3notify_platform.ports import Version
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import StagedCommit, TableFile
from s3notify_platform.table.layout import Generation

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


# What the bucket and the queue hold, on its way to be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSlot:
    """A slot to compare, and its newest generation: None if it is still to be asked for."""

    slot: Slot
    generation: Generation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedEntry:
    """As much of an entry of the source's topic as finding its object, and removing it, takes."""

    slot: Slot
    key: str
    shard: int
    epoch: str
    id: str
    quota: int
    version: Version

    @classmethod
    def of(cls, entry: Entry) -> "QueuedEntry":
        """From an entry that was read."""
        return cls(
            slot=Slot(entry.slot),
            key=entry.event.key,
            shard=entry.shard,
            epoch=entry.epoch,
            id=entry.id,
            quota=entry.quota,
            version=entry.version,
        )

    def entry(self, topic: str) -> Entry:
        """The entry to remove."""
        return Entry(
            topic=topic,
            shard=self.shard,
            epoch=self.epoch,
            id=self.id,
            slot=self.slot,
            quota=self.quota,
            state="committed",
            event=Event(key=self.key),
            version=self.version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests that a task has made, by kind, and cuts that its chains of LISTs passed over."""

    requests: Mapping[str, int]
    overran: int = 0


Listed = WantedSlot | ObjectVersion | QueuedEntry | Requests
LISTED: Final[Rows[Listed]] = Rows(WantedSlot, ObjectVersion, QueuedEntry, Requests)


# What there is to do


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRead:
    """An object to read. `announced`: an entry names the change, or there is none: it is read on, or again."""

    split: Split
    announced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The key of an object that has left. `announced`: an entry names it."""

    slot: Slot
    key: str
    announced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSlot:
    """A slot that was compared with this generation of its table. `objects`: how many it has.

    `complete`: all that has changed is in rows of the other kinds; else `beyond` changes are not.
    """

    slot: Slot
    generation: Generation
    objects: int
    complete: bool
    beyond: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSlot:
    """A slot that cannot be dealt with, and why."""

    slot: Slot
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnqueuedSlot:
    """A slot that was last signalled by a writer that does not queue."""

    slot: Slot


Planned = ToRead | Gone | ComparedSlot | FailedSlot | UnqueuedSlot | QueuedEntry | Requests
PLANNED: Final[Rows[Planned]] = Rows(
    ToRead, Gone, ComparedSlot, FailedSlot, UnqueuedSlot, QueuedEntry, Requests
)


# What each task reads


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOfTask:
    """A slot that a task has to do with, whether there is something to read of it or not."""

    task: Task
    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOfTask:
    """A split that a task reads. `child`: its name in the job's chain, if it is named there."""

    task: Task
    split: Split
    child: str | None


Work = SlotOfTask | SplitOfTask
WORK: Final[Rows[Work]] = Rows(SlotOfTask, SplitOfTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scouted:
    """The quotes of part `number` of CSV objects: how many, and whether it is well formed read from out- or inside."""

    number: int
    quotes: int
    outside: bool
    inside: bool


SCOUTED: Final[Rows[Scouted]] = Rows(Scouted)


# What was read: in front of the columns of the data


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an object, or of a part of it.

    `status`: `by_record` is a part of an object that can only be read from its beginning. `start` to `offset` was
    read, and `reach_end` says whether there is more. `failed`: why the rest could not be read. `data` and `rejected`
    are the files of this part alone. `new_fields`: what it has beyond an inferred schema, as Arrow schemas in base64.
    """

    status: Literal["ok", "superseded", "deleted", "failed", "by_record"]
    etag: str
    size: int
    rows: int = 0
    rejects: int = 0
    reason: str = ""
    new_fields: tuple[str, ...] = ()
    start: int = 0
    offset: int = 0
    reach_end: bool = True
    by_record: bool = False
    bytes: int = 0
    data: tuple[TableFile, ...] = ()
    rejected: tuple[TableFile, ...] = ()
    failed: str = ""
    unnamed: Mapping[str, int] = field(default_factory=dict)
    mismatches: Mapping[str, int] = field(default_factory=dict)
    gets: int = 0

    @classmethod
    def whole(cls, status: Any, etag: str, size: int, **found: Any) -> "Outcome":
        """Of an object that was read whole, or not at all."""
        given = {"offset": size, "bytes": size if status == "ok" else 0} | found
        return cls(status=status, etag=etag, size=size, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlot:
    """A slot of the job, so that one with nothing to read is staged too."""

    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject:
    """What became of an object, or of a part of it."""

    slot: Slot
    key: str
    outcome: Outcome = field(metadata=AS_JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFiles:
    """Files that a task has written, with rows and rejects of several whole objects of a slot."""

    slot: Slot
    data_files: tuple[TableFile, ...]
    reject_files: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A record that could not be taken in."""

    slot: Slot
    key: str
    etag: str
    offset: int | None
    reason: str
    raw: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a row comes from. The data's columns follow."""

    slot: Slot
    key: str
    etag: str
    offset: int


Read = ReadSlot | ReadObject | SharedFiles | Reject | Lineage
READ: Final[Rows[Read]] = Rows(ReadSlot, ReadObject, SharedFiles, Reject, Lineage, prefix="_")
LINEAGE_COLUMNS: Final = ("_slot", "_key", "_etag", "_offset")
"""What a transform receives beside the source's columns and has to keep."""


# What was staged


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSlot:
    """A slot whose files are written, and its commit, None if there is nothing to commit; and what it brings."""

    slot: Slot
    commit: StagedCommit | None
    objects: int = 0
    rows: int = 0
    rejects: int = 0
    gone: int = 0
    superseded: int = 0
    bytes: int = 0
    unfinished: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    unnamed: Mapping[str, int] = field(default_factory=dict)
    mismatches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderSlot:
    """A slot that was not staged, because its objects have fields that the schema lacks: Arrow schemas in base64."""

    slot: Slot
    new_fields: tuple[str, ...]


Staged = StagedSlot | WiderSlot | FailedSlot
STAGED: Final[Rows[Staged | Requests]] = Rows(StagedSlot, WiderSlot, FailedSlot, Requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file of a derived table."""

    slot: Slot
    file: TableFile


WRITTEN: Final[Rows[WrittenFile]] = Rows(WrittenFile)
