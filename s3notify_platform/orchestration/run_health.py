"""Detects that a run's process is gone, even if it was killed before the run's first heartbeat.

Dagster's code server reports a run whose process has ended, and the supervisor of warm runs reports a run whose worker
has ended. This module also finds a run whose code server or supervisor was killed before the report.

A run's heartbeat begins with the run's only step. The heartbeat cannot begin earlier, for two reasons. First, only the
definitions say where heartbeats are stored. Second, the code of the definitions does not learn the run's id while
Dagster's run process loads this code.

A run counts as gone only if its process is certainly gone, because a slow start looks the same from outside. If a run
is reported as failed before its start, the run never starts, because Dagster's run worker finds it finished.
"""

import json
import re
import socket
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final

from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultRunLauncher,
    deserialize_value,
)

from s3notify_platform.engine.batch.heartbeats import beats_of
from s3notify_platform.engine.batch.run_pulse import RunView
from s3notify_platform.kernel.ports import RecordStore
from s3notify_platform.local.process import command_of
from s3notify_platform.orchestration.dagster_internals import (
    GRPC_INFO_TAG,
    CanCancelExecutionRequest,
    CanCancelExecutionResult,
    DagsterGrpcClient,
    DagsterUserCodeUnreachableError,
    WorkerStatus,
)

CODE_SERVER_SECONDS: Final = 5
"""A code server that takes longer to answer counts as present."""

_LOOPBACK: Final = ("localhost", "127.0.0.1")

ENDED: Final = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
STARTED: Final = frozenset({DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING})
ACTIVE: Final = frozenset({DagsterRunStatus.STARTING, *STARTED})

_STARTED: Final = re.compile(r"Started process for run \(pid: (\d+)\)")


def is_gone(instance: DagsterInstance, run: DagsterRun) -> bool:
    """True if no process executes the run, and no process ever will. False if the answer cannot be known.

    If the run launcher can check runs, the launcher decides. For Dagster's default launcher, see `process_is_gone`.
    """
    launcher = instance.run_launcher
    try:
        if launcher.supports_check_run_worker_health:
            status = launcher.check_run_worker_health(run).status
            # Before a run has begun, NOT_FOUND may mean that the launcher has not made the run's worker yet.
            begun = run.status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
            return status in (WorkerStatus.FAILED, WorkerStatus.SUCCESS) or (
                begun and status is WorkerStatus.NOT_FOUND
            )
        return isinstance(launcher, DefaultRunLauncher) and process_is_gone(instance, run)
    except Exception:  # noqa: BLE001 - after an error of a launcher, the answer cannot be known
        return False


def report_silent(instance: DagsterInstance, run_ids: Iterable[str]) -> None:
    """Reports runs as failed if they have not ended, but have no living process. Their slots are requested again."""
    for run_id in run_ids:
        if (run := instance.get_run_by_id(run_id)) is not None and run.status not in ENDED:
            instance.report_run_failed(
                run, message="the run's heartbeat stopped or never began; the run's slots are requested again"
            )


def process_is_gone(instance: DagsterInstance, run: DagsterRun) -> bool:
    """True if the run's process, started by a code server, is gone. False if the answer cannot be known.

    If the code server is on another machine, only the server's answer counts, because silence may be the network's
    fault. On this machine the process is looked up by its pid. Before the process has reported its pid, the server is
    asked. Cost: 1 read of the run's events, and 1 request to the server.
    """
    server = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
    if not server:
        return False
    if not server.get("socket") and server.get("host") not in _LOOPBACK:
        # A server gives the same answer for a process that is being terminated and for a process that is gone.
        return run.status is not DagsterRunStatus.CANCELING and not _has(server, run)
    said = [
        found[1]
        for entry in instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT)
        if (found := _STARTED.search(entry.message or ""))
    ]
    if said:
        return not command_of(int(said[-1]))
    return _is_silent(server) or not _has(server, run)


def _is_silent(server: dict[str, Any]) -> bool:
    """True if nothing listens at the server's address."""
    path = server.get("socket")
    try:
        with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as tried:
            tried.settimeout(CODE_SERVER_SECONDS)
            tried.connect(path or (server["host"], server["port"]))
    except (FileNotFoundError, ConnectionRefusedError):
        return True
    return False


def _has(server: dict[str, Any], run: DagsterRun) -> bool:
    """True if the server has a process for the run, or does not answer."""
    client = DagsterGrpcClient(
        host=server.get("host") or _LOOPBACK[0],
        port=server.get("port"),
        socket=server.get("socket"),
        use_ssl=bool(server.get("use_ssl")),
    )
    try:
        asked = client.can_cancel_execution(
            CanCancelExecutionRequest(run_id=run.run_id), timeout=CODE_SERVER_SECONDS
        )
    except DagsterUserCodeUnreachableError:
        return True
    return deserialize_value(asked, CanCancelExecutionResult).can_cancel


def run_view(
    records: RecordStore,
    instance: DagsterInstance,
    run: DagsterRun,
    *,
    waits: Collection[DagsterRunStatus] = (DagsterRunStatus.QUEUED,),
    failure: str = "",
) -> RunView:
    """The facts about a run that a sensor needs for its decisions. Cost: 1 read of the heartbeat if the run has
    started.

    `failure`: the reason of the failure, as the run gave it. `waits`: statuses in which a run may stay for any length
    of time. A run whose launch failed stays `NOT_STARTED`.
    """
    return RunView(
        run_id=run.run_id,
        ended=run.status in ENDED,
        queued=run.status in waits,
        starting=run.status is DagsterRunStatus.STARTING,
        beats=beats_of(records, run.run_id) if run.status in STARTED else None,
        failed=run.status is DagsterRunStatus.FAILURE,
        failure=failure,
        gone=partial(is_gone, instance, run),
    )
