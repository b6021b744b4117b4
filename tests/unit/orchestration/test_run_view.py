"""The facts on which a sensor bases its decisions about a run: statuses that may last for long, and a failed launch."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from s3notify_platform.engine.batch.run_pulse import pulse_of
from s3notify_platform.orchestration.managed_services import WAITS
from s3notify_platform.orchestration.run_health import run_view
from s3notify_platform.stores.memory import MemoryRecordStore


def view(status, **more):
    with dg.DagsterInstance.ephemeral() as instance:
        run = SimpleNamespace(run_id="r", status=DagsterRunStatus[status], tags={})
        return run_view(MemoryRecordStore(), instance, run, **more)


@pytest.mark.parametrize(
    ("status", "batch_waits", "service_waits"),
    [
        ("QUEUED", True, True),
        ("NOT_STARTED", False, True),
        ("STARTING", False, False),
        ("STARTED", False, False),
    ],
)
def test_a_run_may_wait_only_in_some_statuses(status, batch_waits, service_waits):
    assert (view(status).queued, view(status, waits=WAITS).queued) == (batch_waits, service_waits)


def test_a_run_that_could_not_be_launched_counts_as_silent():
    """A run whose launch failed stays `NOT_STARTED`. If the run counted as alive, its slots would wait for it forever,
    and their changes would not be ingested.
    """
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    seconds = {"silence_seconds": 30.0, "startup_seconds": 180.0}
    run = view("NOT_STARTED")
    run = replace(run, gone=lambda: False)
    first = pulse_of([run], {}, now_ms, **seconds)
    assert first.alive == ("r",)
    assert pulse_of([run], first.progress, now_ms + 181_000, **seconds).silent == ("r",)
