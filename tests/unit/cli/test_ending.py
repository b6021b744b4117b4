"""How commands end: drained after a signal, within a time limit, and without the teardown of the interpreter."""

import signal
import subprocess
import sys

import pytest

SERVICE = """
import sys, threading
from s3notify_platform.cli import ending

class Toy:
    name = "toy"
    released = 0

    def run(self, stop, progress):
        progress("ready")
        stop.wait()
        progress("draining")
        if sys.argv[1] == "stuck":
            threading.Event().wait()
        self.released = 1

    def counts(self):
        return {"released": self.released}

ending.DRAIN_SECONDS = float(sys.argv[2])
ending.run_in_foreground(Toy())
"""


def started(*arguments):
    return subprocess.Popen([sys.executable, "-c", *arguments], stderr=subprocess.PIPE, text=True)


def until_printed(process, text):
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(text)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_service_drains_after_a_signal(number):
    """Otherwise the work in progress would be in the same state as after a kill, and would be repeated later. With
    another exit code than 0, a service manager would count each stop as a failure.
    """
    with started(SERVICE, "good", "60") as process:
        until_printed(process, "ready")
        process.send_signal(number)
        assert "toy: released=1" in process.communicate(timeout=30)[1]
    assert process.returncode == 0


def test_a_service_that_does_not_drain_is_ended():
    """The service must end within the time limit with exit code 0. A line of output must name the service."""
    with started(SERVICE, "stuck", "0.2") as process:
        until_printed(process, "ready")
        process.send_signal(signal.SIGTERM)
        assert "toy: not finished after 0.2 s" in process.communicate(timeout=30)[1]
    assert process.returncode == 0


def test_a_second_signal_ends_a_service_at_once():
    with started(SERVICE, "stuck", "60") as process:
        until_printed(process, "ready")
        process.send_signal(signal.SIGTERM)
        until_printed(process, "draining")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


LEAVING = """
import atexit, sys
from s3notify_platform.cli.ending import leave

class Torn:
    def __del__(self):
        print("torn down")

torn = Torn()
atexit.register(print, "at exit")
sys.stdout.write("printed\\n")
leave(3)
"""


def test_leave_skips_the_teardown():
    """Otherwise a thread of Arrow could abort a finished command during the teardown. If output or exit code were lost,
    a script would miss results, or would count a failure as a success.
    """
    ran = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (3, "printed\nat exit\n")


@pytest.mark.parametrize("code", [0, 2])
def test_exit_codes_of_click_are_kept(code):
    """`--help` must end with exit code 0, and an unknown option with exit code 2."""
    more = ["--help"] if not code else ["--no-such"]
    ran = subprocess.run(
        [sys.executable, "-m", "s3notify_platform.cli", *more], capture_output=True, text=True, check=False
    )
    assert ran.returncode == code
    assert "Usage:" in ran.stdout + ran.stderr


ARROW = """
import io, sys
import pyarrow as pa, pyarrow.parquet as pq
from s3notify_platform.cli.ending import leave
written = io.BytesIO()
pq.write_table(pa.table({"reason": ["x" * 20] * 1000}), written)
pq.read_table(pa.BufferReader(written.getvalue()))
leave(0)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("_share", range(6))
def test_arrow_does_not_abort_a_finished_command(_share):
    """Without `leave`, about one of ten processes ends with SIGABRT, so a script would count a finished command as
    failed. The test is divided into six shares, each with ten processes.
    """
    ended = [subprocess.run([sys.executable, "-c", ARROW], check=False).returncode for _ in range(10)]
    assert ended == [0] * 10


def test_a_closed_stderr_does_not_end_a_service():
    """The service must drain as usual, although its messages are lost."""
    with started(SERVICE, "good", "60") as process:
        until_printed(process, "ready")
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
