"""Derived slot tables, over a bucket in memory. Slots are replaced as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.check import check_table
from s3notify_platform.table.commit import CommitResult
from s3notify_platform.table.derived_round import NewSlot, Replacement
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.snapshot import Snapshot
from tests.support.log_tables import Table

SMALL = PackSizes(target=4000, smallest=1000, fan=2, in_class=3, group=1000, own=16_000, by_slot=True)

Slots = dict[int, list[Any]]
"""By slot, the values of its rows in order."""


@dataclass(kw_only=True)
class Derived:
    """One process that replaces slots of the table of `tests.support.log_tables`."""

    store: ObjectStore
    clock: Clock = SYSTEM_CLOCK
    vectors: bool = False
    sizes: PackSizes = SMALL
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        more = {"sizes": self.sizes, "vectors": self.vectors, **self.more}
        self.table = Table(store=self.store, clock=self.clock, more=more)
        self.whole = self.table.whole

    def planned(
        self, slots: Slots, *, source: int | None = 1, base: Snapshot | None = None, **columns: pa.DataType
    ) -> Replacement:
        """A round that replaces these slots. The round's packs are already stored.

        `source`: the version of the source's table from which the rows are made; None if this version is unknown.
        """
        base = base or self.table.opened()
        kind = columns or {"value": pa.string()}
        schema = pa.schema([pa.field("_slot", pa.int32()), *(pa.field(*each) for each in kind.items())])
        tables = [
            pa.table({"_slot": [slot] * len(values), **dict.fromkeys(kind, values)}, schema=schema)
            for slot, values in sorted(slots.items())
            if values
        ]
        packs, files = self.whole.data.staged(write(tables, self.sizes), label=base.version + 1)
        for key, body in files.items():
            self.store.put(key, body)
        new = {Slot(slot): NewSlot(rows=len(values), source=source) for slot, values in slots.items()}
        return Replacement(base=base, slots=new, table=self.whole, rows=packs)

    def commit(self, planned: Replacement) -> CommitResult:
        """Commits a round."""
        return self.whole.commit(planned, planned.base)

    def contents(self, snapshot: Snapshot | None = None) -> Mapping[int, list[Any]]:
        """The values of each slot, sorted. The table is checked, too."""
        snapshot = snapshot or self.table.opened()
        checked = check_table(self.whole, snapshot)
        assert checked.ok, checked.problems
        found: Slots = {}
        for pack in snapshot.packs.values():
            for group in self.whole.data.opened(pack).groups():
                for row in group.to_pylist():
                    found.setdefault(row["_slot"], []).append(row["value"])
        return {slot: sorted(values) for slot, values in found.items()}
