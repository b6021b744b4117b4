"""Packs of a round: new rows are written, rows of overwritten and deleted objects withdrawn. No request, no Spark.

A new pack holds rows of one label, and an object's state names the labels that its rows were planned as. So the packs
that may hold rows of an object are few: of those packs whose labels include it, that or those of its slot. Packs keep
the order of labels when they are merged (`rewrite_choice`), for the same reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.delta.actions import ANY_LABEL, Add
from s3notify_platform.table.packs.pack_file import (
    NewPack,
    OpenPack,
    PackReader,
    PackSizes,
    Place,
    Rows,
    place_of,
    rows_before,
)

SIZES = PackSizes(row=64)
"""So a full pack has a million rows, or, of longer ones, 64 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """An object whose rows are to leave; key None: all rows of the slot.

    `since` and `until`: between which labels they were planned.
    """

    slot: int
    key: str | None
    since: int = 0
    until: int = ANY_LABEL


Withdrawals = Sequence[Withdrawal]


# New rows.


def write(
    rows: Iterable[pa.Table | pa.RecordBatch], sizes: PackSizes = SIZES, *, schema: pa.Schema | None = None
) -> Iterator[NewPack]:
    """Packs of rows that come sorted by (`_slot`, `_key`, `_offset`), in their order.

    A pack ends where a slot ends, as soon as it is full. A slot with more than `sizes.target` Arrow bytes has packs of
    its own, each of which ends as soon as it is full. So a slot that a round leaves out is whole packs, or, if it is
    small, a part of one pack (`without_slots`). `schema`: of all rows; else that of the first. Memory: one pack.
    `UsageError`: the rows are not sorted.

    With `sizes.by_slot` rows come sorted by `_slot`, and replacing a slot rewrites less than 3 (`target` + `group`)
    bytes of others.
    """
    if sizes.by_slot:
        yield from _by_slot(rows, sizes, schema)
        return
    shared: OpenPack | None = None
    for pieces in _slots_of(rows, sizes):
        first: list[pa.Table] = []
        while (
            sum(piece.nbytes for piece in first) < sizes.target and (piece := next(pieces, None)) is not None
        ):
            first.append(piece)
        more = next(pieces, None)
        if more is not None:
            yield from _closed(shared)
            shared = None
            yield from _alone(chain(first, [more], pieces), sizes, schema or more.schema)
            continue
        for piece in first:
            shared = shared or OpenPack(schema=schema or piece.schema, sizes=sizes)
            shared.add(piece)
        if shared is not None and shared.size >= sizes.target:
            yield from _closed(shared)
            shared = None
    yield from _closed(shared)


def _alone(pieces: Iterable[pa.Table], sizes: PackSizes, schema: pa.Schema) -> Iterator[NewPack]:
    """Packs of one slot."""
    pack = OpenPack(schema=schema, sizes=sizes)
    for piece in pieces:
        pack.add(piece)
        if pack.size >= sizes.target:
            yield from _closed(pack)
            pack = OpenPack(schema=schema, sizes=sizes)
    yield from _closed(pack)


def _by_slot(
    rows: Iterable[pa.Table | pa.RecordBatch], sizes: PackSizes, schema: pa.Schema | None
) -> Iterator[NewPack]:
    """Packs that end with a slot once they are full, or within one: at twice the size if another slot is in them, too.

    So a slot shares at most two packs: that in which it begins with less than `target` of others before it, that in
    which it ends with less than twice as much after it. What is in a pack below `target` is not cut again by a merge.
    """
    pack, last, shared = None, -1, False
    for slot, piece in _pieces(rows, sizes):
        if pack is not None:
            limit = sizes.target if slot != last else 2 * sizes.target if shared else sizes.own
            if pack.size >= limit:
                yield from _closed(pack)
                pack = None
        shared = pack is not None and (shared or slot != last)
        pack = pack or OpenPack(schema=schema or piece.schema, sizes=sizes)
        pack.add(piece)
        last = slot
    yield from _closed(pack)


def _closed(pack: OpenPack | None) -> Iterator[NewPack]:
    if pack is not None and (done := pack.close()) is not None:
        yield done


def _slots_of(rows: Iterable[pa.Table | pa.RecordBatch], sizes: PackSizes) -> Iterator[Iterator[pa.Table]]:
    """The rows of one slot after another, each in pieces of up to a row group."""
    for _, pieces in groupby(_pieces(rows, sizes), key=itemgetter(0)):
        yield (piece for _, piece in pieces)


def _pieces(rows: Iterable[pa.Table | pa.RecordBatch], sizes: PackSizes) -> Iterator[tuple[int, pa.Table]]:
    last = -1
    for each in rows:
        table = pa.Table.from_batches([each]) if isinstance(each, pa.RecordBatch) else each
        fitting = max(1, table.num_rows * sizes.group // max(table.nbytes, 1))
        slots = table["_slot"].to_numpy()
        changes = (np.flatnonzero(np.diff(slots)) + 1).tolist()
        for start, end in pairwise([0, *changes, len(slots)]):
            slot = int(slots[start]) if end else last
            if slot < last:
                raise UsageError(f"rows of a pack must be sorted by _slot: {slot} comes after {last}")
            last = slot
            for place in range(start, end, fitting):
                yield slot, table.slice(place, min(fitting, end - place))


# Rows that leave.


def candidates(packs: Iterable[Add], leaving: Withdrawals) -> dict[str, list[Withdrawal]]:
    """Which packs, by path, may hold rows of which objects. A pack that may hold none is left out. Pure."""
    ordered = sorted(leaving, key=lambda each: each.slot)
    slots = np.array([each.slot for each in ordered], dtype=np.int64)
    found = {}
    for pack in packs:
        low, high = np.searchsorted(slots, pack.slots[0]), np.searchsorted(slots, pack.slots[1], "right")
        held = [
            each for each in ordered[low:high] if pack.may_hold(each.slot, each.key, each.since, each.until)
        ]
        if held:
            found[pack.path] = held
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A live pack, opened. `leaving`: the objects whose rows are to leave it; another round's are not looked for."""

    pack: PackReader
    leaving: Withdrawals = ()


@dataclass(slots=True, kw_only=True)
class Rewritten:
    """Packs that take the place of others. `packs`: empty if nothing is left. `withdrawn`: rows that left, by slot."""

    packs: list[NewPack] = field(default_factory=list)
    withdrawn: Counter[int] = field(default_factory=Counter)


def rewritten(held: Sequence[Held], sizes: PackSizes = SIZES) -> Rewritten:
    """The packs that take the place of these: their live rows, sorted together, without those that leave.

    One pack: a withdrawal as copy-on-write; several: a merge, beside it. Memory: a row group of each, and one
    pack. `withdrawn` may be empty: a pack's bounds do not say which objects it holds.
    """
    result = Rewritten()
    schema = pa.unify_schemas([each.pack.schema for each in held])
    streams = [_staying(each, schema, result.withdrawn) for each in held]
    result.packs += write(_merged(streams, sizes.order), sizes, schema=schema)
    return result


def without_slots(pack: NewPack, slots: Iterable[int], sizes: PackSizes = SIZES) -> NewPack | None:
    """A pack of this round without slots that another round has changed; None if nothing is left."""
    dropped = pa.array(sorted(slots), pa.int32())
    reader = PackReader.of(pack.body, where="a pack of this round")
    open_pack = OpenPack(schema=reader.schema, sizes=sizes)
    for rows in reader.groups():
        open_pack.add(rows.filter(pc.invert(pc.is_in(rows["_slot"], dropped))))
    return open_pack.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Rows that a pack's vector hides from now on, all of them; `withdrawn`: those that it did not hide before."""

    rows: Rows
    withdrawn: Mapping[int, int]


def hidden(held: Held) -> Hidden:
    """The rows of a pack that its next vector hides: those that were hidden, and those of objects that leave.

    Reads `_slot` and `_key` alone, of the row groups that may have them.
    """
    objects = _objects(held.leaving)
    before = held.pack.hidden if held.pack.hidden is not None else np.empty(0, dtype=np.int64)
    slots = np.unique(np.array([each.slot for each in held.leaving], dtype=np.int64))
    found = [before[:0]]
    counts: Counter[int] = Counter()
    for start, places in held.pack.places(slots):
        leaves = np.flatnonzero(_leaving(places, objects).to_numpy(zero_copy_only=False))
        new = np.setdiff1d(leaves + start, before, assume_unique=True)
        counts.update(places["_slot"].to_numpy()[new - start].tolist())
        found.append(new)
    return Hidden(rows=np.sort(np.concatenate([before, *found])), withdrawn=dict(counts))


Objects = tuple[pa.Array, pa.Array, pa.Array]
"""Keys and their slots; whole slots."""


def _objects(leaving: Withdrawals) -> Objects:
    keyed = [each for each in leaving if each.key is not None]
    return (
        pa.array([each.key for each in keyed], pa.string()),
        pa.array([each.slot for each in keyed], pa.int32()),
        pa.array([each.slot for each in leaving if each.key is None], pa.int32()),
    )


def _leaving(rows: pa.Table, objects: Objects) -> pa.Array:
    """Which rows are of one of the objects."""
    keys, slots, whole = objects
    leaves = pc.is_in(rows["_slot"], whole)
    if len(keys):
        number = pc.index_in(rows["_key"], keys)
        same = pc.equal(pc.take(slots, number), rows["_slot"])
        leaves = pc.or_(leaves, pc.fill_null(same, False))
    return leaves.combine_chunks()


def _staying(held: Held, schema: pa.Schema, withdrawn: Counter[int]) -> Iterator[pa.Table]:
    """The rows of a pack that stay, in groups; those that leave are counted."""
    objects = _objects(held.leaving)
    for rows in held.pack.groups():
        kept = rows
        if held.leaving:
            leaves = _leaving(rows, objects)
            withdrawn.update(rows.filter(leaves)["_slot"].to_pylist())
            kept = rows.filter(pc.invert(leaves))
        if kept.num_rows:
            yield pa.concat_tables([schema.empty_table(), kept], promote_options="default")


def _merged(streams: Sequence[Iterator[pa.Table]], order: tuple[str, ...]) -> Iterator[pa.Table]:
    """The rows of sorted streams as one sorted stream."""
    if len(streams) == 1:
        yield from streams[0]
        return
    waiting = {
        number: rows for number, stream in enumerate(streams) if (rows := next(stream, None)) is not None
    }
    while waiting:
        # What comes before the end of each is complete: no stream has more of it.
        ends: dict[int, Place] = {
            number: place_of(rows, rows.num_rows - 1, order) for number, rows in waiting.items()
        }
        first = min(ends, key=lambda number: ends[number])
        parts = []
        for number, rows in waiting.items():
            count = rows_before(rows, ends[first], order)
            parts.append(rows.slice(0, count))
            waiting[number] = rows.slice(count)
        more = next(streams[first], None)
        if more is None:
            # Its last place may be in others, too, and with more rows to come: it waits in one of them.
            others = [number for number in waiting if number != first]
            rest = waiting.pop(first)
            if others:
                heir = others[0]
                waiting[heir] = _sorted([rest, waiting[heir]], order)
            else:
                parts.append(rest)
        else:
            waiting[first] = pa.concat_tables([waiting[first], more]).combine_chunks()
        if any(part.num_rows for part in parts):
            yield _sorted(parts, order)


def _sorted(parts: Sequence[pa.Table], order: tuple[str, ...]) -> pa.Table:
    rows = pa.concat_tables(parts).combine_chunks()
    return rows.sort_by([(name, "ascending") for name in order])
