"""Ticks of a development home: of sensors in many threads, and of the next process."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickData, TickStatus

from s3notify_platform.local.dagster_dev import storage

SENSORS, TICKS = 8, 10


def tick(sensor: int, number: int) -> TickData:
    return TickData(
        instigator_origin_id=f"origin {sensor}",
        instigator_name=f"sensor {sensor}",
        instigator_type=InstigatorType.SENSOR,
        status=TickStatus.SUCCESS,
        timestamp=float(number),
        selector_id=f"selector {sensor}",
        cursor=f"cursor {number}",
        run_ids=[],
    )


def test_ticks_of_many_threads_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Dagster's own storage has them, so that it can be put back."""
    (tmp_path / "dagster.yaml").write_text(storage(tmp_path))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance, ThreadPoolExecutor(SENSORS) as pool:
        for _ in pool.map(
            lambda sensor: [instance.create_tick(tick(sensor, n)) for n in range(TICKS)], range(SENSORS)
        ):
            pass
    (tmp_path / "dagster.yaml").write_text("")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        for sensor in range(SENSORS):
            found = instance.get_ticks(f"origin {sensor}", f"selector {sensor}")
            assert [each.cursor for each in found] == [f"cursor {n}" for n in reversed(range(TICKS))]
