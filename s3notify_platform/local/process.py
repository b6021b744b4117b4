"""Processes and ports of this machine."""

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import UnavailableError, UsageError

HOST = "127.0.0.1"

GRPC_OFFSET = 10_000
"""SeaweedFS uses two ports: the given port, and a port for gRPC. The number of the gRPC port is higher by this
offset.
"""

_LOWEST, _COUNT = 10_000, 12_000
# The port and the gRPC port are both below 32768, because Linux uses ports from 32768 on for outgoing connections.


def ports_are_free(ports: Iterable[int]) -> bool:
    """True if each of `ports`, and its gRPC port, can be bound on loopback now."""
    return all(map(_is_free, (number for port in ports for number in (port, port + GRPC_OFFSET))))


def refuse_taken(port: int, option: str) -> None:
    """Raises `UsageError`, which names port and option, if something listens on this port of loopback."""
    if not _is_free(port):
        raise UsageError(f"port {port} on {HOST} is taken: end what listens there, or give another {option}")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True


def locked(path: Path) -> IO[str] | None:
    """Opens and locks the lock file; None if another process holds the lock. The lock ends when the file is closed, or
    when this process ends in any way.
    """
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def free_ports(count: int, clock: Clock) -> list[int]:
    """`count` ports that are free together with their gRPC ports."""
    found: list[int] = []
    for _ in range(1000):
        port = _LOWEST + int.from_bytes(clock.random_bytes(4), "little") % _COUNT
        if port not in found and ports_are_free([port]):
            found.append(port)
        if len(found) == count:
            return found
    raise UnavailableError(f"no {count} free ports between {_LOWEST} and {_LOWEST + _COUNT}")


def command_of(pid: int) -> str:
    """The command line of a living process; empty if the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        if Path("/proc/self").exists():
            return ""
    # macOS has no /proc.
    asked = subprocess.run(
        ["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def alive_with(pid: int, argument: str) -> bool:
    """True if `pid` is alive and was started with `argument`. The pid alone proves nothing, because it may now belong
    to another process.
    """
    return argument in command_of(pid)


def end_process(pid: int, seconds: float, clock: Clock) -> None:
    """Sends SIGTERM, then SIGKILL after `seconds`, and waits until the process is gone. The function must not be used
    for children of this process.
    """
    ends = clock.monotonic() + seconds
    last = ends + 5.0
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while command_of(pid):
            if clock.monotonic() > ends:
                os.kill(pid, signal.SIGKILL)
                ends = last
            if clock.monotonic() > last:
                raise UnavailableError(f"process {pid} does not end")
            clock.sleep(0.05)
