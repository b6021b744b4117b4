"""A rollback to an earlier version, on a real server: the plan is reported, and later changes are read again."""

from datetime import UTC, datetime

import pytest

from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.maintenance.rollback import plan_rollback, rollback, version_of
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.table.commit import Committed, NothingLeft
from s3notify_platform.table.delta.actions import LogVersion, Remove
from tests.support.faults import CrashedError, FaultyStore, crash_at_signals
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


@pytest.fixture
def place(ministack: S3Server) -> Place:
    """Commits two objects. Then one of the two objects is overwritten, and a third object is added."""
    made = Place(ministack)
    made.put("a", 1)
    made.put("b", 2)
    made.run("1")
    made.put("a", 10, 11)
    made.put("c", 3)
    made.run("2")
    return made


def test_plan_lists_the_changes_of_a_rollback(place: Place) -> None:
    """An operator decides by the plan. Wrong slots, counts or keys would hide which rows the rollback removes. A plan
    that writes would change the bucket before the decision.
    """
    first, last = 1, place.snapshot().version
    before = place.objects()
    planned = plan_rollback(place.source.location, first)
    assert place.objects() == before
    assert (planned.version, planned.newest) == (first, last)
    assert set(planned.slots) == {slot_of("raw/a", 4), slot_of("raw/c", 4)}
    assert (planned.rows, planned.objects) == ((4, 2), (3, 2))
    assert (planned.again, planned.keys) == (2, ("raw/a", "raw/c"))
    assert planned.columns == ()
    assert {slot: planned.facts[slot] for slot in planned.slots} == planned.facts


def test_plan_lists_columns_that_leave_the_schema(place: Place) -> None:
    """Queries for such a column fail after the rollback. Without the column in the plan, an operator would
    not expect these failures. Version 0 has no rows and no columns.
    """
    assert plan_rollback(place.source.location, 0).columns == ("a",)


def test_next_run_ingests_what_has_changed_since_the_version(place: Place) -> None:
    """Otherwise the table would keep the rows of the earlier version, although the bucket has newer objects. The
    rollback signals the changed slots, and the next listing compares these slots.
    """
    location = place.source.location
    watcher = Watcher(place.store, prefix=location.keyspace_prefix)
    watcher.poll()
    planned = plan_rollback(location, 1)
    done = rollback(place.source, 1)
    assert isinstance(done, Committed)
    assert place.values() == {1: 1, 2: 1}
    assert set(watcher.poll().changed) == set(planned.slots)
    assert set(RescanBacklog(location.records()).read().slots) >= set(planned.slots)
    generations = place.generations()
    assert {generations[slot] for slot in planned.slots} == {done.snapshot.version}
    assert isinstance(rollback(place.source, 1), NothingLeft)
    place.store.delete("raw/c")
    place.run("3")
    assert place.values() == {10: 1, 11: 1, 2: 1}


def test_rollback_that_is_killed_before_its_signals_is_completed_by_a_repetition(place: Place) -> None:
    """Otherwise the objects that have changed since the version would stay missing until their slots change again."""
    location = place.source.location
    watcher = Watcher(place.store, prefix=location.keyspace_prefix)
    watcher.poll()
    planned = plan_rollback(location, 1)
    dying = FaultyStore(place.store, crash_at_signals(location.keyspace_prefix))
    with pytest.raises(CrashedError):
        rollback(place.source, 1, platform=dying)
    assert not watcher.poll().changed
    assert isinstance(rollback(place.source, 1), NothingLeft)
    assert set(watcher.poll().changed) == set(planned.slots)


def test_version_at_a_time_is_the_newest_version_at_that_time(place: Place) -> None:
    """Otherwise a rollback to a time would keep later changes, or would drop changes that the table already had at that
    time. A time before the first version is refused.
    """
    newest, moment = place.snapshot().version, place.moment()
    place.put("b", 20)
    place.run("3")
    assert place.snapshot().version == newest + 1
    assert version_of(place.source.location, moment) == newest
    assert version_of(place.source.location, datetime(2100, 1, 1, tzinfo=UTC)) == place.snapshot().version
    with pytest.raises(NotFoundError, match="the oldest version that is kept is 0"):
        version_of(place.source.location, datetime(2000, 1, 1, tzinfo=UTC))


def test_rollback_to_a_version_that_is_not_kept_is_refused(place: Place) -> None:
    for refused in (lambda: plan_rollback(place.source.location, 99), lambda: rollback(place.source, 99)):
        with pytest.raises(NotFoundError, match="version 99"):
            refused()


def test_rollback_undoes_a_refused_version_of_another_engine(place: Place) -> None:
    """The other engine has deleted rows, so the platform's runs refuse the table. Without the rollback, the deleted
    rows would stay lost, and the source could not be ingested any more.
    """
    table, found = place.source.table(), place.snapshot()
    pack = next(iter(found.packs.values()))
    foreign = LogVersion(operation="DELETE", removes=(Remove(path=pack.path, deleted_ms=1),))
    place.store.put(table.layout.version(found.version + 1), foreign.dumps())
    planned = plan_rollback(place.source.location, found.version)
    assert (planned.newest, planned.slots) == (found.version, ())
    assert isinstance(rollback(place.source, found.version), Committed)
    assert place.values() == {10: 1, 11: 1, 2: 1, 3: 1}


def test_rollback_without_a_table_is_refused(ministack: S3Server) -> None:
    with pytest.raises(UsageError, match="has no table"):
        plan_rollback(Place(ministack).source.location, 0)
