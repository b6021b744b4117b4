"""Runs of the ingest step: their commits, and their slots in Dagster's grid."""

import json
from collections.abc import Callable

import dagster as dg
import pytest

from s3notify_platform.engine import loop
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.io_manager import FAILURE_TAG
from s3notify_platform.protocols.ack_chain import AckChains
from tests.support.site import Site

START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
TRANSFORMS = "tests.support.transforms"


def test_a_run_materializes_exactly_its_scattered_slots(site_of: Callable[..., Site]) -> None:
    """The grid must show exactly the slots of the run, although the run has no partition tag."""
    site = site_of(slots=1000)
    site.write(3, 42, 999)
    site.write(500)
    assert site.run([3, 42, 999]).success
    assert site.grid() == {"materialized": {3, 42, 999}, "failed": set(), "running": set()}
    assert site.rows(slots=[3, 42, 500, 999]) == {3: [3], 42: [42], 999: [999]}


@pytest.mark.thorough
def test_each_materialization_has_the_figures_of_its_slot(site_of: Callable[..., Site]) -> None:
    """The run's last materialization must also have the table's column schema. The summary must have the figures of the
    batch.
    """
    schema = "id bigint COMMENT 'Number of the order', amount double"
    site = site_of(transform=f"{TRANSFORMS}.doubled", schema=schema)
    site.write(3, body=site.line(3) + site.line(33) + b"not json\n")
    site.write(5, body=b"\n")
    site.write(7)
    assert site.run([3, 5, 7]).success
    assert [site.metadata(slot)["objects_without_records"] for slot in (3, 5, 7)] == [0, 1, 0]
    found = site.metadata(3)
    assert not [value for slot in (3, 5, 7) for value in site.metadata(slot).values() if "http" in str(value)]
    assert {
        name: found[name]
        for name in (
            *("objects_read", "records_read", "records_rejected", "rejected_records_in_quarantine"),
            *("table_version", "outcome", "dagster/partition_row_count"),
        )
    } == {
        "objects_read": 1,
        "records_read": 2,
        "records_rejected": 1,
        "rejected_records_in_quarantine": 1,
        "table_version": 1,
        "outcome": "committed",
        "dagster/partition_row_count": 2,
    }
    assert found["bytes_read"] > 0
    last, batch = site.metadata(7), site.batch()
    assert found["quarantine"] == dg.AssetKey("orders_summary")
    assert "quarantine" not in last
    assert found["batch"] == last["batch"] == batch["batch"]
    numbers = [{name for name, value in of.items() if isinstance(value, int | float)} for of in (found, last)]
    assert numbers[0] == numbers[1], "Dagster plots only figures of the slot"
    assert batch["batch_slots"] == batch["batch_objects"] == 3
    assert (batch["batch_rows"], batch["batch_rejects"], batch["batch_objects_without_records"]) == (3, 1, 1)
    assert batch["batch_bytes"] == sum(site.metadata(slot)["bytes_read"] for slot in (3, 5, 7))
    assert batch["batch_requests"] > batch["batch_requests_LIST"] >= 1
    for phase in ("spark_start", "plan", "job", "commit", "report"):
        assert 0 <= batch[f"batch_seconds_{phase}"] <= batch["batch_seconds"] + 1
    columns = {column.name: column.type for column in last["dagster/column_schema"].columns}
    assert columns == {
        "_slot": "int",
        "_key": "string",
        "_etag": "string",
        "_offset": "bigint",
        "id": "bigint",
        "amount": "double",
        "twice": "double",
    }
    about = {column.name: column.description for column in last["dagster/column_schema"].columns}
    assert (about["id"], about["twice"]) == ("Number of the order", None)
    assert about["_key"] == "Key of the object that the row is from"

    assert site.run([3], force=False).success
    again = site.metadata(3)
    assert (again["outcome"], again["records_read"], again["rejected_records_in_quarantine"]) == (
        "unchanged",
        0,
        1,
    )
    assert (again["dagster/partition_row_count"], again["table_version"]) == (2, 1)


def test_a_failing_slot_fails_alone(site_of: Callable[..., Site]) -> None:
    """All other slots must be committed and shown. The run must show the failed slot with the reason."""
    site = site_of(transform=f"{TRANSFORMS}.unlucky")
    site.write(2, 13, 15)
    result = site.run([2, 13, 15])
    assert not result.success
    assert site.grid() == {"materialized": {2, 15}, "failed": {13}, "running": set()}
    assert site.rows() == {2: [2], 15: [15]}
    assert "1 of the run's slots failed (13)" in site.failure(result)
    assert "13 is unlucky" in site.failure(result)
    run = site.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert "13 is unlucky" in run.tags[FAILURE_TAG]

    site.write(13, body=site.line(12))
    assert site.run([13]).success
    assert site.grid() == {"materialized": {2, 13, 15}, "failed": set(), "running": set()}


@pytest.mark.thorough
def test_a_run_of_a_range_reports_only_committed_slots(site_of: Callable[..., Site]) -> None:
    """The UI and backfills start runs of a range. Dagster plans a materialization of every slot in the range, but the
    run must report only the slots that were committed.
    """
    site = site_of(transform=f"{TRANSFORMS}.unlucky")
    site.write(12, 13, 14, 5)
    result = site.run(tags={START: "11", END: "14"})
    assert not result.success
    assert site.grid() == {"materialized": {11, 12, 14}, "failed": {13}, "running": set()}
    assert site.rows() == {12: [12], 14: [14]}


@pytest.mark.thorough
def test_a_run_for_a_single_partition_ingests_one_slot(site: Site) -> None:
    """The UI starts a run for a single partition from the partition's page. If the run ignored the partition, it would
    have no slots and fail, so a person could not read a slot again from this page.
    """
    site.write(4, 5)
    assert site.run(partition_key="5").success
    assert site.grid() == {"materialized": {5}, "failed": set(), "running": set()}


@pytest.mark.thorough
def test_rows_of_overwritten_and_deleted_objects_are_removed(site: Site) -> None:
    """The old rows must be removed by the commit that adds the new ones."""
    site.write(1, 2)
    site.run([1, 2])
    site.write(1, body=site.line(100))
    site.delete(2)
    assert site.run([1, 2]).success
    assert site.rows() == {1: [100]}
    assert site.metadata(2)["objects_removed"] == 1


def test_a_changed_code_version_reads_nothing_unasked(site_of: Callable[..., Site]) -> None:
    """Unchanged objects must be read again only when a person requests their slots. The sweep must not count such
    objects as missed.
    """
    before = site_of()
    before.write(1, 2, 5)
    before.write(2, number=1)
    assert before.run([1, 2, 5]).success
    after = site_of(bucket=before.component.bucket, transform=f"{TRANSFORMS}.doubled", code_version="2")
    spec = after.defs.resolve_assets_def("orders").get_asset_spec(dg.AssetKey("orders"))
    assert spec.code_version == "2"
    assert all(check.passed for check in after.sweep().values())

    def doubled() -> list[tuple[int, float | None]]:
        rows = after.io.load([Slot(1), Slot(2), Slot(5)]).select("_slot", "twice").toArrow().to_pylist()
        return sorted(((row["_slot"], row["twice"]) for row in rows), key=str)

    after.write(2, number=2)
    assert after.run([1, 2], force=False).success
    assert after.metadata(1)["outcome"] == "unchanged"
    assert [twice for _, twice in doubled()].count(None) == 4, "only the new object is read"
    assert after.run([1, 2]).success
    assert doubled() == [(1, 3.0), (2, 3.0), (2, 3.0), (2, 3.0), (5, None)]


def test_slot_assets_are_made_in_the_step_of_their_source(site_of: Callable[..., Site]) -> None:
    """The derived slots must be made in the same step, from exactly the batch's commit."""
    site = site_of(slot_assets=[f"{TRANSFORMS}.paid_orders"])
    site.write(1, body=site.line(1) + site.line(11, amount=-1))
    site.write(6)
    assert site.run([1, 6]).success
    assert site.rows() == {1: [1, 11], 6: [6]}
    assert site.rows("paid_orders") == {1: [1], 6: [6]}
    assert site.grid("paid_orders") == site.grid("orders")
    assert site.metadata(1, "paid_orders")["dagster/partition_row_count"] == 1
    assert {c.name for c in site.metadata(6, "paid_orders")["dagster/column_schema"].columns} >= {
        "id",
        "_slot",
    }


@pytest.mark.thorough
def test_a_slot_that_fails_downstream_does_not_delay_its_source(site_of: Callable[..., Site]) -> None:
    """The source's slot is committed, reported and acknowledged, so its next change must be requested immediately."""
    site = site_of(slot_assets=[f"{TRANSFORMS}.lucky_orders"])
    site.settle()
    site.write(2, 13, 15)
    (request,) = site.tick()
    result = site.launch(request)
    assert not result.success
    assert "13 is unlucky" in site.failure(result)
    assert site.grid("orders") == {"materialized": {2, 13, 15}, "failed": set(), "running": set()}
    assert site.grid("lucky_orders") == {"materialized": {2, 15}, "failed": {13}, "running": set()}
    site.write(13, body=site.line(12))
    (request,) = site.tick() or site.tick()
    assert site.slots_of(request) == [13]
    assert site.launch(request).success
    assert site.grid("lucky_orders")["materialized"] == {2, 13, 15}


@pytest.mark.thorough
def test_a_slot_asset_can_be_made_again_alone(site_of: Callable[..., Site]) -> None:
    """A slot asset must be made from the committed rows, without reading the bucket."""
    site = site_of(slot_assets=[f"{TRANSFORMS}.paid_orders"])
    site.write(1, 6)
    assert site.run([1, 6], asset_selection=["orders"]).success
    assert site.grid("paid_orders")["materialized"] == set()
    assert site.run(tags={START: "1", END: "2"}, asset_selection=["paid_orders"]).success
    assert site.run(partition_key="6", asset_selection=["paid_orders"]).success
    assert site.grid("paid_orders")["materialized"] == {1, 2, 6}
    assert site.rows("paid_orders") == {1: [1], 6: [6]}


def test_a_crash_between_report_and_stamp_loses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots must be requested again, found unchanged, reported and acknowledged."""
    site.settle()
    site.write(3)
    (request,) = site.tick()
    with monkeypatch.context() as patched:
        patched.setattr(AckChains, "finish", lambda *_, **__: (_ for _ in ()).throw(SystemError("killed")))
        assert not site.launch(request).success
    assert site.grid()["materialized"] == {3}
    (again,) = site.tick() or site.tick()
    assert site.slots_of(again) == [3]
    assert again.run_key != request.run_key
    assert site.launch(again).success
    assert site.metadata(3)["outcome"] == "unchanged"
    assert site.tick() == []
    assert site.state.open == ()
    assert site.state.failing == {}
    assert site.rows() == {3: [3]}


def test_two_runs_on_a_slot_commit_each_row_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person may start a run for a slot that the sensor has already requested. Here the sensor's run has planned and
    read the slot, but has not committed it, while the person's run does all its work. If the second run added the rows
    again, sums over the table would be too high. If the second run failed, the sensor would retry a slot that is
    committed.
    """
    site.settle()
    site.write(3)
    (request,) = site.tick()
    commit = loop.commit_round
    person: list[dg.ExecuteInProcessResult] = []

    def commit_second(staged: loop.Round) -> None:
        monkeypatch.setattr(loop, "commit_round", commit)
        person.append(site.run([3]))
        commit(staged)

    monkeypatch.setattr(loop, "commit_round", commit_second)
    assert site.launch(request).success
    assert [run.success for run in person] == [True]
    assert site.rows() == {3: [3]}
    site.settle()
    assert site.state.failing == {}


def test_the_assets_have_owners_kinds_group_and_description(site_of: Callable[..., Site]) -> None:
    """Dagster's catalogue shows these attributes. Otherwise a user of the catalogue would not know the owner and the
    content of an asset, and could not find the assets of a group or a kind.
    """
    site = site_of(
        slot_assets=[f"{TRANSFORMS}.paid_orders"],
        owners=["ann@example.com"],
        group="sales",
        description="Orders.",
    )
    specs = {spec.key.path[-1]: spec for spec in site.defs.resolve_all_asset_specs()}
    assert set(specs) == {"orders", "paid_orders", "orders_summary", "orders_queue"}
    assert list(specs["orders"].owners) == ["ann@example.com"]
    assert list(specs["paid_orders"].owners) == ["team:sales"]
    assert specs["orders"].kinds == {"s3", "pyspark", "deltalake"}
    assert specs["paid_orders"].description == "Orders with an amount above zero."
    assert specs["orders"].description == "Orders."
    assert {spec.group_name for spec in specs.values()} == {"sales"}
    assert all(spec.kinds and spec.description for spec in specs.values())


@pytest.mark.parametrize(
    ("kind", "objects"), [("auto", "objects"), ("csv", "csv objects"), ("parquet", "parquet objects")]
)
def test_the_default_description_names_the_objects(
    site_of: Callable[..., Site], kind: str, objects: str
) -> None:
    """With format `auto`, the objects may have several formats. So the sentence must not name one."""
    site = site_of(format=kind)
    (spec,) = [spec for spec in site.defs.resolve_all_asset_specs() if spec.key == dg.AssetKey("orders")]
    where = f"s3://{site.component.bucket}/raw/"
    assert str(spec.description).startswith(
        f"A Delta table with a row for each record of the {objects} below `{where}`, partitioned into slots by a hash "
    )


def test_the_whole_run_config_is_small_and_readable(site: Site) -> None:
    """The sensor's request must name only the slots, the batch and its kind."""
    site.settle()
    site.write(3, 4)
    (request,) = site.tick()
    batch = request.tags["s3notify/batch"]
    config = {"batch": batch, "everything": False, "force": False, "slots": [3, 4]}
    assert json.loads(json.dumps(request.run_config)) == {"ops": {"orders_slots": {"config": config}}}
    assert (
        dg.AssetKey("orders") in site.defs.resolve_job_def("orders_ingest").asset_layer.executable_asset_keys
    )
