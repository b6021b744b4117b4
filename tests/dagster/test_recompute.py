"""A backfill recomputes: whoever asks for slots, other than the sensor, has what is unchanged read again."""

from collections.abc import Callable

import dagster as dg
import pytest

from s3notify_platform.kernel.slots import Slot
from tests.support.site import Site

TRANSFORMS = "tests.support.transforms"
PARENT = "dagster/parent_run_id"
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
SLOTS = [1, 2, 5]

pytestmark = [pytest.mark.spark, pytest.mark.server]


def changed(site_of: Callable[..., Site], **attributes: object) -> Site:
    """Three slots, four objects, committed without a transform, and a component that has one since then."""
    before = site_of()
    before.write(*SLOTS)
    before.write(2, number=1)
    before.settle()
    after = site_of(bucket=before.component.bucket, transform=f"{TRANSFORMS}.doubled", **attributes)
    after.cursor = before.cursor
    return after


def recomputed(site: Site) -> set[int]:
    """The slots whose rows are what the transform makes of them."""
    rows = site.io.load(map(Slot, SLOTS)).toArrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [1, 2, 2, 5]
    return {row["_slot"] for row in rows if row.get("twice") == 2 * row["amount"]}


def chosen(site: Site, choose: str) -> dg.ExecuteInProcessResult:
    config = {"ops": {"orders_slots": {"config": {"choose": choose}}}}
    return site.defs.resolve_job_def("orders_backfill").execute_in_process(
        run_config=config, instance=site.instance, raise_on_error=False
    )


def test_slots_that_a_person_chooses(site_of: Callable[..., Site]) -> None:
    """By the job of backfills, and by the partitions of the UI: nothing but these, and the run says how many."""
    site = changed(site_of)
    assert recomputed(site) == set()
    result = chosen(site, "2")
    assert result.success
    assert recomputed(site) == {2}
    assert site.batch()["batch_objects_read_again"] == 2
    logged = [record.user_message for record in site.instance.all_logs(result.run_id)]
    assert "2 objects of 1 slots are read again" in logged
    assert site.run(tags={START: "0", END: "4"}, run_config={}).success
    assert recomputed(site) == {1, 2}
    assert site.batch()["batch_objects_read_again"] == 3
    assert site.run(partition_key="5", run_config={}).success
    assert recomputed(site) == {1, 2, 5}


def test_what_is_not_forced_is_left(site_of: Callable[..., Site]) -> None:
    """A batch of the sensor, and the retry of its run, read what has changed, and so does a run without `force`."""
    site = changed(site_of)
    site.write(1, number=1, body=site.line(3))
    (request,) = site.tick()
    first = site.launch(request)
    assert first.success
    retry = dict(request.tags) | {PARENT: first.run_id, "dagster/retry_number": "1"}
    assert site.run(run_config=dict(request.run_config), tags=retry).success
    config = {"ops": {"orders_slots": {"config": {"slots": SLOTS, "force": False}}}}
    assert site.run(run_config=config).success
    rows = site.io.load(map(Slot, SLOTS)).toArrow().to_pylist()
    assert [row["id"] for row in rows if row.get("twice")] == [3]


def test_a_first_load_reads_once(site_of: Callable[..., Site]) -> None:
    """By a backfill of everything; the sensor's first batch then finds nothing to read."""
    site = site_of()
    site.write(*SLOTS)
    assert chosen(site, "all").success
    first = site.batch()["batch_objects_read_again"]
    assert (first, sum(site.metadata(slot)["objects_read"] for slot in SLOTS)) == (0, 3)
    generations = {slot: site.metadata(slot)["table_version"] for slot in SLOTS}
    site.settle()
    assert {slot: site.metadata(slot)["table_version"] for slot in SLOTS} == generations
    assert set(generations.values()) == {1}


def test_a_retry_goes_on_and_another_run_begins_again(site_of: Callable[..., Site]) -> None:
    """Dagster's retry of a run that failed reads what is left; a run that a person executes again reads all."""
    site = changed(site_of)
    first = site.run([2])
    assert first.success
    generation = site.metadata(2)["table_version"]
    again = {PARENT: first.run_id}
    assert site.run([1, 2], tags=again | {"dagster/retry_number": "1"}).success
    assert recomputed(site) == {1, 2}
    assert site.metadata(2)["table_version"] == generation
    assert site.run([1, 2], tags=again).success
    assert site.metadata(2)["table_version"] > generation


def test_slot_assets_are_made_again(site_of: Callable[..., Site]) -> None:
    """With their source, and alone; the run says of how many objects."""
    site = site_of(slot_assets=[f"{TRANSFORMS}.paid_orders"])
    site.write(*SLOTS)
    site.settle()
    for selected in (None, ["paid_orders"]):
        before = {slot: site.metadata(slot, "paid_orders")["table_version"] for slot in SLOTS}
        assert site.run(tags={START: "0", END: "4"}, run_config={}, asset_selection=selected).success
        after = {slot: site.metadata(slot, "paid_orders")["table_version"] for slot in SLOTS}
        assert after[1] == after[2] > before[1]
        assert after[5] == before[5]
    assert site.batch()["batch_objects_derived"] == 2
