"""The state of each object of a table, as a small log-structured merge tree. Pure: no request.

A `StateSet` is what a manifest has of it. The newest states stand in the manifest itself (`inline`); then come files of
level 0, of which the newer one decides; then the levels 1, 2, …, of which the lower one decides, and whose files each
have a range of places (slot, key) for themselves. A key that is `gone` is marked as such, until the mark reaches the
lowest level that may hold the key.

A round makes the next set by `StateSet.after`. Its own changes go inline, or into a file of level 0. A merge of older
files (`state_merge`) may go with it. It holds no change of the round, so that the one can be committed without the
other: where the version was taken, `Next.rebased` puts the same changes on what came in between, and drops the merge if
somebody else has merged any of its files.

Invariants
    - What is inline is newer than all files of the same key.
    - No two files of one level have a common place, but in level 0.
    - A merge takes the oldest files of level 0, or neighbours of one level, and all files of the next level that lie
      between their first and last place. So of two merges that take no common file, neither puts anything where the
      other one does, nor below what the other one takes.
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
"""Draws names that no other caller draws, of letters, digits, - and _."""


def hull_of(files: Collection[StateFile]) -> tuple[Place, Place]:
    """From where to where files have anything."""
    return min(file.first for file in files), max(file.end for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSet:
    """All states of a table, as a manifest names them. `files`: level 0 from the newest on, then level by level."""

    inline: Changes = field(default_factory=dict)
    files: tuple[StateFile, ...] = ()

    def json(self) -> dict[str, Any]:
        """As the manifest has it."""
        rows = [state_row(slot, state) for slot, states in self.inline.items() for state in states.values()]
        return {"inline": rows, "files": [file.row() for file in self.files]}

    @classmethod
    def of(cls, found: Any, *, where: str) -> "StateSet":
        """Inverse of `json`; `CorruptError` naming `where` for anything else."""
        try:
            inline: dict[Slot, dict[str, ObjectState]] = {}
            for slot, state in map(state_of_row, found["inline"]):
                inline.setdefault(slot, {})[state.key] = state
            states = cls(inline=inline, files=tuple(map(StateFile.of, found["files"])))
            if why := states.misplaced():
                raise ValueError(why)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{where}: states of objects: {error}; restore it") from error
        return states

    def misplaced(self) -> str:
        """Why the files contradict each other; "" if they do not."""
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
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def level(self, number: int) -> tuple[StateFile, ...]:
        """The files of a level."""
        return tuple(file for file in self.files if file.level == number)

    def after(self, changes: Changes, *, name: Name, merge: "Merge | None" = None) -> "Next":
        """The set of the next version, with a round's changes, and with a merge of files of this set."""
        return _next(self, changes, name, merge, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Files that take the place of others, with the same states. `bodies`: of those that are to be written."""

    removed: tuple[StateFile, ...]
    added: tuple[StateFile, ...]
    bodies: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def fits(self, files: Collection[StateFile]) -> bool:
        """Whether all that it removes is still there, in the same level: then nothing of others is in its way."""
        return {*self.removed} <= {*files}

    def applied(self, files: Sequence[StateFile]) -> tuple[StateFile, ...]:
        """The files afterwards."""
        kept = [file for file in files if file not in self.removed]
        deep = sorted([file for file in kept if file.level] + [*self.added], key=lambda f: (f.level, f.first))
        return (*(file for file in kept if not file.level), *deep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The states of the next version. `bodies` are to be written, each under its name, before the manifest.

    `merge`: the one that is in it, None if there is none, or if it was dropped.
    """

    states: StateSet
    bodies: Mapping[str, bytes] = field(repr=False)
    changes: Changes = field(repr=False)
    merge: Merge | None
    name: Name = field(repr=False)
    own: tuple[tuple[StateFile, bytes], ...] = field(default=(), repr=False)
    """Files of level 0 that hold this round's changes and nothing else."""

    def rebased(self, theirs: StateSet, *, without: Collection[Slot] = ()) -> "Next":
        """The same changes after `theirs`, but for those of the slots `without`, which are dropped.

        Files under names of `self.bodies` may be written already; those that `states` does not name any more are
        garbage.
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
    """Both, of which the later one decides; `only_old`: what is left of the earlier ones."""
    joined: dict[Slot, Mapping[str, ObjectState]] = {}
    for slot in {*earlier, *later}:
        before, after = earlier.get(slot, {}), later.get(slot, {})
        kept = {key: state for key, state in before.items() if key not in after}
        if states := kept if only_old else kept | dict(after):
            joined[slot] = states
    return joined


def _needed(changes: Changes, files: Sequence[StateFile]) -> Changes:
    """Without marks of keys that no file can hold."""
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
