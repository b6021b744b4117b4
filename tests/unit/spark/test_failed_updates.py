"""`s3notify ingest` after failed updates of derived tables."""

from typing import Any

import pytest

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.spark import continuous
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.follow import FollowResult
from tests.support.sources import source_of


def test_each_table_that_is_behind_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a person would mend one table, and learn of the other table only by the next failure."""
    failing = ["orders_latest", "orders_clustered"]

    def follow(_spark: Any, _source: Any, asset: str, **_: Any) -> FollowResult:
        if asset in failing:
            raise CorruptError(f"{asset}/data/1 is missing")
        return FollowResult()

    monkeypatch.setattr(continuous, "follow", follow)
    source = source_of(
        bucket=S3Config(bucket="b"), name="orders", latest_key="id", latest_order_by="at", cluster_by="at"
    )
    spark: Any = None
    ingest = ContinuousIngest(spark=spark, source=source)
    ingest.advance("1")
    assert ingest.behind == (
        "orders_latest is behind: orders_latest/data/1 is missing; "
        "orders_clustered is behind: orders_clustered/data/1 is missing"
    )
    failing.clear()
    ingest.advance("2")
    assert ingest.behind == ""
