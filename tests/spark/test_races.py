"""Two runs on one slot, and objects that change while a run is about to read them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.states.state_cache import SHARED_CACHE
from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def lake(lake_of: Callable[..., Lake]) -> Lake:
    return lake_of(slots=1)


def test_overtaken_between_plan_and_commit(lake: Lake) -> None:
    """The slower run loses the generation, plans again and commits what is left, on top."""
    lake.put("a.jsonl", [{"id": 1}])

    def other_run() -> None:
        assert lake.ingest().slots[Slot(0)].generation == 1
        lake.put("b.jsonl", [{"id": 2}])

    result = lake.ingest(when_reading=other_run).slots[Slot(0)]
    assert (result.status, result.generation, result.objects) == ("committed", 2, 1)
    assert len(lake.history(Slot(0))) == 2
    lake.check()


@pytest.mark.thorough
def test_overtaken_by_one_that_did_all(lake: Lake) -> None:
    """Then there is nothing left to do, and nothing is committed twice."""
    lake.put("a.jsonl", [{"id": 1}])
    result = lake.ingest(when_reading=lake.ingest).slots[Slot(0)]
    assert (result.status, result.generation) == ("unchanged", 1)
    assert result.ok
    assert len(lake.history(Slot(0))) == 1
    lake.check()


def test_two_runs_at_once(lake: Lake) -> None:
    """From two threads, several times: one version each, every row once."""
    for round_number in range(3):
        for number in range(4):
            lake.put(f"{number}.jsonl", [{"id": round_number}, {"id": number}])
        with ThreadPoolExecutor(2) as pool:
            results = [future.result() for future in [pool.submit(lake.ingest) for _ in range(2)]]
        assert all(result.slots[Slot(0)].ok for result in results)
        lake.check()
    history = lake.history(Slot(0))
    assert len(history) == 3
    assert {event.version for event in history} == {1, 2, 3}


@pytest.mark.thorough
def test_an_object_overwritten_before_it_is_read(lake: Lake) -> None:
    """Its pinned read fails: it keeps the rows it had, the others are committed; its own signal brings the rest."""
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.put("a.jsonl", [{"id": 2}])
    lake.put("b.jsonl", [{"id": 3}])
    result = lake.ingest(when_reading=lambda: lake.put("a.jsonl", [{"id": 4}])).slots[Slot(0)]
    assert (result.status, result.superseded, result.objects) == ("committed", 1, 1)
    assert result.ok
    assert [row["id"] for row in lake.load()] == [1, 3]
    lake.ingest()
    lake.check()


@pytest.mark.thorough
def test_only_superseded_objects_commit_nothing(lake: Lake) -> None:
    lake.put("a.jsonl", [{"id": 1}])
    result = lake.ingest(when_reading=lambda: lake.put("a.jsonl", [{"id": 2}])).slots[Slot(0)]
    assert (result.status, result.superseded) == ("unchanged", 1)
    assert lake.ingest().slots[Slot(0)].status == "committed"
    lake.check()


@pytest.mark.thorough
@pytest.mark.parametrize("odd", ["", "//"])
def test_an_object_deleted_before_it_is_read(lake: Lake, odd: str) -> None:
    """The deletion wins: its old rows leave in this very commit, and nothing fails. By either way of reading."""
    lake.put(f"{odd}a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.put(f"{odd}a.jsonl", [{"id": 2}])
    lake.put(f"{odd}b.jsonl", [{"id": 3}])
    lake.put(f"{odd}c.jsonl", [{"id": 4}])

    def delete() -> None:
        lake.delete(f"{odd}a.jsonl")
        lake.delete(f"{odd}b.jsonl")
        lake.put(f"{odd}c.jsonl", [{"id": 5}])

    result = lake.ingest(when_reading=delete).slots[Slot(0)]
    assert (result.status, result.gone, result.objects, result.superseded) == ("committed", 1, 0, 1)
    assert lake.load() == []
    lake.ingest()
    lake.check()


@pytest.mark.thorough
def test_a_read_that_fails_stands_in_no_others_way(spark: SparkSession, ministack: S3Server) -> None:
    """It is named, and left out of this run's further plans, also if these are full of such; the next run reads it."""
    config = ministack.config(ministack.make_bucket())
    with FaultProxy(ministack.endpoint_url) as proxy:
        lake = Lake.of(
            spark,
            replace(config, endpoint_url=proxy.url),
            platform=config,
            slots=1,
            max_objects=2,
            schema="id int",
        )
        for key in ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"):
            lake.put(key, [{"id": 1}])
        # The first plan has two objects.
        proxy.forbidden |= {"/raw/a.jsonl", "/raw/b.jsonl"}
        result = lake.ingest().slots[Slot(0)]
        assert not result.ok
        assert set(result.failed_objects) == {"raw/a.jsonl", "raw/b.jsonl"}
        assert {row["_key"] for row in lake.load()} == {"raw/c.jsonl", "raw/d.jsonl"}
        proxy.forbidden.clear()
        assert lake.ingest().slots[Slot(0)].ok
        lake.check()
        lake.store.close()


def test_states_that_are_lost_stop_their_slots(
    lake_of: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots whose states are gone fail, and are never silently ingested again."""
    monkeypatch.setattr(SHARED_CACHE, "page", lambda *_: None)  # as of a process that has not written them
    lake = lake_of(slots=2, format="text")
    lake.put_many({f"{n}": b"x" for n in range(600)})
    lake.ingest()
    before = lake.snapshot()
    (file,) = before.manifest.states.files
    lake.store.delete(lake.source.location.layout.state(file.name))
    for n in range(20):
        lake.put(f"{n}", b"y")
    result = lake.ingest()
    assert {each.status for each in result.slots.values()} == {"failed"}
    assert all("missing" in each.error for each in result.slots.values())
    found = lake.source.table().newest()
    assert isinstance(found, Snapshot)
    assert found.version == before.version
