"""Fixtures of the tests of commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from s3notify_platform.stores.aws import bucket_notifications
from tests.support.event_project import Project
from tests.support.servers import S3Server


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Topics are cached only briefly, so that no test waits for a change."""


@pytest.fixture
def project(ministack: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A folder with a source whose bucket is on ministack. The events of the source are removed after the test."""
    monkeypatch.chdir(tmp_path)
    for name in ("S3NOTIFY_DEFS", "DAGSTER_HOME", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(bucket_notifications, "SECOND_READ_SECONDS", 0.01)
    made = Project(ministack, tmp_path)
    yield made
    made.init("--remove", "--yes")
