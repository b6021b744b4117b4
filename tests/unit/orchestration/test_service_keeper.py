"""The decisions of a service's sensor: one run, backoff after failures, silent runs."""

import pytest
from dagster import DagsterRunStatus

from s3notify_platform.engine.batch.run_pulse import RunView
from s3notify_platform.orchestration.managed_services import (
    SILENCE_SECONDS,
    STARTUP_SECONDS,
    STEADY_BEATS,
    ServiceState,
    decide,
)
from s3notify_platform.orchestration.run_health import ENDED

FIRST = ServiceState(epoch="e")


def run(status, *, beats=None, run_id="r1"):
    return view(run_id, status, beats=beats)


def view(run_id, status, *, beats=None, **more):
    return RunView(
        run_id=run_id,
        ended=DagsterRunStatus[status] in ENDED,
        queued=status in ("QUEUED", "NOT_STARTED"),
        starting=status == "STARTING",
        beats=beats,
        failed=status == "FAILURE",
        **more,
    )


def test_one_run_is_requested(clock):
    """A repeated tick must use the same run key: otherwise a crash would start two runs. The next tick must use a new
    run key.
    """
    first = decide("deliver", FIRST, [], clock)
    assert first.run_key == decide("deliver", FIRST, [], clock).run_key == "deliver-e-1"
    assert decide("deliver", first.state, [], clock).run_key == "deliver-e-2"


@pytest.mark.parametrize("status", ["QUEUED", "NOT_STARTED", "STARTING"])
def test_a_waiting_run_may_wait_for_any_time(status, clock):
    state = FIRST
    for _ in range(10):
        tick = decide("deliver", state, [run(status)], clock)
        assert (tick.run_key, tick.silent) == ("", ())
        state = tick.state
        clock.now += 3600


def test_a_run_with_heartbeats_is_left_alone(clock):
    """After a minute of heartbeats, earlier failures must no longer lengthen the backoff."""
    state = ServiceState(epoch="e", failures=5)
    for beats in range(1, 30):
        tick = decide("deliver", state, [run("STARTED", beats=beats)], clock)
        assert (tick.run_key, tick.silent) == ("", ())
        state = tick.state
        assert state.failures == (0 if beats >= STEADY_BEATS else 5)
        clock.now += 50


@pytest.mark.parametrize(("beats", "limit"), [(7, SILENCE_SECONDS), (None, STARTUP_SECONDS)])
@pytest.mark.parametrize("status", ["STARTED", "CANCELING"])
def test_a_silent_run_is_reported_as_failed(beats, limit, status, clock):
    """A run's silence is measured by the sensor's own clock. Another run must start after the backoff."""
    lost = run(status, beats=beats)
    state = decide("deliver", FIRST, [lost], clock).state
    clock.now += limit - 1
    tick = decide("deliver", state, [lost], clock)
    assert tick.silent == ()
    clock.now += 2
    tick = decide("deliver", tick.state, [lost], clock)
    assert tick.silent == ("r1",)
    assert tick.state.failures == 1
    clock.now += 60
    assert decide("deliver", tick.state, [run("FAILURE")], clock).run_key


@pytest.mark.parametrize("status", ["STARTING", "STARTED"])
def test_a_run_killed_while_it_starts_is_reported_as_failed(status, clock):
    """A run whose process has ended must be reported like a silent run. A run whose process lives must not be
    reported.
    """
    for gone in (True, False):
        starting = view("r1", status, gone=lambda: gone)  # noqa: B023
        state = decide("deliver", FIRST, [starting], clock).state
        clock.now += SILENCE_SECONDS - 1
        assert decide("deliver", state, [starting], clock).silent == ()
        clock.now += 2
        assert decide("deliver", state, [starting], clock).silent == (("r1",) if gone else ())


def test_the_backoff_grows_with_each_failed_run(clock):
    """The backoff must grow up to a ceiling, and count each run once."""
    state, waits = FIRST, []
    for number in range(12):
        runs = [run("FAILURE", run_id=f"r{number}")]
        tick = decide("deliver", state, runs, clock)
        waited = 0
        while not tick.run_key:
            assert tick.state.failures == number + 1
            clock.now += 5
            waited += 5
            tick = decide("deliver", tick.state, runs, clock)
        waits.append(waited)
        state = tick.state
    assert max(waits[:3]) <= 45
    assert 60 <= max(waits) <= 305


@pytest.mark.parametrize("status", ["SUCCESS", "CANCELED"])
def test_a_run_that_ended_without_failure_is_restarted_without_backoff(status, clock):
    """Otherwise a service would stay off for the time of a backoff after a person has terminated its run, or after its
    code location has ended.
    """
    state = ServiceState(epoch="e", failures=3)
    tick = decide("deliver", state, [run(status)], clock)
    assert tick.run_key
    assert tick.state.failures == 0
