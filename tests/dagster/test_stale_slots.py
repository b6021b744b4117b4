"""Slots that another code version made: Dagster's view of these slots, and ways to make the slots again."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.local.project import sources_of
from s3notify_platform.orchestration.source_assets import SlotAsset
from tests.support.site import Site

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOTS = (1, 2, 5)
JOBS = """
from pyspark.sql import functions as F
from s3notify_platform import s3_slot_asset

FACTOR = 2


def clean(df):
    return df.withColumn("many", F.col("amount") * FACTOR)


@s3_slot_asset(source="orders")
def daily(df):
    return df.where("amount > 0")
"""


@pytest.fixture
def coded(
    site_of: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Site]:
    """Returns a function that makes the source of one bucket. The function's argument is the text of the source's code
    module.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known: dict[str, Site] = {}

    def site(text: str, **attributes: object) -> Site:
        (tmp_path / "stale_project.py").write_text(text)
        sys.modules.pop("stale_project", None)
        importlib.invalidate_caches()
        given = {"transform": "stale_project.clean", "slot_assets": ["stale_project.daily"], **attributes}
        if known:
            given["bucket"] = known["last"].component.bucket
        found = site_of(**given)
        found.cursor = known["last"].cursor if known else None
        assert found.defs  # the definitions are loaded before the file changes again
        known["last"] = found
        return found

    return site


def statuses(site: Site, asset: str) -> dict[int, tuple[str, ...]]:
    """The asset's slots that Dagster shows as stale, with the reasons."""
    graph = site.defs.resolve_asset_graph()
    found = CachingStaleStatusResolver(site.instance, graph, LoadingContextForTest(site.instance))
    key, stale = dg.AssetKey(asset), {}
    for slot in range(16):
        status = found.get_status(key, str(slot))
        assert (status is StaleStatus.MISSING) == (slot not in SLOTS)
        if status is StaleStatus.STALE:
            causes = found.get_stale_root_causes(key, str(slot))
            stale[slot] = tuple(f"{cause.category.value}: {cause.reason}" for cause in causes)
    return stale


CODE = ("CODE: has a new code version",)


def chosen(site: Site, choose: str, *only: str) -> dg.ExecuteInProcessResult:
    config = {"ops": {"orders_slots": {"config": {"choose": choose, "only": list(only)}}}}
    return site.defs.resolve_job_def("orders_ingest").execute_in_process(
        run_config=config, instance=site.instance, raise_on_error=False
    )


def many(site: Site) -> dict[int, list[float]]:
    rows = site.io.load([Slot(slot) for slot in SLOTS]).toArrow().to_pylist()
    return {slot: sorted(row["many"] for row in rows if row["_slot"] == slot) for slot in SLOTS}


def generations(site: Site, asset: str) -> dict[int, int]:
    return {slot: site.metadata(slot, asset)["table_version"] for slot in SLOTS}


def test_slots_are_stale_until_they_are_made_again(coded: Callable[..., Site]) -> None:
    """A change of the transform, or of code that it uses, must make all slots stale. If a slot changes after that, its
    batch must use the new code.
    """
    before = coded(JOBS)
    before.write(*SLOTS)
    before.settle()
    assert statuses(before, "orders") == statuses(before, "daily") == {}

    site = coded(JOBS.replace("FACTOR = 2", "FACTOR = 3"))
    assert statuses(site, "orders") == dict.fromkeys(SLOTS, CODE)
    assert statuses(site, "daily") == {}
    made = generations(site, "orders")
    assert site.tick() == []
    assert site.follow() == []
    site.write(1, number=1)
    site.settle()
    assert many(site) == {1: [3.0, 4.5], 2: [3.0], 5: [3.0]}
    assert {slot for slot, at in generations(site, "orders").items() if at != made[slot]} == {1}
    assert statuses(site, "orders") == dict.fromkeys(SLOTS, CODE)
    assert statuses(site, "daily") == {}

    assert site.run([2]).success
    assert statuses(site, "orders") == dict.fromkeys((1, 5), CODE)
    assert chosen(site, "stale").success
    assert many(site) == {1: [4.5, 4.5], 2: [4.5], 5: [4.5]}
    assert statuses(site, "orders") == statuses(site, "daily") == {}
    assert "no slot of this source is 'stale'" in site.failure(chosen(site, "stale"))
    again = coded(JOBS.replace("FACTOR = 2", "# three\nFACTOR = 3"))
    assert statuses(again, "orders") == {}


def test_a_changed_slot_asset_is_made_again_but_its_source_is_not(coded: Callable[..., Site]) -> None:
    """The source must not be read again. The summary must count the slots that Dagster shows as stale."""
    before = coded(JOBS)
    before.write(*SLOTS)
    before.settle()
    site = coded(JOBS.replace("amount > 0", "amount > 1"))
    assert statuses(site, "orders") == {}
    assert statuses(site, "daily") == dict.fromkeys(SLOTS, CODE)
    assert site.follow() == []
    (event,) = [e for e in site.upkeep().asset_events if e.asset_key == dg.AssetKey("orders_summary")]
    assert event.metadata["slots_stale_daily"].value == 3
    assert [e for e in site.upkeep().asset_events if e.asset_key == dg.AssetKey("orders_summary")] == []
    source, derived = generations(site, "orders"), generations(site, "daily")
    assert chosen(site, "stale").success
    assert generations(site, "orders") == source
    assert all(at > derived[slot] for slot, at in generations(site, "daily").items())
    assert statuses(site, "daily") == {}
    assert summary(site) == {"slots_stale_orders": 0, "slots_stale_daily": 0}
    other = coded(JOBS.replace("amount > 0", "amount > 2"))
    assert chosen(other, "stale", "daily").success
    assert statuses(other, "daily") == {}


def summary(site: Site) -> dict[str, object]:
    return {name: count for name, count in site.batch().items() if name.startswith("slots_stale")}


def test_adding_or_removing_a_transform_makes_slots_stale(coded: Callable[..., Site]) -> None:
    before = coded(JOBS, transform=None)
    before.write(*SLOTS)
    before.settle()
    assert statuses(before, "orders") == {}
    with_one = coded(JOBS)
    assert statuses(with_one, "orders") == dict.fromkeys(SLOTS, CODE)
    assert chosen(with_one, "stale").success
    assert statuses(with_one, "orders") == {}
    assert statuses(coded(JOBS, transform=None), "orders") == dict.fromkeys(SLOTS, CODE)


def test_declared_code_versions_override_fingerprints(coded: Callable[..., Site]) -> None:
    """A declared code version must apply to transforms and to slot assets."""
    declared = JOBS.replace('source="orders")', 'source="orders", code_version="v7")')
    site = coded(declared, code_version="v3")
    assert site.component.assets().code_versions == {"orders": "v3", "daily": "v7"}
    other = coded(declared.replace("amount > 0", "amount > 1").replace("= 2", "= 3"), code_version="v3")
    assert other.component.assets().code_versions == {"orders": "v3", "daily": "v7"}
    graph = other.defs.resolve_asset_graph()
    assert [graph.get(dg.AssetKey(name)).code_version for name in ("orders", "daily")] == ["v3", "v7"]
    (asset,) = other.component.assets().slot_assets
    assert isinstance(asset, SlotAsset)


def test_a_transform_without_source_code_has_no_code_version(coded: Callable[..., Site]) -> None:
    """A transform whose source code is not found must still be loaded, and must work."""
    text = JOBS + "\nglobals()['odd'] = clean\n"
    site = coded(text, transform="stale_project.odd")
    assert site.component.assets().code_versions["orders"] == ""
    site.write(*SLOTS)
    site.settle()
    assert statuses(site, "orders") == {}


def test_commands_compute_the_same_code_versions_as_dagster(
    coded: Callable[..., Site], tmp_path: Path
) -> None:
    """Commands read the same YAML as Dagster, but do not import the user's code. If a command computed other code
    versions, the command would report wrong slots as stale.
    """
    site = coded(JOBS)
    folder = tmp_path / "defs" / "orders"
    folder.mkdir(parents=True)
    (folder / "defs.yaml").write_text(
        "attributes: {name: orders, bucket: b, transform: stale_project.clean, slot_assets: [stale_project.daily]}"
    )
    (source,) = sources_of(str(tmp_path / "defs"))
    sys.modules.pop("stale_project")
    assert source.code_versions == site.component.assets().code_versions
    assert all(source.code_versions.values())
