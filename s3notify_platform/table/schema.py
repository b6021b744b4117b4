"""Column types of a table, pinned.

A schema object is created if absent under the next generation number, like a commit. It holds two schemas as
Spark's own JSON: `source`, what the objects are parsed with, and `rows`, what the data files hold. A commit
names the generation it was written under; a later one has every column of an earlier one, with its type.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from s3notify_platform.errors import ConflictError, CorruptError, UsageError
from s3notify_platform.ports import ObjectStore, StoredObject
from s3notify_platform.protocols.conditional_commit import Committed, ConditionalCommit
from s3notify_platform.table.layout import TableLayout, generation_of

PIN_ATTEMPTS = 8
"""Races that one `pin` may lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One generation. `source` and `rows` are Spark schema JSON; `inferred`: a sample made `source`."""

    generation: int
    source: str
    rows: str
    inferred: bool


def merged(old: str, new: str, *, strict: bool) -> str:
    """`old` with the columns that only `new` has. Pure.

    Where both have a column, `old` stands; if they differ in its type and `strict`, `UsageError` names it.
    """
    result: dict[str, Any] = json.loads(old)
    columns = result.setdefault("fields", [])
    types = {field["name"]: field["type"] for field in columns}
    for field in json.loads(new).get("fields", ()):
        if field["name"] not in types:
            columns.append(field | {"nullable": True})
        elif strict and types[field["name"]] != field["type"]:
            raise UsageError(
                f"column {field['name']!r} is {types[field['name']]} in the table and now {field['type']}: "
                "give the column another name, or the source another table"
            )
    return json.dumps(result)


class SchemaRegistry:
    """Reads the schema of one table and, if it is given `commits` to do so through, advances it."""

    def __init__(
        self, store: ObjectStore, layout: TableLayout, commits: ConditionalCommit | None = None
    ) -> None:
        self._store = store
        self._layout = layout
        self._commits = commits

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

    def pin(self, *, source: str, rows: str, inferred: bool) -> TableSchema | None:
        """The table's schema, advanced so that it covers `rows` and parses with `source`.

        None if `source` is inferred and lacks, or contradicts, what another caller pinned: take over `head`,
        by `merged`, and pin again. `UsageError` if a column of `rows` contradicts the table. 1 LIST + 1 GET,
        and 1 PUT if it advanced.
        """
        for _ in range(PIN_ATTEMPTS):
            head = self.head()
            generation = 1 if head is None else head.generation + 1
            if head is not None:
                if inferred and not _same(merged(head.source, source, strict=False), source):
                    return None
                rows = merged(head.rows, rows, strict=True)
                if _same(source, head.source) and _same(rows, head.rows) and inferred == head.inferred:
                    return head
            wanted = TableSchema(generation=generation, source=source, rows=rows, inferred=inferred)
            if self._commits is None:
                raise UsageError(f"{self._layout.prefix}: opened to be read; nothing says how to commit here")
            body = json.dumps(asdict(wanted)).encode()
            outcome = self._commits.put_if_absent(self._layout.schema(generation), body)
            if isinstance(outcome, Committed):
                return wanted
        raise ConflictError("the table's schema kept changing; try again")


def _same(one: str, other: str) -> bool:
    return bool(json.loads(one) == json.loads(other))
