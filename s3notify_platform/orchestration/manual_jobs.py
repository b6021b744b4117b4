"""Jobs that a person launches from the launchpad: `{source}_explain`, the state of one object, and `{source}_retry`,
which has what is in quarantine read again. Also the sensor's part of the answer, for the command `s3notify explain`.

The answer is in the run's log, and an observation of the key's slot on the page of the source's asset.
"""

from typing import Final

import dagster as dg
from dagster import RunsFilter
from pydantic import Field

from s3notify_platform.engine.batch.batches import EVERYTHING, SensorState
from s3notify_platform.explain import BatchView, SensorView, explain
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.maintenance.quarantine_retry import RetryRequest
from s3notify_platform.orchestration.dagster_internals import (
    DATA_VERSION_TAG,
    InstigatorType,
    SensorInstigatorData,
)
from s3notify_platform.orchestration.io_manager import TRACEBACKS, SlotIOManager
from s3notify_platform.orchestration.partitions import BATCH_TAG, SOURCE_TAG
from s3notify_platform.orchestration.source_assets import SourceAssets, step_failures
from s3notify_platform.source.source import Source
from s3notify_platform.table.quarantined import Retried

RUNS_MAX: Final = 10
"""How many runs of a batch are named."""

REPORTS_MAX: Final = 20
"""How many of a slot's materializations are read."""


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
        io = assets.io_of(context)
        with step_failures():
            source = io.source
            answer = explain(source, config.key, sensor=sensor_view(context.instance, source, config.key))
        for line in answer.lines:
            context.log.info(line)
        verdict, *facts = answer.lines
        # An indented block, since keys and reasons may contain any characters.
        block = "\n".join([f"    {verdict}", "", *(f"    {fact}" for fact in facts)])
        context.log_event(
            dg.AssetObservation(
                asset_key=assets.name,
                partition=str(answer.slot),
                description=answer.verdict.text,
                metadata={
                    "key": answer.key,
                    "verdict": answer.verdict.kind,
                    "explained": dg.MetadataValue.md(block),
                },
            )
        )

    about = f"What happened to an object of {assets.name!r}? Launch it with the object's key."
    return _launched_by_hand(assets, "explain", explain_key, about)


def sensor_view(instance: dg.DagsterInstance, source: Source, key: str) -> SensorView | None:
    """What the source's sensor knows about the key's slot; None if it has no cursor yet.

    If several code locations have a sensor of this name, the one that ticked last. One read of the instance's sensors,
    one of the slot's last materializations, and one of the runs for each open batch; of a slot that fails, one of the
    failed runs and one for each of these.
    """
    state = sensor_state(instance, source.name)
    if state is None:
        return None
    slot = slot_of(key, source.location.slots)

    def runs_of(batch: str) -> tuple[str, ...]:
        runs = instance.get_runs(filters=RunsFilter(tags={BATCH_TAG: batch}), limit=RUNS_MAX)
        return tuple(f"{run.run_id} ({run.status.value})" for run in runs)

    reported = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(source.name), asset_partitions=[str(slot)]),
        limit=REPORTS_MAX,
    ).records
    return SensorView(
        seen=state.watch.seen(slot) if slot < state.watch.slots else b"",
        enumerated=state.enumerated,
        batches=tuple(
            BatchView(id=batch.id, opened_ms=batch.opened_ms, listing=batch.listing, runs=runs_of(batch.id))
            for batch in state.open
            if {slot, Slot(EVERYTHING)} & set(batch.slots)
        ),
        failing=(failing := state.failing.get(slot) or state.failing.get(EVERYTHING)),
        trace=_trace_of(instance, source.name, slot) if failing else "",
        reported=tuple(
            (int(generation), int(1000 * record.timestamp))
            for record in reported
            if record.asset_materialization is not None
            and (generation := (record.asset_materialization.tags or {}).get(DATA_VERSION_TAG, "")).isdigit()
        ),
    )


def _trace_of(instance: dg.DagsterInstance, source: str, slot: Slot) -> str:
    """The traceback with which the slot failed the last time, as far as the last failed runs tell."""
    wanted = RunsFilter(tags={SOURCE_TAG: source}, statuses=[dg.DagsterRunStatus.FAILURE])
    for run in instance.get_runs(filters=wanted, limit=RUNS_MAX):
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
            event = entry.dagster_event
            failure = event.step_failure_data.user_failure_data if event is not None else None
            found = failure.metadata.get(TRACEBACKS) if failure is not None else None
            if isinstance(found, dg.JsonMetadataValue) and isinstance(found.data, list):
                for one in found.data:
                    if slot in one["slots"]:
                        return str(one["traceback"])
    return ""


def sensor_state(instance: dg.DagsterInstance, source: str) -> SensorState | None:
    """The cursor of a source's sensor; None if it has none yet. One read of the instance's sensors."""
    found = [
        state.instigator_data
        for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        if state.instigator_name == f"{source}_sensor"
        and isinstance(state.instigator_data, SensorInstigatorData)
    ]
    for data in sorted(found, key=lambda data: -(data.last_tick_timestamp or 0)):
        try:
            if data.cursor:
                return SensorState.loads(data.cursor)
        except CorruptError:  # not the platform's sensor, though of the same name
            continue
    return None


class RetryConfig(dg.Config):
    """What to read again: keys, slots, or everything."""

    keys: list[str] = Field(default=[], description="Keys of objects, whole, like raw/orders/1.jsonl")
    slots: list[int] = Field(default=[], description="Everything that is in quarantine of these slots")
    everything: bool = Field(default=False, description="Everything that is in quarantine of the source")
    reason: str = Field(default="", description="Only what has a reason that contains this text")


def build_retry(assets: SourceAssets) -> dg.JobDefinition:
    """The job `{source}_retry`. No Spark; requests as in `table.quarantined.retry`."""

    @dg.op(
        name=f"{assets.name}_retry_quarantine",
        description="Requests that the source's next batch reads objects in quarantine again.",
        required_resource_keys={assets.io_key},
    )
    def retry_quarantine(context: dg.OpExecutionContext, config: RetryConfig) -> None:
        io = assets.io_of(context)
        with step_failures():
            done = retry(io, config)
        missing = sorted(set(config.keys) - done.keys)
        for key in missing:
            context.log.warning("not in quarantine: %r", key)
        text = (
            f"{done.failing} failing objects and {done.records} rejected records of {done.rejected} objects, in "
            f"{len(done.slots)} slots, will be read again by the next batch"
        )
        context.log.info(text)
        context.log_event(
            dg.AssetObservation(
                asset_key=f"{assets.name}_quarantine",
                description=text,
                metadata={
                    "failing_objects": done.failing,
                    "rejected_objects": done.rejected,
                    "rejected_records": done.records,
                    "requested_before": done.waiting,
                    "remaining": done.left,
                    "not_in_quarantine": len(missing),
                },
            )
        )

    about = f"Requests to read again what is in quarantine of {assets.name!r}: keys, slots, or everything."
    return _launched_by_hand(assets, "retry", retry_quarantine, about)


def retry(io: SlotIOManager, config: RetryConfig) -> Retried:
    """What the job does. `UsageError` unless exactly one of keys, slots and everything is given."""
    source = io.settle_commit_mode()
    return RetryRequest(**config.model_dump()).run(source.location, io.clients.store, source.commit)


def _launched_by_hand(
    assets: SourceAssets, name: str, op: dg.OpDefinition, description: str
) -> dg.JobDefinition:
    @dg.job(
        name=f"{assets.name}_{name}",
        description=description,
        executor_def=dg.in_process_executor,
        tags={**assets.run_tags, SOURCE_TAG: assets.name},
    )
    def job() -> None:
        op()

    return job
