"""A copy of a table. The change feed updates the copy, except if the feed demands a new snapshot."""

from collections import Counter
from decimal import Decimal
from threading import Lock
from typing import Any

from s3notify_platform.source.source import Source
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.feed import NoFeedError
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.row_changes import CHANGE_COLUMNS, all_rows, row_changes, with_changes
from s3notify_platform.table.snapshot import Absent, Snapshot

Row = tuple[tuple[str, Any], ...]


def ends_at_new_values(error: str) -> bool:
    """True if the error says that the feed ends at new values of a column, and names the remedy."""
    return "another type and other values" in error and "begin again: either with a snapshot" in error


class FeedCopy:
    """A copy of a source's table. The copy begins when the object is used for the first time.

    If the feed cannot continue because a column got new values, the copy starts again with a snapshot of all rows, as
    the error advises. `again` counts these restarts.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rows: Counter[Row] = Counter()
        self.version: int | None = None
        self.changes = 0
        self.again = 0
        self._lock = Lock()

    def differences(self) -> str:
        """Updates the copy to the newest table version. Returns the differences of copy and table; empty if they are
        equal.
        """
        with self._lock:
            return self._differences()

    def _differences(self) -> str:
        table = self.source.location.table()
        found = table.newest()
        if isinstance(found, Absent):
            return ""
        self._follow(table, found)
        schema = arrow_schema(found.metadata.schema)
        batches = read_slots(table.reader.store, table.layout, found.packs.values(), None, schema)
        there = Counter(_row(row) for batch in batches for row in batch.to_pylist())
        missing, surplus = there - self.rows, self.rows - there
        if not missing and not surplus:
            return ""
        return f"the change feed of version {found.version}: {[*missing][:3]} are missing, {[*surplus][:3]} too many"

    def _follow(self, table: LogTable, found: Snapshot) -> None:
        shares: Any = None
        if self.version is not None:
            try:
                shares = row_changes(table.reader, self.version, found.version).shares()
            except NoFeedError as error:
                if not ends_at_new_values(str(error)):
                    raise
                self.again += 1
        whole = shares is None
        if whole:
            shares = all_rows(found)
        output = with_changes(arrow_schema(found.metadata.schema))
        # Everything is read before the first change is applied, so a failing store leaves the copy as it was.
        # Deletions come first.
        read = [batch for share in shares for batch in share.read(table.reader.store, table.layout, output)]
        if whole:
            self.rows.clear()
        for row in (row for batch in read for row in batch.to_pylist()):
            kind, *_ = (row.pop(name) for name in CHANGE_COLUMNS.names)
            self._apply(kind, _row(row))
        self.version = found.version

    def _apply(self, kind: str, row: Row) -> None:
        self.changes += 1
        if kind == "insert":
            self.rows[row] += 1
        else:
            assert self.rows[row] == 1, f"a row that did not exist was removed: {row}"
            del self.rows[row]


def _row(row: dict[str, Any]) -> Row:
    """A row without its null columns, because these columns may have been added to the table later.

    Equal numbers of different types become the same value.
    """
    return tuple((name, _plain(value)) for name, value in sorted(row.items()) if value is not None)


def _plain(value: Any) -> Any:
    return Decimal(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else repr(value)
