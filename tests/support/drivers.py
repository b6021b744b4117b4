"""A long-lived driver for tests (`programs.ingest`). A test can kill the driver with all its processes, or only one
worker.
"""

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fuzz.kills import ROOT

WAIT_SECONDS = 240.0


@dataclass
class Driver:
    """A process that does one run after another, as a test asks. When the process ends, all processes that it started
    end, too.
    """

    config: dict[str, Any]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        command = [sys.executable, "-m", "tests.support.programs.ingest", json.dumps(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **self.environment}, start_new_session=True, bufsize=0,
            )  # fmt: skip
        self.restarts += 1
        assert "ready" in (self.answer(WAIT_SECONDS) or {}), self.tail()

    def tell(self, run: dict[str, Any]) -> None:
        self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(run).encode() + b"\n")

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The next line of the driver's output; None if there is no line yet."""
        assert self.process is not None
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        line = self.process.stdout.readline()
        assert line, f"the driver ended: {self.tail()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def workers(self) -> list[int]:
        """The Python workers of this driver. A worker is found through its parent processes."""
        assert self.process is not None
        parents: dict[int, int] = {}
        commands: dict[int, bytes] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, IndexError, ValueError):
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    # A process that ends before the second read is omitted.
                    command = (entry / "cmdline").read_bytes()
                    parents[int(entry.name)], commands[int(entry.name)] = int(stat[1]), command
        daemons = {pid for pid in parents if b"pyspark.daemon" in commands[pid]}

        def ours(pid: int) -> bool:
            while pid := parents.get(pid, 0):
                if self.process is not None and pid == self.process.pid:
                    return True
            return False

        return [pid for pid in daemons if parents[pid] in daemons and ours(pid)]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]
