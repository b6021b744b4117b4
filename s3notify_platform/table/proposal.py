"""The change that a writer requests, and the version that results from it. Pure.

A `Change` is a writer's request: its `onto` makes the next state from a snapshot. If another writer creates a version
first, `onto` is called again with a snapshot of this version. So each kind of change handles all cases of concurrent
writers in one place.

Each kind of change with several cases lists these cases in its docstring, or in the docstring of its module. These
modules are `round`, `derived_round`, `latest_round`, `clustered_round`, `reread`, `retype`, and in `maintenance/`
`compaction`, `table_erasure`, `table_rollback` and `vacuuming`. A migration commits no version, so there are no such
cases. A migration changes the table's identity in `known`, and later runs with the former settings are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.delta import actions
from s3notify_platform.table.delta.actions import Add, LogVersion, MetaData, Remove
from s3notify_platform.table.delta.log_state import after
from s3notify_platform.table.manifest import Followed, Manifest, SlotFacts
from s3notify_platform.table.snapshot import Snapshot, state_of
from s3notify_platform.table.state_changes import StateChange
from s3notify_platform.table.states.state_levels import StateSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The difference between a snapshot and the next version. Omitted fields stay unchanged.

    `files`: the bodies to write before the version, by key. Each key is new. `slots`: the counts of changed slots. The
    commit sets the `generation` in these counts. `states`, `rejects`, `follows`: as in `Manifest`. `changes`: the
    changes of the objects' states, for the feed (`feed`). `erases`: the slot from which an object is erased. `note`:
    data for the history.
    """

    adds: tuple[Add, ...] = ()
    removes: tuple[Remove, ...] = ()
    slots: Mapping[Slot, SlotFacts] = field(default_factory=dict)
    states: StateSet | None = None
    rejects: tuple[Add, ...] | None = None
    changes: tuple[StateChange, ...] = ()
    follows: Followed | None = None
    erases: Slot | None = None
    metadata: MetaData | None = None
    protocol: actions.Protocol | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    operation: str = "WRITE"
    note: Mapping[str, Any] = field(default_factory=dict)


class Change(Protocol):
    """A change that a writer requests for the next version."""

    def onto(self, base: Snapshot) -> Proposal | None:
        """Returns the proposal on top of this snapshot, or None if the snapshot already has the effect of the change.

        Raises an error if no part of the change is possible.
        """
        ...


def applied(base: Snapshot, proposal: Proposal, *, version: int, number: int) -> Snapshot:
    """Returns the snapshot that results from `base` and the proposal, as the version `version`."""
    removed = {each.id for each in proposal.removes}
    packs = {path: pack for path, pack in base.packs.items() if pack.id not in removed}
    before, metadata = base.manifest, proposal.metadata or base.metadata
    changed = {slot: replace(facts, generation=version) for slot, facts in proposal.slots.items()}
    manifest = Manifest(
        table=metadata.id,
        version=version,
        number=number,
        parent=before.parent if before.number == number else before.number,
        slots={**before.slots, **changed},
        states=before.states if proposal.states is None else proposal.states,
        rejects=before.rejects if proposal.rejects is None else proposal.rejects,
        # Several proposals may become one version. The changes of this proposal then come after the changes of earlier
        # proposals.
        changes=(*(before.changes if before.number == number else ()), *proposal.changes),
        follows=proposal.follows or before.follows,
        erased=before.erased if proposal.erases is None else {**before.erased, proposal.erases: version},
    )
    return replace(
        base,
        table=metadata.id,
        version=version,
        number=number,
        manifest=manifest,
        packs={**packs, **{add.path: add for add in proposal.adds}},
        metadata=metadata,
        protocol=proposal.protocol or base.protocol,
        fresh=base.fresh | {add.path for add in proposal.adds},
    )


def next_version(
    base: Snapshot, current: Snapshot, proposals: Sequence[Proposal], *, created_ms: int
) -> LogVersion:
    """Returns the log's version that leads from `base` to `current`. This version has the changes of these proposals,
    in order.

    If one proposal adds a file and a later proposal removes the file, the version neither adds nor removes it.
    `CorruptError`: the version does not fit the state of `base`.
    """
    live = {pack.id for pack in current.packs.values()}
    held = {pack.id for pack in base.packs.values()}
    adds: list[Add] = []
    removes: list[Remove] = []
    for each in proposals:
        # If a merged file loses rows in a later proposal, the version removes the files that were merged, and adds only
        # the file without the lost rows. In this case, the merge is marked as a change of data, too. Otherwise readers
        # would see the added rows twice.
        changes = not live.issuperset(add.id for add in each.adds)
        adds += [
            replace(add, data_change=add.data_change or changes) for add in each.adds if add.id in live - held
        ]
        removes += [
            replace(gone, data_change=gone.data_change or changes)
            for gone in each.removes
            if gone.id in held - live
        ]
    note: dict[str, Any] = {}
    for proposal in proposals:
        note |= proposal.note
    version = LogVersion(
        number=current.number,
        parent=base.number,
        table=current.table,
        created_ms=created_ms,
        operation=proposals[0].operation,
        adds=tuple(adds),
        removes=tuple(removes),
        metadata=current.metadata if current.metadata != base.metadata else None,
        protocol=current.protocol if current.protocol != base.protocol else None,
        note=note if len(proposals) == 1 else {"together": [dict(each.note) for each in proposals]},
    )
    after(state_of(base), version, where="the next version")
    return version
