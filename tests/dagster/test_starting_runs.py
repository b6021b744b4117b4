"""A run that is killed while it starts must be detected; a run that starts slowly must be left alone."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRun, DagsterRunStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster._core.workspace.load_target import GrpcServerTarget, ModuleTarget

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from s3notify_platform.orchestration.run_health import is_gone
from tests.support import slow_defs
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

SECONDS = 120.0


@dataclass
class Code:
    """A code location with its own server, whose runs are held while they start."""

    instance: dg.DagsterInstance
    workspace: WorkspaceRequestContext
    hold: Path

    def launched(self) -> tuple[DagsterRun, int]:
        """A run that is held at its start, and its process."""
        location = self.workspace.get_code_location("slow")
        job = location.get_repository("__repository__").get_full_job("started")
        run = create_run_for_test(
            self.instance,
            "started",
            remote_job_origin=job.get_remote_origin(),
            job_code_origin=job.get_python_origin(),
        )
        self.instance.launch_run(run.run_id, self.workspace)
        return self.now(run), self.process_of(run)

    def now(self, run: DagsterRun) -> DagsterRun:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found

    def process_of(self, run: DagsterRun) -> int:
        found: list[str] = []

        def said() -> bool:
            log = "\n".join(entry.message for entry in self.instance.all_logs(run.run_id))
            found[:] = re.findall(r"Started process for run \(pid: (\d+)\)", log)
            return bool(found)

        until(said, seconds=SECONDS)
        return int(found[0])

    def is_gone(self, run: DagsterRun) -> bool:
        return is_gone(self.instance, self.now(run))

    def kill_server(self, run_process: int) -> None:
        """Kills the code server, which has started the process of a run."""
        status = Path(f"/proc/{run_process}/status").read_text()
        (parent,) = re.findall(r"PPid:\s+(\d+)", status)
        os.kill(int(parent), signal.SIGKILL)


@pytest.fixture(params=[pytest.param("dagster's launcher", marks=pytest.mark.thorough), "ours"])
def code(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Code]:
    hold = tmp_path / "hold"
    hold.touch()
    monkeypatch.setenv(slow_defs.HOLD, str(hold))
    ours = {"run_launcher": {"module": "s3notify_platform.orchestration.warm", "class": "WarmRunLauncher"}}
    overrides = ours if request.param == "ours" else {}
    target = ModuleTarget(
        module_name=slow_defs.__name__,
        attribute=None,
        working_directory=str(Path.cwd()),
        location_name="slow",
    )
    with (
        dg.instance_for_test(temp_dir=str(tmp_path), overrides=overrides) as instance,
        WorkspaceProcessContext(instance, target) as process,
    ):
        yield Code(instance, process.create_request_context(), hold)
        hold.unlink(missing_ok=True)


def test_a_run_killed_with_its_code_server_is_detected(code: Code) -> None:
    """After the code server is killed, nobody is left to report the run. A run whose process is alive must not count as
    dead, and must finish.
    """
    killed, its_process = code.launched()
    slow, other_process = code.launched()
    assert not code.is_gone(killed)
    code.kill_server(its_process)
    assert not code.is_gone(killed)
    os.kill(its_process, signal.SIGKILL)
    until(lambda: code.is_gone(killed), seconds=SECONDS)
    assert code.now(killed).status is DagsterRunStatus.STARTING
    code.instance.report_run_failed(killed)  # the sensor reports the run in the same way
    assert not code.is_gone(slow)
    code.hold.unlink()
    until(lambda: code.now(slow).is_finished, seconds=SECONDS)
    assert code.now(slow).status is DagsterRunStatus.SUCCESS
    assert other_process != its_process


def test_a_killed_run_is_reported_by_its_code_server_if_the_server_still_runs(code: Code) -> None:
    killed, its_process = code.launched()
    os.kill(its_process, signal.SIGKILL)
    until(lambda: code.now(killed).status is DagsterRunStatus.FAILURE, seconds=SECONDS)


def test_a_run_reported_as_failed_does_not_start_later(code: Code) -> None:
    """Otherwise the work of the run would be done twice."""
    slow, _ = code.launched()
    code.instance.report_run_failed(slow)
    code.hold.unlink()
    said = "Ignoring a run worker that started after the run had already finished"
    until(lambda: any(said in each.message for each in code.instance.all_logs(slow.run_id)), seconds=SECONDS)
    assert code.now(slow).status is DagsterRunStatus.FAILURE


ELSEWHERE = "127.0.0.2"
"""An address that makes a code server count as being on another machine."""


@contextmanager
def server_elsewhere(port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = ["-m", "dagster", "api", "grpc", "--host", ELSEWHERE, "--port", str(port)]
    command += ["--module-name", slow_defs.__name__, "--working-directory", str(Path.cwd())]
    with subprocess.Popen([sys.executable, *command]) as server:

        def answers() -> bool:
            assert server.poll() is None, "the server has ended"
            with socket.socket() as tried:
                return tried.connect_ex((ELSEWHERE, port)) == 0

        until(answers, seconds=SECONDS)
        yield server
        server.kill()


def test_only_the_code_server_decides_if_a_run_on_another_machine_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer may be alive behind a broken network. If silence counted as an answer, a living run
    would be reported as failed, and its slots would be requested again.
    """
    hold = tmp_path / "hold"
    hold.touch()
    monkeypatch.setenv(slow_defs.HOLD, str(hold))
    (port,) = free_ports(1, SYSTEM_CLOCK)
    target = GrpcServerTarget(host=ELSEWHERE, port=port, socket=None, location_name="slow")
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        with server_elsewhere(port) as server, WorkspaceProcessContext(instance, target) as process:
            code = Code(instance, process.create_request_context(), hold)
            killed, its_process = code.launched()
            assert not code.is_gone(killed)
            server.kill()
            os.kill(its_process, signal.SIGKILL)
            server.wait()
        assert not code.is_gone(killed)
        with server_elsewhere(port):
            assert code.is_gone(killed)
            assert code.now(killed).status is DagsterRunStatus.STARTING
            instance.report_run_canceling(code.now(killed))
            assert not code.is_gone(killed), "it is being terminated"
            instance.report_run_canceled(code.now(killed))


def test_a_launch_that_reached_no_process_is_detected(code: Code) -> None:
    """The launcher may be killed before the server gets the run. If the launch still counted as starting, the slots of
    the run would wait for `startup_seconds`, which is longer than `silence_seconds`. If a run on another machine
    counted as gone, a living run could be reported as failed.
    """
    launched, its_process = code.launched()
    server = json.loads(launched.tags[GRPC_INFO_TAG])

    def starting(**address: object) -> DagsterRun:
        tags = {GRPC_INFO_TAG: json.dumps(address)} if address else {}
        return create_run_for_test(code.instance, tags=tags, status=DagsterRunStatus.STARTING)

    assert code.is_gone(starting(**server))
    assert code.is_gone(starting(host="localhost", socket=f"{code.hold}.socket"))
    assert not code.is_gone(starting(host="code.example.com", port=4000))
    assert not code.is_gone(starting())
    assert not code.is_gone(launched)
    assert its_process
