"""A predicate of rows that can be pickled. Each call binds the predicate to the columns of the given rows."""

from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from s3notify_platform.source.rules.evaluation import Evaluate, bound
from s3notify_platform.source.rules.grammar import Node, parsed


@dataclass(frozen=True, slots=True)
class RowPredicate:
    """A predicate that is called with rows. The call returns true, false or null for each row."""

    root: Node

    @classmethod
    def of(cls, text: str) -> "RowPredicate":
        """Parses this text to a predicate. Raises `UsageError` if the text is not a predicate."""
        return cls(parsed(text))

    def __call__(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Returns a boolean or null for each row.

        Raises `UsageError` for an unknown column, or a comparison of wrong types.
        """
        found = _bound(self.root, rows.schema)(dict(zip(rows.schema.names, rows.columns, strict=True)))
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


@lru_cache(maxsize=32)
def _bound(root: Node, schema: pa.Schema) -> Evaluate:
    return bound(root, schema)
