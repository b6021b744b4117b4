"""What the sensor of a service decides: one run, backoff after failures, silence."""

import pytest
from dagster import DagsterRunStatus

from s3notify_platform.engine.batch.run_pulse import RunView
from s3notify_platform.kernel.errors import CorruptError
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


def test_one_run_is_asked_for(clock):
    """By a key that a repeated tick draws again, and the next one does not."""
    first = decide("deliver", FIRST, [], clock)
    assert first.run_key == decide("deliver", FIRST, [], clock).run_key == "deliver-e-1"
    assert decide("deliver", first.state, [], clock).run_key == "deliver-e-2"


@pytest.mark.parametrize("status", ["QUEUED", "NOT_STARTED", "STARTING"])
def test_a_run_that_waits_is_waited_for(status, clock):
    """However long."""
    state = FIRST
    for _ in range(10):
        tick = decide("deliver", state, [run(status)], clock)
        assert (tick.run_key, tick.silent) == ("", ())
        state = tick.state
        clock.now += 3600


def test_a_run_whose_heart_beats_is_left_alone(clock):
    """And makes good what failed before it, once it is steady."""
    state = ServiceState(epoch="e", failures=5)
    for beats in range(1, 30):
        tick = decide("deliver", state, [run("STARTED", beats=beats)], clock)
        assert (tick.run_key, tick.silent) == ("", ())
        state = tick.state
        assert state.failures == (0 if beats >= STEADY_BEATS else 5)
        clock.now += 50


@pytest.mark.parametrize(("beats", "limit"), [(7, SILENCE_SECONDS), (None, STARTUP_SECONDS)])
@pytest.mark.parametrize("status", ["STARTED", "CANCELING"])
def test_a_silent_run_is_failed(beats, limit, status, clock):
    """By the sensor's own clock, from when it first saw it so; another one is started after the backoff."""
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
def test_a_run_that_was_killed_while_it_started_is_failed(status, clock):
    """As soon as one that falls silent; where its process lives, it is waited for."""
    for gone in (True, False):
        starting = view("r1", status, gone=lambda: gone)  # noqa: B023
        state = decide("deliver", FIRST, [starting], clock).state
        clock.now += SILENCE_SECONDS - 1
        assert decide("deliver", state, [starting], clock).silent == ()
        clock.now += 2
        assert decide("deliver", state, [starting], clock).silent == (("r1",) if gone else ())


def test_failures_back_off(clock):
    """Longer and longer, up to a ceiling; each run counts once."""
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
def test_what_ended_otherwise_is_started_again_at_once(status, clock):
    """Terminated by a person, or ended with its code location: no failure."""
    state = ServiceState(epoch="e", failures=3)
    tick = decide("deliver", state, [run(status)], clock)
    assert tick.run_key
    assert tick.state.failures == 0


def test_the_cursor(clock):
    """Comes back as it was; anything else is refused."""
    state = decide("deliver", FIRST, [run("STARTED", beats=3)], clock).state
    assert ServiceState.loads(state.dumps()) == state
    for text in ("", "{}", "[]", '{"epoch": "e", "progress": 1}', '{"progress": {}}'):
        with pytest.raises(CorruptError):
            ServiceState.loads(text)
