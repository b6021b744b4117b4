"""Assignment of slots to readers: contiguous ranges, balanced, with the fewest moves when anything changes.

Balanced: without a `previous` assignment, the largest load is as small as contiguous ranges allow (`best`). With a
previous assignment, no load is above `BALANCE_SLACK` times `best`. Among all contiguous assignments within this bound,
the result is one in which the fewest slots change their reader. In return, the loads are less equal. A new reader may
get few slots, if the loads of the other readers were already within the bound.

The fewest moves are found exactly, by dynamic programming over the places where one range ends and the next begins. Two
facts make the exact search possible. First, readers that keep any slot stay in their old order: if two readers swapped
places, one of them would keep no slot. Second, only one old range can extend across the end of a new range. So it is
enough to remember whether the reader of that old range has been used already.

This assignment differs from the RFC, whose example gives slot 171 to two readers. Here ranges are half-open, and each
slot is in one range.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator.enumerator import OBJECT_COST_BYTES

if TYPE_CHECKING:
    import numpy as np

BALANCE_SLACK: Final = 1.1
"""The largest load may be this factor times its least possible value, so that more slots keep their reader."""

_NEVER: Final = -1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Slots by reader: `ranges[n]` are the slots of reader n, ascending and contiguous among the assignment's slots.

    Ranges may be in another order than the readers. Each reader has at least one slot, unless there are more readers
    than slots.
    """

    ranges: tuple[tuple[Slot, ...], ...]

    def reader_of(self) -> dict[Slot, int]:
        """The reader of each slot."""
        return {slot: reader for reader, slots in enumerate(self.ranges) for slot in slots}


def assign_slots(
    slots: Iterable[Slot],
    readers: int,
    previous: Assignment | None = None,
    *,
    bytes_of: Mapping[Slot, int] | None = None,
) -> Assignment:
    """Assigns slots to `readers` readers: each slot once, in contiguous ranges, with balanced loads. Pure.

    A slot's load is its bytes by `bytes_of`, plus `OBJECT_COST_BYTES`; without `bytes_of`, all loads are equal.
    `previous` is kept as far as possible. Readers are numbered from 0, in the same way in both assignments. A reader of
    `previous` whose number is not below `readers` has left. The same arguments give the same result. The call takes
    some milliseconds; with `previous`, the call takes up to a second for 1000 slots and 64 readers. Use this function
    between batches, not within a batch.

    `UsageError`: `readers` is below 1, or `previous` is not contiguous.
    """
    if readers < 1:
        raise UsageError(f"readers={readers}: must be at least 1")
    line = sorted(set(slots))
    if not line:
        return Assignment(ranges=((),) * readers)
    weights = [1 if bytes_of is None else max(0, bytes_of.get(slot, 0)) + OBJECT_COST_BYTES for slot in line]
    sums = [0, *accumulate(weights)]
    count = min(readers, len(line))
    best = _least_largest(sums, count)
    before = {} if previous is None else previous.reader_of()
    owners = [owner if (owner := before.get(slot, -1)) < readers else -1 for slot in line]
    ranges: list[tuple[Slot, ...]] = [()] * readers
    if all(owner < 0 for owner in owners):
        for reader, (start, end) in enumerate(_even(sums, count, best)):
            ranges[reader] = tuple(line[start:end])
        return Assignment(ranges=tuple(ranges))
    assigned = _least_moved(sums, count, int(best * BALANCE_SLACK), owners)
    unused = iter(sorted(set(range(readers)) - {owner for _, _, owner in assigned}))
    for start, end, owner in assigned:
        ranges[next(unused) if owner < 0 else owner] = tuple(line[start:end])
    assert sum(map(len, ranges)) == len(line), "each slot once"
    return Assignment(ranges=tuple(ranges))


def _furthest(sums: Sequence[int], start: int, limit: int) -> int:
    """The last possible end of a range that begins at `start` and has a load of at most `limit`."""
    return bisect_right(sums, sums[start] + limit) - 1


def _least_largest(sums: Sequence[int], count: int) -> int:
    """The least possible value of the largest load if `count` contiguous ranges contain all slots."""

    def fits(limit: int) -> bool:
        place = 0
        for _ in range(count):
            place = _furthest(sums, place, limit)
        return place == len(sums) - 1

    low = max(after - before for before, after in pairwise(sums))
    high = sums[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def _even(sums: Sequence[int], count: int, best: int) -> list[tuple[int, int]]:
    """Non-empty ranges with loads of at most `best`. Each range's load is as near as possible to the mean load of this
    range and the later ranges.
    """
    last = len(sums) - 1
    # The earliest end of each range: from this place, the later ranges can take all later slots with loads of at most
    # `best`.
    earliest = [last] * count
    for number in range(count - 1, 0, -1):
        earliest[number - 1] = bisect_left(sums, sums[earliest[number]] - best)
    ranges: list[tuple[int, int]] = []
    start = 0
    for number in range(count):
        left = count - number
        mean = (sums[-1] - sums[start]) / left
        soonest = max(start + 1, earliest[number])
        latest = min(_furthest(sums, start, best), last - left + 1)
        end = min(range(soonest, latest + 1), key=lambda place: abs(sums[place] - sums[start] - mean))
        ranges.append((start, end))
        start = end
    return ranges


def _least_moved(
    sums: Sequence[int], count: int, limit: int, owners: Sequence[int]
) -> list[tuple[int, int, int]]:
    """`count` ranges (start, end, owner) with loads of at most `limit`. As many slots as possible keep their owner.

    `owners` has -1 for a slot without an owner. A range that keeps no slot has the owner -1.
    """
    import numpy as np

    places = len(sums)
    gains, straddling = _gains(sums, limit, owners)
    # The second index of `kept` is the place where a new range ends. The first index is 1 if the owner whose old range
    # straddles this place already has a new range, else 0.
    kept = np.full((2, places), _NEVER, np.int32)
    kept[0, 0] = 0
    choices: list[np.ndarray] = []
    for _ in range(count):
        nexts, chosen = np.empty_like(kept), np.empty((2, places), np.int32)
        for taken in (0, 1):
            options = (kept[:, :, None] + gains[:, taken]).reshape(2 * places, places)
            chosen[taken] = options.argmax(axis=0)
            nexts[taken] = np.maximum(options.max(axis=0), _NEVER)
        kept = nexts
        choices.append(chosen)
    assert kept[0, places - 1] >= 0, "there is an assignment within `best`, and so within any larger limit"
    assigned: list[tuple[int, int, int]] = []
    end, taken = places - 1, 0
    for chosen in reversed(choices):
        taken_before, start = divmod(int(chosen[taken, end]), places)
        if taken and not (taken_before and straddling[start] == straddling[end]):
            owner = straddling[end]
        else:
            barred = {straddling[end], straddling[start] if taken_before else -1}
            counts: dict[int, int] = {}
            for each in owners[start:end]:
                if each >= 0 and each not in barred:
                    counts[each] = counts.get(each, 0) + 1
            owner = max(counts, key=lambda each: counts[each], default=-1)
        assigned.append((start, end, owner))
        end, taken = start, taken_before
    return assigned[::-1]


def _gains(sums: Sequence[int], limit: int, owners: Sequence[int]) -> tuple["np.ndarray", list[int]]:
    """The gains, and for each place the owner whose old range straddles the place (-1 if there is none).

    `gains[u, v, a, b]`: the number of slots that keep their owner in a new range from a to b. u is 1 if the owner
    whose old range straddles a already has an earlier new range. v is 1 if the owner whose old range straddles b gets
    this new range, or already has an earlier one. `_NEVER` marks impossible cases.
    """
    import numpy as np

    places = len(sums)
    loads = np.asarray(sums, np.int64)
    loads = loads[None, :] - loads[:, None]
    gains = np.zeros((2, 2, places, places), np.int32)
    gains[:, 1] = _NEVER
    straddling = [-1] * places
    owned = np.asarray(owners)
    for owner in dict.fromkeys(each for each in owners if each >= 0):
        mine = owned == owner
        first, last = (int(place) for place in mine.nonzero()[0][[0, -1]])
        if any(each not in (owner, -1) for each in owners[first : last + 1]):
            raise UsageError(f"previous: the slots of reader {owner} are not contiguous; omit `previous`")
        straddling[first + 1 : last + 1] = [owner] * (last - first)
        inside = slice(first + 1, last + 1)
        counts = np.concatenate(([0], mine.cumsum())).astype(np.int32)
        overlap = counts[None, :] - counts[:, None]
        other = overlap.copy()
        other[:, inside] = 0
        np.maximum(gains[0, 0], other, out=gains[0, 0])
        other[inside] = 0
        np.maximum(gains[1, 0], other, out=gains[1, 0])
        gains[0, 1][:, inside] = overlap[:, inside]
        gains[1, 1][:, inside] = overlap[:, inside]
    # One old range may straddle both a and b. If an earlier new range has the owner of this old range, the slots from a
    # to b get another reader.
    straddled = np.asarray(straddling)
    within = (straddled[:, None] == straddled[None, :]) & (straddled >= 0)[:, None]
    gains[1, 1, within] = 0
    gains[1, 0, within] = _NEVER
    gains[:, :, (loads <= 0) | (loads > limit)] = _NEVER
    return gains, straddling
