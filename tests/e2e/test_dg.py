"""A user makes a Dagster project with `dg`. The component is found, scaffolded, checked and loaded."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.benchmarks.report import README
from tests.support.documents import GUIDE, block
from tests.support.only import PROJECT

PYPROJECT = """
[project]
name = "shop"
version = "0.1.0"
requires-python = ">=3.11"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "shop" / "src" / "shop"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "shop" / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    return tmp_path / "shop"


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_dg_project_uses_the_component(project: Path) -> None:
    """Otherwise users of `dg` would not find the component or its fields, or `dg check yaml` would accept a wrong
    YAML.
    """
    path = os.pathsep.join([str(PROJECT.parent), str(project / "src")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
    environment |= {"DAGSTER_TELEMETRY_ENABLED": "false", "DG_CLI_CONFIG": str(project / "dg.toml")}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def dg(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "dg"), *arguments],
            cwd=project, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert "s3notify_platform.S3NotifyComponent" in dg("list", "components")[1]
    place = ("--bucket", "acme-landing", "--prefix", "raw/orders/", "--region", "eu-central-1")
    code, said = dg("scaffold", "defs", "s3notify_platform.S3NotifyComponent", "orders", *place)
    assert code == 0, said
    written = project / "src" / "shop" / "defs" / "orders" / "defs.yaml"
    assert "prefix: raw/orders/" in written.read_text()
    for command in (("check", "yaml"), ("check", "defs"), ("list", "defs")):
        code, said = dg(*command)
        assert code == 0, said
    assert "orders_sensor" in said
    validate = [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "shop.definitions"]
    validated = subprocess.run(
        validate, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert validated.returncode == 0, validated.stdout + validated.stderr
    code, shown = dg("utils", "inspect-component", "s3notify_platform.S3NotifyComponent")
    assert code == 0, shown
    written.write_text(written.read_text().replace("bucket:", "buckett:"))
    code, said = dg("check", "yaml")
    assert code != 0
    assert "buckett" in said


@pytest.mark.thorough
@pytest.mark.registry
def test_the_package_fits_a_project_of_create_dagster(tmp_path: Path) -> None:
    """Otherwise the documented commands would make a project whose Dagster does not fit dagster-pyspark. uv resolves
    the project's packages, and installs only create-dagster.
    """
    (create,) = re.findall(r"`(uvx create-dagster@\S+ project shop)`", README.read_text())
    (python,) = re.findall(r'`(requires-python = "[^`]*)`', (GUIDE / "dagster.md").read_text())
    install = block("in a Dagster project").splitlines()[0]
    install = install.replace("/path/to/clone", str(PROJECT.parent))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "DG_CLI_CONFIG": str(tmp_path / "dg.toml")}

    def typed(line: str, folder: Path) -> None:
        ran = subprocess.run(
            ["bash", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr

    typed(f"{create} --no-uv-sync", tmp_path)
    project = tmp_path / "shop"
    text, count = re.subn(r"requires-python = .*", python, (project / "pyproject.toml").read_text())
    assert count == 1
    (project / "pyproject.toml").write_text(text)
    typed(f"{install} --no-sync", project)
    locked = {
        each["name"]: each["version"] for each in tomllib.loads((project / "uv.lock").read_text())["package"]
    }
    assert locked["dagster"] in create
    assert locked["dagster-pyspark"].rpartition(".")[2] == locked["dagster"].rpartition(".")[2]
