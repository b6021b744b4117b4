"""The README's commands run as they are written, on loopback, in the order in which a stranger types them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.benchmarks.report import README
from tests.e2e.test_dg import DEFINITIONS, PYPROJECT
from tests.e2e.test_supervision import of_folder
from tests.support.documents import Place, block, blocks
from tests.support.only import PROJECT
from tests.support.servers import running_ministack
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.thorough, pytest.mark.timeout(1200)]

UI = "http://127.0.0.1:3000/server_info"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "server").mkdir()
    (tmp_path / "here").mkdir()
    with running_ministack(tmp_path / "server") as server:
        yield Place.of(server, tmp_path / "here")


def serves() -> bool:
    with suppress(OSError), urllib.request.urlopen(UI, timeout=5) as answer:
        return "dagster_version" in json.load(answer)
    return False


def interrupt(running: subprocess.Popen[bytes]) -> None:
    """Presses Ctrl-C, and presses it again if the command has not ended after 40 s, as a person does."""
    for _ in range(3):
        with suppress(ProcessLookupError):
            # Ctrl-C in a terminal goes to all of its foreground processes.
            os.killpg(running.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            running.wait(40)
            return
    pytest.fail(f"{running.args} does not end by Ctrl-C")


@contextmanager
def in_terminal(place: Place, script: str, folder: Path) -> Iterator[Path]:
    """Starts a command, and waits until Dagster's UI answers. Yields the log of the command. In the end, Ctrl-C ends
    the command.
    """
    assert not serves(), "something else is at the README's port"
    log = place.folder / "terminal.log"
    with log.open("wb") as sink:
        running = subprocess.Popen(
            ["bash", "-ec", script], cwd=folder, env=place.environment, stdout=sink, stderr=sink,
            start_new_session=True,
        )  # fmt: skip
    try:
        until(
            lambda: running.poll() is not None or serves(), seconds=300, why=lambda: log.read_text()[-3000:]
        )
        assert running.poll() is None, log.read_text()[-3000:]
        yield log
    finally:
        interrupt(running)
        until(lambda: not of_folder(folder), seconds=60, why=lambda: json.dumps(of_folder(folder), indent=1))


def test_the_first_command_installs_and_runs_the_demo(tmp_path: Path) -> None:
    """The README's first command must install the clone, and end with exit code 0. In this test, pip takes packages
    from the tests' environment.
    """
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT.parent / name, clone)
    ignored = shutil.ignore_patterns("__pycache__")
    package = "s3notify_platform"
    shutil.copytree(PROJECT.parent / package, clone / package, ignore=ignored)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DAGSTER_"))}
    there = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
    }
    code, said = Place(folder=clone, environment=kept | there).shell(block("demo command"))
    assert code == 0, said[-3000:]
    assert (clone / ".venv/bin/s3notify").exists()


def test_the_readme_leads_from_yaml_to_the_result_of_a_query(place: Place) -> None:
    """Otherwise a user who follows the README would get an error, or other output than the README shows."""
    place.write_source()
    shells = [each.body for each in blocks(README.read_text()) if each.language == "sh" and not each.name]
    commands, writes = shells
    *checks, dev = commands.splitlines()
    assert dev.startswith("s3notify dev ")
    (query,) = (each.body for each in blocks(README.read_text()) if each.language == "python")
    (shown,) = (each.body for each in blocks(README.read_text()) if each.language == "text")
    for line in checks:
        code, said = place.shell(line, typed="y\n")
        assert code == 0, said
    assert "sqs" in (place.folder / "defs/orders/defs.yaml").read_text()
    *puts, explain = writes.splitlines()
    with in_terminal(place, dev, place.folder) as log:
        # The first load lists the bucket, so only an event can announce the second object.
        for put, key, seconds in zip(puts, ("1.jsonl", "2.jsonl"), (400, 120), strict=True):
            code, said = place.shell(put)
            assert code == 0, said
            look = explain.replace("2.jsonl", key)
            until(
                lambda look=look: place.shell(look)[0] == 0,
                seconds=seconds,
                why=lambda look=look: place.shell(look)[1] + log.read_text()[-2000:],
            )
    (place.folder / "query.py").write_text(query)
    code, said = place.shell("python query.py")
    assert code == 0, said
    assert said == shown


def test_the_guides_commands_add_a_source_to_a_dagster_project(place: Place) -> None:
    """Otherwise the guide's commands would scaffold another source than the README describes, or `dg dev` would not
    serve this source.
    """
    project = place.folder / "shop"
    package = project / "src" / "shop"
    (package / "defs").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    more = {
        "PYTHONPATH": f"{place.environment['PYTHONPATH']}:{project / 'src'}",
        "DG_CLI_CONFIG": str(project / "dg.toml"),
        "PYTHONWARNINGS": "ignore",
        "DAGSTER_HOME": str(project / "home"),
    }
    there = Place(folder=place.folder, environment={**place.environment, **more})
    install, scaffold, check, events, home, serve = block("in a Dagster project").splitlines()
    assert install.startswith("uv add "), "the environment of the tests has these packages"
    said = {}
    for line in (scaffold, check, f"{events} --yes", home):
        code, said[line] = there.shell(line, folder=project)
        assert code == 0, said[line]
    assert "commit: native" in said[check]
    with in_terminal(there, serve, project) as log:
        assert "All component YAML validated successfully" in log.read_text()
