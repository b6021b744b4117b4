"""A round of a batch, as a `Change` on top of the newest version.

| after the round was planned, another writer … | then the round … |
|---|---|
| changed other slots | is committed on top of that version |
| changed a slot of the round | leaves out this slot, with its rows, rejects and states, as a conflict |
| erased an object that is in one of the round's packs | leaves out the slots of that pack, too |
| replaced a pack from which the round withdraws rows | withdraws these rows from the new packs |
| merged packs or state files that the round also merges | merges the new packs, and merges no state files |
| added columns, and did not change common columns | is committed, with the columns of both writers |
| gave a column another type or parsing type than the round | leaves out slots with new rows or rejects, as a conflict |
| began the table again, under another id | commits nothing |
| is another engine whose version is accepted (OPTIMIZE) | withdraws the same rows from the engine's packs |
| is another engine whose version is refused (`delta.log_state`) | fails with an error, as every writer does |

A small slot shares packs with other slots. If a round leaves out a small slot, the packs are rewritten without the rows
of this slot.

All changes follow from the states of objects. If the new state of an object has the same ETag and the same first label
as the earlier state, the object's earlier rows stay. Otherwise these rows are withdrawn. The counts of a slot change by
the difference between its new and its earlier states. If the number of withdrawn rows differs from the number in the
states, the slot is damaged, and only this slot fails.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.delta.metadata import raised, united
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.packs.pack_set import PackChanges, PackSet, StagedPack, live_after
from s3notify_platform.table.packs.round_packs import Withdrawal
from s3notify_platform.table.pinned_schema import both_sources, was_retyped
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.state_changes import state_changes
from s3notify_platform.table.states.state_levels import Next
from s3notify_platform.table.states.state_merge import next_states

CONFLICT: Final = "another run committed the slot first"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRound:
    """One slot of a round. `changes`: the new states of objects, by key. The state of an object that has left is marked
    as `gone`.

    `before`: the earlier states of the objects that had a state. `label`: the label of the slot's new rows.
    `transformed`: True if a transform has made these rows. The other fields are as in `SlotFacts`. If a field is None,
    its count stays unchanged.
    """

    changes: Mapping[str, ObjectState] = field(default_factory=dict)
    before: Mapping[str, ObjectState] = field(default_factory=dict)
    label: int = 0
    signal: str | None = None
    code_version: str | None = None
    backfill: int | None = None
    transformed: bool = False

    @property
    def pairs(self) -> list[tuple[ObjectState, ObjectState | None]]:
        """Each new state, together with the earlier state of the object."""
        return [(state, self.before.get(key)) for key, state in self.changes.items()]

    def facts(self, before: SlotFacts) -> SlotFacts:
        """Returns the counts of the slot after the round. Pure."""
        stays = before.rows > sum(state.rows for state in self.leaving())
        return replace(
            before,
            rows=before.rows + self._moved(lambda state: state.rows),
            rejects=before.rejects + self._moved(lambda state: state.rejects),
            objects=before.objects + self._moved(lambda state: not state.expired),
            without_records=before.without_records + self._moved(lambda state: state.without_records),
            failing=before.failing + self._moved(lambda state: state.failing),
            pending=before.pending + self._moved(lambda state: state.pending),
            signal=before.signal if self.signal is None else self.signal,
            **self._code(before),
            transformed=int(self.transformed or (before.transformed and stays)),
            backfill=before.backfill if self.backfill is None else self.backfill,
        )

    def _code(self, before: SlotFacts) -> dict[str, Any]:
        """Returns the slot's `code_version`, `other_code` and `code_since` after the round (`SlotFacts`)."""
        code, since = self.code_version, before.code_since
        if code is None:
            code = before.code_version
        elif code != before.code_version:
            since = self.label  # other code made all earlier rows

        def is_other(state: ObjectState) -> bool:
            return state.since < since and not (state.failing or state.expired)

        other = before.objects_of_other_code(code) + self._moved(is_other)
        # A failing object may already have rows from other code, and its next read may continue after these rows.
        failing = before.failing + self._moved(lambda state: state.failing)
        return {"code_version": code, "other_code": other, "code_since": since if other or failing else 0}

    def _moved(self, count: Callable[[ObjectState], int]) -> int:
        return sum(
            (0 if state.gone else count(state)) - (count(before) if before else 0)
            for state, before in self.pairs
        )

    def leaving(self) -> list[ObjectState]:
        """Returns the earlier states whose rows and rejects are withdrawn. Pure."""
        return [before for state, before in self.pairs if before is not None and _leave(state, before)]


def _leave(state: ObjectState, before: ObjectState) -> bool:
    """Returns true if the rows of the earlier state are withdrawn.

    The rows stay if the new state has the same ETag and the same first label.
    """
    return state.gone or state.since != before.since or state.etag != before.etag


@dataclass(slots=True, kw_only=True)
class RoundChange:
    """A round that was planned on the snapshot `base`. `Committer.commit` commits this change.

    `rows`, `rejects`: the packs of the round. `metadata`, `protocol`: set if the round's rows have another schema than
    `base`. `note`: data for the history. After the commit, `dropped` says why slots were left out.
    """

    base: Snapshot
    slots: Mapping[Slot, SlotRound]
    table: LogTable
    clock: Clock
    rows: Sequence[StagedPack] = ()
    rejects: Sequence[StagedPack] = ()
    metadata: MetaData | None = None
    protocol: Protocol | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    dropped: dict[Slot, str] = field(default_factory=dict)
    _damaged: dict[Slot, str] = field(default_factory=dict)
    _next: Next | None = None
    _staged: frozenset[int] = frozenset()
    _data: PackSet = field(init=False)
    _quarantine: PackSet = field(init=False)

    def __post_init__(self) -> None:
        self._data, self._quarantine = self.table.data.fresh(), self.table.quarantine.fresh()
        self._staged = frozenset(slot for pack in (*self.rows, *self.rejects) for slot in pack.slots)

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the list of cases in the module's docstring."""
        while True:
            self.dropped = {**self._conflicts(base), **self._damaged}
            left = {slot: each for slot, each in self.slots.items() if slot not in self.dropped}
            if not left:
                return None
            leaving = {slot: each.leaving() for slot, each in left.items()}
            # If a slot fails after its rows were staged, the slot is no longer in the round, but a pack may have its
            # rows.
            without = frozenset(self.dropped).union(self._staged).difference(left)
            rows = self._data.changed(
                base.packs.values(),
                _withdrawals(leaving, "rows"),
                self.rows,
                without=without,
                fresh=base.fresh,
            )
            rejects = self._quarantine.changed(
                base.manifest.rejects, _withdrawals(leaving, "rejects"), self.rejects, without=without
            )
            damaged = {
                **_mismatches(leaving, rows, "rows"),
                **_mismatches(leaving, rejects, "rejects"),
                **{Slot(slot): CONFLICT for slot in (rows.lost | rejects.lost) & left.keys()},
            }
            if not damaged:
                break
            self._damaged |= damaged
        states = self._states(base)
        metadata, protocol = self._schema(base)
        return Proposal(
            adds=tuple(rows.adds),
            removes=tuple(rows.removes),
            slots={slot: each.facts(base.manifest.slot(slot)) for slot, each in left.items()},
            states=states.states,
            rejects=live_after(base.manifest.rejects, rejects),
            changes=tuple(
                change for slot, each in left.items() for change in state_changes(slot, each.pairs)
            ),
            metadata=metadata,
            protocol=protocol,
            files={
                **rows.files,
                **rejects.files,
                **{self.table.layout.state(name): body for name, body in states.bodies.items()},
            },
            note={**self.note, "slots": sorted(left)},
        )

    def _conflicts(self, base: Snapshot) -> dict[Slot, str]:
        moved = {
            slot
            for slot in self.slots
            if base.manifest.slot(slot).generation > self.base.version or base.table != self.base.table
        }
        if was_retyped(base.metadata, self.metadata or self.base.metadata, since=self.base.metadata):
            # A table cannot have rows of both types. Slots with rejects are left out, too, because these records may be
            # valid with the new type.
            moved |= {Slot(slot) for pack in (*self.rows, *self.rejects) for slot in pack.slots}
        return dict.fromkeys(moved, CONFLICT)

    def _states(self, base: Snapshot) -> Next:
        """Returns the states of the next version. If a merge of state files is due, the first call includes the
        merge.
        """
        theirs = base.manifest.states
        if self._next is None:
            changes = {slot: each.changes for slot, each in self.slots.items()}
            self._next = next_states(self.table.states, theirs, changes, name=self._name)
            if not self.dropped:
                return self._next
        return self._next.rebased(theirs, without=self.dropped.keys())

    def _schema(self, base: Snapshot) -> tuple[MetaData | None, Protocol | None]:
        if self.metadata is None:
            return None, None
        schema = united(base.metadata.schema, self.metadata.schema)
        if schema is None:  # the remaining slots have neither rows nor rejects
            return None, None
        properties = both_sources(base.metadata.configuration, self.metadata.configuration)
        metadata = replace(base.metadata, schema=schema, configuration=properties)
        protocol = raised(base.protocol, self.protocol) if self.protocol else base.protocol
        return metadata, protocol

    def _name(self) -> str:
        return unique_name(self.clock)


def _withdrawals(leaving: Mapping[Slot, Iterable[ObjectState]], what: str) -> list[Withdrawal]:
    return [
        Withdrawal(slot=slot, key=state.key, since=state.since, until=state.until)
        for slot, states in leaving.items()
        for state in states
        if getattr(state, what)
    ]


def _mismatches(
    leaving: Mapping[Slot, Iterable[ObjectState]], changes: PackChanges, what: str
) -> dict[Slot, str]:
    """Returns an error text for each slot that lost more or fewer rows (or rejects) than the states say."""
    expected = {slot: sum(getattr(state, what) for state in states) for slot, states in leaving.items()}
    return {
        slot: f"CorruptError: {changes.withdrawn[slot]} {what} of objects that leave slot {slot} were found, but "
        f"{count} were committed: `s3notify table check`"
        for slot, count in expected.items()
        if changes.withdrawn[slot] != count
    }
