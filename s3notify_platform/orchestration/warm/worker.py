"""A worker: it has loaded the definitions and started Spark, and executes runs one after another in its main thread.

Signal handlers work only in the main thread, and Dagster interrupts a run by a signal. A worker ends with its
supervisor, because the worker's standard input ends. If a run keeps the interpreter too busy to notice the end of its
input, the kernel ends the worker.
"""

import ctypes
import gc
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

import dagster as dg
from dagster import RepositoryDefinition, deserialize_value
from pyspark.sql import SparkSession

from s3notify_platform.engine.batch.traces import flush
from s3notify_platform.orchestration.dagster_internals import (
    CodePointer,
    EngineEventData,
    ReconstructableRepository,
    RepositoryPythonOrigin,
    capture_interrupts,
    core_execute_run,
)
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.resources import SlotSpark, spark_digest
from s3notify_platform.orchestration.ticks import with_requirements
from s3notify_platform.orchestration.warm.handover import Message, decoded, encoded
from s3notify_platform.spark.warm_sessions import fresh_session, interrupt_jobs, warm_up

PDEATHSIG: Final = 1
FLUSH_SECONDS: Final = 1.0
"""Limit in seconds for sending a run's traces, if the run has traces."""

NEXT_SECONDS: Final = 0.05
"""Seconds that an idle worker waits for a run. A run that was already waiting arrives within this time; if no run
arrives, the next session is warmed up.
"""

COLLECT_BYTES: Final = 1 << 30
"""Every worker collects garbage while no run is waiting. A worker whose process has more bytes of memory than this also
collects garbage after each run.
"""

IDLE_JOB_SECONDS: Final = 40.0
"""After this time without a run, Spark's Python workers get a small job, which keeps them alive."""


def main() -> None:
    """Serves the supervisor: reads orders from standard input, and writes their results to the given descriptor."""
    said = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    os.set_inheritable(said.fileno(), False)
    orders = _own_input()
    start = decoded(orders.readline())
    _end_with(int(start["parent"]))
    with dg.DagsterInstance.get() as instance:
        instance.inject_env_vars(start["location"])
        repository = _Loaded.of(deserialize_value(start["origin"], RepositoryPythonOrigin))
        with _own_output():
            spark = _started(instance, repository, start)
        todo: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=[orders, todo.put], daemon=True).start()
        said.write(encoded({"ready": True}))
        wait = IDLE_JOB_SECONDS
        while True:
            try:
                order = todo.get(timeout=wait)
            except queue.Empty:
                gc.collect()
                warm_up(spark)
                wait = IDLE_JOB_SECONDS
                continue
            _execute(instance, repository, order)
            flush(FLUSH_SECONDS)  # the traces are sent now, because a worker that must end is killed
            spark = fresh_session(
                spark
            )  # before another run arrives, which would fail with the old Java session
            if _resident_bytes() > COLLECT_BYTES:
                gc.collect()
            said.write(encoded({"done": order["run"], "bytes": _resident_bytes()}))
            wait = NEXT_SECONDS


# The process


def _own_input() -> BinaryIO:
    """Moves standard input to another descriptor. A process that a run starts does not inherit this descriptor."""
    orders = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(orders, "rb")


@contextmanager
def _own_output() -> Iterator[None]:
    """Processes that start inside the `with` block, and their children, write to this process's current output.

    During a run, the current output is the run's compute log, to which Dagster redirects descriptors 1 and 2. If the
    JVM inherited descriptors 1 and 2 themselves, the JVM would always write to their original targets.
    """
    reading, writing = os.pipe()
    kept = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(writing, number)
    os.close(writing)
    started = threading.Event()

    def copy() -> None:
        while data := os.read(reading, 65_536):
            with suppress(OSError):
                os.write(2 if started.is_set() else kept[1], data)

    threading.Thread(target=copy, name="output", daemon=True).start()
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
        started.set()


def _end_with(parent: int) -> None:
    """Makes this process end when the supervisor ends, even during a run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _listen(orders: BinaryIO, put: Callable[[Message], None]) -> None:
    for line in orders:
        order = decoded(line)
        if "terminate" in order:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            with suppress(Exception):  # the worker is killed anyway
                interrupt_jobs(SparkSession.builder.getOrCreate())
        else:
            put(order)
    os.killpg(0, signal.SIGKILL)


def _resident_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


# Definitions and Spark


class _Loaded(ReconstructableRepository):
    """A repository that is loaded only once. Dagster's own class loads the repository again for each job and
    selection.
    """

    @classmethod
    def of(cls, origin: RepositoryPythonOrigin) -> "_Loaded":
        return cls(
            origin.code_pointer,
            container_image=origin.container_image,
            executable_path=origin.executable_path,
            entry_point=origin.entry_point,
            container_context=origin.container_context,
        )

    def get_definition(self) -> RepositoryDefinition:
        if self.repository_load_data is not None:  # Dagster computed these definitions for this run
            return super().get_definition()
        return _definition_of(self.pointer)

    def __hash__(self) -> int:
        return hash(self.pointer)


@cache
def _definition_of(pointer: CodePointer) -> RepositoryDefinition:
    return ReconstructableRepository(pointer).get_definition()


def _started(instance: dg.DagsterInstance, repository: _Loaded, start: Message) -> SparkSession:
    """The session of the sources with this configuration, ready for a run."""
    job = repository.get_definition().get_job(start["job"])
    names = [name for name in job.resource_defs if name.endswith("_slots")]
    wanted = with_requirements(job.resource_defs, names)
    with dg.build_resources(wanted, instance=instance) as resources:
        found = (getattr(resources, name) for name in names)
        spark = next(
            io.spark.started(resident=True)
            for io in found
            if isinstance(io, SlotIOManager)
            and isinstance(io.spark, SlotSpark)
            and spark_digest(io.spark) == start["spark"]
        )
    fresh = fresh_session(spark)
    warm_up(fresh)
    return fresh


# Runs


def _execute(instance: dg.DagsterInstance, repository: _Loaded, order: Message) -> None:
    """Executes a run with the same events as if the run had a process of its own."""
    run = instance.get_run_by_id(order["run"])
    if run is None:
        return
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run)
        return
    pid = os.getpid()
    with capture_interrupts(), suppress(BaseException):  # the error has been written to the run's events
        instance.report_engine_event(
            f"Started process for run (pid: {pid}).", run, EngineEventData.in_process(pid)
        )
        try:
            # Select from the job as Dagster does, so that Dagster's cache of jobs serves runs with the same selection.
            job = repository.get_reconstructable_job(order["job"]).get_subset(
                op_selection=run.resolved_op_selection,
                asset_selection=run.asset_selection,
                asset_check_selection=run.asset_check_selection,
            )
            for _ in core_execute_run(job, run, instance, inject_env_vars=False):
                pass
        finally:
            instance.report_engine_event(f"Process for run exited (pid: {pid}).", run)


if __name__ == "__main__":
    main()
