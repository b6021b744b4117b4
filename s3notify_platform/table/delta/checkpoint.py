"""Checkpoints of the log. A checkpoint of a version is a Parquet file with the state of the log as of this version.
Pure.

This platform writes a classic checkpoint in a single file, which every engine reads. The checkpoint has the protocol,
`metaData`, the newest `txn` of each application, live files with tags, statistics and deletion vectors, and recently
removed files. Checkpoints of other engines can be read, too, even if their statistics are columns (`stats_parsed`)
instead of JSON.

Time and memory are proportional to the number of files.

Source: Delta Transaction Log Protocol, "Checkpoints" and "Last Checkpoint File".
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.table.delta.actions import Add, Json, MetaData, Protocol, Remove


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a log as of one version.

    `txns`: the newest version of each application (`appId`). `removes`: the actions that removed files. Engines need
    `removes` only for their vacuum. `strange`: the names of actions that this platform does not read. `foreign`: True
    if another engine wrote the checkpoint.
    """

    protocol: Protocol
    metadata: MetaData
    txns: Mapping[str, int] = field(default_factory=dict)
    adds: tuple[Add, ...] = ()
    removes: tuple[Remove, ...] = ()
    strange: tuple[str, ...] = ()
    foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheckpoint:
    """The content of `_last_checkpoint`, which names the newest checkpoint.

    `actions`, `size_bytes`, `adds`: the checkpoint's numbers of actions, bytes and live files, or 0 if unknown.
    `parts`: the number of files of the checkpoint (this platform writes 1).
    """

    version: int
    actions: int = 0
    size_bytes: int = 0
    adds: int = 0
    parts: int = 1

    def dumps(self) -> bytes:
        """Returns the body of `_last_checkpoint`."""
        found = {"version": self.version, "size": self.actions}
        if self.size_bytes:
            found |= {"sizeInBytes": self.size_bytes, "numOfAddFiles": self.adds}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def loads(cls, body: bytes, *, where: str) -> "LastCheckpoint":
        """Decodes a `_last_checkpoint` of this platform or of another engine. Raises `CorruptError`, with `where` in
        its message.
        """
        try:
            found = json.loads(body)
            return cls(
                version=int(found["version"]),
                actions=int(found.get("size") or 0),
                size_bytes=int(found.get("sizeInBytes") or 0),
                adds=int(found.get("numOfAddFiles") or 0),
                parts=int(found.get("parts") or 1),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise CorruptError(
                f"{where}: does not name a checkpoint ({type(error).__name__}: {error}): remove it; readers then "
                "list the log"
            ) from error


_OWN: Final = b"s3notify"
"""A key in the metadata of a Parquet file: only checkpoints of this platform have it."""

_STRINGS: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_SCHEMA: Final = pa.schema(
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
                "tags": _STRINGS,
                "deletionVector": _VECTOR,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _STRINGS,
                "size": pa.int64(),
                "deletionVector": _VECTOR,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
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


def encode(state: Checkpoint, *, version: int) -> tuple[bytes, LastCheckpoint]:
    """Returns the checkpoint of this version, and the content of `_last_checkpoint` that names it."""
    columns: dict[str, list[Json]] = {
        "protocol": [state.protocol.json()],
        "metaData": [state.metadata.json()],
        "txn": [{"appId": app, "version": version} for app, version in state.txns.items()],
        "remove": [each.json() for each in state.removes],
        "add": [each.json() | {"dataChange": False} for each in state.adds],
    }
    count = sum(map(len, columns.values()))
    above = 0
    arrays = {}
    for name, found in columns.items():
        kind = _SCHEMA.field(name).type
        below = count - above - len(found)
        parts = [pa.nulls(above, kind), pa.array(found, kind), pa.nulls(below, kind)]
        arrays[name] = pa.chunked_array(parts)
        above += len(found)
    table = pa.table([arrays[name] for name in _SCHEMA.names], schema=_SCHEMA.with_metadata({_OWN: b"1"}))
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    body = sink.getvalue()
    return body, LastCheckpoint(version=version, actions=count, size_bytes=len(body), adds=len(state.adds))


def decode(body: bytes, *, where: str) -> Checkpoint:
    """Decodes a checkpoint of this platform or of another engine. Raises `CorruptError`, with `where` in its message.

    A checkpoint of the kind V2 may name other objects, which list the live files. For such a checkpoint, `strange`
    contains `sidecar`.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(body))
        found = {name: _rows(file, name) for name in file.schema_arrow.names}
        if len(found.get("protocol", ())) != 1 or len(found.get("metaData", ())) != 1:
            raise ValueError("must have one protocol and one metaData")
        return Checkpoint(
            protocol=Protocol.of(found["protocol"][0]),
            metadata=MetaData.of(found["metaData"][0]),
            txns={each["appId"]: each["version"] for each in found.get("txn", ())},
            adds=tuple(map(Add.of, found.get("add", ()))),
            removes=tuple(map(Remove.of, found.get("remove", ()))),
            strange=tuple(sorted(name for name, rows in found.items() if rows and name not in _SCHEMA.names)),
            foreign=_OWN not in (file.schema_arrow.metadata or {}),
        )
    except (
        pa.ArrowException,
        ValueError,
        KeyError,
        TypeError,
        OSError,
        AttributeError,
        RecursionError,
    ) as error:
        raise CorruptError(
            f"{where}: not a checkpoint of a Delta log ({type(error).__name__}: {error}): restore it"
        ) from error


def _rows(file: pq.ParquetFile, name: str) -> list[Json]:
    """Returns the actions of one kind, with only the fields that this platform reads."""
    if name not in _SCHEMA.names:
        return [{}] * (len(column := file.read(columns=[name], use_threads=False)[name]) - column.null_count)
    there = {each.name for each in file.schema_arrow.field(name).type}
    wanted = [f"{name}.{each.name}" for each in _SCHEMA.field(name).type if each.name in there]
    rows: list[Json] = _values(file, name, wanted)
    if name == "add" and "stats_parsed" in there and not all(each.get("stats") for each in rows):
        parsed = _values(file, name, ["add.stats_parsed", "add.path"])
        for each, other in zip(rows, parsed, strict=True):
            each["stats"] = each.get("stats") or _json_stats(other["stats_parsed"])
    return rows


def _values(file: pq.ParquetFile, name: str, columns: list[str]) -> list[Json]:
    found: list[Json] = (
        file.read(columns=columns, use_threads=False)[name].drop_null().to_pylist(maps_as_pydicts="strict")
    )
    return found


def _json_stats(parsed: Json | None) -> str | None:
    """Converts statistics from columns to JSON: the counts, and the bounds of integers and texts."""
    if not parsed:
        return None
    found: Json = {
        name: parsed[name] for name in ("numRecords", "nullCount", "tightBounds") if name in parsed
    }
    for name in ("minValues", "maxValues"):
        bounds = (parsed.get(name) or {}).items()
        found[name] = {column: bound for column, bound in bounds if type(bound) in (int, str)}
    return json.dumps({name: part for name, part in found.items() if part is not None}, ensure_ascii=False)
