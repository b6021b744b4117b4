"""Commands switch a source's sensor off and on. The switch is stored in the same way as the switch in Dagster's UI."""

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.orchestration.pausing import is_paused, seconds_since_tick, switch
from tests.support.clocks import HandClock


def sensor(name: str, status: InstigatorStatus, location: str = "here") -> InstigatorState:
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "any")
    data = SensorInstigatorData(cursor="kept", last_tick_timestamp=1.0)
    return InstigatorState(RemoteInstigatorOrigin(repository, name), InstigatorType.SENSOR, status, data)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster.yaml").touch()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as made:
        for one in (
            sensor("orders_sensor", InstigatorStatus.DECLARED_IN_CODE),
            sensor("orders_sensor", InstigatorStatus.STOPPED, "there"),
            sensor("orders_upkeep", InstigatorStatus.RUNNING),
            sensor("clicks_sensor", InstigatorStatus.RUNNING),
        ):
            made.add_instigator_state(one)
        yield made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments])


def running(instance: dg.DagsterInstance) -> dict[str, set[bool]]:
    found: dict[str, set[bool]] = {}
    for state in instance.all_instigator_state():
        assert state.sensor_instigator_data is not None
        assert state.sensor_instigator_data.cursor == "kept"
        found.setdefault(state.instigator_name, set()).add(state.is_running)
    return found


def test_pause_and_resume_switch_the_sensor_in_every_code_location(instance: dg.DagsterInstance) -> None:
    """The upkeep, other sources and all cursors must stay unchanged."""
    assert is_paused(instance, "orders")
    assert "orders is paused" in run("pause", "orders").output
    assert running(instance) == {"orders_sensor": {False}, "orders_upkeep": {True}, "clicks_sensor": {True}}
    assert "orders was already paused" in run("pause", "orders").output
    assert json.loads(run("resume", "orders", "--json").stdout) == {
        "source": "orders", "running": True, "changed": True,
    }  # fmt: skip
    assert running(instance)["orders_sensor"] == {True}
    assert is_paused(instance, "orders") is False
    assert is_paused(instance, "another") is None


def test_a_switch_is_repeated_if_a_tick_undoes_it(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a tick ends, it writes the status that the sensor had when the tick began. This write can undo a switch. If
    every tick undoes the switch, the user must get an error.
    """
    update, ticks = type(instance).update_instigator_state, [1]

    def ticking(self: dg.DagsterInstance, state: InstigatorState) -> InstigatorState:
        update(self, state)
        if ticks:
            ticks.pop()
            return update(self, state.with_status(InstigatorStatus.RUNNING))
        return state

    monkeypatch.setattr(type(instance), "update_instigator_state", ticking)
    assert switch(instance, "orders", on=False, clock=HandClock())
    assert is_paused(instance, "orders")
    assert running(instance)["orders_sensor"] == {False}
    ticks.extend(range(100))
    with pytest.raises(UnavailableError, match="try again"):
        switch(instance, "clicks", on=False, clock=HandClock())


def test_an_unknown_sensor_or_home_is_refused(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = run("pause", "oders")
    assert (refused.exit_code, "no sensor oders_sensor yet" in refused.output) == (1, True)
    monkeypatch.delenv("DAGSTER_HOME")
    refused = run("resume", "orders")
    assert (refused.exit_code, "set DAGSTER_HOME" in refused.output) == (1, True)


def test_remove_waits_until_the_sensor_is_off(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the sensor's next tick would load the source again, right after its removal."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    remove = ("remove", "clicks", "--bucket", "b", "--endpoint-url", "http://127.0.0.1:9", "--yes")
    clock = HandClock()
    assert seconds_since_tick(instance, "clicks", clock=clock) is not None
    assert seconds_since_tick(instance, "nowhere", clock=clock) is None
    for state in [*instance.all_instigator_state()]:
        if state.instigator_name == "clicks_sensor":
            data = SensorInstigatorData(cursor="kept", last_tick_timestamp=SYSTEM_CLOCK.wall_ms() / 1000)
            instance.update_instigator_state(state.with_data(data))
    refused = run(*remove)
    assert refused.exit_code == 1
    assert "s ago, and would load the source again: run `s3notify pause clicks` first" in refused.output
    assert run("pause", "clicks").exit_code == 0
    assert seconds_since_tick(instance, "clicks") is None
