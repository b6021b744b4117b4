"""The update of a derived table fails. The source's table must stay up to date, and the reason must be visible."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from s3notify_platform.kernel.clock import SystemClock
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.spark import continuous, following
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.table.follow import FollowResult
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def derived_lake(lake_of: Callable[..., Lake]) -> Lake:
    return lake_of(schema="id bigint, at bigint", latest_key="id", latest_order_by="at", cluster_by="at")


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """Lets each update fail. Returns the assets of the updates so far."""
    tried: list[str] = []

    def follow(_spark: Any, _source: Any, asset: str, **_: Any) -> FollowResult:
        tried.append(asset)
        raise error

    monkeypatch.setattr(continuous, "follow", follow)
    return tried


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            PythonException("Python worker exited unexpectedly"),
            "the reader's process ended: Python worker exited",
        ),
        (pa.ArrowInvalid("out of bounds timestamp"), "ArrowInvalid: out of bounds timestamp"),
    ],
)
def test_no_error_of_an_update_fails_the_slots(
    derived_lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """Otherwise slots whose rows are committed would count as failed, and would be read again and again."""
    lake, said = derived_lake, list[str]()
    tried = fail(monkeypatch, error)
    ingest = ContinuousIngest(spark=lake.spark, source=lake.source, progress=said.append)
    lake.put("1.jsonl", [{"id": 1, "at": 1}])
    ingest.run(threading.Event(), every_seconds=None)
    assert (len(lake.load()), dict(ingest.failing)) == (1, {})
    assert tried == ["orders_latest", "orders_clustered"]
    assert ingest.behind.startswith(f"orders_latest is behind: {reason}")
    assert f"; orders_clustered is behind: {reason}" in ingest.behind
    assert [text.partition("\n")[0].partition(": ")[0] for text in said if "behind" in text] == [
        "orders_latest is behind", "orders_clustered is behind",
    ]  # fmt: skip
    monkeypatch.undo()
    ingest.run(threading.Event(), every_seconds=None)
    assert ingest.behind == ""


class _Polls(threading.Event):
    """Ends an ingest after this number of polls. Each poll moves the ingest's clock by 10 seconds."""

    def __init__(self, clock: "_Ahead", left: int) -> None:
        super().__init__()
        self._clock, self._left = clock, iter(range(left))

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.seconds += 10.0
        if next(self._left, None) is None:
            self.set()
        return self.is_set()


class _Ahead(SystemClock):
    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


def test_failing_updates_are_tried_less_and_less_often(
    derived_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each poll would read the whole table, if the update needs all rows."""
    lake, clock = derived_lake, _Ahead()
    tried = fail(monkeypatch, pa.ArrowInvalid("no"))
    ingest = ContinuousIngest(spark=lake.spark, source=lake.source, clock=clock)
    ingest.run(_Polls(clock, 60), every_seconds=10.0)
    assert 5 <= tried.count("orders_latest") <= 8, "10, 20, 40, 80, 160 and 320 seconds apart"


def test_the_error_of_a_spark_task_is_not_wrapped(
    derived_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an outage in a task would be reported as a defect, and a lost file as a traceback of Java."""
    monkeypatch.setattr(following, "SMALL_BYTES", -1)
    lake = derived_lake
    lake.put("1.jsonl", [{"id": 1, "at": 1}])
    lake.ingest()
    (pack,) = lake.snapshot().packs
    lake.store.delete(lake.source.location.layout.file(pack))
    for asset in lake.source.kinds:
        with pytest.raises(
            CorruptError, match=f"^{lake.source.location.layout.file(pack)}.* is missing: restore it"
        ):
            following.follow(lake.spark, lake.source, asset)
