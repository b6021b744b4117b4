"""The same program runs on a standalone cluster and through Spark Connect. Only the configuration differs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyspark
import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support import spark_options
from tests.support.servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.server]

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
SLOW_MACHINE_SECONDS = 120
LIMIT_SECONDS = 560
MARKED = "7.jsonl"
ENVIRONMENT = (
    os.environ
    | spark_options.ENVIRONMENT
    | {
        "SPARK_HOME": str(SPARK_HOME),
        # The processes listen only on loopback, and use the Python that has this package's dependencies.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
    }
)


@contextlib.contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program, with all processes that it starts, during the block."""
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdout=out, stderr=out, env=ENVIRONMENT, cwd=log.parent, start_new_session=True
        ) as started,
    ):
        try:
            yield started
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(started.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(10)


def wait_for(port: int, log: Path, started: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + SLOW_MACHINE_SECONDS
    while time.monotonic() < ends and started.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    pytest.fail(f"nothing listens on {port}: {log.read_text()[-2000:]}")


def run_program(
    bucket: S3Config, program: str = "tests.support.programs.clusters", **session: str
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", program],
        input=json.dumps({"bucket": asdict(bucket), "session": session}),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=ROOT,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def bucket(ministack: S3Server) -> S3Config:
    config = ministack.config(ministack.make_bucket())
    store = S3ObjectStore(config)
    for number in range(12):
        store.put(f"raw/{number}.jsonl", b'{"id": %d}\n' % number)
    return config


EXPECTED_IDS = [2, 5, 6, 7, 8, 9, 10, 11, 42, 100]
IN_BUCKET = sorted([*EXPECTED_IDS, 41])
EXPECTED = {"ids": EXPECTED_IDS, "read": IN_BUCKET, "streamed": EXPECTED_IDS, "twice": [84], "parallelism": 2}


@contextlib.contextmanager
def standalone(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A master with two workers of one core each; yields its URL and the workers."""
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    port, *webs = free_ports(4, SYSTEM_CLOCK)
    with contextlib.ExitStack() as stack:
        log = tmp_path / "master.log"
        master = process(
            log, spark_class, "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(webs[0]),
        )  # fmt: skip
        wait_for(port, log, stack.enter_context(master))
        workers = []
        for number in (1, 2):
            worker = process(
                tmp_path / f"worker{number}.log", spark_class, "org.apache.spark.deploy.worker.Worker",
                "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", str(webs[number]),
                "--work-dir", str(tmp_path / f"work{number}"), f"spark://127.0.0.1:{port}",
            )  # fmt: skip
            workers.append(stack.enter_context(worker))
        yield f"spark://127.0.0.1:{port}", workers


ON_STANDALONE = {"spark.driver.host": "127.0.0.1", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}


@pytest.mark.thorough
def test_standalone_cluster_gets_the_package(bucket: S3Config, tmp_path: Path) -> None:
    """Tasks run in the processes of the workers, so the program must send the platform's package to the workers."""
    with standalone(tmp_path) as (url, _):
        found = run_program(bucket, master=url, **ON_STANDALONE)
        ran_in = [list(work.glob("app-*/*/stderr")) for work in tmp_path.glob("work[12]")]
    assert "s3notify_platform.zip" in found.pop("package")[0]["path"]
    assert found == EXPECTED | {"remote": False}
    assert len(ran_in) == 2
    assert all(ran_in), "each worker ran an executor"


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1ms",
}


class Meddler:
    """Disturbs a task that reads the object `MARKED`: kills the executors, or waits until a second attempt of the task
    has begun.

    The program writes the object `arm/kill` or `arm/twice` before a read that the meddler must disturb. After
    `arm/kill-pack`, the meddler kills the executors when a task reads a pack.
    """

    def __init__(self, workers: list[subprocess.Popen[bytes]]) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._armed = ""
        self._second = threading.Event()
        self.killed = 0
        self.doubled = 0

    def before(self, method: str, path: str, _headers: dict[str, str]) -> None:
        if method == "PUT" and "/arm/" in path:
            self._armed = path.rpartition("/")[2]
        elif method == "GET" and ("/table/data/" if self._armed == "kill-pack" else f"/{MARKED}") in path:
            with self._lock:
                armed, self._armed = self._armed, {"twice": "second"}.get(self._armed, "")
            if armed.startswith("kill"):
                self._kill()
            elif armed == "twice":
                self._second.clear()
                self.doubled += self._second.wait(SLOW_MACHINE_SECONDS)
            elif armed == "second":
                self._second.set()

    def _kill(self) -> None:
        """Sends SIGKILL to every executor, including the executor of the reading task. Both workers then start another
        executor.
        """
        workers = {worker.pid for worker in self._workers}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if (
                    parent in workers
                    and b"CoarseGrainedExecutorBackend" in (stat.parent / "cmdline").read_bytes()
                ):
                    os.kill(int(stat.parent.name), signal.SIGKILL)
                    self.killed += 1


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_lost_executors_and_duplicate_tasks_change_no_row(ministack: S3Server, tmp_path: Path) -> None:
    """Otherwise rows would be lost if an executor dies, or doubled if a task runs twice. `Ingest.run`, the data source
    and the stream are tested.
    """
    bucket = ministack.config(ministack.make_bucket())
    with standalone(tmp_path) as (url, workers), FaultProxy(ministack.endpoint_url) as proxy:
        meddler = Meddler(workers)
        proxy.before = meddler.before
        found = run_program(
            replace(bucket, endpoint_url=proxy.url),
            "tests.support.programs.lost_executors",
            master=url,
            **ON_STANDALONE,
            **SPECULATION,
        )
    assert found == {"exact": ["ingest", "stream", "ingest again", "batch", "stream again"]}
    assert meddler.killed >= 2
    assert meddler.doubled == 2


@pytest.mark.thorough
def test_spark_connect_ingests_and_reads(bucket: S3Config, tmp_path: Path) -> None:
    """The Spark session is in another process, which the program reaches over gRPC. Code that needs the session in the
    program's own process would fail here.
    """
    port, driver = free_ports(2, SYSTEM_CLOCK)
    settings = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.port": str(driver),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.default.parallelism": "2",
    }
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    log = tmp_path / "connect.log"
    server = process(
        log, str(SPARK_HOME / "bin" / "spark-submit"),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        *confs, "spark-internal",
    )  # fmt: skip
    with server as started:
        wait_for(port, log, started)
        found = run_program(bucket, remote=f"sc://127.0.0.1:{port}")
    assert "s3notify_platform.zip" in found.pop("package")[0]["path"]
    assert found == EXPECTED | {"remote": True}
