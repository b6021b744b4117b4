"""An asset's table is a plain Delta table. Other engines can read the table at the address that Dagster shows, even
during writes.
"""

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import dagster as dg
import pytest

from tests.support.engines import ENGINES, Place, Row
from tests.support.site import Site


@pytest.fixture
def site(site_of: Callable[..., Site]) -> Site:
    """A source with a slot asset."""
    return site_of(slot_assets=["tests.support.transforms.paid_orders"])


def said(site: Site, asset: str) -> dict[str, Any]:
    """The metadata that the asset's definition has about the table."""
    (spec,) = (one for one in site.defs.resolve_all_asset_specs() if one.key == dg.AssetKey(asset))
    assert "deltalake" in spec.kinds
    return dict(spec.metadata)


def place(site: Site, asset: str = "orders") -> Place:
    return Place(uri=said(site, asset)["dagster/uri"], config=site.io.source.location.platform)


@pytest.mark.parametrize("engine", ENGINES)
def test_other_engines_read_the_committed_rows(site: Site, engine: str) -> None:
    """Other engines must need only the table address in the metadata, both for the source's table and for the slot
    asset's table.
    """
    site.write(1, 2)
    site.write(1, number=1)
    site.settle()
    read = ENGINES[engine]
    rows = read(place(site))
    assert [(row["_slot"], row["id"], row["amount"]) for row in rows] == [
        (1, 1, 1.5),
        (1, 1, 1.5),
        (2, 2, 1.5),
    ]
    assert {row["_key"] for row in rows} == {site.key(1), site.key(1, 1), site.key(2)}
    assert [(row["_slot"], row["amount"]) for row in read(place(site, "paid_orders"))] == [
        (1, 1.5),
        (1, 1.5),
        (2, 1.5),
    ]
    for asset in ("orders", "paid_orders"):
        assert f"delta_scan('{said(site, asset)['dagster/uri']}')" in said(site, asset)["how_to_read"].value

    site.write(2, body=site.line(20))
    site.delete(1)
    site.settle()
    assert sorted(row["id"] for row in read(place(site))) == [1, 20]
    assert sorted(row["id"] for row in read(place(site, "paid_orders"))) == [1, 20]


def test_a_reader_beside_a_writer_sees_whole_rounds(site_of: Callable[..., Site]) -> None:
    """Each version must have a batch's objects in all slots of the batch, or in none."""
    site = site_of()
    slots = [1, 2, 5]
    site.write(*slots)
    site.settle()
    where, ended = place(site), Event()
    seen: list[list[Row]] = []

    def look() -> None:
        while not ended.is_set():
            seen.append(ENGINES["delta-rs"](where))

    reader = Thread(target=look)
    reader.start()
    try:
        for number in range(2, 5):
            site.write(*slots, body=site.line(number))
            site.settle()
    finally:
        ended.set()
        reader.join()
    found = [{(row["_slot"], row["id"]) for row in rows} for rows in seen]
    assert found
    whole = [{(slot, slot) for slot in slots}, *({(slot, n) for slot in slots} for n in range(2, 5))]
    assert all(rows in whole for rows in found)
    assert {(row["_slot"], row["id"]) for row in ENGINES["polars"](where)} == whole[-1]
