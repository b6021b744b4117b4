"""The asset of the newest rows. The asset is updated by the run of each batch, or by the asset's own step. On request,
the step rebuilds the asset.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.maintenance.set_types import SetTypes
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.orchestration import following_assets
from s3notify_platform.orchestration.changes_input import CHANGES_TAG
from s3notify_platform.protocols.keyspace import Put
from s3notify_platform.spark import following
from s3notify_platform.spark.load import newest
from s3notify_platform.table.follow import FollowResult
from tests.support.site import Site

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def site(site_of: Callable[..., Site]) -> Site:
    return site_of(schema="id bigint, amount double", latest={"key": "id", "order_by": "amount"})


def put(site: Site, slot: int, *rows: tuple[int, float]) -> int:
    """Writes the object of a slot."""
    body = b"".join(b'{"id": %d, "amount": %f}\n' % row for row in rows)
    site.publish([Put(key=site.key(slot), body=body)])
    return slot


def shown(site: Site) -> dict[int, float]:
    rows = site.io.load(site.io.source.location.all_slots(), asset="orders_latest").toArrow().to_pylist()
    return {row["id"]: row["amount"] for row in rows}


def materializations(site: Site) -> list[dict[str, Any]]:
    """The materializations of the asset, newest first."""
    records = site.instance.fetch_materializations(dg.AssetKey("orders_latest"), limit=100).records
    return [
        {name: value.value for name, value in record.asset_materialization.metadata.items()}
        for record in records
        if record.asset_materialization is not None
    ]


def materialize(site: Site, **how: Any) -> dg.ExecuteInProcessResult:
    job = site.defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=site.instance, asset_selection=[dg.AssetKey("orders_latest")], raise_on_error=False, **how
    )


def test_a_changed_type_reaches_the_newest_rows_without_new_objects(site_of: Callable[..., Site]) -> None:
    """The changed type must cause a batch. Otherwise the asset would keep the old type until an object changes."""
    site = site_of(schema=None, latest={"key": "id", "order_by": "amount"})
    put(site, 1, (1, 1.5))
    site.settle()
    source = site.io.settle_commit_mode()
    SetTypes(location=source.location, commit=source.commit, columns="id decimal(20,0)").run()
    site.settle()
    found = site.io.load(source.location.all_slots(), asset="orders_latest").toArrow()
    assert found["id"].type == pa.decimal128(20, 0)


def test_each_batch_updates_the_newest_rows(site: Site) -> None:
    """The run must report the update if the batch changed a newest row, and otherwise report nothing."""
    slots = {put(site, 1, (1, 1.0), (2, 5.0)), put(site, 2, (1, 3.0))}
    assert site.run(sorted(slots)).success
    assert shown(site) == {1: 3.0, 2: 5.0}
    (first,) = materializations(site)
    assert (first["dagster/row_count"], first["changed"], first["rebuilt"]) == (
        2,
        2,
        "the table was never built",
    )
    assert site.run([put(site, 3, (1, 2.0))]).success
    assert len(materializations(site)) == 1, "an older row changes nothing"
    assert site.run([put(site, 2, (2, 1.0))]).success
    assert shown(site) == {1: 2.0, 2: 5.0}
    (second, _) = materializations(site)
    assert (second["changed"], second["source_version"]) == (1, newest(site.io.source).version)


def test_the_step_updates_or_rebuilds_the_newest_rows(site: Site) -> None:
    """The step must continue from the version of the newest rows, but must rebuild the table after a rollback of the
    source. In a backfill, or in a run with the tag `CHANGES_TAG`, the step must rebuild the whole table.
    """
    assert site.run([put(site, 1, (1, 1.0))]).success
    source = site.io.settle_commit_mode()
    assert site.run([put(site, 2, (1, 2.0))]).success
    roll_back(source.table(), newest(source).version - 1)
    assert materialize(site).success
    assert shown(site) == {1: 1.0}
    assert "went back to version" in materializations(site)[0]["rebuilt"]
    for tags in ({"dagster/backfill": "abc"}, {CHANGES_TAG: "full"}):
        assert materialize(site, tags=tags).success
        assert materializations(site)[0]["rebuilt"] == "asked for"
    assert materialize(site).success
    assert "rebuilt" not in materializations(site)[0]


def test_an_asset_can_use_the_newest_rows_as_input(site: Site) -> None:
    assert site.run([put(site, 1, (1, 1.0), (2, 2.0))]).success
    found: list[int] = []

    @dg.asset
    def report(orders_latest: pa.Table) -> None:
        found.extend(orders_latest["id"].to_pylist())

    defs = dg.Definitions.merge(site.defs, dg.Definitions(assets=[report]))
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=site.instance, asset_selection=[report.key]).success
    assert sorted(found) == [1, 2]


def test_a_failed_update_does_not_delay_the_slots(site_of: Callable[..., Site]) -> None:
    """The run must name the reason, and all slots must be committed."""
    site = site_of(schema="id bigint, amount double", latest={"key": "no", "order_by": "amount"})
    result = site.run([put(site, 1, (1, 1.0))])
    assert not result.success
    why = "all slots are committed, and orders_latest is behind: latest: the table has no column 'no'"
    assert why in site.failure(result)
    assert len(site.rows()) == 1


OUTAGE = PythonException(
    "An exception was thrown from the Python worker:\n  Traceback (most recent call last):\n"
    "s3notify_platform.kernel.errors.UnavailableError: GET table/data/x: 503 SlowDown"
)


@pytest.mark.parametrize(
    ("error", "caught_up"),
    [
        pytest.param(OUTAGE, True, id="outage-in-a-task"),
        pytest.param(PythonException("ExecutorLostFailure"), False, id="lost-executor"),
        pytest.param(pa.ArrowInvalid("out of bounds timestamp"), False, id="unforeseen"),
    ],
)
def test_no_error_of_an_update_blocks_the_source(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, *, caught_up: bool
) -> None:
    """Otherwise the first batch, which has all slots, would fail after its commit, again and again: its slots would not
    be reported, and the queue would fill. Another batch must be requested only after an outage.
    """
    errors, follow = [error], following.follow

    def fails_once(*args: Any, **more: Any) -> FollowResult:
        if errors:
            raise errors.pop()
        return follow(*args, **more)

    monkeypatch.setattr(following_assets, "follow", fails_once)
    put(site, 1, (1, 1.0))
    site.settle()
    assert not errors
    assert site.rows() == {1: [1]}
    assert (site.grid()["failed"], 1 in site.grid()["materialized"]) == (set(), True)
    assert not [*site.io.clients.queue.entries("orders", site.io.source.location.all_slots())]
    assert bool(materializations(site)) == caught_up
    put(site, 2, (2, 2.0))
    site.settle()
    assert shown(site) == {1: 1.0, 2: 2.0}


@pytest.mark.parametrize(
    ("latest", "message"),
    [
        ({"key": "id"}, "order_by is missing"),
        ({"key": "id", "order_by": "amount", "by": "x"}, "latest.by: there is no such setting"),
        ({"key": " , ", "order_by": "amount"}, "latest: key is missing"),
        (
            {"key": "id", "order_by": "amount", "deleted_when": "amount <"},
            "latest: deleted_when 'amount <' does not parse",
        ),
    ],
)
def test_wrong_definitions_of_newest_rows_are_refused(
    site_of: Callable[..., Site], latest: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        _ = site_of(latest=latest).defs
