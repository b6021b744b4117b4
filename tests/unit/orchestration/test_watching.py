"""A tick of the sensor watches until it can request something, but for less than the interval of Dagster's loop."""

from dataclasses import replace
from threading import BoundedSemaphore

import pytest

from s3notify_platform.engine.batch.batches import BatchRequest, SensorState
from s3notify_platform.engine.batch.scheduler import Tick
from s3notify_platform.orchestration.sensor import LOOP_SECONDS, watch
from s3notify_platform.protocols.keyspace import WatcherState
from tests.support.clocks import HandClock

FIRST = SensorState(epoch="e", watch=WatcherState(slots=4))
REQUEST = BatchRequest(batch="b", part=0, parts=1, slots=(1,))


class Looks:
    """A `look` that notes each given state. Like the planner, `look` counts its calls in the state."""

    def __init__(self, *, found_at=10**9, epoch_at=10**9):
        self.seen = []
        self.found_at, self.epoch_at = found_at, epoch_at

    def __call__(self, state):
        self.seen.append(state.next_batch)
        epoch = "another" if len(self.seen) == self.epoch_at else state.epoch
        requests = (REQUEST,) if len(self.seen) == self.found_at else ()
        state = replace(state, next_batch=state.next_batch + 1, epoch=epoch)
        return Tick(state=state, requests=requests, note=str(len(self.seen)))


def watched(looks, *, poll_seconds=0.3, watchers=1):
    clock, free = HandClock(), BoundedSemaphore(1)
    if not watchers:
        free.acquire()
    tick = watch(looks, FIRST, poll_seconds=poll_seconds, clock=clock, watchers=free)
    assert free.acquire(blocking=False) == bool(watchers)
    return tick, clock


def test_watching_ends_with_the_first_request():
    """Each look must continue from the state of the previous look."""
    tick, clock = watched(looks := Looks(found_at=3))
    assert tick.requests == (REQUEST,)
    assert clock.slept == [0.3, 0.3]
    assert looks.seen == [FIRST.next_batch + n for n in range(3)]


def test_watching_ends_before_the_next_tick():
    """A tick that requests no run must return the result of its last look."""
    tick, clock = watched(looks := Looks())
    assert LOOP_SECONDS - 1 < sum(clock.slept) < LOOP_SECONDS - 0.4
    assert tick.note == str(len(looks.seen))


def test_watching_ends_with_a_new_epoch():
    """The name of a batch contains the epoch. If a tick requested a batch and died before it stored the epoch, the next
    tick would request the same slots under another name.
    """
    tick, _ = watched(Looks(epoch_at=2, found_at=3))
    assert tick.state.epoch == "another"
    assert not tick.requests


@pytest.mark.parametrize("given", [{"poll_seconds": 0}, {"watchers": 0}])
def test_a_tick_looks_once_if_it_must_not_watch(given):
    """A tick must not watch if `poll_seconds` is 0, or if all watchers are taken."""
    _, clock = watched(looks := Looks(), **given)
    assert len(looks.seen) == 1
    assert not clock.slept


def test_a_failing_look_releases_its_watcher():
    """Otherwise the ticks of other sources could no longer watch."""

    def look(state):
        if state.next_batch > FIRST.next_batch:
            raise OSError
        return Looks()(state)

    free = BoundedSemaphore(1)
    with pytest.raises(OSError):
        watch(look, FIRST, poll_seconds=0.3, clock=HandClock(), watchers=free)
    assert free.acquire(blocking=False)
