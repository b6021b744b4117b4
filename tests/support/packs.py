"""A table as packs in memory. Rounds write, withdraw and merge rows of objects by the plans of the platform."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from s3notify_platform.kernel.ports import StoredObject
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.delta.actions import Add, Vector
from s3notify_platform.table.packs.pack_file import NewPack, PackReader, PackSizes, Rows
from s3notify_platform.table.packs.rewrite_choice import BUDGET, plan_round
from s3notify_platform.table.packs.round_packs import Held, Withdrawal, hidden, rewritten, write

SCHEMA = pa.schema(
    [
        pa.field("_slot", pa.int32(), nullable=False),
        pa.field("_key", pa.string(), nullable=False),
        pa.field("_etag", pa.string(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("value", pa.string()),
    ]
)
TINY = PackSizes(target=6_000, smallest=1_500, fan=2, in_class=3, group=2_000)
"""With these sizes, a few rows already make many packs. An empty pack has about 1,500 bytes."""

Row = tuple[int, str, str, int]


def rows_of(rows: Iterable[Row]) -> pa.Table:
    """Makes rows in the order of a pack."""
    ordered = sorted(rows, key=lambda row: (row[0], row[1], row[3]))
    columns = list(zip(*ordered, strict=True)) or [()] * 4
    values = [f"{row[1]}/{row[2]}/{row[3]}" for row in ordered]
    return pa.table([pa.array(v, f.type) for v, f in zip([*columns, values], SCHEMA, strict=True)], SCHEMA)


def rows_in(pack: NewPack | bytes, gone: Rows | None = None) -> list[Row]:
    body = pack.body if isinstance(pack, NewPack) else pack
    return [
        (row["_slot"], row["_key"], row["_etag"], row["_offset"])
        for group in PackReader.of(body, gone, where="test").groups()
        for row in group.to_pylist()
    ]


@dataclass(kw_only=True)
class PackTable:
    """The packs of the newest version, and each object's slot and label."""

    sizes: PackSizes = TINY
    vectors: bool = False
    budget: int = BUDGET
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    packs: dict[str, Add] = field(default_factory=dict)
    hidden: dict[str, Rows] = field(default_factory=dict)
    objects: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By key, the slot and the label of each object."""
    rows: Counter[Row] = field(default_factory=Counter)
    version: int = 0
    newest: set[str] = field(default_factory=set)
    merged_bytes: int = 0

    def round(self, changed: Mapping[str, tuple[int, int]], gone: Sequence[str] = ()) -> None:
        """Commits one version. `changed`: for each object that was read, its slot and its number of rows."""
        label = self.version + 1
        leaving = [
            Withdrawal(
                slot=self.objects[key][0], key=key, since=self.objects[key][1], until=self.objects[key][1]
            )
            for key in {*changed, *gone} & self.objects.keys()
        ]
        before = Counter(row[0] for row in self.rows.elements() if row[1] in {w.key for w in leaving})
        plan = plan_round(
            self.packs.values(), leaving, vectors=self.vectors, sizes=self.sizes, budget=self.budget
        )
        withdrawn: Counter[int] = Counter()
        for path, objects in plan.hides.items():
            found = hidden(self._held(path, objects))
            withdrawn.update(found.withdrawn)
            self._hide(path, found.rows)
        for rewrite in plan.rewrites:
            done = rewritten([self._held(p, rewrite.leaving.get(p, [])) for p in rewrite.paths], self.sizes)
            withdrawn.update(done.withdrawn)
            assert rewrite.data_change or not done.withdrawn
            for path in rewrite.paths:
                del self.packs[path]
                self.hidden.pop(path, None)
            for pack in done.packs:
                self.merged_bytes += len(pack.body)
                self._keep(pack, rewrite.since, rewrite.until)
        assert withdrawn == before
        new = [(slot, key, f"e{label}", n) for key, (slot, count) in changed.items() for n in range(count)]
        self.newest = {
            self._keep(pack, label, label) for pack in write([rows_of(new)], self.sizes, schema=SCHEMA)
        }
        left = {each.key for each in leaving}
        self.rows = Counter({row: n for row, n in self.rows.items() if row[1] not in left}) + Counter(new)
        self.objects = {key: at for key, at in self.objects.items() if key not in left}
        self.objects |= {key: (slot, label) for key, (slot, _) in changed.items()}
        self.version = label

    def live(self) -> Counter[Row]:
        """The rows that a reader of the packs sees."""
        return Counter(row for path in self.packs for row in rows_in(self._body(path), self.hidden.get(path)))

    def in_classes(self) -> Counter[int | None]:
        """The number of packs in each size class, without the packs of the newest round."""
        return Counter(
            self.sizes.class_of(pack.size * pack.live_rows // pack.rows)
            for path, pack in self.packs.items()
            if path not in self.newest
        )

    def _held(self, path: str, leaving: Sequence[Withdrawal]) -> Held:
        reader = PackReader.of(self._body(path), self.hidden.get(path), where=path)
        return Held(pack=reader, leaving=leaving)

    def _keep(self, pack: NewPack, since: int, until: int) -> str:
        path = f"data/{len(self.store.list('data/').objects)}.parquet"
        self.store.put(path, pack.body)
        self.packs[path] = pack.add(path, now_ms=0, since=since, until=until)
        return path

    def _hide(self, path: str, rows: Rows) -> None:
        pack = self.packs[path]
        if len(rows) == pack.rows:
            del self.packs[path]
            self.hidden.pop(path, None)
            return
        self.hidden[path] = rows
        fields: dict[str, Any] = {name: getattr(pack, name) for name in Add.__dataclass_fields__}
        vector = Vector(storage="i", body=f"{path}@{self.version}", size=0, rows=len(np.unique(rows)))
        self.packs[path] = Add(**fields | {"vector": vector})

    def _body(self, path: str) -> bytes:
        found = self.store.get(path)
        assert isinstance(found, StoredObject)
        return found.body
