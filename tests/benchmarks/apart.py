"""Runs a function in a separate process, and measures the memory of the process and its children.

`python -m tests.benchmarks.apart` reads the pickled function and its arguments from its standard input, since
credentials must not be arguments of a program.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal, TypeVar

from tests.benchmarks.processes import tree

T = TypeVar("T")
Role = Literal["driver", "jvm", "worker"]
LOOK_SECONDS = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak resident bytes of three processes: the driver's Python process, its JVM, and its largest Python worker."""

    driver: int
    jvm: int = 0
    worker: int = 0

    @property
    def total(self) -> int:
        """The sum of the three numbers of bytes."""
        return self.driver + self.jvm + self.worker

    def __str__(self) -> str:
        parts = [f"{self.driver >> 20:,} MB" + (" Python" if self.jvm else "")]
        if self.jvm:
            parts.append(f"{self.jvm >> 20:,} MB JVM")
        if self.worker:
            parts.append(f"each worker {self.worker >> 20:,} MB")
        return ", ".join(parts)


def apart(function: Callable[..., T], *arguments: Any) -> tuple[T, Memory]:
    """The result of `function(*arguments)` in a new process, and the memory of the new process.

    The function, its arguments and its result must be picklable.
    """
    command = [sys.executable, "-m", "tests.benchmarks.apart"]
    peaks: dict[Role, int] = {"driver": 0, "jvm": 0, "worker": 0}
    ended = Event()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        watcher = Thread(target=_watch, args=(process.pid, peaks, ended))
        watcher.start()
        try:
            answer, _ = process.communicate(pickle.dumps((function, arguments)))
        finally:
            ended.set()
            watcher.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, function.__name__)
    return pickle.loads(answer), Memory(**peaks)


def _watch(root: int, peaks: dict[Role, int], ended: Event) -> None:
    while not ended.wait(LOOK_SECONDS):
        for process in tree(root):
            role = "driver" if process.pid == root else _role(process.command)
            if role:
                peaks[role] = max(peaks[role], peak(process.pid))


def _role(command: bytes) -> Role | None:
    if b"pyspark.daemon" in command or b"pyspark.worker" in command:
        return "worker"
    return "jvm" if command.split(b"\0")[0].endswith(b"java") else None


def peak(pid: int) -> int:
    """The largest number of resident bytes until now, or 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def _main() -> None:
    # Other output, for example of Spark, must not get into the answer.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        function, arguments = pickle.load(sys.stdin.buffer)
        pickle.dump(function(*arguments), answers)
    # After the last answer, threads of obstore may still run. They can abort an interpreter that is being finalized.
    os._exit(0)


if __name__ == "__main__":
    _main()
