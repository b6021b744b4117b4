"""Fixtures of the tests of commands."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.stores.aws import bucket_notifications
from tests.support.event_project import Project
from tests.support.ingested import Place
from tests.support.servers import S3Server
from tests.support.tables import create_record_table

Run = Callable[..., Result]
SLOT = slot_of("raw/a", 4)


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


@pytest.fixture(params=[False, True], ids=["bucket", "table"])
def place(ministack: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Place:
    """A source whose table has two versions. Each test runs with all records on the bucket, and with a
    records table.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    records = ministack.table_config() if request.param else None
    if records is not None:
        create_record_table(records)
    made = Place(ministack, records_table=records)
    made.put("a", 1)
    made.put("b", 2)
    made.run("first")
    made.put("a", 10, 11)
    made.run("second")
    return made


@pytest.fixture
def run(place: Place) -> Run:
    config, records = place.store.config, place.source.location.records_table
    endpoint = str(config.endpoint_url)
    options = ["--bucket", config.bucket, "--endpoint-url", endpoint, "--slot-count", "4"]
    if records is not None:
        options += ["--records-table", records.table, "--dynamodb-endpoint-url", endpoint]
    return lambda *given, text=None: CliRunner().invoke(main, [*given, *options], input=text)
