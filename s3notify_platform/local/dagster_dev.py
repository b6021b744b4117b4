"""Runs `dagster dev` on this machine, with the supervisor of warm runs, and restarts processes that end.

A lock in the home ensures that only one process serves the home at a time. Without the lock, two daemons on one home
would launch and end each other's runs.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import IO, Final, Self

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.local.process import HOST, alive_with, locked, refuse_taken

RESTARTS_MAX: Final = 20
DEV_STOP_SECONDS: Final = 15.0
_MAKE_STORAGE: Final = "import dagster\nwith dagster.DagsterInstance.get(): pass"
WARM_SECONDS: Final = 10.0
"""Shortest time between two starts of the supervisor of warm runs. While no supervisor runs, each run starts a process
of its own.
"""

LOG_BYTES_MAX: Final = 16 << 20
"""Maximum size of a log. A longer log is renamed to `dagster.log.1`, and a new log begins."""

QUIET: Final = "ignore:Class `,ignore:Parameter `,ignore:Function `"
"""Dagster's warnings about its beta and superseded features, in the form of PYTHONWARNINGS."""

EVENTS_AT_ONCE: Final = 1000
"""Maximum number of events that Dagster stores in one transaction, if the events arrive together."""

INSTANCE: Final = """\
telemetry:
  enabled: false
nux:
  enabled: false
run_coordinator:
  module: s3notify_platform.orchestration.warm
  class: PromptRunCoordinator
  config:
    max_concurrent_runs: 10
    # Each run of a source has its own Spark; inlets and outlets are runs that do not end.
    tag_concurrency_limits: [{key: s3notify/source, limit: 2}]
    dequeue_interval_seconds: 1
run_launcher:
  module: s3notify_platform.orchestration.warm
  class: WarmRunLauncher
# A tick watches the bucket for most of the five seconds between two ticks. At most half of these threads do so.
sensors: {use_threads: true, num_workers: 8}
"""


def storage(home: Path) -> str:
    """The lines of a home's `dagster.yaml` that choose the storage of events. A file with another storage lacks
    these lines.

    The lines contain the home's path, so an instance can be opened without `DAGSTER_HOME`. After a home is moved, the
    file needs the new path.
    """
    place = f"  config: {{home: {json.dumps(str(home.resolve()))}}}\n"
    return (
        "event_log_storage:\n"
        "  module: s3notify_platform.orchestration.event_log\n"
        f"  class: BatchedSqliteEventLog\n{place}"
    )


_LOAD: Final = """\
import sys
from s3notify_platform.definitions import defs
try:
    defs()
except Exception as error:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    sys.exit(str(error).replace("^", "").rstrip() + "\\n" + str(cause) if cause is not error else str(error))
"""


def definitions_problem(environment: Mapping[str, str]) -> str:
    """The reason why the definitions that `environment` names cannot be loaded; "" if they can. The check starts a
    process.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _LOAD], env=environment, capture_output=True, text=True, check=False
    )
    return ran.stderr.strip() if ran.returncode else ""


def check_installed() -> None:
    """Raises `UsageError` if Dagster's UI is not installed."""
    if importlib.util.find_spec("dagster_webserver") is None:
        raise UsageError("Dagster's UI is not installed: pip install 's3notify-platform[local]'")


class DagsterDev:
    """`dagster dev` on loopback: webserver, daemon and code server, with `home` as its DAGSTER_HOME.

    `dagster dev` has its own process group, so its servers and runs end with it. The supervisor of warm runs (`s3notify
    warm`) runs beside `dagster dev`. The supervisor and its workers end when this process ends.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int,
        environment: Mapping[str, str],
        module: str = "s3notify_platform.definitions",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.home = home.resolve()
        self.port = port
        self.restarts = 0
        self._environment = environment
        self._module = module
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._warm: subprocess.Popen[bytes] | None = None
        self._warm_since = 0.0
        self._stopping = Event()
        # `Thread.join` is not called here: if `join` is interrupted, CPython 3.11 treats a running thread as ended.
        self._watched = Event()
        self._watcher: Thread | None = None
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """The address of the UI."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id of `dagster dev`, which changes with a restart."""
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        """The file with the output of all Dagster's processes; the file's size is limited to `LOG_BYTES_MAX`."""
        return self.home / "dagster.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts Dagster, and returns before the UI answers; `wait_ready` waits for the UI.

        `UsageError`, before anything is started or ended, if another process serves the home, or if the port is taken.
        """
        check_installed()
        self.home.mkdir(parents=True, exist_ok=True)
        self._lock = locked(self.home / "dagster.lock")
        if self._lock is None:
            raise UsageError(
                f"home {self.home} is served by another process (dagster dev: pid {self._recorded_pid()}): "
                "end that one, or give another --home"
            )
        try:
            if not (self.home / "dagster.yaml").exists():
                (self.home / "dagster.yaml").write_text(INSTANCE + storage(self.home))
            self._end_leftover()
            refuse_taken(self.port, "--port")
            self._make_storage()
            self._spawn_warm()
            self._spawn()
        except BaseException:
            self.stop()
            raise
        self._watcher = Thread(target=self._watch, name="dagster-dev", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """Stops `dagster dev` and all processes that it started."""
        self._stopping.set()
        if self._watcher is not None:
            self._watched.wait()
            self._watcher = None
        self._end(self._process)
        self._end(self._warm)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Returns when the UI answers; `UnavailableError`, which names the log, after `seconds`."""
        ends = self._clock.monotonic() + seconds
        url = f"{self.url}/server_info"
        while self._clock.monotonic() < ends:
            with suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own, on loopback
                return
            self._clock.sleep(0.3)
        raise UnavailableError(
            f"dagster dev did not answer at {self.url} within {seconds:.0f} s; see {self.log}"
        )

    def wait(self) -> None:
        """Returns when `dagster dev` has been stopped. `UnavailableError` if `dagster dev` has ended more than
        `RESTARTS_MAX` times.
        """
        self._watched.wait()
        if not self._stopping.is_set():
            raise UnavailableError(f"dagster dev ended {self.restarts + 1} times; see {self.log}")

    def _make_storage(self) -> None:
        """Creates Dagster's storage in one process. If two processes create the storage at the same time, both may
        write the storage's version, and no process can open such a storage.
        """
        if not (self.home / "schedules" / "schedules.db").exists():
            self._spawned(["-c", _MAKE_STORAGE], subprocess.DEVNULL).wait()

    def _spawn(self) -> None:
        command = ["-m", "dagster", "dev", "-m", self._module, "-h", HOST, "-p", str(self.port)]
        # At a lower level, each tick writes a line, even if nothing changes.
        self._process = self._spawned([*command, "--log-level", "warning"], subprocess.DEVNULL)
        self._pidfile.write_text(str(self._process.pid))

    def _spawn_warm(self) -> None:
        # The supervisor ends when its input is closed: by this process, or by the system if this process is killed.
        command = ["-m", "s3notify_platform.cli", "warm", "--home", str(self.home), "--until-input-ends"]
        self._warm = self._spawned(command, subprocess.PIPE)
        self._warm_since = self._clock.monotonic()

    def environment(self) -> dict[str, str]:
        """The environment of Dagster's processes."""
        batched = {"DAGSTER_EVENT_BATCH_SIZE": str(EVENTS_AT_ONCE)}
        found = {**batched, **os.environ, **self._environment, "DAGSTER_HOME": str(self.home)}
        found["PYTHONWARNINGS"] = ",".join(filter(None, (QUIET, found.get("PYTHONWARNINGS"))))
        return found

    def _spawned(self, arguments: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=self.environment(),
                stdin=stdin,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _pidfile(self) -> Path:
        return self.home / "dagster.pid"

    def _end_leftover(self) -> None:
        """Ends the processes of a killed parent: two daemons must not share one home."""
        pid = self._recorded_pid()
        if pid is not None and alive_with(pid, "dagster dev"):
            self._end_group(pid)

    def _recorded_pid(self) -> int | None:
        with suppress(OSError, ValueError):
            return int(self._pidfile.read_text())
        return None

    def _watch(self) -> None:
        try:
            self._restart()
        finally:
            self._watched.set()

    def _restart(self) -> None:
        while not self._stopping.wait(0.5):
            with suppress(OSError):  # the log may be removed, and the disk may be full
                if self.log.stat().st_size > LOG_BYTES_MAX:
                    shutil.copyfile(self.log, f"{self.log}.1")
                    os.truncate(self.log, 0)  # all processes append to the log
            if self._warm is not None and self._warm.poll() is not None:
                self._end(self._warm)
                if self._clock.monotonic() - self._warm_since > WARM_SECONDS:
                    self._spawn_warm()
            process = self._process
            if process is None or process.poll() is None:
                continue
            self._end(process)
            if self.restarts >= RESTARTS_MAX:
                return
            self.restarts += 1
            self._spawn()

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        self._end_group(process.pid)
        with suppress(subprocess.TimeoutExpired):
            process.wait(DEV_STOP_SECONDS)

    def _end_group(self, group: int) -> None:
        """Sends SIGTERM to the whole group, and SIGKILL to the remaining processes after `DEV_STOP_SECONDS`."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            ends = self._clock.monotonic() + DEV_STOP_SECONDS
            while self._clock.monotonic() < ends:
                try:
                    os.killpg(group, sent if ends - self._clock.monotonic() > DEV_STOP_SECONDS - 0.1 else 0)
                except (ProcessLookupError, PermissionError):
                    return
                for process in filter(None, (self._process, self._warm)):
                    process.poll()  # a zombie would keep the group alive
                self._clock.sleep(0.2)
