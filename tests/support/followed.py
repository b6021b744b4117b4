"""Checks that derived tables equal a computation from the source's table. The newest rows must equal a window over the
table's rows. The clustered rows must equal the table's rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

from s3notify_platform.source.source import Source
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.check import check_table
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Absent, Snapshot

Row = dict[str, Any]


def newest_of(rows: Sequence[Row], key: str, order_by: str) -> dict[str, Row]:
    """A window over all rows: the newest row of each key."""
    best: dict[str, tuple[Any, Row]] = {}
    for row in rows:
        if row[key] is None:
            continue
        modified = row["_modified"].timestamp() if row["_modified"] else 0
        rank = (row[order_by] is not None, row[order_by] or 0), modified, row["_key"], row["_offset"]
        if str(row[key]) not in best or best[str(row[key])][0] < rank:
            best[str(row[key])] = rank, row
    return {name: row for name, (_, row) in best.items()}


def behind(source: Source, *, deleted: Callable[[Row], bool] = lambda _: False) -> str:
    """Describes the derived tables whose rows differ from the source's table; empty if there are none.

    `deleted`: True for rows that mark their key as deleted.
    """
    table = source.location.table()
    found = table.newest()
    if isinstance(found, Absent):
        return ""
    rows = _rows(table, found)
    for asset in source.kinds:
        other = source.location.table(asset)
        held = other.newest()
        if isinstance(held, Absent) or held.manifest.follows is None:
            return f"{asset} does not exist"
        if held.manifest.follows.version > found.version:
            return f"{asset} is ahead: read again"
        if problems := check_table(other, held).problems:
            return f"{asset}: {problems[:3]}"
        if wrong := _wrong(source, asset, rows, _rows(other, held), deleted):
            return f"{asset} as of version {held.manifest.follows.version} of {found.version}: {wrong}"
    return ""


def _wrong(
    source: Source, asset: str, rows: Sequence[Row], shown: Sequence[Row], deleted: Callable[[Row], bool]
) -> str:
    if asset == source.location.clustered_name:
        expected, found = (
            {(row["_key"], row["_offset"], str(row)) for row in some} for some in (rows, shown)
        )
    else:
        assert source.latest is not None
        (key,), (order_by,) = source.latest.key, source.latest.order_by
        expected = {
            (name, row["_key"], row["_offset"])
            for name, row in newest_of(rows, key, order_by).items()
            if not deleted(row)
        }
        found = {(row["_key"], row["_source_key"], row["_source_offset"]) for row in shown}
    missing, surplus = expected - found, found - expected
    return f"{[*missing][:3]} are missing, {[*surplus][:3]} too many" if missing or surplus else ""


def _rows(table: LogTable, found: Snapshot) -> list[Row]:
    schema = arrow_schema(found.metadata.schema)
    batches = read_slots(table.reader.store, table.layout, found.packs.values(), None, schema)
    return [row for batch in batches for row in batch.to_pylist()]
