"""The format of a Delta Lake log: schema, actions, checkpoints, and the state they result in. Pure.

Source: Delta Transaction Log Protocol, with the lowest versions that a schema allows: reader 1 and writer 2;
column mapping (2 and 5) if a name has characters that Delta reserves; the table feature `timestampNtz` (3 and 7) if a
column has that type. Every column may be null, since files that were written before it was added do not have it.
"""

import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.slots import Slot
from s3notify_platform.table.columns import comment_of
from s3notify_platform.table.commit import SlotCommit
from s3notify_platform.table.layout import Generation

Json = dict[str, Any]

SLOT_COLUMN: Final = "slot"
"""The partition column. Named as in the files' paths, which some readers use, and not `_slot`."""

_LINEAGE: Final = (
    (SLOT_COLUMN, "integer"),
    ("_key", "string"),
    ("_etag", "string"),
    ("_offset", "long"),
)

_PRIMITIVES: Final = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+, ?\d+\)"
)

_KEPT: Final = frozenset(" ,;{}()\n\t=")
"""Characters that a column name may have only with column mapping."""

PROPERTIES: Final = {
    # Our own vacuum removes files and log. A VACUUM of another engine would also remove history, and files that are
    # committed and not shown yet; with these settings it finds nothing old enough.
    "delta.deletedFileRetentionDuration": "interval 5200 weeks",
    "delta.enableExpiredLogCleanup": "false",
}

NOTE: Final = "s3notify"
"""Field of `commitInfo` with our `Summary`."""

FORMAT: Final = 1


# Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSchema:
    """A table's schema in Delta's form, and the protocol that a reader needs for it."""

    schema_string: str
    protocol: Json
    properties: Mapping[str, str]


def delta_schema(rows: str | None) -> DeltaSchema:
    """The schema of a view whose data files hold `rows` (Spark's schema JSON) after the lineage columns.

    `UsageError` names a column whose type Delta lacks, or whose name is taken.
    """
    own = [{"name": name, "type": kind} for name, kind in _LINEAGE]
    columns = own + (json.loads(rows).get("fields", []) if rows else [])
    names: list[str] = []
    kinds: set[str] = set()
    fields = _fields(columns, "", names, kinds)
    features = {"timestampNtz"} & kinds
    properties = dict(PROPERTIES)
    if any(_KEPT.intersection(name) for name in names):
        features.add("columnMapping")
        last = _map_columns(fields)
        properties |= {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": str(last),
        }
    return DeltaSchema(
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        protocol=_protocol(features),
        properties=properties,
    )


def _fields(columns: Sequence[Json], where: str, names: list[str], kinds: set[str]) -> list[Json]:
    taken: dict[str, str] = {}
    fields: list[Json] = []
    for column in columns:
        name = column["name"]
        if (other := taken.setdefault(name.lower(), name)) != name or len(taken) == len(fields):
            raise UsageError(
                f"column {where + name!r}: the view has {where + other!r} already, and Delta ignores "
                "case: give the column another name in the source's transform"
            )
        names.append(name)
        kind = _type(column["type"], f"{where}{name}.", names, kinds)
        about = {"comment": comment} if (comment := comment_of(column)) else {}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": about})
    return fields


def _type(kind: Any, where: str, names: list[str], kinds: set[str]) -> Any:
    if isinstance(kind, str) and _PRIMITIVES.fullmatch(kind):
        kinds.add("timestampNtz" if kind == "timestamp_ntz" else kind)
        return kind
    match kind["type"] if isinstance(kind, dict) else kind:
        case "struct":
            return {"type": "struct", "fields": _fields(kind["fields"], where, names, kinds)}
        case "array":
            element = _type(kind["elementType"], f"{where}element.", names, kinds)
            return {"type": "array", "elementType": element, "containsNull": True}
        case "map":
            key = _type(kind["keyType"], f"{where}key.", names, kinds)
            value = _type(kind["valueType"], f"{where}value.", names, kinds)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        case other:
            raise UsageError(
                f"column {where[:-1]!r}: Delta has no type {other}: cast it in the source's transform"
            )


def _map_columns(fields: Iterable[Json]) -> int:
    """Map each column to its name in the files. Returns the highest id.

    Ids are derived from the columns' paths, so they stay when the schema grows.
    """
    ids: set[int] = set()

    def walk(kind: Any, path: str) -> None:
        if not isinstance(kind, dict):
            return
        for part in ("elementType", "keyType", "valueType"):
            walk(kind.get(part), f"{path}\n{part}")
        for column in kind.get("fields", ()):
            place = f"{path}\n.{column['name']}"
            number = zlib.crc32(place.encode()) & 0x7FFFFFFF
            while number in ids or not number:
                number = (number + 1) & 0x7FFFFFFF
            ids.add(number)
            column["metadata"] |= {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": column["name"],
            }
            walk(column["type"], place)

    walk({"fields": fields}, "")
    return max(ids)


def _protocol(features: set[str]) -> Json:
    if "timestampNtz" in features:
        writer = sorted(features | {"appendOnly", "invariants"})  # What version 2 would imply.
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": sorted(features),
            "writerFeatures": writer,
        }
    return {
        "minReaderVersion": 2 if features else 1,
        "minWriterVersion": 5 if features else 2,
    }


def raised(known: Json | None, wanted: Json) -> Json:
    """The protocol that includes both. A table's protocol is never lowered."""
    if known is None:
        return wanted
    if known["minReaderVersion"] < 3 and wanted["minReaderVersion"] < 3:
        return max(known, wanted, key=lambda protocol: int(protocol["minReaderVersion"]))
    needed: Json = {"minReaderVersion": 3, "minWriterVersion": 7}
    mapped = {"columnMapping"} if 2 in (known["minReaderVersion"], wanted["minReaderVersion"]) else set()
    for features in ("readerFeatures", "writerFeatures"):
        needed[features] = sorted({*known.get(features, ()), *wanted.get(features, ()), *mapped})
    return needed


# Actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one version shows. It is stored in the version's `commitInfo`, so that a sync reads no other version."""

    table_id: str
    created_ms: int
    schema: int
    protocol: Json
    generations: Mapping[Slot, Generation]
    rows: Mapping[Slot, int]

    def note(self) -> Json:
        """As JSON."""
        return {
            "format": FORMAT,
            "table_id": self.table_id,
            "created_ms": self.created_ms,
            "schema": self.schema,
            "protocol": self.protocol,
            "slots": {
                str(slot): [number, self.rows.get(slot, 0)] for slot, number in self.generations.items()
            },
        }

    @classmethod
    def of(cls, actions: Iterable[Json]) -> "Summary | None":
        """The summary of a version; None if another program wrote it."""
        for action in actions:
            note = (action.get("commitInfo") or {}).get(NOTE)
            if isinstance(note, dict) and note.get("format") == FORMAT:
                return cls(
                    table_id=note["table_id"],
                    created_ms=note["created_ms"],
                    schema=note["schema"],
                    protocol=note["protocol"],
                    generations={
                        Slot(int(slot)): Generation(shown[0]) for slot, shown in note["slots"].items()
                    },
                    rows={Slot(int(slot)): shown[1] for slot, shown in note["slots"].items()},
                )
        return None


def path_of(slot: Slot, name: str) -> str:
    """A data file's path in the log: relative to the view's place, with URI encoding."""
    return quote(f"slot={slot}/{name}.parquet", safe="/=")


def app_id(name: str, slot: Slot) -> str:
    """The id under which the log keeps the generation of a slot."""
    return f"s3notify/{name}/{slot}"


def slot_of_app(app: str) -> Slot | None:
    """Inverse of `app_id`; None for another program's."""
    match = re.fullmatch(r"s3notify/.+/(\d+)", app)
    return Slot(int(match[1])) if match else None


def slot_of_path(path: str) -> Slot | None:
    """The slot in a file's path."""
    match = re.match(rf"{SLOT_COLUMN}=(\d+)/", path)
    return Slot(int(match[1])) if match else None


def paths_of(commit: SlotCommit | None) -> dict[str, int]:
    """The files of a generation: path and bytes."""
    return {path_of(commit.slot, file.name): file.bytes for file in commit.files} if commit else {}


def slot_actions(
    name: str, slot: Slot, head: SlotCommit | None, shown: Mapping[str, int], now_ms: int
) -> list[Json]:
    """The actions that replace the files shown of a slot (path and bytes) by those of `head`."""
    values = {SLOT_COLUMN: str(slot)}
    files = {path_of(slot, file.name): file for file in head.files} if head else {}
    txn = {"appId": app_id(name, slot), "version": head.generation if head else 0, "lastUpdated": now_ms}
    removes = (
        {
            "path": path,
            "deletionTimestamp": now_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": values,
            "size": shown[path],
        }
        for path in sorted(shown.keys() - files.keys())
    )
    adds = (
        {
            "path": path,
            "partitionValues": values,
            "size": file.bytes,
            "modificationTime": head.created_ms if head else now_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
        for path, file in files.items()
        if path not in shown
    )
    return [{"txn": txn}, *({"remove": remove} for remove in removes), *({"add": add} for add in adds)]


def opening_actions(name: str, summary: Summary, schema: DeltaSchema | None, now_ms: int) -> list[Json]:
    """The first actions of a version: who wrote it, and the table's `metaData` if there is a `schema`."""
    info: Json = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {},
        "engineInfo": "s3notify_platform",
        NOTE: summary.note(),
    }
    if schema is None:
        return [{"commitInfo": info}]
    metadata: Json = {
        "id": summary.table_id,
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.schema_string,
        "partitionColumns": [SLOT_COLUMN],
        "createdTime": summary.created_ms,
        "configuration": dict(schema.properties),
    }
    return [{"commitInfo": info}, {"protocol": summary.protocol}, {"metaData": metadata}]


def dump_version(actions: Iterable[Json]) -> bytes:
    """A version's body: one action a line."""
    lines = (json.dumps(action, separators=(",", ":")) for action in actions)
    return "".join(f"{line}\n" for line in lines).encode()


def load_version(body: bytes, *, where: str) -> list[Json]:
    """Inverse of `dump_version`; `CorruptError` naming `where`."""
    try:
        actions = [json.loads(line) for line in body.splitlines() if line.strip()]
    except ValueError as error:
        raise CorruptError(f"{where}: not a version of a Delta log ({error})") from error
    if not all(isinstance(action, dict) for action in actions):
        raise CorruptError(f"{where}: not a version of a Delta log")
    return actions


# The resulting state


@dataclass(slots=True, kw_only=True)
class LogState:
    """Replays a log: its live files by path, and the last of each other action."""

    protocol: Json | None = None
    metadata: Json | None = None
    txns: dict[str, Json] = field(default_factory=dict)
    files: dict[str, Json] = field(default_factory=dict)

    def apply(self, actions: Iterable[Json]) -> None:
        """The actions of the next version, or of a checkpoint."""
        for action in actions:
            match action:
                case {"add": {"path": path} as add}:
                    self.files[path] = add
                case {"remove": {"path": path}}:
                    self.files.pop(path, None)
                case {"txn": {"appId": app} as txn}:
                    self.txns[app] = txn
                case {"metaData": dict(metadata)}:
                    self.metadata = metadata
                case {"protocol": dict(protocol)}:
                    self.protocol = protocol
                case _:
                    pass

    def actions(self) -> Iterator[Json]:
        """What a checkpoint holds. Removed files are left out: see `PROPERTIES`."""
        yield {"protocol": self.protocol}
        yield {"metaData": self.metadata}
        yield from ({"txn": txn} for txn in self.txns.values())
        yield from ({"add": add} for add in self.files.values())


_STRINGS: Final = pa.map_(pa.string(), pa.string())

_CHECKPOINT: Final = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _STRINGS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
            }
        ),
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _STRINGS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "createdTime": pa.int64(),
                "configuration": _STRINGS,
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)


def encode_checkpoint(state: LogState) -> tuple[bytes, int]:
    """A single-file checkpoint, and how many actions it holds."""
    rows = list(state.actions())
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_CHECKPOINT), sink, compression="zstd")
    return sink.getvalue(), len(rows)


def decode_checkpoint(body: bytes, *, where: str) -> LogState:
    """Inverse of `encode_checkpoint`, for those of other programs too; `CorruptError` naming `where`."""
    state = LogState()
    try:
        table = pq.ParquetFile(pa.BufferReader(body)).read()
        for name in ("protocol", "metaData", "txn"):
            found = table[name].drop_null().to_pylist(maps_as_pydicts="strict")
            state.apply({name: _filled(value)} for value in found)
        state.files = {add["path"]: add for add in _adds(table["add"].drop_null())}
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise CorruptError(f"{where}: not a checkpoint of a Delta log ({error})") from error
    return state


def _adds(column: pa.ChunkedArray) -> Iterator[Json]:
    """Copies only the fields that are needed, since there is one action for each file. The slot is in its path."""
    wanted = {"path", "size", "modificationTime", "stats", "deletionVector"}
    names = [each.name for each in column.type if each.name in wanted]
    columns = [pc.struct_field(column, [name]).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        add: Json = _filled(dict(zip(names, values, strict=True)))
        yield add | {"partitionValues": {SLOT_COLUMN: str(slot_of_path(add["path"]))}, "dataChange": False}


def _filled(value: Json) -> Json:
    return {name: part for name, part in value.items() if part is not None}
