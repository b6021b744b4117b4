"""The state of each object of a table, as a small log-structured merge tree. Pure: no request.

A manifest has a `StateSet`. The newest states are in the manifest itself (`inline`). Then come the files of level 0, in
which a newer file overrides an older file. Then come the levels 1, 2, …, where a lower level overrides a higher level.
In these levels, the files of one level have disjoint ranges of places (slot, key). A key whose object has left has a
`gone` mark. A merge drops such a mark when no file of a deeper level can have the key.

A round makes the next set by `StateSet.after`. The changes of the round become inline states, or a file of level 0. A
merge of older files (`state_merge`) may be committed with the changes. The merged files have no changes of the round.
So the changes and the merge can also be committed separately. If another writer creates the next version first,
`Next.rebased` puts the same changes on top of this version. If the other writer has merged some of the same files,
`rebased` drops the merge.

Invariants
    - The inline state of a key is newer than the states of the key in files.
    - Except in level 0, two files of one level never have the same place.
    - A merge takes the oldest files of level 0, or neighbouring files of another level. A merge also takes all files of
      the next level whose ranges of places overlap the ranges of these files. So two merges without a common file never
      write into the same range of places.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Final

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import STATE_FILE_BYTES, STATES_INLINE, STATES_INLINE_BYTES
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.states.state_columns import (
    Changes,
    Place,
    columns_of,
    state_of_row,
    state_row,
)
from s3notify_platform.table.states.state_file import StateFile, state_files

NO_CHANGES: Final[Changes] = {}

Name = Callable[[], str]
"""Draws a new name, which no other caller draws. The name has letters, digits, - and _."""


def hull_of(files: Collection[StateFile]) -> tuple[Place, Place]:
    """Returns the range of places from the first to the last place of these files."""
    return min(file.first for file in files), max(file.end for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSet:
    """All states of a table, as a manifest describes them. `files`: the files of level 0, newest first, then the files
    of each next level.
    """

    inline: Changes = field(default_factory=dict)
    files: tuple[StateFile, ...] = ()

    def json(self) -> dict[str, Any]:
        """Returns the set in the manifest's format."""
        rows = [state_row(slot, state) for slot, states in self.inline.items() for state in states.values()]
        return {"inline": rows, "files": [file.row() for file in self.files]}

    @classmethod
    def of(cls, found: Any, *, where: str) -> "StateSet":
        """Decodes the result of `json`. `CorruptError`, with `where` in its message: `found` is not the JSON of a
        set.
        """
        try:
            inline: dict[Slot, dict[str, ObjectState]] = {}
            for slot, state in map(state_of_row, found["inline"]):
                inline.setdefault(slot, {})[state.key] = state
            states = cls(inline=inline, files=tuple(map(StateFile.of, found["files"])))
            if why := states.misplaced():
                raise ValueError(why)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{where}: damaged states of objects ({error}): restore it") from error
        return states

    def misplaced(self) -> str:
        """Returns the reason why the files contradict each other, or "" if there is no contradiction."""
        if len({file.name for file in self.files}) < len(self.files):
            return "a state file is named twice"
        for one, next_one in pairwise(self.files):
            if one.level > next_one.level or (one.level == next_one.level > 0 and one.end > next_one.first):
                return f"state files {one.name} and {next_one.name} are out of order"
        return ""

    @property
    def names(self) -> frozenset[str]:
        """The names of the files."""
        return frozenset(file.name for file in self.files)

    @property
    def bytes(self) -> int:
        """The number of bytes of all files together."""
        return sum(file.bytes for file in self.files)

    def level(self, number: int) -> tuple[StateFile, ...]:
        """Returns the files of a level."""
        return tuple(file for file in self.files if file.level == number)

    def after(self, changes: Changes, *, name: Name, merge: "Merge | None" = None) -> "Next":
        """Returns the set of the next version. The next set has the files after `merge` (None: no merge), and the
        round's `changes`.
        """
        return _next(self, changes, name, merge, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A merge: the files `added` replace the files `removed`, and have the same states. `bodies`: the bodies of the
    files to write.
    """

    removed: tuple[StateFile, ...]
    added: tuple[StateFile, ...]
    bodies: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def fits(self, files: Collection[StateFile]) -> bool:
        """Returns true if `files` has all files in `removed`, in the same levels. If so, no file of another writer
        overlaps the files in `added`.
        """
        return {*self.removed} <= {*files}

    def applied(self, files: Sequence[StateFile]) -> tuple[StateFile, ...]:
        """Returns the files after the merge."""
        kept = [file for file in files if file not in self.removed]
        deep = sorted([file for file in kept if file.level] + [*self.added], key=lambda f: (f.level, f.first))
        return (*(file for file in kept if not file.level), *deep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The states of the next version. `bodies`: the files to write before the manifest, by name.

    `merge`: the merge that `states` includes, or None if there was no merge, or if the merge was dropped.
    """

    states: StateSet
    bodies: Mapping[str, bytes] = field(repr=False)
    changes: Changes = field(repr=False)
    merge: Merge | None
    name: Name = field(repr=False)
    own: tuple[tuple[StateFile, bytes], ...] = field(default=(), repr=False)
    """Files of level 0 that have only this round's changes."""

    def rebased(self, theirs: StateSet, *, without: Collection[Slot] = ()) -> "Next":
        """Returns the same changes on top of `theirs`. The changes of the slots in `without` are dropped.

        Files of `self.bodies` may already be written. Written files that the new `states` does not name are garbage.
        """
        changes = {slot: states for slot, states in self.changes.items() if slot not in without}
        own = self.own if len(changes) == len(self.changes) else None
        return _next(theirs, changes, self.name, self.merge, own)


def _next(
    base: StateSet,
    changes: Changes,
    name: Name,
    merge: Merge | None,
    own: tuple[tuple[StateFile, bytes], ...] | None,
) -> Next:
    merge = merge if merge and merge.fits(base.files) else None
    files = merge.applied(base.files) if merge else base.files
    if alone := not _fits_inline(changes):
        own = own or _fresh(changes, name)
        inline = _joined(base.inline, changes, only_old=True)
    else:
        own = None
        inline = _needed(_joined(base.inline, changes), files)
    spilled: tuple[tuple[StateFile, bytes], ...] = ()
    if not _fits_inline(inline):
        spilled, inline = _fresh(inline, name), NO_CHANGES
    written = (*(own or ()), *spilled)
    states = StateSet(inline=inline, files=(*(file for file, _ in written), *files))
    assert not (why := states.misplaced()), why
    return Next(
        states=states,
        bodies={**{file.name: body for file, body in written}, **(merge.bodies if merge else {})},
        changes=changes,
        merge=merge,
        name=name,
        own=(own or ()) if alone else (),
    )


def _fresh(changes: Changes, name: Name) -> tuple[tuple[StateFile, bytes], ...]:
    return tuple(state_files([columns_of(changes)], level=0, name=name, file_bytes=STATE_FILE_BYTES[1]))


def _joined(earlier: Changes, later: Changes, *, only_old: bool = False) -> Changes:
    """Returns the changes of `earlier` and `later` together. The changes in `later` override the changes in `earlier`.

    `only_old`: the result has only the changes of `earlier` that are not overridden.
    """
    joined: dict[Slot, Mapping[str, ObjectState]] = {}
    for slot in {*earlier, *later}:
        before, after = earlier.get(slot, {}), later.get(slot, {})
        kept = {key: state for key, state in before.items() if key not in after}
        if states := kept if only_old else kept | dict(after):
            joined[slot] = states
    return joined


def _needed(changes: Changes, files: Sequence[StateFile]) -> Changes:
    """Returns the changes, without `gone` marks for keys that no file can have."""
    return {
        slot: needed
        for slot, states in changes.items()
        if (
            needed := {
                key: state
                for key, state in states.items()
                if not state.gone or any(file.first <= (slot, key) < file.end for file in files)
            }
        )
    }


def _fits_inline(changes: Changes) -> bool:
    if sum(map(len, changes.values())) > STATES_INLINE:
        return False
    rows = (state_row(slot, state) for slot, state in _each(changes))
    return sum(len(json.dumps(row, separators=(",", ":"))) + 1 for row in rows) <= STATES_INLINE_BYTES


def _each(changes: Changes) -> Iterator[tuple[Slot, ObjectState]]:
    return chain.from_iterable(
        ((slot, state) for state in states.values()) for slot, states in changes.items()
    )
