"""The staged slots of a round, and the table snapshot that the round is planned on."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from s3notify_platform.engine.commit.new_states import Settled
from s3notify_platform.engine.stage.collect import StagedPart
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.engine.values.task_rows import FailedSlot
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.packs.pack_set import PackSet, StagedPack
from s3notify_platform.table.pinned_schema import TableSchema, schema_of
from s3notify_platform.table.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The table, and the snapshot on which a round is planned."""

    table: LogTable
    snapshot: Snapshot

    @property
    def schema(self) -> TableSchema | None:
        """The pinned schema."""
        return schema_of(self.snapshot.metadata)

    @property
    def label(self) -> int:
        """The label of rows that are staged on this snapshot."""
        return self.snapshot.version + 1


@dataclass(slots=True, kw_only=True)
class StagedRound:
    """The staged slots of a round. `of`: for each settled slot, the staged part that contains the slot."""

    schema: TableSchema | None = None
    parts: list[StagedPart] = field(default_factory=list)
    settled: dict[Slot, Settled] = field(default_factory=dict)
    of: dict[Slot, StagedPart] = field(default_factory=dict)
    failed: dict[Slot, FailedSlot] = field(default_factory=dict)

    def take(self, part: StagedPart, found: Mapping[Slot, Settled]) -> None:
        """Adds the part that a job has staged. Slots that are missing from `found` are staged again, or have failed."""
        self.parts.append(part)
        self.settled |= found
        self.of |= dict.fromkeys(found, part)
        self.failed |= part.failed

    def packs(self, table: LogTable, slots: Collection[Slot]) -> tuple[list[StagedPack], list[StagedPack]]:
        """Returns the packs of rows and the packs of rejects. Rows and rejects of slots outside `slots` are left out.

        Cost: the requests of `PackSet.narrowed`.
        """
        rows: list[StagedPack] = []
        rejects: list[StagedPack] = []
        for part in self.parts:
            kept = {slot for slot in slots if self.of[slot] is part}
            rows += _only(table.data, part.rows, kept)
            rejects += _only(table.quarantine, part.rejects, kept)
        return rows, rejects


def _only(packs: PackSet, staged: Iterable[StagedPack], slots: set[Slot]) -> Iterator[StagedPack]:
    for pack in staged:
        yield from packs.narrowed(pack, frozenset(pack.slots.keys() - slots))


def outcomes_of(part: StagedPart, plan: SlotPlan) -> dict[str, Outcome]:
    """Returns the outcomes of one slot's objects."""
    keys = (split.version.key for split in plan.changes.read)
    return {key: part.outcomes[key] for key in keys if key in part.outcomes}
