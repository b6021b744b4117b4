"""A user's own assets can use a source or a slot asset as input, and get its committed rows."""

import re
from collections.abc import Callable
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from s3notify_platform import Changes, s3_slot_asset
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.orchestration.changes_input import CHANGES_TAG
from s3notify_platform.orchestration.partitions import slot_partitions
from s3notify_platform.protocols.keyspace import Put
from s3notify_platform.spark.load import newest
from tests.support.short_history import cut
from tests.support.site import Site

SLOTS = slot_partitions(16)
RANGE = {"dagster/asset_partition_range_start": "2", "dagster/asset_partition_range_end": "4"}


@s3_slot_asset(source="orders")
def paid(orders: DataFrame) -> DataFrame:
    return orders.where("amount > 0")


@pytest.fixture
def site(site_of: Callable[..., Site]) -> Site:
    """A source with rows in four slots, and a slot asset."""
    site = site_of(slot_assets=[f"{__name__}.paid"])
    site.write(1, 2, 3, 4)
    assert site.run([1, 2, 3, 4]).success
    return site


def ids(rows: Any) -> list[int]:
    table = rows.toArrow() if isinstance(rows, DataFrame) else rows
    table = pa.Table.from_pandas(table) if isinstance(table, pd.DataFrame) else table
    table = table.to_arrow() if isinstance(table, pl.DataFrame) else table
    return sorted(table["id"].to_pylist())


def executed(site: Site, asset: dg.AssetsDefinition, **how: Any) -> dg.ExecuteInProcessResult:
    defs = dg.Definitions.merge(site.defs, dg.Definitions(assets=[asset]))
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=site.instance, asset_selection=[asset.key], raise_on_error=False, **how
    )


def refused(site: Site, asset: dg.AssetsDefinition, **how: Any) -> str:
    """The error with which the asset's run fails."""
    result = executed(site, asset, **how)
    assert not result.success
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return str(event.step_failure_data.error)


def given(site: Site, asset: dg.AssetsDefinition, **how: Any) -> list[list[int]]:
    """Materializes the user's asset in a project with the source's definitions. Returns the rows that the asset got as
    input.
    """
    result = executed(site, asset, **how)
    assert result.success, site.failure(result)
    return [event.step_materialization_data.materialization.metadata["ids"].value for event in
            result.get_asset_materialization_events()][:1]  # type: ignore[misc]  # fmt: skip


@pytest.mark.spark
@pytest.mark.server
@pytest.mark.parametrize(
    "kind",
    [
        None,
        pa.Table,
        *(pytest.param(k, marks=pytest.mark.thorough) for k in (Any, DataFrame, pd.DataFrame, pl.DataFrame)),
    ],
)
def test_an_input_has_its_annotated_type(site: Site, kind: Any) -> None:
    """An asset without partitions must get the rows of all slots. An input without an annotation must be a Spark
    DataFrame.
    """

    def report(context: dg.AssetExecutionContext, orders) -> None:
        assert isinstance(orders, kind if isinstance(kind, type) and kind is not Any else DataFrame)
        context.add_output_metadata({"ids": ids(orders)})

    if kind is not None:
        report.__annotations__["orders"] = kind
    assert given(site, dg.asset(report)) == [[1, 2, 3, 4]]


@pytest.mark.spark
@pytest.mark.server
def test_an_input_has_the_slots_of_the_runs_partitions(site: Site) -> None:
    """Otherwise an asset would get rows of slots that are not in its run. In this test, one run has one slot, and one
    run has several slots; the input is a slot asset.
    """

    @dg.asset(partitions_def=SLOTS, backfill_policy=dg.BackfillPolicy.single_run())
    def each(context: dg.AssetExecutionContext, paid: DataFrame) -> None:
        context.add_output_metadata({"ids": ids(paid)})

    assert given(site, each, partition_key="3") == [[3]]
    assert given(site, each, tags=RANGE) == [[2, 3, 4]]


@dg.asset
def copy(context: dg.AssetExecutionContext, orders: Changes) -> None:
    """Reports the changes that it was given; fails in runs with the tag `fails`."""
    found = [[row["_change_type"], row["id"]] for row in orders.rows.toArrow().to_pylist()]
    if "fails" in context.run.tags:
        raise dg.Failure("as wanted")
    context.add_output_metadata({"ids": [orders.since, *sorted(found)], "full": orders.full})


@pytest.mark.spark
@pytest.mark.server
def test_overlapping_runs_of_an_asset_are_not_given_the_same_changes(site: Site) -> None:
    """Otherwise an asset that appends its changes would have each row twice, after two successful runs. After the first
    run has ended, the next run gets the later changes.
    """
    refusals: list[str] = []

    @dg.asset
    def appended(context: dg.AssetExecutionContext, orders: Changes) -> None:
        if "second" in context.run.tags:
            return
        if "alone" not in context.run.tags:
            refusals.append(refused(site, appended, tags={"second": "yes"}))
            assert given(site, copy)[0][0] is None, "runs of other assets may overlap"
        context.add_output_metadata({"ids": [orders.since]})

    assert given(site, appended) == [[None]]
    assert "materializes appended and has not ended: start this run again after that run" in refusals[0]
    assert given(site, appended, tags={"alone": "yes"}) == [[newest(site.io.source).version]]


@pytest.mark.spark
@pytest.mark.server
def test_an_asset_gets_the_changes_since_its_last_materialization(site: Site) -> None:
    """The asset must first get all rows, and then only changes. After a failed run, the asset must get the same changes
    again. In a backfill, or with a tag, the asset must get all rows again. A materialization that a person reports in
    the UI must not make the next run get all rows again: an asset that appends them would have each row twice.
    """
    every = [["insert", n] for n in (1, 2, 3, 4)]
    assert given(site, copy) == [[None, *every]]
    first = newest(site.io.source).version
    assert given(site, copy) == [[first]]
    site.write(5)
    site.delete(2)
    assert site.run([2, 5]).success
    assert "as wanted" in refused(site, copy, tags={"fails": "yes"})
    assert given(site, copy) == [[first, ["delete", 2], ["insert", 5]]]
    second = newest(site.io.source).version
    assert given(site, copy) == [[second]]
    now = [["insert", n] for n in (1, 3, 4, 5)]
    for tags in ({"dagster/backfill": "abc"}, {CHANGES_TAG: "full"}):
        assert given(site, copy, tags=tags) == [[None, *now]]
    site.instance.report_runless_asset_event(dg.AssetMaterialization("copy", description="by a person"))
    automatic = {"dagster/backfill": "abc", "dagster/from_automation_condition": "true"}
    assert given(site, copy, tags=automatic) == [[second]]


@pytest.mark.spark
@pytest.mark.server
def test_changes_that_cannot_be_given_are_refused(site: Site) -> None:
    """The message must say why there can be no changes: the asset has partitions, or the input is not a source."""

    @dg.asset(partitions_def=SLOTS, backfill_policy=dg.BackfillPolicy.single_run())
    def by_slot(orders: Changes) -> None:
        raise AssertionError(orders)

    @dg.asset
    def of_slots(paid: Changes) -> None:
        raise AssertionError(paid)

    for asset, message, how in (
        (by_slot, "only assets without partitions can be given changes", {"partition_key": "3"}),
        (of_slots, "changes are kept only for sources, and paid is not a source", {}),
    ):
        assert re.search(message, refused(site, asset, **how))


@pytest.mark.spark
@pytest.mark.server
def test_an_asset_gets_the_changes_of_a_rollback(site: Site) -> None:
    """Otherwise the asset would fail after each rollback until a person gives it all rows."""
    site.write(5)
    assert site.run([5]).success
    given(site, copy)
    before = newest(site.io.source).version
    roll_back(site.io.settle_commit_mode().table(), before - 1)
    assert given(site, copy) == [[before, ["delete", 5]]]


@pytest.mark.spark
@pytest.mark.server
def test_changes_beyond_the_retention_are_refused(site: Site) -> None:
    """An asset that pauses for longer than the retention must not miss changes. The error must name the remedy."""
    given(site, copy)
    cut(site.io.settle_commit_mode().table())
    assert re.search("are kept; begin with a snapshot.* run a backfill of the asset", refused(site, copy))
    assert len(*given(site, copy, tags={CHANGES_TAG: "full"})) == 5


@pytest.mark.spark
@pytest.mark.server
def test_an_unsupported_annotation_is_refused(site: Site) -> None:
    """The message must name the input and the supported types."""

    @dg.asset
    def report(orders: list) -> None:  # type: ignore[type-arg]
        raise AssertionError(orders)

    assert "input 'orders' is annotated as" in refused(site, report)


@pytest.mark.spark
@pytest.mark.server
def test_columns_from_keys_and_store_metadata_reach_inputs(site_of: Callable[..., Site]) -> None:
    """A user's asset and a slot asset must both get the columns that the component's settings add."""
    site = site_of(
        slot_assets=[f"{__name__}.paid"], partition_columns="region string", metadata_columns="_size"
    )
    key = "raw/region=a%20b/1.jsonl"
    slot = slot_of(key, 16)
    site.publish([Put(key=key, body=site.line(1))])
    assert site.run([slot]).success
    rows: list[dict[str, Any]] = []

    def report(context: dg.AssetExecutionContext, orders: pa.Table, paid: pa.Table) -> None:
        rows[:] = [*orders.to_pylist(), *paid.to_pylist()]
        context.add_output_metadata({"ids": ids(orders)})

    assert given(site, dg.asset(report)) == [[1]]
    expected = (key, "a b", len(site.line(1)))
    assert [(row["_key"], row["region"], row["_size"]) for row in rows] == [expected, expected]
