"""The actions of one version of a Delta log. This platform or another engine may have written the version. Pure.

Each version that the platform writes has one `txn` action. The action's `appId` is the table's id, and the action's
`version` is the number `n` of the version's manifest. So a version of the log names its manifest, and a checkpoint
names the manifest, too. `commitInfo` also has `n`, and the field `parent`: the `n` of the previous version. By
`parent`, a reader notices that an earlier version was replaced.

The label of a row is the number of the version for which the row was planned. The tags of a pack's `add` have the
lowest and the highest label of its rows.

Source: Delta Transaction Log Protocol (https://github.com/delta-io/delta/blob/master/PROTOCOL.md).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES

Json = dict[str, Any]

SINCE: Final = "s3notify.since"
UNTIL: Final = "s3notify.until"
"""Tags of `add` and `remove`: the lowest and the highest label of the pack's rows."""

SLOTS: Final = "s3notify.slots"
"""Tag of `remove`: the lowest and the highest slot of the pack's rows, like `3-17`. A `remove` action has no
statistics.
"""

NOTE: Final = "s3notify"
"""Field of `commitInfo`: the version's data for the history and the change feed."""

ANY_LABEL: Final = 2**63 - 1

LAST_KEY: Final = "\U0010ffff" * (MAX_KEY_BYTES // 4)
"""The greatest possible key of an object, in the order of code points. The bytes of UTF-8 sort in the same order."""

UNKNOWN_ROWS: Final = -1
"""The value of `Add.rows` for a file whose statistics do not give the number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A deletion vector, which hides rows of a file. `body`: the vector itself in Z85 (if `storage` is `i`), or the
    name of its file.
    """

    storage: str
    body: str
    size: int
    rows: int
    """The number of rows that the vector hides."""
    offset: int | None = None

    @property
    def id(self) -> str:
        """A text that identifies the vector among all vectors of one file."""
        return f"{self.storage}{self.body}" + ("" if self.offset is None else f"@{self.offset}")

    def json(self) -> Json:
        """Returns the vector in the format of an action."""
        at = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.body,
            **at,
            "sizeInBytes": self.size,
            "cardinality": self.rows,
        }

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> "Vector | None":
        """Decodes the result of `json`."""
        if not found:
            return None
        return cls(
            storage=found["storageType"],
            body=found["pathOrInlineDv"],
            size=found["sizeInBytes"],
            rows=found["cardinality"],
            offset=found.get("offset"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A live file, whose rows are in the table: a pack, or a file that another engine made of packs.

    `rows`: the number of all rows in the file, or `UNKNOWN_ROWS`. `vector`: the rows that readers do not see. `slots`,
    `keys`: the least and the greatest slot and key that the file may have. `since`, `until`: the least and the greatest
    label of the file's rows. `stats`: the statistics as text, in the log's format.
    """

    path: str
    size: int
    rows: int
    modified_ms: int
    data_change: bool = True
    slots: tuple[int, int] = (0, ANY_LABEL)
    keys: tuple[str, str] = ("", LAST_KEY)
    since: int = 0
    until: int = ANY_LABEL
    stats: str = ""
    vector: Vector | None = None

    @property
    def live_rows(self) -> int:
        """The number of rows that readers see, or `UNKNOWN_ROWS`."""
        if self.vector is None or self.rows == UNKNOWN_ROWS:
            return self.rows
        return self.rows - self.vector.rows

    @property
    def id(self) -> tuple[str, str]:
        """The path and the vector of the file, which together identify the file in the log."""
        return self.path, self.vector.id if self.vector else ""

    def may_hold(self, slot: int, key: str | None, since: int, until: int) -> bool:
        """Returns true if the file may hold rows of this object, with a label in this range.

        If `key` is None, any object in the slot is meant.
        """
        return (
            self.slots[0] <= slot <= self.slots[1]
            and (key is None or self.keys[0] <= key <= self.keys[1])
            and self.since <= until
            and since <= self.until
        )

    def json(self) -> Json:
        """Returns the action in the format of the log."""
        return {
            "path": self.path,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": self.modified_ms,
            "dataChange": self.data_change,
            **({"stats": self.stats} if self.stats else {}),
            **_tags(self.since, self.until),
            **({"deletionVector": self.vector.json()} if self.vector else {}),
        }

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Add":
        """Decodes the result of `json`. If statistics and tags lack a bound, the result has the widest possible
        bound.
        """
        stats = json.loads(found.get("stats") or "{}")
        least, most = _known(stats.get("minValues")), _known(stats.get("maxValues"))
        rows = stats.get("numRecords")
        tags = found.get("tags") or {}
        return cls(
            path=found["path"],
            size=found["size"],
            rows=UNKNOWN_ROWS if rows is None else rows,
            modified_ms=found["modificationTime"],
            data_change=found.get("dataChange", True),
            slots=(least.get("_slot", 0), most.get("_slot", ANY_LABEL)),
            keys=(least.get("_key", ""), most.get("_key", LAST_KEY)),
            since=int(tags.get(SINCE, 0)),
            until=int(tags.get(UNTIL, ANY_LABEL)),
            stats=found.get("stats") or "",
            vector=Vector.of(found.get("deletionVector")),
        )

    def removed(self, now_ms: int, *, data_change: bool = True) -> "Remove":
        """Returns the action that removes this file."""
        return Remove(
            path=self.path,
            size=self.size,
            deleted_ms=now_ms,
            data_change=data_change,
            slots=self.slots,
            since=self.since,
            until=self.until,
            vector=self.vector,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """A file that is no longer live. Fields with the same name as in `Add` describe the file before its removal."""

    path: str
    deleted_ms: int
    size: int = 0
    data_change: bool = True
    slots: tuple[int, int] = (0, ANY_LABEL)
    since: int = 0
    until: int = ANY_LABEL
    vector: Vector | None = None

    @property
    def id(self) -> tuple[str, str]:
        """See `Add.id`."""
        return self.path, self.vector.id if self.vector else ""

    @property
    def file(self) -> Add:
        """The file before its removal, without its statistics."""
        return Add(
            path=self.path,
            size=self.size,
            rows=UNKNOWN_ROWS,
            modified_ms=0,
            slots=self.slots,
            since=self.since,
            until=self.until,
            vector=self.vector,
        )

    def json(self) -> Json:
        """Returns the action in the format of the log."""
        low, high = self.slots
        return {
            "path": self.path,
            "deletionTimestamp": self.deleted_ms,
            "dataChange": self.data_change,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": self.size,
            **_tags(self.since, self.until, **({} if high == ANY_LABEL else {SLOTS: f"{low}-{high}"})),
            **({"deletionVector": self.vector.json()} if self.vector else {}),
        }

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Remove":
        """Decodes the result of `json`. If the tags lack a bound, the result has the widest possible bound."""
        tags = found.get("tags") or {}
        low, high = tags.get(SLOTS, f"0-{ANY_LABEL}").split("-")
        return cls(
            path=found["path"],
            deleted_ms=found.get("deletionTimestamp") or 0,
            size=found.get("size") or 0,
            data_change=found.get("dataChange", True),
            slots=(int(low), int(high)),
            since=int(tags.get(SINCE, 0)),
            until=int(tags.get(UNTIL, ANY_LABEL)),
            vector=Vector.of(found.get("deletionVector")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaData:
    """The table's id, schema (Delta's JSON) and properties."""

    id: str
    schema: str
    created_ms: int
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    description: str = ""
    partition_columns: tuple[str, ...] = ()

    def json(self) -> Json:
        """Returns the action in the format of the log."""
        return {
            "id": self.id,
            "name": self.name,
            **({"description": self.description} if self.description else {}),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema,
            "partitionColumns": list(self.partition_columns),
            "createdTime": self.created_ms,
            "configuration": dict(self.configuration),
        }

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "MetaData":
        """Decodes the result of `json`."""
        return cls(
            id=found["id"],
            schema=found["schemaString"],
            created_ms=found.get("createdTime") or 0,
            configuration=dict(found.get("configuration") or {}),
            name=found.get("name") or "",
            description=found.get("description") or "",
            partition_columns=tuple(found.get("partitionColumns") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The versions and features that an engine needs to read or write the table."""

    reader: int = 1
    writer: int = 2
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    def json(self) -> Json:
        """Returns the action in the format of the log."""
        found: Json = {"minReaderVersion": self.reader, "minWriterVersion": self.writer}
        if self.reader >= 3:
            found["readerFeatures"] = list(self.reader_features)
        if self.writer >= 7:
            found["writerFeatures"] = list(self.writer_features)
        return found

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Protocol":
        """Decodes the result of `json`."""
        return cls(
            reader=found["minReaderVersion"],
            writer=found["minWriterVersion"],
            reader_features=tuple(sorted(found.get("readerFeatures") or ())),
            writer_features=tuple(sorted(found.get("writerFeatures") or ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVersion:
    """One version of the log. `number`: the number of the version's manifest. `parent`: the number of the manifest of
    the version before.

    `number` is 0 in a version of another engine. `note`: data for the history. `strange`: the names of actions that
    this platform neither writes nor reads.
    """

    number: int = 0
    parent: int = 0
    table: str = ""
    created_ms: int = 0
    operation: str = "WRITE"
    adds: tuple[Add, ...] = ()
    removes: tuple[Remove, ...] = ()
    metadata: MetaData | None = None
    protocol: Protocol | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    strange: tuple[str, ...] = ()

    @property
    def foreign(self) -> bool:
        """True if another engine wrote the version."""
        return not self.number

    @property
    def changes_rows(self) -> bool:
        """True if an action of the version is marked as a change of data. The actions of a merge have no such mark."""
        return any(add.data_change for add in self.adds) or any(gone.data_change for gone in self.removes)

    def dumps(self) -> bytes:
        """Returns the body of the version, with one action on each line."""
        info: Json = {
            "timestamp": self.created_ms,
            "operation": self.operation,
            "operationParameters": {},
            "engineInfo": "s3notify_platform",
            NOTE: {**self.note, "n": self.number, "parent": self.parent},
        }
        actions: list[Json] = [{"commitInfo": info}]
        if self.protocol:
            actions.append({"protocol": self.protocol.json()})
        if self.metadata:
            actions.append({"metaData": self.metadata.json()})
        txn = {"appId": self.table, "version": self.number, "lastUpdated": self.created_ms}
        actions.append({"txn": txn})
        actions += [{"remove": each.json()} for each in self.removes]
        actions += [{"add": each.json()} for each in self.adds]
        lines = (json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in actions)
        # A note may quote any text. With a lone surrogate in a note, other engines could not read the log.
        return "".join(f"{line}\n" for line in lines).encode(errors="replace")

    @classmethod
    def loads(cls, body: bytes, *, where: str) -> "LogVersion":
        """Decodes a version of this platform or of another engine. Raises `CorruptError`, with `where` in its
        message.
        """
        try:
            return _version([json.loads(line) for line in body.splitlines() if line.strip()])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptError(
                f"{where}: not a version of a Delta log ({type(error).__name__}: {error}): restore it"
            ) from error


def _tags(since: int, until: int, **more: str) -> Json:
    """Returns the tags of a file, or nothing for a file of another engine."""
    return {} if until == ANY_LABEL else {"tags": {SINCE: str(since), UNTIL: str(until)} | more}


def _known(bounds: Mapping[str, Any] | None) -> Json:
    """Returns the bounds without null, which some engines write for unknown bounds."""
    return {name: bound for name, bound in (bounds or {}).items() if bound is not None}


def _version(actions: Sequence[Json]) -> LogVersion:
    info: Json = {}
    txns: list[Json] = []
    adds: list[Add] = []
    removes: list[Remove] = []
    metadata, protocol = None, None
    strange: list[str] = []
    for action in actions:
        for name, found in action.items():
            match name:
                case "commitInfo":
                    info = found
                case "txn":
                    txns.append(found)
                case "add":
                    adds.append(Add.of(found))
                case "remove":
                    removes.append(Remove.of(found))
                case "metaData":
                    metadata = MetaData.of(found)
                case "protocol":
                    protocol = Protocol.of(found)
                case _:
                    strange.append(name)
    note = dict(info.get(NOTE) or {})
    number, parent = int(note.pop("n", 0)), int(note.pop("parent", 0))
    own = [txn for txn in txns if txn["version"] == number] if number else []
    strange += [f"txn of {txn['appId']}" for txn in txns if txn not in own]
    return LogVersion(
        number=number if own else 0,
        parent=parent if own else 0,
        table=own[0]["appId"] if own else "",
        created_ms=info.get("timestamp") or 0,
        operation=info.get("operation") or "",
        adds=tuple(adds),
        removes=tuple(removes),
        metadata=metadata,
        protocol=protocol,
        note=note,
        strange=tuple(strange),
    )
