"""A copy of a table that the change feed updates."""

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from threading import Lock
from typing import Any

import pyarrow as pa

from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.change_columns import CHANGE_COLUMNS, with_changes
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.row_changes import Share, all_rows, row_changes
from s3notify_platform.table.snapshot import Absent, Snapshot

Row = tuple[tuple[str, Any], ...]
Place = tuple[str, str, int]


class FeedCopy:
    """A copy of a table. The copy begins with all rows, when the object is used for the first time.

    `table`: opens the table. `columns`: the columns to compare; by default, those of the newest version.
    """

    def __init__(self, table: Callable[[], LogTable], columns: pa.Schema | None = None) -> None:
        self.table, self.columns = table, columns
        self.rows: dict[Place, Row] = {}
        self.version: int | None = None
        self.changes = 0
        self._lock = Lock()

    def differences(self, snapshot: Snapshot | None = None) -> str:
        """Updates the copy to the table version of `snapshot` (default: the newest). Returns the differences of copy
        and table; empty if they are equal.
        """
        with self._lock:
            return self._differences(snapshot)

    def _differences(self, snapshot: Snapshot | None) -> str:
        table = self.table()
        found = snapshot or table.newest()
        if isinstance(found, Absent):
            return ""
        self._follow(table, found)
        schema = self._columns(found)
        batches = read_slots(table.reader.store, table.layout, found.packs.values(), None, schema)
        there = Counter(_row(row) for batch in batches for row in batch.to_pylist())
        copied = Counter(self.rows.values())
        missing, surplus = there - copied, copied - there
        if not missing and not surplus:
            return ""
        return f"the change feed of version {found.version}: {[*missing][:3]} are missing, {[*surplus][:3]} too many"

    def _follow(self, table: LogTable, found: Snapshot) -> None:
        shares: Sequence[Share] = (
            all_rows(found)
            if self.version is None
            else row_changes(table.reader, self.version, found.version).shares()
        )
        output = with_changes(self._columns(found))
        # Everything is read before the first change is applied, so a failing store leaves the copy as it was.
        # Deletions come first.
        read = [batch for share in shares for batch in share.read(table.reader.store, table.layout, output)]
        for row in (row for batch in read for row in batch.to_pylist()):
            kind, *_ = (row.pop(name) for name in CHANGE_COLUMNS.names)
            self._apply(kind, row)
        self.version = found.version

    def _columns(self, found: Snapshot) -> pa.Schema:
        return self.columns or arrow_schema(found.metadata.schema)

    def _apply(self, kind: str, row: dict[str, Any]) -> None:
        self.changes += 1
        place = row["_key"], row["_etag"], row["_offset"]
        if kind == "insert":
            assert place not in self.rows, f"a row was added twice: {row}"
            self.rows[place] = _row(row)
        else:
            assert self.rows.pop(place, None) is not None, f"a row that did not exist was removed: {row}"


def _row(row: dict[str, Any]) -> Row:
    """A row without its null columns, because these columns may have been added to the table later.

    Equal numbers of different types become the same value.
    """
    return tuple((name, _plain(value)) for name, value in sorted(row.items()) if value is not None)


def _plain(value: Any) -> Any:
    return Decimal(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else repr(value)
