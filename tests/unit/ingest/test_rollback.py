"""Back to an earlier schema: only if nothing that is live would no longer be seen."""

import json

import pyarrow as pa
import pytest

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import UsageError
from s3notify_platform.ingest.rollback import plan_rollback, roll_back
from s3notify_platform.ingest.slot_files import new_files
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import SlotCommit
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.schema import SchemaRegistry
from tests.support.slot_writer import LAYOUT, SLOT, slot_table


def schema_of(**columns: object) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


class Site:
    """A slot of a table whose schema has grown from `a` to `a`, `b` and `s.x`."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.table = slot_table(self.store)
        self.schemas = SchemaRegistry(self.store, LAYOUT, NativeCommit(self.store))
        inner = json.loads(schema_of(x="long"))
        for schema in (schema_of(a="long"), schema_of(a="long", b="long", s=inner)):
            self.schemas.pin(source=schema, rows=schema, inferred=True)

    def commit(self, **columns: object) -> None:
        head = self.table.head(SLOT)
        data, _ = new_files(self.table, SLOT, Generation((head.generation if head else 0) + 1))
        count = len(next(iter(columns.values())))  # type: ignore[arg-type]
        lineage = {"_key": ["raw/k"] * count, "_etag": ["e"] * count, "_offset": list(range(count))}
        data.add(pa.table(lineage | columns))
        data.flush()
        commit = SlotCommit.after(
            head, SLOT, batch="b", clock=SYSTEM_CLOCK, files=tuple(data.written), schema=2
        )
        self.table.commit(commit.staged(), planned_at=SYSTEM_CLOCK.monotonic())


def test_columns_that_are_empty_leave() -> None:
    """Pinned as the next generation, and what comes later widens it from there."""
    site = Site()
    site.commit(a=[1], b=pa.nulls(1, pa.int64()), s=pa.nulls(1, pa.struct([("x", pa.int64())])))
    planned = plan_rollback(site.table, site.schemas, [SLOT], 1)
    assert planned.columns == ("b", "s")
    assert planned.in_use == {}
    done = roll_back(site.schemas, planned)
    assert done.generation == 3
    head = site.schemas.head()
    assert head is not None
    assert json.loads(head.rows) == json.loads(schema_of(a="long"))
    later = site.schemas.pin(source=head.source, rows=schema_of(a="long", c="long"), inferred=True)
    assert later is not None
    assert dict(later.added) == {"c": "long"}


def test_refused_while_a_value_is_live() -> None:
    site = Site()
    site.commit(a=[1, 2], b=[None, 5], s=[{"x": 1}, None])
    planned = plan_rollback(site.table, site.schemas, [SLOT], 1)
    assert planned.in_use == {"b": ("raw/k",), "s": ("raw/k",)}
    with pytest.raises(UsageError, match="like 'b' from raw/k: remove or correct these objects"):
        roll_back(site.schemas, planned)
    assert [one.generation for one in site.schemas.history()] == [2, 1]


@pytest.mark.parametrize("generation", [2, 9])
def test_only_to_an_earlier_one(generation: int) -> None:
    site = Site()
    with pytest.raises(UsageError, match="no such earlier one; there are: 1"):
        plan_rollback(site.table, site.schemas, [SLOT], generation)
