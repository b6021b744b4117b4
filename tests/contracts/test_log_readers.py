"""Logs in a folder, written by `table`, and read row by row by delta-rs, Polars and DuckDB's delta extension."""

import datetime as dt
import math
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from s3notify_platform.table.delta import checkpoint
from s3notify_platform.table.delta.actions import Add, LogVersion
from s3notify_platform.table.delta.metadata import objections
from tests.support.folder_log import (
    LINEAGE,
    TABLE,
    FolderLog,
    Row,
    Where,
    at_once,
    normal,
    spark_schema,
)

PLAIN = {"id": "long", "amount": "decimal(12,2)", "at": "timestamp"}
KINDS = {"id": pa.int64(), "amount": pa.decimal128(12, 2), "at": pa.timestamp("us", "UTC")}
LOCAL = {"at": "timestamp_ntz"}
ODD_KEYS = [
    "a",
    "raw/ä b.json",
    "n\new",
    "\U0001f600",
    "\U0010ffff" * 256,
    "'%41\\",
    "\x7f\x01",
    "\0",
    "a\0b",
]


def struct(**columns: str) -> dict[str, Any]:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return {"type": "struct", "fields": fields}


def rows(*ids: int, slot: int = 1, **more: Any) -> list[Row]:
    return [
        {
            "_slot": slot + n % 3,
            "_key": ODD_KEYS[n % len(ODD_KEYS)],
            "_offset": n,
            "id": n,
            "amount": None if n % 3 == 0 else Decimal(n) / 4,
            "at": dt.datetime(2026, 1, 1, microsecond=n, tzinfo=dt.UTC),
            **more,
        }
        for n in ids
    ]


def all_agree(log: FolderLog, *, but: str = "") -> None:
    wanted = normal(log.rows)
    for name, read in at_once(log.uri, but=but):
        assert read(None) == wanted, name
    table = deltalake.DeltaTable(log.uri)
    assert table.transaction_version(TABLE) == log.state.txns[TABLE]
    if not log.vectors and not but:
        assert normal(table.to_pyarrow_table().to_pylist()) == wanted


@pytest.mark.parametrize("cut", [False, True])
def test_every_engine_reads_the_rows_of_a_log(tmp_path: Path, cut: bool) -> None:
    """The log has removed packs, packs with fewer columns, and checkpoints. If an engine misread the log, its users
    would miss rows, or would see removed rows.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(**PLAIN))
    all_agree(log)
    first = log.add(rows(*range(7)), KINDS)
    second = log.add(rows(7, 8, slot=500), KINDS, "ü x%41")
    all_agree(log)
    log.grow(spark_schema(**PLAIN, place=struct(x="string"), Größe="double"))
    place = pa.struct({"x": pa.string()})
    log.add(rows(9, place={"x": "v"}, Größe=0.1), KINDS | {"place": place, "Größe": pa.float64()})
    all_agree(log)
    log.checkpoint(cut=cut)
    all_agree(log)
    log.remove(first)
    wider = struct(x="string", y="string")
    many = {"type": "array", "elementType": "string", "containsNull": True}
    log.grow(spark_schema(**PLAIN, place=wider, Größe="double", tags=many))
    place = pa.struct({"x": pa.string(), "y": pa.string()})
    kinds = KINDS | {"place": place, "tags": pa.list_(pa.string())}
    log.add(rows(10, 11, place={"x": None, "y": "w"}, tags=["a", None]), kinds)
    all_agree(log)
    log.remove(second)
    log.checkpoint(cut=cut)
    log.add(rows(12), KINDS)
    all_agree(log)


def test_engines_read_names_that_need_column_mapping(tmp_path: Path) -> None:
    """With a wrong mapping, an engine would show nulls in place of the columns' values, or would skip files with
    matching rows. Polars does not know the mapping, so Polars must report an error instead of wrong values.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(**PLAIN))
    log.add(rows(1, 2, slot=20), KINDS)
    columns = {"the id": "long", "s": struct(**{"x, y": "string"}), "at ntz": "timestamp_ntz"}
    log.grow(spark_schema(**PLAIN, **columns))
    kinds = KINDS | {
        "the id": pa.int64(),
        "s": pa.struct({"x, y": pa.string()}),
        "at ntz": pa.timestamp("us"),
    }
    more = {"s": {"x, y": "v"}, "at ntz": dt.datetime(2026, 1, 1)}
    log.add(rows(3, **{"the id": 7}, **more), kinds)
    log.add(rows(4, slot=40, **{"the id": 8}, **more), kinds)
    for cut in (False, True):
        all_agree(log, but="polars")
        for name, read in at_once(log.uri, but="polars"):
            for where in (Where("the id", "=", 8), Where("_slot", ">", 25), Where("s.x, y", "=", "w")):
                assert read(where) == normal(filter(where.holds, log.rows)), (name, where)
        log.checkpoint(cut=cut)
        log.add(rows(5), KINDS)
    with pytest.raises(Exception, match="columnMapping"):
        pl.scan_delta(log.uri).collect()


def test_engines_read_times_without_a_zone(tmp_path: Path) -> None:
    """Columns of times without a zone need a table feature. If the feature were missing after such a column was
    added, an engine could refuse the whole table.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(id="long"))
    log.add([{"_slot": 1, "_key": "a", "id": 1}], {"id": pa.int64()})
    log.grow(spark_schema(id="long", local="timestamp_ntz"))
    at = dt.datetime(2026, 1, 1, microsecond=1)
    log.add(
        [{"_slot": 1, "_key": "b", "id": 1, "local": at}], {"id": pa.int64(), "local": pa.timestamp("us")}
    )
    log.add([{"_slot": 1, "_key": "c", "id": 2}], {"id": pa.int64()})
    all_agree(log)
    log.checkpoint(cut=True)
    all_agree(log)


def test_engines_read_deletion_vectors(tmp_path: Path) -> None:
    """Deletion vectors are in the log, in files and in checkpoints, and some are extended.

    A predicate must return only rows that no vector deletes.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(**PLAIN), vectors=True)
    small = log.add(rows(*range(9)), KINDS)
    large = log.add(rows(*range(9, 2009), slot=50), KINDS)
    other = log.add(rows(*range(9, 2009), slot=90), KINDS)
    log.hide({small.path: [0, 8]})
    all_agree(log)
    log.hide({small.path: [3], large.path: range(0, 2000, 2), other.path: [n**2 for n in range(44)]})
    all_agree(log)
    log.hide({other.path: [n**2 for n in range(44)] + [n**2 + 1 for n in range(1, 44)]})
    stored = {each.path: each.vector.storage for each in log.state.adds if each.vector}
    assert stored == {small.path: "i", large.path: "u", other.path: "i"}
    all_agree(log)
    log.checkpoint(cut=True)
    log.remove(next(each for each in log.state.adds if each.path == other.path))
    all_agree(log)
    for name, read in at_once(log.uri):
        for where in (
            Where("_slot", "=", 50),
            Where("_slot", "=", 1),
            Where("_key", "=", ODD_KEYS[2]),
            Where("id", "<=", 1),
            Where("id", ">=", 2007),
        ):
            assert read(where) == normal(filter(where.holds, log.rows)), (name, where)
    with pytest.raises(DeltaError, match="deletionVectors"):
        deltalake.DeltaTable(log.uri).to_pyarrow_table()


EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EDGES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "text": (
        "string",
        pa.string(),
        [
            *("", "a", "x" * 31, "x" * 32, "x" * 33, "x" * 31 + "y", "x" * 31 + "\U0010ffff!"),
            *("x" * 31 + "\ud7ff!", "x" * 31 + "\uffff!", "x" * 31 + "\ue000"),
            *("\U0001f600" * 40, "\U0010ffff" * 40, "ß" * 40, "o'\"\\{"),
        ],
    ),
    "at": (
        "timestamp",
        pa.timestamp("us", "UTC"),
        [EPOCH + dt.timedelta(microseconds=n) for n in (-1, 0, 1, 999, 1000, 1001, 1500)]
        + [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC)]
        + [dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC)],
    ),
    "f": (
        "double",
        pa.float64(),
        [0.1, -0.0, 0.0, 1e300, 5e-324, -1.5, 2.0**53 + 2, 1 / 3, math.inf, -math.inf],
    ),
    "f4": ("float", pa.float32(), [0.10000000149011612, -0.5, 3.4028234663852886e38, 1.401298464324817e-45]),
    "amount": (
        "decimal(12,2)",
        pa.decimal128(12, 2),
        [
            Decimal(each)
            for each in ("0.29", "1.13", "-0.29", "2.55", "1234567890.11", "-9999999999.99", "0.07")
        ],
    ),
    "long": (
        "decimal(30,4)",
        pa.decimal128(30, 4),
        [Decimal(each) for each in ("99999999999999.9999", "-12345678901234567890.1234", "0.0001", "10")],
    ),
    "n": ("long", pa.int64(), [2**63 - 1, -(2**63), 2**53 + 1, 2**53, 0]),
    "b": ("byte", pa.int8(), [-128, 127]),
    "day": (
        "date",
        pa.date32(),
        [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), dt.date(2026, 3, 1)],
    ),
}


def edges(folder: Path, name: str, *, statistics: bool) -> FolderLog:
    """One pack for each value, and further packs with some of the values and nulls."""
    kind, arrow, values = EDGES[name]
    log = FolderLog(folder=folder, schema=spark_schema(**{name: kind}), statistics=statistics)
    groups = [[value] for value in values] + [[None], [*values[:3], None], values[-2:]]
    adds = [
        log.pack([{"_slot": n, "_key": f"k{n}", name: value} for value in group], {name: arrow})
        for n, group in enumerate(groups)
    ]
    log.commit(adds=adds)
    log.checkpoint(cut=True)
    return log


@pytest.mark.parametrize("name", EDGES)
def test_bounds_do_not_hide_rows(tmp_path: Path, name: str) -> None:
    """The statistics of a file have bounds of each column. If a bound were too narrow, an engine would skip
    the file, and a query would miss matching rows without an error.
    """
    log = edges(tmp_path, name, statistics=True)
    all_agree(log)
    for engine, read in at_once(log.uri):
        for value in EDGES[name][2]:
            for op in ("=", "<", ">="):
                where = Where(name, op, value)
                assert read(where) == normal(filter(where.holds, log.rows)), (engine, where)


def test_statistics_do_not_change_results_with_nan(tmp_path: Path) -> None:
    """Engines order NaN differently. If a column with NaN had bounds, an engine could skip a file whose NaN matches
    the predicate, and a query would miss rows.
    """
    values = [[math.nan], [1.0, math.nan], [1.0, 2.0], [3.0, None], [math.nan, -math.inf]]
    logs = []
    for statistics in (True, False):
        log = FolderLog(
            folder=tmp_path / str(statistics), schema=spark_schema(f="double"), statistics=statistics
        )
        for n, group in enumerate(values):
            log.add([{"_slot": n, "_key": "k", "f": value} for value in group], {"f": pa.float64()})
        logs.append(log)
    for (name, with_them), (_, without) in zip(*(at_once(log.uri) for log in logs), strict=True):
        for value in (0.5, 1.0, 2.5, 3.0, 10.0):
            for op in ("=", "<", "<=", ">", ">="):
                where = Where("f", op, value)
                assert with_them(where) == without(where), (name, where)


def test_query_for_a_slot_opens_only_its_packs(tmp_path: Path) -> None:
    """The test deletes the packs of all other slots. Without bounds of `_slot`, a query for a single slot
    would read every file of the table.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(**PLAIN))
    log.add(rows(0, 3, slot=17), KINDS)
    others = [log.add(rows(0, 3, slot=slot), KINDS) for slot in (3, 400)]
    wanted = normal(row for row in log.rows if row["_slot"] == 17)
    for each in others:
        (tmp_path / each.path).unlink()
    for name, read in at_once(log.uri):
        assert read(Where("_slot", "=", 17)) == wanted, name


@pytest.mark.parametrize("vectors", [False, True])
def test_vacuum_of_delta_rs_removes_no_file_of_the_newest_version(tmp_path: Path, vectors: bool) -> None:
    """Files that are named only in a manifest must stay, too. With the table's default configuration, no file is
    removed.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(**PLAIN), vectors=vectors)
    gone = log.add(rows(*range(9)), KINDS)
    kept = log.add(rows(*range(2000)), KINDS)
    log.remove(gone)
    if vectors:
        log.hide({kept.path: range(0, 2000, 2)})
    log.put("_s3notify/state/a.parquet", b"")
    table = deltalake.DeltaTable(log.uri)
    assert table.vacuum(full=True, dry_run=True) == []
    taken = table.vacuum(full=True, dry_run=True, retention_hours=0, enforce_retention_duration=False)
    assert taken == [gone.path]


def shown(adds: Iterable[Add]) -> list[Add]:
    """All fields of the adds except `dataChange`, which means nothing in a checkpoint."""
    return sorted((replace(each, data_change=False) for each in adds), key=lambda each: each.path)


def newest(log: FolderLog) -> LogVersion:
    path = max((log.folder / "_delta_log").glob("*.json"))
    return LogVersion.loads(path.read_bytes(), where=path.name)


def test_commits_of_delta_rs_are_read(tmp_path: Path) -> None:
    """If the platform refused a compaction by delta-rs, which changes no row, all batches would fail until a
    rollback. If the platform misread a checkpoint of delta-rs, the table would lose live files, or would count as
    another table.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(**PLAIN))
    for n in range(5):
        log.add(rows(n, n + 10, slot=n), KINDS)
    wanted = normal(log.rows)
    table = deltalake.DeltaTable(log.uri)
    table.optimize.compact()
    version = newest(log)
    assert version.foreign
    assert version.strange == ()
    assert not any(each.data_change for each in (*version.adds, *version.removes))
    assert {each.id for each in version.removes} == {each.id for each in log.state.adds}
    assert sum(each.live_rows for each in version.adds) == len(wanted)
    assert objections(version, metadata=log.state.metadata, protocol=log.state.protocol) == []
    for row in wanted:
        assert any(each.may_hold(row["_slot"], row["_key"], 1, 1) for each in version.adds)

    table.create_checkpoint()
    body = (tmp_path / f"_delta_log/{table.version():020d}.checkpoint.parquet").read_bytes()
    found = checkpoint.decode(body, where="c")
    assert shown(found.adds) == shown(version.adds)
    assert {each.id for each in found.removes} == {each.id for each in version.removes}
    assert found.txns == log.state.txns
    assert found.protocol == log.state.protocol
    assert found.metadata == log.state.metadata
    last = checkpoint.LastCheckpoint.loads((tmp_path / "_delta_log/_last_checkpoint").read_bytes(), where="l")
    assert last.version == table.version()
    for each in (tmp_path / "_delta_log").glob("*.json"):
        each.unlink()
    for name, read in at_once(log.uri):
        assert read(None) == wanted, name


@pytest.mark.parametrize("vectors", [False, True])
def test_row_changes_of_delta_rs_are_detected(tmp_path: Path, vectors: bool) -> None:
    """The flag `dataChange` shows an UPDATE even if the number of rows stays the same. Without the flag, the
    platform would accept rows that do not come from the bucket's objects. If OPTIMIZE set the flag, the platform
    would refuse a compaction that changes no row.
    """

    def fsck(table: deltalake.DeltaTable) -> None:
        (Path(table.table_uri.removeprefix("file://")) / "data/p1.parquet").unlink()
        table.repair()

    new = pa.Table.from_pylist(
        [{"_etag": "e"} | row for row in rows(1)],
        schema=pa.schema(LINEAGE | KINDS),
    )
    changes: dict[str, Any] = {
        "DELETE": lambda table: table.delete("id = 3"),
        "UPDATE": lambda table: table.update({"id": "id + 1"}),
        "RESTORE": lambda table: table.restore(1),
        "FSCK": fsck,
        "WRITE": lambda table: deltalake.write_deltalake(table, new, mode="append"),
        "MERGE": lambda table: (
            table.merge(new, "s.id = t.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .execute()
        ),
        "OPTIMIZE": lambda table: table.optimize.z_order(["id"]),
    }
    for name, change in changes.items():
        log = FolderLog(folder=tmp_path / name, schema=spark_schema(**PLAIN), vectors=vectors)
        first, _ = log.add(rows(1, 2), KINDS), log.add(rows(3, 4), KINDS)
        if vectors:
            log.hide({first.path: [1]})
        change(deltalake.DeltaTable(log.uri))
        version = newest(log)
        assert version.foreign
        assert version.operation == name
        changed = [each.data_change for each in (*version.adds, *version.removes)]
        assert any(changed) == (name != "OPTIMIZE"), name


@pytest.mark.parametrize("vectors", [False, True])
def test_checkpoints_of_delta_rs_and_of_the_platform_are_equal(tmp_path: Path, vectors: bool) -> None:
    """If a checkpoint of delta-rs lost deletion vectors, withdrawn rows would appear again. If the checkpoint lost
    the number of the manifest, the platform could not continue from the checkpoint.
    """
    log = FolderLog(folder=tmp_path, schema=spark_schema(**PLAIN), vectors=vectors)
    gone, kept, other = (log.add(rows(*range(n)), KINDS) for n in (5, 2000, 20))
    log.remove(gone)
    if vectors:
        log.hide({kept.path: range(0, 2000, 2), other.path: [3]})
    for ours in (False, True):
        if ours:
            log.add(rows(1), KINDS)
            log.checkpoint(cut=True)
            log.add(rows(2), KINDS)
        table = deltalake.DeltaTable(log.uri)
        table.create_checkpoint()
        body = (tmp_path / f"_delta_log/{log.version:020d}.checkpoint.parquet").read_bytes()
        found = checkpoint.decode(body, where="c")
        assert shown(found.adds) == shown(log.state.adds)
        assert {each.id for each in found.removes} == {each.id for each in log.state.removes}
        assert (found.txns, found.metadata) == (log.state.txns, log.state.metadata)
        assert (found.protocol, found.strange) == (log.state.protocol, ())


def test_forbidden_changes_of_delta_rs_are_named(tmp_path: Path) -> None:
    """delta-rs may change a table in a way that the platform forbids, and then all batches stop. If the error
    did not name the forbidden change, an operator would not know what to correct. If a property like `owner`
    were forbidden, a harmless change would stop all batches.
    """

    def found(change: Any) -> list[str]:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        log = FolderLog(folder=folder, schema=spark_schema(**PLAIN))
        log.add(rows(1), KINDS)
        change(deltalake.DeltaTable(log.uri))
        version = newest(log)
        assert version.foreign
        return objections(version, metadata=log.state.metadata, protocol=log.state.protocol)

    assert (
        found(lambda table: table.alter.set_table_properties({"owner": "me"}, raise_if_not_exists=False))
        == []
    )
    assert found(lambda table: table.alter.set_table_properties({"delta.checkpointInterval": "7"})) == []
    assert found(lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"})) == [
        "it sets delta.appendOnly to 'true'"
    ]
    column = deltalake.Field("x", deltalake.schema.PrimitiveType("long"))
    assert found(lambda table: table.alter.add_columns([column])) == ["it adds the column 'x'"]
    constraint = found(lambda table: table.alter.add_constraint({"positive": "id > 0"}))
    assert constraint[0].startswith("it changes the protocol from reader 1, writer 2 to ")
    assert constraint[1:] == ["it adds the constraint positive: id > 0"]
