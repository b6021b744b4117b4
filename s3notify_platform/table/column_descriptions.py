"""Descriptions of a table's columns, for people. Dagster shows the descriptions in the asset's schema. Engines read the
descriptions in the log.
"""

from typing import Any, Final

PLATFORM: Final = {
    "_slot": "Slot of the object's key",
    "_key": "Key of the object that the row is from",
    "_etag": "ETag of the object version that was read",
    "_offset": "Byte at which the record begins in the decoded object; in Parquet and similar formats the "
    "row number",
    "_modified": "Time at which that object version was written, by the store's clock",
    "_size": "Size in bytes of that object version as it is stored, compressed or not",
    "_version": "Id of that object version; null in a bucket without versioning",
    "_rescued": "Values that do not fit their columns, and fields without a column, as JSON by path; null if "
    "there are none",
}
"""Descriptions of the columns that the platform adds."""


def comment_of(column: dict[str, Any]) -> str | None:
    """Returns the description of a column (in Spark's schema JSON). The platform describes its own columns. For other
    columns, the description is the COMMENT in the user's DDL.
    """
    given = (column.get("metadata") or {}).get("comment")
    return PLATFORM.get(column["name"]) or (given if isinstance(given, str) else None)
