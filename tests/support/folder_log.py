"""A Delta table in a folder. Tests write the table's log, and three other engines read the table."""

import datetime as dt
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.table.delta import checkpoint
from s3notify_platform.table.delta.actions import Add, LogVersion, MetaData, Remove
from s3notify_platform.table.delta.checkpoint import Checkpoint
from s3notify_platform.table.delta.metadata import delta_schema, raised
from s3notify_platform.table.delta.statistics import add_of, hidden, without_nan
from s3notify_platform.table.delta.vectors import decode, encode, path_of
from s3notify_platform.table.layout import TableLayout

LAYOUT = TableLayout(prefix="t/")
TABLE = "11111111-2222-3333-4444-555555555555"
LINEAGE = {"_slot": pa.int32(), "_key": pa.string(), "_etag": pa.string(), "_offset": pa.int64()}
Row = Mapping[str, Any]


def spark_schema(**columns: Any) -> str:
    """Spark's schema JSON of these columns."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


@dataclass(kw_only=True)
class FolderLog:
    """The table, and its expected `rows`. Deletion vectors hide withdrawn rows; packs are not rewritten."""

    folder: Path
    schema: str
    vectors: bool = False
    statistics: bool = True
    version: int = -1
    state: Checkpoint = field(init=False)
    packs: dict[str, list[Row]] = field(default_factory=dict)
    files: int = 0

    def __post_init__(self) -> None:
        wanted = delta_schema(self.schema, vectors=self.vectors)
        metadata = MetaData(id=TABLE, schema=wanted.schema, created_ms=1, configuration=wanted.properties)
        self.state = Checkpoint(protocol=wanted.protocol, metadata=metadata)
        self.commit(first=True)

    @property
    def uri(self) -> str:
        return str(self.folder)

    @property
    def rows(self) -> list[Row]:
        """The rows that are not withdrawn, in no order."""
        fields = json.loads(self.state.metadata.schema)["fields"]
        return [_filled(row, fields) for rows in self.packs.values() for row in rows if row is not None]

    def put(self, path: str, body: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        assert not target.exists()
        target.write_bytes(body)

    def pack(self, rows: Iterable[Row], kinds: dict[str, pa.DataType], name: str | None = None) -> Add:
        """A new file of these rows, with several row groups."""
        self.files += 1
        listed = [{"_etag": "e", "_offset": n} | row for n, row in enumerate(rows)]
        table = pa.Table.from_pylist(listed, schema=pa.schema(LINEAGE | kinds))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=max(3, table.num_rows // 4), compression="zstd")
        body = sink.getvalue().to_pybytes()
        path = LAYOUT.pack_path(name or f"p{self.files}")
        self.put(LAYOUT.file(path).removeprefix(LAYOUT.prefix), body)
        self.packs[path] = table.to_pylist()
        found = add_of(
            path,
            pq.ParquetFile(pa.BufferReader(body)).metadata,
            size=len(body),
            modified_ms=1,
            since=self.version + 1,
            until=self.version + 1,
            no_nan=without_nan(table),
        )
        return found if self.statistics else replace(found, stats=json.dumps({"numRecords": found.rows}))

    def add(self, rows: Iterable[Row], kinds: dict[str, pa.DataType], name: str | None = None) -> Add:
        """Commits a version with one more file."""
        found = self.pack(rows, kinds, name)
        self.commit(adds=[found])
        return found

    def remove(self, *adds: Add) -> None:
        """Commits a version that removes these files."""
        for each in adds:
            del self.packs[each.path]
        self.commit(removes=[each.removed(2) for each in adds])

    def hide(self, hides: Mapping[str, Iterable[int]]) -> None:
        """Commits a version that hides more rows: these rows of these files."""
        by_path = {each.path: each for each in self.state.adds}
        whole = {}
        for path, rows in hides.items():
            live = by_path[path]
            whole[path] = {*rows}
            if live.vector is not None:
                assert live.vector.storage == "i", "this helper merges only small vectors"
                whole[path] |= set(decode(live.vector, rows=live.rows, where=path))
        file = UUID(int=self.version + 1)
        found = encode(whole, file=file)
        if found.body is not None:
            self.put(path_of(file), found.body)
        for path, rows in whole.items():
            shown: list[Any] = self.packs[path]
            self.packs[path] = [None if n in rows else row for n, row in enumerate(shown)]
        self.commit(
            adds=[hidden(by_path[path], vector) for path, vector in found.vectors.items()],
            removes=[by_path[path].removed(2) for path in found.vectors],
        )

    def grow(self, schema: str) -> None:
        """Commits a version that has this schema and adds no file."""
        wanted = delta_schema(schema, vectors=self.vectors)
        metadata = replace(self.state.metadata, schema=wanted.schema, configuration=wanted.properties)
        self.state = replace(
            self.state, metadata=metadata, protocol=raised(self.state.protocol, wanted.protocol)
        )
        self.commit(first=True)

    def commit(
        self, *, adds: Sequence[Add] = (), removes: Sequence[Remove] = (), first: bool = False
    ) -> None:
        """Commits the next version. `first`: True if the version has the schema and the protocol."""
        self.version += 1
        number = 2**62 + self.version * 7919 % 1000  # this makes the numbers in a file fall and rise
        version = LogVersion(
            number=number,
            table=TABLE,
            created_ms=self.version + 1,
            adds=tuple(adds),
            removes=tuple(removes),
            metadata=self.state.metadata if first else None,
            protocol=self.state.protocol if first else None,
            note={"slots": {"1": 2}},
        )
        assert LogVersion.loads(version.dumps(), where="").dumps() == version.dumps()
        self.put(LAYOUT.version(self.version).removeprefix(LAYOUT.prefix), version.dumps())
        gone = {each.id for each in removes}
        live = [each for each in self.state.adds if each.id not in gone]
        self.state = replace(
            self.state,
            adds=(*live, *adds),
            removes=(*self.state.removes, *removes),
            txns={TABLE: number},
        )

    def checkpoint(self, *, cut: bool) -> None:
        """Writes a checkpoint of the newest version. With `cut`, also removes the files of all versions, including the
        newest one.
        """
        body, last = checkpoint.encode(self.state, version=self.version)
        self.put(LAYOUT.checkpoint(self.version).removeprefix(LAYOUT.prefix), body)
        (self.folder / "_delta_log/_last_checkpoint").write_bytes(last.dumps())
        if cut:
            for version in range(self.version + 1):
                (self.folder / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)


def _filled(row: Row, fields: list[dict[str, Any]]) -> Row:
    """The row with all columns of the schema, nested columns included. A column that the row lacks is null."""

    def value(found: Any, kind: Any) -> Any:
        nested = isinstance(kind, dict) and kind["type"] == "struct" and found is not None
        return _filled(found, kind["fields"]) if nested else found

    return {each["name"]: value(row.get(each["name"]), each["type"]) for each in fields}


OPS: dict[str, Any] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Where:
    """A predicate `column op value`. If the value is None, `=` means "is null", and `!=` means "is not null"."""

    column: str
    op: str
    value: Any

    def holds(self, row: Row) -> bool:
        found = row
        for part in self.column.split("."):
            found = found[part] if found is not None else None
        if self.value is None:
            return (found is None) == (self.op == "=")
        return found is not None and OPS[self.op](found, self.value)

    def sql(self, *, duck: bool) -> str:
        name = ".".join(f'"{part}"' for part in self.column.split("."))
        if not duck and "." in self.column:
            first, *others = self.column.split(".")
            name = f'"{first}"' + "".join(f"['{part}']" for part in others)
        if self.value is None:
            return f"{name} IS {'' if self.op == '=' else 'NOT '}NULL"
        return f"{name} {self.op} {_literal(self.value, duck=duck)}"

    def polars(self) -> pl.Expr:
        first, *others = self.column.split(".")
        found = pl.col(first)
        for part in others:
            found = found.struct.field(part)
        if self.value is None:
            return found.is_null() if self.op == "=" else found.is_not_null()
        expression: pl.Expr = OPS[self.op](found, pl.lit(self.value))
        return expression


def _literal(value: Any, *, duck: bool) -> str:
    found = str(value)
    match value:
        case str():
            quoted = value.replace("'", "''")
            found = f"'{quoted}'"
        case dt.datetime() if duck:
            kind = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMPTZ"
            found = f"{kind} '{value.isoformat(sep=' ')}'"
        case dt.datetime():
            zone = "None" if value.tzinfo is None else 'Some("UTC")'
            found = f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, {zone})')"
        case dt.date():
            found = f"DATE '{found}'"
        case Decimal():
            scale = len(f"{value:f}".partition(".")[2])
            digits = len(value.as_tuple().digits)
            found = f"CAST('{value:f}' AS DECIMAL({max(digits, scale) + 1}, {scale}))"
        case float():
            found = f"CAST('{value!r}' AS DOUBLE)"
    return found


def normal(rows: Iterable[Row]) -> list[Row]:
    """Rows in a fixed order, with Python's types for values, so that engines can be compared."""

    def value(found: Any) -> Any:
        if isinstance(found, dt.datetime) and found.tzinfo is not None:
            return found.astimezone(dt.UTC)
        if isinstance(found, float) and math.isnan(found):
            return "NaN"
        if isinstance(found, list) and found and all(isinstance(item, tuple) for item in found):
            return dict(found)
        return found

    cleaned = [{name: value(row[name]) for name in sorted(row)} for row in rows]
    return sorted(cleaned, key=lambda row: (row["_slot"], row["_key"], row["_offset"]))


Reader = Callable[[Where | None], list[Row]]


def at_once(uri: str, *, but: str = "") -> Iterator[tuple[str, Reader]]:
    """Each engine's reader of the newest version."""
    for name, engine in ENGINES.items():
        if name != but:
            with contextmanager(engine)(uri) as read:
                yield name, read


def by_deltalake(uri: str) -> Iterator[Reader]:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(uri))

    def read(where: Where | None) -> list[Row]:
        clause = f" WHERE {where.sql(duck=False)}" if where else ""
        return normal(pa.table(query.execute(f"SELECT * FROM t{clause}").read_all()).to_pylist())

    yield read


def by_polars(uri: str) -> Iterator[Reader]:
    def read(where: Where | None) -> list[Row]:
        frame = pl.scan_delta(uri)
        return normal((frame.filter(where.polars()) if where else frame).collect().rows(named=True))

    yield read


def by_duckdb(uri: str) -> Iterator[Reader]:
    with duckdb.connect() as connection:
        path = next(Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension"))
        connection.execute(f"LOAD '{path}'")
        connection.execute("SET TimeZone = 'UTC'")

        def read(where: Where | None) -> list[Row]:
            clause = f" WHERE {where.sql(duck=True)}" if where else ""
            found = connection.execute(f"SELECT * FROM delta_scan('{uri}'){clause}").to_arrow_table()
            return normal(found.to_pylist())

        yield read


ENGINES: dict[str, Callable[[str], Iterator[Reader]]] = {
    "deltalake": by_deltalake,
    "polars": by_polars,
    "duckdb": by_duckdb,
}
