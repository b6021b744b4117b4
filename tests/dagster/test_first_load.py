"""The first hour of a project with several sources: one run for each source loads the whole bucket."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from tests.support.servers import S3Server
from tests.support.site import Site

pytestmark = [pytest.mark.spark, pytest.mark.server]

PLAIN = {"prefix": "raw/plain/"}
LATEST = {"prefix": "raw/latest/", "latest": {"key": "id", "order_by": "amount"}}
PAID = {"prefix": "raw/paid/", "slot_assets": ["tests.support.transforms.paid_orders"]}


LAUNCHERS = {
    "default": {},
    "warm": {
        "run_launcher": {
            "module": "s3notify_platform.orchestration.warm.launcher",
            "class": "WarmRunLauncher",
        }
    },
}


@pytest.mark.parametrize("launcher", ["default", "warm"])
def test_the_first_tick_says_how_to_have_warm_runs(
    ministack: S3Server, tmp_path: Path, launcher: str
) -> None:
    """`dg dev` alone has Dagster's default launcher, which starts Python and Spark for each run. With the warm
    launcher, the hint would mislead.
    """
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides=LAUNCHERS[launcher]) as instance:
        skipped = str(Site.of(ministack, instance).evaluate().skip_message)
    assert skipped.startswith("first tick")
    assert ("s3notify init --dagster-home FOLDER" in skipped) == (launcher == "default")


def test_three_sources_are_loaded_by_three_runs(
    site_of: Callable[..., Site], ministack: S3Server, instance: dg.DagsterInstance
) -> None:
    """Unqueued writers have signalled some of the objects before the first tick. If these signals, a derived table or a
    slot asset caused further runs, the first load would take longer, because each run starts Python and Spark.
    """
    bucket = ministack.make_bucket()
    sites = [
        site_of(bucket=bucket, name=name, **attributes)
        for name, attributes in (("plain", PLAIN), ("items", LATEST), ("orders", PAID))
    ]
    for site in sites:
        site.write_silently(1, 5, 9)
        site.write_unqueued(5, 11)
    for _ in range(6):
        for site in sites:
            requests = [*site.tick(), *(site.upkeep().run_requests or [])]
            requests += site.follow() if site.component.slot_assets else []
            for request in requests:
                assert site.launch(request).success
    names = sorted(run.job_name for run in instance.get_runs())
    assert names == ["items_ingest", "orders_ingest", "plain_ingest"]
    for site in sites:
        assert {*site.rows()} == {1, 5, 9, 11}
        assert site.tick() == []
