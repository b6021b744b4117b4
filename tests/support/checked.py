"""Checks a table as `s3notify table check` does, after kills and faults, and when a test reads rows."""

from s3notify_platform.source.location import Location
from s3notify_platform.table.check import check_table
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.snapshot import Absent, Snapshot


def whole(table: LogTable) -> Snapshot | None:
    """The newest table version, after a check; None if there is no table."""
    found = table.newest()
    if isinstance(found, Absent):
        return None
    checked = check_table(table, found)
    assert checked.ok, checked.problems
    return found


def all_whole(location: Location, *assets: str) -> None:
    """Checks the source's table, and the tables of these assets. All these tables must exist."""
    for asset in (None, *assets):
        assert whole(location.table(asset)) is not None, asset
