"""The report at the end of a batch: the summary, and the results of those checks that the batch's run can evaluate.

So these checks need no separate runs. `schema_changes` is about this batch. `quarantine` is about the table after the
batch. `chains_settled` repeats the state in the sensor's cursor. `complete` reports this batch if the batch compared
the whole bucket; otherwise it repeats the last sweep's result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from s3notify_platform.engine.batch.batches import SensorState
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.check_results import (
    Event,
    as_swept,
    chains_as_seen,
    quarantine_facts,
    schema_evaluation,
    swept_whole,
)
from s3notify_platform.orchestration.sensor_views import sensor_state
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.orchestration.source_summary import BatchNumbers, SourceNow
from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The report of one run of a batch, at the end of the run. `everything`: the batch compared the whole bucket.

    `failed`: the slots that were not committed, with the reason. `ingested`: False if the run made only slot assets.
    """

    settings: SourceAssets
    source: Source
    numbers: BatchNumbers
    failed: dict[Slot, str]
    ingested: bool
    everything: bool
    opened_ms: int

    def events(self, context: dg.AssetExecutionContext) -> Iterator[Event]:
        """The events to log. Cost: 1 read of the instance's sensors, 1 read of a check's history, and the requests of
        `SourceNow.metadata`.
        """
        instance, name = context.instance, self.source.name
        state = sensor_state(instance, name, self.source.location.records())
        done, found = self.numbers.done, self._snapshot(context)
        yield dg.AssetMaterialization(
            f"{name}_summary", metadata=self.numbers.metadata() | self._now(context, found, state)
        )
        if not self.ingested:
            return
        if found is not None:
            yield dg.AssetCheckEvaluation(**quarantine_facts(name, found))
        given = self.source.input
        yield schema_evaluation(
            name,
            done,
            batch=self.numbers.batch,
            rescued=given.mismatches == "rescue",
            warning={rule.name for rule in given.rules.rules if rule.warns},
        )
        if state is not None:
            yield chains_as_seen(name, state, besides=self.numbers.batch)
        if self.everything and not self.failed:
            yield swept_whole(name, done, at_ms=self.opened_ms)
        elif (swept := as_swept(instance, name)) is not None:
            yield swept

    def _snapshot(self, context: dg.AssetExecutionContext) -> Snapshot | None:
        """The table after the run: the snapshot in memory, or the newest snapshot if memory has none."""
        table = self.source.table()
        try:
            found = table.memory.kept() or table.newest()
        except S3NotifyError as error:  # all slots are committed, so the run goes on
            context.log.warning("the report lacks the state of the table: %s", error)
            return None
        return found if isinstance(found, Snapshot) else None

    def _now(
        self, context: dg.AssetExecutionContext, found: Snapshot | None, state: SensorState | None
    ) -> dict[str, Any]:
        """Metadata of the source's state after the run, from this snapshot."""
        if found is None:
            return {}
        every = self.source.location.all_slots() if self.everything else self.numbers.done.slots
        now = SourceNow(
            source=self.source,
            snapshot=found,
            state=state,
            codes={name: code for name, code in self.settings.code_versions.items() if code},
            batch=self.numbers.batch,
            done={slot for slot in every if slot not in self.failed},
            failed=self.failed,
            created={
                each.generation for each in self.numbers.done.slots.values() if each.status == "committed"
            },
        )
        try:
            return now.metadata()
        except S3NotifyError as error:  # all slots are committed, so the run goes on
            context.log.warning("the summary lacks the state of the slots: %s", error)
            return {}
