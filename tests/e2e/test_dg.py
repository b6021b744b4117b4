"""A user makes a Dagster project with `dg`. The component is found, scaffolded, checked and loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
