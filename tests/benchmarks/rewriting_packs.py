"""A table with real packs. States and manifest are only bytes of the right size.

A round has the requests of a real commit: 2 GETs (the next version, `known`), and 1 PUT each for states, manifest,
version and `known`. Every 20 rounds there is a checkpoint, too. Merges of states do not run, but their requests and
bytes are computed. The reads of pages with known objects are computed, too. A warm process already has the pages with
the objects that changed in the last hour.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from s3notify_platform.table.delta.actions import Add, LogVersion, Remove, Vector
from s3notify_platform.table.packs.pack_file import NewPack, PackReader, PackSizes, Rows
from s3notify_platform.table.packs.rewrite_choice import Rewrite, plan_round
from s3notify_platform.table.packs.round_packs import Held, Withdrawal, hidden, rewritten, write
from tests.benchmarks.rewriting_rows import RECORDS, Numbers, key_of, rows_of
from tests.benchmarks.rewriting_store import Spent, Tally, measured

MANIFEST = bytes(25_000)
"""The size of a manifest, which has the counts of 1,000 slots, and the ETags of their signals."""
STATE_BYTES = 33
"""The size of an object's state in a file of states."""
STATE_PAGE = 4096
STATE_LEVELS = 3
WHOLE = 1 << 20
"""Packs of at most this size are read as a whole."""


@dataclass(kw_only=True)
class Packs:
    """A table of packs. Its first version has the label 1."""

    slots: Numbers
    total: int
    vectors: bool = False
    sizes: PackSizes = field(default_factory=PackSizes)
    store: Tally = field(default_factory=Tally)
    spent: Spent = field(default_factory=Spent)
    live: dict[str, Add] = field(default_factory=dict)
    hidden: dict[str, Rows] = field(default_factory=dict)
    labels: Numbers = field(init=False)
    version: int = 1
    files: int = 0
    vector_bytes: int = 0
    rewritten_bytes: int = 0
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2))

    def __post_init__(self) -> None:
        self.labels = np.zeros(len(self.slots), dtype=np.int64)
        self.labels[: self.total] = 1
        order = np.lexsort((np.arange(self.total), self.slots[: self.total]))
        self.ranks = np.empty(self.total, dtype=np.int64)
        self.ranks[order] = np.arange(self.total)
        self.order = order

    def fill(self) -> None:
        """Writes all objects as real packs, in one round."""
        chunks = (
            rows_of(self.order[start : start + 4096], self.slots, self.chance)
            for start in range(0, self.total, 4096)
        )
        for pack in write(chunks, self.sizes):
            self._keep(pack, 1, 1)

    def fork(self, *, vectors: bool) -> "Packs":
        """A table with the same packs, for another run. Both tables use the same store."""
        return replace(self, vectors=vectors, spent=Spent(), live=dict(self.live), hidden=dict(self.hidden))

    def round(self, changed: Numbers, gone: Numbers) -> None:
        rows = rows_of(changed, self.slots, self.chance) if len(changed) else None
        before = dict(self.live)
        with measured(self.spent, self.store):
            self._round(rows, changed, gone)
        self.spent.rounds += 1
        self.spent.live = len(self.live)
        for path in before.keys() - self.live.keys():
            if before[path].since > 1:  # other runs share the initial packs
                self.store.store.delete(path)

    def _round(self, rows: pa.Table | None, changed: Numbers, gone: Numbers) -> None:
        label = self.version + 1
        left = np.concatenate([changed[self.labels[changed] > 0], gone])
        leaving = [
            Withdrawal(slot=slot, key=key_of(number), since=at, until=at)
            for number, slot, at in zip(
                left.tolist(), self.slots[left].tolist(), self.labels[left].tolist(), strict=True
            )
        ]
        self._look_up(left)
        before = dict(self.live)
        plan = plan_round(self.live.values(), leaving, vectors=self.vectors, sizes=self.sizes)
        withdrawn = self._hide(plan.hides) + sum(self._rewrite(each) for each in plan.rewrites)
        assert withdrawn == RECORDS * len(leaving), (withdrawn, len(leaving))
        for pack in write([rows], self.sizes) if rows is not None else ():
            self._keep(pack, label, label)
        self.labels[gone] = 0
        self.labels[changed] = label
        self.version = label
        self._commit(before, changed, gone)

    def _look_up(self, left: Numbers) -> None:
        """Counts the reads of pages with the states of initial objects that have not changed yet."""
        old = left[self.labels[left] == 1]
        pages = len(np.unique(self.ranks[old] // STATE_PAGE))
        self.store.counts["GET"] += pages
        self.store.read += pages * STATE_PAGE * STATE_BYTES

    def _hide(self, hides: Mapping[str, list[Withdrawal]]) -> int:
        withdrawn = size = 0
        for path, objects in hides.items():
            found = hidden(self._held(path, objects))
            if not found.withdrawn:
                continue
            withdrawn += sum(found.withdrawn.values())
            if len(found.rows) == self.live[path].rows:
                del self.live[path]
                self.hidden.pop(path, None)
                continue
            self.hidden[path] = found.rows
            vector = Vector(
                storage="u", body="v" * 20, size=vector_size(found.rows), rows=len(found.rows), offset=size
            )
            size += vector.size
            self.live[path] = replace(self.live[path], vector=vector)
        if size:
            self.store.put(f"data/vectors-{self.version}.bin", bytes(size))
            self.vector_bytes += size
        return withdrawn

    def _rewrite(self, rewrite: Rewrite) -> int:
        done = rewritten(
            [self._held(p, rewrite.leaving.get(p, []), whole=True) for p in rewrite.paths], self.sizes
        )
        if len(rewrite.paths) == 1 and rewrite.leaving and not done.withdrawn:
            return 0
        for path in rewrite.paths:
            del self.live[path]
            self.hidden.pop(path, None)
        for pack in done.packs:
            self.rewritten_bytes += len(pack.body)
            self._keep(pack, rewrite.since, rewrite.until)
        return done.withdrawn.total()

    def _held(self, path: str, leaving: Sequence[Withdrawal], *, whole: bool = False) -> Held:
        gone = self.hidden.get(path)
        self.store.counts["GET"] += gone is not None  # the read of the deletion vector, if the pack has one
        if whole or self.live[path].size <= WHOLE:
            return Held(pack=PackReader.of(self.store.body(path), gone, where=path), leaving=leaving)
        return Held(pack=PackReader.of(self.store.ranges(path), gone, where=path), leaving=leaving)

    def _keep(self, pack: NewPack, since: int, until: int) -> None:
        self.files += 1
        path = f"data/{self.files:032}.parquet"
        self.store.put(path, pack.body)
        self.live[path] = pack.add(path, now_ms=0, since=since, until=until)

    def _commit(self, before: Mapping[str, Add], changed: Numbers, gone: Numbers) -> None:
        states = bytes(STATE_BYTES * (len(changed) + len(gone)))
        self._put("states", states)
        # Merges take eight files at each level. On the last level, the states of all objects are merged every
        # 8 ** levels rounds.
        self.store.counts.update({"PUT": 1, "GET": STATE_LEVELS})
        self.store.written += STATE_LEVELS * len(states) + STATE_BYTES * self.total // 8**STATE_LEVELS
        self._put("manifest", MANIFEST)
        adds = [add for path, add in self.live.items() if before.get(path) != add]
        gone_adds = [add for path, add in before.items() if self.live.get(path) != add]
        removes: Iterable[Remove] = (add.removed(0) for add in gone_adds)
        self._put("version", LogVersion(number=1 << 62, adds=tuple(adds), removes=tuple(removes)).dumps())
        self._put("known", bytes(200))
        self.store.counts["GET"] += 2
        if self.version % 20 == 0:
            self._put("checkpoint", bytes(400 * len(self.live)))
            self._put("last_checkpoint", bytes(200))

    def _put(self, name: str, body: bytes) -> None:
        self.store.put(name, body)


def vector_size(rows: Rows) -> int:
    """The size of a deletion vector in bytes: a portable RoaringBitmap in its frame."""
    size = 40
    for _, part in _containers(rows):
        runs = 1 + int(np.count_nonzero(np.diff(part) != 1))
        size += 8 + min(2 * len(part), 8192, 2 + 4 * runs)
    return size


def _containers(rows: Rows) -> Iterable[tuple[int, Rows]]:
    numbers, starts = np.unique(rows >> 16, return_index=True)
    return zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True)
