"""What a slot asset costs when slots of its source have changed: requests and bytes, before a real server."""

from collections import Counter

import numpy as np
import pytest
from pyspark.sql import SparkSession

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.derived_round import MAX_OTHERS
from tests.benchmarks.deriving import ASSET, Lake
from tests.benchmarks.lake import source_of
from tests.contracts.fault_proxy import Answered

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOTS, OBJECTS = 200, 6_000
BESIDE = 200_000
"""Bytes of a commit that are no rows: version, manifest, `known`."""


@pytest.fixture
def lake(spark: SparkSession, config: S3Config) -> Lake:
    """60,000 rows in 200 slots, and a slot asset of nine tenths of them."""
    made = Lake(spark=spark, source=source_of(config, "derived", "in/", slots=SLOTS), objects=OBJECTS)
    for numbers in np.array_split(np.random.default_rng(3).permutation(OBJECTS), 3):
        made.commit(numbers)
    made.derive(made.source.location.all_slots())
    return made


def written(answered: list[Answered]) -> int:
    return sum(len(each.body) for each in answered)


def of_data(answered: list[Answered], method: str, path: str = "/data/") -> list[Answered]:
    return [each for each in answered if each.method == method and path in each.path]


def test_one_slot_and_half_of_them(lake: Lake) -> None:
    """One writes at most 16 MB of others; a batch as much of them as of its own. Neither reads other slots' rows."""
    derived = lake.source.table(ASSET)
    one = lake.answered([Slot(7)])
    assert written(one) <= lake.bytes_of([Slot(7)]) + MAX_OTHERS
    assert written(one) <= max(pack.size for pack in derived.newest().packs.values()) + BESIDE
    size = sum(pack.size for pack in lake.source.table().newest().packs.values())
    source = of_data(one, "GET", "/table/data/")
    assert sum(each.sent for each in source) < size / 4, "footers, and ranges of the slot"
    assert Counter(each.method for each in one)["PUT"] <= 6
    assert len(one) <= 12 + 2 * len(source)

    half = [Slot(int(n)) for n in np.random.default_rng(5).choice(SLOTS, SLOTS // 2, replace=False)]
    batch = lake.answered(sorted(half))
    assert written(batch) <= 2 * lake.bytes_of(half) + BESIDE
    assert len(batch) <= len(one) + 4 * len(derived.newest().packs), "none for each slot"
    assert 10 * derived.newest().rows == 9 * lake.source.table().newest().rows
