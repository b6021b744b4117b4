"""Whether what executes a run is known to be gone: a run that is killed while it starts has no heartbeat to miss.

Dagster's code server reports a run whose process has ended, and the supervisor of warm runs one whose worker has. What
is asked here finds runs whose reporter was killed with them, or before it could report.

A run's heartbeat begins with its step, and cannot begin earlier: Dagster's process of a run loads the definitions
without saying for which run, and where heartbeats go is in these. Then it executes the one step.

Only what is certain counts, since a slow start looks the same from outside. A run that is reported as failed, and was
yet to be started, does not start: Dagster's run worker finds it finished.
"""

import json
import re
import socket
from collections.abc import Collection
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

ANSWER_SECONDS: Final = 5
"""A code server that takes longer to answer is taken to be there."""

_LOOPBACK: Final = ("localhost", "127.0.0.1")

ENDED: Final = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
STARTED: Final = frozenset({DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING})
ACTIVE: Final = frozenset({DagsterRunStatus.STARTING, *STARTED})

_STARTED: Final = re.compile(r"Started process for run \(pid: (\d+)\)")


def is_gone(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether nothing executes a run, nor will. False if that cannot be known.

    Asks the run launcher, if it can tell; of Dagster's default one, see `process_is_gone`.
    """
    launcher = instance.run_launcher
    try:
        if launcher.supports_check_run_worker_health:
            status = launcher.check_run_worker_health(run).status
            # A launcher may not find what it has not made yet.
            begun = run.status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
            return status in (WorkerStatus.FAILED, WorkerStatus.SUCCESS) or (
                begun and status is WorkerStatus.NOT_FOUND
            )
        return isinstance(launcher, DefaultRunLauncher) and process_is_gone(instance, run)
    except Exception:  # noqa: BLE001 - of any launcher: it could not tell
        return False


def process_is_gone(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether the process of a run is gone that a code server has, or was to have, started. False if nobody knows.

    On another machine the server has to say so: if it is silent, that may be the network's fault. On this one the
    process is looked for, and before it has reported, the server is asked. 1 read of the run's events, 1 question.
    """
    server = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
    if not server:
        return False
    if not server.get("socket") and server.get("host") not in _LOOPBACK:
        # Of one that is to end, the answer is the same as of one that is gone.
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
    """Whether nobody listens at the server's address."""
    path = server.get("socket")
    try:
        with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as tried:
            tried.settimeout(ANSWER_SECONDS)
            tried.connect(path or (server["host"], server["port"]))
    except (FileNotFoundError, ConnectionRefusedError):
        return True
    return False


def _has(server: dict[str, Any], run: DagsterRun) -> bool:
    """Whether the server has a process for the run; yes if it does not answer."""
    client = DagsterGrpcClient(
        host=server.get("host") or _LOOPBACK[0],
        port=server.get("port"),
        socket=server.get("socket"),
        use_ssl=bool(server.get("use_ssl")),
    )
    try:
        asked = client.can_cancel_execution(
            CanCancelExecutionRequest(run_id=run.run_id), timeout=ANSWER_SECONDS
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
    """A run as its keeper sees it. 1 read of its heartbeat, once it has started. `failure`: the reason it has given.

    `waits`: statuses in which a run may stay for any time. A run whose launch failed stays `NOT_STARTED`.
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
