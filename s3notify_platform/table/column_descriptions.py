"""What the columns of a table hold, for people: in Dagster's schema of the asset, and in the log for engines."""

from typing import Any, Final

PLATFORM: Final = {
    "_slot": "Slot of the object's key",
    "_key": "Key of the object that the row is from",
    "_etag": "ETag of that version of the object",
    "_offset": "Byte at which the record begins in the decoded object; in Parquet and the like the number of the row",
    "_modified": "When that version of the object was written, as the store says",
    "_size": "Bytes of that version as it is stored, compressed or not",
    "_version": "Id of that version; null in a bucket without versions",
    "_rescued": "Values that do not fit their columns, and fields without one, as JSON by path; null if all fits",
}
"""Of the columns that the platform adds."""


def comment_of(column: dict[str, Any]) -> str | None:
    """What a column of Spark's schema JSON holds: the COMMENT in the user's DDL, if it is not one of ours."""
    given = (column.get("metadata") or {}).get("comment")
    return PLATFORM.get(column["name"]) or (given if isinstance(given, str) else None)
