"""Declarative automation updates slot assets: exactly the slots in which the source is newer than the slot asset, in
one run.
"""

from collections.abc import Callable, Iterator
from time import monotonic

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test, freeze_time
from dagster._time import get_current_datetime

from s3notify_platform.orchestration.automation import AUTOMATION_TAG
from tests.support.site import Site
from tests.support.waiting import until

TRANSFORMS = "tests.support.transforms"


@pytest.fixture
def site(site_of: Callable[..., Site]) -> Iterator[Site]:
    site = site_of(slots=1000, slot_assets=[f"{TRANSFORMS}.paid_orders"])
    site.settle()
    assert site.follow() == []
    return site


@pytest.mark.thorough
def test_slots_that_a_run_of_the_sensor_derived_are_not_requested_again(site: Site) -> None:
    """The sensor's run also makes the slot asset. If automation requested another run, the work would be done twice."""
    site.write(1, 400)
    (request,) = site.tick()
    assert site.launch(request).success
    assert site.rows("paid_orders") == {1: [1], 400: [400]}
    assert site.follow() == []


@pytest.mark.thorough
def test_slots_are_derived_in_one_run_after_a_run_of_the_source_alone(site: Site) -> None:
    """After a run of the source alone (as from the UI), there must be one run of the slot asset, for exactly these
    slots.
    """
    slots = [1, 17, 18, 400, 999]
    site.write(*slots)
    assert site.run(slots, asset_selection=["orders"]).success
    (request,) = site.follow()
    assert site.slots_of(request) == slots
    assert request.run_config["ops"]["orders_slots"]["config"]["only"] == ["paid_orders"]
    made = len(site.instance.fetch_materializations(dg.AssetKey("orders"), limit=99).records)
    assert not [tag for tag in request.tags if "partition" in tag]
    assert site.launch(request).success
    assert site.grid("paid_orders")["materialized"] == set(slots)
    assert len(site.instance.fetch_materializations(dg.AssetKey("orders"), limit=99).records) == made
    assert site.rows("paid_orders") == {slot: [slot] for slot in slots}
    assert site.follow() == []


@pytest.mark.thorough
def test_a_change_during_a_run_is_derived_after_the_run(site: Site) -> None:
    """No condition is evaluated while a run is in flight. Otherwise updates during the run would be dropped, and the
    slot asset would keep old rows.
    """
    site.write(3)
    assert site.run([3], asset_selection=["orders"]).success
    (request,) = site.follow()
    run = create_run_for_test(site.instance, status=DagsterRunStatus.STARTED, tags={AUTOMATION_TAG: "orders"})
    site.write(3, body=site.line(30))
    site.write(4)
    assert site.run([3, 4], asset_selection=["orders"]).success
    assert site.follow() == []
    site.instance.report_run_canceled(run)
    assert site.launch(request).success
    (request,) = site.follow()
    assert site.slots_of(request) == [4]  # the run was late, so it made slot 3 from the newest generation
    assert site.launch(request).success
    assert site.rows("paid_orders") == {3: [30], 4: [4]}


@pytest.mark.thorough
def test_slots_that_a_run_is_still_reporting_are_not_requested(site: Site) -> None:
    """A tick may come when a run has reported the source, but not yet the slot asset. The report of the slot asset
    comes a moment later, so the tick must not request these slots.
    """
    site.write(3, 4)
    assert site.run([3, 4], asset_selection=["orders"]).success
    assert site.run([3]).success
    (request,) = site.follow()
    assert site.slots_of(request) == [4]
    assert site.launch(request).success
    site.write(5)
    assert site.run([5], asset_selection=["orders"]).success
    assert site.run([5]).success
    assert site.follow() == []


@pytest.mark.thorough
def test_a_new_slot_asset_is_derived_for_all_committed_slots(site_of: Callable[..., Site]) -> None:
    """One run must be requested, with the committed slots only."""
    before = site_of()
    before.settle()
    before.write(1, 5, 9)
    before.settle()
    site = site_of(bucket=before.component.bucket, slot_assets=[f"{TRANSFORMS}.paid_orders"])
    (request,) = site.follow()
    assert site.slots_of(request) == [1, 5, 9]
    assert site.launch(request).success
    assert site.rows("paid_orders") == {1: [1], 5: [5], 9: [9]}
    assert site.follow() == []


@pytest.mark.thorough
def test_a_failed_derived_slot_is_not_retried_on_every_tick(site_of: Callable[..., Site]) -> None:
    """If each tick retried the failed slot, there would be an endless loop of failing runs. All other slots must be
    made.
    """
    site = site_of(slot_assets=[f"{TRANSFORMS}.lucky_orders"])
    site.settle()
    start = get_current_datetime()
    with freeze_time(start):
        assert site.follow() == []
        site.write(2, 13)
        assert site.run([2, 13], asset_selection=["orders"]).success
        (request,) = site.follow()
        assert not site.launch(request).success
        assert site.rows("lucky_orders") == {2: [2]}
        assert site.grid("lucky_orders")["failed"] == {13}
        assert site.follow() == []


def killed(site: Site, request: dg.RunRequest, status: DagsterRunStatus) -> dg.DagsterRun:
    """A run of this request that has this status, although no process executes it."""
    return create_run_for_test(
        site.instance, status=status, tags=dict(request.tags), run_config=dict(request.run_config)
    )


@pytest.mark.parametrize("status", [DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE])
def test_slots_of_a_killed_run_are_requested_again(site: Site, status: DagsterRunStatus) -> None:
    """Otherwise these slots would stay old until they change. A slot that was made in the meantime is left out."""
    site.write(3, 4)
    assert site.run([3, 4], asset_selection=["orders"]).success
    (request,) = site.follow()
    killed(site, request, status)
    site.write(4, 5)
    assert site.run([4]).success
    assert site.run([5], asset_selection=["orders"]).success
    (request,) = site.follow()
    assert site.slots_of(request) == [3, 5]
    assert site.launch(request).success
    assert site.rows("paid_orders") == {3: [3], 4: [4], 5: [5]}
    assert site.follow() == []


def test_retries_of_killed_runs_wait_longer_and_longer(site_of: Callable[..., Site]) -> None:
    """A slot that kills each run must not occupy the queue of runs all the time. No update may be lost meanwhile."""
    site = site_of(slot_assets=[f"{TRANSFORMS}.paid_orders"], backoff_seconds=0.5)
    site.settle()
    assert site.follow() == []
    site.write(3)
    assert site.run([3], asset_selection=["orders"]).success
    (request,) = site.follow()
    for wait in (0.5, 1.0, 2.0):
        killed(site, request, DagsterRunStatus.FAILURE)
        assert site.follow() == []
        began = monotonic()
        (request,) = until(site.follow)
        assert monotonic() - began > wait - 0.3


def test_run_of_a_dead_host_does_not_block_slots(site_of: Callable[..., Site]) -> None:
    """The status of such a run would stay STARTED for ever without Dagster's run monitoring."""
    site = site_of(slot_assets=[f"{TRANSFORMS}.paid_orders"], silence_seconds=0.5, startup_seconds=0.5)
    site.settle()
    assert site.follow() == []
    site.write(3)
    assert site.run([3], asset_selection=["orders"]).success
    (request,) = site.follow()
    run = killed(site, request, DagsterRunStatus.STARTED)
    (request,) = until(site.follow)
    found = site.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is DagsterRunStatus.FAILURE
    assert site.slots_of(request) == [3]
