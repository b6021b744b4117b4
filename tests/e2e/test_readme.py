"""The README's commands run as they are written, on loopback, in the order in which a stranger types them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.benchmarks.report import README
from tests.e2e.test_supervision import of_folder
from tests.support.documents import GUIDE, Place, block, blocks
from tests.support.only import PROJECT
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.timeout(2400)]

UI = "http://127.0.0.1:3000/server_info"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place.running(tmp_path) as place:
        yield place


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
def in_terminal(place: Place, script: str, folder: Path, *, typed: str = "") -> Iterator[Path]:
    """Starts a script, and waits until Dagster's UI answers. Yields the log of the script. In the end, Ctrl-C ends the
    script. `typed`: the user's input.
    """
    assert not serves(), "something else is at the README's port"
    log = place.folder / "terminal.log"
    with log.open("wb") as sink:
        running = subprocess.Popen(
            ["bash", "-ec", script], cwd=folder, env=place.environment, stdin=subprocess.PIPE, stdout=sink,
            stderr=sink, start_new_session=True,
        )  # fmt: skip
    assert running.stdin is not None
    running.stdin.write(typed.encode())
    running.stdin.close()
    try:
        until(
            lambda: running.poll() is not None or serves(), seconds=900, why=lambda: log.read_text()[-3000:]
        )
        assert running.poll() is None, log.read_text()[-3000:]
        yield log
    finally:
        interrupt(running)
        until(lambda: not of_folder(folder), seconds=60, why=lambda: json.dumps(of_folder(folder), indent=1))


@pytest.mark.thorough
@pytest.mark.registry
def test_the_first_command_installs_and_runs_the_demo(tmp_path: Path) -> None:
    """The README's first command must install the clone with the packages of its extra, and end with exit code 0."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT.parent / name, clone)
    ignored = shutil.ignore_patterns("__pycache__")
    package = "s3notify_platform"
    shutil.copytree(PROJECT.parent / package, clone / package, ignore=ignored)
    foreign = ("AWS_", "DAGSTER_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    place = Place(folder=clone, environment=kept | {"PATH": path})
    code, said = place.shell(block("demo command"), seconds=1800)
    assert code == 0, said[-3000:]
    assert (clone / ".venv/bin/s3notify").exists()


@pytest.mark.spark
@pytest.mark.parametrize("loaded_by", [pytest.param("dev", marks=pytest.mark.thorough), "ingest"])
def test_the_readme_leads_from_yaml_to_the_result_of_a_query(place: Place, loaded_by: str) -> None:
    """Otherwise a user who follows the README would get an error, or other output than the README shows. The shorter
    variant runs `s3notify ingest` in place of `s3notify dev`.
    """
    place.write_source()
    shells = [each.body for each in blocks(README.read_text()) if each.language == "sh" and not each.name]
    commands, writes = shells
    *checks, dev = commands.splitlines()
    assert dev.startswith("s3notify dev ")
    (query,) = (each.body for each in blocks(README.read_text()) if each.language == "python")
    (shown,) = (each.body for each in blocks(README.read_text()) if each.language == "text")
    for line in checks:
        ok(place, line, typed="y\n")
    assert "sqs" in (place.folder / "defs/orders/defs.yaml").read_text()
    *puts, explain = writes.splitlines()
    if loaded_by == "dev":
        with in_terminal(place, dev, place.folder) as log:
            # The first load lists the bucket, so only an event can announce the second object.
            for put, key, seconds in zip(puts, ("1.jsonl", "2.jsonl"), (400, 120), strict=True):
                ok(place, put)
                look = explain.replace("2.jsonl", key)
                until(
                    lambda look=look: place.shell(look)[0] == 0,
                    seconds=seconds,
                    why=lambda look=look: place.shell(look)[1] + log.read_text()[-2000:],
                )
    else:
        for line in (*puts, "s3notify ingest orders --once", explain):
            ok(place, line)
    (place.folder / "query.py").write_text(query)
    assert ok(place, "python query.py") == shown


def ok(place: Place, script: str, *, folder: Path | None = None, typed: str = "") -> str:
    code, said = place.shell(script, folder=folder, typed=typed)
    assert code == 0, f"{script}\n{said[-4000:]}"
    return said


@pytest.mark.thorough
@pytest.mark.registry
def test_the_guides_commands_add_a_source_to_a_dagster_project(place: Place) -> None:
    """Otherwise the documented commands would make a project whose Dagster does not fit dagster-pyspark, would scaffold
    another source than the README describes, or `dg dev` would not serve this source.
    """
    (create,) = re.findall(r"`(uvx create-dagster@\S+ project shop)`", README.read_text())
    (python,) = re.findall(r'`(requires-python = "[^`]*)`', (GUIDE / "dagster.md").read_text())
    kept = {name: value for name, value in place.environment.items() if name != "PYTHONPATH"}
    there = Place(folder=place.folder, environment=kept | {"DG_CLI_CONFIG": str(place.folder / "dg.toml")})
    ok(there, create, typed="y\n")
    project = place.folder / "shop"
    text, count = re.subn(r"requires-python = .*", python, (project / "pyproject.toml").read_text())
    assert count == 1
    (project / "pyproject.toml").write_text(text)
    commands = block("in a Dagster project").replace("/path/to/clone", str(PROJECT.parent))
    with in_terminal(there, f". .venv/bin/activate\n{commands}", project, typed="y\n") as log:
        said = log.read_text()
    assert "commit: native" in said
    assert "All component YAML validated successfully" in said
    locked = {
        each["name"]: each["version"] for each in tomllib.loads((project / "uv.lock").read_text())["package"]
    }
    assert locked["dagster"] in create
