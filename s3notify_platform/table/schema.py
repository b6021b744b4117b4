"""Column types of a table, pinned.

A schema object is created if absent under the next generation number, like a commit. It holds two schemas as
Spark's own JSON: `source`, what the objects are parsed with, and `rows`, what the data files hold. A commit
names the generation it was written under; a later one has every column of an earlier one, with its type.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import ConflictError, CorruptError, UsageError
from s3notify_platform.ports import ObjectStore, StoredObject
from s3notify_platform.protocols.conditional_commit import Committed, ConditionalCommit
from s3notify_platform.table.layout import TableLayout, generation_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One generation. `source` and `rows` are Spark schema JSON; `inferred` tells whether a sample made `source`."""

    generation: int
    source: str
    rows: str
    inferred: bool


def merged_rows(old: str, new: str) -> str:
    """`old` with the columns that only `new` has, nullable. `UsageError` names a column whose type changed. Pure."""
    merged: dict[str, Any] = json.loads(old)
    types = {field["name"]: field["type"] for field in merged["fields"]}
    for field in json.loads(new)["fields"]:
        if field["name"] not in types:
            merged["fields"].append(field | {"nullable": True})
        elif types[field["name"]] != field["type"]:
            raise UsageError(
                f"column {field['name']!r} is {types[field['name']]} in the table and now {field['type']}: "
                "give the column another name, or the source another table"
            )
    return json.dumps(merged)


class SchemaRegistry:
    """Reads and advances the schema of one table."""

    def __init__(
        self,
        store: ObjectStore,
        layout: TableLayout,
        commits: ConditionalCommit,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._layout = layout
        self._commits = commits
        self._clock = clock

    def head(self) -> TableSchema | None:
        """The newest schema, or None. 1 LIST of one key and 1 GET."""
        page = self._store.list(self._layout.schemas, limit=1)
        if not page.objects:
            return None
        key = page.objects[0].key
        found = self._store.get(key)
        if not isinstance(found, StoredObject):
            raise CorruptError(f"{key}: the schema object vanished; restore it")
        try:
            schema = TableSchema(**json.loads(found.body))
        except (ValueError, TypeError) as error:
            raise CorruptError(f"{key}: not a schema object ({error})") from error
        if schema.generation != generation_of(key):
            raise CorruptError(f"{key}: holds generation {schema.generation}")
        return schema

    def pin(self, *, source: str, rows: str, inferred: bool) -> TableSchema:
        """The table's schema, advanced so that it covers `rows` and parses with `source`.

        Of racing callers with different inferred sources the first one's stands for all: the caller must parse
        with what is returned. `UsageError` if a column's type contradicts the table. 1 LIST + 1 GET, and 1 PUT
        if it advanced.
        """
        for _ in range(8):
            head = self.head()
            if head is not None:
                wanted = TableSchema(
                    generation=head.generation + 1,
                    source=head.source if inferred else source,
                    rows=merged_rows(head.rows, rows),
                    inferred=inferred,
                )
                if (wanted.source, wanted.rows) == (head.source, head.rows):
                    return head
            else:
                wanted = TableSchema(generation=1, source=source, rows=rows, inferred=inferred)
            body = json.dumps(asdict(wanted)).encode()
            if isinstance(
                self._commits.put_if_absent(self._layout.schema(wanted.generation), body), Committed
            ):
                return wanted
        raise ConflictError("the table's schema kept changing; try again")
