"""If Dagster's instance is on PostgreSQL, warm runs work, log and end in the same way as with SQLite."""

from collections.abc import Iterator

import pytest

from s3notify_platform.local.dagster_dev import INSTANCE
from tests.e2e.test_main_job import batches_until_warm
from tests.support.platform import Platform, running
from tests.support.postgres import running_postgres

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(900)]

STORAGE = "storage: {{postgres: {{postgres_url: '{url}'}}}}\n"


@pytest.fixture
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("platform")
    with running_postgres(folder / "postgres") as url:
        (folder / "dagster").mkdir()
        (folder / "dagster" / "dagster.yaml").write_text(INSTANCE + STORAGE.format(url=url))
        with running(folder) as started:
            yield started


def test_runs_are_warm_on_postgresql(platform: Platform) -> None:
    """Otherwise, with PostgreSQL, each run would start its own Spark, or Dagster would not show the batches."""
    batches_until_warm(platform)
    assert not list(platform.dagster.home.rglob("*.db")), "nothing is in SQLite"
