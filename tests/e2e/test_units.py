"""The units of `s3notify units` are started as systemd would start them. Their commands run together, on PostgreSQL."""

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from s3notify_platform.local.project import DEMO_FOLDER
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.local.systemd_units import Machine
from tests.contracts.fault_proxy import FaultProxy
from tests.e2e.test_main_job import batches_until_warm
from tests.support.platform import BUCKET, Platform
from tests.support.postgres import running_postgres

pytestmark = [pytest.mark.e2e]


def service(unit: Path) -> Mapping[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return dict(parser["Service"])


class Started:
    """A replacement for `DagsterDev` in a `Platform`, because the units start Dagster's processes."""

    def __init__(self, machine: Machine) -> None:
        self.url = f"http://127.0.0.1:{machine.port}"
        self.home = machine.home
        self.log = machine.home / "log"


@contextmanager
def started(machine: Machine, more: Mapping[str, str]) -> Iterator[Started]:
    """Runs the services of all units in `machine.into`. The environment `more` replaces the file of credentials."""
    with ExitStack() as stack:
        dagster = Started(machine)
        for unit in sorted(machine.into.glob("*.service")):
            said = service(unit)
            given = dict(each.split("=", 1) for each in shlex.split(said["Environment"]))
            log = stack.enter_context(dagster.log.open("ab"))
            process = subprocess.Popen(
                shlex.split(said["ExecStart"]),
                cwd=said["WorkingDirectory"],
                env={**os.environ, **given, **more},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        yield dagster


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_units_start_a_working_platform(tmp_path: Path) -> None:
    """A warm worker must turn changes into rows, and Dagster's state must be in PostgreSQL."""
    with (
        running_postgres(tmp_path / "postgres") as url,
        LocalS3Server(tmp_path / "s3") as server,
        FaultProxy(server.endpoint_url) as proxy,
    ):
        server.create_bucket(BUCKET)
        port, code_port = free_ports(2, SYSTEM_CLOCK)
        machine = Machine(
            python=Path(sys.executable),
            into=tmp_path / "units",
            home=tmp_path / "home",
            defs=DEMO_FOLDER,
            user="s3notify",
            port=port,
            code_port=code_port,
            postgres=True,
        )
        for path, text in machine.files().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        more = {**server.environment(), "S3NOTIFY_DEMO_BUCKET": BUCKET, "DAGSTER_POSTGRES_URL": url}
        with started(machine, more) as dagster:
            platform = Platform(server, dagster, proxy)  # type: ignore[arg-type]
            batches_until_warm(platform)
        assert not list(dagster.home.rglob("*.db"))


def test_units_are_written_once(tmp_path: Path) -> None:
    """A second call must not overwrite changes that a person has made. systemd must accept the units."""
    into, home = tmp_path / "units", tmp_path / "home"
    given = ["units", "--into", str(into), "--home", str(home), "--defs", str(DEMO_FOLDER), "--user", "root"]
    first = CliRunner().invoke(main, given)
    assert first.exit_code == 0, first.output
    names = {"code.service", "web.service", "daemon.service", "warm.service"}
    assert {unit.name for unit in into.iterdir()} == {f"s3notify-{name}" for name in names} | {
        "s3notify.target"
    }
    assert {file.name for file in home.iterdir()} == {"dagster.yaml", "workspace.yaml"}
    for unit in into.glob("*.service"):
        assert Path(shlex.split(service(unit)["ExecStart"])[0]).exists()
    (home / "dagster.yaml").write_text("changed")
    again = CliRunner().invoke(main, given).output
    assert again.count(": exists already") == 6
    assert f"{home / 'dagster.yaml'}: exists with other content, not changed" in again
    assert (home / "dagster.yaml").read_text() == "changed"
    if shutil.which("systemd-analyze"):
        ran = subprocess.run(
            ["systemd-analyze", "verify", *into.iterdir()], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr


def test_paths_that_systemd_cannot_parse_are_refused(tmp_path: Path) -> None:
    """Otherwise systemd would misread the unit, for example because a path has spaces."""
    given = ["units", "--into", str(tmp_path / "a b"), "--home", str(tmp_path), "--defs", str(DEMO_FOLDER)]
    result = CliRunner().invoke(main, given)
    assert (result.exit_code, "spaces" in result.output) == (1, True), result.output
    assert list(tmp_path.iterdir()) == []
