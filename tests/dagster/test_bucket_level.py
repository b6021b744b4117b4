"""What follows from committed slots: summary, quarantine, automation, checks, and assets of other steps."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from s3notify_platform.engine.batch.heartbeats import HEARTBEATS, Beat
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.orchestration import source_services as channels
from s3notify_platform.orchestration.checks import OVERDUE_SECONDS
from s3notify_platform.orchestration.partitions import slot_partitions
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.cursors import store_cursor
from tests.support.drawn import drawn
from tests.support.site import Site
from tests.support.transforms import doubled


def materialize(site: Site, *assets: dg.AssetsDefinition, **arguments: object) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        assets,
        instance=site.instance,
        resources={"orders_slots": site.component.assets().io},
        raise_on_error=False,
        **arguments,  # type: ignore[arg-type]
    )


def summarize(site: Site) -> dg.ExecuteInProcessResult:
    return site.defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=site.instance,
        asset_selection=[dg.AssetKey("orders_summary"), dg.AssetKey("orders_quarantine")],
        raise_on_error=False,
    )


def test_summary_and_quarantine_show_slots_and_rejects(site: Site) -> None:
    """A table, a plot, and what could not be taken in, with its reason."""
    site.write(1, body=site.line(1) + b"{broken\n" + site.line(11))
    site.write(2)
    assert site.run([1, 2]).success
    result = summarize(site)
    assert result.success
    events = {e.asset_key.path[-1]: e for e in result.get_asset_materialization_events() if e.asset_key}
    summary = events["orders_summary"].materialization.metadata
    assert summary["slots"].value == 2
    assert summary["dagster/row_count"].value == 3
    assert summary["rejects"].value == 1
    ages = summary["rows_by_age"]
    assert isinstance(ages, dg.TableMetadataValue)
    assert (
        sum(int(r.data["slots"]) for r in ages.records),
        sum(int(r.data["rows"]) for r in ages.records),
    ) == (2, 3)
    assert sum(len(str(r.data["share"])) for r in ages.records) == 40
    assert not ages.records[-1].data["slots"], "nothing is older than a week"
    rejects = events["orders_quarantine"].materialization.metadata["rejects"]
    assert isinstance(rejects, dg.TableMetadataValue)
    (record,) = rejects.records
    assert record.data["key"] == site.key(1)
    assert record.data["offset"] == len(site.line(1))
    assert record.data["raw"] == "{broken"
    assert record.data["reason"]


def test_summary_shows_what_is_in_flight_and_failing_and_where_time_went(
    site_of: Callable[..., Site],
) -> None:
    """As the sensor and the open batches know it, and of the last runs, also of one that failed."""
    site = site_of(transform="tests.support.transforms.unlucky", backoff_seconds=3600.0)
    site.settle()
    site.write(12, 13)
    (request,) = site.tick()
    assert not site.launch(request).success
    site.tick()
    site.write(5, 6)
    (in_flight,) = site.tick()
    assert site.slots_of(in_flight) == [5, 6]
    store_cursor(site, site.cursor or "")
    result = summarize(site)
    assert result.success
    (summary,) = (
        event.materialization.metadata
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey("orders_summary")
    )
    shown = drawn(str(summary["slot_map"].value))
    assert ("in flight (2)" in shown, "failing (1)" in shown) == (True, True)
    assert (summary["slots_in_flight"].value, summary["slots_failing"].value) == (2, 1)
    failing, seconds = summary["failing_slots"], summary["batch_seconds"]
    assert isinstance(failing, dg.TableMetadataValue)
    (record,) = failing.records
    assert (record.data["slot"], record.data["attempts"]) == (13, 1)
    assert "13 is unlucky" in str(record.data["reason"])
    assert isinstance(seconds, dg.TableMetadataValue)
    batches = [str(record.data["batch"]) for record in seconds.records]
    assert batches[0] == request.tags["s3notify/batch"]
    assert len(batches) == 2, "and the first one"
    assert list(seconds.records[0].data) == [
        *("batch", "poll", "launch", "spark_start", "plan", "job", "commit", "report")
    ]
    assert all(batch[-26:] in drawn(str(summary["batches"].value)) for batch in batches)


def test_freshness_is_the_age_of_the_oldest_uncommitted_change(
    site_of: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of queued and of other writers; not of what a run has committed, though the sensor has not seen its end."""
    monkeypatch.setattr(channels, "OBSERVE_SECONDS", 0)
    site = site_of(fresh_seconds=0.001)
    observed: str | None = None

    def evaluated() -> list[tuple[bool, object]]:
        nonlocal observed
        store_cursor(site, site.cursor or "")
        sensor = site.defs.resolve_sensor_def("orders_reconciler")
        with dg.build_sensor_context(
            instance=site.instance, cursor=observed, resources={"orders_slots": site.component.assets().io}
        ) as context:
            data = sensor.evaluate_tick(context)
        observed = data.cursor
        found = [event for event in data.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
        assert all(event.asset_key == dg.AssetKey("orders_summary") for event in found)
        return [(event.passed, event.metadata["slots"].value) for event in found]

    site.settle()
    assert evaluated() == [(True, 0)]
    site.write(3)
    assert evaluated() == [(False, 1)]
    assert evaluated() == [], "said once"
    site.settle()
    assert evaluated() == [(True, 0)]
    site.write(5)
    (request,) = site.tick()
    assert evaluated() == [(False, 1)], "in flight"
    assert site.launch(request).success
    assert evaluated() == [(True, 0)]
    site.write_unqueued(6)
    (check,) = (e for e in site.job("sweep").get_asset_check_evaluations() if e.check_name == "fresh")
    assert not check.passed


@pytest.mark.thorough
def test_summary_of_an_empty_source(site: Site) -> None:
    """Nothing was ever committed: zeros, no table, no error."""
    result = summarize(site)
    assert result.success
    (summary, _) = result.get_asset_materialization_events()
    assert summary.materialization.metadata["slots"].value == 0


def test_bucket_level_assets_follow_when_some_slots_were_committed(site: Site) -> None:
    """Not only when no slot is missing, which never happens; and not twice."""
    condition = site.defs.resolve_assets_def("orders_summary").automation_conditions_by_key[
        dg.AssetKey("orders_summary")
    ]
    assert condition.get_label() == "when any slot was committed"
    cursor = None

    def requested() -> int:
        nonlocal cursor
        found = dg.evaluate_automation_conditions(site.defs, instance=site.instance, cursor=cursor)
        cursor = found.cursor
        assert found.total_requested == found.get_num_requested(dg.AssetKey("orders_summary")) * 2
        return found.get_num_requested(dg.AssetKey("orders_summary"))

    assert requested() == 0
    site.write(1, 6)
    assert site.run([1, 6]).success
    assert requested() == 1
    assert requested() == 0
    assert summarize(site).success
    assert requested() == 0

    # Committed while the run before was about to start, or had just ended: it may not have seen it.
    site.write(9)
    assert site.run([9]).success
    assert requested() == 1
    site.write(10)
    assert site.run([10]).success
    assert summarize(site).success
    assert requested() == 1
    assert requested() == 0


def check_results(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def test_the_sweep_finds_unannounced_changes(site: Site) -> None:
    """And signals it, so that the next batch takes it in."""
    site.write(1, 2)
    site.settle()
    swept = check_results(site.job("sweep"))
    assert swept["complete"].passed
    assert swept["chains_settled"].passed
    assert swept["complete"].metadata["objects_in_bucket"].value == 2
    assert site.tick() == []

    site.write_silently(1, body=site.line(100))
    site.write_silently(7)
    site.store.delete(site.key(2))
    site.write(9)
    found = check_results(site.job("sweep"))["complete"]
    assert not found.passed
    assert found.metadata["found_by_sweep"].value == 3
    assert found.metadata["pending"].value == 1
    assert found.metadata["slots_signalled"].value == 3
    assert found.metadata["first_key"].value == min(site.key(1), site.key(2), site.key(7))
    (request,) = site.tick()
    assert site.slots_of(request) == [1, 2, 7, 9]
    site.launch(request)
    site.settle()
    assert site.rows() == {1: [100], 7: [7], 9: [9]}
    assert check_results(site.job("sweep"))["complete"].passed


@pytest.mark.thorough
def test_the_sweep_warns_of_what_is_on_its_way_too_long(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Announced, and not committed; and it names keys that S3 clients cannot address, whatever became of them."""
    odd = f"{site.key(1)}/../x"
    site.store.put(odd, site.line(1))
    site.settle()
    site.write(9)
    found = check_results(site.job("sweep"))["complete"]
    assert (found.metadata["pending"].value, found.metadata["overdue"].value) == (1, 0)
    assert found.metadata["unaddressable_keys"].value == [odd]
    monkeypatch.setattr("s3notify_platform.orchestration.checks.OVERDUE_SECONDS", -1)
    found = check_results(site.job("sweep"))["complete"]
    assert not found.passed
    assert found.metadata["overdue_keys"].value == [site.key(9)]


@pytest.mark.thorough
def test_the_sweep_never_vouches_for_a_slot_it_could_not_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that are damaged are named, and the check does not pass."""
    monkeypatch.setattr("s3notify_platform.table.states.state_levels.STATES_INLINE", 0)
    site.write(5)
    site.settle()
    for meta in list(list_all(site.store, site.io.source.location.layout.states)):
        damaged = meta.key
        site.store.put(damaged, bytes(meta.size))
    found = check_results(site.job("sweep"))["complete"]
    assert not found.passed
    assert damaged.rpartition("/")[2].partition(".")[0] in str(found.metadata["slots_unreadable"])


@pytest.mark.thorough
def test_the_sweep_refuses_to_run_over_state_that_is_gone(site: Site) -> None:
    """It repairs nothing, and says what to do; runs refuse the slot too, until the loss is accepted."""
    site.write(1, 2)
    site.settle()
    layout = site.io.source.location.layout
    site.store.delete(layout.version(1))
    site.write_silently(2, body=site.line(200))
    found = check_results(site.job("sweep"))["complete"]
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
    assert check_results(site.job("sweep"))["complete"].passed


@pytest.mark.thorough
def test_the_sweep_holds_a_bounded_number_of_changes(site_of: Callable[..., Site]) -> None:
    """The rest is counted, and found by the next one."""
    site = site_of(max_objects=4, slots=2)
    site.settle()
    site.publish([])
    for number in range(10):
        site.write_silently(0, number=number)
    found = check_results(site.job("sweep"))["complete"]
    assert not found.passed
    shown = {name: value.value for name, value in found.metadata.items()}
    assert shown["found_by_sweep"] <= 4
    assert shown["beyond_max_objects"] == 10 - shown["found_by_sweep"]
    assert shown["ranges"] == 1
    assert shown["cuts_overrun"] == 0
    assert shown["objects_per_second"] > 0
    assert shown["requests"]["LIST"] >= 1
    site.settle()
    assert check_results(site.job("sweep"))["complete"].passed
    assert len(site.rows()[0]) == 10


@pytest.mark.thorough
def test_the_sweep_shows_open_chains_and_removes_what_is_old(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains that ended long ago, and heartbeats of runs that were killed."""
    site.settle()
    site.write(3)
    (request,) = site.tick()
    batch = request.tags["s3notify/batch"]
    site.io.clients.records.create(HEARTBEATS, "a-run-that-was-killed", Beat(number=5).dumps())
    assert check_results(site.job("sweep"))["chains_settled"].passed
    assert list(site.io.clients.records.scan(HEARTBEATS)) == []
    monkeypatch.setattr("s3notify_platform.orchestration.checks.OVERDUE_SECONDS", -1)
    open_for_long = check_results(site.job("sweep"))["chains_settled"]
    assert not open_for_long.passed
    assert open_for_long.metadata["overdue_batches"].value == [batch]
    assert OVERDUE_SECONDS == 3600

    site.launch(request)
    old = AckChains(site.io.clients.records, tombstone_seconds=0)
    old.open_batch("long ago", ["1"])
    old.fail("long ago", "over")
    settled = check_results(site.job("sweep"))["chains_settled"]
    assert settled.passed
    assert settled.metadata["purged"].value == 1
    assert "long ago" not in set(site.io.clients.chains.tags())
    assert batch in set(site.io.clients.chains.tags())


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
@pytest.mark.thorough
def test_assets_of_other_steps_load_what_is_committed(site: Site) -> None:
    """A slot-partitioned asset gets its slots, one without partitions all of them, as one DataFrame."""
    site.write(1, 2, 9)
    assert site.run([1, 2, 9]).success
    parts = slot_partitions(site.component.slots)
    seen: dict[str, object] = {}

    @dg.asset(
        partitions_def=parts,
        io_manager_key="orders_slots",
        ins={"orders": dg.AssetIn(input_manager_key="orders_slots")},
    )
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

    @dg.asset(
        name="twice",
        partitions_def=parts,
        io_manager_key="orders_slots",
        backfill_policy=dg.BackfillPolicy.single_run(),
        ins={"orders": dg.AssetIn(input_manager_key="orders_slots")},
    )
    def twice_at_once(orders: DataFrame) -> DataFrame:
        return doubled(orders)

    assert materialize(site, twice_at_once, spec, tags=ranged, selection=["twice"]).success  # type: ignore[arg-type]
    assert site.rows("twice") == {1: [1], 2: [2], 9: [9]}


@pytest.mark.thorough
def test_what_an_ordinary_asset_may_not_hand_over(site: Site) -> None:
    """No slot column, or no partitions: said plainly."""
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
    assert "slotless: drops _slot" in site.failure(result)
    result = materialize(site, whole, spec, selection=["whole"])  # type: ignore[arg-type]
    assert "stores slot-partitioned assets only" in site.failure(result)


def test_committed_objects_are_tagged(site_of: Callable[..., Site]) -> None:
    """By an asset that follows the batches; without versions it says what to do, and nothing else fails."""
    site = site_of(committed_tags="archive=yes")
    names = {key.to_user_string() for key in site.defs.resolve_asset_graph().get_all_asset_keys()}
    assert "orders_tags" in names

    def tag() -> dg.ExecuteInProcessResult:
        return site.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=site.instance, asset_selection=[dg.AssetKey("orders_tags")], raise_on_error=False
        )

    site.write(1, 2)
    site.settle()
    assert not (refused := tag()).success
    assert "enable its versioning" in site.failure(refused)
    client: Any = S3ObjectStore(site.io.source.location.platform).client
    at = {"Bucket": site.component.bucket}
    client.put_bucket_versioning(**at, VersioningConfiguration={"Status": "Enabled"})
    site.write(1, 2, body=site.line(20))
    site.settle()
    result = tag()
    assert result.success
    (event,) = result.asset_materializations_for_node("orders_tags")
    assert {name: value.value for name, value in event.metadata.items()} == {"slots": 2, "added": 2}
    for slot in (1, 2):
        found = client.get_object_tagging(**at, Key=site.key(slot))["TagSet"]
        assert found == [{"Key": "archive", "Value": "yes"}]
