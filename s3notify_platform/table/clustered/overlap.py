"""Chooses the files of a clustered table that compaction merges: small files, and files with overlapping ranges.

The range of a file follows from the statistics of the columns by which rows are sorted. The statistics have the bounds
of each column, but neither the first nor the last row. So only the inside of a range is known. The inside is between
the least and the greatest value of the first column that has more than one value in the file. Ranges whose overlap is
uncertain count as separate. Otherwise each compaction would merge ordered files again.

The inside of a range is empty if all rows have equal values, or if the bounds of a column are missing (booleans, NaN).
Bounds of texts are cut, and bounds of times are rounded. So very close bounds may belong to a single value, and the
inside of the range counts as empty, too.

Pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.delta.statistics import STRING_CHARS

DEPTH: Final = 3
"""Files are merged if more than this number of files have a part of their ranges in common."""

Inside = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The begin and the end of the inside of a range, as sort keys."""


def overlapping(live: Iterable[Add], clustered: Clustered, step_bytes: int) -> Iterator[list[Add]]:
    """Yields groups of files that are to be merged. A group has about `step_bytes`. A group of more than two files
    exceeds this size by less than one file. No file is in two groups.

    If nothing is yielded, this is guaranteed: for each value of the first column, at most `DEPTH` files have both
    smaller and greater values. The same is true for the next column, among files that have only one value in the first
    column. Files without bounds in their statistics are not counted.
    """
    packs = {pack.path: pack for pack in live}
    for step in _small(packs.values(), clustered, step_bytes):
        for pack in step:
            del packs[pack.path]
        yield step
    yield from _deep(packs.values(), clustered, step_bytes)


def separate(packs: Iterable[Add], clustered: Clustered) -> bool:
    """True if the insides of these files' ranges do not overlap."""
    ranges = sorted(_insides(packs, clustered), key=_begin)
    return all(before[0][1] <= after[0][0] for before, after in pairwise(ranges))


def _small(live: Iterable[Add], clustered: Clustered, step_bytes: int) -> Iterator[list[Add]]:
    """Yields groups of files that are small or have vectors. The ranges of the files in a group have no gap in the
    first column.

    Files are ordered by the least value of the first column. A file whose least value is unknown comes last.
    """
    least = clustered.file_bytes // 2
    bounded = []
    for pack in live:
        if pack.size < least or pack.vector:
            low, high = _bounds(json.loads(pack.stats or "{}"), clustered.columns[0])
            bounded.append((_rank(low), _rank(high), pack))
    step: list[Add] = []
    reach: Any = None
    for low, high, pack in sorted(bounded, key=lambda each: (each[0], each[2].path)):
        if step and (low > reach or _bytes(step) >= step_bytes):
            if _worth(step):
                yield step
            step = []
        reach = max(reach, high) if step else high
        step.append(pack)
    if _worth(step):
        yield step


def _worth(step: list[Add]) -> bool:
    return len(step) > 1 or any(pack.vector for pack in step)


def _deep(live: Iterable[Add], clustered: Clustered, step_bytes: int) -> Iterator[list[Add]]:
    """Yields groups of files, if more than `DEPTH` files have a part of their ranges in common."""
    ends: dict[str, Any] = {}
    common: list[Add] = []  # files whose ranges all include the part after the last begin
    for (begin, end), pack in sorted(_insides(live, clustered), key=_begin):
        if _bytes(common) >= step_bytes or any(ends[each.path] <= begin for each in common):
            yield from _too_many(common, step_bytes)
        common = [each for each in common if ends[each.path] > begin] + [pack]
        ends[pack.path] = end
    yield from _too_many(common, step_bytes)


def _too_many(common: list[Add], step_bytes: int) -> Iterator[list[Add]]:
    """Takes files out of the list and yields them, until at most `DEPTH` files are left."""
    while len(common) > DEPTH:
        step = [common.pop(0), common.pop(0)]
        while common and _bytes(step) < step_bytes:
            step.append(common.pop(0))
        yield step


def _bytes(packs: Iterable[Add]) -> int:
    return sum(pack.size for pack in packs)


def _begin(found: tuple[Inside, Add]) -> Any:
    return found[0][0], found[1].path


def _insides(packs: Iterable[Add], clustered: Clustered) -> Iterator[tuple[Inside, Add]]:
    """Yields the files whose ranges have an inside."""
    for pack in packs:
        if (found := _inside(json.loads(pack.stats or "{}"), clustered)) is not None:
            yield found, pack


def _inside(stats: Mapping[str, Any], clustered: Clustered) -> Inside | None:
    same: tuple[Any, ...] = ()
    for name in clustered.columns:
        nulls, rows = (stats.get("nullCount") or {}).get(name, 0), stats.get("numRecords")
        low, high = _bounds(stats, name)
        if rows is not None and nulls == rows:
            same += (_rank(None), 0)
        elif low is None or high is None:
            return None
        elif low == high and not nulls:
            same += (_rank(low), 0)
        elif not nulls and _close(low, high):
            return None
        else:  # 1 sorts after all rows with the least value, -1 before all rows with the greatest value
            return (*same, _rank(low), 1), (*same, _rank(None if nulls else high), -1)
    return None


def _close(low: Any, high: Any) -> bool:
    """True if these may be the cut or rounded bounds of a single value."""
    if not (isinstance(low, str) and isinstance(high, str)):
        return False
    if len(low) == STRING_CHARS:
        return low[:-1] == high[: STRING_CHARS - 1]  # a cut upper bound ends with a later character
    try:
        return datetime.fromisoformat(high) - datetime.fromisoformat(low) <= timedelta(milliseconds=1)
    except (TypeError, ValueError):
        return False


def _bounds(stats: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    low, high = ((stats.get(each) or {}).get(name) for each in ("minValues", "maxValues"))
    return low, high


def _rank(bound: Any) -> tuple[bool, str, Any]:
    """Returns a sort key for the bounds of one column. A missing bound comes last."""
    return (
        bound is None,
        type(bound).__name__ if isinstance(bound, str) else "",
        bound if bound is not None else 0,
    )
