"""The Delta view as assets of a source: they follow its batches, and say where and how it is read."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from s3notify_platform.orchestration import bucket_assets as module
from s3notify_platform.slots import Slot
from s3notify_platform.table.delta.view import DeltaView
from tests.support.site import Site
from tests.support.viewed import Place, by_delta_rs


@pytest.fixture
def viewed(site_of: Callable[..., Site]) -> Site:
    """A source with a slot asset, and views of both."""
    return site_of(delta=True, slot_assets=["tests.support.transforms.paid_orders"])


def sync(site: Site, *assets: str, repair: bool = False) -> dg.ExecuteInProcessResult:
    names = assets or ("orders_delta",)
    config = {"ops": {name: {"config": {"repair": repair}} for name in names}}
    return site.defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=site.instance,
        asset_selection=[dg.AssetKey(name) for name in names],
        run_config=config if repair else None,
        raise_on_error=False,
    )


def metadata(site: Site, asset: str = "orders_delta") -> dict[str, Any]:
    event = site.instance.get_latest_materialization_event(dg.AssetKey(asset))
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def read(site: Site, asset: str = "orders_delta") -> list[dict[str, Any]]:
    """By delta-rs, from where the metadata says."""
    uri = metadata(site, asset)["dagster/uri"]
    rows = by_delta_rs(Place(uri=uri, config=site.io.source.location.platform))
    return [dict(row) for row in rows]


def test_off_unless_asked_for(site: Site) -> None:
    """Nothing is written that nobody wants."""
    names = {key.to_user_string() for key in site.defs.resolve_asset_graph().get_all_asset_keys()}
    assert "orders_delta" not in names


def test_the_view_shows_what_was_committed(viewed: Site) -> None:
    """The source's table and the slot asset's, with their slots; and what the metadata says is so."""
    viewed.write(1, 2)
    viewed.write(1, number=1)
    viewed.settle()
    assert sync(viewed, "orders_delta", "paid_orders_delta").success
    assert [(row["slot"], row["id"], row["amount"]) for row in read(viewed)] == [
        (1, 1, 1.5),
        (1, 1, 1.5),
        (2, 2, 1.5),
    ]
    assert [row["amount"] for row in read(viewed, "paid_orders_delta")] == [1.5] * 3
    shown = metadata(viewed)
    assert shown["version"] == 0
    assert (shown["slots"], shown["dagster/row_count"], shown["files_removed"]) == (2, 3, 0)
    assert f"delta_scan('{shown['dagster/uri']}')" in shown["how_to_read"]
    assert shown["seconds"] >= 0

    viewed.write(2, body=viewed.line(20))
    viewed.delete(1)
    viewed.settle()
    assert sync(viewed).success
    assert sorted(row["id"] for row in read(viewed)) == [1, 20]
    assert metadata(viewed)["version"] == 1


@pytest.mark.thorough
def test_it_gets_the_slots_that_moved(viewed: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Dagster's events; a person who asks when none did has all slots looked at, and repaired if so asked."""
    asked: list[tuple[list[int], bool]] = []
    plain = DeltaView.sync

    def spied(self: DeltaView, slots: Any, *, repair: bool = False) -> Any:
        asked.append((sorted(slots), repair))
        return plain(self, slots, repair=repair)

    monkeypatch.setattr(DeltaView, "sync", spied)
    every = list(range(viewed.component.slots))
    viewed.write(3, 5)
    viewed.settle()
    assert sync(viewed).success
    viewed.write(5, number=1)
    viewed.settle()
    assert sync(viewed).success
    assert sync(viewed).success
    assert sync(viewed, repair=True).success
    head = viewed.io.source.table().head(Slot(5))
    assert head is not None
    assert module._reported(viewed.instance, "orders") == {3: 1, 5: head.generation}
    assert asked == [([3, 5], False), ([5], False), (every, False), (every, True)]


def test_nothing_committed_yet(viewed: Site) -> None:
    """No table is made up; the run is no failure."""
    assert sync(viewed).success
    assert "nothing has been committed" in metadata(viewed)["note"]


@pytest.mark.thorough
def test_a_column_that_delta_cannot_have(site_of: Callable[..., Site]) -> None:
    """The run fails with its name, and is not retried; the batches go on."""
    site = site_of(delta=True, schema="id bigint, slot string")
    site.write(1, body=b'{"id": 1, "slot": "x"}\n')
    site.settle()
    result = sync(site)
    assert not result.success
    assert "'slot'" in site.failure(result)
    assert site.rows() == {1: [1]}


@pytest.mark.thorough
def test_the_view_follows_by_automation(viewed: Site) -> None:
    """As the summary does: asked for once after a batch, in the same evaluation."""
    cursor = None

    def requested() -> dict[str, int]:
        nonlocal cursor
        found = dg.evaluate_automation_conditions(viewed.defs, instance=viewed.instance, cursor=cursor)
        cursor = found.cursor
        keys = ("orders_summary", "orders_delta", "paid_orders_delta")
        return {key: found.get_num_requested(dg.AssetKey(key)) for key in keys}

    assert set(requested().values()) == {0}
    viewed.write(1)
    viewed.settle()
    assert set(requested().values()) == {1}
    assert set(requested().values()) == {0}
    sensor = viewed.defs.resolve_sensor_def("orders_automation")
    assert isinstance(sensor, dg.AutomationConditionSensorDefinition)
    selected = sensor.asset_selection.resolve(viewed.defs.resolve_asset_graph())
    assert {key.to_user_string() for key in selected} >= {"orders_delta", "paid_orders_delta"}
