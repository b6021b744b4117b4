"""`s3notify dev` serves each Dagster home by one process, and only on a free port."""

import os
import signal
import socket
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local import dagster_dev
from s3notify_platform.local.dagster_dev import DagsterDev, definitions_problem
from s3notify_platform.local.process import command_of, free_ports
from s3notify_platform.source.settings import DEFS_VARIABLE
from tests.support.waiting import until


class Watched(DagsterDev):
    """Notes the number of schema versions in each of Dagster's databases, before a process is started."""

    def _spawned(self, arguments, stdin):
        versions = []
        for place in sorted(self.home.rglob("*.db")):
            with closing(sqlite3.connect(place)) as database:
                versions += database.execute("select count(*) from alembic_version").fetchone()
        self.seen = [*getattr(self, "seen", []), versions]
        return super()._spawned(arguments, stdin)


def test_a_home_is_served_by_one_process(tmp_path):
    """Otherwise two daemons would share a home, and could start the same runs. Two processes that create the storage at
    the same time could leave a storage that no process can open. After the first process has ended, a lock that
    remained would make the home unusable.
    """
    first_port, second_port = free_ports(2, SYSTEM_CLOCK)
    with Watched(tmp_path, port=first_port, environment={}) as first:
        assert first.seen == [[], [1, 1, 1], [1, 1, 1]]
        second = DagsterDev(tmp_path, port=second_port, environment={})
        with pytest.raises(UsageError, match=rf"served by another process \(dagster dev: pid {first.pid}\)"):
            second.start()
        assert second.pid is None
        until(
            lambda: "dagster dev" in command_of(first.pid)
        )  # a process that is being started has no command line yet
        pid = first.pid
    assert not command_of(pid)
    with Watched(tmp_path, port=second_port, environment={}) as third:
        assert third.seen == [[1, 1, 1], [1, 1, 1]]
        until(lambda: "dagster dev" in command_of(third.pid))


@pytest.mark.parametrize("command", ["dev", "demo"])
def test_a_taken_port_is_refused(tmp_path, command):
    """The message must name port and option, and nothing may have been started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        where = ["--defs", str(tmp_path), "--home"] if command == "dev" else ["--folder"]
        ran = CliRunner().invoke(main, [command, *where, str(tmp_path / "new"), "--port", str(port)])
    assert ran.exit_code == 1
    assert f"port {port} on 127.0.0.1 is taken" in ran.stderr
    assert "--port" in ran.stderr
    assert not (tmp_path / "new" / "dagster.pid").exists()
    assert not (tmp_path / "new" / "s3").exists()


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_invalid_ports_are_refused(tmp_path, port):
    given = ["dev", "--defs", str(tmp_path), "--home", str(tmp_path / "new"), "--port", port]
    assert CliRunner().invoke(main, given).exit_code == 2


def test_a_long_log_is_rotated(tmp_path, monkeypatch):
    """The old log must be kept beside the new one."""
    monkeypatch.setattr(dagster_dev, "LOG_BYTES_MAX", 1000)
    (port,) = free_ports(1, SYSTEM_CLOCK)
    with Watched(tmp_path, port=port, environment={}) as dagster, dagster.log.open("a") as log:
        log.write("x" * 2000)
        log.flush()
        until((tmp_path / "dagster.log.1").exists)
    assert "x" * 2000 in (tmp_path / "dagster.log.1").read_text()
    assert "xx" not in dagster.log.read_text()


def test_a_removed_log_does_not_end_dagster(tmp_path):
    """A dead process must still be restarted after somebody has removed the log. Otherwise `dev` would end."""
    (port,) = free_ports(1, SYSTEM_CLOCK)
    with Watched(tmp_path, port=port, environment={}) as dagster:
        dagster.log.unlink()
        first = dagster.pid
        os.kill(first, signal.SIGKILL)
        until(lambda: dagster.restarts == 1 and dagster.pid not in (None, first))


@pytest.mark.parametrize(("line", "said"), [("format: jsonl", ""), ("formatt: jsonl", "attributes.formatt")])
def test_the_reason_why_definitions_cannot_be_loaded_names_the_line(tmp_path, line, said):
    """Dagster's warnings about its own features must not be in the log."""
    file = tmp_path / "defs" / "orders" / "defs.yaml"
    file.parent.mkdir(parents=True)
    head = "type: s3notify_platform.S3NotifyComponent\nattributes:\n"
    file.write_text(f"{head}  name: orders\n  bucket: b\n  prefix: raw/\n  {line}\n")
    environment = {DEFS_VARIABLE: str(file.parent.parent), "AWS_REGION": "us-east-1"}
    problem = definitions_problem(DagsterDev(tmp_path, port=1, environment=environment).environment())
    assert said in problem
    assert bool(problem) == bool(said)
    assert "Warning" not in problem
