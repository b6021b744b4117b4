"""A slot's listing against its committed states, by columns: a row is made only of what differs.

Of a million objects that are listed, few have changed, and one object of Python each costs more than the LISTs do.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.limits import MAX_KEY_BYTES
from s3notify_platform.ports import ETag, unaddressable
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.slots import Slot

_SCHEMA = pa.schema([("key", pa.string()), ("etag", pa.string()), ("size", pa.int64())])
_SUSPECT = r"(?s)(^|/)\.\.?(/|$)|\x00"
"""Keys that `unaddressable` has to look at, beside long ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What differs: `changed` objects, and the `states` of those and of what was not listed.

    `objects` were listed; `held` were known, of which `withdrawn` were not listed.
    """

    changed: pa.Table
    states: pa.Table
    objects: int
    held: int
    withdrawn: int
    unaddressable: list[str]

    def versions(self, slot: Slot) -> list[ObjectVersion]:
        """Those that changed."""
        columns = self.changed.to_pydict()
        return [
            ObjectVersion(slot=slot, key=key, etag=ETag(etag), size=size)
            for key, etag, size in zip(columns["key"], columns["etag"], columns["size"], strict=True)
        ]


def compared(
    listed: Sequence[pa.RecordBatch],
    states: pa.Table,
    also: Collection[str],
    *,
    whole: bool = False,
    on_delete: str = "withdraw",
    chosen: Callable[[str], bool] = lambda _: True,
) -> Listed:
    """Compare by key and ETag. Pure.

    `also`: keys that count as changed in any case; `whole`: all of them do. `on_delete`: as of the source; what
    stays was not withdrawn, if its key is still `chosen`.
    """
    pieces = (pa.Table.from_batches([piece]).select(_SCHEMA.names) for piece in listed)
    found = pa.concat_tables([_SCHEMA.empty_table(), *pieces])
    keys, known = found["key"], states["key"]
    place = pc.index_in(keys, known)
    counts_as_changed = pc.or_(pc.is_in(keys, pa.array(also, pa.string())), pa.scalar(whole))
    # An object that has come again is read again.
    held = pc.and_not(pc.equal(found["etag"], states["etag"].take(place)), states["expired"].take(place))
    equal = pc.fill_null(held, fill_value=False)
    same = pc.and_not(equal, counts_as_changed)
    differs = np.ones(states.num_rows, np.bool_)
    differs[place.filter(same).to_numpy()] = False
    left = ~pc.is_in(known, keys).to_numpy()
    if on_delete != "withdraw":
        kept = left & pc.greater(states["rows"], 0).to_numpy()
        if on_delete == "keep_expired":
            kept &= states["expired"].to_numpy()
        kept[kept] = [chosen(key) for key in known.filter(pa.array(kept)).to_pylist()]
        differs, left = differs & ~kept, left & ~kept
    suspect = pc.or_(
        pc.match_substring_regex(keys, _SUSPECT), pc.greater(pc.binary_length(keys), MAX_KEY_BYTES)
    )
    return Listed(
        changed=found.filter(pc.invert(same)),
        states=states.filter(pa.array(differs)),
        objects=found.num_rows,
        held=states.num_rows,
        withdrawn=int(left.sum()),
        unaddressable=[key for key in keys.filter(suspect).to_pylist() if unaddressable(key)],
    )
