"""Commits a staged round as one table version, and returns the result of each slot.

The rows are visible after the module `table.commit` has created the table version. The order of the later steps is in
`engine.loop`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from s3notify_platform.engine.commit.staged import Base, StagedRound
from s3notify_platform.engine.loop import Results
from s3notify_platform.engine.run_state import Run
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.engine.values.slot_plan import Plan
from s3notify_platform.engine.values.task_rows import FailedSlot
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import ConflictError, FencedError, S3NotifyError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source.source import Source
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.pinned_schema import TableSchema, described, is_same
from s3notify_platform.table.round import CONFLICT, RoundChange


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCommit:
    """The commit of a staged round. The failure of a slot raises no error."""

    source: Source
    base: Base
    plan: Plan
    run: Run
    staged: StagedRound
    clock: Clock

    def committed(self) -> Results:
        """Commits the staged slots as one table version. Returns the result of each slot of the round."""
        staged = self.staged
        started = self.clock.monotonic()
        results = {slot: self._unchanged(slot) for slot in (*self.plan.slots, *self.plan.failed)}
        for slot, failed in staged.failed.items():
            results[slot] = replace(
                self._unchanged(slot),
                status="failed",
                error=failed.error,
                outage=failed.outage,
                trace=failed.trace,
            )
        for slot, each in staged.settled.items():
            found = each.result
            results[slot] = replace(
                results[slot],
                failed_objects=found.failed_objects,
                traces=found.traces,
                unavailable=found.unavailable,
                superseded=found.superseded,
                complete=found.complete,
            )
        wanted = {slot: each.round for slot, each in staged.settled.items() if each.round is not None}
        if wanted:
            results |= self._commit(results)
            self.run.result.took("commit", self.clock.monotonic() - started)
        return results

    def _commit(self, results: Results) -> Results:
        """Commits the slots that have changes, and returns their results."""
        staged, base = self.staged, self.base
        slots = {slot: each.round for slot, each in staged.settled.items() if each.round is not None}
        try:
            rows, rejects = staged.packs(base.table, slots)
            metadata, protocol = self._schema(staged.schema)
            change = RoundChange(
                base=base.snapshot,
                slots=slots,
                table=base.table,
                clock=self.clock,
                rows=rows,
                rejects=rejects,
                metadata=metadata,
                protocol=protocol,
                note=self._note(slots),
            )
            done = base.table.commit(change, base.snapshot)
        except (ConflictError, FencedError):
            return {slot: _conflict(results[slot]) for slot in slots}
        except S3NotifyError as error:
            failed = FailedSlot.of(min(slots), error)
            return {
                slot: replace(results[slot], status="failed", error=failed.error, outage=failed.outage)
                for slot in slots
            }
        facts = done.snapshot.manifest
        found: Results = {}
        for slot in slots:
            why = change.dropped.get(slot, "" if isinstance(done, Committed) else CONFLICT)
            if why == CONFLICT:
                found[slot] = _conflict(results[slot])
            elif why:
                found[slot] = replace(results[slot], status="failed", error=why)
            else:
                now = facts.slot(slot)
                found[slot] = replace(
                    staged.settled[slot].result,
                    generation=now.generation,
                    live_objects=now.objects,
                    live_rows=now.rows,
                    live_rejects=now.rejects,
                    live_failing=now.failing,
                    made_by=now.made_by(self.run.code_version),
                )
        return found

    def _schema(self, schema: TableSchema | None) -> tuple[MetaData | None, Protocol | None]:
        """Returns the table's new metadata and its new protocol. Both results are None if metadata and protocol stay
        the same.
        """
        snapshot = self.base.snapshot
        assert schema is not None, "the schema was chosen when the round was staged"
        vectors = self.source.input.overwrites == "vectors"
        metadata, protocol = described(
            schema, created_ms=self.clock.wall_ms(), table=snapshot.table, vectors=vectors
        )
        held = snapshot.metadata.configuration
        if is_same(schema, self.base.schema) and metadata.configuration.items() <= held.items():
            return None, None
        return metadata, protocol

    def _note(self, slots: Collection[Slot]) -> dict[str, Any]:
        """Returns the facts that the table's history shows about the new table version."""
        state = self.run
        results = [self.staged.settled[slot].result for slot in slots]
        counts = {
            name: sum(getattr(each, name) for each in results)
            for name in ("objects", "rows", "rejects", "gone", "bytes")
        }
        times = {name: at for name in ("seen_ms", "planned_ms") if (at := getattr(state, name))}
        added = dict(state.result.schema_added)
        return {
            "batch": state.batch,
            "run": state.run,
            **counts,
            **times,
            **({"schema_added": added} if added else {}),
        }

    def _unchanged(self, slot: Slot) -> SlotResult:
        facts = self.base.snapshot.manifest.slot(slot)
        return SlotResult(
            slot=slot,
            status="unchanged",
            generation=facts.generation,
            live_objects=plan.objects if (plan := self.plan.slots.get(slot)) else 0,
            live_rows=facts.rows,
            live_rejects=facts.rejects,
            live_failing=facts.failing,
            made_by=facts.made_by(self.run.code_version),
        )


def _conflict(result: SlotResult) -> SlotResult:
    return replace(result, status="conflict", error=CONFLICT)
