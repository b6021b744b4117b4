"""Ctrl-C ends the demo at any time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from s3notify_platform.local.process import command_of

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("once", "moment", "last", "code"),
    [
        ([], "starting Dagster", "the same command goes on from here", 0),
        ([], "published", "not in the table yet", 0),
        (["--once"], "published", "not in the table yet", 130),
    ],
    ids=["while it starts", "in mid-batch", "in mid-batch, with --once"],
)
def test_ctrl_c_ends_the_demo(tmp_path: Path, once: list[str], moment: str, last: str, code: int) -> None:
    """Otherwise Ctrl-C would leave processes behind or print an error, or nobody would see which changes are not in the
    table yet. With `--once`, exit code 0 would wrongly say that all rounds are in the table.
    """
    command = [sys.executable, "-m", "s3notify_platform.cli", "demo", *once, "--folder", str(tmp_path)]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as demo:
        assert demo.stdout
        said: list[str] = []
        for line in demo.stdout:
            said.append(line)
            if moment in line and len([each for each in said if moment in each]) == 1:
                demo.send_signal(signal.SIGINT)
    assert demo.returncode == code, "".join(said)
    assert last in "".join(said)
    pids = [int(file.read_text()) for file in tmp_path.rglob("*.pid")]
    assert [pid for pid in pids if str(tmp_path) in command_of(pid)] == []
