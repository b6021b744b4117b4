"""Warm runs in real workers with real Spark: their events and logs are the same as in a separate process. The module
also tests the ways in which a warm run ends.
"""

import json
import multiprocessing
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEventType, DagsterRun, DagsterRunStatus
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.impl import start_run_in_subprocess
from dagster._grpc.types import ExecuteExternalJobArgs
from dagster._serdes import serialize_value

from s3notify_platform.orchestration.partitions import WARM_TAG
from s3notify_platform.orchestration.warm.handover import Home, WorkerKey
from s3notify_platform.orchestration.warm.supervisor import Limits, Supervisor
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.reading import read_slots
from tests.support import warm_defs
from tests.support.checked import whole
from tests.support.servers import S3Server
from tests.support.site import Site
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(900)]

JOB = "orders_ingest"
SECONDS = 300.0


@dataclass
class Warm:
    """A source whose runs are started warm and cold."""

    site: Site
    deed: Path
    code: ReconstructableRepository
    home: Home
    lines: list[str]

    @property
    def instance(self) -> dg.DagsterInstance:
        return self.site.instance

    def new_run(self, *slots: int, asset_selection: list[str] | None = None) -> DagsterRun:
        place = ManagedGrpcPythonEnvCodeLocationOrigin(
            LoadableTargetOrigin(module_name=warm_defs.__name__), "warm"
        )
        job = self.code.get_reconstructable_job(JOB)
        return self.instance.create_run_for_job(
            job.get_definition(),
            tags=dict(job.get_definition().run_tags),
            run_config={"ops": {"orders_slots": {"config": {"slots": list(slots)}}}},
            asset_selection=frozenset(map(dg.AssetKey, asset_selection)) if asset_selection else None,
            job_code_origin=job.get_python_origin(),
            remote_job_origin=RemoteJobOrigin(RemoteRepositoryOrigin(place, "__repository__"), JOB),
        )

    def ask(self, do: str, run: DagsterRun) -> bool:
        key = WorkerKey(
            location="warm",
            origin=serialize_value(self.code.get_python_origin()),
            spark=run.tags[WARM_TAG],
            server_id="1",
        )
        return self.home.ask({"do": do, "run": run.run_id, "job": JOB, "key": key.message()})["yes"]

    def hand_over(self, run: DagsterRun) -> None:
        until(lambda: self.ask("run", run), seconds=SECONDS, why=self.why)

    def ended(self, run: DagsterRun) -> DagsterRunStatus:
        until(lambda: self.instance.get_run_by_id(run.run_id).is_finished, seconds=SECONDS, why=self.why)
        until(lambda: self.home.claimant(run.run_id) is None, seconds=SECONDS, why=self.why)
        return self.instance.get_run_by_id(run.run_id).status

    def why(self) -> str:
        log = self.home.log
        return f"{self.lines} {log.read_text()[-3000:] if log.exists() else ''}"

    def execute_cold(self, run: DagsterRun) -> DagsterRunStatus:
        """Executes a run as the code server does."""
        spawn = multiprocessing.get_context("spawn")
        arguments = ExecuteExternalJobArgs(
            job_origin=run.remote_job_origin, run_id=run.run_id, instance_ref=self.instance.get_ref()
        )
        recon_job = self.code.get_reconstructable_job(JOB)
        said, terminated = spawn.Queue(), spawn.Event()  # the variables keep both semaphores alive
        process = spawn.Process(
            target=start_run_in_subprocess,
            args=[serialize_value(arguments), recon_job, said, terminated],
        )
        process.start()
        process.join(SECONDS)
        assert process.exitcode == 0
        return self.instance.get_run_by_id(run.run_id).status

    def events(self, run: DagsterRun) -> list[tuple[str, str]]:
        """Type and message of each entry in the run's log, without the parts that differ from run to run."""
        entries = self.instance.all_logs(run.run_id)
        return [
            (entry.dagster_event.event_type_value, "")
            if entry.dagster_event
            else ("", plain(entry.user_message))
            for entry in entries
        ]

    def compute_log(self, run: DagsterRun) -> tuple[str, str]:
        (captured,) = self.instance.all_logs(run.run_id, of_type=DagsterEventType.LOGS_CAPTURED)
        data = self.instance.compute_log_manager.get_log_data(
            [run.run_id, "compute_logs", captured.dagster_event.logs_captured_data.file_key]
        )
        return (data.stdout or b"").decode(), (data.stderr or b"").decode()

    def rows(self) -> list[int]:
        """The ids of all rows of the slot asset. The asset's table and the source's table are checked, too."""
        table = self.site.io.source.location.table("derived")
        assert self.site.checked() is not None
        found = whole(table)
        assert found is not None
        rows = read_slots(
            table.reader.store, table.layout, found.packs.values(), None, arrow_schema(found.metadata.schema)
        )
        return sorted(row for batch in rows for row in batch.column("id").to_pylist())

    def processes(self, *runs: DagsterRun) -> set[str]:
        """The log lines that name the processes of these runs."""
        said = (e.message for run in runs for e in self.instance.all_logs(run.run_id))
        return {text for text in said if "Started process" in text}


def plain(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "N", text)


@pytest.fixture
def warm(
    ministack: S3Server, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Warm]:
    site = Site.of(ministack, instance, **warm_defs.ATTRIBUTES)
    s3 = site.component.s3.model_dump(exclude_none=True)
    monkeypatch.setenv(warm_defs.PLACE, json.dumps({"bucket": site.component.bucket, "s3": s3}))
    monkeypatch.setenv(warm_defs.DEED, str(tmp_path / "deed"))
    monkeypatch.setenv("DAGSTER_HOME", site.instance.root_directory)
    (tmp_path / "deed").write_text("")
    pointer = ModuleCodePointer(warm_defs.__name__, "defs", str(Path.cwd()))
    code = ReconstructableRepository(pointer, executable_path=sys.executable)
    stop, lines = threading.Event(), list[str]()
    supervisor = Supervisor(site.instance, limits=Limits(terminate_seconds=20), say=lines.append)
    serving = threading.Thread(target=supervisor.run, args=[stop])
    serving.start()
    until(lambda: lines)
    yield Warm(site, tmp_path / "deed", code, Home(Path(site.instance.root_directory)), lines)
    stop.set()
    serving.join(60)
    assert not serving.is_alive()


@pytest.mark.thorough
def test_a_warm_run_has_the_same_events_and_logs_as_a_cold_one(warm: Warm) -> None:
    """Both runs must have the same order of events and the same compute log. No run may see another run's session."""
    runs = []
    # The first run finds no table yet, so it has nothing to read again.
    for number in range(4):
        warm.site.write(3, 5, number=number)
        runs.append(run := warm.new_run(3, 5))
        if number == 3:
            assert warm.execute_cold(run) is DagsterRunStatus.SUCCESS
        else:
            warm.hand_over(run)
            assert warm.ended(run) is DagsterRunStatus.SUCCESS, warm.why()
    _, first, second, cold = runs
    assert warm.events(first) == warm.events(cold)
    assert warm.events(second) == warm.events(cold)
    assert all("derived says so" in warm.compute_log(run)[0] for run in runs)
    assert len(warm.processes(first, second)) == 1
    assert warm.rows() == [3] * 4 + [5] * 4


@pytest.mark.thorough
def test_slots_of_a_hung_or_dead_run_are_read_by_another_worker(warm: Warm) -> None:
    """A hung run is terminated, and a run fails if its worker dies. Another worker must read the slots of both runs."""
    warm.site.write(3)
    warm.deed.write_text("hang")
    warm.hand_over(hung := warm.new_run(3))
    until(lambda: warm.deed.read_text() == "hangs", seconds=SECONDS, why=warm.why)
    warm.instance.report_run_canceling(hung)  # the launcher reports the termination in the same way
    assert warm.ask("terminate", hung)
    assert warm.ended(hung) is DagsterRunStatus.CANCELED
    warm.deed.write_text("die")
    warm.hand_over(dead := warm.new_run(3))
    assert warm.ended(dead) is DagsterRunStatus.FAILURE
    assert any("SIGSEGV" in event.message for event in warm.instance.all_logs(dead.run_id))
    warm.deed.write_text("")
    warm.hand_over(last := warm.new_run(3, asset_selection=["orders", "derived"]))
    assert warm.ended(last) is DagsterRunStatus.SUCCESS
    assert warm.rows() == [3]
    assert len(warm.processes(hung, dead, last)) == 3
