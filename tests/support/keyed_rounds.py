"""Rounds (`log_rounds`) whose rows have a business key, a time, and a mark of deletion. The module also has derived
tables of these rounds.

The number of a row determines all its columns. With enough rows, several rows have the same key, and there are ties,
nulls and deletions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.check import check_table
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.clustered.clustered_rows import ClusteredRows
from s3notify_platform.table.follow import FollowingTable
from s3notify_platform.table.follow_jobs import InProcess
from s3notify_platform.table.known import KnownRecord
from s3notify_platform.table.latest.latest_definition import Latest
from s3notify_platform.table.latest.newest_rows import NewestRows
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.log_table import LogTable, table_of
from s3notify_platform.table.open_table import TableName
from s3notify_platform.table.pinned_schema import NO_SCHEMA, TableSchema, described
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.round import RoundChange
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.states.state_cache import StateCache
from tests.support.log_rounds import SCHEMA, SMALL, Rounds
from tests.support.log_tables import IDENTITY

NEWEST, CLUSTERED = "newest", "clustered"
"""The names of the derived tables."""

COLUMNS = pa.schema(
    [
        *SCHEMA,
        pa.field("id", pa.string()),
        pa.field("at", pa.int64()),
        pa.field("gone", pa.bool_()),
        pa.field("_modified", pa.timestamp("us", "UTC")),
    ]
)

SPARK = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (
            ("n", "long"), ("id", "string"), ("at", "long"), ("gone", "boolean"), ("_modified", "timestamp"),
        )
    ],
}  # fmt: skip

LATEST = Latest(
    key=("id",), order_by=("at",), deleted_when="gone", deleted=lambda rows: rows.column("gone"), slots=7
)


ORDER = Clustered(columns=("id", "at"), file_bytes=6000)


def values_of(n: int) -> dict[str, Any]:
    """The values of the row with this number."""
    return {
        "id": None if n % 11 == 0 else f"k{n % 4}",
        "at": None if n % 13 == 0 else n // 4 % 7,
        "gone": n % 5 == 0,
        "_modified": None if n % 17 == 0 else datetime.fromtimestamp(n // 20 % 3, UTC),
    }


@dataclass(kw_only=True)
class KeyedRounds(Rounds):
    """See the module docstring."""

    def created(self) -> dict[str, Any]:
        """Version 0 has the columns of the lineage, as in a real table."""
        return {"first": described(NO_SCHEMA, created_ms=1)}

    def planned(self, *args: Any, **kwargs: Any) -> RoundChange:
        """See `Rounds.planned`."""
        found = super().planned(*args, **kwargs)
        found.metadata, found.protocol = described(
            TableSchema(rows=json.dumps(SPARK)), created_ms=1, table=found.base.table, vectors=self.vectors
        )
        return found

    def shaped(self, rows: pa.Table) -> pa.Table:
        """These rows, with all columns added."""
        more = [values_of(n) for n in rows["n"].to_pylist()]
        for name in COLUMNS.names[len(SCHEMA) :]:
            column = pa.array([each[name] for each in more], COLUMNS.field(name).type)
            rows = rows.append_column(COLUMNS.field(name), column)
        return rows

    def rows(self, snapshot: Snapshot | None = None) -> list[dict[str, Any]]:
        """The rows of the table."""
        found = snapshot or self.table.opened()
        batches = read_slots(self.store, self.whole.layout, found.packs.values(), None, COLUMNS)
        return [row for batch in batches for row in batch.to_pylist()]


def other_table(
    name: str,
    store: ObjectStore,
    *,
    clock: Clock = SYSTEM_CLOCK,
    vectors: bool = False,
    max_run_seconds: float = 21600.0,
) -> LogTable:
    """The table with this name beside the table of `KeyedRounds`."""
    known = KnownRecord(
        records=ObjectRecordStore(store, "", clock=clock), key=name, where="bucket 'b'", clock=clock
    )
    return table_of(
        store, TableLayout(prefix=f"{name}/"), known, NativeCommit(store, clock=clock), clock=clock, at_once=1,
        cache=StateCache(), vectors=vectors, sizes=SMALL, max_run_seconds=max_run_seconds,
    )  # fmt: skip


def following(
    name: str,
    source: Rounds,
    store: ObjectStore | None = None,
    *,
    latest: Latest = LATEST,
    clustered: Clustered = ORDER,
    **more: Any,
) -> FollowingTable:
    """A derived table of the table of `source`. `store`: the store for reads of both tables, and for commits."""
    store = store or source.store
    table = other_table(
        name,
        store,
        clock=source.clock,
        vectors=source.vectors,
        max_run_seconds=source.whole.committer.max_run_seconds,
    )
    reading = type(source)(store=store, clock=source.clock, vectors=source.vectors, more=source.more).whole
    jobs = InProcess(reading, table, clock=source.clock)
    kinds = {
        NEWEST: NewestRows(latest=latest, jobs=jobs),
        CLUSTERED: ClusteredRows(clustered=clustered, jobs=jobs),
    }
    return FollowingTable(
        source=reading,
        table=table,
        kind=kinds[name],
        vectors=source.vectors,
        name=TableName(source="orders", command=lambda *_: "`s3notify table forget orders`"),
        identity=IDENTITY,
        clock=source.clock,
        **more,
    )


Newest = dict[str, tuple[int, str, int]]
"""By key: the number of the newest row, the row's object, and the row's offset."""


def window(rows: Sequence[dict[str, Any]]) -> Newest:
    """The expected newest rows, computed as a window over all rows."""
    best: dict[str, tuple[Any, dict[str, Any]]] = {}
    for row in rows:
        if row["id"] is None:
            continue
        modified = row["_modified"]
        rank = (
            (row["at"] is not None, row["at"] or 0),
            (modified is not None, modified.timestamp() if modified else 0),
            row["_key"],
            row["_offset"],
        )
        if row["id"] not in best or best[row["id"]][0] < rank:
            best[row["id"]] = rank, row
    return {key: (row["n"], row["_key"], row["_offset"]) for key, (_, row) in best.items() if not row["gone"]}


def shown(table: LogTable) -> Newest:
    """The newest rows. The table is checked first."""
    found = table.newest()
    assert isinstance(found, Snapshot)
    checked = check_table(table, found)
    assert checked.ok, checked.problems
    columns = arrow_schema(found.metadata.schema)
    batches = read_slots(table.reader.store, table.layout, found.packs.values(), None, columns)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len({row["_key"] for row in rows}) == len(rows), "one row for each key"
    for row in rows:
        assert {name: row[name] for name in ("id", "at", "gone", "_modified")} == values_of(row["n"])
    return {row["_key"]: (row["n"], row["_source_key"], row["_source_offset"]) for row in rows}


def clustered_rows(table: LogTable) -> list[dict[str, Any]]:
    """The rows of a clustered table, in no order. The table, and the order of rows in each file, are checked."""
    found = table.newest()
    assert isinstance(found, Snapshot)
    checked = check_table(table, found)
    assert checked.ok, checked.problems
    rows = []
    for pack in found.packs.values():
        of_file = [row for group in table.data.opened(pack).groups() for row in group.to_pylist()]
        places = [tuple((row[name] is None, row[name] or "") for name in ("id",)) for row in of_file]
        assert places == sorted(places)
        rows += of_file
    return rows
