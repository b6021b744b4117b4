"""What a batch's run reports at its end, besides its slots: the summary, and the checks that it knows the answer to.

So no check waits for a run of its own. `schema_changes` is about this batch. `chains_settled` is as the sensor's cursor
has it. `complete` is what the last sweep said, or this batch, if it has compared the whole bucket itself.
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
    schema_evaluation,
    swept_whole,
)
from s3notify_platform.orchestration.sensor_views import sensor_state
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.orchestration.source_summary import BatchNumbers, SourceNow
from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One run of a batch, when it has ended. `everything`: it has compared the whole bucket.

    `failed`: its slots that were not committed, with the reason. `ingested`: it made not only slot assets.
    """

    settings: SourceAssets
    source: Source
    numbers: BatchNumbers
    failed: dict[Slot, str]
    ingested: bool
    everything: bool
    opened_ms: int

    def events(self, context: dg.AssetExecutionContext) -> Iterator[Event]:
        """What is to be logged. 1 read of the instance's sensors, 1 of a check's history, and `SourceNow.metadata`."""
        instance, name = context.instance, self.source.name
        state = sensor_state(instance, name, self.source.location.records())
        done = self.numbers.done
        yield dg.AssetMaterialization(
            f"{name}_summary", metadata=self.numbers.metadata() | self._now(context, state)
        )
        if not self.ingested:
            return
        yield schema_evaluation(name, done, batch=self.numbers.batch)
        if state is not None:
            yield chains_as_seen(name, state, besides=self.numbers.batch)
        if self.everything and not self.failed:
            yield swept_whole(name, done, at_ms=self.opened_ms)
        elif (swept := as_swept(instance, name)) is not None:
            yield swept

    def _now(self, context: dg.AssetExecutionContext, state: SensorState | None) -> dict[str, Any]:
        """The source as the run leaves it. What it knows of the table is at hand: the newest snapshot is not read."""
        table = self.source.table()
        try:
            found = table.memory.kept() or table.newest()
            if isinstance(found, Absent):
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
            return now.metadata()
        except S3NotifyError as error:  # all is committed
            context.log.warning("the summary lacks its slots: %s", error)
            return {}
