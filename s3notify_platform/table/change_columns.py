"""The columns that a change of the feed has besides the columns of its row (`row_changes`). All functions are pure."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.reading import shaped

CHANGE_COLUMNS: Final = pa.schema(
    [
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", pa.timestamp("us", "UTC")),
        ("_reason", pa.string()),
    ]
)
"""The first three columns are as in Delta's change data feed: `insert` or `delete`, the version of the change, and the
version's time. The fourth column has the reason (`state_changes.Reason`, or a reason of `replaced_rows`)."""


def with_changes(table: pa.Schema) -> pa.Schema:
    """Returns the columns of a table, and `CHANGE_COLUMNS`. `UsageError`: the table has a column with one of these
    names.
    """
    if taken := sorted({*CHANGE_COLUMNS.names} & {*table.names}):
        raise UsageError(
            f"the table has a column {taken[0]!r}, but its change feed needs this name: rename the column in a "
            "transform"
        )
    return pa.schema([*table, *CHANGE_COLUMNS])


def has_changes(output: pa.Schema) -> bool:
    """True if a reader wants one of `CHANGE_COLUMNS`."""
    return not {*CHANGE_COLUMNS.names}.isdisjoint(output.names)


def columns_to_read(output: pa.Schema, *, by_key: bool) -> pa.Schema:
    """Returns the columns of the table that are needed for this output. `by_key`: true if the key is always needed."""
    own = [each for each in output if each.name not in CHANGE_COLUMNS.names]
    if by_key and "_key" not in output.names:
        own.append(pa.field("_key", pa.string()))
    return pa.schema(own)


def change_values(kind: str, version: Any, at_ms: Any, reason: Any, *, count: int) -> dict[str, Any]:
    """Returns the values of `CHANGE_COLUMNS` for `count` rows. Each argument is one value for all rows, or an array
    with a value for each row. `at_ms`: Unix milliseconds.
    """

    def each(given: Any) -> Any:
        return given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.repeat(given, count)

    times = each(at_ms).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    return dict(zip(CHANGE_COLUMNS.names, (each(kind), each(version), times, each(reason)), strict=True))


def changed(output: pa.Schema, rows: pa.RecordBatch, changes: Mapping[str, Any]) -> pa.RecordBatch:
    """Returns the rows, and the values of the changes, with the columns of `output`. Missing columns are null."""
    given = dict(zip(rows.schema.names, rows.columns, strict=True))
    return shaped(output, rows.num_rows, given | dict(changes))
