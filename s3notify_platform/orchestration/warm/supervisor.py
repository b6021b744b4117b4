"""The supervisor: owns the workers of one DAGSTER_HOME. Only the supervisor reports a run whose worker has died."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import dagster as dg
from dagster import deserialize_value

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.process import locked
from s3notify_platform.orchestration.dagster_internals import RepositoryPythonOrigin
from s3notify_platform.orchestration.warm.handover import (
    Home,
    Message,
    WorkerKey,
    decoded,
    encoded,
    received,
)

BEGIN_AGAIN_SECONDS: Final = 30.0
"""Seconds until the restart of a worker that ended before it was ready."""

BACKFILL_WAIT_SECONDS: Final = 10.0
"""Seconds that a run waits for the busy worker of its backfill; after that, another worker is started."""

END_SECONDS: Final = 5.0
"""When the supervisor stops, all runs must end within this time. This time is shorter than `DRAIN_SECONDS`, the limit
for the end of the command itself.
"""

WORKER: Final = ("-m", "s3notify_platform.orchestration.warm.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a supervisor's workers. `bytes`: the maximum memory of a worker's Python process. The worker's JVM has
    the limit that Spark sets.

    `runs`: after this number of runs, a worker is replaced. `terminate_seconds`: after this time a terminated run is
    killed, with its worker.
    """

    workers: int = 4
    runs: int = 200
    bytes: int = 2 << 30
    terminate_seconds: float = 10.0


@dataclass(eq=False, slots=True, kw_only=True)
class _Worker:
    key: WorkerKey
    job: str
    """The name of a job; the worker starts the resources of this job."""
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    run: str = ""
    """The run that the worker executes; empty if the worker is idle."""
    backfill: str = ""
    """The backfill of the worker's run; empty if the run belongs to no backfill."""
    runs: int = 0
    used_ms: int = 0
    terminating: bool = False
    leaving: bool = False
    """True if the worker ends as soon as it has no run."""
    replaced: bool = False
    """True if a worker with newer code replaced this worker, or if this worker had to end because of the limit. A
    replaced worker is started again only on request.
    """
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, message: Message) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with suppress(OSError):  # the process has ended, which `_follow` notices
            self.process.stdin.write(encoded(message))

    def kill(self) -> None:
        """Kills the worker's process session: the worker, its JVM, and Spark's Python workers, which end
        with the JVM.
        """
        if self.process is not None and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A run that was requested from the supervisor, with the key of the worker that it needs."""

    run: str
    job: str
    key: WorkerKey
    backfill: str
    since: float
    """The time of the request, by the monotonic clock."""


class Supervisor:
    """Serves one home until the supervisor is stopped. `UsageError` if another supervisor serves this home.

    `worker`: Python's arguments for starting a worker.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        *,
        limits: Limits | None = None,
        say: Callable[[str], None] = lambda _: None,
        worker: tuple[str, ...] = WORKER,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.home = Home(Path(instance.root_directory))
        self._instance = instance
        self._limits = limits or Limits()
        self._say = say
        self._command = worker
        self._clock = clock
        self._workers: list[_Worker] = []
        self._waiting: list[_Asked] = []
        self._not_before: dict[WorkerKey, float] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Serves until `stop`; then terminates all runs and ends all workers."""
        self.home.make()
        lock = locked(self.home.folder / "lock")
        if lock is None:
            raise UsageError(f"{self.home.folder} is served by another supervisor: end that supervisor first")
        with lock, self.home.listen() as listening:
            self._report_left()
            listening.settimeout(0.5)
            self._say(f"warm runs of {self._instance.root_directory}")
            try:
                while not stop.is_set():
                    with suppress(TimeoutError):
                        connection, _ = listening.accept()
                        threading.Thread(target=self._serve, args=[connection], daemon=True).start()
                    self._start_more()
            finally:
                self._end()

    def _report_left(self) -> None:
        """Reports the runs of an earlier supervisor that died. The workers of that supervisor ended, too. Removes the
        claims of ended runs.
        """
        for run_id, claimant in [*self.home.claimed()]:
            if claimant == "warm":
                self._report(run_id, "its warm worker ended together with the supervisor", canceled=False)
            run = self._instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                self.home.forget(run_id)

    def _end(self) -> None:
        with self._lock:
            self._stopping.set()
            workers, waiting = [*self._workers], [*self._waiting]
            self._waiting.clear()
            seconds = min(self._limits.terminate_seconds, END_SECONDS)
            for worker in workers:
                self._leave(worker)
                if worker.run:
                    self._terminate(worker, seconds)
        self._end_waiting(*waiting, canceled=True)
        for worker in workers:
            worker.ended.wait(seconds + 2)

    # Requests

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError, KeyError):
            connection.settimeout(5.0)
            message = received(connection)
            connection.sendall(encoded({"yes": self._answer(message)}))

    def _answer(self, message: Message) -> bool:
        if message["do"] not in ("run", "prepare"):
            return self._look(str(message["run"]), terminate=message["do"] == "terminate")
        asked = _Asked(
            run=str(message["run"]),
            job=str(message["job"]),
            key=WorkerKey.of(message["key"]),
            backfill=str(message.get("backfill", "")),
            since=self._clock.monotonic(),
        )
        with self._lock:
            if message["do"] == "run" and self._take(asked):
                return True
            self._prepare(asked.key, asked.job)
        self._give_up(asked.key)
        return False

    def _look(self, run: str, *, terminate: bool) -> bool:
        """True if a worker has the run, or will get it. Ends the run if `terminate`."""
        with self._lock:
            worker = next((worker for worker in self._workers if worker.run == run), None)
            waits = next((asked for asked in self._waiting if asked.run == run), None)
            if terminate and worker is not None:
                self._terminate(worker, self._limits.terminate_seconds)
            if terminate and waits is not None:
                self._waiting.remove(waits)
        if terminate and waits is not None:
            self._end_waiting(waits, canceled=True)
        return worker is not None or waits is not None

    def _take(self, asked: _Asked) -> bool:
        """Hands the run to a worker that is idle, or soon will be. A repeated request gets the same answer."""
        if asked.run in {*(worker.run for worker in self._workers), *(each.run for each in self._waiting)}:
            return True
        if not any(w.key == asked.key and (self._idle(w) or self._soon(w, asked)) for w in self._workers):
            return False
        if not self.home.claim(asked.run, "warm"):
            return False
        self._waiting.append(asked)
        self._hand_out()
        return True

    def _hand_out(self) -> None:
        """Gives waiting runs to idle workers."""
        for asked in [*self._waiting]:
            idle = next((w for w in self._workers if w.key == asked.key and self._idle(w)), None)
            if idle is not None:
                self._waiting.remove(asked)
                idle.run, idle.backfill, idle.used_ms = asked.run, asked.backfill, self._clock.wall_ms()
                idle.send({"run": asked.run, "job": asked.job})

    @staticmethod
    def _soon(worker: _Worker, asked: _Asked) -> bool:
        """True if the worker is executing another run of the same backfill."""
        same = bool(asked.backfill) and worker.backfill == asked.backfill and bool(worker.run)
        return same and not worker.leaving

    def _start_more(self) -> None:
        """Starts more workers for runs that have waited for long, up to the limit."""
        with self._lock:
            since = self._clock.monotonic() - BACKFILL_WAIT_SECONDS
            for key, job in {asked.key: asked.job for asked in self._waiting if asked.since < since}.items():
                starting = any(w.key == key and not w.ready for w in self._workers)
                starting |= self._clock.monotonic() < self._not_before.get(key, 0.0)
                if not starting and len(self._workers) < self._limits.workers:
                    self._start(key, job)

    def _end_waiting(self, *waiting: _Asked, canceled: bool = False) -> None:
        """Reports runs that no worker will begin. An error with one run does not affect other runs."""
        with ExitStack() as each:
            for asked in waiting:
                each.callback(self.home.forget, asked.run)
                each.callback(self._report, asked.run, "no warm worker could begin it", canceled=canceled)

    @staticmethod
    def _idle(worker: _Worker) -> bool:
        return worker.ready and not worker.run and not worker.leaving

    # Workers

    def _prepare(self, key: WorkerKey, job: str) -> None:
        """Starts a worker for this key if the key has no worker and the limit allows another worker. A worker with
        another version of the same code ends as soon as it has no run.

        Runs that wait for an ended worker get the new worker.
        """
        for worker in self._workers:
            if worker.key.place == key.place and worker.key != key:
                worker.replaced = True
                self._leave(worker)
        self._waiting = [
            replace(asked, key=key) if asked.key.place == key.place else asked for asked in self._waiting
        ]
        present = [worker for worker in self._workers if not worker.leaving]
        if self._stopping.is_set() or any(worker.key == key for worker in present):
            return
        if self._clock.monotonic() < self._not_before.get(key, 0.0) or not self._is_here(key):
            return
        if len(present) >= self._limits.workers:
            idle = sorted((w for w in present if self._idle(w)), key=lambda w: w.used_ms)
            if not idle:
                return
            idle[0].replaced = True
            self._leave(idle[0])
        self._start(key, job)

    @staticmethod
    def _is_here(key: WorkerKey) -> bool:
        """True if the code is on this machine, and not in an image."""
        origin = deserialize_value(key.origin, RepositoryPythonOrigin)
        return origin.container_image is None and Path(origin.executable_path).exists()

    def _start(self, key: WorkerKey, job: str) -> None:
        worker = _Worker(key=key, job=job, used_ms=self._clock.wall_ms())
        self._workers.append(worker)
        threading.Thread(target=self._follow, args=[worker], daemon=True).start()

    def _spawn(self, worker: _Worker) -> int:
        """Starts the worker's process. Returns the descriptor for reading its messages."""
        python = (
            deserialize_value(worker.key.origin, RepositoryPythonOrigin).executable_path or sys.executable
        )
        reading, writing = os.pipe()
        with self._lock, self.home.log.open("ab") as log:
            worker.process = subprocess.Popen(
                [python, *self._command, str(writing)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[writing],
                start_new_session=True,
                env={**os.environ, "DAGSTER_HOME": self._instance.root_directory},
            )
            os.close(writing)
            worker.send({"job": worker.job, "parent": os.getpid(), **worker.key.message()})
            if worker.leaving:
                worker.kill()
        self._say(f"worker {worker.process.pid} of {worker.key.location} starts")
        return reading

    def _follow(self, worker: _Worker) -> None:
        """Starts a worker and handles its messages until it has ended.

        The same thread starts the worker and handles the messages, because the kernel ends the worker together with the
        thread that started the worker.
        """
        try:
            reading = self._spawn(worker)
        except OSError as error:
            self._say(f"no worker of {worker.key.location} could be started: {error}")
            with self._lock:
                self._workers.remove(worker)
                self._not_before[worker.key] = self._clock.monotonic() + BEGIN_AGAIN_SECONDS
            self._give_up(worker.key)
            worker.ended.set()
            return
        with os.fdopen(reading, "rb") as said, suppress(ValueError):
            for line in said:
                self._note(worker, decoded(line))
        assert worker.process is not None
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(1.0)  # the process may be ending by itself
        worker.kill()  # kills the worker's other processes
        with worker.process as process:
            code = process.wait()
        self._say(f"worker {worker.process.pid} of {worker.key.location} ended ({code})")
        with self._lock:
            self._workers.remove(worker)
            run, worker.run = worker.run, ""
            if not worker.ready and not worker.leaving:
                self._not_before[worker.key] = self._clock.monotonic() + BEGIN_AGAIN_SECONDS
            # A worker that never had a run is restarted only on request: a failing worker must not restart forever.
            if (worker.runs or run) and not worker.replaced:
                self._prepare(worker.key, worker.job)
        try:
            if run:
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
                self._report(run, f"its warm worker ended during the run, {how}", canceled=worker.terminating)
                self.home.forget(run)
        finally:
            self._give_up(worker.key)
            worker.ended.set()

    def _give_up(self, key: WorkerKey) -> None:
        """Ends the runs that wait for a worker of this key, unless a worker exists or is being started."""
        with self._lock:
            if any(worker.key == key for worker in self._workers):
                return
            given_up = [asked for asked in self._waiting if asked.key == key]
            self._waiting = [asked for asked in self._waiting if asked.key != key]
        self._end_waiting(*given_up)

    def _note(self, worker: _Worker, message: Message) -> None:
        with self._lock:
            if "ready" in message:
                worker.ready = True
                self._say(f"a worker of {worker.key.location} is ready")
            if message.get("done") and message["done"] == worker.run:
                worker.run, run = "", worker.run
                worker.runs += 1
                self.home.forget(run)
                used_up = worker.runs >= self._limits.runs or message["bytes"] > self._limits.bytes
                if worker.leaving or used_up:
                    self._leave(worker)
            self._hand_out()
            if self._idle(worker) and any(
                w.key == worker.key and self._idle(w) for w in self._workers if w != worker
            ):
                worker.replaced = True  # one idle worker is enough
                self._leave(worker)

    def _leave(self, worker: _Worker) -> None:
        worker.leaving = True
        if not worker.run:
            worker.kill()

    def _terminate(self, worker: _Worker, seconds: float) -> None:
        """Interrupts the worker's run. The worker ends after the run, and is killed after `seconds` at the latest."""
        if worker.terminating:
            return
        worker.terminating = worker.leaving = True
        worker.send({"terminate": worker.run})
        timer = threading.Timer(seconds, worker.kill)
        timer.daemon = True
        timer.start()

    def _report(self, run_id: str, why: str, *, canceled: bool) -> None:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return
        report = self._instance.report_run_canceled if canceled else self._instance.report_run_failed
        report(run, f"The run was ended: {why}." if canceled else f"The run failed: {why}.")
