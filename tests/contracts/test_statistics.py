"""Statistics of tables after batches, merges, vectors, rollbacks and erasures: which files do other engines skip?

Every answer to a predicate must have all matching rows, and must not need a file without matching rows. So the
predicate is evaluated on a copy of the table that lacks the files without matching rows.
"""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.ports import StoredObject, list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.check import check_table
from s3notify_platform.table.commit import CHECKPOINT_EVERY, Committed
from s3notify_platform.table.delta.statistics import STATISTICS_COLUMNS
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import described, grown, schema_of
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.support.folder_log import LINEAGE, Row, Where, at_once, normal
from tests.support.sources import source_of

SLOTS = 3
ROWS = 6
KINDS = {
    "id": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "amount": pa.decimal128(12, 2),
    "large": pa.decimal128(30, 4),
    "f": pa.float64(),
    "odd": pa.float64(),
    "text": pa.string(),
    "day": pa.date32(),
    "place": pa.struct({"x": pa.string(), "in": pa.struct({"n": pa.int32()})}),
    "tags": pa.list_(pa.string()),
    "yes": pa.bool_(),
    "void": pa.string(),
}
MORE = {f"c{number}": pa.int32() for number in range(STATISTICS_COLUMNS)}
"""More columns, so many that the table has no statistics of the last columns."""
SCHEMA = pa.schema(LINEAGE | KINDS | MORE)
EPOCH = dt.datetime(2026, 1, 1)
Objects = Mapping[str, Sequence[int] | None]
"""The changes of a batch: for each object its ids, or None if the object is deleted."""


def row(key: str, offset: int, number: int) -> dict[str, Any]:
    """The record with this id. Most of its values rise with the id, and some are null."""
    at = EPOCH + dt.timedelta(hours=number, microseconds=number)
    rare = None if number % 4 == 0 else number
    return {
        "_slot": slot_of(key, SLOTS),
        "_key": key,
        "_etag": "e",
        "_offset": offset,
        "id": number,
        "at": at.replace(tzinfo=dt.UTC),
        "local": at,
        "amount": None if rare is None else Decimal(number) / 4,
        "large": Decimal(number) * 10**15 + Decimal("0.0001"),
        "f": None if rare is None else number / 3,
        "odd": float("nan") if number % 5 == 0 else number / 3,
        "text": f"{number:06}, and then a text that is longer than a bound may be, like {number}",
        "day": at.date(),
        "place": None if rare is None else {"x": f"x{number:06}", "in": {"n": number}},
        "tags": ["a"] if rare else None,
        "yes": number % 2 == 0,
        "void": None,
        **dict.fromkeys(MORE, number),
    }


@dataclass(kw_only=True)
class Lake:
    """A table over a bucket in memory, and the ids in each of its objects."""

    vectors: bool = False
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    objects: dict[str, Sequence[int]] = field(default_factory=dict)
    states: dict[str, ObjectState] = field(default_factory=dict)
    copies: int = 0

    def __post_init__(self) -> None:
        overwrites = "vectors" if self.vectors else "rewrite"
        bucket = S3Config(bucket="b")
        self.source = source_of(
            bucket=bucket, name="orders", slots=SLOTS, commit="native", overwrites=overwrites
        )
        self.table = self.source.table(store=self.store)
        self.source.open_table(store=self.store)

    @property
    def snapshot(self) -> Snapshot:
        found = self.table.newest()
        assert isinstance(found, Snapshot)
        assert check_table(self.table, found).ok
        return found

    @property
    def rows(self) -> list[Row]:
        return [row(key, n, number) for key, ids in self.objects.items() for n, number in enumerate(ids)]

    def batch(self, objects: Objects) -> None:
        """Commits a version with these changes."""
        base = self.snapshot
        label = base.version + 1
        new = [row(key, n, number) for key, ids in objects.items() for n, number in enumerate(ids or ())]
        new.sort(key=lambda each: (each["_slot"], each["_key"], each["_offset"]))
        packs, files = self.table.data.staged(
            write([pa.Table.from_pylist(new, schema=SCHEMA)]) if new else (), label=label
        )
        for name, body in files.items():
            self.store.put(name, body)
        columns = from_arrow_schema(pa.schema(KINDS | MORE)).json()
        schema = grown(schema_of(base.metadata), source=columns, rows=columns, inferred=False)
        metadata, protocol = described(
            schema, created_ms=base.metadata.created_ms, table=base.table, vectors=self.vectors
        )
        slots: dict[Any, SlotRound] = {}
        for key, ids in objects.items():
            gone = ids is None
            state = ObjectState(
                key=key,
                etag="" if gone else "e",
                size=0 if gone else 1,
                rows=len(ids or ()),
                since=0 if gone else label,
                until=0 if gone else label,
                gone=gone,
            )
            of = slots.setdefault(slot_of(key, SLOTS), SlotRound(changes={}, before={}, label=label))
            of.changes[key] = state  # type: ignore[index]
            if key in self.states:
                of.before[key] = self.states[key]  # type: ignore[index]
            self.states[key] = state
            self.objects[key] = ids or ()
        change = RoundChange(
            base=base,
            slots=slots,
            table=self.table,
            clock=SYSTEM_CLOCK,
            rows=packs,
            metadata=metadata,
            protocol=protocol,
        )
        assert isinstance(self.table.commit(change, base), Committed)
        for key in [key for key, ids in objects.items() if ids is None]:
            del self.states[key], self.objects[key]

    def copied(self, folder: Path, needed: Callable[[Sequence[Row]], bool] = bool) -> Path:
        """Copies the table to a new folder, with only the data files of the newest version that have needed rows."""
        self.copies += 1
        target, layout = folder / f"{self.copies}", self.source.location.layout
        live = {layout.file(pack.path): pack for pack in self.snapshot.packs.values()}
        for meta in list_all(self.store, layout.prefix):
            if "/data/" in meta.key and meta.key.endswith(".parquet"):
                if (pack := live.get(meta.key)) is None:
                    continue
                groups = self.table.data.opened(pack).groups()
                if not needed([each for group in groups for each in group.to_pylist()]):
                    continue
            found = self.store.get(meta.key)
            assert isinstance(found, StoredObject)
            file = target / meta.key.removeprefix(layout.prefix)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(found.body)
        return target


def answers_are_right(lake: Lake, folder: Path, wheres: Iterable[Where] = ()) -> None:
    """Checks all rows, and the rows of each predicate, in each engine."""
    where = str(lake.copied(folder))
    wanted = normal(lake.rows)
    for name, read in at_once(where):
        assert normal(read(None)) == wanted, name
        for each in wheres:
            assert read(each) == normal(filter(each.holds, lake.rows)), (name, each)


def files_are_skipped(lake: Lake, folder: Path, where: Where, *, but: str = "") -> None:
    """Checks that each engine (except the engine `but`) needs only the files with matching rows for its answer."""

    def may_hold(rows: Sequence[Row]) -> bool:
        return any(map(where.holds, rows))

    files = len(lake.snapshot.packs)
    place = lake.copied(folder, may_hold)
    left = len([*(place / "data").glob("*.parquet")])
    assert left < files, "the predicate would need all files"
    wanted = normal(filter(where.holds, lake.rows))
    for name, read in at_once(str(place), but=but):
        assert read(where) == wanted, (name, where)


NOT_BY = {
    "at": "duckdb",
    "local": "duckdb",
    "f": "polars",
    "place.in.n": "deltalake",
    "odd": "all",
}
"""By column: the engine that skips no file by the column's values. `all`: no engine skips a file.

If a column has NaN, no engine may skip a file by this column.
"""


EDGES = row("k3-2", 0, 3013) | {"place.x": "x003013", "place.in.n": 3013}
for _name in ("place", "tags", "yes", "void", "_etag", "_offset", "_slot", *[*MORE][:5], *[*MORE][6:]):
    del EDGES[_name]


def wheres_of(number: int) -> list[Where]:
    """Predicates whose bounds are the values of the record with this id."""
    values = row("k", 0, number)
    found = [Where(column, op, values[column]) for column in ("id", "at", "text") for op in ("=", ">=")]
    found += [Where("place.x", "=", f"x{number:06}"), Where("amount", "<", values["amount"])]
    return [*found, Where("amount", "=", None), Where("void", "!=", None)]


def filled(*, vectors: bool) -> Lake:
    """Batches of rising ids, so that files have different values.

    The batches have too few rows to be merged, except for three big batches.
    """
    lake = Lake(vectors=vectors)
    for number in range(4):
        first = number * 1000
        lake.batch({f"k{number}-{n}": range(first + n * ROWS, first + (n + 1) * ROWS) for n in range(5)})
    return lake


@pytest.mark.parametrize("vectors", [False, True])
def test_statistics_stay_right_over_the_life_of_a_table(tmp_path: Path, vectors: bool) -> None:
    """If a batch, a merge, a checkpoint, a rollback or an erasure wrote wrong statistics, engines would skip files
    with matching rows, and queries would miss rows. If the statistics were lost, queries would read needless files.
    """
    lake = filled(vectors=vectors)
    edges = wheres_of(1007)
    answers_are_right(lake, tmp_path, edges)
    files_are_skipped(lake, tmp_path, Where("id", "=", 1007))

    lake.batch({"k1-1": range(9000, 9003), "k0-0": None, "k2-2": range(2012, 2015)})
    answers_are_right(lake, tmp_path, wheres_of(9001))
    files_are_skipped(lake, tmp_path, Where("id", "=", 9001))
    files_are_skipped(lake, tmp_path, Where("large", ">=", row("k", 0, 9000)["large"]))
    before, kept, states = lake.snapshot.version, dict(lake.objects), dict(lake.states)

    for number in range(CHECKPOINT_EVERY + 1):  # causes merges, and a checkpoint
        lake.batch({f"m{number}": range(20_000 + number * 10, 20_004 + number * 10)})
    assert len(lake.snapshot.packs) < CHECKPOINT_EVERY
    answers_are_right(lake, tmp_path, wheres_of(20_101))
    files_are_skipped(lake, tmp_path, Where("id", ">=", 20_200))
    files_are_skipped(lake, tmp_path, Where("id", "<", 500))

    assert isinstance(roll_back(lake.table, before), Committed)
    lake.objects, lake.states = kept, states
    answers_are_right(lake, tmp_path, edges)
    files_are_skipped(lake, tmp_path, Where("id", "=", 9001))

    key = "k3-2"
    lake.batch({key: None})
    erase(lake.table, slot_of(key, SLOTS), key)
    answers_are_right(lake, tmp_path, [*edges, *wheres_of(3013)])
    compact(lake.table)
    answers_are_right(lake, tmp_path, edges)


@pytest.mark.parametrize("column", [*sorted(EDGES.keys() - NOT_BY.keys()), *NOT_BY])
def test_engines_skip_files_by_values_of_columns_of_each_type(tmp_path: Path, column: str) -> None:
    """Without usable bounds for a type, a query with a predicate on a column of the type would read every file of
    the table.
    """
    lake = filled(vectors=False)
    value = EDGES[column]
    wheres = [Where(column, "=", value), Where(column, ">=", value), Where(column, "<", value)]
    if NOT_BY.get(column) == "all":
        answers_are_right(lake, tmp_path, wheres[:1])
        return
    answers_are_right(lake, tmp_path, wheres)
    for where in wheres[:2]:
        files_are_skipped(lake, tmp_path, where, but=NOT_BY.get(column, ""))


def test_every_file_of_the_newest_version_has_statistics(tmp_path: Path) -> None:
    """If a file had no statistics, no engine could skip this file, so each query would read the file. Without
    statistics of the fields inside structs, predicates on such fields would skip no file.
    """
    lake = filled(vectors=False)
    for number in range(12):
        lake.batch({f"m{number}": [5000 + number], f"k1-{number % 5}": [number]})
    compact(lake.table)
    lake.batch({"n": range(10)})
    assert len(lake.snapshot.packs) > 1
    for pack in lake.snapshot.packs.values():
        rows = [each for group in lake.table.data.opened(pack).groups() for each in group.to_pylist()]
        stats = json.loads(pack.stats or "")
        assert stats["numRecords"] == len(rows)
        assert leaves(stats["nullCount"]) == leaves(stats["minValues"]) + 3, (
            "the columns yes, void and odd have no bounds"
        )
        assert leaves(stats["nullCount"]) == STATISTICS_COLUMNS
        assert stats["minValues"]["id"] == min(each["id"] for each in rows)
        assert stats["maxValues"]["id"] == max(each["id"] for each in rows)
        inner = [(each["place"] or {}).get("in") for each in rows]
        assert stats["nullCount"]["place"]["in"]["n"] == inner.count(None)


def leaves(tree: Mapping[str, Any]) -> int:
    return sum(leaves(each) if isinstance(each, Mapping) else 1 for each in tree.values())
