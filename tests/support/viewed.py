"""A table with a Delta view, made by hand over any store, and three other engines that read it."""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import polars as pl
import pyarrow as pa

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.ingest.slot_files import encoded
from s3notify_platform.ports import ObjectStore, StoredObject, Written, list_all
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.slots import Slot
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.commit import SlotCommit, SlotTable, TableFile
from s3notify_platform.table.delta.view import DeltaView
from s3notify_platform.table.layout import Generation, TableLayout
from s3notify_platform.table.reader import read_slots
from s3notify_platform.table.schema import SchemaRegistry, TableSchema

LAYOUT = TableLayout(prefix="t/table/")
Row = Mapping[str, Any]


def spark_schema(**columns: Any) -> str:
    """Spark's schema JSON of these columns."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


@dataclass(kw_only=True)
class Viewed:
    """One table and its view. Files hold what they are given; `_key` names the file."""

    store: ObjectStore
    layout: TableLayout = LAYOUT
    clock: Clock = SYSTEM_CLOCK
    parallelism: int = 1
    table: SlotTable = field(init=False)
    schemas: SchemaRegistry = field(init=False)
    view: DeltaView = field(init=False)
    pinned: TableSchema | None = None

    def __post_init__(self) -> None:
        commits = NativeCommit(self.store, clock=self.clock)
        self.table = SlotTable(self.store, self.layout, commits, clock=self.clock)
        self.schemas = SchemaRegistry(self.store, self.layout, commits)
        self.view = DeltaView(
            self.table, self.schemas, commits, name="orders", clock=self.clock, parallelism=self.parallelism
        )

    def pin(self, rows: str) -> None:
        self.pinned = self.schemas.pin(source="{}", rows=rows, inferred=False)

    def file(self, slot: int, columns: pa.Table) -> TableFile:
        """A new data file, of these columns behind the lineage."""
        name, count = unique_name(self.clock), columns.num_rows
        lineage = {
            "_key": pa.array([f"raw/{name}"] * count, pa.string()),
            "_etag": pa.array(["e"] * count, pa.string()),
            "_offset": pa.array(range(count), pa.int64()),
        }
        whole = pa.table(lineage | {n: columns[n] for n in columns.column_names})
        body = encoded(whole)
        self.store.put(self.layout.data(Slot(slot), name), body)
        return TableFile(name=name, rows=count, bytes=len(body))

    def commit(self, slot: int, files: Iterable[TableFile]) -> SlotCommit:
        """The next generation of a slot, with exactly these files."""
        head = self.table.head(Slot(slot))
        made = SlotCommit(
            slot=Slot(slot),
            generation=Generation((head.generation if head else 0) + 1),
            commit_id=unique_name(self.clock),
            parent_id=head.commit_id if head else None,
            batch="b",
            created_ms=self.clock.wall_ms(),
            schema=self.pinned.generation if self.pinned else 0,
            files=tuple(files),
        )
        assert isinstance(self.table.commit(made.staged(), planned_at=self.clock.monotonic()), Written)
        return made

    def append(self, slot: int, columns: pa.Table) -> SlotCommit:
        head = self.table.head(Slot(slot))
        return self.commit(slot, [*(head.files if head else ()), self.file(slot, columns)])

    def rows(self, slots: Iterable[int], generations: Mapping[Slot, Generation] | None = None) -> list[Row]:
        """What our own reader reads."""
        found: list[Row] = []
        names = [f["name"] for f in json.loads(self.pinned.rows)["fields"]] if self.pinned else []
        for part in read_slots(self.table, map(Slot, slots), generations=generations):
            empty = dict.fromkeys(names)
            found += [{"slot": int(part.slot)} | empty | row for row in part.table.to_pylist()]
        return normal(found)

    def log_objects(self) -> dict[str, bytes]:
        """The log by name."""
        found = {}
        for meta in list_all(self.store, self.layout.log):
            stored = self.store.get(meta.key)
            assert isinstance(stored, StoredObject)
            found[meta.key.removeprefix(self.layout.log)] = stored.body
        return found

    def copied_to(self, folder: Path) -> str:
        """The view's place, copied to a disk."""
        for meta in list_all(self.store, f"{self.layout.view}/"):
            stored = self.store.get(meta.key)
            assert isinstance(stored, StoredObject)
            target = folder / meta.key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(stored.body)
        return str(folder / self.layout.view)


def normal(rows: Iterable[Row]) -> list[Row]:
    """In an order of their own, and values as Python has them, whoever read them."""

    def value(found: Any) -> Any:
        if isinstance(found, dt.datetime) and found.tzinfo is not None:
            return found.astimezone(dt.UTC)
        if isinstance(found, list) and found and all(isinstance(item, tuple) for item in found):
            return dict(found)
        return found

    cleaned = [{name: value(row[name]) for name in sorted(row)} for row in rows]
    return sorted(cleaned, key=lambda row: (row["slot"], row["_key"], row["_offset"]))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a view stands: a folder, or a bucket and how to reach it."""

    uri: str
    config: S3Config | None = None

    @property
    def options(self) -> dict[str, str]:
        if self.config is None:
            return {}
        return {
            "AWS_ENDPOINT_URL": str(self.config.endpoint_url),
            "AWS_ACCESS_KEY_ID": str(self.config.access_key_id),
            "AWS_SECRET_ACCESS_KEY": str(self.config.secret_access_key),
            "AWS_REGION": self.config.region,
            "AWS_ALLOW_HTTP": "true",
        }


def by_delta_rs(place: Place, version: int | None = None) -> list[Row]:
    table = deltalake.DeltaTable(place.uri, version=version, storage_options=place.options or None)
    query = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t")
    return normal(pa.table(query.read_all()).to_pylist())


def by_polars(place: Place, version: int | None = None) -> list[Row]:
    frame = pl.scan_delta(place.uri, version=version, storage_options=place.options or None).collect()
    return normal(frame.rows(named=True))


def by_duckdb(place: Place, version: int | None = None) -> list[Row]:
    """With the extensions that PyPI has: DuckDB checks their signatures."""
    with duckdb.connect() as connection:
        for module in (duckdb_extension_httpfs, duckdb_extension_delta):
            path = next(Path(module.__file__).parent.rglob("*.duckdb_extension"))
            connection.execute(f"LOAD '{path}'")
        if place.config is not None:
            host = str(place.config.endpoint_url).removeprefix("http://")
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{place.config.access_key_id}', ENDPOINT '{host}', "
                f"SECRET '{place.config.secret_access_key}', USE_SSL false, URL_STYLE 'path', "
                f"REGION '{place.config.region}')"
            )
        connection.execute("SET TimeZone = 'UTC'")
        at = f", version => {version}" if version is not None else ""
        found = connection.execute(f"SELECT * FROM delta_scan('{place.uri}'{at})").to_arrow_table()
    return normal(found.to_pylist())


ENGINES: dict[str, Callable[..., list[Row]]] = {
    "delta-rs": by_delta_rs,
    "polars": by_polars,
    "duckdb": by_duckdb,
}
