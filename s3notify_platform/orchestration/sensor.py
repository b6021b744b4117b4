"""The sensor of a source: polls the keyspace and requests one run with exactly the changed slots."""

from collections.abc import Sequence
from typing import Final

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from s3notify_platform.ingest.batches import EVERYTHING, BatchRequest, BatchSettings, SensorState
from s3notify_platform.ingest.scheduler import BatchPlanner, RunView
from s3notify_platform.orchestration.io_manager import FAILURE_TAG
from s3notify_platform.orchestration.partitions import BATCH_TAG, PART_TAG, SOURCE_TAG
from s3notify_platform.orchestration.resources import beats_of
from s3notify_platform.orchestration.source_assets import SourceAssets

ENDED: Final = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
STARTED: Final = frozenset({DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING})


def build_sensor(
    assets: SourceAssets, job: UnresolvedAssetJobDefinition, settings: BatchSettings
) -> dg.SensorDefinition:
    """The sensor. A tick costs 1 HEAD if nothing changed, else 1 HEAD and 1 LIST, whatever the size of the bucket.

    While batches are open, 1 LIST more for each, and 1 GET for each of their runs.
    """

    @dg.sensor(
        name=f"{assets.name}_sensor",
        description=f"Polls the keyspace of {assets.name!r}: one HEAD, and one LIST if something changed.",
        job=job,
        minimum_interval_seconds=assets.interval_seconds,
        default_status=assets.sensor_status,
        required_resource_keys={assets.io_key},
    )
    def poll_keyspace(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        io = assets.io_of(context)
        records = io.clients.records

        def runs_of(batch: str) -> Sequence[RunView]:
            return [
                RunView(
                    run_id=run.run_id,
                    ended=run.status in ENDED,
                    queued=run.status is DagsterRunStatus.QUEUED,
                    beats=beats_of(records, run.run_id) if run.status in STARTED else None,
                    failure=run.tags.get(FAILURE_TAG, ""),
                )
                for run in context.instance.get_runs(filters=RunsFilter(tags={BATCH_TAG: batch}))
            ]

        planner = BatchPlanner(
            source=assets.name,
            watcher=io.clients.watcher(),
            chains=io.clients.chains,
            backlog=io.clients.backlog,
            topic_epoch=io.clients.ensure_topic,
            runs_of=runs_of,
            table=lambda expected: io.source.open_table(expected=expected, store=io.clients.store),
            settings=settings,
        )
        if not context.cursor:
            return dg.SensorResult(
                cursor=planner.first().dumps(), skip_reason="first tick: the next one enumerates the source"
            )
        tick = planner.tick(SensorState.loads(context.cursor))
        for run_id in tick.silent_runs:
            if (run := context.instance.get_run_by_id(run_id)) is not None and run.status not in ENDED:
                context.instance.report_run_failed(
                    run, message="the run's heartbeat stopped; its slots are requested again"
                )
        for warning in tick.warnings:
            context.log.warning(warning)
        requests = [_run_request(assets, request) for request in tick.requests]
        return dg.SensorResult(
            run_requests=requests, cursor=tick.state.dumps(), skip_reason=None if requests else tick.note
        )

    return poll_keyspace


def _run_request(assets: SourceAssets, request: BatchRequest) -> dg.RunRequest:
    everything = EVERYTHING in request.slots
    config = {
        "batch": request.batch,
        "everything": everything,
        "force": False,
        "slots": [] if everything else list(request.slots),
    }
    return dg.RunRequest(
        run_key=request.run_key,
        run_config={"ops": {assets.io_key: {"config": config}}},
        tags={
            BATCH_TAG: request.batch,
            PART_TAG: f"{request.part + 1}/{request.parts}",
            SOURCE_TAG: assets.name,
        },
    )
