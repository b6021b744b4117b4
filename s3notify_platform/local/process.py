"""Processes and ports of this machine."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from s3notify_platform.clock import Clock
from s3notify_platform.errors import UnavailableError

GRPC_OFFSET = 10_000
"""SeaweedFS also uses each port number plus this."""

_LOWEST, _COUNT = 10_000, 12_000
# Port and gRPC port both lie below 32768, where Linux starts to give ports to outgoing connections.


def ports_are_free(ports: Iterable[int]) -> bool:
    """Whether each of `ports`, and its gRPC port, can be bound on 127.0.0.1 now."""
    with ExitStack() as held:
        for port in ports:
            for number in (port, port + GRPC_OFFSET):
                taken = held.enter_context(socket.socket())
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    taken.bind(("127.0.0.1", number))
                except OSError:
                    return False
    return True


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
    """The command line of a living process; empty if there is none, or it is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        if Path("/proc/self").exists():
            return ""
    # No /proc: macOS.
    asked = subprocess.run(
        ["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def alive_with(pid: int, argument: str) -> bool:
    """Whether `pid` is alive and was started with `argument`: the number alone may belong to another process by now."""
    return argument in command_of(pid)


def end_process(pid: int, seconds: float, clock: Clock) -> None:
    """SIGTERM, SIGKILL after `seconds`, and wait until it is gone. Not for children of this process."""
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
