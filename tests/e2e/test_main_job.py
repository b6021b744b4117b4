"""The main job of the platform as a whole, with a real S3 server, daemon, webserver, Spark and browser."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.orchestration.warm.handover import Home
from s3notify_platform.protocols.keyspace import Delete, Put
from tests.support.ingested import rows_of as rows_in
from tests.support.platform import Platform, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with running(tmp_path_factory.mktemp("platform")) as started:
        yield started


def order(number: int, amount: str = "5.00") -> dict[str, object]:
    return {"order_id": number, "customer": "ada", "amount": amount, "at": "2026-01-01T00:00:00Z"}


def lines(*orders: dict[str, object]) -> bytes:
    return "".join(json.dumps(o) + "\n" for o in orders).encode()


def rows_of(platform: Platform, keys: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows_in(platform.location, store=platform.store):
        if row["_key"] in keys:
            found.setdefault(row["_key"], []).append(row["order_id"])
    return found


def batches_until_warm(platform: Platform) -> None:
    """Publishes, until a warm worker has made a batch. Checks the rows of each batch.

    A batch that begins before the worker is ready runs in a separate process.
    """
    log = Home(platform.dagster.home).log
    for number in range(10):
        keys = [f"raw/orders/{n} {number}.jsonl" for n in range(4)]
        touched = {str(slot_of(key)) for key in keys}
        platform.publisher.publish([Put(key=key, body=lines(order(n))) for n, key in enumerate(keys)])

        def shown(touched: set[str] = touched) -> bool:
            try:
                return platform.grid("paid_orders")["materializedPartitions"] >= touched
            except (OSError, KeyError):  # the service is starting
                return False

        platform.until("shown", shown)
        assert rows_of(platform, keys) == {key: [n] for n, key in enumerate(keys)}
        if log.exists() and "slots committed" in log.read_text():
            return
    pytest.fail(f"no warm worker made a batch: {platform.tail()}")


def test_published_change_becomes_a_materialized_partition(platform: Platform) -> None:
    """After the materialization, the rows must be readable, and Dagster's grid must have exactly the changed slots."""
    keys = [f"raw/orders/e2e {n}.jsonl" for n in range(12)]
    platform.publisher.publish(
        [Put(key=key, body=lines(order(n), order(n + 1000, "-1.00"))) for n, key in enumerate(keys)]
    )
    touched = {str(slot_of(key)) for key in keys}
    platform.until("materialization", lambda: platform.grid("orders")["materializedPartitions"] >= touched)

    assert rows_of(platform, keys) == {key: [n, n + 1000] for n, key in enumerate(keys)}
    for asset in ("orders", "paid_orders"):
        grid = platform.grid(asset)
        assert grid["materializedPartitions"] == touched
        assert grid["failedPartitions"] == set()

    changed, gone = keys[0], keys[1]
    platform.publisher.publish([Put(key=changed, body=lines(order(7))), Delete(key=gone)])
    platform.until("overwrite and delete", lambda: rows_of(platform, [changed, gone]) == {changed: [7]})


def test_batch_reports_its_summary(platform: Platform) -> None:
    """Otherwise the plots of the summary asset would have no point for this batch."""
    query = """
    query Latest { assetNodeOrError(assetKey: {path: ["orders_summary"]}) {
      ... on AssetNode { assetMaterializations(limit: 1) { metadataEntries { label } } } } }"""

    def labels() -> set[str]:
        events = platform.graphql(query)["assetNodeOrError"]["assetMaterializations"]
        return {entry["label"] for event in events for entry in event["metadataEntries"]}

    platform.until("summary", lambda: "slot_map" in labels())
    assert {"slots_committed", "dagster/row_count", "batch_rows", "batch_dollars"} <= labels()


@pytest.mark.thorough
def test_slot_asset_is_updated_by_automation(platform: Platform) -> None:
    """A run materializes only the source asset, for some slots. Then the daemon must request exactly these slots of the
    slot asset, in one run.
    """
    committed = platform.grid("paid_orders")["materializedPartitions"]
    found = {str(slot_of(key)): key for key in (f"raw/orders/unannounced {n}.jsonl" for n in range(5))}
    slots = {slot: key for slot, key in found.items() if slot not in committed}
    assert len(slots) > 2
    for key in slots.values():
        platform.store.put(key, lines(order(1)))  # this write moves no signal
    platform.launch("orders_ingest", ["orders"], {"slots": [int(slot) for slot in slots]})
    platform.until(
        "both", lambda: platform.grid("paid_orders")["materializedPartitions"] == committed | set(slots)
    )
    assert platform.grid("orders")["materializedPartitions"] == committed | set(slots)
    query = """
    query Runs { runsOrError(filter: {tags: [{key: "s3notify/automation", value: "orders"}]}) {
      ... on Runs { results { runId } } } }"""
    assert len(platform.graphql(query)["runsOrError"]["results"]) == 1


def test_asset_page_shows_description_and_figures(chromium: str, platform: Platform, tmp_path: Path) -> None:
    """In a browser, the page of an asset must show its description, and the figures of a partition."""
    slot = min(platform.grid("orders")["materializedPartitions"], key=int)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"],
        )
        try:
            page = browser.new_page(viewport={"width": 1500, "height": 1100})
            page.goto(f"{platform.dagster.url}/assets/orders?view=partitions&partition={slot}")
            page.get_by_text("table_version", exact=True).first.wait_for(timeout=60_000)
            text = page.inner_text("body")
            shots = Path(os.environ.get("S3NOTIFY_SCREENSHOTS", tmp_path))
            page.screenshot(path=shots / "asset.png")
            page.goto(f"{platform.dagster.url}/assets/orders_summary")
            page.get_by_text("slot_map", exact=True).first.wait_for(timeout=60_000)
            page.get_by_text("975", exact=True).first.wait_for(timeout=60_000)  # shown without a click
            page.screenshot(path=shots / "summary.png", full_page=True)
        finally:
            browser.close()
    for label in ("objects_read", "records_read", "bytes_read", "table_version", "outcome"):
        assert label in text
