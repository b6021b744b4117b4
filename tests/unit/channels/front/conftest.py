"""Fixtures: a front that accepts one key, and boto3 models with Ceph's filters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.front import KEY_ID, SECRET, Front, ceph_models, running_front


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("S3NOTIFY_FRONT_KEY_ID", KEY_ID)
    monkeypatch.setenv("S3NOTIFY_FRONT_SECRET", SECRET)
    monkeypatch.setenv("AWS_DATA_PATH", ceph_models(tmp_path / "models"))
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def front() -> Iterator[Front]:
    with running_front() as made:
        yield made
