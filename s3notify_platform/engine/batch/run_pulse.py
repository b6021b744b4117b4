"""The liveness of runs: which runs are alive, and which are silent. The functions are pure, and do not use Dagster.

A run has a heartbeat from its first step on. A run is silent if its heartbeat has not changed for `silence_seconds` of
the watcher's own clock. A run without any heartbeat is silent after `silence_seconds`, too, if the run's process is
known to be gone.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The facts that Dagster knows about a run.

    `beats`: the run's number of heartbeats; None before the first heartbeat, and after the record was deleted.
    """

    run_id: str
    ended: bool
    queued: bool
    """True if the run waits in Dagster's queue. The wait has no time limit, and does not count as silence."""
    beats: int | None
    starting: bool = False
    """True while the run's process or pod is being started."""
    failed: bool = False
    failure: str = ""
    """The reason of the failure, as the run gave it."""
    gone: Callable[[], bool] = lambda: False
    """Returns True if certainly no process executes the run, and no process will execute the run later.

    The function is called only for a run without a heartbeat.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The ids of the living runs and of the silent runs.

    `progress`: for each run, the number of heartbeats (-1: none yet), and the time when the watcher first saw this
    number, in ms of the watcher's clock.
    """

    progress: Mapping[str, tuple[int, int]]
    alive: tuple[str, ...]
    silent: tuple[str, ...]


def pulse_of(
    runs: Iterable[RunView],
    before: Mapping[str, tuple[int, int]],
    now_ms: int,
    *,
    silence_seconds: float,
    startup_seconds: float,
    patient: bool = False,
) -> Pulse:
    """Returns which of the runs that have not ended are alive, and which are silent. `before`: the `progress` of the
    previous call.

    A run that never had a heartbeat is silent after `startup_seconds`. With `patient`, this limit does not apply to a
    run that Dagster is starting.
    """
    progress: dict[str, tuple[int, int]] = {}
    alive: list[str] = []
    silent: list[str] = []
    for run in runs:
        if run.ended:
            continue
        beats = -1 if run.beats is None else run.beats
        known, since_ms = before.get(run.run_id, (beats, now_ms))
        progress[run.run_id] = (beats, since_ms if known == beats and not run.queued else now_ms)
        seconds = (now_ms - progress[run.run_id][1]) / 1000
        limit = math.inf if run.starting and patient else startup_seconds
        starts = beats < 0 and seconds < limit and not (seconds >= silence_seconds and run.gone())
        (alive if seconds < silence_seconds or starts else silent).append(run.run_id)
    return Pulse(progress=progress, alive=tuple(alive), silent=tuple(silent))
