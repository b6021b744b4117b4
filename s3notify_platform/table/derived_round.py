"""A round of a derived slot table (the table of a slot asset), as a `Change`. The round replaces all rows of its slots.

A derived slot table has a log like its source's table, but neither states of objects nor rejects. The first column of
the table is `_slot`. The rows need no other columns of the platform. For each slot, the manifest has the version of the
source's table from which the slot's rows were made. If a run crashes between the commit to the source's table and the
commit to the derived table, the manifest has a version that is older than the slot's last change in the source's table.
In this case, the rows of the slot are made again.

| after the round was planned, another writer … | then the round … |
|---|---|
| changed other slots | is committed on top of that version; the rows of other slots stay |
| made a slot of the round from the same source version, or a later version | leaves out this slot (up to date) |
| made a slot of the round from an earlier version, or rolled the slot back | replaces the rows of this slot |
| changed a slot of the round, and the round's source version is unknown | leaves out this slot, as a conflict |
| erased an object in a slot of the round, and did not make the slot later | leaves out this slot, as a conflict |
| erased an object that is in one of the round's packs | leaves out that pack's slots, too, if the pack was deleted |
| merged or replaced a pack that has rows of the round's slots | removes these rows from the new packs |
| added columns, and did not change common columns | is committed, with the columns of both writers |
| gave a column another type than the round | leaves out the slots with new rows, as a conflict |
| began the table again, under another id | commits nothing |
| is another engine whose version is accepted (OPTIMIZE) | removes its slots' rows from the engine's packs, too |
| is another engine whose version is refused (`delta.log_state`) | fails with an error, as every writer does |

If the source version is unknown, a slot counts as changed if another writer changed it after the version
`Replacement.since`. The inputs of the round's rows were read after `Replacement.since`.

Packs are small (`DERIVED`). So the replacement of one slot writes at most `MAX_OTHERS` bytes besides the slot's own
rows. These bytes are rows of other slots in the same packs, and rows of merged packs. A batch may write `MAX_OTHERS`
bytes for each of its slots. If half of the bytes in the rewritten packs belong to the batch's slots, the batch writes
at most twice the bytes of these slots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.delta.metadata import raised, united
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.pack_set import PackSet, StagedPack
from s3notify_platform.table.packs.round_packs import Withdrawal
from s3notify_platform.table.pinned_schema import both_sources, was_retyped
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.round import CONFLICT
from s3notify_platform.table.snapshot import Snapshot

MAX_OTHERS: Final = 16 << 20
"""The largest number of bytes that the replacement of a slot writes, besides the slot's rows."""

DERIVED: Final = PackSizes(
    target=2 << 20, smallest=256 << 10, fan=2, group=1 << 20, budget=6 << 20, by_slot=True
)
"""The sizes of packs in derived slot tables. With these sizes, 3 * (`target` + `group`) + `budget` is less than
`MAX_OTHERS`.
"""


CHANGED: Final = f"{CONFLICT}: run this slot again"
"""The reason why a slot is left out: another writer has changed the slot, and it is unknown whose rows are newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSlot:
    """The new rows of a slot. `rows`: the number of these rows. `source`: the version of the source's table from which
    the rows were made, or None if this version is unknown (0 in the manifest).
    """

    rows: int
    source: int | None
    code_version: str = ""


@dataclass(slots=True, kw_only=True)
class Replacement:
    """New rows for slots of a derived slot table. The rows were planned on the snapshot `base`. `Committer.commit`
    commits this change.

    `rows`: the packs with these rows. The packs are already stored, and their label is `base.version` + 1. `since`: the
    newest version of the derived table before the inputs of these rows were read. `since` is 0 if the table did not
    exist at that time. None means the version of `base`. If another writer has changed a slot after `since`, the slot
    may have rows from newer inputs. The other fields are as in `RoundChange`. After the commit, `done` has the slots
    whose new rows another writer has already committed. `dropped` has the other slots that were left out, with reasons.
    """

    base: Snapshot
    slots: Mapping[Slot, NewSlot]
    table: LogTable
    since: int | None = None
    rows: Sequence[StagedPack] = ()
    metadata: MetaData | None = None
    protocol: Protocol | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    done: frozenset[Slot] = frozenset()
    dropped: dict[Slot, str] = field(default_factory=dict)
    _lost: dict[Slot, str] = field(default_factory=dict)
    _data: PackSet = field(init=False)

    def __post_init__(self) -> None:
        self._data = self.table.data.fresh()

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the list of cases in the module's docstring."""
        while True:
            self.dropped = {**self._conflicts(base), **self._lost}
            self.done = frozenset(
                slot for slot in self.slots if slot not in self.dropped and self._is_done(slot, base)
            )
            without = self.done.union(self.dropped)
            left = {slot: each for slot, each in self.slots.items() if slot not in without}
            if not left:
                return None
            # All rows of the slot are removed, even if their number differs from the number in the manifest. So a
            # damaged slot is repaired.
            leaving = [Withdrawal(slot=slot, key=None) for slot in left if base.manifest.slot(slot).rows]
            rows = self._data.changed(
                base.packs.values(), leaving, self.rows, without=without, fresh=base.fresh
            )
            lost = {slot: CHANGED for slot in left if slot in rows.lost}
            if not lost:
                break
            self._lost |= lost
        metadata, protocol = self._schema(base)
        return Proposal(
            adds=tuple(rows.adds),
            removes=tuple(rows.removes),
            slots={slot: _facts(each) for slot, each in left.items()},
            metadata=metadata,
            protocol=protocol,
            files=rows.files,
            note={**self.note, "slots": sorted(left)},
        )

    def _is_done(self, slot: Slot, base: Snapshot) -> bool:
        mine, facts = self.slots[slot].source, base.manifest.slot(slot)
        # An erasure changes the slot, but does not make new rows for it.
        since = max(self._since, base.manifest.erased.get(slot, 0))
        return mine is not None and facts.generation > since and facts.source >= mine

    @property
    def _since(self) -> int:
        return self.base.version if self.since is None else self.since

    def _conflicts(self, base: Snapshot) -> dict[Slot, str]:
        if base.table != self.base.table:
            return dict.fromkeys(self.slots, CONFLICT)
        held, since = base.manifest, self._since
        # The round's rows may come from an object that was erased meanwhile. The erasure may have deleted the packs of
        # these rows.
        changed = {
            slot: CHANGED
            for slot, each in self.slots.items()
            if (held.slot(slot).generation if each.source is None else held.erased.get(slot, 0)) > since
            and not self._is_done(slot, base)
        }
        if was_retyped(base.metadata, self.metadata or self.base.metadata, since=self.base.metadata):
            return changed | dict.fromkeys((slot for slot, each in self.slots.items() if each.rows), CONFLICT)
        return changed

    def _schema(self, base: Snapshot) -> tuple[MetaData | None, Protocol | None]:
        if self.metadata is None:
            return None, None
        schema = united(base.metadata.schema, self.metadata.schema)
        if schema is None:  # `_conflicts` has left out the slots with rows
            return None, None
        properties = both_sources(base.metadata.configuration, self.metadata.configuration)
        metadata = replace(base.metadata, schema=schema, configuration=properties)
        return metadata, raised(base.protocol, self.protocol) if self.protocol else base.protocol


def _facts(new: NewSlot) -> SlotFacts:
    return SlotFacts(rows=new.rows, source=new.source or 0, code_version=new.code_version)
