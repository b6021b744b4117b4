"""An object that cannot be read, from the sensor's first try to the quarantine, and back by the retry job."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server
from tests.support.site import Site


@pytest.fixture
def proxy(ministack: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(ministack.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def site(spark: SparkSession, ministack: S3Server, proxy: FaultProxy, instance: dg.DagsterInstance) -> Site:
    """It is read through the proxy, and goes to quarantine after two batches."""
    server = replace(
        ministack,
        endpoint_url=proxy.url,
        config=lambda bucket: replace(ministack.config(bucket), endpoint_url=proxy.url),
    )
    return Site.of(server, instance, max_attempts=2)


def retry(site: Site, **config: Any) -> dg.ExecuteInProcessResult:
    return site.defs.resolve_job_def("orders_retry").execute_in_process(
        instance=site.instance,
        raise_on_error=False,
        run_config={"ops": {"orders_retry_quarantine": {"config": config}}},
    )


def quarantine(site: Site) -> dict[str, Any]:
    """What the asset shows."""
    names = ["orders_summary", "orders_quarantine"]
    result = site.defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=site.instance, asset_selection=[dg.AssetKey(name) for name in names]
    )
    events = {e.asset_key.path[-1]: e for e in result.get_asset_materialization_events() if e.asset_key}
    event = events["orders_quarantine"]
    return {name: value.value for name, value in event.materialization.metadata.items()}


@pytest.mark.thorough
def test_an_object_that_cannot_be_read_does_not_park_its_slot(site: Site, proxy: FaultProxy) -> None:
    """The last try gives it up; the slot goes on; the job sends it again, and the next batch takes it in."""
    site.settle()
    bad = site.key(3)
    proxy.forbidden.add(f"/{bad}")
    site.write(3, 5)
    (first,) = site.tick()
    assert not site.launch(first).success
    assert site.rows() == {5: [5]}
    (last,) = site.tick()
    assert site.slots_of(last) == [3]
    assert site.launch(last).success
    assert site.metadata(3)["quarantined"] == site.metadata(3)["live_failing"] == 1
    assert site.tick() == []
    assert (site.state.failing, site.state.open) == ({}, ())
    assert list(site.io.clients.queue.entries("orders", site.io.source.location.all_slots())) == []
    assert site.grid()["failed"] == set()

    site.write(3, number=1, body=site.line(31))
    site.settle()
    assert site.rows() == {3: [31], 5: [5]}
    assert (site.metadata(3)["quarantined"], site.metadata(3)["live_failing"]) == (0, 1)
    shown = quarantine(site)
    assert shown["failing_objects"] == 1
    (record,) = shown["failing"].records
    assert record.data["key"] == bad
    assert "AccessDenied" in record.data["reason"]
    assert "s3notify quarantine retry orders --all" in shown["retry_command"]
    (lost,) = [c for c in site.job("sweep").get_asset_check_evaluations() if c.check_name == "complete"]
    assert lost.passed

    proxy.forbidden.clear()
    assert retry(site, keys=[bad, site.key(5)]).success
    (observed,) = site.instance.fetch_observations(dg.AssetKey("orders_quarantine"), limit=1).records
    assert observed.asset_observation is not None
    facts = {name: value.value for name, value in observed.asset_observation.metadata.items()}
    assert (facts["failing_objects"], facts["rejected_records"], facts["not_in_quarantine"]) == (1, 0, 1)
    (again,) = site.tick()
    assert site.slots_of(again) == [3]
    assert site.launch(again).success
    assert sorted(site.rows()[3]) == [3, 31]
    assert site.metadata(3)["live_failing"] == 0
    assert site.tick() == []
    assert quarantine(site)["failing_objects"] == 0


@pytest.mark.parametrize("config", [{}, {"everything": True, "slots": [3]}, {"slots": [99]}])
def test_the_job_wants_to_know_what(site: Site, config: dict[str, Any]) -> None:
    """One of keys, slots and everything; slots that there are."""
    result = retry(site, **config)
    assert not result.success
    assert ("unknown slot" if config == {"slots": [99]} else "exactly one of") in site.failure(result)
