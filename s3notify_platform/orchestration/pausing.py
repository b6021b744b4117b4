"""Switches a source's sensor off and on, like Dagster's UI does; the UI shows the same state.

A sensor that is off opens no batch. Open batches continue, changes wait in the queue and in the signals, and the upkeep
continues. Nothing is lost, however long the sensor is off: its first tick afterwards finds all changes.
"""

from typing import Final

import dagster as dg

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.orchestration.dagster_internals import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

LOOKS: Final = 5
SWITCH_LOOK_SECONDS: Final = 0.5
"""A tick that ends after the switch may overwrite the new status with the old status. So the status is checked `LOOKS`
times, `SWITCH_LOOK_SECONDS` apart.
"""


def is_paused(instance: dg.DagsterInstance, source: str) -> bool | None:
    """True if the sensor of a source is off in at least one code location; None if no daemon of this instance has seen
    the sensor yet. Cost: 1 read of the instance's sensors.
    """
    found = _known(instance, source)
    return not all(state.is_running for state in found) if found else None


def seconds_since_tick(
    instance: dg.DagsterInstance, source: str, *, clock: Clock = SYSTEM_CLOCK
) -> float | None:
    """Seconds since the last tick of the source's sensor, in any code location where the sensor is on. None if the
    sensor is off, or has not ticked yet. Cost: 1 read of the instance's sensors.
    """
    ticks = [
        data.last_tick_timestamp
        for state in _known(instance, source)
        if state.is_running and isinstance(data := state.instigator_data, SensorInstigatorData)
    ]
    last = max((at for at in ticks if at), default=None)
    return None if last is None else max(0.0, clock.wall_ms() / 1000 - last)


def _known(instance: dg.DagsterInstance, source: str) -> list[InstigatorState]:
    return [
        state
        for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        if state.instigator_name == f"{source}_sensor"
    ]


def _sensors(instance: dg.DagsterInstance, source: str) -> list[InstigatorState]:
    """The sensors of a source: one in each code location that defines the source."""
    found = _known(instance, source)
    if not found:
        raise UsageError(
            f"Dagster has no sensor {source}_sensor yet: correct the name or DAGSTER_HOME, or start "
            "Dagster (`s3notify dev`); if the sensor should be off from the start, set `running: false` "
            "in the YAML"
        )
    return found


def switch(instance: dg.DagsterInstance, source: str, *, on: bool, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Switches the sensor of a source in each code location that has it. Returns True if a sensor's status changed. A
    repeated call is harmless.

    `UsageError` if no daemon has seen the sensor yet. `UnavailableError` if a tick undid the change in each attempt;
    the caller should try again.
    """
    wanted = InstigatorStatus.RUNNING if on else InstigatorStatus.STOPPED
    changed = False
    for _ in range(LOOKS):
        others = [state for state in _sensors(instance, source) if state.is_running is not on]
        if not others and changed:
            return True
        for state in others:
            instance.update_instigator_state(state.with_status(wanted))
        if not others:
            return False
        changed = True
        clock.sleep(SWITCH_LOOK_SECONDS)
    if any(state.is_running is not on for state in _sensors(instance, source)):
        raise UnavailableError(f"the new status of {source}_sensor was undone: try again")
    return changed
