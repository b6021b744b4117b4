"""A process takes one of a machine's places before it starts Spark. So the number of places limits the Spark sessions,
even if processes are killed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import locked
from s3notify_platform.orchestration import session_places
from s3notify_platform.orchestration.session_places import take_place

TAKES = """
import sys
from pathlib import Path
from s3notify_platform.orchestration.session_places import take_place
take_place(int(sys.argv[2]), print, folder=Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""
STARTS_SPARK = """
import logging
logging.basicConfig(level=logging.INFO)
from s3notify_platform.orchestration.resources import SlotSpark
SlotSpark(max_sessions=1).spark_session
"""


class Holders:
    """Processes that have a place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, limit: int) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", TAKES, str(self.folder), str(limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        self.processes.append(process)
        assert process.stdout.readline() == "taken\n"

    def kill(self) -> None:
        process = self.processes.pop(0)
        process.kill()
        process.communicate()


@pytest.fixture
def holders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holders]:
    """A folder in which no place is taken, neither by another process nor by this process."""
    taken: list[object] = []
    monkeypatch.setattr(session_places, "_TAKEN", taken)
    found = Holders(tmp_path / "places")
    yield found
    while found.processes:
        found.kill()
    for lock in taken:
        lock.close()


def test_a_process_takes_one_place(holders: Holders) -> None:
    """A process that asks several times must not take the places of other processes."""
    said: list[str] = []
    for _ in range(3):
        take_place(2, said.append, folder=holders.folder)
    holders.start(2)
    assert said == []


def test_a_process_without_a_place_waits_until_another_ends(holders: Holders) -> None:
    """A killed process must free its place. A waiting process must log once that it waits."""
    holders.start(2)
    holders.start(2)
    said: list[str] = []
    looks = 0

    class KillsOne:
        def __getattr__(self, name: str) -> object:
            return getattr(SYSTEM_CLOCK, name)

        def sleep(self, seconds: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                holders.kill()

    take_place(2, said.append, folder=holders.folder, clock=KillsOne())
    assert (looks, len(said)) == (3, 1)
    assert "2 Spark sessions of this machine are in use" in said[0]


def test_spark_starts_only_with_a_place(tmp_path: Path) -> None:
    """A run's process must not start a JVM while another process has the only place."""
    folder = tmp_path / f"s3notify-spark-{os.getuid()}"
    folder.mkdir(mode=0o700)
    held = locked(folder / "0.lock")
    assert held is not None
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    waits = subprocess.Popen(
        [sys.executable, "-c", STARTS_SPARK], env=environment, stderr=subprocess.PIPE, text=True
    )
    with held, waits:
        assert waits.stderr is not None
        assert any("1 Spark sessions of this machine are in use" in line for line in waits.stderr)
        waits.kill()
