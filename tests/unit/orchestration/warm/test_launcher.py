"""The launcher hands some runs over to the supervisor. Each run is started once, even if the supervisor does not
answer.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRun, DagsterRunStatus
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.remote_representation.code_location import GrpcServerCodeLocation
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from s3notify_platform.orchestration.partitions import WARM_TAG
from s3notify_platform.orchestration.warm import WarmRunLauncher
from s3notify_platform.orchestration.warm.handover import (
    Home,
    Message,
    NoAnswerError,
    NobodyThereError,
    encoded,
    received,
)
from tests.support.waiting import until

CODE = RepositoryPythonOrigin(executable_path="python", code_pointer=ModuleCodePointer("any", "any"))
PLACE = ManagedGrpcPythonEnvCodeLocationOrigin(
    loadable_target_origin=LoadableTargetOrigin(module_name="any"), location_name="any"
)
REMOTE = RemoteJobOrigin(repository_origin=RemoteRepositoryOrigin(PLACE, "__repository__"), job_name="any")
EVERYTHING = {"ops": {"orders_slots": {"config": {"everything": True}}}}
ASSETS = {"orders": "spark", "paid_orders": "spark", "elsewhere": "other", "report": None}


class Location(GrpcServerCodeLocation):
    """A code location without a server."""

    name = "any"
    client = SimpleNamespace(get_server_id=lambda: "1")

    def __init__(self) -> None:
        tags = {name: {WARM_TAG: spark} if spark else {} for name, spark in ASSETS.items()}
        nodes = {dg.AssetKey(name): SimpleNamespace(tags=found) for name, found in tags.items()}
        graph = SimpleNamespace(get=nodes.__getitem__, has=nodes.__contains__)
        self.get_repository = lambda _: SimpleNamespace(asset_graph=graph)

    def cleanup(self) -> None:
        pass


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as found:
        yield found


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that the default launcher has launched or terminated."""
    found: list[str] = []
    monkeypatch.setattr(DefaultRunLauncher, "launch_run", lambda _, c: found.append(c.dagster_run.run_id))
    monkeypatch.setattr(DefaultRunLauncher, "terminate", lambda _, run: found.append(run) or True)
    return found


class Site:
    """A launcher, and the answers of a simulated supervisor."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.home = instance, Home(Path(instance.root_directory))
        self.launcher = WarmRunLauncher()
        self.launcher.register_instance(instance)
        self.asked: list[Message] = []

    def run(self, **given: Any) -> DagsterRun:
        given = {"tags": {WARM_TAG: "spark"}, "status": DagsterRunStatus.STARTING} | given
        return create_run_for_test(
            self.instance,
            job_name="any",
            remote_job_origin=REMOTE,
            job_code_origin=JobPythonOrigin("any", CODE),
            **given,
        )

    def launch(self, run: DagsterRun) -> None:
        workspace: Any = SimpleNamespace(get_code_location=lambda _: Location())
        self.launcher.launch_run(LaunchRunContext(run, workspace))

    def answering(self, answer: Message | None) -> "Answering":
        return Answering(self, answer)


class Answering:
    """Answers one request, or ends the connection if there is no answer."""

    def __init__(self, site: Site, answer: Message | None) -> None:
        self.site, self.answer = site, answer

    def __enter__(self) -> None:
        self.listening = self.site.home.listen()
        self.listening.settimeout(30)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        with self.listening.accept()[0] as connection:
            self.site.asked.append(received(connection))
            if self.answer is not None:
                connection.sendall(encoded(self.answer))

    def __exit__(self, *_: object) -> None:
        self.thread.join()
        self.listening.close()


@pytest.fixture
def site(instance: dg.DagsterInstance) -> Site:
    return Site(instance)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tags": {}, "asset_selection": {dg.AssetKey("orders"), dg.AssetKey("paid_orders")}},
    ],
)
def test_runs_of_slot_assets_are_handed_over(site: Site, cold: list[str], given: dict[str, Any]) -> None:
    """Otherwise each run would start a process and a JVM of its own, and the user would wait for both. The UI and
    backfills use Dagster's implicit job for all assets, whose runs have no tag of the platform.
    """
    run = site.run(**given)
    with site.answering({"yes": True}):
        site.launch(run)
    assert cold == []
    (asked,) = site.asked
    assert (asked["do"], asked["run"], asked["job"]) == ("run", run.run_id, "any")
    assert (asked["key"]["spark"], asked["key"]["server_id"]) == ("spark", "1")


@pytest.mark.parametrize(("given", "do"), [({}, "run"), ({"run_config": EVERYTHING}, "prepare")])
def test_a_run_that_the_supervisor_declines_starts_cold(
    site: Site, cold: list[str], given: dict[str, Any], do: str
) -> None:
    """Otherwise a run would never start while all workers are busy. A run that reads everything takes long, so it gets
    its own process. The supervisor prepares a worker for later runs.
    """
    run = site.run(**given)
    with site.answering({"yes": False}):
        site.launch(run)
    assert cold == [run.run_id]
    assert [asked["do"] for asked in site.asked] == [do]


@pytest.mark.parametrize(
    "given",
    [
        {"tags": {}},
        {"tags": {}, "asset_selection": {dg.AssetKey("report")}},
        {"tags": {}, "asset_selection": {dg.AssetKey("orders"), dg.AssetKey("elsewhere")}},
        {
            "tags": {},
            "asset_selection": {dg.AssetKey("orders")},
            "asset_check_selection": {dg.AssetCheckKey(dg.AssetKey("orders"), "complete")},
        },
    ],
)
def test_other_runs_are_not_offered_to_the_supervisor(
    site: Site, cold: list[str], given: dict[str, Any]
) -> None:
    """Otherwise a service would occupy a warm worker as long as the service runs, or an asset would be made
    with the Spark configuration of another asset.
    """
    run = site.run(**given)
    site.home.make()
    site.launch(run)
    assert cold == [run.run_id]


def test_a_run_without_a_supervisor_starts_cold(site: Site, cold: list[str]) -> None:
    """Nobody else can start the run, since nothing was sent to a supervisor. So the launcher must not claim the run."""
    runs = [site.run(), site.run()]
    site.launch(runs[0])
    with closing(site.home.listen()):
        pass
    site.launch(runs[1])
    assert cold == [run.run_id for run in runs]
    assert [site.home.claimant(run.run_id) for run in runs] == [None, None]


@pytest.mark.parametrize("taken", [True, False])
def test_a_run_without_an_answer_is_started_by_its_claimant_only(
    site: Site, cold: list[str], taken: bool
) -> None:
    """If the supervisor dies before it answers, the run must be started exactly once."""
    run = site.run()
    if taken:
        site.home.make()
        assert site.home.claim(run.run_id, "warm")
    with site.answering(None):
        site.launch(run)
    assert cold == ([] if taken else [run.run_id])
    assert site.home.claimant(run.run_id) == ("warm" if taken else "cold")


def test_a_run_is_terminated_by_its_own_launcher(site: Site, cold: list[str]) -> None:
    """The supervisor cannot terminate a cold run, and the default launcher cannot terminate a warm run. After a request
    to the wrong place, a run would continue although a user has terminated it.
    """
    warm, other = site.run(), site.run()
    site.home.make()
    site.home.claim(warm.run_id, "warm")
    assert site.launcher.terminate(other.run_id)
    assert cold == [other.run_id]
    with site.answering({"yes": True}):
        assert site.launcher.terminate(warm.run_id)
    assert site.asked == [{"do": "terminate", "run": warm.run_id}]
    assert site.instance.get_run_by_id(warm.run_id).status is DagsterRunStatus.CANCELING
    assert not site.launcher.terminate(warm.run_id)  # no supervisor


def test_a_health_check_fails_only_lost_warm_runs(site: Site) -> None:
    """Run monitoring must fail a run whose warm worker has ended, but not a run of the default launcher."""
    run, other = site.run(), site.run()
    site.home.make()
    site.home.claim(run.run_id, "warm")
    with site.answering({"yes": True}):
        assert site.launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    with site.answering({"yes": False}):
        assert site.launcher.check_run_worker_health(run).status is WorkerStatus.FAILED
    assert site.launcher.check_run_worker_health(run).status is WorkerStatus.FAILED
    assert site.launcher.check_run_worker_health(other).status is WorkerStatus.RUNNING


def test_a_launcher_that_finds_no_supervisor_starts_one(
    instance: dg.DagsterInstance, cold: list[str]
) -> None:
    """Otherwise a user would have to start a second command beside `dg dev`, or all runs would stay cold. If the
    supervisor did not end with the launcher, its workers would still use memory after the end of `dg dev`.
    """
    site = Site(instance)
    site.launcher = WarmRunLauncher(start_supervisor=True)
    site.launcher.register_instance(instance)
    site.launch(site.run())
    assert len(cold) == 1, "no supervisor was there"
    until(lambda: answers(site.home), seconds=120)
    site.launch(site.run())
    assert len(cold) == 2, "its code is not on this machine, so that no worker is there either"
    site.launcher.dispose()
    assert not answers(site.home)


def answers(home: Home) -> bool:
    try:
        return home.ask({"do": "look", "run": "none"}) == {"yes": False}
    except (NoAnswerError, NobodyThereError):
        return False


def test_a_launcher_starts_no_supervisor_without_the_setting(
    instance: dg.DagsterInstance, cold: list[str]
) -> None:
    site = Site(instance)
    site.launch(site.run())
    assert cold
    assert not site.home.folder.exists()
