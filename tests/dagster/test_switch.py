"""The switch of a source's sensor in Dagster's UI, and the commands `pause`, `resume` and `status`: one switch."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster_graphql.test.utils import execute_dagster_graphql

from s3notify_platform.cli.main import main
from s3notify_platform.source.settings import DEFS_VARIABLE
from tests.support.servers import S3Server

SELECTOR = {
    "repositoryLocationName": "here",
    "repositoryName": "__repository__",
    "sensorName": "orders_sensor",
}
STATE = """
query State($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) { ... on Sensor { sensorState { id status } } }
}"""
START = """
mutation Start($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) { __typename ... on Sensor { sensorState { status } } }
}"""
STOP = """
mutation Stop($id: String!) {
  stopSensor(id: $id) { __typename ... on StopSensorMutationResult { instigationState { status } } }
}"""


@dataclass(frozen=True)
class Interface:
    """The webserver's interface of a code location that has the source `orders`, and the commands beside it."""

    workspace: WorkspaceProcessContext

    def ask(self, query: str, **variables: object) -> dict[str, dict[str, object]]:
        done = execute_dagster_graphql(self.workspace.create_request_context(), query, variables)
        assert not done.errors
        found: dict[str, dict[str, object]] = done.data
        return found

    @property
    def state(self) -> dict[str, str]:
        """Id and status of the switch, as the UI shows them."""
        found = self.ask(STATE, selector=SELECTOR)["sensorOrError"]["sensorState"]
        assert isinstance(found, dict)
        return found

    def stop(self) -> None:
        found = self.ask(STOP, id=self.state["id"])["stopSensor"]
        assert found == {"__typename": "StopSensorMutationResult", "instigationState": {"status": "STOPPED"}}

    def start(self) -> None:
        found = self.ask(START, selector=SELECTOR)["startSensor"]
        assert found == {"__typename": "Sensor", "sensorState": {"status": "RUNNING"}}


@pytest.fixture
def interface(tmp_path: Path, ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Interface]:
    (tmp_path / "dagster.yaml").touch()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    reach = {
        "endpoint_url": ministack.endpoint_url,
        "access_key_id_env": "S3NOTIFY_TEST_KEY",
        "secret_access_key_env": "S3NOTIFY_TEST_SECRET",
    }
    attributes = {"name": "orders", "bucket": ministack.make_bucket(), "prefix": "raw/", "s3": reach}
    folder = tmp_path / "switched_sources" / "orders"
    folder.mkdir(parents=True)
    given = {"type": "s3notify_platform.S3NotifyComponent", "attributes": attributes}
    (folder / "defs.yaml").write_text(yaml.safe_dump(given))
    monkeypatch.setenv(DEFS_VARIABLE, str(folder.parent))
    monkeypatch.setattr(sys, "path", [*sys.path])
    target = LoadableTargetOrigin(
        executable_path=sys.executable, module_name="s3notify_platform.definitions", attribute="defs"
    )
    load = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(target, location_name="here"))
    with dg.DagsterInstance.get() as instance, WorkspaceProcessContext(instance, load) as workspace:
        yield Interface(workspace)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, [*arguments])
    assert done.exit_code == 0, done.output
    return done.output


def is_paused() -> bool | None:
    """The answer of `s3notify status`."""
    (one,) = json.loads(run("status", "orders", "--json"))
    assert one["paused"] is None or isinstance(one["paused"], bool)
    return one["paused"]


def test_the_switch_in_the_ui_and_the_commands_agree(interface: Interface) -> None:
    """A person may switch the sensor off in the UI, and on by a command. If the UI and the commands had separate
    switches, a command could call a source paused while its sensor starts batches.
    """
    assert (interface.state["status"], is_paused()) == ("RUNNING", None), "no daemon has seen the sensor yet"
    interface.stop()
    assert (interface.state["status"], is_paused()) == ("STOPPED", True)
    assert "orders was already paused" in run("pause", "orders")
    assert "orders is resumed" in run("resume", "orders")
    assert (interface.state["status"], is_paused()) == ("RUNNING", False)
    assert "orders is paused" in run("pause", "orders")
    assert (interface.state["status"], is_paused()) == ("STOPPED", True)
    interface.start()
    assert (interface.state["status"], is_paused()) == ("RUNNING", False)
    assert "orders was already resumed" in run("resume", "orders")
