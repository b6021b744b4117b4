"""The order of a clustered table: the columns by which rows are sorted, and the size of files."""

import json
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import CLUSTER_FILE_BYTES
from s3notify_platform.table.delta.actions import MetaData
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.pinned_schema import DEFINITION

FILE_BYTES: Final = "delta.targetFileSize"
"""Property of a clustered table: a file with at least this number of bytes is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustered:
    """The order: rows are sorted by `columns`, with nulls last. A file of at least `file_bytes` is full."""

    columns: tuple[str, ...]
    file_bytes: int = CLUSTER_FILE_BYTES

    def dumps(self) -> str:
        """Returns a text that identifies the definition. The text omits the size of files, so a new size does not
        rebuild the table.
        """
        return json.dumps({"cluster_by": self.columns})

    @property
    def sizes(self) -> PackSizes:
        """The sizes of the table's files. Small files are merged, the smallest first."""
        return PackSizes(
            target=self.file_bytes, smallest=max(1, self.file_bytes // 64), budget=self.file_bytes
        )

    def check(self, columns: pa.Schema) -> None:
        """Raises `UsageError` if a column of the order is missing in the source's table, or if its values have no
        order.
        """
        for name in self.columns:
            if name not in columns.names:
                raise UsageError(
                    f"cluster_by: the table has no column {name!r}: it has {', '.join(columns.names)}"
                )
            kind = columns.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise UsageError(f"cluster_by: column {name!r} is {kind}: use numbers, texts, dates or times")

    def in_order(self, rows: pa.Table) -> pa.Table:
        """Returns the sorted rows. Rows with equal values in these columns are sorted by object and offset. Pure."""
        keys = [(name, "ascending") for name in (*self.columns, "_key", "_offset")]
        return rows.take(pc.sort_indices(rows, sort_keys=keys)).combine_chunks()


def clustered_as(metadata: MetaData) -> Clustered | None:
    """Returns the order of a clustered table's rows, or None if the table is of another kind. Pure."""
    found = json.loads(metadata.configuration.get(DEFINITION, "{}"))
    if "cluster_by" not in found:
        return None
    size = metadata.configuration.get(
        FILE_BYTES, ""
    )  # another engine may have changed the size to a text like 128mb
    return Clustered(
        columns=tuple(found["cluster_by"]), file_bytes=int(size) if size.isdecimal() else CLUSTER_FILE_BYTES
    )
