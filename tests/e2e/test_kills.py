"""The run, the daemon, the S3 server and the demo itself get SIGKILL at random times (from a seed). The table is the
same in the end.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.source.location import Location
from tests.support.checked import all_whole

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(900)]

ORDER = ("run", "demo", "server", "daemon", "warm", "run", "server")
KILLS = int(os.environ.get("KILLS", "7"))
"""The number of kills."""

VICTIMS = {
    "run": ("execute_run", "execute_step", "spawn_main", "warm.worker"),
    "warm": ("cli warm",),
    "daemon": ("dagster._daemon", "daemon run"),
    "server": ("weed",),
}


def demo(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as sink:
        command = [sys.executable, "-m", "s3notify_platform.cli", "demo", "--once", "--folder", str(folder)]
        return subprocess.Popen(
            [*command, "--objects", "60"], stdout=sink, stderr=sink, start_new_session=True
        )


def processes(folder: Path, victim: str) -> list[int]:
    """The demo's processes that have the role `victim`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command + environment and any(word in command for word in VICTIMS[victim]):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("seed", [int(os.environ.get("KILL_SEED", "1"))])
def test_killed_demo_ends_with_the_same_table(tmp_path: Path, seed: int) -> None:
    """Otherwise a kill would lose or double a row. The exit code of the demo is 0 only if every written row exists
    exactly once. The demo's tables must be consistent, too.
    """
    draw = random.Random(seed)
    folder, log = tmp_path / "demo", tmp_path / "demo.log"
    running = demo(folder, log)
    killed: list[str] = []
    try:
        for number, victim in enumerate(ORDER[:KILLS]):
            ends = time.monotonic() + draw.uniform(4, 12)
            while time.monotonic() < ends and running.poll() is None:
                time.sleep(0.2)
            if running.poll() is not None:
                break
            if victim == "demo":
                os.kill(running.pid, signal.SIGKILL)
                running.wait()
                running = demo(folder, log)
                killed.append(victim)
                continue
            # The time until the kill begins with the victim's start. The victim may not have started yet, so the test
            # waits for its start.
            waits = time.monotonic() + 40
            while not (pids := processes(folder, victim)) and time.monotonic() < waits:
                if running.poll() is not None:
                    break
                time.sleep(0.1)
            if pids:
                os.kill(draw.choice(pids), signal.SIGKILL)
                killed.append(f"{victim} {number}")
        code = running.wait(timeout=600)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait(timeout=60)
    assert code == 0, f"killed {killed}\n{log.read_text(errors='replace')[-4000:]}"
    assert len(killed) >= KILLS * 2 // 3, killed
    with LocalS3Server(folder / "s3") as server:
        all_whole(Location(name="orders", platform=server.config("s3notify-demo")), "paid_orders")
