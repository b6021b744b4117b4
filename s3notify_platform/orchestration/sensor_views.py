"""A source's sensor as seen through Dagster's instance: its cursor, and the batches of one key's slot."""

from typing import Final

import dagster as dg
from dagster import RunsFilter

from s3notify_platform.engine.batch.batches import EVERYTHING, SensorState
from s3notify_platform.engine.batch.short_cursor import ShortCursor
from s3notify_platform.explain import BatchView, SensorView
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import RecordStore
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.orchestration.dagster_internals import (
    DATA_VERSION_TAG,
    InstigatorState,
    InstigatorType,
    SensorInstigatorData,
)
from s3notify_platform.orchestration.io_manager import TRACEBACKS
from s3notify_platform.orchestration.partitions import BATCH_TAG, SOURCE_TAG
from s3notify_platform.source.source import Source

RUNS_NAMED: Final = 10
"""Maximum number of runs that are named for a batch."""

REPORTS_MAX: Final = 20
"""Maximum number of materializations that are read for a slot."""


def sensor_view(instance: dg.DagsterInstance, source: Source, key: str) -> SensorView | None:
    """The sensor's knowledge of the key's slot; None if the sensor has no cursor yet.

    If several code locations have a sensor of this name, the result is from the sensor that ticked last. Cost: 2 reads
    of the instance's sensors, 1 read of the slot's last materializations, and 1 read of the runs of each open batch. A
    failing slot also costs 1 read of the failed runs, and 1 read for each failed run.
    """
    state = sensor_state(instance, source.name, source.location.records())
    if state is None:
        return None
    slot = slot_of(key, source.location.slots)
    sensors = _sensors(instance, source.name)

    def runs_of(batch: str) -> tuple[str, ...]:
        runs = instance.get_runs(filters=RunsFilter(tags={BATCH_TAG: batch}), limit=RUNS_NAMED)
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
        on=all(one.is_running for one, _ in sensors),
        ticked_ms=int(1000 * max(data.last_tick_timestamp or 0 for _, data in sensors)),
        reported=tuple(
            (int(generation), int(1000 * record.timestamp))
            for record in reported
            if record.asset_materialization is not None
            and (generation := (record.asset_materialization.tags or {}).get(DATA_VERSION_TAG, "")).isdigit()
        ),
    )


def _trace_of(instance: dg.DagsterInstance, source: str, slot: Slot) -> str:
    """The traceback of the slot's last failure, if the last failed runs have it."""
    wanted = RunsFilter(tags={SOURCE_TAG: source}, statuses=[dg.DagsterRunStatus.FAILURE])
    for run in instance.get_runs(filters=wanted, limit=RUNS_NAMED):
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
            event = entry.dagster_event
            failure = event.step_failure_data.user_failure_data if event is not None else None
            found = failure.metadata.get(TRACEBACKS) if failure is not None else None
            if isinstance(found, dg.JsonMetadataValue) and isinstance(found.data, list):
                for one in found.data:
                    if slot in one["slots"]:
                        return str(one["traceback"])
    return ""


def _sensors(instance: dg.DagsterInstance, source: str) -> list[tuple[InstigatorState, SensorInstigatorData]]:
    """The sensors of a source: one in each code location that defines the source."""
    return [
        (state, state.instigator_data)
        for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        if state.instigator_name == f"{source}_sensor"
        and isinstance(state.instigator_data, SensorInstigatorData)
    ]


def sensor_state(instance: dg.DagsterInstance, source: str, records: RecordStore) -> SensorState | None:
    """The cursor of a source's sensor; None if it has no cursor yet.

    Cost: 1 read of the instance's sensors, and the requests of `ShortCursor`. `records`: the records of the source.
    """
    found = [data for _, data in _sensors(instance, source)]
    for data in sorted(found, key=lambda data: -(data.last_tick_timestamp or 0)):
        try:
            if data.cursor:
                return ShortCursor(records=records).loads(data.cursor)
        except CorruptError:  # a sensor with this name that is not from this package
            continue
    return None
