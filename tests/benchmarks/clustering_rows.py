"""The rows of `clustering`, and the commits of their objects. Each batch is one object.

Most rows of an object have the same day, and random customers.
"""

from dataclasses import dataclass, field
from datetime import date, timedelta

import numpy as np
import pyarrow as pa

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import TableSchema, described
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot

CUSTOMERS = 100_000
FIRST_DAY = date(2026, 1, 1)
SPARK = (
    '{"type":"struct","fields":['
    '{"name":"dt","type":"date","nullable":true,"metadata":{}},'
    '{"name":"customer_id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"amount","type":"double","nullable":true,"metadata":{}},'
    '{"name":"note","type":"string","nullable":true,"metadata":{}}]}'
)


def key_of(number: int) -> str:
    return f"in/{number:05d}.parquet"


@dataclass(kw_only=True)
class Batches:
    """The batches of a source with this number of slots. Each object has `each` rows."""

    slots: int
    each: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    states: dict[str, ObjectState] = field(default_factory=dict)

    def slot_of(self, number: int) -> Slot:
        return slot_of(key_of(number), self.slots)

    def commit(self, table: LogTable, base: Snapshot, number: int, *, etag: str = "e") -> Snapshot:
        """Commits the object with this number as if it had been read, or as deleted if `etag` is empty.

        Returns the table after the commit.
        """
        key, slot, label = key_of(number), self.slot_of(number), base.version + 1
        new = [self._rows(number, etag)] if etag else []
        packs, bodies = table.data.staged(write(new, table.data.sizes), label=label)
        for path, body in bodies.items():
            table.reader.store.put(path, body)
        state = ObjectState(key=key, etag=etag, size=0, gone=True)
        if etag:
            state = ObjectState(key=key, etag=etag, size=1, rows=self.each, since=label, until=label)
        before = {key: self.states[key]} if key in self.states else {}
        metadata, protocol = described(TableSchema(source=SPARK, rows=SPARK), created_ms=1, table=base.table)
        change = RoundChange(
            base=base, slots={slot: SlotRound(changes={key: state}, before=before, label=label)}, table=table,
            clock=SYSTEM_CLOCK, rows=packs, metadata=metadata, protocol=protocol,
        )  # fmt: skip
        done = table.commit(change, base)
        assert isinstance(done, Committed)
        assert not change.dropped, change.dropped
        self.states[key] = state
        return done.snapshot

    def _rows(self, number: int, etag: str) -> pa.Table:
        each, rng = self.each, self.rng
        late = rng.random(each) < 0.02  # some rows have earlier days
        days = np.where(late, rng.integers(0, number // 20 + 1, each), number // 20)
        return pa.table(
            {
                "_slot": pa.array(np.full(each, self.slot_of(number), np.int32)),
                "_key": pa.array([key_of(number)] * each),
                "_etag": pa.array([etag] * each),
                "_offset": pa.array(np.arange(each)),
                "dt": pa.array([FIRST_DAY + timedelta(days=int(day)) for day in days]),
                "customer_id": pa.array(rng.integers(0, CUSTOMERS, each)),
                "amount": pa.array(rng.random(each) * 100),
                "note": pa.array([f"note {n}" for n in rng.integers(0, 10_000_000, each).tolist()]),
            }
        )
