"""The state of one object, in Dagster: the sensor's part of the answer, and a job that shows it.

A person launches the job from the launchpad, with a key. The answer is in the run's log, and an observation of the
key's slot on the page of the source's asset.
"""

from typing import TYPE_CHECKING, Final

import dagster as dg
from dagster import RunsFilter
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import SensorInstigatorData
from pydantic import Field

from s3notify_platform.errors import CorruptError
from s3notify_platform.explain import Answer, BatchView, SensorView, explain
from s3notify_platform.ingest.batches import EVERYTHING, SensorState
from s3notify_platform.ingest.source import Source
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.partitions import BATCH_TAG
from s3notify_platform.orchestration.steps import launched_by_hand, step_failures
from s3notify_platform.slots import Slot, slot_of

if TYPE_CHECKING:
    from s3notify_platform.orchestration.io_manager import SlotIOManager

RUNS_MAX: Final = 10
"""How many runs of a batch are named."""


class ExplainKey(dg.Config):
    """The object to explain."""

    key: str = Field(description="Key of the object, whole, like raw/orders/1.jsonl")


def build_explain(assets: SourceAssets) -> dg.JobDefinition:
    """The job `{source}_explain`. It fails for a key that is not the source's, and if no answer could be found.

    No Spark; requests as in `explain.look`, and one read of the instance's sensors.
    """

    @dg.op(
        name=f"{assets.name}_explain_key",
        description="The state of one object: signalled, queued, in a batch, committed, rejected, or why not.",
        required_resource_keys={assets.io_key},
    )
    def explain_key(context: dg.OpExecutionContext, config: ExplainKey) -> None:
        io: SlotIOManager = getattr(context.resources, assets.io_key)
        with step_failures():
            source = io.source
            answer = explain(source, config.key, sensor=sensor_view(context.instance, source, config.key))
        for line in answer.lines:
            context.log.info(line)
        context.log_event(
            dg.AssetObservation(
                asset_key=assets.name,
                partition=str(answer.slot),
                description=answer.verdict.text,
                metadata={
                    "key": answer.key,
                    "verdict": answer.verdict.kind,
                    "explained": dg.MetadataValue.md(_markdown(answer)),
                },
            )
        )

    return launched_by_hand(
        explain_key,
        name=f"{assets.name}_explain",
        source=assets.name,
        description=f"What happened to an object of {assets.name!r}? Launch it with the object's key.",
    )


def sensor_view(instance: dg.DagsterInstance, source: Source, key: str) -> SensorView | None:
    """What the source's sensor knows about the key's slot; None if it has no cursor yet.

    If several code locations have a sensor of this name, the one that ticked last. One read of the instance's sensors,
    and one of the runs for each open batch.
    """
    state = _cursor_of(instance, f"{source.name}_sensor")
    if state is None:
        return None
    slot = slot_of(key, source.location.slots)
    return SensorView(
        seen=state.watch.seen(slot) if slot < state.watch.slots else b"",
        enumerated=state.enumerated,
        batches=tuple(
            BatchView(
                id=batch.id, opened_ms=batch.opened_ms, listing=batch.listing, runs=_runs(instance, batch.id)
            )
            for batch in state.open
            if {slot, Slot(EVERYTHING)} & set(batch.slots)
        ),
        failing=state.failing.get(slot) or state.failing.get(EVERYTHING),
    )


def _cursor_of(instance: dg.DagsterInstance, sensor: str) -> SensorState | None:
    found = [
        state.instigator_data
        for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        if state.instigator_name == sensor and isinstance(state.instigator_data, SensorInstigatorData)
    ]
    for data in sorted(found, key=lambda data: -(data.last_tick_timestamp or 0)):
        try:
            if data.cursor:
                return SensorState.loads(data.cursor)
        except CorruptError:  # not the platform's sensor, though of the same name
            continue
    return None


def _runs(instance: dg.DagsterInstance, batch: str) -> tuple[str, ...]:
    runs = instance.get_runs(filters=RunsFilter(tags={BATCH_TAG: batch}), limit=RUNS_MAX)
    return tuple(f"{run.run_id} ({run.status.value})" for run in runs)


def _markdown(answer: Answer) -> str:
    """The verdict and the facts, in an indented block, since keys and reasons may contain any characters."""
    verdict, *facts = answer.lines
    return "\n".join([f"    {verdict}", "", *(f"    {fact}" for fact in facts)])
