"""The archive of Spark's classes: made once, used by every session after it, and never in anybody's way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.java import java_environment
from s3notify_platform.spark import class_archive
from s3notify_platform.spark.archiving import make_archive
from s3notify_platform.spark.class_archive import archive_options, archive_place

PROGRAM = """
from pathlib import Path
from pyspark import SparkContext
from tests.support.spark import start_spark
spark = start_spark(master="local[1]")
assert spark.range(3).count() == 3
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in java_environment().items():
        monkeypatch.setenv(name, value)
    return tmp_path / "s3notify"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another Java than the machine's, which does nothing."""
    program = tmp_path / "home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.delenv("S3NOTIFY_JAVA", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    return program


@pytest.mark.thorough
def test_it_is_made_once_and_used(cache: Path) -> None:
    """By the command; a session maps it into its memory, and works; also if it is damaged."""
    command = [sys.executable, "-m", "s3notify_platform.cli", "archive"]
    made = {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for _ in "12"}
    (archive,) = map(Path, made)
    assert [*cache.iterdir()] == [archive]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    program = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
    assert str(archive) in ran.stdout
    size = archive.stat().st_size
    archive.unlink()
    archive.write_bytes(bytes(size))
    subprocess.run(program, capture_output=True, check=True, env=environment)


def test_no_archive_no_option(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with one that was cut off, of another user, or in a folder whose name Spark would cut."""
    assert archive_options() == ""
    place = archive_place()
    assert place is not None
    cache.mkdir()
    archive = place.with_name(f"{place.name}-3.jsa")
    archive.write_bytes(b"12")
    assert archive_options() == ""
    archive.write_bytes(b"123")
    assert archive_options().endswith(f" -XX:SharedArchiveFile={archive}")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(class_archive, "ROOT", owner + 2)
    assert archive_options() == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "a b"))
    assert archive_place() is None


def test_a_user_without_a_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: sessions start as they do without an archive."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert archive_options() == ""
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        make_archive()
    cache.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        make_archive()


def test_another_java_has_another_archive(cache: Path, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was replaced as well."""
    one = archive_place()
    os.utime(java, (1, 1))
    two = archive_place()
    monkeypatch.delenv("JAVA_HOME")
    assert len({one, two, archive_place()}) == 3


def test_a_java_that_makes_none_says_so(cache: Path, java: Path) -> None:
    """And leaves nothing behind."""
    with pytest.raises(UsageError, match="no archive: "):
        make_archive()
    assert not [*cache.iterdir()]
