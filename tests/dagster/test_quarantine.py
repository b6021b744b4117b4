"""An object that cannot be read: from the first batch to the quarantine, and back by a backfill."""

from dataclasses import replace

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server
from tests.support.site import Site


@pytest.fixture
def site(spark: SparkSession, ministack: S3Server, proxy: FaultProxy, instance: dg.DagsterInstance) -> Site:
    """A source that is read through the proxy, and quarantines an object after two batches."""
    server = replace(
        ministack,
        endpoint_url=proxy.url,
        config=lambda bucket: replace(ministack.config(bucket), endpoint_url=proxy.url),
    )
    return Site.of(server, instance, max_attempts=2)


def retry(site: Site) -> dg.ExecuteInProcessResult:
    """Runs the backfill of quarantined objects."""
    return site.defs.resolve_job_def("orders_ingest").execute_in_process(
        instance=site.instance,
        raise_on_error=False,
        run_config={"ops": {"orders_slots": {"config": {"choose": "quarantine"}}}},
    )


@pytest.mark.thorough
def test_an_object_that_cannot_be_read_does_not_block_its_slot(site: Site, proxy: FaultProxy) -> None:
    """The last attempt must quarantine the object, so that its slot continues. The backfill must read the object after
    it has become readable.
    """
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
    assert site.metadata(3)["objects_quarantined"] == site.metadata(3)["failing_objects_in_quarantine"] == 1
    assert site.tick() == []
    assert (site.state.failing, site.state.open) == ({}, ())
    assert list(site.io.clients.queue.entries("orders", site.io.source.location.all_slots())) == []
    assert site.grid()["failed"] == set()

    site.write(3, number=1, body=site.line(31))
    site.settle()
    assert site.rows() == {3: [31], 5: [5]}
    assert (site.metadata(3)["objects_quarantined"], site.metadata(3)["failing_objects_in_quarantine"]) == (
        0,
        1,
    )
    shown = site.batch()
    assert (shown["quarantine_failing_objects"], shown["quarantine_rejected_records"]) == (1, 0)
    (record,) = shown["quarantine"].records
    assert record.data == {"slot": 3, "failing_objects": 1, "rejected_records": 0}
    assert site.sweep()["complete"].passed

    proxy.forbidden.clear()
    site.write(7)
    (batch,) = site.tick()
    assert retry(site).success
    assert site.launch(batch).success
    assert sorted(site.rows()[3]) == [3, 31]
    assert site.metadata(3)["failing_objects_in_quarantine"] == 0
    assert site.batch()["quarantine_failing_objects"] == 0
    assert site.metadata(3)["objects_read"] == 1, "only the object in quarantine"
    assert site.tick() == []
    assert "no slot of this source is 'quarantine'" in site.failure(retry(site))
