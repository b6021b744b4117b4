"""A table of newest rows equals a window over all rows of the source, after any changes of the source, and after
crashes.
"""

import pyarrow as pa
import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.latest.latest_definition import Latest
from s3notify_platform.table.row_changes import row_changes
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore
from tests.support.keyed_rounds import (
    COLUMNS,
    LATEST,
    NEWEST,
    KeyedRounds,
    following,
    other_table,
    shown,
    values_of,
    window,
)
from tests.support.log_rounds import slot_of_key


def row(key, at, *, gone=False):
    """Returns a number that represents a row with these values."""
    return next(
        n
        for n in range(1, 5000)
        if n % 3
        and values_of(n) | {"_modified": None} == {"id": key, "at": at, "gone": gone, "_modified": None}
    )


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def source(request):
    return KeyedRounds(store=MemoryObjectStore(), vectors=request.param)


def commit(source, bucket):
    source.commit(source.planned(bucket))


def followed(source, bucket, **more):
    """Commits a bucket, and returns the newest rows, which must equal the result of a window function over all rows."""
    commit(source, bucket)
    newest = following(NEWEST, source, **more)
    done = newest.follow()
    found = shown(newest.table)
    assert found == window(source.rows())
    assert done.rows == len(found)
    return {key: number for key, (number, *_) in found.items()}


OLD, NEW, NEWER = row("k1", 1), row("k1", 2), row("k1", 3)
OTHER = row("k2", 1)
DELETED = row("k1", 4, gone=True)


def test_newer_rows_replace_older_ones(source):
    assert followed(source, {"a1": ("e", (OLD, OTHER))}) == {"k1": OLD, "k2": OTHER}
    assert followed(source, {"a1": ("e", (OLD, OTHER)), "b1": ("e", (NEW,))}) == {"k1": NEW, "k2": OTHER}


def test_late_row_changes_nothing(source):
    followed(source, {"a1": ("e", (NEW,))})
    assert followed(source, {"a1": ("e", (NEW,)), "b1": ("e", (OLD,))}) == {"k1": NEW}


@pytest.mark.parametrize("bucket", [{}, {"b1": ("f", (OTHER,))}], ids=["deleted", "overwritten"])
def test_older_row_is_shown_again_after_the_newest_row_has_left(source, bucket):
    first = {"a1": ("e", (OLD,)), "a2": ("e", (NEW,))}
    followed(source, {**first, "b1": ("e", (NEWER,))})
    assert followed(source, {**first, **bucket})["k1"] == NEW


def test_key_leaves_with_its_last_row(source):
    followed(source, {"a1": ("e", (NEW, OTHER)), "b1": ("e", (OLD,))})
    assert followed(source, {}) == {}
    assert followed(source, {"c1": ("e", (OLD,))}) == {"k1": OLD}


def test_deleted_key_has_no_row_until_a_newer_one_is_added(source):
    """Otherwise an older row that arrives late would restore a deleted key, or the key would stay deleted after the row
    of its deletion was withdrawn.
    """
    first = {"a1": ("e", (OLD,)), "b1": ("e", (DELETED,))}
    assert followed(source, first) == {}
    assert followed(source, {**first, "c1": ("e", (NEW,))}) == {}
    newest = row("k1", 4, gone=False)
    assert followed(source, {**first, "c1": ("f", (newest,))}).get("k1") in (None, newest)
    assert followed(source, {"a1": ("e", (OLD,)), "c1": ("e", (NEW,))}) == {"k1": NEW}


def test_rows_of_an_erased_object_are_replaced(source):
    """Otherwise erased rows would stay, because the version of an erasure does not name the erased rows."""
    clock = HandClock()
    store = MemoryObjectStore(clock=clock)
    source = KeyedRounds(store=store, clock=clock, vectors=source.vectors, more={"max_run_seconds": 100.0})
    bucket = {"a1": ("e", (NEW, OTHER)), "b1": ("e", (OLD,))}
    followed(source, bucket)
    erase(source.whole, slot_of_key("a"), "a1", clock=clock)
    assert followed(source, {"b1": ("e", (OLD,))}) == {"k1": OLD}


def test_rollback_rebuilds_the_table(source):
    followed(source, {"a1": ("e", (OLD,))})
    followed(source, {"a1": ("e", (OLD,)), "b1": ("e", (NEW,))})
    roll_back(source.whole, 1)
    newest = following(NEWEST, source)
    assert "went back to version 1" in newest.follow().rebuilt
    assert shown(newest.table) == window(source.rows())
    assert newest.follow().rebuilt == ""


@pytest.mark.parametrize("limits", [{"step_objects": 3}, {"step_bytes": 10_000}])
def test_many_versions_are_read_in_steps(source, limits):
    bucket = {}
    followed(source, bucket | {"a0": ("e", (OLD,))})
    for n in range(1, 8):
        bucket[f"b{n}"] = ("e", (row(f"k{n % 3}", n % 5),))
        commit(source, bucket)
    newest = following(NEWEST, source, **limits)
    before = newest.table.newest().version
    done = newest.follow()
    assert done.rebuilt == ""
    assert done.version > before + 1
    assert shown(newest.table) == window(source.rows())


def test_too_large_step_rebuilds_the_table(source):
    followed(source, {"a1": ("e", (OLD,))})
    commit(source, {f"b{n}": ("e", (row("k2", 3),)) for n in range(5)})
    newest = following(NEWEST, source, step_objects=3)
    assert newest.follow().rebuilt.startswith(
        "one version has more changes than a step may take: 6 objects, "
    )
    assert shown(newest.table) == window(source.rows())


def test_new_definition_rebuilds_the_table(source):
    followed(source, {"a1": ("e", (OLD, NEW)), "b1": ("e", (DELETED,))})
    other = Latest(key=("id",), order_by=("n",), slots=7)
    newest = following(NEWEST, source, latest=other)
    assert newest.follow().rebuilt == "its definition has changed"
    assert newest.follow().rebuilt == ""


@pytest.mark.parametrize(
    ("latest", "message"),
    [
        (Latest(key=("no",), order_by=("at",)), "latest: the table has no column 'no': it has n, id, at"),
        (Latest(key=("id",), order_by=("no",)), "latest: the table has no column 'no'"),
    ],
)
def test_missing_column_is_refused(source, latest, message):
    commit(source, {"a1": ("e", (OLD,))})
    with pytest.raises(UsageError, match=message):
        following(NEWEST, source, latest=latest).follow()


def test_columns_without_the_time_that_breaks_ties_are_refused():
    """If a transform dropped the column, the newest row of a key could be a row that was not written last."""
    LATEST.check(COLUMNS)
    without = pa.schema([each for each in COLUMNS if each.name != "_modified"])
    with pytest.raises(UsageError, match=r"no column '_modified'.*a transform must keep this column"):
        LATEST.check(without)


def test_source_without_rows_makes_no_table(source):
    newest = following(NEWEST, source)
    assert newest.follow().version == -1
    source.table.opened()
    assert newest.follow().version == -1


def test_round_with_one_row_takes_few_requests(source):
    """Otherwise a round with one row would read more than the changes, the row's pack, and the states of the row's
    key.
    """
    bucket = {f"a{n}": ("e", (row(f"k{n % 3}", 1),)) for n in range(9)}
    followed(source, bucket)
    store = CountingStore(source.store)
    newest = following(NEWEST, source, store)
    newest.follow()
    commit(source, {**bucket, "b1": ("e", (NEW,))})
    store.counts.clear()
    newest.follow()
    assert store.counts["PUT"] <= 5
    assert store.counts["GET"] + store.counts["LIST"] <= 20
    store.counts.clear()
    newest.follow()
    assert store.counts["PUT"] == 0


def test_newest_rows_have_a_change_feed(source):
    followed(source, {"a1": ("e", (OLD, OTHER))})
    before = following(NEWEST, source).table.newest().version
    followed(source, {"a1": ("e", (OLD, OTHER)), "b1": ("e", (NEW,))})
    table = other_table(NEWEST, source.store)
    feed = row_changes(table.reader, before, table.newest().version)
    assert {key: reason for key, (*_, reason) in feed.first.items()} == {"k1": "overwritten"}


def test_rounds_go_on_after_compaction(source):
    for n in range(1, 12):
        followed(source, {f"a{m}": ("e", (row(f"k{m % 3}", m % 5),)) for m in range(n)})
    table = other_table(NEWEST, source.store, vectors=source.vectors)
    compact(table)
    assert followed(source, {"a1": ("e", (OLD,))}) == {"k1": OLD}


def test_round_that_is_killed_at_any_write_can_be_repeated(source):
    """Otherwise, after a crash, a row would be lost or occur twice."""
    base = dict(source.store._objects)
    for kill in range(40):
        source.store._objects = dict(base)
        died = False
        for bucket in (
            {"a1": ("e", (OLD, OTHER))},
            {"a1": ("f", (OTHER,)), "b1": ("e", (NEW,)), "c1": ("e", (OLD,))},
        ):
            commit(KeyedRounds(store=source.store, vectors=source.vectors), bucket)
            try:
                following(NEWEST, source, FaultyStore(source.store, after_writes(kill))).follow()
            except CrashedError:
                died = True
            newest = following(NEWEST, source)
            newest.follow()
            assert shown(newest.table) == window(source.rows())
        if not died:
            break
    assert kill > 5


def after_writes(number):
    """Returns a schedule that crashes the process after the write with this number, counted from 0."""
    seen = 0

    def schedule(call):
        nonlocal seen
        if call.method in ("put", "delete", "create", "replace"):
            seen += 1
            if seen > number:
                return Fault.CRASH_AFTER
        return Fault.NONE

    return schedule


def test_second_of_two_writers_has_nothing_left_to_commit(source):
    """Otherwise the table would get the same changes twice."""
    followed(source, {"a1": ("e", (OLD,))})
    commit(source, {"a1": ("e", (OLD,)), "b1": ("e", (NEW,))})
    first = following(NEWEST, source)

    class Beaten(DelegatingStore):
        """Lets another writer commit just before a version is created."""

        def put(self, key, *args, **kwargs):
            if "newest/_delta_log" in key and not done:
                done.append(first.follow())
            return super().put(key, *args, **kwargs)

    done = []
    second = following(NEWEST, source, Beaten(source.store))
    assert second.follow().changed == 0
    assert done[0].version == second.table.newest().version
    assert shown(second.table) == window(source.rows())
