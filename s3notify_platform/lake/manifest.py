"""The rest of a table's state as of one version: counts by slot, the files of object states, the files of rejects.

A version of the log names its manifest by a number `n`, new at each attempt to commit. A manifest is written before its
version, and never again; one that no version names is garbage. It holds counts, not keys, so its size does not depend
on the table's: at most `MANIFEST_BYTES`.

Stored as JSON, the counts as columns: number i of a column is that of slot i.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.slots import Slot

MANIFEST_BYTES: Final = 256 << 10
"""A manifest of 1000 slots has about 40 KB. More than this is an error, not a table."""

SIGNAL_DIGITS: Final = 8

FORMAT: Final = 1

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """What a slot holds.

    `generation`: the version that last changed it; 0: none has. `objects` counts the live ones, `without_records` those
    that `ObjectState` calls so, `failing` those in quarantine as a whole, `pending` those to be read further or again.
    `signal`: the first digits of its signal's ETag, as its last batch saw it. `code_version`: of the transform that
    made its rows. `backfill`: rows that were planned before this version are to be read again; 0: none. `source`: the
    version of the source's table that a derived slot was made from.
    """

    generation: int = 0
    rows: int = 0
    rejects: int = 0
    objects: int = 0
    without_records: int = 0
    failing: int = 0
    pending: int = 0
    backfill: int = 0
    source: int = 0
    signal: str = ""
    code_version: str = ""


EMPTY_SLOT: Final = SlotFacts()

_COUNTS: Final = tuple(each.name for each in fields(SlotFacts) if each.type is int)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectFile:
    """A file of rejects, as `actions.Add` has a pack: rows, the slots and labels that they lie between."""

    name: str
    rows: int
    size: int
    slots: tuple[int, int]
    since: int
    until: int

    def may_hold(self, slot: int, since: int, until: int) -> bool:
        """Whether rejects of this slot, planned between these labels, may be in the file."""
        return self.slots[0] <= slot <= self.slots[1] and self.since <= until and since <= self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The state as of `version`, besides its packs. `states`: the files of object states, as `StateSet` stores them."""

    table: str
    version: int
    number: int
    parent: int = 0
    slots: Mapping[Slot, SlotFacts] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)
    rejects: tuple[RejectFile, ...] = ()

    def slot(self, slot: Slot) -> SlotFacts:
        """What a slot holds."""
        return self.slots.get(slot, EMPTY_SLOT)

    @property
    def state_files(self) -> frozenset[str]:
        """The names of the files of object states."""
        return frozenset(row[0] for row in self.states.get("files", ()))

    def dumps(self) -> bytes:
        """JSON. `UsageError`: it would be larger than a manifest may be."""
        count = max(self.slots, default=-1) + 1
        of = [self.slot(Slot(number)) for number in range(count)]
        codes = sorted({facts.code_version for facts in of})
        columns = {name: [getattr(facts, name) for facts in of] for name in _COUNTS}
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
            "states": self.states,
            "rejects": [
                [each.name, each.rows, each.size, *each.slots, each.since, each.until]
                for each in self.rejects
            ],
            "count": count,
        }
        dumped = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(dumped) > MANIFEST_BYTES:
            raise UsageError(
                f"the manifest of version {self.version} would have {len(dumped)} bytes, of at most {MANIFEST_BYTES}: "
                "run `s3notify table compact`"
            )
        return dumped

    @classmethod
    def loads(cls, body: bytes, *, where: str) -> "Manifest":
        """Inverse of `dumps`; `CorruptError` naming `where`."""
        try:
            found = json.loads(body)
            if found["format"] != FORMAT:
                raise CorruptError(
                    f"{where}: manifest format {found['format']}, this version reads {FORMAT}: "
                    "use the version of s3notify_platform that wrote it"
                )
            return cls(
                table=found["table"],
                version=found["version"],
                number=found["n"],
                parent=found["parent"],
                slots=_slots(found),
                states=found["states"],
                rejects=tuple(_reject(row) for row in found["rejects"]),
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CorruptError(
                f"{where}: not a manifest ({type(error).__name__}: {error}): restore it"
            ) from error


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


def _reject(row: list[Any]) -> RejectFile:
    name, rows, size, first, last, since, until = row
    return RejectFile(name=name, rows=rows, size=size, slots=(first, last), since=since, until=until)
