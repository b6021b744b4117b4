"""Services in Dagster: a real instance and real runs, one of them in a process that is terminated."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.open_store import queue_records
from tests.support import service_defs
from tests.support.endpoints import Receiver
from tests.support.servers import S3Server
from tests.support.waiting import until


class Home:
    """A bucket, an instance, and the services' definitions."""

    def __init__(self, server: S3Server, instance: dg.DagsterInstance, folder: Path) -> None:
        self.instance = instance
        self.folder = folder
        self.bucket = server.make_bucket()
        self.environment = {"TEST_BUCKET": self.bucket, "TEST_ENDPOINT_URL": server.endpoint_url}
        os.environ.update(self.environment)
        self.queue = NotificationQueue(queue_records(server.config(self.bucket)))
        self.scripted = service_defs.Scripted()
        self.defs = service_defs.definitions(lambda _: self.scripted)
        self.cursor: str | None = None

    def execute(self) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def("deliver").execute_in_process(
            instance=self.instance, raise_on_error=False
        )

    def tick(self) -> list[str]:
        """Evaluates a tick as the daemon does. Returns the requested run keys."""
        sensor = self.defs.resolve_sensor_def("deliver_keeper")
        resources = self.defs.get_repository_def().get_top_level_resources()
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources=resources, sensor_name=sensor.name
        ) as context:
            result = sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return [str(request.run_key) for request in result.run_requests or []]

    def logged(self, run_id: str) -> str:
        return "\n".join(record.user_message for record in self.instance.all_logs(run_id))

    def started(self) -> dg.DagsterRun:
        return self.instance.create_run_for_job(
            self.defs.resolve_job_def("deliver"), status=DagsterRunStatus.STARTED
        )


@pytest.fixture
def home(ministack: S3Server, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch) -> Home:
    monkeypatch.setenv("TEST_BUCKET", "")
    monkeypatch.setenv("TEST_ENDPOINT_URL", "")
    return Home(ministack, instance, tmp_path)


def test_a_service_that_ends_by_itself_is_started_again(home: Home) -> None:
    """The service's messages must be in the run's log, and its counts must be an observation."""
    assert home.tick() == []
    (first,) = home.tick()
    result = home.execute()
    assert result.success
    assert "deliver: begins" in home.logged(result.run_id)
    assert "deliver: ends" in home.logged(result.run_id)
    (observed,) = home.instance.fetch_observations(dg.AssetKey("deliver"), limit=5).records
    assert observed.asset_observation is not None
    assert observed.asset_observation.metadata["served"].value == 1
    (second,) = home.tick()
    assert first != second


def test_a_failed_service_is_started_again_after_a_backoff(home: Home) -> None:
    """The failed run must show the reason."""
    home.scripted.error = RuntimeError("out of luck")
    home.tick()
    home.tick()
    result = home.execute()
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "RuntimeError: out of luck" in str(failed.step_failure_data.user_failure_data)
    assert home.tick() == []


def test_exactly_one_run_of_a_service_is_kept_alive(home: Home) -> None:
    """As long as a run of the service exists, no other run may be requested. A person or the sensor may have started
    the existing run.
    """
    home.tick()
    run = home.started()
    assert home.tick() == []
    assert home.tick() == []
    home.instance.report_run_canceled(run)
    assert len(home.tick()) == 1


def terminated(home: Home, end, *, wrapped: bool) -> dg.DagsterRun:
    """Starts a serving run in a process, calls `end(process)`, and returns the run in its final state."""
    here = Path(__file__).parents[2]
    program = "dagster job execute -m tests.support.service_defs -j deliver"
    command = [sys.executable, "-m", *program.split()]
    if wrapped:
        # The run is a child of another process, like a run whose parent is its code location.
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"]
    environment = os.environ | home.environment | {"DAGSTER_HOME": str(home.folder), "PYTHONPATH": str(here)}
    with Receiver().serving() as server:
        endpoint = Endpoint(url=server.url).dumps()
        home.queue.topics.create("t", TopicSettings(shards=2, endpoint=endpoint))
        home.queue.push_many("t", [Event(key=f"k{n}") for n in range(10)])
        with subprocess.Popen(
            command, env=environment, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                server.wait(lambda s: len(s.keys) == 10, seconds=90)
                (run,) = home.instance.get_runs()
                end(process)
                process.wait(30)
            finally:
                process.kill()
        until(lambda: run_of(home, run).is_finished, seconds=40)
        assert set(server.seen.values()) == {1}
    return run_of(home, run)


def run_of(home: Home, run: dg.DagsterRun) -> dg.DagsterRun:
    found = home.instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


@pytest.mark.thorough
@pytest.mark.server
def test_a_run_that_is_terminated_stops_its_service_cleanly(home: Home) -> None:
    """The service's shards must be released immediately, and its counts kept."""
    run = terminated(home, lambda process: process.send_signal(signal.SIGTERM), wrapped=False)
    assert run.status in (DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE)
    record = home.queue.records.read("owners", "t")
    assert record is not None
    assert b"deliver" not in record.value
    (observed,) = home.instance.fetch_observations(dg.AssetKey("deliver"), limit=5).records
    assert observed.asset_observation is not None
    assert observed.asset_observation.metadata["delivered"].value == 10
    assert list(home.queue.records.scan("workers")) == []


@pytest.mark.thorough
@pytest.mark.server
def test_a_run_ends_when_its_code_location_is_gone(home: Home) -> None:
    """Otherwise nobody could terminate the run."""
    run = terminated(home, lambda process: process.kill(), wrapped=True)
    assert run.status is DagsterRunStatus.SUCCESS
    assert "the code location is gone: deliver ends" in home.logged(run.run_id)
