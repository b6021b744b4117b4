"""A code location that real workers load: a source with a slot asset. A file says what this asset does."""

import json
import os
import signal
from pathlib import Path
from typing import Any, Final

import dagster as dg
from pyspark.sql import DataFrame

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.orchestration import S3NotifyComponent, s3_slot_asset

PLACE = "S3NOTIFY_TEST_WARM"
"""The environment variable that says where the source is, because `ATTRIBUTES` does not. The variable `DEED` has the
path of the file that says what the slot asset does.
"""

DEED = "S3NOTIFY_TEST_DEED"

ATTRIBUTES: Final[dict[str, Any]] = {
    "name": "orders",
    "prefix": "raw/",
    "format": "jsonl",
    "schema": "id bigint, amount double",
    "slots": 16,
    "slot_assets": [f"{__name__}.derived"],
    "spark": {"master": "local[2]", "config": {"spark.driver.memory": "1g"}},
}


@s3_slot_asset(source="orders")
def derived(orders: DataFrame) -> DataFrame:
    """Takes the action that the file names, and then returns all rows. The action may change the Spark session, but the
    next run must not see the change.
    """
    print("derived says so", flush=True)
    session = orders.sparkSession
    assert not session.catalog.tableExists("left_behind")
    session.range(1).createOrReplaceTempView("left_behind")
    match Path(os.environ[DEED]).read_text():
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            Path(os.environ[DEED]).write_text("hangs")
            session.range(1, numPartitions=1).mapInArrow(_hang, "id long").collect()
    return orders


def _hang(batches: object) -> object:
    while True:
        SYSTEM_CLOCK.sleep(1)


@dg.definitions
def defs() -> dg.Definitions:
    """The source."""
    return S3NotifyComponent(**ATTRIBUTES, **json.loads(os.environ[PLACE])).definitions()
