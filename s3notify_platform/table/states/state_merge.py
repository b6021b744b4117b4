"""Merges state files, and rewrites them without erased keys.

One round makes one step of a merge, within a budget of bytes. If there are at least `STATE_FILES_FRESH` files of level
0, the oldest of these files are merged into level 1. If there are fewer files of level 0, the step takes files of the
level that most exceeds its intended size. These files are merged into the next level. The step also takes all files of
the next level whose ranges of places (slot and key) overlap the ranges of these files. Files that overlap no other file
are moved to the next level unchanged, without a request. A merged file ends before it overlaps too many files of the
next level, so that every step stays small.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.limits import (
    STATE_FILE_BYTES,
    STATE_FILES_FRESH,
    STATE_LEVEL_BYTES,
    STATE_MERGE_BYTES,
)
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.table.states.state_cache import bytes_of
from s3notify_platform.table.states.state_columns import Changes, Place
from s3notify_platform.table.states.state_file import StateFile, Tail, page_of, state_files, tail_of
from s3notify_platform.table.states.state_filter import hash_of
from s3notify_platform.table.states.state_levels import Merge, Name, Next, StateSet, hull_of
from s3notify_platform.table.states.state_reader import Keys, StateReader, merge_sorted, runs_of

FAN_OUT: Final = 10
"""The factor between the sizes of two neighbouring levels."""

OVERLAP: Final = 4
"""A merged file overlaps at most about this number of files of the next level."""

FILES_IN_FLIGHT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A planned merge: `files` (newest first) become files of `level`. `cuts`: places where a new file should end.

    `drops_gone`: True if marks of `gone` keys are left out, because no file of a deeper level can have these keys.
    """

    files: tuple[StateFile, ...]
    level: int
    drops_gone: bool
    file_bytes: int
    cuts: tuple[Place, ...]

    @property
    def moves(self) -> bool:
        """True if the files only move to `level`, unchanged, because no file overlaps another file."""
        ordered = sorted(self.files, key=lambda file: file.first)
        apart = all(one.end <= other.first for one, other in pairwise(ordered))
        above = all(file.level < self.level for file in self.files)
        return apart and above and not (self.drops_gone and any(file.gone for file in self.files))

    @property
    def bytes(self) -> int:
        """The number of bytes that the merge reads. The merge writes about the same number of bytes."""
        return 0 if self.moves else sum(file.bytes for file in self.files)


def next_states(reader: StateReader, states: StateSet, changes: Changes, *, name: Name) -> Next:
    """Returns the states of the next version, which include `changes` and the merge that is due. The caller must write
    `Next.bodies`. Cost: 1 GET for each merged file.

    `CorruptError`: a file is missing, or was changed after the write.
    """
    alone = states.after(changes, name=name)
    plan = plan_merge(states, own_bytes=sum(map(len, alone.bodies.values())))
    return replace(alone, merge=merge(reader, plan, name=name)).rebased(states) if plan else alone


def plan_merge(states: StateSet, *, own_bytes: int = 0) -> MergePlan | None:
    """Returns the most urgent step, or None if no level needs a step. Pure.

    `own_bytes`: the size of the round's own state files. A round that adds many bytes also merges more bytes. Otherwise
    rounds would add files to a level faster than merges remove them, and merges would grow with the table.
    """
    budget = max(STATE_MERGE_BYTES, FAN_OUT * own_bytes)
    fresh = states.level(0)
    if len(fresh) >= STATE_FILES_FRESH:
        # The oldest files come last.
        plan = _step(states, fresh[-1:])
        for count in range(2, len(fresh) + 1):
            longer = _step(states, fresh[-count:])
            if longer.bytes > budget:
                break
            plan = longer
        return plan
    sizes: dict[int, int] = {}
    for file in states.files:
        if file.level:
            sizes[file.level] = sizes.get(file.level, 0) + file.bytes
    ripe = {level: size / (STATE_LEVEL_BYTES * FAN_OUT ** (level - 1)) for level, size in sizes.items()}
    level = max(ripe, key=lambda each: ripe[each], default=0)
    if not level or ripe[level] <= 1:
        return None
    files = states.level(level)
    start = min(range(len(files)), key=lambda n: _step(states, files[n : n + 1]).bytes / files[n].bytes)
    plan = _step(states, files[start : start + 1])
    for end in range(start + 2, len(files) + 1):
        longer = _step(states, files[start:end])
        if longer.bytes > budget or (plan.moves and not longer.moves):
            break
        plan = longer
    return plan


def plan_full_merge(states: StateSet, *, only: Collection[str], budget: int) -> MergePlan | None:
    """Returns the next step for the files with names in `only`: a merge towards the deepest level. Returns None if all
    these files are in the deepest level. Pure.

    `budget`: the largest number of bytes of a step. Only a step with a single file of the upper level may exceed the
    budget.
    """
    deepest = max((file.level for file in states.files), default=0)
    files = [file for file in states.files if file.name in only and file.level < max(deepest, 1)]
    if not files:
        return None
    # The oldest file of level 0 comes last.
    upper = [file for file in files if file.level == files[0].level]
    plan = _step(states, upper[-1:])
    for count in range(2, len(upper) + 1):
        longer = _step(states, upper[-count:])
        if longer.bytes > budget:
            break
        plan = longer
    return plan


def _step(states: StateSet, upper: Sequence[StateFile]) -> MergePlan:
    level = upper[0].level + 1
    first, end = hull_of(upper)
    lower = tuple(file for file in states.level(level) if file.touches(first, end))
    files = (*upper, *lower)
    first, end = hull_of(files)
    below = [file for file in states.files if file.level > level and file.touches(first, end)]
    least, most = STATE_FILE_BYTES
    file_bytes = min(max(states.bytes // 100, least), most)
    cuts, size = [], 0
    for file in below:
        size += file.bytes if file.level == level + 1 else 0
        if size > OVERLAP * file_bytes:
            cuts.append(file.end)
            size = 0
    return MergePlan(files=files, level=level, drops_gone=not below, file_bytes=file_bytes, cuts=tuple(cuts))


def merge(reader: StateReader, plan: MergePlan, *, name: Name) -> Merge:
    """Makes a planned merge. The caller must write the new files. Cost: 1 GET for each old file.

    `CorruptError`: a file is missing, or was changed after the write.
    """
    if plan.moves:
        moved = tuple(replace(file, level=plan.level) for file in plan.files)
        return Merge(removed=plan.files, added=moved)
    whole = _read(reader, plan.files)
    rows = merge_sorted([_pages(whole, run) for run in runs_of(plan.files)])
    if plan.drops_gone:
        rows = (batch.filter(pc.invert(batch.column("gone"))) for batch in rows)
    size = sum(file.bytes for file in plan.files)
    made = [
        *state_files(
            rows,
            level=plan.level,
            name=name,
            file_bytes=size // max(1, round(size / plan.file_bytes)),  # a size that avoids a small last file
            hull=hull_of(plan.files),
            cuts=plan.cuts,
        )
    ]
    return Merge(
        removed=plan.files,
        added=tuple(file for file, _ in made),
        bodies={file.name: body for file, body in made},
    )


_Whole = Mapping[str, tuple[Tail, bytes]]


def _read(reader: StateReader, files: Sequence[StateFile]) -> _Whole:
    def read(file: StateFile) -> tuple[Tail, bytes]:
        body = bytes_of(reader.ranges, file, 0, file.bytes)
        return tail_of(file, body[len(body) - file.tail :]), body

    bodies = in_parallel(read, files, FILES_IN_FLIGHT)
    return {file.name: one for file, one in zip(files, bodies, strict=True)}


def _pages(whole: _Whole, files: Sequence[StateFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        tail, body = whole[file.name]
        for number in range(len(tail.pages)):
            yield page_of(tail, number, body, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """The states of a table after some keys were removed. `bodies`: the files to write before a manifest names
    `states`.

    `removed`: the names of the files with the keys. These files are not in `states` any more.
    """

    states: StateSet
    bodies: Mapping[str, bytes] = field(repr=False)
    removed: tuple[str, ...]


def without(reader: StateReader, states: StateSet, keys: Keys, *, name: Name) -> Erasure:
    """Removes these keys, and their `gone` marks, from files and inline states.

    Other files do not change. Cost: 1 GET for each file whose filter accepts a key. If a key is in the range of a file,
    and the file's tail is not cached, the tail costs 1 GET.
    """
    erased = {(slot, key) for slot, some in keys.items() for key in some}
    hashes = {place: hash_of(place[1]) for place in erased}
    inline = {
        slot: kept
        for slot, some in states.inline.items()
        if (kept := {key: state for key, state in some.items() if (slot, key) not in erased})
    }
    files: list[StateFile] = []
    bodies: dict[str, bytes] = {}
    removed: list[str] = []
    for file in states.files:
        within = {place for place in erased if file.first <= place < file.end}
        tail = reader.tail(file) if within else None
        if not tail or all(tail.page_of(place, hashes[place]) is None for place in within):
            files.append(file)
            continue
        whole = _read(reader, [file])
        held = [False]
        left = _left(_pages(whole, [file]), within, held)
        hull = (file.first, file.end)
        made = [*state_files(left, level=file.level, name=name, file_bytes=2 * file.bytes, hull=hull)]
        if not held[0]:
            files.append(file)
            continue
        removed.append(file.name)
        files += (one for one, _ in made)
        bodies |= {one.name: body for one, body in made}
    return Erasure(states=StateSet(inline=inline, files=tuple(files)), bodies=bodies, removed=tuple(removed))


def _left(
    pages: Iterator[pa.RecordBatch], erased: Collection[Place], held: list[bool]
) -> Iterator[pa.RecordBatch]:
    """Yields the pages without the erased places. Sets `held[0]` to True if a page had an erased place."""
    for page in pages:
        some = pa.array([key for _, key in erased], pa.string())
        rows = pc.is_in(page.column("key"), some)
        if pc.any(rows).as_py():
            held[0] = True
            yield page.filter(pc.invert(rows))
        else:
            yield page
