"""A rollback to an earlier schema is possible only if no value in the table would become invisible."""

import json
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.schema_rollback import (
    plan_schema_rollback,
    roll_back_schema,
    schema_history,
)
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import described, grown, schema_of
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.support.log_tables import Table

SLOT = Slot(1)


def columns(**kinds: Any) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


FIRST = columns(a="long")
SECOND = columns(a="long", b="long", s=json.loads(columns(x="long")))


class Site:
    """A table whose schema has grown from `a` to `a`, `b` and `s.x`."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        table = Table(store=self.store)
        table.opened()
        self.table = table.whole
        self.commit("k0", FIRST, a=[0])
        self.commit("k1", SECOND, a=[1])

    def newest(self) -> Snapshot:
        found = self.table.newest()
        assert isinstance(found, Snapshot)
        return found

    def commit(self, key: str, schema: str, **values: list[Any]) -> None:
        base = self.newest()
        label, count = base.version + 1, len(values["a"])
        rows = pa.table(
            {
                "_slot": pa.array([SLOT] * count, pa.int32()),
                "_key": [key] * count,
                "_etag": ["e"] * count,
                "_offset": pa.array(range(count), pa.int64()),
                **values,
            }
        )
        packs, files = self.table.data.staged(write([rows]), label=label)
        for name, body in files.items():
            self.store.put(name, body)
        pinned = grown(schema_of(base.metadata), source=schema, rows=schema, inferred=True)
        metadata, protocol = described(pinned, created_ms=1, table=base.table)
        state = ObjectState(key=key, etag="e", size=1, rows=count, since=label, until=label)
        change = RoundChange(
            base=base,
            slots={SLOT: SlotRound(changes={key: state})},
            table=self.table,
            clock=SYSTEM_CLOCK,
            rows=packs,
            metadata=metadata,
            protocol=protocol,
        )
        assert isinstance(self.table.commit(change, base), Committed)


def test_columns_without_values_leave_the_schema() -> None:
    """Otherwise columns that mistaken data has added would stay in the table for ever. Later rows must still be able to
    add columns to the earlier schema.
    """
    site = Site()
    planned = plan_schema_rollback(site.table, 1)
    assert (planned.columns, planned.in_use) == (("b", "s"), {})
    assert roll_back_schema(site.table, planned) == 3
    found = schema_of(site.newest().metadata)
    assert found is not None
    assert (json.loads(found.rows), json.loads(found.source)) == (json.loads(FIRST), json.loads(FIRST))
    site.commit("k2", columns(a="long", c="long"), a=[2], c=[3])
    events = schema_history(site.table.reader)
    assert [(each.event.version, dict(each.added)) for each in events] == [
        (4, {"c": "bigint"}),
        (3, {}),
        (2, {"b": "bigint", "s": "struct<x bigint>"}),
        (1, {}),
    ]


def test_schema_rollback_is_refused_while_a_column_to_be_removed_has_a_value() -> None:
    site = Site()
    site.commit("k2", SECOND, a=[1, 2], b=[None, 5], s=[{"x": 1}, None])
    planned = plan_schema_rollback(site.table, 1)
    assert planned.in_use == {"b": ("k2",), "s": ("k2",)}
    with pytest.raises(UsageError, match="like 'b' from k2: remove or correct these objects"):
        roll_back_schema(site.table, planned)
    assert site.newest().version == 3


def test_schema_rollback_is_refused_if_the_table_has_changed_after_the_plan() -> None:
    """Otherwise a value that was added meanwhile could be lost."""
    site = Site()
    planned = plan_schema_rollback(site.table, 1)
    site.commit("k2", SECOND, a=[1], b=[7])
    with pytest.raises(ConflictError, match="at the same time"):
        roll_back_schema(site.table, planned)


@pytest.mark.parametrize("version", [0, 9])
def test_schema_rollback_needs_a_version_with_a_schema(version: int) -> None:
    with pytest.raises(NotFoundError, match=f"version {version}"):
        plan_schema_rollback(Site().table, version)
