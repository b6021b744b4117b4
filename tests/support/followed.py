"""Checks that derived tables equal a computation from the source's table. The newest rows must equal a window over the
table's rows. The clustered rows must equal the table's rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.source.source import Source
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.check import check_table
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.versions import snapshot_of

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
        if wrong := _wrong(source, asset, rows, (other, held), deleted):
            return f"{asset} as of version {held.manifest.follows.version} of {found.version}: {wrong}"
    return ""


@dataclass
class FollowedVersions:
    """Compares the versions of the derived tables with the source's rows as of the versions that they follow. So a
    wrong row is found even if a later version repairs it.
    """

    source: Source
    compared: int = 0
    """The number of compared versions."""
    _last: dict[str, int] = field(default_factory=dict)

    def differences(self) -> str:
        """Describes the newest versions that differ from the source's table; empty if there are none. Versions that
        were compared before, or that follow a version that is no longer kept, are left out.
        """
        for asset in self.source.kinds:
            other = self.source.location.table(asset)
            held = other.newest()
            if isinstance(held, Absent) or self._last.get(asset) == held.version:
                continue
            if (follows := held.manifest.follows) is None:
                continue
            table = self.source.location.table()
            try:
                rows = _rows(table, snapshot_of(table.reader, follows.version))
            except NotFoundError:
                continue
            if wrong := _wrong(self.source, asset, rows, (other, held), lambda _: False):
                return f"{asset}, version {held.version}, as of version {follows.version}: {wrong}"
            self._last[asset] = held.version
            self.compared += 1
        return ""


def _wrong(
    source: Source,
    asset: str,
    rows: Sequence[Row],
    derived: tuple[LogTable, Snapshot],
    deleted: Callable[[Row], bool],
) -> str:
    if problems := check_table(*derived).problems:
        return f"{problems[:3]}"
    shown = _rows(*derived)
    if asset == source.location.clustered_name:
        expected, found = (
            {(row["_key"], row["_offset"], str(row)) for row in some} for some in (rows, shown)
        )
    else:
        assert source.latest is not None
        (key,), (order_by,) = source.latest.key, source.latest.order_by
        expected = {
            (name, row["_key"], row["_offset"], _values(row))
            for name, row in newest_of(rows, key, order_by).items()
            if not deleted(row)
        }
        found = {(row["_key"], row["_source_key"], row["_source_offset"], _values(row)) for row in shown}
    missing, surplus = expected - found, found - expected
    return f"{[*missing][:3]} are missing, {[*surplus][:3]} too many" if missing or surplus else ""


def _values(row: Row) -> str:
    """The values of the source's own columns."""
    return str({name: value for name, value in row.items() if not name.startswith("_")})


def _rows(table: LogTable, found: Snapshot) -> list[Row]:
    schema = arrow_schema(found.metadata.schema)
    batches = read_slots(table.reader.store, table.layout, found.packs.values(), None, schema)
    return [row for batch in batches for row in batch.to_pylist()]
