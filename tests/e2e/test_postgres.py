"""If Dagster's instance is on PostgreSQL, warm runs work, log and end in the same way as with SQLite."""

from collections.abc import Iterator

import dagster as dg
import pytest

from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.dagster_dev import INSTANCE
from s3notify_platform.orchestration.warm.handover import Home
from s3notify_platform.protocols.keyspace import Put
from tests.e2e.test_main_job import lines, order, rows_of
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
    first, second = ([f"raw/orders/{n} {name}.jsonl" for n in range(4)] for name in ("first", "second"))
    for keys in (first, second):
        touched = {str(slot_of(key)) for key in keys}
        platform.publisher.publish([Put(key=key, body=lines(order(n))) for n, key in enumerate(keys)])
        platform.until(
            "shown", lambda at=touched: platform.grid("paid_orders")["materializedPartitions"] >= at
        )
        assert rows_of(platform, keys) == {key: [n] for n, key in enumerate(keys)}
    assert not list(platform.dagster.home.rglob("*.db")), "nothing is in SQLite"
    with dg.DagsterInstance.from_config(str(platform.dagster.home)) as instance:
        ended = [run.run_id for run in instance.get_runs() if run.is_success]
    worked = Home(platform.dagster.home).log.read_text()
    assert any(run_id in worked for run_id in ended)
