"""The supervisor with real processes, without Dagster and Spark in them: claims of runs, and their reports."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import RepositoryPythonOrigin
from dagster._core.test_utils import create_run_for_test
from dagster._serdes import serialize_value

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.process import command_of
from s3notify_platform.orchestration.warm import supervisor
from s3notify_platform.orchestration.warm.handover import Home, NobodyThereError, WorkerKey
from s3notify_platform.orchestration.warm.supervisor import Limits, Supervisor
from tests.support.waiting import until

ORIGIN = RepositoryPythonOrigin(executable_path=sys.executable, code_pointer=ModuleCodePointer("any", "any"))
KEY = WorkerKey(location="any", origin=serialize_value(ORIGIN), spark="s", server_id="1")
TOY = (str(Path(__file__).parents[3] / "support" / "programs" / "toy_worker.py"),)


@dataclass
class Running:
    """A supervisor and its log lines."""

    instance: dg.DagsterInstance
    home: Home
    lines: list[str] = field(default_factory=list)

    def ask(
        self, do: str, run: str = "", *, job: str = "works", key: WorkerKey = KEY, backfill: str = ""
    ) -> bool:
        message = {"do": do, "run": run, "job": job, "key": key.message(), "backfill": backfill}
        return self.home.ask(message)["yes"]

    def new_run(self) -> str:
        return create_run_for_test(self.instance, job_name="any", status=DagsterRunStatus.STARTED).run_id

    def handed_over(self, job: str, *, key: WorkerKey = KEY, backfill: str = "") -> str:
        """Waits for a ready worker, hands a new run over to it, and returns the run."""
        run = self.new_run()
        taken = partial(self.ask, "run", run, job=job, key=key, backfill=backfill)
        until(taken, why=lambda: str(self.lines))
        return run

    def ended(self, run: str) -> tuple[DagsterRunStatus, str]:
        """Returns the status and the message with which a run was reported."""
        until(lambda: self.instance.get_run_by_id(run).is_finished, why=lambda: str(self.lines))
        until(lambda: self.home.claimant(run) is None)
        (event,) = [e.dagster_event for e in self.instance.all_logs(run) if e.dagster_event.is_job_event]
        return self.instance.get_run_by_id(run).status, event.message

    def workers(self) -> list[int]:
        """Processes that were started and have not ended, oldest first."""
        pids = [int(line.split()[1]) for line in self.lines if line.endswith("starts")]
        return [pid for pid in pids if command_of(pid)]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as found:
        yield found


@contextmanager
def supervised(instance: dg.DagsterInstance, limits: Limits = Limits()) -> Iterator[Running]:  # noqa: B008
    found = Running(instance, Home(Path(instance.root_directory)))
    stop = threading.Event()
    serving = threading.Thread(
        target=Supervisor(instance, limits=limits, say=found.lines.append, worker=TOY).run, args=[stop]
    )
    serving.start()
    until(lambda: found.lines)
    try:
        yield found
    finally:
        stop.set()
        serving.join(30)
        assert not serving.is_alive()
        assert not found.workers()


def test_a_ready_worker_takes_a_run(instance: dg.DagsterInstance) -> None:
    """The first request only starts a worker, for later runs. A repeated request must get the same answer."""
    with supervised(instance) as it:
        assert not it.ask("run", it.new_run())
        first = it.handed_over("works")
        until(lambda: it.home.claimant(first) is None)
        second = it.handed_over("waits")
        assert it.home.claimant(second) == "warm"
        assert it.ask("run", second)
        assert it.ask("look", second)
        assert not it.ask("look", first)
        assert not it.ask("run", it.new_run())  # all workers are busy
        assert len(it.workers()) == 1


def test_runs_of_a_backfill_wait_for_its_busy_worker(instance: dg.DagsterInstance) -> None:
    """Only runs of the worker's backfill may wait. The waiting runs must be executed one after another, and each of
    them can be terminated.
    """
    with supervised(instance, Limits(terminate_seconds=0.3)) as it:
        first = it.handed_over("waits", backfill="b")
        runs = [it.new_run() for _ in range(4)]
        assert not it.ask("run", it.new_run(), backfill="c")
        assert not it.ask("run", it.new_run())
        assert all(it.ask("run", run, backfill="b") for run in runs)
        assert it.ask("run", runs[2], backfill="b"), "the same answer"
        assert it.ask("look", runs[3])
        assert it.ask("terminate", runs[3])
        assert it.ended(runs[3])[0] is DagsterRunStatus.CANCELED
        assert not it.ask("look", runs[3])
        assert {it.home.claimant(run) for run in runs[:3]} == {"warm"}
        # The worker of this run ends, and the next worker gets the other runs.
        assert it.ask("terminate", first)
        for run in runs[:3]:
            until(lambda run=run: it.home.claimant(run) is None, why=lambda: str(it.lines))
        assert len([line for line in it.lines if line.endswith("starts")]) == 2
        assert {instance.get_run_by_id(run).status for run in runs[:3]} == {DagsterRunStatus.STARTED}


def test_runs_that_wait_for_long_get_another_worker(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a stuck run would block its backfill. The limit of workers also applies to the new worker."""
    monkeypatch.setattr(supervisor, "BACKFILL_WAIT_SECONDS", 0.0)
    with supervised(instance, Limits(workers=2)) as it:
        it.handed_over("stuck", backfill="b")
        (first,) = it.workers()
        for _ in range(3):
            run = it.new_run()
            assert it.ask("run", run, backfill="b")
            until(lambda run=run: it.home.claimant(run) is None, why=lambda: str(it.lines))
        assert len(it.workers()) == 2
        stuck = it.new_run()
        assert it.ask("run", stuck, job="waits", backfill="b")
        until(lambda: it.home.claimant(stuck) == "warm")
        waits = it.new_run()
        assert it.ask("run", waits, backfill="b")
        assert it.ask("look", waits), "the limit of workers is reached"
        assert first in it.workers()


def test_surplus_idle_workers_leave(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each idle worker would keep a JVM in memory. When no run waits, one idle worker for each `WorkerKey` is
    enough.
    """
    monkeypatch.setattr(supervisor, "BACKFILL_WAIT_SECONDS", 0.0)
    with supervised(instance) as it:
        hung = it.handed_over("waits", backfill="b")
        run = it.new_run()
        assert it.ask("run", run, backfill="b")
        until(lambda: it.home.claimant(run) is None, why=lambda: str(it.lines))
        assert len(it.workers()) == 2
        assert it.ask("terminate", hung)
        it.ended(hung)
        until(lambda: len(it.workers()) == 1, why=lambda: str(it.lines))


def test_waiting_runs_move_to_the_worker_of_reloaded_code(instance: dg.DagsterInstance) -> None:
    with supervised(instance) as it:
        it.handed_over("waits", backfill="b")
        waits = it.new_run()
        assert it.ask("run", waits, backfill="b")
        it.handed_over("works", key=replace(KEY, server_id="2"))
        until(lambda: it.home.claimant(waits) is None, why=lambda: str(it.lines))
        assert instance.get_run_by_id(waits).status is DagsterRunStatus.STARTED


def test_runs_whose_worker_cannot_start_are_reported(instance: dg.DagsterInstance) -> None:
    """Only the supervisor reports these runs, so the runs would wait forever without the supervisor's report."""
    with supervised(instance) as it:
        it.handed_over("waits", backfill="b")
        waits = it.new_run()
        assert it.ask("run", waits, backfill="b")
        assert not it.ask("prepare", key=replace(KEY, server_id="broken"))
        assert it.ended(waits) == (
            DagsterRunStatus.FAILURE,
            "The run failed: no warm worker could begin it.",
        )


def test_waiting_runs_are_canceled_when_the_supervisor_stops(instance: dg.DagsterInstance) -> None:
    with supervised(instance, Limits(terminate_seconds=0.3)) as it:
        it.handed_over("waits", backfill="b")
        waits = it.new_run()
        assert it.ask("run", waits, backfill="b")
    assert it.ended(waits)[0] is DagsterRunStatus.CANCELED


def test_a_claimed_run_is_not_taken(instance: dg.DagsterInstance) -> None:
    """The launcher got no answer in time, and started a process for the run. The late request must not start the run
    again.
    """
    with supervised(instance) as it:
        it.handed_over("works")
        run = it.new_run()
        assert it.home.claim(run, "cold")
        assert not it.ask("run", run)
        assert not it.home.claim(run, "warm")


def test_a_run_whose_worker_dies_is_reported_as_failed(instance: dg.DagsterInstance) -> None:
    """The report must name the signal that killed the worker, and another worker must start."""
    with supervised(instance) as it:
        status, why = it.ended(it.handed_over("dies"))
        assert status is DagsterRunStatus.FAILURE
        assert "SIGSEGV" in why
        it.handed_over("works")


@pytest.mark.parametrize("job", ["waits", "stuck"])
def test_a_terminated_run_is_canceled_and_its_worker_ends(instance: dg.DagsterInstance, job: str) -> None:
    """A worker that does not end when asked must be killed."""
    with supervised(instance, Limits(terminate_seconds=0.3)) as it:
        run = it.handed_over(job)
        (worker,) = it.workers()
        assert it.ask("terminate", run)
        assert it.ended(run)[0] is DagsterRunStatus.CANCELED
        assert not command_of(worker)
        it.handed_over("works")


def test_a_reload_replaces_the_workers_of_its_location(instance: dg.DagsterInstance) -> None:
    """Otherwise workers with old code would use memory and count toward the limit, although no later run can use them.
    A worker with a run stays until the run has ended. Workers of other locations continue.
    """
    with supervised(instance) as it:
        it.handed_over("works", key=replace(KEY, location="other"))
        busy = it.handed_over("waits")
        other, old = it.workers()
        new = replace(KEY, server_id="2")
        it.handed_over("works", key=new)
        assert it.ask("look", busy)
        assert it.ask("terminate", busy)
        until(lambda: not command_of(old))
        assert other in it.workers()
        assert len(it.workers()) == 2


@pytest.mark.parametrize(("job", "limits"), [("works", Limits(runs=1)), ("leaks", Limits())])
def test_a_worker_is_replaced_at_its_limits(instance: dg.DagsterInstance, job: str, limits: Limits) -> None:
    """Without limits, many runs or much memory in one process would slow down later runs."""
    with supervised(instance, limits) as it:
        it.handed_over(job)
        old, *_ = [
            int(line.split()[1]) for line in it.lines if line.endswith("starts")
        ]  # the successor of the worker may start
        until(lambda: not command_of(old))
        it.handed_over(job)


def test_the_number_of_workers_is_limited(instance: dg.DagsterInstance) -> None:
    """Otherwise each code location could keep a JVM of its own, until the machine has no memory left. A worker with a
    run must stay, because the run would fail without its worker.
    """
    with supervised(instance, Limits(workers=1)) as it:
        it.handed_over("works")
        (first,) = it.workers()
        other = replace(KEY, location="other")
        busy = it.handed_over("waits", key=other)
        assert not it.ask("run", it.new_run())
        assert it.ask("look", busy)
        assert first not in it.workers()
        assert sum(line.endswith("starts") for line in it.lines) == 2


def test_a_worker_that_cannot_start_is_not_restarted_repeatedly(instance: dg.DagsterInstance) -> None:
    with supervised(instance) as it:
        broken = replace(KEY, server_id="broken")
        assert not it.ask("prepare", key=broken)
        until(lambda: any("ended (3)" in line for line in it.lines))
        assert not it.ask("run", it.new_run(), key=broken)
        assert sum(line.endswith("starts") for line in it.lines) == 1


def test_the_next_supervisor_reports_the_runs_of_a_killed_supervisor(instance: dg.DagsterInstance) -> None:
    """The runs of a killed supervisor cannot continue, because its workers have ended. Runs of the default launcher
    must stay untouched.
    """
    home = Home(Path(instance.root_directory))
    home.make()
    runs = [
        create_run_for_test(instance, job_name="any", status=DagsterRunStatus.STARTED).run_id for _ in "ab"
    ]
    for run, claimant in zip(runs, ("warm", "cold"), strict=True):
        assert home.claim(run, claimant)
    with supervised(instance):
        found = [instance.get_run_by_id(run).status for run in runs]
        assert found == [DagsterRunStatus.FAILURE, DagsterRunStatus.STARTED]
        assert [home.claimant(run) for run in runs] == [None, "cold"]


def test_the_end_of_a_supervisor_terminates_its_runs(instance: dg.DagsterInstance) -> None:
    """A second supervisor of the home must be refused. A request to a supervisor that has ended must raise an error."""
    with supervised(instance, Limits(terminate_seconds=0.3)) as it:
        run = it.handed_over("stuck")
        with pytest.raises(UsageError, match="another supervisor"):
            Supervisor(instance).run(threading.Event())
    assert it.ended(run)[0] is DagsterRunStatus.CANCELED
    with pytest.raises(NobodyThereError):
        it.ask("look")


def test_a_home_may_have_a_long_path(tmp_path: Path) -> None:
    """The length of a socket's address is limited. If a supervisor used the full path of its socket, no supervisor
    could start in a home with a long path, and all runs would stay cold.
    """
    home = Home(tmp_path / ("x" * 100))
    with home.listen(), pytest.raises(Exception, match="does not answer"):
        home.ask({}, seconds=0.01)


def test_a_run_has_one_claimant(tmp_path: Path) -> None:
    """Several processes may claim a run at the same moment. If two processes succeeded, the run would start twice."""
    home, together = Home(tmp_path), threading.Barrier(8)
    home.make()
    won: list[int] = []

    def claim(number: int) -> None:
        together.wait()
        if home.claim("run", "warm" if number % 2 else "cold"):
            won.append(number)

    threads = [threading.Thread(target=claim, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert home.claimant("run") == ("warm" if won[0] % 2 else "cold")
