"""Inlets and outlets managed by Dagster: one job for all services of a source, with one run for each service.

Theory of operation. The run's only step runs the service in a thread. The step stops the service when the run is
terminated, or when the process that started the run has ended (the code location was stopped). The step writes a
heartbeat. The upkeep's sensor reads the runs of each service:

    no run alive ──backoff elapsed──► requested ──► serves ──failed──► no run alive, with a longer backoff
                                                    └──heartbeat stops──► reported as failed

A run whose process ends before its first heartbeat is reported as failed too (`run_health`).

A run key consists of the cursor's epoch and a number. A tick that is repeated after a crash requests the same run, and
Dagster launches it once. Other runs of the service may exist at the same time, for example runs that a person has
started: services share their work. The sensor only ensures that at least one run executes the service.

A run of a service never ends by itself, so each such run always counts towards `max_concurrent_runs` of the run queue.
After a reload of the code location, the old process continues while it has runs. The service in an old run uses the old
code until the run is terminated. The sensor then starts a run of the new code.

The sensor terminates a run itself if the service's settings have changed since the run was requested: a tag of the run
has the settings' digest. The new run is requested after the old run has ended, because an inlet's port must be free. A
run that a person has started lacks this tag, and is never terminated. If the service is no longer in the YAML, the
sensor ignores the service's run, so a person must terminate the run.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Final

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from s3notify_platform.channels.service import Service
from s3notify_platform.engine.batch.heartbeats import heartbeat
from s3notify_platform.engine.batch.run_pulse import RunView, pulse_of
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SERVICE_TAG, SETTINGS_TAG
from s3notify_platform.orchestration.run_health import ACTIVE, ENDED, run_view
from s3notify_platform.orchestration.source_assets import SourceAssets

INTERVAL_SECONDS: Final = 10
"""Seconds between two looks at the services of a source."""

WAITS: Final = [status for status in DagsterRunStatus if status not in (*ENDED, *ACTIVE)]
"""Statuses in which a run of a service may stay for any length of time."""

SILENCE_SECONDS: Final = 60.0
"""A run without a heartbeat for this long, by the sensor's clock, is reported as failed."""

STARTUP_SECONDS: Final = 180.0
"""A run that has never had a heartbeat is reported as failed after this time."""

STEADY_BEATS: Final = 12
"""After a run has sent this number of heartbeats (a minute), failures before the run no longer count."""

BACKOFF_BASE_SECONDS: Final = 5.0
BACKOFF_CEILING_SECONDS: Final = 300.0

STOP_SECONDS: Final = 15.0
COUNTS_SECONDS: Final = 60.0
_LINES_MAX: Final = 200
_RUNS_MAX: Final = 25
_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """The part of the sensor's cursor for one service. Times are the sensor's wall clock, in milliseconds."""

    epoch: str
    launched: int = 0
    failures: int = 0
    not_before_ms: int = 0
    judged: str = ""
    """The last ended run that is counted in `failures`."""
    progress: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each run its number of heartbeats (-1: none yet), and the time when this number was first seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTick:
    """The decision of a tick."""

    state: ServiceState
    note: str
    run_key: str = ""
    """Key of the run to request; empty if no run is requested."""
    silent: tuple[str, ...] = ()
    """Runs to report as failed."""


def decide(name: str, state: ServiceState, runs: Sequence[RunView], clock: Clock) -> ServiceTick:
    """The decision of a tick, given the service's runs, latest first. Only the backoff's jitter is random."""
    now = clock.wall_ms()
    found = pulse_of(
        runs,
        state.progress,
        now,
        silence_seconds=SILENCE_SECONDS,
        startup_seconds=STARTUP_SECONDS,
        patient=True,
    )
    state = replace(state, progress=found.progress)
    if found.alive:
        if any((run.beats or 0) >= STEADY_BEATS for run in runs if run.run_id in found.alive):
            state = replace(state, failures=0)
        return ServiceTick(state=state, note=f"run {found.alive[0][:8]} serves", silent=found.silent)
    ended = next((run for run in runs if run.ended), None)
    fallen = found.silent[0] if found.silent else ended.run_id if ended is not None else ""
    if fallen and fallen != state.judged:
        bad = bool(found.silent) or (ended is not None and ended.failed)
        failures = state.failures + 1 if bad else 0
        wait = backoff_seconds(failures, clock, base=BACKOFF_BASE_SECONDS, ceiling=BACKOFF_CEILING_SECONDS)
        state = replace(
            state, judged=fallen, failures=failures, not_before_ms=now + int(wait * 1000) if failures else now
        )
    if now < state.not_before_ms:
        left = (state.not_before_ms - now) / 1000
        note = f"failed {state.failures} times in a row; starts again in {left:.0f} s"
        return ServiceTick(state=state, note=note, silent=found.silent)
    state = replace(state, launched=state.launched + 1)
    return ServiceTick(
        state=state, note="starts", run_key=f"{name}-{state.epoch}-{state.launched}", silent=found.silent
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedService:
    """A service of a source. `digest`: a short digest of all that `build` uses, without secrets."""

    build: Callable[[SlotIOManager], Service]
    digest: Callable[[SlotIOManager], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedServices:
    """The services of a source by name.

    The heartbeat of a service is in the source's records: 1 write every 5 s, and 1 read for each tick. The service's
    progress is in the run's log. The service's counts become an observation of the asset `{source}_queue`: at the end
    of the service, and once a minute if a count has changed.
    """

    assets: SourceAssets
    by_name: Mapping[str, ManagedService]

    @property
    def job_name(self) -> str:
        """The name of the services' job."""
        return f"{self.assets.name}_services"

    def job(self) -> dg.JobDefinition:
        """The job. The run's config names the service; if there is only one service, the config may be left out."""
        assets, names = self.assets, [*self.by_name]
        choice = dg.Enum(f"{assets.name}_service", [dg.EnumValue(name) for name in names])
        field = dg.Field(choice, default_value=names[0]) if len(names) == 1 else dg.Field(choice)

        @dg.op(
            name=self._step,
            required_resource_keys={assets.io_key},
            config_schema={"service": field},
        )
        def serve(context: dg.OpExecutionContext) -> None:
            io, name = assets.io_of(context), context.op_config["service"]
            # A run that a person has started has no tag yet.
            context.instance.add_run_tags(context.run_id, {SERVICE_TAG: name})
            with heartbeat(io.clients.records, context.run_id):
                _Running(context, self.by_name[name].build(io), name, f"{assets.name}_queue").wait()

        @dg.job(
            name=self.job_name,
            description=f"Runs a service of {assets.name!r} until the run is terminated: {', '.join(names)}. The "
            "upkeep sensor keeps one run of each service alive.",
            executor_def=dg.in_process_executor,
            tags={**assets.run_tags},
        )
        def job() -> None:
            serve()

        return job

    @property
    def _step(self) -> str:
        return f"{self.assets.name}_serve"

    def keep(
        self, name: str, before: ServiceState | None, io: SlotIOManager, instance: dg.DagsterInstance
    ) -> tuple[ServiceTick, list[dg.RunRequest]]:
        """Looks at the runs of one service. Reports silent runs as failed, terminates a run that was requested with
        other settings, and requests a run if no run is alive.

        `before`: the state in the sensor's cursor; None at first. The first call requests nothing, because Dagster must
        store the epoch before a run key contains it.
        """
        if before is None:
            first = ServiceState(epoch=unique_name(SYSTEM_CLOCK)[:8])
            return ServiceTick(state=first, note="the next tick starts it"), []
        wanted = RunsFilter(job_name=self.job_name, tags={SERVICE_TAG: name})
        found = instance.get_runs(filters=wanted, limit=_RUNS_MAX)
        runs = [run_view(io.clients.records, instance, run, waits=WAITS) for run in found]
        tick = decide(name, before, runs, SYSTEM_CLOCK)
        for run in found:
            if run.run_id in tick.silent:
                instance.report_run_failed(
                    run, message="the service's heartbeat stopped or never began; another run serves"
                )
        digest = self.by_name[name].digest(io)
        for run in found:
            if not run.is_finished and run.run_id not in tick.silent and _is_old(run, digest):
                tick = replace(tick, note=_terminated(run, instance))
                break
        config = {"ops": {self._step: {"config": {"service": name}}}}
        request = dg.RunRequest(
            job_name=self.job_name,
            run_key=tick.run_key,
            run_config=config,
            tags={SERVICE_TAG: name, SETTINGS_TAG: digest},
        )
        return tick, [request] if tick.run_key else []


def _is_old(run: dg.DagsterRun, digest: str) -> bool:
    return run.tags.get(SETTINGS_TAG, digest) != digest


def _terminated(run: dg.DagsterRun, instance: dg.DagsterInstance) -> str:
    """Terminates a run with old settings, and returns a note about it."""
    note = f"run {run.run_id[:8]} has old settings and is terminated"
    # The first request interrupts the step; another request would interrupt the step while the step stops the service.
    if run.status is DagsterRunStatus.CANCELING:
        return note
    instance.report_engine_event(note, run)
    if instance.run_coordinator.cancel_run(run.run_id):
        return note
    return f"{note}, but its launcher does not confirm this: if the run goes on, terminate it in Dagster's UI"


@dataclass(slots=True)
class _Running:
    """A service in a thread of its own. The step's thread, which Dagster interrupts, watches the service's thread."""

    _context: dg.OpExecutionContext
    _service: Service
    _name: str
    _asset: str
    _stop: Event = field(default_factory=Event)
    # Only the step's thread writes Dagster's log. If there are too many lines, the oldest are dropped.
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_MAX))
    _error: Exception | None = None
    _observed: Mapping[str, int] = field(default_factory=dict)
    # `Thread.join` is not called here: if `join` is interrupted, CPython 3.11 treats a running thread as ended.
    _ended: Event = field(default_factory=Event)

    def wait(self) -> None:
        """Returns when the service has ended. Stops the service if this step is interrupted, or if the parent of this
        process ends.
        """
        parent = os.getppid()
        Thread(target=self._run, name=self._name, daemon=True).start()
        looked = SYSTEM_CLOCK.monotonic()
        try:
            while not self._ended.wait(_LOOK_SECONDS):
                self._log()
                if SYSTEM_CLOCK.monotonic() - looked >= COUNTS_SECONDS:
                    looked = SYSTEM_CLOCK.monotonic()
                    self._observe()
                if os.getppid() != parent and not self._stop.is_set():
                    self._context.log.warning("the code location is gone: %s ends", self._name)
                    self._stop.set()
        finally:
            self._stop.set()
            self._ended.wait(STOP_SECONDS)
            self._log()
            self._observe()
        if self._error is not None:
            raise dg.Failure(
                description=f"{type(self._error).__name__}: {self._error}", metadata=dict(self._observed)
            ) from self._error

    def _run(self) -> None:
        try:
            self._service.run(self._stop, self._lines.append)
        except Exception as error:  # noqa: BLE001 - raised again by the step's own thread
            self._error = error
        finally:
            self._ended.set()

    def _log(self) -> None:
        while self._lines:
            self._context.log.info("%s: %s", self._name, self._lines.popleft())

    def _observe(self) -> None:
        counts = {f"{self._name}_{what}": number for what, number in self._service.counts().items()}
        if counts == self._observed:
            return
        self._observed = counts
        self._context.log_event(dg.AssetObservation(asset_key=self._asset, metadata=counts))
