"""Chooses the files of a clustered table that compaction merges: small files, and files with overlapping ranges.

Pure.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.delta.actions import Add

DEPTH: Final = 3
"""More than this number of files are merged if the range of each file overlaps the range of a file before it."""


def overlapping(live: Iterable[Add], clustered: Clustered, step_bytes: int) -> Iterator[list[Add]]:
    """Yields groups of files that are to be merged. A group has about `step_bytes`. No file is in two groups.

    Files are ordered by the least value of the first column. A file whose least value is unknown comes last.
    """
    name = clustered.columns[0]
    bounded = [(_bounds(pack, name), pack) for pack in live]
    ordered = [pack for _, pack in sorted(bounded, key=lambda each: (_rank(each[0][0]), each[1].path))]
    ends = {pack.path: _rank(most) for (_, most), pack in bounded}
    step: list[Add] = []
    reach: Any = None
    for pack in ordered:
        begin = _rank(_bounds(pack, name)[0])
        apart = reach is not None and begin > reach
        if step and (apart or sum(each.size for each in step) >= step_bytes):
            yield from _worth(step, clustered)
            step, reach = [], None
        step.append(pack)
        reach = ends[pack.path] if reach is None else max(reach, ends[pack.path])
    yield from _worth(step, clustered)


def _worth(step: list[Add], clustered: Clustered) -> Iterator[list[Add]]:
    """Yields the step if its merge is useful: several files are small, too many files overlap, or a vector hides
    rows.
    """
    small = sum(pack.size < clustered.file_bytes // 2 for pack in step)
    if small > 1 or len(step) > DEPTH or any(pack.vector for pack in step):
        yield step


def _bounds(pack: Add, name: str) -> tuple[Any, Any]:
    stats = json.loads(pack.stats or "{}")
    return tuple((stats.get(each) or {}).get(name) for each in ("minValues", "maxValues"))  # type: ignore[return-value]


def _rank(bound: Any) -> tuple[bool, str, Any]:
    """Returns a sort key for the bounds of one column. A missing bound comes last."""
    return (
        bound is None,
        type(bound).__name__ if isinstance(bound, str) else "",
        bound if bound is not None else 0,
    )
