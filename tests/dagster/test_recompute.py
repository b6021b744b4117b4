"""A backfill recomputes: if a person requests slots, their unchanged objects are read again. A sensor's batch reads
only changes.
"""

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
    """A component with a transform. Its table of three slots and four objects was committed without a transform."""
    before = site_of()
    before.write(*SLOTS)
    before.write(2, number=1)
    before.settle()
    after = site_of(bucket=before.component.bucket, transform=f"{TRANSFORMS}.doubled", **attributes)
    after.cursor = before.cursor
    return after


def recomputed(site: Site) -> set[int]:
    """The slots whose rows were made by the transform."""
    rows = site.io.load(map(Slot, SLOTS)).toArrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [1, 2, 2, 5]
    return {row["_slot"] for row in rows if row.get("twice") == 2 * row["amount"]}


def chosen(site: Site, choose: str) -> dg.ExecuteInProcessResult:
    config = {"ops": {"orders_slots": {"config": {"choose": choose}}}}
    return site.defs.resolve_job_def("orders_ingest").execute_in_process(
        run_config=config, instance=site.instance, raise_on_error=False
    )


def test_slots_chosen_by_a_person_are_read_again(site_of: Callable[..., Site]) -> None:
    """Runs of the source's job, and runs that the UI starts for partitions, must read only the chosen slots. The run
    must report the number of objects that are read again.
    """
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


def test_unchanged_objects_are_not_read_without_force(site_of: Callable[..., Site]) -> None:
    """A sensor's batch, the retry of its run, and a run without `force` must read only changes."""
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


def test_a_backfill_as_the_first_load_reads_each_object_once(site_of: Callable[..., Site]) -> None:
    """After a backfill of everything, the sensor's first batch must find nothing to read."""
    site = site_of()
    site.write(*SLOTS)
    assert chosen(site, "all").success
    first = site.batch()["batch_objects_read_again"]
    assert (first, sum(site.metadata(slot)["objects_read"] for slot in SLOTS)) == (0, 3)
    generations = {slot: site.metadata(slot)["table_version"] for slot in SLOTS}
    site.settle()
    assert {slot: site.metadata(slot)["table_version"] for slot in SLOTS} == generations
    assert set(generations.values()) == {1}


def test_a_retry_continues_and_another_run_starts_over(site_of: Callable[..., Site]) -> None:
    """Dagster's retry of a failed run must read only the objects that the failed run has not read. A run that a person
    executes again must read all objects.
    """
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


def test_slot_assets_are_made_again_by_a_backfill(site_of: Callable[..., Site]) -> None:
    """A backfill must make slot assets again, together with their source or alone. The run must report the number of
    objects.
    """
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
