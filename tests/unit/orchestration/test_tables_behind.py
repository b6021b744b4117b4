"""A Dagster run after failed updates of derived tables."""

from types import SimpleNamespace
from typing import Any

import pytest

from s3notify_platform.kernel.errors import CorruptError, UnavailableError
from s3notify_platform.orchestration import following_assets
from s3notify_platform.orchestration.following_assets import advance
from s3notify_platform.table.follow import FollowResult


def test_each_table_that_is_behind_is_noted_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the run's failure would name only one table. A table that a later round of the run has updated is no
    longer behind.
    """
    errors: dict[str, Exception] = {
        "orders_latest": CorruptError("table/data/1 is missing"),
        "orders_clustered": UnavailableError("503 SlowDown"),
    }

    def follow(_spark: Any, _source: Any, asset: str, **_: Any) -> FollowResult:
        if asset in errors:
            raise errors[asset]
        return FollowResult()

    monkeypatch.setattr(following_assets, "follow", follow)
    said, again, behind = list[str](), list[str](), dict[str, str]()
    context: Any = SimpleNamespace(log=SimpleNamespace(warning=said.append))
    io: Any = SimpleNamespace(spark=SimpleNamespace(spark_session=None), source=None)

    def updated(asset: str) -> None:
        advance(context, io, asset, batch="1", again=lambda: again.append(asset), behind=behind)

    updated("orders_latest")
    updated("orders_clustered")
    assert behind == {
        "orders_latest": "orders_latest is behind: table/data/1 is missing",
        "orders_clustered": "orders_clustered is behind: 503 SlowDown",
    }
    assert (said, again) == ([*behind.values()], ["orders_clustered"])
    del errors["orders_clustered"]
    updated("orders_clustered")
    assert [*behind] == ["orders_latest"]
