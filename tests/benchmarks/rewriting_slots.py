"""Today's table, one file a slot and more: the real files, states and commits of some slots, by batches."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.ingest.slot_files import new_files
from s3notify_platform.ports import Written
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable, TableFile
from s3notify_platform.table.layout import Generation, TableLayout
from tests.benchmarks.rewriting_rows import RECORDS, Numbers, key_of, rows_of
from tests.benchmarks.rewriting_store import Spent, Tally, measured


@dataclass(kw_only=True)
class SlotsToday:
    """The slots of `sample`; a batch's objects of other slots are passed over. The work of each is that of `stage`."""

    sample: Numbers
    slots: Numbers
    store: Tally = field(default_factory=Tally)
    spent: Spent = field(default_factory=Spent)
    heads: dict[int, SlotCommit] = field(default_factory=dict)
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2))

    def __post_init__(self) -> None:
        commits = NativeCommit(self.store)
        self.table = SlotTable(self.store, TableLayout(prefix="t/"), commits)

    def round(self, changed: Numbers, gone: Numbers) -> None:
        for slot in self.sample.tolist():
            read = changed[self.slots[changed] == slot]
            left = gone[self.slots[gone] == slot]
            if not (len(read) or len(left)):
                continue
            rows = rows_of(read, self.slots, self.chance) if len(read) else None
            before = self.heads.get(slot)
            with measured(self.spent, self.store):
                head = self._commit(Slot(slot), rows, [key_of(n) for n in left.tolist()])
            self.heads[slot] = head
            self._forget(slot, before, head)
        self.spent.rounds += 1
        self.spent.live = sum(len(head.files) for head in self.heads.values())

    def _commit(self, slot: Slot, rows: pa.Table | None, left: list[str]) -> SlotCommit:
        at = SYSTEM_CLOCK.monotonic()
        newest = self.heads.get(slot)
        head = self.table.read(slot, newest.generation) if newest else None
        generation = Generation(head.generation + 1 if head else 1)
        etags = dict(zip(rows["_key"].to_pylist(), rows["_etag"].to_pylist(), strict=True)) if rows else {}
        known = self.table.states(head, {*etags, *left})
        data, _ = new_files(self.table, slot, generation)
        if rows:
            data.add(rows)
        leaving = {*etags, *left}
        replaced = data.replace(
            head.files if head else (), [known[k] for k in leaving if k in known], leaving
        )
        states = [
            ObjectState(
                key=key, etag=etag, size=2048, offset=2048, rows=RECORDS, since=generation, until=generation
            )
            for key, etag in etags.items()
        ]
        states += [ObjectState(key=key, etag="", size=0, gone=True) for key in left]
        kept: tuple[TableFile, ...] = tuple(
            file for file in (head.files if head else ()) if file.name not in replaced
        )
        commit = SlotCommit.after(
            head,
            slot,
            batch="b",
            clock=SYSTEM_CLOCK,
            states=self.table.carry(slot, head, states),
            files=(*kept, *data.written),
            objects=(head.objects if head else 0) + len(etags.keys() - known.keys()) - len(left),
            signal="0" * 32,
        )
        assert isinstance(self.table.commit(commit.staged(), planned_at=at), Written)
        return commit

    def _forget(self, slot: int, before: SlotCommit | None, head: SlotCommit) -> None:
        """Vacuum, uncounted, for this process to stay small."""
        if before is None:
            return
        layout = self.table.layout
        gone = [layout.commit(Slot(slot), before.generation)]
        gone += [layout.data(Slot(slot), file.name) for file in {*before.files} - {*head.files}]
        gone += [layout.state(Slot(slot), page.name) for page in {*before.pages} - {*head.pages}]
        for key in gone:
            self.store.store.delete(key)
