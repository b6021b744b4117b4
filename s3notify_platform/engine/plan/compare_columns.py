"""Compares a listing with the committed states, column by column, for many slots together.

Python objects are made only for differences. Only few of a million listed objects have changed. A Python object for
each listed object would cost more than the LISTs, and so would a separate comparison for each of a thousand slots.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.limits import MAX_KEY_BYTES
from s3notify_platform.kernel.ports import ETag, unaddressable
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState, ObjectVersion
from s3notify_platform.table.states.state_columns import STATE_SCHEMA, states_of

_SCHEMA: Final = pa.schema(
    [("slot", pa.int32()), ("key", pa.string()), ("etag", pa.string()), ("size", pa.int64())]
)
_SUSPECT: Final = r"(?s)(^|/)\.\.?(/|$)|\x00"
"""Matches keys that `unaddressable` must check. Keys longer than `MAX_KEY_BYTES` must be checked, too."""


@dataclass(slots=True, kw_only=True)
class Listed:
    """The differences of a slot: its `changed` objects, and the `states` of changed and of missing objects.

    `objects`: the number of listed objects. `held`: the number of objects with a committed state. `withdrawn`: the
    number of objects that have a committed state, but are missing from the listing.
    """

    changed: list[ObjectVersion] = field(default_factory=list)
    states: dict[str, ObjectState] = field(default_factory=dict)
    objects: int = 0
    held: int = 0
    withdrawn: int = 0
    unaddressable: list[str] = field(default_factory=list)


def compared(
    slots: Sequence[Slot],
    listed: Sequence[pa.RecordBatch],
    states: Sequence[pa.RecordBatch],
    also: Collection[str],
    *,
    whole: Collection[Slot] = (),
    on_delete: str = "withdraw",
    chosen: Callable[[str], bool] = lambda _: True,
) -> dict[Slot, Listed]:
    """Compares the listing of some slots with all their states, by key and ETag. Pure.

    `also`: keys that count as changed in any case. All keys of the slots in `whole` count as changed, too. `on_delete`:
    the source's setting. If `on_delete` keeps the rows of a missing object, the object does not count as withdrawn. A
    missing object that the source leaves out (`chosen` returns false for its key) counts as withdrawn in any case.
    """
    pieces = (pa.Table.from_batches([piece]).select(_SCHEMA.names) for piece in listed)
    found = pa.concat_tables([_SCHEMA.empty_table(), *pieces]).combine_chunks()
    held = pa.Table.from_batches(states, STATE_SCHEMA).combine_chunks()
    keys, known = found["key"], held["key"]
    place = pc.index_in(keys, known)
    counts_as_changed = pc.or_(
        pc.is_in(keys, pa.array(also, pa.string())), pc.is_in(found["slot"], pa.array(whole, pa.int32()))
    )
    # An object that had expired is read again if it exists again.
    same = pc.and_not(pc.equal(found["etag"], held["etag"].take(place)), held["expired"].take(place))
    same = pc.and_not(pc.fill_null(same, fill_value=False), counts_as_changed)
    differs = np.ones(held.num_rows, np.bool_)
    differs[place.filter(same).to_numpy()] = False
    left = ~pc.is_in(known, keys).to_numpy()
    if on_delete != "withdraw":
        kept = left & pc.greater(held["rows"], 0).to_numpy()
        if on_delete == "keep_expired":
            kept &= held["expired"].to_numpy()
        kept[kept] = [chosen(key) for key in known.filter(pa.array(kept)).to_pylist()]
        differs, left = differs & ~kept, left & ~kept
    suspect = pc.or_(
        pc.match_substring_regex(keys, _SUSPECT), pc.greater(pc.binary_length(keys), MAX_KEY_BYTES)
    )
    result = {slot: Listed() for slot in slots}
    for name, of_slots in (
        ("objects", found["slot"]),
        ("held", held["slot"]),
        ("withdrawn", held["slot"].filter(pa.array(left))),
    ):
        for slot, count in zip(*np.unique(of_slots.to_numpy(), return_counts=True), strict=True):
            setattr(result[Slot(int(slot))], name, int(count))
    changed = found.filter(pc.invert(same)).to_pydict()
    for slot, key, etag, size in zip(*(changed[name] for name in _SCHEMA.names), strict=True):
        version = ObjectVersion(slot=Slot(slot), key=key, etag=ETag(etag), size=size)
        result[version.slot].changed.append(version)
    differing = held.filter(pa.array(differs))
    for batch in differing.to_batches():
        for slot, (key, state) in zip(
            batch.column("slot").to_pylist(), states_of(batch).items(), strict=True
        ):
            result[Slot(slot)].states[key] = state
    for slot, key in zip(*(found[name].filter(suspect).to_pylist() for name in ("slot", "key")), strict=True):
        if unaddressable(key):
            result[Slot(slot)].unaddressable.append(key)
    return result
