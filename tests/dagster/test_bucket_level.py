"""The whole bucket: the sweep as asset checks, assets of other steps, tags."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from s3notify_platform.engine.batch.heartbeats import HEARTBEATS, Beat
from s3notify_platform.engine.loop import Round, commit_round
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.orchestration import io_manager
from s3notify_platform.orchestration.checks import OVERDUE_SECONDS
from s3notify_platform.orchestration.partitions import slot_partitions
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.snapshot import Snapshot
from tests.support.ingested import derive
from tests.support.site import Site
from tests.support.transforms import doubled


def slot_asset(site: Site, **given: object) -> Callable[[Callable[..., DataFrame]], dg.AssetsDefinition]:
    """Decorates a function as a slot-partitioned asset that takes the source's rows."""
    return dg.asset(  # type: ignore[call-overload,no-any-return]
        partitions_def=slot_partitions(site.component.slots),
        io_manager_key="orders_slots",
        ins={"orders": dg.AssetIn(input_manager_key="orders_slots")},
        **given,
    )


def materialize(site: Site, *assets: dg.AssetsDefinition, **arguments: object) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        assets,
        instance=site.instance,
        resources={"orders_slots": site.component.assets().io},
        raise_on_error=False,
        **arguments,  # type: ignore[arg-type]
    )


def test_the_sweep_finds_unannounced_changes(site: Site) -> None:
    """The sweep must signal the slots of unannounced changes, so that the next batch reads the changes."""
    site.write(1, 2)
    site.settle()
    swept = site.sweep()
    assert swept["complete"].passed
    assert swept["chains_settled"].passed
    assert swept["complete"].metadata["objects_in_bucket"].value == 2
    assert site.tick() == []

    site.write_silently(1, body=site.line(100))
    site.write_silently(7)
    site.store.delete(site.key(2))
    site.write(9)
    found = site.sweep()["complete"]
    assert not found.passed
    assert found.metadata["found_by_sweep"].value == 3
    assert found.metadata["pending"].value == 1
    assert found.metadata["slots_signalled"].value == 3
    assert found.metadata["missed_slots"].value == "1, 2, 7"
    (request,) = site.tick()
    assert site.slots_of(request) == [1, 2, 7, 9]
    site.launch(request)
    site.settle()
    assert site.rows() == {1: [100], 7: [7], 9: [9]}
    assert site.sweep()["complete"].passed


def test_the_sweep_merges_small_files(site_of: Callable[..., Site]) -> None:
    """The files of all tables of the source must be merged, and the rows must stay the same."""
    site = site_of(cluster_by="id")
    for number in range(3):
        site.write(1, 2, number=number)
        site.settle()

    def packs(asset: str | None) -> int:
        found = site.io.source.table(asset).newest()
        assert isinstance(found, Snapshot)
        return len(found.packs)

    rows = site.rows()
    assert min(packs(None), packs("orders_clustered")) > 1
    assert site.sweep()["complete"].passed
    assert (packs(None), packs("orders_clustered")) == (1, 1)
    assert site.rows() == rows


@pytest.mark.thorough
def test_the_sweep_warns_of_overdue_changes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An announced change that is not committed for a long time must cause a warning. Keys that S3 clients cannot
    address must be counted too.
    """
    odd = f"{site.key(1)}/../x"
    site.store.put(odd, site.line(1))
    site.settle()
    site.write(9)
    found = site.sweep()["complete"]
    assert (found.metadata["pending"].value, found.metadata["overdue"].value) == (1, 0)
    assert found.metadata["unaddressable_slots"].value == str(slot_of(odd, 16))
    monkeypatch.setattr("s3notify_platform.orchestration.checks.OVERDUE_SECONDS", -1)
    found = site.sweep()["complete"]
    assert not found.passed
    assert found.metadata["overdue_slots"].value == "9"


@pytest.mark.thorough
def test_the_sweep_fails_for_a_slot_it_cannot_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots with damaged states must be named. Otherwise the check would pass for slots that nobody compared."""
    monkeypatch.setattr("s3notify_platform.table.states.state_levels.STATES_INLINE", 0)
    site.write(5)
    site.settle()
    for meta in list(list_all(site.store, site.io.source.location.layout.states)):
        damaged = meta.key
        site.store.put(damaged, bytes(meta.size))
    found = site.sweep()["complete"]
    assert not found.passed
    assert damaged.rpartition("/")[2].partition(".")[0] in str(found.metadata["slots_unreadable"])


@pytest.mark.thorough
def test_the_sweep_refuses_a_table_with_lost_versions(site: Site) -> None:
    """The sweep must change nothing, and say what to do. Runs must refuse the table, too, until a person accepts the
    loss.
    """
    site.write(1, 2)
    site.settle()
    layout = site.io.source.location.layout
    site.store.delete(layout.version(1))
    site.write_silently(2, body=site.line(200))
    found = site.sweep()["complete"]
    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.ERROR
    assert "s3notify table forget" in str(found.description)
    assert site.tick() == [], "nothing was signalled"

    failed = site.run([1, 2])
    assert not failed.success
    assert "s3notify table forget" in site.failure(failed)

    site.forget()
    site.settle()
    assert site.rows() == {1: [1], 2: [200]}
    assert site.sweep()["complete"].passed


@pytest.mark.thorough
def test_the_sweep_keeps_a_bounded_number_of_changes(site_of: Callable[..., Site]) -> None:
    """The changes beyond the limit must be counted, and found by the next sweep."""
    site = site_of(max_objects=4, slots=2)
    site.settle()
    site.publish([])
    for number in range(10):
        site.write_silently(0, number=number)
    found = site.sweep()["complete"]
    assert not found.passed
    shown = {name: value.value for name, value in found.metadata.items()}
    assert shown["found_by_sweep"] <= 4
    assert shown["beyond_max_objects"] == 10 - shown["found_by_sweep"]
    assert shown["ranges"] == 1
    assert shown["cuts_overrun"] == 0
    assert shown["objects_per_second"] > 0
    assert shown["requests"]["LIST"] >= 1
    site.settle()
    assert site.sweep()["complete"].passed
    assert len(site.rows()[0]) == 10


@pytest.mark.thorough
def test_the_sweep_shows_open_chains_and_removes_old_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats of killed runs must be removed too."""
    site.settle()
    site.write(3)
    (request,) = site.tick()
    batch = request.tags["s3notify/batch"]
    site.io.clients.records.create(HEARTBEATS, "a-run-that-was-killed", Beat(number=5).dumps())
    assert site.sweep()["chains_settled"].passed
    assert list(site.io.clients.records.scan(HEARTBEATS)) == []
    monkeypatch.setattr("s3notify_platform.orchestration.checks.OVERDUE_SECONDS", -1)
    open_for_long = site.sweep()["chains_settled"]
    assert not open_for_long.passed
    assert open_for_long.metadata["overdue_batches"].value == [batch]
    assert OVERDUE_SECONDS == 3600

    site.launch(request)
    old = AckChains(site.io.clients.records, tombstone_seconds=0)
    old.open_batch("long ago", ["1"])
    old.fail("long ago", "over")
    settled = site.sweep()["chains_settled"]
    assert settled.passed
    assert settled.metadata["purged"].value == 1
    assert "long ago" not in set(site.io.clients.chains.tags())
    assert batch in set(site.io.clients.chains.tags())


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
@pytest.mark.thorough
def test_assets_of_other_steps_load_committed_rows(site: Site) -> None:
    """A slot-partitioned asset must get the rows of its slots. An asset without partitions must get all rows, as one
    DataFrame.
    """
    site.write(1, 2, 9)
    assert site.run([1, 2, 9]).success
    parts = slot_partitions(site.component.slots)
    seen: dict[str, object] = {}

    @slot_asset(site)
    def twice(orders: DataFrame) -> DataFrame:
        return doubled(orders)

    @dg.asset(
        ins={
            "orders": dg.AssetIn(input_manager_key="orders_slots"),
            "twice": dg.AssetIn(input_manager_key="orders_slots"),
        }
    )
    def total(orders: DataFrame, twice: DataFrame) -> None:
        seen["all"] = sorted(row["id"] for row in orders.toArrow().to_pylist())
        seen["twice"] = [(row["id"], row["twice"]) for row in twice.toArrow().to_pylist()]
        seen["columns"] = twice.columns

    spec = dg.AssetSpec("orders", partitions_def=parts)
    done = materialize(site, twice, spec, partition_key="2", selection=["twice"])  # type: ignore[arg-type]
    assert done.success
    (event,) = done.get_asset_materialization_events()
    assert event.materialization.metadata["rows"].value == 1
    assert materialize(site, total, twice, spec, selection=["total"]).success  # type: ignore[arg-type]
    assert seen["all"] == [1, 2, 9]
    assert seen["twice"] == [(2, 3.0)]
    assert seen["columns"] == ["_slot", "_key", "_etag", "_offset", "id", "amount", "twice"]

    ranged = {"dagster/asset_partition_range_start": "1", "dagster/asset_partition_range_end": "9"}

    @slot_asset(site, name="twice", backfill_policy=dg.BackfillPolicy.single_run())
    def twice_at_once(orders: DataFrame) -> DataFrame:
        return doubled(orders)

    assert materialize(site, twice_at_once, spec, tags=ranged, selection=["twice"]).success  # type: ignore[arg-type]
    assert site.rows("twice") == {1: [1], 2: [2], 9: [9]}


@pytest.mark.thorough
def test_a_run_fails_if_another_run_commits_its_slot_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the rows of this run, which may be newer, would be lost, and the run would report them as committed."""
    site.write(1)
    assert site.run([1]).success
    spec = dg.AssetSpec("orders", partitions_def=slot_partitions(site.component.slots))

    @slot_asset(site)
    def mine(orders: DataFrame) -> DataFrame:
        return orders.select("_slot", "id")

    def other_first(round_: Round) -> None:
        theirs = pa.table({"_slot": pa.array([1], pa.int32()), "id": pa.array([9], pa.int64())})
        derive(site.io.settle_commit_mode(), "mine", theirs, {Slot(1): 0})
        commit_round(round_)

    with monkeypatch.context() as patched:
        patched.setattr(io_manager, "commit_round", other_first)
        result = materialize(site, mine, spec, partition_key="1", selection=["mine"])  # type: ignore[arg-type]
    assert "slot 1: another run committed the slot first: run this slot again" in site.failure(result)
    assert site.rows("mine") == {1: [9]}
    assert materialize(site, mine, spec, partition_key="1", selection=["mine"]).success  # type: ignore[arg-type]
    assert site.rows("mine") == {1: [1]}


@pytest.mark.thorough
def test_a_run_fails_if_its_slot_was_committed_after_its_input_was_loaded(site: Site) -> None:
    """Otherwise a slow run would replace newer rows with rows of an older version of the source."""
    site.write(1)
    assert site.run([1]).success
    spec = dg.AssetSpec("orders", partitions_def=slot_partitions(site.component.slots))

    @slot_asset(site)
    def mine(context: dg.AssetExecutionContext, orders: DataFrame) -> DataFrame:
        if newer := context.run.tags.get("slow"):
            site.write(1, body=site.line(int(newer)))
            assert site.run([1]).success
            assert made().success
        return orders.select("_slot", "id")

    def made(**given: object) -> dg.ExecuteInProcessResult:
        return materialize(site, mine, spec, partition_key="1", selection=["mine"], **given)  # type: ignore[arg-type]

    for newer in (7, 8):  # in the first round, the asset has no table yet
        slow = made(tags={"slow": str(newer)})
        assert "slot 1: another run committed the slot first: run this slot again" in site.failure(slow)
        assert site.rows("mine") == {1: [newer]}
    assert made().success
    assert site.rows("mine") == {1: [8]}


@pytest.mark.thorough
def test_a_frame_without_slots_or_partitions_is_refused(site: Site) -> None:
    """In this test, one asset drops the slot column, and another asset has no partitions. The message must name the
    mistake.
    """
    site.write(1)
    assert site.run([1]).success
    parts = slot_partitions(site.component.slots)
    spec = dg.AssetSpec("orders", partitions_def=parts)
    ins = {"orders": dg.AssetIn(input_manager_key="orders_slots")}

    @dg.asset(partitions_def=parts, io_manager_key="orders_slots", ins=ins)
    def slotless(orders: DataFrame) -> DataFrame:
        return orders.select("id")

    @dg.asset(io_manager_key="orders_slots", ins=ins)
    def whole(orders: DataFrame) -> DataFrame:
        return orders

    result = materialize(site, slotless, spec, partition_key="1", selection=["slotless"])  # type: ignore[arg-type]
    assert "slotless: the returned DataFrame lacks _slot" in site.failure(result)
    result = materialize(site, whole, spec, selection=["whole"])  # type: ignore[arg-type]
    assert "stores slot-partitioned assets only" in site.failure(result)


def test_committed_objects_are_tagged(site_of: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket without versioning, a batch must say what to do, and must not fail. If a batch has no time left to
    tag its objects, the sweep must tag the remaining objects.
    """
    site = site_of(committed_tags="archive=yes")
    site.settle()
    site.write(1, 2)
    (request,) = site.tick()
    result = site.launch(request)
    assert result.success
    logged = [entry.user_message for entry in site.instance.all_logs(result.run_id)]
    assert [line for line in logged if "enable its versioning" in line]
    site.settle()
    client: Any = S3ObjectStore(site.io.source.location.platform).client
    at = {"Bucket": site.component.bucket}
    client.put_bucket_versioning(**at, VersioningConfiguration={"Status": "Enabled"})
    site.write(1, 2, body=site.line(20))
    monkeypatch.setattr("s3notify_platform.orchestration.assets.BATCH_SECONDS", 0.0)
    site.settle()

    def tags() -> list[tuple[str, str]]:
        found = (client.get_object_tagging(**at, Key=site.key(slot))["TagSet"] for slot in (1, 2))
        return [(each["Key"], each["Value"]) for every in found for each in every]

    def observed() -> dict[str, object]:
        record = site.instance.fetch_observations(dg.AssetKey("orders_summary"), limit=1).records[0]
        assert record.asset_observation is not None
        return {name: value.value for name, value in record.asset_observation.metadata.items()}

    assert tags() == [("archive", "yes")]
    assert observed() == {"slots_tagged": 1, "slots_left_to_tag": 1, "objects_tagged_added": 1}
    site.sweep()
    assert tags() == [("archive", "yes")] * 2
    assert observed() == {"slots_tagged": 1, "slots_left_to_tag": 0, "objects_tagged_added": 1}
