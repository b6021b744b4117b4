"""Computes the packs of a table after a round: new packs are added, rows that leave are withdrawn, small packs are
merged.

Packs of rejects, which the log does not name, are handled in the same way.

Each pack that is rewritten costs 1 GET. A pack that gets a vector costs 1 GET. `PackSet.changed` and `merged` return
the new bodies, and the commit writes these bodies before the version. If the new bodies would exceed `HELD_PACK_BYTES`
in total, a body is stored immediately, by 1 PUT.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.errors import ConflictError, CorruptError, UnavailableError
from s3notify_platform.kernel.limits import CARRIED_PACK_BYTES, HELD_PACK_BYTES
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import ObjectStore, StoredObject, Written
from s3notify_platform.table.delta import vectors
from s3notify_platform.table.delta.actions import Add, Remove
from s3notify_platform.table.delta.statistics import hidden as with_vector
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.packs.pack_file import NewPack, PackReader, PackSizes, Rows
from s3notify_platform.table.packs.rewrite_choice import Rewrite, plan_round
from s3notify_platform.table.packs.round_packs import (
    SIZES,
    Held,
    Withdrawal,
    Withdrawals,
    hidden,
    rewritten,
    without_slots,
)

READS_IN_FLIGHT: Final = 4
"""The largest number of packs that are in memory at the same time."""

ORDERED_ROWS: Final = 64 << 10
"""If the pack of another engine must be sorted, the sorted row groups have this number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPack:
    """A pack of a round that is not committed yet. `slots`: the number of rows by slot.

    `body`: the pack's bytes if the commit writes the pack, or b"" if the pack is already stored.
    """

    add: Add
    slots: Mapping[int, int]
    body: bytes = b""

    def dumps(self) -> str:
        """Returns the pack as JSON, without its body. A task sends this text to its driver."""
        return json.dumps([self.add.json(), [*self.slots.items()]], separators=(",", ":"))

    @classmethod
    def loads(cls, text: str, body: bytes) -> "StagedPack":
        """Decodes the result of `dumps`."""
        add, slots = json.loads(text)
        return cls(add=Add.of(add), slots=dict(slots), body=body)


@dataclass(slots=True, kw_only=True)
class PackChanges:
    """The packs that a round adds and removes. `withdrawn`: the number of withdrawn rows, by slot.

    `files`: the bodies to write, by key. `lost`: the slots that are lost because an erasure has deleted their staged
    packs, which had rows of the erased object.
    """

    adds: list[Add] = field(default_factory=list)
    removes: list[Remove] = field(default_factory=list)
    withdrawn: Counter[int] = field(default_factory=Counter)
    files: dict[str, bytes] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSet:
    """Reads and makes packs of one table.

    `path`: makes a path from the name of a new pack (`TableLayout.pack_path`, `reject_path`). `vectors`: True if
    deletion vectors may hide rows, which saves rewrites. If a change is computed again on top of another version, the
    packs that were already made are used again.
    """

    store: ObjectStore
    layout: TableLayout
    clock: Clock
    path: Callable[[str], str]
    sizes: PackSizes = SIZES
    vectors: bool = False
    _made: dict[object, tuple[list[tuple[Add, bytes]], Counter[int]]] = field(default_factory=dict)

    def fresh(self, *, vectors: bool | None = None) -> "PackSet":
        """Returns a copy of this set for one change, without the packs of earlier changes."""
        return replace(self, vectors=self.vectors if vectors is None else vectors, _made={})

    def changed(
        self,
        live: Iterable[Add],
        leaving: Withdrawals,
        own: Sequence[StagedPack],
        *,
        without: frozenset[int] = frozenset(),
        fresh: Collection[str] = (),
    ) -> PackChanges:
        """Returns the changes of packs: the packs in `own` are added to the live packs, and the rows of the objects in
        `leaving` are withdrawn.

        `without`: slots that are left out of the packs in `own`, because another round has changed these slots.
        `fresh`: the paths of packs that earlier changes of the same version add (`plan_round`).
        """
        packs = {pack.path: pack for pack in live}
        plan = plan_round(
            packs.values(),
            leaving,
            vectors=self.vectors,
            sizes=self.sizes,
            budget=self.sizes.budget,
            fresh=fresh,
        )
        found, now_ms = PackChanges(), self.clock.wall_ms()
        for rewrite in plan.rewrites:
            self._rewrite(rewrite, packs, found, now_ms)
        if plan.hides:
            self._hide(plan.hides, packs, found, now_ms)
        for each in own:
            self._join(each, without, found)
        return found

    def _rewrite(self, rewrite: Rewrite, packs: Mapping[str, Add], found: PackChanges, now_ms: int) -> None:
        olds = [packs[path] for path in rewrite.paths]
        alone = len(olds) == 1 and not olds[0].vector
        key = (tuple(old.id for old in olds), _frozen(rewrite.leaving))
        if key not in self._made:
            held = [Held(pack=self.ordered(old), leaving=rewrite.leaving.get(old.path, ())) for old in olds]
            made = rewritten(held, self.sizes)
            new = made.packs if made.withdrawn or not alone else []
            change = bool(made.withdrawn)
            named = self.named(new, found, since=rewrite.since, until=rewrite.until, data_change=change)
            self._made[key] = named, made.withdrawn
        named, withdrawn = self._made[key]
        if alone and not withdrawn:
            return  # the pack's bounds include leaving objects, but the pack has no rows of these objects
        change = bool(withdrawn)
        found.withdrawn += withdrawn
        found.removes += [old.removed(now_ms, data_change=change) for old in olds]
        self.append(named, found)

    def named(
        self,
        packs: Iterable[NewPack],
        found: PackChanges,
        *,
        since: int,
        until: int,
        data_change: bool = True,
    ) -> list[tuple[Add, bytes]]:
        """Returns the action and the body of each new pack.

        If the bodies in `found` and the returned bodies would exceed `HELD_PACK_BYTES` in total, a body is stored now,
        by 1 PUT, and returned empty.
        """
        named = []
        held = sum(map(len, found.files.values()))
        for pack in packs:
            add = self.add(unique_name(self.clock), pack, since=since, until=until, data_change=data_change)
            if held + len(pack.body) > HELD_PACK_BYTES:
                put(self.store, self.layout.file(add.path), pack.body)
                named.append((add, b""))
            else:
                held += len(pack.body)
                named.append((add, pack.body))
        return named

    def append(self, named: Iterable[tuple[Add, bytes]], found: PackChanges) -> None:
        """Adds these packs, and their bodies, to the changes."""
        for add, body in named:
            found.adds.append(add)
            if body:
                found.files[self.layout.file(add.path)] = body

    def _hide(
        self,
        hides: Mapping[str, list[Withdrawal]],
        packs: Mapping[str, Add],
        found: PackChanges,
        now_ms: int,
    ) -> None:
        def of(path: str) -> tuple[str, Rows, Mapping[int, int]]:
            done = hidden(Held(pack=self.opened(packs[path]), leaving=hides[path]))
            return path, done.rows, done.withdrawn

        done = [each for each in in_parallel(of, sorted(hides), READS_IN_FLIGHT) if each[2]]
        emptied = {path for path, rows, _ in done if len(rows) == packs[path].rows}
        file = UUID(bytes=self.clock.random_bytes(16))
        encoded = vectors.encode({path: rows for path, rows, _ in done if path not in emptied}, file=file)
        if encoded.body is not None:
            found.files[self.layout.file(vectors.path_of(file))] = encoded.body
        for path, _, withdrawn in done:
            found.withdrawn += Counter(withdrawn)
            found.removes.append(packs[path].removed(now_ms))
            if path not in emptied:
                found.adds.append(with_vector(packs[path], encoded.vectors[path]))

    def _join(self, own: StagedPack, without: frozenset[int], found: PackChanges) -> None:
        dropped = frozenset(without & own.slots.keys())
        if not dropped:
            self.append([(own.add, own.body)], found)
            return
        if dropped == own.slots.keys():
            return
        key = (own.add.id, dropped)
        if key not in self._made:
            body = own.body
            if not body:
                stored = self.store.get(self.layout.file(own.add.path))
                if not isinstance(stored, StoredObject):
                    found.lost |= own.slots.keys()
                    return
                body = stored.body
            whole = NewPack(body=body, slots=own.slots, keys=own.add.keys)
            left = without_slots(whole, dropped, self.sizes)
            new = self.named([left] if left else [], found, since=own.add.since, until=own.add.until)
            self._made[key] = (new, Counter())
        self.append(self._made[key][0], found)

    def merged(self, olds: Sequence[Add]) -> PackChanges:
        """Merges these packs into one pack, or several full packs, without the rows that vectors hide.

        Cost: 1 GET for each pack.
        """
        rewrite = Rewrite(
            paths=tuple(old.path for old in olds),
            leaving={},
            since=min(old.since for old in olds),
            until=max(old.until for old in olds),
        )
        found = PackChanges()
        self._rewrite(rewrite, {old.path: old for old in olds}, found, self.clock.wall_ms())
        return found

    def add(self, name: str, pack: NewPack, *, since: int, until: int, data_change: bool = True) -> Add:
        """Returns the action that adds this new pack under this name."""
        return pack.add(
            self.path(name), now_ms=self.clock.wall_ms(), since=since, until=until, data_change=data_change
        )

    def staged(self, packs: Iterable[NewPack], *, label: int) -> tuple[list[StagedPack], dict[str, bytes]]:
        """Returns these packs, staged under fresh names, and their bodies by key. All rows get the label `label`."""
        found, files = [], {}
        for pack in packs:
            add = self.add(unique_name(self.clock), pack, since=label, until=label)
            found.append(StagedPack(add=add, slots=pack.slots))
            files[self.layout.file(add.path)] = pack.body
        return found, files

    def narrowed(self, own: StagedPack, slots: frozenset[int]) -> list[StagedPack]:
        """Returns a copy of the staged pack without the rows of these slots, under a new name. Returns an empty list if
        no rows remain.

        No request is made if the pack has none of these slots, or only these slots. Otherwise, a stored pack costs 1
        GET. The commit writes a small new body with the version. A larger new body is stored now by 1 PUT, because a
        round may have many large bodies. `ConflictError`: an erasure has deleted the stored pack, so its slots must be
        planned again.
        """
        dropped = frozenset(slots & own.slots.keys())
        if not dropped or dropped == own.slots.keys():
            return [] if dropped else [own]
        found = PackChanges()
        self._join(own, dropped, found)
        if found.lost:
            raise ConflictError(f"{self.layout.file(own.add.path)}: an erasure has deleted it: plan again")
        rest = {slot: rows for slot, rows in own.slots.items() if slot not in dropped}
        return [
            self.carried(
                StagedPack(add=add, slots=rest, body=found.files.get(self.layout.file(add.path), b""))
            )
            for add in found.adds
        ]

    def carried(self, own: StagedPack) -> StagedPack:
        """Returns the pack with its body, if the body is small.

        A larger body is stored by 1 PUT, and the pack is returned without its body.
        """
        if len(own.body) <= CARRIED_PACK_BYTES:
            return own
        put(self.store, self.layout.file(own.add.path), own.body)
        return replace(own, body=b"")

    def opened(self, pack: Add) -> PackReader:
        """Returns a live pack, without the rows that its vector hides. Cost: 1 GET, and 1 GET more for a vector in a
        file.
        """
        where = self.layout.file(pack.path)
        rows: Rows | None = None
        if pack.vector is not None:
            bitmap = vectors.decode(pack.vector, rows=pack.rows, stored=self._vector(pack), where=where)
            rows = np.array(bitmap.to_array(), dtype=np.int64)
        return PackReader.of(self._body(pack), rows, where=where)

    def ordered(self, pack: Add) -> PackReader:
        """Returns a live pack with sorted rows. The packs of other engines may be unsorted."""
        found = self.opened(pack)
        if pack.since:
            return found
        rows = pa.concat_tables(found.groups()).sort_by([(name, "ascending") for name in self.sizes.order])
        sink = io.BytesIO()
        pq.write_table(rows, sink, row_group_size=ORDERED_ROWS)
        return PackReader.of(sink.getvalue(), where=pack.path)

    def _vector(self, pack: Add) -> bytes:
        assert pack.vector is not None
        if (path := vectors.file_of(pack.vector)) is None:
            return b""
        start, end = vectors.span(pack.vector)
        found = self.store.get_range(self.layout.file(path), start, end)
        if found is None:
            raise CorruptError(
                f"{self.layout.file(path)}, which hides rows of {pack.path}, is missing: restore it"
            )
        return found

    def _body(self, pack: Add) -> bytes:
        found = self.store.get(self.layout.file(pack.path))
        if not isinstance(found, StoredObject):
            raise CorruptError(f"{self.layout.file(pack.path)}, which is live, is missing: restore it")
        return found.body


def put(store: ObjectStore, key: str, body: bytes) -> None:
    """Stores a file under its new name. Cost: 1 PUT. `UnavailableError`: the caller may try again."""
    # No other writer uses this new name, so a repeated write stores the same body.
    if not isinstance(outcome := store.put(key, body), Written):
        raise UnavailableError(f"{key}: {outcome}: try again")


def _frozen(leaving: Mapping[str, Sequence[Withdrawal]]) -> object:
    return tuple(sorted((path, tuple(some)) for path, some in leaving.items() if some))


def live_after(live: Iterable[Add], changes: PackChanges) -> tuple[Add, ...]:
    """Returns the live packs after these changes."""
    gone = {each.id for each in changes.removes}
    return (*(pack for pack in live if pack.id not in gone), *(replace(add) for add in changes.adds))
