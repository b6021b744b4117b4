"""Makes the packs of a round: writes new rows, and withdraws the rows of overwritten and deleted objects. The module
makes no request, and needs no Spark.

All rows of a new pack have the same label. The state of an object has the first and the last label of its rows. So only
a few packs may have rows of an object: the packs whose ranges of labels and slots include the object's labels and slot.
Merges join only packs with neighbouring labels (`rewrite_choice`), so that these ranges stay small.
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
"""A full pack has a million rows or 64 MB, whichever is reached first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """An object whose rows are withdrawn. If `key` is None, all rows of the slot are withdrawn.

    `since` and `until`: the lowest and the highest label of these rows.
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
    """Yields packs of these rows. The rows must be sorted by (`_slot`, `_key`, `_offset`).

    A full pack ends where a slot ends. A slot with more than `sizes.target` Arrow bytes gets separate packs, each of
    which ends as soon as it is full. So a large slot fills whole packs, and a small slot is in one pack. So a round can
    leave out a slot at little cost (`without_slots`). `schema`: the schema of all rows, by default the schema of the
    first rows. Memory holds one pack. `UsageError`: the rows are not sorted.

    With `sizes.by_slot`, it is enough if the rows are sorted by `_slot`, and the replacement of a slot rewrites less
    than 3 * (`target` + `group`) bytes of other slots.
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
    """Yields packs that have rows of one slot only."""
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
    """Yields packs for `by_slot`: a full pack ends at the end of a slot.

    A pack may also end within a slot: at twice the full size, or at `own` bytes if the pack has only this slot. So a
    slot shares at most two packs with other slots. The pack where the slot begins has less than `target` bytes of
    earlier slots. The pack where the slot ends has less than twice `target` bytes of later slots. A merge of packs that
    are smaller than `target` does not divide the rows of a slot further.
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
    """Yields the rows of each slot, slot by slot. A slot's rows come in pieces, each of which fits into a row group."""
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


# Withdrawal


def candidates(packs: Iterable[Add], leaving: Withdrawals) -> dict[str, list[Withdrawal]]:
    """Maps the path of each pack to the objects in `leaving` that may have rows in this pack. Packs without such
    objects are left out. Pure.
    """
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
    """An opened live pack. `leaving`: the objects whose rows are withdrawn from the pack."""

    pack: PackReader
    leaving: Withdrawals = ()


@dataclass(slots=True, kw_only=True)
class Rewritten:
    """The result of a rewrite. `packs`: the new packs, or an empty list if no rows remain. `withdrawn`: the number of
    removed rows, by slot.
    """

    packs: list[NewPack] = field(default_factory=list)
    withdrawn: Counter[int] = field(default_factory=Counter)


def rewritten(held: Sequence[Held], sizes: PackSizes = SIZES) -> Rewritten:
    """Returns the packs that replace these packs. The new packs have the live rows of all these packs, sorted together,
    without the withdrawn rows.

    The rewrite of a single pack is a withdrawal by copy-on-write. The rewrite of several packs is also a merge. Memory
    holds a row group of each pack, and one new pack. `withdrawn` may be empty, because a pack's bounds may include
    objects that the pack does not have.
    """
    result = Rewritten()
    schema = pa.unify_schemas([each.pack.schema for each in held])
    streams = [_staying(each, schema, result.withdrawn) for each in held]
    result.packs += write(_merged(streams, sizes.order), sizes, schema=schema)
    return result


def without_slots(pack: NewPack, slots: Iterable[int], sizes: PackSizes = SIZES) -> NewPack | None:
    """Returns a pack of this round without the slots that another round has changed, or None if no rows remain."""
    dropped = pa.array(sorted(slots), pa.int32())
    reader = PackReader.of(pack.body, where="a pack of this round")
    open_pack = OpenPack(schema=reader.schema, sizes=sizes)
    for rows in reader.groups():
        open_pack.add(rows.filter(pc.invert(pc.is_in(rows["_slot"], dropped))))
    return open_pack.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """`rows`: all rows that the new vector of a pack hides. `withdrawn`: by slot, the number of rows that the old
    vector did not hide.
    """

    rows: Rows
    withdrawn: Mapping[int, int]


def hidden(held: Held) -> Hidden:
    """Returns the rows that the next vector of a pack hides: rows that are hidden already, and rows of leaving objects.

    Reads only the columns `_slot` and `_key`, and only the row groups that may have these objects.
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
"""The keys of leaving objects, the slots of these keys, and the slots that leave as a whole."""


def _objects(leaving: Withdrawals) -> Objects:
    keyed = [each for each in leaving if each.key is not None]
    return (
        pa.array([each.key for each in keyed], pa.string()),
        pa.array([each.slot for each in keyed], pa.int32()),
        pa.array([each.slot for each in leaving if each.key is None], pa.int32()),
    )


def _leaving(rows: pa.Table, objects: Objects) -> pa.Array:
    """Returns a mask: true for each row that belongs to one of the objects."""
    keys, slots, whole = objects
    leaves = pc.is_in(rows["_slot"], whole)
    if len(keys):
        number = pc.index_in(rows["_key"], keys)
        same = pc.equal(pc.take(slots, number), rows["_slot"])
        leaves = pc.or_(leaves, pc.fill_null(same, False))
    return leaves.combine_chunks()


def _staying(held: Held, schema: pa.Schema, withdrawn: Counter[int]) -> Iterator[pa.Table]:
    """Yields the rows of a pack that are not withdrawn, one row group at a time. Withdrawn rows are counted in
    `withdrawn`.
    """
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
    """Merges sorted streams of rows into one sorted stream."""
    if len(streams) == 1:
        yield from streams[0]
        return
    waiting = {
        number: rows for number, stream in enumerate(streams) if (rows := next(stream, None)) is not None
    }
    while waiting:
        # Each stream was read up to the place of its last waiting row. The rows before the smallest of these places are
        # complete, because no stream has further rows before this place.
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
            # This stream has ended. The last rows of this stream still wait, since other streams may have more rows
            # with the same sort key. So these rows are added to the waiting rows of another stream.
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
