"""Collects what the tasks of a job have staged: each object's outcome, and the packs that can be committed. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from s3notify_platform.engine.values.object_read import Outcome, joined
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.engine.values.task_rows import (
    FailedSlot,
    ReadObject,
    Requests,
    Staged,
    StoredRows,
    WrittenPack,
)
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.packs.pack_set import StagedPack


@dataclass(slots=True, kw_only=True)
class StagedPart:
    """The packs and outcomes of one job. Slots in `failed` are not committed, even if packs have rows of these slots.

    `outcomes`: by key, the outcome of each object that had to be read.
    """

    plans: Sequence[SlotPlan]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    rows: Sequence[StagedPack] = ()
    rejects: Sequence[StagedPack] = ()
    failed: Mapping[Slot, FailedSlot] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Collected:
    """Collects the rows of `STAGED` that the tasks of a job have sent."""

    parts: dict[str, list[Outcome]] = field(default_factory=dict)
    packs: list[WrittenPack] = field(default_factory=list)
    stored: list[StoredRows] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    tasks: int = 0

    def add(self, rows: Iterable[Staged]) -> None:
        """Adds rows."""
        for row in rows:
            match row:
                case ReadObject():
                    self.parts.setdefault(row.key, []).append(row.outcome)
                case WrittenPack():
                    self.packs.append(row)
                case StoredRows():
                    self.stored.append(row)
                case Requests():
                    self.requests.update(row.requests)
                    self.tasks += 1

    def outcomes(self, *, whole: bool) -> dict[str, Outcome]:
        """Returns the outcome of each object. `whole`: as in `joined`."""
        return {key: joined(parts, whole=whole) for key, parts in self.parts.items()}

    def part(
        self, plans: Sequence[SlotPlan], outcomes: Mapping[str, Outcome], *, transformed: bool
    ) -> StagedPart:
        """Returns the packs and outcomes of the job.

        Raises `UsageError` if a transform has made rows of a slot that is not planned.
        """
        kept = [pack for pack in self.packs if not pack.key or _counts(pack, outcomes.get(pack.key))]
        rows = [pack.staged for pack in kept if not pack.of_rejects]
        rejects = [pack.staged for pack in kept if pack.of_rejects]
        failed = _foreign(self.stored, plans, outcomes) if transformed else _lost(plans, outcomes, rows)
        if transformed:
            made = {row.key: row.rows for row in self.stored}
            outcomes = {key: replace(each, stored=made.get(key, 0)) for key, each in outcomes.items()}
        return StagedPart(plans=plans, outcomes=outcomes, rows=rows, rejects=rejects, failed=failed)


def _counts(pack: WrittenPack, outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.status == "ok" and pack.start in outcome.parts


def _lost(
    plans: Sequence[SlotPlan], outcomes: Mapping[str, Outcome], packs: Iterable[StagedPack]
) -> dict[Slot, FailedSlot]:
    """Returns the slots whose packs have more or fewer rows than were parsed."""
    arrived: Counter[int] = Counter()
    for pack in packs:
        arrived.update(pack.slots)
    failed = {}
    for plan in plans:
        keys = (split.version.key for split in plan.changes.read)
        found = [outcomes[key] for key in keys if key in outcomes]
        parsed = sum(each.rows for each in found if each.status == "ok")
        if parsed != arrived[plan.slot]:
            error = (
                f"CorruptError: slot {plan.slot}: {parsed} rows were parsed and {arrived[plan.slot]} arrived"
            )
            failed[plan.slot] = FailedSlot(slot=plan.slot, error=error)
    return failed


def _foreign(
    stored: Iterable[StoredRows], plans: Sequence[SlotPlan], outcomes: Mapping[str, Outcome]
) -> dict[Slot, FailedSlot]:
    """Returns the slots for which a transform has returned rows of objects that were not read."""
    slot_of = {split.version.key: plan.slot for plan in plans for split in plan.changes.read}
    slots = {plan.slot for plan in plans}
    failed: dict[Slot, FailedSlot] = {}
    for row in stored:
        outcome, planned = outcomes.get(row.key), slot_of.get(row.key)
        if outcome is not None and (outcome.etag, planned) == (row.etag, row.slot):
            continue
        if not (concerned := slots.intersection({row.slot, planned})):
            raise UsageError(
                f"rows of slot {row.slot}, which is not in this batch: a transform must keep _slot unchanged"
            )
        error = (
            f"rows of slot {row.slot} are of an object version that this batch did not read: a transform must keep "
            "_slot, _key, _etag and _offset unchanged"
        )
        failed |= {slot: FailedSlot(slot=slot, error=error) for slot in concerned}
    return failed
