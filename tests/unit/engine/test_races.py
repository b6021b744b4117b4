"""Two runs on one slot, and objects that change just before a run reads them, against a real server.

`tests/model/test_log_commit_model.py` has every interleaving of two commits; `tests/contracts/test_many_runs.py` has
200 runs in parallel.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.states.state_cache import SHARED_CACHE
from tests.contracts.fault_proxy import FaultProxy
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


@pytest.fixture
def place(ministack: S3Server) -> Place:
    return Place(ministack, slots=1)


def ingest(place: Place, when_reading: Callable[[], object] = lambda: None) -> SlotResult:
    """Runs one ingest. `when_reading` is called between the run's first plan and its read."""
    waiting = [when_reading]

    def progress(message: str) -> None:
        if message.startswith("reading") and waiting:
            waiting.pop()()

    run = Ingest(jobs=LocalJobs(source=place.source), source=place.source, progress=progress)
    return run.run([Slot(0)], batch="b").slots[Slot(0)]


def version(place: Place) -> int:
    return place.snapshot().version


def test_an_overtaken_run_plans_again(place: Place) -> None:
    """Another run commits the first object after the slower run's plan. If the slower run committed its old plan, the
    table would have the rows of the first object twice. If the slower run gave up, the second object would wait for a
    later batch.
    """
    place.put("a", 1)

    def other_run() -> None:
        assert ingest(place).generation == 1
        place.put("b", 2)

    result = ingest(place, other_run)
    assert (result.status, result.generation, result.objects) == ("committed", 2, 1)
    assert version(place) == 2
    assert place.values() == {1: 1, 2: 1}


def test_a_run_overtaken_completely_commits_nothing(place: Place) -> None:
    """Otherwise the object's rows would be in the table twice, or the run would fail although all objects are
    committed.
    """
    place.put("a", 1)
    result = ingest(place, lambda: ingest(place))
    assert (result.status, result.generation) == ("unchanged", 1)
    assert result.ok
    assert version(place) == 1
    assert place.values() == {1: 1}


def test_an_object_that_is_overwritten_before_it_is_read_keeps_its_rows(place: Place) -> None:
    """The read of the planned version fails. Without the old rows, readers would see no row of the object until a later
    batch reads the new version. If the slot failed, the other objects of the slot would have to wait, too.
    """
    place.put("a", 1)
    ingest(place)
    place.put("a", 2)
    place.put("b", 3)
    result = ingest(place, lambda: place.put("a", 4))
    assert (result.status, result.superseded, result.objects) == ("committed", 1, 1)
    assert result.ok
    assert place.values() == {1: 1, 3: 1}
    ingest(place)
    assert place.values() == {4: 1, 3: 1}


def test_a_run_with_only_superseded_objects_commits_nothing(place: Place) -> None:
    place.put("a", 1)
    result = ingest(place, lambda: place.put("a", 2))
    assert (result.status, result.superseded) == ("unchanged", 1)
    assert ingest(place).status == "committed"
    assert place.values() == {2: 1}


@pytest.mark.parametrize("odd", ["", "//"])
def test_an_object_that_is_deleted_before_it_is_read_loses_its_rows(place: Place, odd: str) -> None:
    """If the deleted object counted as a failed read, the slot would fail, and the object would finally go to
    quarantine. Without the removal, readers would see rows of a deleted object. Keys with `//` are read by another
    client.
    """
    place.put(f"{odd}a", 1)
    ingest(place)
    for key in "abc":
        place.put(f"{odd}{key}", 2)

    def delete() -> None:
        for key in "ab":
            place.store.delete(f"raw/{odd}{key}")
        place.put(f"{odd}c", 5)

    result = ingest(place, delete)
    assert (result.status, result.gone, result.objects, result.superseded) == ("committed", 1, 0, 1)
    assert not place.values()
    ingest(place)
    assert place.values() == {5: 1}


def test_a_read_that_fails_does_not_block_others(ministack: S3Server) -> None:
    """Otherwise a few unreadable objects would keep all other objects of their slot out of the table. In the
    first plan, no object is readable. If the next run did not read these objects again, a temporary refusal
    would keep their rows out of the table for ever.
    """
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = ministack.config
        server = replace(ministack, config=lambda bucket: replace(config(bucket), endpoint_url=proxy.url))
        place = Place(server, slots=1, max_objects=2, schema="a int")
        for key in "abcd":
            place.put(key, 1)
        # The first plan has two objects.
        proxy.forbidden |= {"/raw/a", "/raw/b"}
        result = ingest(place)
        assert not result.ok
        assert set(result.failed_objects) == {"raw/a", "raw/b"}
        assert {row["_key"] for row in place.rows()} == {"raw/c", "raw/d"}
        proxy.forbidden.clear()
        assert ingest(place).ok
        assert place.values() == {1: 4}


def test_slots_fail_if_their_states_are_lost(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the slots could silently be ingested a second time."""
    monkeypatch.setattr(
        SHARED_CACHE, "page", lambda *_: None
    )  # the cache is empty, as in a process that has not written the states
    place = Place(ministack, slots=2)
    for n in range(300):
        place.put(f"{n}", 1)
    place.run("1")
    before = place.snapshot()
    (file,) = before.manifest.states.files
    place.store.delete(place.source.location.layout.state(file.name))
    for n in range(20):
        place.put(f"{n}", 2)
    result = place.run("2")
    assert {each.status for each in result.slots.values()} == {"failed"}
    assert all("missing" in each.error for each in result.slots.values())
    found = place.source.table().newest()
    assert isinstance(found, Snapshot)
    assert found.version == before.version
