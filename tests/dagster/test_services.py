"""Services in Dagster: a real instance and real runs, one of them in a process that is terminated."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.definitions.sensor_definition import SensorExecutionData

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.orchestration import managed_services
from s3notify_platform.orchestration.partitions import SERVICE_TAG
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.open_store import queue_records
from tests.support import service_defs
from tests.support.endpoints import Receiver
from tests.support.servers import S3Server
from tests.support.site import Site
from tests.support.waiting import until


def config_of(service: str) -> dict[str, object]:
    return {"ops": {"orders_serve": {"config": {"service": service}}}}


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
        self.other = service_defs.Scripted()
        self.load("settings")
        self.cursor: str | None = None

    def load(self, settings: str) -> None:
        """Loads the definitions with these settings of the services, as a reload of the code location does."""
        self.defs = service_defs.definitions(
            settings, deliver=lambda _: self.scripted, sqs=lambda _: self.other
        )

    def execute(self, service: str = "deliver") -> dg.ExecuteInProcessResult:
        """Runs a service, as if a person had started the job."""
        return self.defs.resolve_job_def("orders_services").execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            run_config=config_of(service),
        )

    def tick(self) -> list[str]:
        """Evaluates a tick as the daemon does. Returns the run keys that are requested for the service `deliver`."""
        requests = self.evaluate().run_requests or []
        return [str(each.run_key) for each in requests if each.tags.get(SERVICE_TAG) == "deliver"]

    def evaluate(self) -> SensorExecutionData:
        sensor = self.defs.resolve_sensor_def("orders_upkeep")
        resources = self.defs.get_repository_def().get_top_level_resources()
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            definitions=self.defs,
            resources=resources,
            sensor_name=sensor.name,
        ) as context:
            result = sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result

    def logged(self, run_id: str) -> str:
        return "\n".join(record.user_message for record in self.instance.all_logs(run_id))

    def started(self, tags: Mapping[str, str] = {SERVICE_TAG: "deliver"}) -> dg.DagsterRun:
        return self.instance.create_run_for_job(
            self.defs.resolve_job_def("orders_services"),
            run_config=config_of("deliver"),
            status=DagsterRunStatus.STARTED,
            tags=tags,
        )


@pytest.fixture
def home(ministack: S3Server, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch) -> Home:
    monkeypatch.setenv("TEST_BUCKET", "")
    monkeypatch.setenv("TEST_ENDPOINT_URL", "")
    return Home(ministack, instance, tmp_path)


def test_a_service_that_ends_by_itself_is_started_again(home: Home) -> None:
    """The service's messages must be in the run's log, and its counts must be an observation of an asset that the
    source has.
    """
    assert home.tick() == []
    (first,) = home.tick()
    result = home.execute()
    assert result.success
    assert "deliver: begins" in home.logged(result.run_id)
    assert "deliver: ends" in home.logged(result.run_id)
    assert observed(home)["deliver_served"] == 1
    assert dg.AssetKey("orders_queue") in home.defs.resolve_asset_graph().get_all_asset_keys()
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
    """A run of a service never ends by itself. If a tick requested a second run, this run would take the place of a
    batch in Dagster's run queue. If no run was requested after a person canceled the only run, the service would stay
    down.
    """
    home.tick()
    run = home.started()
    assert home.tick() == []
    assert home.tick() == []
    home.instance.report_run_canceled(run)
    assert len(home.tick()) == 1


def observed(home: Home) -> dict[str, object]:
    """The counts in the only observation of the source's queue."""
    (record,) = home.instance.fetch_observations(dg.AssetKey("orders_queue"), limit=5).records
    assert record.asset_observation is not None
    return {name: value.value for name, value in record.asset_observation.metadata.items()}


def test_each_service_has_its_own_run(home: Home) -> None:
    """The run of one service must not count as the run of another. The config must name the service."""
    home.tick()
    requests = home.evaluate().run_requests or []
    assert {request.job_name for request in requests} == {"orders_services"}
    named = {request.tags[SERVICE_TAG]: request.run_config["ops"]["orders_serve"] for request in requests}
    assert named == {name: {"config": {"service": name}} for name in ("deliver", "sqs")}
    home.started()
    assert [request.tags[SERVICE_TAG] for request in home.evaluate().run_requests or []] == ["sqs"]


def test_a_run_that_a_person_starts_counts_as_the_service_s_run(home: Home) -> None:
    """The launchpad sets no tag. So the step must set the tag."""
    result = home.execute("sqs")
    run = home.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[SERVICE_TAG] == "sqs"
    assert (home.other.served, home.scripted.served) == (1, 0)


def test_a_run_with_old_settings_ends_before_a_run_with_the_new_settings_starts(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an inlet would receive at its old queue, port or certificate until somebody terminates its run. A new
    run that starts too early would find the port in use.
    """
    terminated: list[str] = []

    def terminates(run_id: str) -> bool:
        terminated.append(run_id)
        home.instance.report_run_canceling(run_of(home, run))
        return True

    monkeypatch.setattr(home.instance.run_coordinator, "cancel_run", terminates)
    home.evaluate()
    (first,) = (each for each in home.evaluate().run_requests or [] if each.tags[SERVICE_TAG] == "deliver")
    run = home.started(first.tags)
    home.load("settings")
    assert home.tick() == []
    assert terminated == []
    home.load("new settings")
    for _ in range(3):
        assert home.tick() == []
    assert terminated == [run.run_id], "another request would interrupt the service while it stops"
    lines = [record.message for record in home.instance.all_logs(run.run_id)]
    assert any("has old settings" in line for line in lines), "the run must show why it ends"
    home.instance.report_run_canceled(run)
    (second,) = (each for each in home.evaluate().run_requests or [] if each.tags[SERVICE_TAG] == "deliver")
    home.started(second.tags)
    assert home.tick() == []
    assert terminated == [run.run_id]


def test_a_run_that_a_person_has_started_is_never_terminated(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a service that a person runs from other code would end within seconds."""
    monkeypatch.setattr(home.instance.run_coordinator, "cancel_run", lambda _: pytest.fail("terminated"))
    home.tick()
    home.started()
    home.load("new settings")
    assert home.tick() == []


def test_trouble_of_one_part_of_the_upkeep_leaves_the_other_parts_working(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The services must run although the reconciler fails. The other service, the reconciler and the report must work
    although one service cannot be examined.
    """
    module = "s3notify_platform.orchestration"

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patched:
        patched.setattr(f"{module}.upkeep.shared_reconciler", fails)
        assert home.tick() == []
        assert len(home.tick()) == 1
    run = home.started()
    health, judged = managed_services.run_view, []

    def view(records: object, instance: object, found: dg.DagsterRun, **more: object) -> object:
        judged.append(found.run_id)
        if found.run_id == run.run_id:
            fails()
        return health(records, instance, found, **more)  # type: ignore[arg-type]

    home.cursor = json.dumps(json.loads(home.cursor or "") | {"observed_ms": 0, "facts": {}})
    monkeypatch.setattr(f"{module}.managed_services.run_view", view)
    before = json.loads(home.cursor)["services"]
    result = home.evaluate()
    assert judged == [run.run_id]
    assert [request.tags[SERVICE_TAG] for request in result.run_requests or []] == ["sqs"]
    assert [event.asset_key.to_user_string() for event in result.asset_events] == ["orders_queue"]
    after = json.loads(home.cursor or "")["services"]
    assert after["deliver"] == before["deliver"]
    home.instance.report_run_canceled(run)


def test_a_tick_that_stores_nothing_fails_if_the_reconciler_fails(
    site_of: Callable[..., Site], monkeypatch
) -> None:
    """Otherwise nobody would see a reconciler that always fails."""
    site = site_of()
    site.upkeep()

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr("s3notify_platform.orchestration.upkeep.shared_reconciler", fails)
    with pytest.raises(Exception, match="out of order"):
        site.upkeep(later=False)
    assert "reconciler failed: RuntimeError: out of order" in str(site.upkeep().skip_message)


def terminated(home: Home, end, *, wrapped: bool) -> dg.DagsterRun:
    """Starts a serving run in a process, calls `end(process)`, and returns the run in its final state."""
    here = Path(__file__).parents[2]
    program = "dagster job execute -m tests.support.service_defs -j orders_services"
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
    assert observed(home)["deliver_delivered"] == 10
    assert list(home.queue.records.scan("workers")) == []


@pytest.mark.thorough
@pytest.mark.server
def test_a_run_ends_when_its_code_location_has_ended(home: Home) -> None:
    """Otherwise nobody could terminate the run."""
    run = terminated(home, lambda process: process.kill(), wrapped=True)
    assert run.status is DagsterRunStatus.SUCCESS
    assert "the code location is gone: deliver ends" in home.logged(run.run_id)
