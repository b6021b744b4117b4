"""Back to an earlier schema, after data that should never have come in has widened the table's.

The earlier schema is pinned under the next generation, so nothing is rewritten. Files keep columns that it lacks, and
no reader looks at them. So it is refused while a value of such a column is live: nobody would see it.
"""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.errors import UsageError
from s3notify_platform.formats.columns import unnamed_columns
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotTable
from s3notify_platform.table.reader import REJECT_SCHEMA, read_slots
from s3notify_platform.table.schema import SchemaRegistry, TableSchema, added_fields

READS_IN_FLIGHT: Final = 16
SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """What a rollback would do, or did. `columns` leave the schema, by path; `in_use`: objects with values in them."""

    target: TableSchema
    columns: tuple[str, ...]
    in_use: dict[str, tuple[str, ...]] = field(default_factory=dict)


def plan_rollback(
    table: SlotTable, schemas: SchemaRegistry, slots: Iterable[Slot], generation: int
) -> Rollback:
    """What going back to a generation takes away. Stop the source's runs before.

    `UsageError` if there is no such earlier generation. Requests: 1 GET for each generation of the schema; 1 LIST and 1
    GET for each slot; 1 GET for each live file of slots that were committed under a later one.
    """
    found = {one.generation: one for one in schemas.history()}
    newest = max(found, default=0)
    if generation not in found or generation == newest:
        known = ", ".join(map(str, sorted(set(found) - {newest}))) or "none"
        raise UsageError(f"schema generation {generation}: there is no such earlier one; there are: {known}")
    target = found[generation]
    columns = tuple(sorted(added_fields(target.rows, found[newest].rows)))
    kept = _shape(json.loads(target.rows))
    in_use: dict[str, set[str]] = {}

    def look(slot: Slot) -> None:
        head = table.head(slot)
        if head is None or head.schema <= generation:
            return
        for read in read_slots(table, [slot], generations={slot: head.generation}):
            names = [name for name in read.table.schema.names if name not in REJECT_SCHEMA.names]
            if not names:
                continue
            places, _ = unnamed_columns(read.table.select(names), kept)
            for path, rows in places.items():
                keys = read.table["_key"].take(pa.array(rows[:SHOWN]))
                in_use.setdefault(path, set()).update(keys.to_pylist())

    if columns:
        with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
            list(pool.map(look, slots))
    return Rollback(
        target=target,
        columns=columns,
        in_use={path: tuple(sorted(keys)) for path, keys in sorted(in_use.items())},
    )


def roll_back(schemas: SchemaRegistry, planned: Rollback) -> TableSchema:
    """Pin the earlier schema again. `UsageError` if values of columns that it lacks are live. 1 LIST and 1 PUT."""
    if planned.in_use:
        path, keys = next(iter(planned.in_use.items()))
        raise UsageError(
            f"{len(planned.in_use)} of these columns have values, like {path!r} from {', '.join(keys[:SHOWN])}: "
            "remove or correct these objects and let the source take that in, or keep the schema"
        )
    return schemas.pin_again(planned.target)


def _shape(kind: Any) -> Any:
    """Spark's JSON of a schema or a type as Arrow's, where only names matter."""
    match kind.get("type", "struct") if isinstance(kind, dict) else "":
        case "struct":
            fields = [pa.field(part["name"], _type(part["type"])) for part in kind.get("fields", ())]
            return pa.schema(fields)
        case _:
            raise AssertionError(kind)


def _type(kind: Any) -> pa.DataType:
    match kind["type"] if isinstance(kind, dict) else "":
        case "struct":
            return pa.struct([*_shape(kind)])
        case "array":
            return pa.list_(_type(kind["elementType"]))
        case "map":
            return pa.map_(_type(kind["keyType"]), _type(kind["valueType"]))
        case _:
            return pa.string()
