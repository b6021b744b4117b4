"""The part of a table's state that is not in the log: counts by slot, files of object states, files of rejects.

A version of the log names its manifest by a number `n`, which is new at each attempt to commit. A manifest is written
before its version, and never changed. A manifest to which no version refers is garbage. A manifest has counts, but not
the keys of all objects. So the size of a manifest hardly depends on the table's size, and is at most `MANIFEST_BYTES`.

A manifest is stored as JSON, with the counts as columns. Item i of each column belongs to slot i.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import MANIFEST_BYTES
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.code_versions import OTHER_CODE
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.state_changes import StateChange, encode, fits_inline
from s3notify_platform.table.states.state_levels import StateSet

FORMAT: Final = 1

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """The counts of one slot.

    `generation`: the version that last changed the slot, or 0 if no version has changed it. `objects`: objects with a
    state, except expired objects. `without_records`: see `ObjectState`. `failing`: objects that could not be read
    completely. `pending`: objects that must be read further, or again. `signal`: the first digits of the signal's ETag,
    as seen by the last batch. `code_version`: the version of the code that made the newest rows. `other_code`: the
    number of objects whose rows were made by other code. The rows of these objects have labels below `code_since`.
    Failing objects do not count in `other_code`. `backfill`: objects whose rows were planned before this version must
    be read again. `backfill` is 0 if no backfill is requested. `transformed`: 1 if the slot may have rows of a
    transform, 0 otherwise. `source`: for a slot of a slot asset, the version of the source's table from which the
    slot's rows were made.
    """

    generation: int = 0
    rows: int = 0
    rejects: int = 0
    objects: int = 0
    without_records: int = 0
    failing: int = 0
    pending: int = 0
    backfill: int = 0
    transformed: int = 0
    source: int = 0
    other_code: int = 0
    code_since: int = 0
    signal: str = ""
    code_version: str = ""

    def objects_of_other_code(self, code: str) -> int:
        """Returns the number of objects whose rows were made by code other than `code`."""
        return self.other_code if self.code_version == code else self.objects - self.failing

    def is_stale(self, code: str) -> bool:
        """Returns true if code other than `code` made at least some of the slot's rows. Pure."""
        if self.source:  # all rows of a derived slot are replaced together
            return self.code_version != code
        return self.objects_of_other_code(code) > 0

    def made_by(self, code: str) -> str:
        """Returns `code` if this code made all rows.

        Otherwise returns the version of the code that made the rows. Returns `OTHER_CODE` if the code version is
        unknown, or if several code versions made the rows. Pure.
        """
        if not self.is_stale(code):
            return code
        return OTHER_CODE if self.code_version in ("", code) else self.code_version


EMPTY_SLOT: Final = SlotFacts()

_COUNTS: Final = tuple(each.name for each in fields(SlotFacts) if each.type is int)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesFile:
    """A file with the changes of a version. `rows`: the number of changes."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The source of a derived table whose slots are all made from the same version of the source. `table`: the source's
    id. `version`: the source's version from which the derived table was made.
    """

    table: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The table's state as of `version`, except its packs. `rejects`: packs of rejects, which are not in the log.

    `changes`: the changes of this version, in order. `changes` is empty if the changes are in `changes_file`.
    `follows`: the source of a derived table, or None. For the table of a slot asset, `follows` is None (see
    `SlotFacts.source`). `erased`: for each slot from which an object was erased, the version of the last erasure. A
    rollback, or a replacement of the slot, does not change this version.
    """

    table: str
    version: int
    number: int
    parent: int = 0
    slots: Mapping[Slot, SlotFacts] = field(default_factory=dict)
    states: StateSet = field(default_factory=StateSet)
    rejects: tuple[Add, ...] = ()
    changes: tuple[StateChange, ...] = ()
    changes_file: ChangesFile | None = None
    follows: Followed | None = None
    erased: Mapping[Slot, int] = field(default_factory=dict)

    def spilled(self, path: str) -> tuple["Manifest", bytes | None]:
        """If there are too many changes for the manifest, moves them into a file at `path`.

        Returns the manifest, and the body of the file (None if all changes are in the manifest).
        """
        if fits_inline(self.changes):
            return self, None
        body = encode(self.changes)
        file = ChangesFile(path=path, size=len(body), rows=len(self.changes))
        return replace(self, changes=(), changes_file=file), body

    def slot(self, slot: Slot) -> SlotFacts:
        """Returns the counts of a slot."""
        return self.slots.get(slot, EMPTY_SLOT)

    def dumps(self) -> bytes:
        """Returns the manifest as JSON. `UsageError`: the manifest is larger than the limit."""
        count = max(self.slots, default=-1) + 1
        of = [self.slot(Slot(number)) for number in range(count)]
        codes = sorted({facts.code_version for facts in of})
        columns = {name: [getattr(facts, name) for facts in of] for name in _COUNTS}
        file = self.changes_file
        body = {
            "format": FORMAT,
            "table": self.table,
            "version": self.version,
            "n": self.number,
            "parent": self.parent,
            "slots": {name: values for name, values in columns.items() if any(values)},
            "signals": _trimmed([facts.signal for facts in of]),
            "codes": codes,
            "code": _trimmed([codes.index(facts.code_version) for facts in of]),
            "states": self.states.json(),
            "rejects": [_reject_row(each) for each in self.rejects],
            "changes": [each.row() for each in self.changes],
            "changes_file": file and [file.path, file.size, file.rows],
            "follows": self.follows and [self.follows.table, self.follows.version],
            "count": count,
        }
        if self.erased:
            body["erased"] = [*self.erased.items()]
        dumped = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(dumped) > MANIFEST_BYTES:
            raise UsageError(
                f"the manifest of version {self.version} would have {len(dumped)} bytes, but may have at most "
                f"{MANIFEST_BYTES}: run `s3notify table compact`"
            )
        return dumped

    @classmethod
    def loads(cls, body: bytes, *, where: str) -> "Manifest":
        """Decodes the result of `dumps`. Raises `CorruptError`, with `where` in its message."""
        try:
            found = json.loads(body)
            if found["format"] != FORMAT:
                raise CorruptError(
                    f"{where}: has manifest format {found['format']}, but this version reads {FORMAT}: use the "
                    "version of s3notify_platform that wrote it"
                )
            return cls(
                table=found["table"],
                version=found["version"],
                number=found["n"],
                parent=found["parent"],
                slots=_slots(found),
                states=StateSet.of(found["states"], where=where),
                rejects=tuple(_reject(row) for row in found["rejects"]),
                changes=tuple(map(StateChange.of, found["changes"])),
                changes_file=_changes_file(found["changes_file"]),
                follows=_followed(found["follows"]),
                erased={Slot(slot): version for slot, version in found.get("erased", ())},
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CorruptError(
                f"{where}: not a manifest ({type(error).__name__}: {error}): restore it"
            ) from error


def _changes_file(row: list[Any] | None) -> ChangesFile | None:
    if row is None:
        return None
    path, size, rows = row
    return ChangesFile(path=path, size=size, rows=rows)


def _followed(row: list[Any] | None) -> Followed | None:
    if row is None:
        return None
    table, version = row
    return Followed(table=table, version=version)


def _trimmed(values: list[Any]) -> list[Any]:
    return values if any(values) else []


def _slots(found: Json) -> dict[Slot, SlotFacts]:
    count, codes = found["count"], found["codes"]
    columns = [(name, found["slots"].get(name)) for name in _COUNTS]
    signals = found["signals"] or [""] * count
    code = found["code"] or [0] * count
    slots: dict[Slot, SlotFacts] = {}
    for number in range(count):
        facts = SlotFacts(
            **{name: values[number] for name, values in columns if values},
            signal=signals[number],
            code_version=codes[code[number]],
        )
        if facts != EMPTY_SLOT:
            slots[Slot(number)] = facts
    return slots


def _reject_row(pack: Add) -> list[Any]:
    return [
        pack.path,
        pack.size,
        pack.rows,
        pack.modified_ms,
        *pack.slots,
        *pack.keys,
        pack.since,
        pack.until,
    ]


def _reject(row: list[Any]) -> Add:
    path, size, rows, modified_ms, first_slot, last_slot, first_key, last_key, since, until = row
    return Add(
        path=path,
        size=size,
        rows=rows,
        modified_ms=modified_ms,
        slots=(first_slot, last_slot),
        keys=(first_key, last_key),
        since=since,
        until=until,
    )
