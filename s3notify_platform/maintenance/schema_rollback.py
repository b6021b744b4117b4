"""Rolls back to an earlier schema, after mistaken data has added columns to the table.

The next version has the earlier columns, and no file is rewritten. Packs keep the values of the removed columns, but
readers no longer see these values. So a rollback is refused while a row of the table has a value in a column that would
be removed. A rollback is also refused if a column's type has changed after the earlier version (`retype`). The column's
values then no longer have the earlier type.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from s3notify_platform.formats.arrow_values import unnamed_columns
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UsageError
from s3notify_platform.maintenance.task import COLUMNS_SHOWN, KEYS_SHOWN, Report
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import MetaData
from s3notify_platform.table.delta.metadata import LINEAGE
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.pinned_schema import NO_SCHEMA, TableSchema, added_fields, schema_of
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.schema_change import contradictions
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot
from s3notify_platform.table.type_changes import ddl
from s3notify_platform.table.versions import Event, history, snapshot_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaEvent:
    """A version that changed the schema. `added`: fields that the earlier schema did not have, with their types.

    `changed`: fields whose type changed, with both types.
    """

    event: Event
    schema: TableSchema
    added: Mapping[str, str]
    changed: Mapping[str, str] = field(default_factory=dict)


def schema_history(reader: LogReader, *, derived: bool = False) -> list[SchemaEvent]:
    """The kept versions that changed the schema, newest first. Cost: the requests of `history`.

    `added` of the oldest version is empty, because no earlier schema is known.
    """
    found = [each for each in history(reader) if each.body.metadata is not None]
    schemas = [schema_of(each.body.metadata, derived=derived) for each in found if each.body.metadata]
    events = []
    for number, (event, schema) in enumerate(zip(found, schemas, strict=True)):
        if schema is not None:
            before = next((each for each in schemas[number + 1 :] if each is not None), None)
            held = before.rows if before is not None else schema.rows
            changed = {
                each.path: f"{ddl(each.old)} → {ddl(each.new)}" for each in contradictions(held, schema.rows)
            }
            added = added_fields(held, schema.rows)
            events.append(SchemaEvent(event=event, schema=schema, added=added, changed=changed))
    return events


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRollback:
    """The effect of a rollback to the schema of `version`. `columns`: paths of columns that leave the schema. `in_use`:
    for each of these columns that has values, the keys of some objects with such values.
    """

    version: int
    base: Snapshot
    target: MetaData
    columns: tuple[str, ...]
    in_use: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`. `ConflictError`: the table has changed since the search for values."""
        if (base.table, base.version) != (self.base.table, self.base.version):
            raise ConflictError("the table has changed at the same time: stop its runs, and try again")
        metadata = replace(
            base.metadata,
            schema=self.target.schema,
            configuration={**base.metadata.configuration, **self.target.configuration},
        )
        note = {"schema_of": self.version, "columns": list(self.columns)}
        return Proposal(metadata=metadata, operation="CHANGE COLUMNS", note=note)


def plan_schema_rollback(table: LogTable, version: int) -> SchemaRollback:
    """Finds the columns that a rollback to the schema of `version` removes. Stop the source's runs first.

    `NotFoundError`: the version does not exist. `UsageError`: a column's type has changed after that version. Cost: the
    requests of `snapshot_of`, and of `read_slots` for all packs.
    """
    now = table.newest()
    if isinstance(now, Absent):
        raise NotFoundError(f"the table below {table.layout.prefix!r} has no version yet")
    then = snapshot_of(table.reader, version)
    today, target = schema_of(now.metadata) or NO_SCHEMA, schema_of(then.metadata)
    if target is None:
        raise NotFoundError(f"version {version} has no schema: nothing was committed yet")
    if found := next(contradictions(target.rows, today.rows), None):
        raise UsageError(
            f"version {version} is older than the present type of {found.column['name']!r}: go back by `s3notify table "
            "rollback`, or give the column its former type by `s3notify schema set`"
        )
    columns = tuple(sorted(added_fields(target.rows, today.rows)))
    in_use: dict[str, set[str]] = {}
    for path, key in _values(table, now, target) if columns else ():
        if len(in_use.setdefault(path, set())) < KEYS_SHOWN:
            in_use[path].add(key)
    return SchemaRollback(
        version=version,
        base=now,
        target=then.metadata,
        columns=columns,
        in_use={path: tuple(sorted(keys)) for path, keys in sorted(in_use.items())},
    )


def roll_back_schema(table: LogTable, planned: SchemaRollback) -> int:
    """Commits the earlier schema, and returns the number of the new version. `UsageError`: rows of the table
    have values in removed columns.

    `ConflictError`: the table has changed after the plan was made: plan again. Cost: the requests of a commit.
    """
    check_unused(planned)
    done = table.commit(planned, planned.base)
    assert isinstance(done, Committed), "a schema rollback always commits a version"
    return done.snapshot.version


def check_unused(planned: SchemaRollback) -> None:
    """Raises `UsageError` if rows of the table have values in columns that the earlier schema lacks."""
    if planned.in_use:
        path, keys = next(iter(planned.in_use.items()))
        raise UsageError(
            f"{len(planned.in_use)} of these columns have values, like {path!r} from {', '.join(keys)}: remove or "
            "correct these objects and let the source ingest the change, or keep the schema"
        )


def _values(table: LogTable, now: Snapshot, target: TableSchema) -> Iterator[tuple[str, str]]:
    """Yields the path of each column that is missing in the target schema but has values in rows of the table. Each
    path comes with the key of an object that has such a value.
    """
    kept = _shape(json.loads(target.rows))
    output = arrow_schema(now.metadata.schema)
    names = [name for name in output.names if name not in {name for name, _ in LINEAGE}]
    store, layout = table.reader.store, table.layout
    for batch in read_slots(store, layout, now.packs.values(), None, output, columns=["_key", *names]):
        places, _ = unnamed_columns(pa.Table.from_batches([batch]).select(names), kept)
        for path, rows in places.items():
            for key in batch.column("_key").take(pa.array(rows[:KEYS_SHOWN])).to_pylist():
                yield path, key


def _shape(kind: Any) -> pa.Schema:
    """Converts a schema in Spark's JSON to an Arrow schema in which only the names matter."""
    return pa.schema([pa.field(part["name"], _type(part["type"])) for part in kind.get("fields", ())])


def _type(kind: Any) -> pa.DataType:
    match kind["type"] if isinstance(kind, dict) else "":
        case "struct":
            return pa.struct([*_shape(kind)])
        case "array":
            return pa.list_(_type(kind["elementType"]))
        case "map":
            return pa.map_(_type(kind["keyType"]), _type(kind["valueType"]))
        case _:
            return pa.string()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRollbackTo:
    """The task: gives a source's table the schema of an earlier version. `commit`: the mode of the commit."""

    location: Location
    commit: CommitMode
    version: int
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        return self._report(plan_schema_rollback(self.location.table(), self.version))

    def run(self) -> Report:
        """See `Task`."""
        location = self.location
        planned = plan_schema_rollback(location.table(), self.version)
        check_unused(planned)
        mode = location.settle_commit_mode(self.commit, open_store(location.platform))
        became = roll_back_schema(location.table(commit=mode), planned)
        done = f"version {became} has the earlier schema; these columns are removed from the table"
        return self._report(planned, done, became)

    def _report(self, planned: SchemaRollback, done: str = "", became: int | None = None) -> Report:
        names, more = planned.columns[:COLUMNS_SHOWN], len(planned.columns) - COLUMNS_SHOWN
        shown = f": {', '.join(map(repr, names))}" if names else ""
        lines = [
            f"version {self.version} lacks {len(planned.columns)} columns of the present schema{shown}"
            + (f" and {more} more" if more > 0 else "")
        ]
        lines += [
            f"{path!r} has values from {', '.join(map(repr, keys))}" for path, keys in planned.in_use.items()
        ]
        document = {"version": self.version, "columns": planned.columns, "in_use": dict(planned.in_use)}
        return Report(lines=(*lines, done) if done else tuple(lines), document=document | {"became": became})
