"""One run of the job `{source}_ingest` reads exactly the slots that a person has chosen. A person writes the choice of
slots as a text.
"""

from collections.abc import Callable

import dagster as dg
import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot, slots_in
from tests.support.site import Site

TRANSFORMS = "tests.support.transforms"


def backfill(site: Site, choose: str) -> dg.ExecuteInProcessResult:
    config = {"ops": {"orders_slots": {"config": {"choose": choose}}}}
    return site.defs.resolve_job_def("orders_ingest").execute_in_process(
        run_config=config, instance=site.instance, raise_on_error=False
    )


@pytest.mark.spark
@pytest.mark.server
def test_a_backfill_reads_exactly_the_chosen_slots(site_of: Callable[..., Site]) -> None:
    """A person chooses slots by number, by failure or by age. The backfill must read no other slots."""
    site = site_of(transform=f"{TRANSFORMS}.unlucky")
    site.write(1, 3, 9, 13)
    result = backfill(site, "1,12-13")
    assert not result.success
    assert site.grid() == {"materialized": {1, 12}, "failed": {13}, "running": set()}
    site.write(13, body=site.line(12))
    assert made(backfill(site, "failed")) == {"13"}
    assert "no slot of this source is 'failed'" in site.failure(backfill(site, "failed"))
    assert "no slot of this source is 'older than 1h'" in site.failure(backfill(site, "older than 1h"))
    assert made(backfill(site, "older than 0 min")) == {"1", "13"}
    assert site.rows() == {1: [1], 13: [12]}


def made(result: dg.ExecuteInProcessResult) -> set[str | None]:
    assert result.success
    made = result.get_asset_materialization_events()
    return {event.partition for event in made if event.asset_key != dg.AssetKey("orders_summary")}


@pytest.mark.parametrize("text", ["", "x", "4-2", "3,,5", "16", "older than 3 weeks", "-1"])
def test_invalid_choices_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        slots_in(text, 16)


def test_a_choice_may_be_a_list_with_ranges_or_all() -> None:
    assert slots_in("3, 5-6", 16) == {Slot(3), Slot(5), Slot(6)}
    assert len(slots_in("all", 16)) == 16
