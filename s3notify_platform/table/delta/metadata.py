"""The table's schema in Delta's form, and the protocol and the properties that this schema needs. Pure.

The protocol has the lowest versions with which engines can read and write the schema:

    - reader version 1 and writer version 2, if none of the next lines applies
    - versions 2 and 5, with column mapping, if a name has characters that Delta reserves
    - versions 3 and 7, with table features, for timestamps without zone, and for deletion vectors

Every column is nullable, because files that are older than a column do not have the column.

`objections` lists the changes by another engine that cannot be adopted.

Source: Delta Transaction Log Protocol (https://github.com/delta-io/delta/blob/master/PROTOCOL.md).
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.column_descriptions import comment_of
from s3notify_platform.table.column_names import name_in_objects
from s3notify_platform.table.delta.actions import Json, LogVersion, MetaData, Protocol

LINEAGE: Final = (
    ("_slot", "integer"),
    ("_key", "string"),
    ("_etag", "string"),
    ("_offset", "long"),
)
"""The first columns of each pack, which say from which object a row was read."""

PROPERTIES: Final = {
    # Only the platform's vacuum may remove files and versions. With these settings, no version and no file of an
    # uncommitted round is old enough for the cleanup of another engine.
    "delta.deletedFileRetentionDuration": "interval 5200 weeks",
    "delta.enableExpiredLogCleanup": "false",
}
"""Properties of each table."""

VECTORS: Final = "delta.enableDeletionVectors"

FORGETS: Final = "delta.setTransactionRetentionDuration"
"""A property that must not be set. After the time in this property, engines drop the `txn` that names the manifest."""

_HARMLESS: Final = (
    "delta.autoOptimize",
    "delta.checkpoint.",
    "delta.checkpointInterval",
    "delta.dataSkipping",
    "delta.logRetentionDuration",  # this property has no effect, because `enableExpiredLogCleanup` is false
    "delta.parquet.",
    "delta.targetFileSize",
    "delta.tuneFileSizesForRewrites",
)
"""Prefixes of Delta's properties that require nothing of other writers. Properties that do not begin with `delta.`
belong to the user."""

_PRIMITIVES: Final = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+, ?\d+\)"
)

_RESERVED: Final = frozenset(" ,;{}()\n\t=")
"""Characters that a column name may have only with column mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSchema:
    """A schema in Delta's JSON, with the protocol and the properties that the schema requires."""

    schema: str
    protocol: Protocol
    properties: Mapping[str, str]


def delta_schema(rows: str | None, *, vectors: bool = False, derived: bool = False) -> DeltaSchema:
    """Returns the schema of a table: the lineage columns, and then the columns in `rows` (Spark's schema JSON).

    `vectors`: True if deletion vectors will be written. `derived`: True if `_slot` is the only lineage column, as in
    the table of a slot asset. `UsageError` names a column whose type Delta lacks, or whose name is already used.
    """
    own = [{"name": name, "type": kind} for name, kind in LINEAGE[: 1 if derived else None]]
    columns = own + (json.loads(rows).get("fields", []) if rows else [])
    names: list[str] = []
    kinds: set[str] = set()
    fields = _fields(columns, "", names, kinds)
    features = {"timestampNtz"} & kinds
    properties = dict(PROPERTIES)
    if vectors:
        features.add("deletionVectors")
        properties[VECTORS] = "true"
    if any(_RESERVED.intersection(name) for name in names):
        features.add("columnMapping")
        properties |= {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": str(_map_columns(fields)),
        }
    return DeltaSchema(
        schema=json.dumps({"type": "struct", "fields": fields}),
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
                f"column {where + name!r}: the table already has {where + other!r}, and Delta ignores case: give "
                "the column another name in the source's transform"
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
                f"column {where[:-1]!r}: Delta has no type {other}: cast the column in the source's transform"
            )


def _map_columns(fields: Iterable[Json]) -> int:
    """Adds the metadata of column mapping to each column. Returns the highest id of a column.

    Ids are derived from the columns' paths, so they stay the same when the schema grows.
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


# Protocols


def _protocol(features: set[str]) -> Protocol:
    if features - {"columnMapping"}:
        return Protocol(
            reader=3,
            writer=7,
            reader_features=tuple(sorted(features)),
            writer_features=tuple(sorted(features | _implied(Protocol()))),
        )
    return Protocol(reader=2, writer=5) if features else Protocol()


def _implied(protocol: Protocol) -> set[str]:
    """Returns the writer features of a protocol. The result includes the features that the protocol's version number
    implies.
    """
    if protocol.writer >= 7:
        return {*protocol.writer_features}
    since = {
        2: ("appendOnly", "invariants"),
        3: ("checkConstraints",),
        4: ("changeDataFeed", "generatedColumns"),
        5: ("columnMapping",),
        6: ("identityColumns",),
    }
    return {name for writer, names in since.items() if writer <= protocol.writer for name in names}


def raised(known: Protocol | None, wanted: Protocol) -> Protocol:
    """Returns the lowest protocol that includes both protocols. So a table's protocol is never lowered."""
    if known is None:
        return wanted
    if max(known.reader, wanted.reader) < 3 and max(known.writer, wanted.writer) < 7:
        return Protocol(reader=max(known.reader, wanted.reader), writer=max(known.writer, wanted.writer))
    readers: set[str] = set()
    for each in (known, wanted):
        readers |= {*each.reader_features} | ({"columnMapping"} if each.reader == 2 else set())
    return Protocol(
        reader=max(known.reader, wanted.reader),
        writer=7,
        reader_features=tuple(sorted(readers)),
        writer_features=tuple(sorted(_implied(known) | _implied(wanted))),
    )


# Changes by another engine


def objections(version: LogVersion, *, metadata: MetaData, protocol: Protocol) -> list[str]:
    """Returns the reasons why the `metaData` and `protocol` of a foreign version cannot be adopted. The list is empty
    if `metaData` and `protocol` can be adopted.

    The version may change comments, the name, the description, properties that do not begin with `delta.`, and
    properties that tune other engines.
    """
    found: list[str] = []
    if version.protocol is not None and version.protocol != protocol:
        found.append(f"it changes the protocol from {_shown(protocol)} to {_shown(version.protocol)}")
    if version.metadata is None:
        return found
    new = version.metadata
    if new.id != metadata.id:
        found.append(f"it changes the table's id from {metadata.id!r} to {new.id!r}")
    if new.partition_columns != metadata.partition_columns:
        found.append(f"it partitions the table by {', '.join(new.partition_columns) or 'nothing'}")
    found += _schema_changes(metadata.schema, new.schema)
    for name in sorted(metadata.configuration.keys() | new.configuration.keys()):
        old, value = metadata.configuration.get(name), new.configuration.get(name)
        if old != value and name.startswith("delta.") and not name.startswith(_HARMLESS):
            found.append(_property_change(name, old, value))
    return found


def _shown(protocol: Protocol) -> str:
    features = sorted({*protocol.reader_features, *protocol.writer_features})
    return f"reader {protocol.reader}, writer {protocol.writer}" + (
        f" ({', '.join(features)})" if features else ""
    )


def _property_change(name: str, old: str | None, value: str | None) -> str:
    if name.startswith("delta.constraints.") and value is not None:
        return f"it adds the constraint {name.removeprefix('delta.constraints.')}: {value}"
    if name == FORGETS and value is not None:
        return f"it sets {name}, after which engines forget the table's manifest"
    if value is None:
        return f"it unsets {name}, which was {old!r}"
    return f"it sets {name} to {value!r}" + (f", which was {old!r}" if old is not None else "")


def _schema_changes(old: str, new: str) -> Iterator[str]:
    """Yields the differences between the columns of two schemas, except differences in comments."""
    try:
        before, after = (
            {each["name"]: _bare(each) for each in json.loads(text)["fields"]} for text in (old, new)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"its schema cannot be read ({type(error).__name__}: {error})"
        return
    for name in sorted(before.keys() - after.keys()):
        yield f"it drops the column {name!r}"
    for name in sorted(after.keys() - before.keys()):
        yield f"it adds the column {name!r}"
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield f"it changes the column {name!r}"


def _bare(kind: Any) -> Any:
    """Returns the type, without the comments in it."""
    if isinstance(kind, list):
        return [_bare(each) for each in kind]
    if isinstance(kind, dict):
        return {name: _bare(part) for name, part in kind.items() if name != "comment"}
    return kind


# Growth


def united(theirs: str, mine: str) -> str | None:
    """Returns a schema with the columns of both schemas: first the columns of `theirs`, then the other columns of
    `mine`.

    Returns None if a column has different types, or is read from different fields of the objects. Pure.
    """
    try:
        return json.dumps(_united(json.loads(theirs), json.loads(mine)))
    except _TwoTypesError:
        return None


class _TwoTypesError(Exception):
    """The two schemas give a column different types, or read it from different fields of the objects."""


def _united(theirs: Any, mine: Any) -> Any:
    if _kind(theirs) == _kind(mine) == "struct":
        held = {field["name"]: field for field in theirs["fields"]}
        for field in mine["fields"]:
            earlier = held.get(field["name"])
            if earlier is not None and name_in_objects(earlier) != name_in_objects(field):
                raise _TwoTypesError
            kind = field["type"] if earlier is None else _united(earlier["type"], field["type"])
            held[field["name"]] = {**(earlier or field), "type": kind}
        return {**theirs, "fields": list(held.values())}
    for parts in (("elementType",), ("keyType", "valueType")):
        if _kind(theirs) == _kind(mine) and all(part in theirs and part in mine for part in parts):
            return {**theirs, **{part: _united(theirs[part], mine[part]) for part in parts}}
    if _bare(theirs) != _bare(mine):
        raise _TwoTypesError
    return theirs


def _kind(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else ""
