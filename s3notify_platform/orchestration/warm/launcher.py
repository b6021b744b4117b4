"""The run launcher: hands warm runs over to the supervisor, and all other runs to Dagster's default launcher."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from dagster import DagsterRun, DefaultRunLauncher, Field, serialize_value

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.dagster_dev import EVENTS_AT_ONCE
from s3notify_platform.orchestration.dagster_internals import (
    BACKFILL_ID_TAG,
    CheckRunHealthResult,
    ConfigurableClassData,
    GrpcServerCodeLocation,
    LaunchRunContext,
    WorkerStatus,
)
from s3notify_platform.orchestration.partitions import WARM_TAG
from s3notify_platform.orchestration.run_health import process_is_gone
from s3notify_platform.orchestration.warm.handover import (
    Home,
    Message,
    NoAnswerError,
    NobodyThereError,
    WorkerKey,
)

START_SECONDS: Final = 60.0
"""Seconds in which a started supervisor must answer. The supervisor answers even before its first worker is ready."""


class WarmRunLauncher(DefaultRunLauncher):
    """A `DefaultRunLauncher` that starts a process only for runs that no warm worker takes.

    `start_supervisor`: the launcher starts a supervisor if none is running. This supervisor ends with the launcher's
    process. Without `start_supervisor`, a person must start `s3notify warm` separately.
    """

    def __init__(
        self, inst_data: ConfigurableClassData | None = None, *, start_supervisor: bool = False
    ) -> None:
        super().__init__(inst_data)
        self._starts = start_supervisor
        self._supervisor: subprocess.Popen[bytes] | None = None

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """See `ConfigurableClass`."""
        return {"start_supervisor": Field(bool, is_required=False, default_value=False)}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> Self:
        """See `ConfigurableClass`."""
        return cls(inst_data=inst_data, **config_value)

    @property
    def _home(self) -> Home:
        return Home(Path(self._instance.root_directory))

    def launch_run(self, context: LaunchRunContext) -> None:
        """Hands a run over to the supervisor, or launches it with the default launcher."""
        if not self._hand_over(context):
            super().launch_run(context)

    def _hand_over(self, context: LaunchRunContext) -> bool:
        run, home = context.dagster_run, self._home
        if not (self._starts or home.folder.exists()) or (key := _key_of(context)) is None:
            return False
        message = {
            "do": "prepare" if takes_in_everything(run) else "run",
            "run": run.run_id,
            "job": run.job_name,
            "key": key.message(),
            "backfill": run.tags.get(BACKFILL_ID_TAG, ""),
        }
        try:
            return bool(home.ask(message)["yes"])
        except NobodyThereError:
            if self._starts:
                self._start_supervisor(message | {"do": "prepare"})
            return False
        except NoAnswerError:
            # The supervisor may have received the request, and may give the run to a worker. If the claim succeeds, the
            # supervisor will refuse the run.
            return not home.claim(run.run_id, "cold")

    def _start_supervisor(self, first: Message) -> None:
        """Starts a supervisor if no earlier supervisor of this process is running. The new supervisor then starts the
        worker that `first` names.

        If two processes start a supervisor each, the home's lock lets only the first supervisor serve.
        """
        if self._supervisor is not None and self._supervisor.poll() is None:
            return
        root = self._instance.root_directory
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "s3notify_platform.cli", "warm", "--home", root, "--until-input-ends"],
            env={"DAGSTER_EVENT_BATCH_SIZE": str(EVENTS_AT_ONCE), **os.environ},
            # The supervisor ends when this process ends, because its standard input then ends. A terminal's Ctrl-C does
            # not reach the supervisor.
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=_ask_first, args=[self._home, first], daemon=True).start()

    def dispose(self) -> None:
        """Ends the supervisor that this launcher started, and thereby the supervisor's workers."""
        super().dispose()
        if self._supervisor is not None:
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.close()
            self._supervisor.wait()

    def terminate(self, run_id: str) -> bool:
        """Terminates a run. Returns True if the end of the run was requested. The end itself is reported later, when
        the run has ended.
        """
        if self._home.claimant(run_id) != "warm":
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        with suppress(NobodyThereError, NoAnswerError):
            return bool(self._home.ask({"do": "terminate", "run": run_id})["yes"])
        self._instance.report_engine_event("The supervisor of warm runs does not answer.", run)
        return False

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: warm runs can be checked, and so can runs that a code server on this machine has started."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """The health of the run's worker or process; "running" if the health cannot be known."""
        if self._home.claimant(run.run_id) != "warm":
            if process_is_gone(self._instance, run):
                return CheckRunHealthResult(WorkerStatus.FAILED, "its process has ended")
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        try:
            lives = bool(self._home.ask({"do": "look", "run": run.run_id})["yes"])
        except NoAnswerError:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        except NobodyThereError:
            lives = False
        if lives:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, "its warm worker has ended")


def _ask_first(home: Home, message: Message) -> None:
    ends = SYSTEM_CLOCK.monotonic() + START_SECONDS
    while SYSTEM_CLOCK.monotonic() < ends:
        with suppress(NoAnswerError, NobodyThereError):
            home.ask(message)
            return
        SYSTEM_CLOCK.sleep(0.5)


def _key_of(context: LaunchRunContext) -> WorkerKey | None:
    """The key of the worker that a run needs; None for runs that must not be warm."""
    run, code = context.dagster_run, context.job_code_origin
    if context.workspace is None or run.remote_job_origin is None or code is None:
        return None
    origin = run.remote_job_origin.repository_origin
    location = context.workspace.get_code_location(origin.code_location_origin.location_name)
    # Code on other machines cannot be started from here.
    if not isinstance(location, GrpcServerCodeLocation):
        return None
    spark = run.tags.get(WARM_TAG)
    checked = {check.asset_key for check in run.asset_check_selection or ()}
    if spark is None and run.asset_selection and checked <= run.asset_selection:
        # The UI and backfills run Dagster's implicit job for all assets, which has no such tag. Then the tags of the
        # selected assets decide if the run may be warm.
        graph = location.get_repository(origin.repository_name).asset_graph
        tags = {graph.get(key).tags.get(WARM_TAG) for key in run.asset_selection if graph.has(key)}
        spark = tags.pop() if len(tags) == 1 else None
    if spark is None:
        return None
    return WorkerKey(
        location=location.name,
        origin=serialize_value(code.repository_origin),
        spark=spark,
        server_id=location.client.get_server_id(),  # the server's present id: `location` may have an older id
    )


def takes_in_everything(run: DagsterRun) -> bool:
    """True for a batch that compares everything, like the first batch. Such a batch takes long, so it gets its own
    process.
    """
    steps: Any = run.run_config.get("ops") or {}
    return any((step.get("config") or {}).get("everything") for step in steps.values())
