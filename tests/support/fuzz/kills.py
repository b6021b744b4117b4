"""Processes of the fuzz run. The processes are started, killed with SIGKILL by a plan, and restarted as by a
supervisor.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(slots=True, kw_only=True)
class Supervised:
    """One process. `forever`: the process is also restarted if it ends by itself, at most `restarts_max` times."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    forever: bool = True
    done: bool = False
    process: subprocess.Popen[bytes] | None = None
    crashes: int = 0
    restarts_max: int = 2

    def reconcile(self) -> None:
        """Starts the process if it should run and is not running."""
        if self.done or (self.process is not None and self.process.poll() is None):
            return
        code = self.process.returncode if self.process is not None else None
        if code == 0 and not self.forever:
            self.done = True
            return
        if code is not None and code != -signal.SIGKILL:
            self.crashes += 1
            assert self.crashes <= self.restarts_max, f"{self.name} ended by {code}: {self.tail()}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )

    def kill(self) -> bool:
        """Kills the process; returns True if it was running."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.kill()
        self.process.wait()
        return True

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""


@dataclass(slots=True, kw_only=True)
class Killer:
    """Kills processes by a plan, which is drawn from a seed.

    Each kill comes after a certain share of the work, so the plan does not depend on the clock. To kill a Dagster run,
    the killer waits until a run exists, and then for a random delay.
    """

    seed: int
    count: int
    services: Mapping[str, Supervised]
    runs: Callable[[], Sequence[int]]
    killed: list[str] = field(default_factory=list)
    _plan: list[tuple[float, str]] = field(default_factory=list)
    _delays: list[float] = field(default_factory=list)
    _run_dies_at: float | None = None

    def __post_init__(self) -> None:
        draw = random.Random(f"kills {self.seed}")
        victims = [*self.services, "run"]
        # Each process is killed once. More victims are chosen at random.
        names = [*victims, *draw.choices(victims, k=max(0, self.count - len(victims)))]
        draw.shuffle(names)
        self._plan = sorted((draw.uniform(0.05, 1), name) for name in names if name != "run")
        # A run takes at least 10 s. If every run were killed, none would be done.
        self._delays = [draw.uniform(1, 12) for name in names if name == "run"][:4]

    @property
    def over(self) -> bool:
        return not self._plan and not self._delays

    def strike(self, share: float, elapsed: float) -> None:
        """Kills the processes whose turn in the plan has come. `share`: the share of the work that is done."""
        while self._plan and self._plan[0][0] <= share:
            _, name = self._plan.pop(0)
            if self.services[name].kill():
                self.killed.append(f"{name} at {elapsed:.0f} s")
        if not self._delays or not (pids := self.runs()):
            self._run_dies_at = None
        elif self._run_dies_at is None:
            self._run_dies_at = time.monotonic() + self._delays[0]
        elif time.monotonic() >= self._run_dies_at:
            os.kill(pids[0], signal.SIGKILL)
            self.killed.append(f"run at {elapsed:.0f} s")
            self._delays.pop(0)
            self._run_dies_at = None
