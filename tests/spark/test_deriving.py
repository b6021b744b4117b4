"""The cost of updating a slot asset after slots of its source have changed: requests and bytes, on a real server."""

from collections import Counter

import numpy as np
import pytest
from pyspark.sql import SparkSession

from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.derived_round import MAX_OTHERS
from tests.benchmarks.deriving import ASSET, BESIDE, Lake
from tests.benchmarks.lake import source_of
from tests.contracts.fault_proxy import Answered

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOTS, OBJECTS = 200, 20_000


@pytest.fixture
def lake(spark: SparkSession, config: S3Config) -> Lake:
    """200,000 rows in 200 slots, in one file, and a slot asset with nine tenths of them."""
    made = Lake(spark=spark, source=source_of(config, "derived", "in/", slots=SLOTS), objects=OBJECTS)
    made.commit(np.arange(OBJECTS))
    made.derive(made.source.location.all_slots())
    return made


def written(answered: list[Answered]) -> int:
    return sum(len(each.body) for each in answered)


def of_data(answered: list[Answered], method: str, path: str = "/data/") -> list[Answered]:
    return [each for each in answered if each.method == method and path in each.path]


def test_slot_asset_writes_little_more_than_its_changed_slots(lake: Lake) -> None:
    """Otherwise an update of one slot could rewrite the whole slot asset, and an update of many slots could
    send a request for each slot. An update of one slot may rewrite at most 16 MB of other slots. An update of
    many slots may write at most twice the bytes of these slots.
    """
    table, derived = lake.source.table(), lake.source.table(ASSET)
    size = sum(pack.size for pack in table.newest().packs.values())
    slots, one = lake.answered(lake.some(1))
    largest = max(pack.size for pack in derived.newest().packs.values())
    assert written(one) <= lake.bytes_of(slots) + min(largest, MAX_OTHERS) + BESIDE
    source = of_data(one, "GET", "/table/data/")
    assert sum(each.sent for each in source) < size / 3, "footers, and the row groups of the slot"
    assert Counter(each.method for each in one)["PUT"] <= 6
    assert len(one) <= 14 + len(source)

    slots, batch = lake.answered(lake.some(SLOTS // 2))
    assert written(batch) <= 2 * lake.bytes_of(slots) + BESIDE
    assert sum(each.sent for each in of_data(batch, "GET", "/table/data/")) <= 1.2 * size
    packs = len(table.newest().packs) + len(derived.newest().packs)
    assert len(batch) <= len(one) + 3 * packs < SLOTS // 2
    assert 10 * derived.newest().rows == 9 * table.newest().rows
