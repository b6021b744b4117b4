"""The sensor of a source: polls the keyspace and requests one run with exactly the changed slots.

Dagster starts a sensor's ticks at least five seconds apart. So a tick keeps polling for most of that time, and ends as
soon as it can request something. Meanwhile the tick occupies a thread of the daemon and of the code server. A tick
polls only once if dagster.yaml lacks `sensors: {use_threads: true}`: without threads, all other sensors would wait for
the tick. A tick also polls only once if the code server has many sources (`SOURCES_WATCHED`). At most half of the
server's threads keep polling at the same time (`WATCHERS`). Changes between a request and the next tick wait for that
tick.
"""

import os
from collections.abc import Callable, Sequence
from threading import BoundedSemaphore
from typing import Final

import dagster as dg
from dagster import DefaultRunLauncher, RunsFilter

from s3notify_platform.engine.batch.batches import EVERYTHING, BatchRequest, SensorState
from s3notify_platform.engine.batch.run_pulse import RunView
from s3notify_platform.engine.batch.scheduler import BatchPlanner, Tick
from s3notify_platform.engine.batch.short_cursor import ShortCursor
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from s3notify_platform.orchestration.io_manager import FAILURE_TAG, SlotIOManager
from s3notify_platform.orchestration.partitions import BATCH_TAG, PART_TAG, SOURCE_TAG
from s3notify_platform.orchestration.run_health import report_silent, run_view
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.orchestration.ticks import tick_of
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.declared_types import check_declared_types
from s3notify_platform.table.open_table import OpenTable, claim

LOOP_SECONDS: Final = 5
"""Seconds between two ticks in Dagster's daemon."""

WATCH_SECONDS: Final = 4.5


def _code_server_threads() -> int:
    given = os.environ.get("DAGSTER_GRPC_MAX_WORKERS", "")
    return int(given) if given.isdigit() else min(32, (os.cpu_count() or 1) + 4)


SOURCES_WATCHED: Final = 20
"""If a code server has more sources than this, each tick polls only once, because the ticks of other sources need the
threads.
"""

_SOURCES: Final[set[str]] = set()

WATCHERS: Final = BoundedSemaphore(max(1, _code_server_threads() // 2))
"""Limits how many ticks of this code server watch at the same time."""


def watch(
    look: Callable[[SensorState], Tick],
    state: SensorState,
    *,
    poll_seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    watchers: BoundedSemaphore = WATCHERS,
) -> Tick:
    """Looks every `poll_seconds` until there is something to request, or until `WATCH_SECONDS` are over.

    Looks only once if `poll_seconds` is 0, or if no more ticks may watch at the same time (`watchers`). A new epoch
    also ends the tick, because Dagster must store the epoch before a run key contains it.
    """
    ends = clock.monotonic() + WATCH_SECONDS
    tick = look(state)
    if tick.requests or not poll_seconds or not watchers.acquire(blocking=False):
        return tick
    try:
        while (
            not tick.requests and tick.state.epoch == state.epoch and clock.monotonic() + poll_seconds < ends
        ):
            clock.sleep(poll_seconds)
            tick = look(tick.state)
    finally:
        watchers.release()
    return tick


def build_sensor(
    assets: SourceAssets,
    job: UnresolvedAssetJobDefinition,
    settings: BatchSettings,
) -> dg.SensorDefinition:
    """The sensor. A poll costs 1 HEAD if nothing changed, else 1 HEAD and 1 LIST, for a bucket of any size.

    Each open batch costs 1 LIST more, and each run of an open batch costs 1 GET more. If many slots have changed, a
    tick also costs the requests of `ShortCursor.dumps`.

    The first tick after the code location was loaded also compares the declared types with the table's types, for the
    requests of `LogTable.newest`. If the types differ, this tick and the next ticks fail.
    """
    _SOURCES.add(assets.name)
    # An interval longer than Dagster's default saves requests. So with such an interval, a tick polls only once.
    watches = assets.interval_seconds <= LOOP_SECONDS
    transformed = assets.transform is not None
    compared = False

    @dg.sensor(
        name=f"{assets.name}_sensor",
        description=f"Polls the keyspace of {assets.name!r}: one HEAD, and one LIST if something changed.",
        job=job,
        minimum_interval_seconds=assets.interval_seconds,
        default_status=assets.sensor_status,
    )
    def poll_keyspace(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with tick_of(context, assets) as (io, instance):
            return poll(context, io, instance)

    def poll(
        context: dg.SensorEvaluationContext, io: SlotIOManager, instance: dg.DagsterInstance
    ) -> dg.SensorResult:
        nonlocal compared
        records = io.clients.records

        def runs_of(batch: str) -> Sequence[RunView]:
            found = instance.get_runs(filters=RunsFilter(tags={BATCH_TAG: batch}))
            return [run_view(records, instance, run, failure=run.tags.get(FAILURE_TAG, "")) for run in found]

        planner = BatchPlanner(
            source=assets.name,
            watcher=io.clients.watcher(),
            chains=io.clients.chains,
            backlog=io.clients.backlog,
            topic_epoch=io.clients.ensure_topic,
            runs_of=runs_of,
            table=lambda expected: _opened(io, expected, transformed=transformed),
            claim=lambda table, epoch: claim(io.source.table().reader, table, epoch),
            settings=settings,
        )
        cursors = ShortCursor(records=records)
        if not context.cursor:
            return dg.SensorResult(
                cursor=cursors.dumps(planner.first(), ""),
                skip_reason=f"first tick: the next tick compares the whole source{_cold(instance)}",
            )

        if not compared:
            _compared(io, "", transformed=transformed)
            compared = True

        def look(state: SensorState) -> Tick:
            tick = planner.tick(state)
            report_silent(instance, tick.silent_runs)
            for warning in tick.warnings:
                context.log.warning(warning)
            return tick

        threads = instance.get_sensor_settings().get("use_threads")
        few = len(_SOURCES) <= SOURCES_WATCHED
        poll_seconds = assets.poll_seconds if watches and threads and few else 0.0
        before = cursors.loads(context.cursor)
        tick = watch(look, before, poll_seconds=poll_seconds)
        requests = [_run_request(assets, job.name, request) for request in tick.requests]
        return _result(context, tick, requests, cursors.dumps(tick.state, context.cursor))

    return poll_keyspace


def _cold(instance: dg.DagsterInstance) -> str:
    """A hint how to get warm runs, for the first tick; "" if the run launcher is not Dagster's default launcher."""
    if type(instance.run_launcher) is not DefaultRunLauncher:
        return ""
    return (
        ". Each run starts Python and Spark, which takes 5 to 20 s: `s3notify init --dagster-home FOLDER` writes a "
        "dagster.yaml with which both keep running between runs"
    )


def _opened(io: SlotIOManager, expected: str, *, transformed: bool) -> OpenTable:
    """The table that `_compared` returns. The table is created if it never existed."""
    found = _compared(io, expected, transformed=transformed)
    if found.snapshot is not None:
        return found
    return io.settle_commit_mode().open_table(expected=expected, store=io.clients.store)


def _compared(io: SlotIOManager, expected: str, *, transformed: bool) -> OpenTable:
    """The source's table, if it exists. Refuses the tables that `Source.open_table` refuses, and tables whose types
    differ from the declared types.
    """
    found = io.source.open_table(expected=expected, create=False, store=io.clients.store)
    check_declared_types(io.source, found, transformed=transformed)
    return found


def _result(
    context: dg.SensorEvaluationContext, tick: Tick, requests: Sequence[dg.RunRequest], cursor: str
) -> dg.SensorResult:
    """The result of a tick. If runs are requested, the tick's note is written to the tick's log. Otherwise the note is
    the skip reason.
    """
    if requests:
        context.log.info(tick.note)
    return dg.SensorResult(run_requests=requests, cursor=cursor, skip_reason=None if requests else tick.note)


def _run_request(assets: SourceAssets, job: str, request: BatchRequest) -> dg.RunRequest:
    everything = EVERYTHING in request.slots
    config = {
        "batch": request.batch,
        "everything": everything,
        "force": False,
        "slots": [] if everything else list(request.slots),
    }
    return dg.RunRequest(
        run_key=request.run_key,
        job_name=job,
        run_config={"ops": {assets.io_key: {"config": config}}},
        tags={
            BATCH_TAG: request.batch,
            PART_TAG: f"{request.part + 1}/{request.parts}",
            SOURCE_TAG: assets.name,
        },
    )
