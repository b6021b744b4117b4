"""A table of newest rows is what a window over all rows would be, whatever comes, leaves, or is killed."""

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
from tests.support.keyed_rounds import NEWEST, KeyedRounds, following, other_table, shown, values_of, window
from tests.support.log_rounds import slot_of_key


def row(key, at, *, gone=False):
    """The number of a row with these values."""
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
    """The newest rows after a bucket was committed, which are those of a window."""
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


def test_newer_rows_take_the_place_of_older_ones(source):
    assert followed(source, {"a1": ("e", (OLD, OTHER))}) == {"k1": OLD, "k2": OTHER}
    assert followed(source, {"a1": ("e", (OLD, OTHER)), "b1": ("e", (NEW,))}) == {"k1": NEW, "k2": OTHER}


def test_a_row_that_comes_late_changes_nothing(source):
    followed(source, {"a1": ("e", (NEW,))})
    assert followed(source, {"a1": ("e", (NEW,)), "b1": ("e", (OLD,))}) == {"k1": NEW}


@pytest.mark.parametrize("bucket", [{}, {"b1": ("f", (OTHER,))}], ids=["deleted", "overwritten"])
def test_the_next_newest_comes_back(source, bucket):
    first = {"a1": ("e", (OLD,)), "a2": ("e", (NEW,))}
    followed(source, {**first, "b1": ("e", (NEWER,))})
    assert followed(source, {**first, **bucket})["k1"] == NEW


def test_the_last_row_of_a_key_leaves(source):
    followed(source, {"a1": ("e", (NEW, OTHER)), "b1": ("e", (OLD,))})
    assert followed(source, {}) == {}
    assert followed(source, {"c1": ("e", (OLD,))}) == {"k1": OLD}


def test_a_deleted_key_has_no_row_until_a_newer_one_comes(source):
    """Also if an older row comes late; and if the deletion leaves."""
    first = {"a1": ("e", (OLD,)), "b1": ("e", (DELETED,))}
    assert followed(source, first) == {}
    assert followed(source, {**first, "c1": ("e", (NEW,))}) == {}
    newest = row("k1", 4, gone=False)
    assert followed(source, {**first, "c1": ("f", (newest,))}).get("k1") in (None, newest)
    assert followed(source, {"a1": ("e", (OLD,)), "c1": ("e", (NEW,))}) == {"k1": NEW}


def test_an_erased_object(source):
    """Its rows give way to the next-newest, though their versions do not say which rows they were."""
    clock = HandClock()
    store = MemoryObjectStore(clock=clock)
    source = KeyedRounds(store=store, clock=clock, vectors=source.vectors, more={"max_run_seconds": 100.0})
    bucket = {"a1": ("e", (NEW, OTHER)), "b1": ("e", (OLD,))}
    followed(source, bucket)
    erase(source.whole, slot_of_key("a"), "a1", clock=clock)
    assert followed(source, {"b1": ("e", (OLD,))}) == {"k1": OLD}


def test_a_rollback_makes_it_again(source):
    followed(source, {"a1": ("e", (OLD,))})
    followed(source, {"a1": ("e", (OLD,)), "b1": ("e", (NEW,))})
    roll_back(source.whole, 1)
    newest = following(NEWEST, source)
    assert "went back to version 1" in newest.follow().rebuilt
    assert shown(newest.table) == window(source.rows())
    assert newest.follow().rebuilt == ""


@pytest.mark.parametrize("limits", [{"step_objects": 3}, {"step_bytes": 10_000}])
def test_many_versions_at_once_are_taken_in_steps(source, limits):
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


def test_too_much_at_once_is_made_again(source):
    followed(source, {"a1": ("e", (OLD,))})
    commit(source, {f"b{n}": ("e", (row("k2", 3),)) for n in range(5)})
    newest = following(NEWEST, source, step_objects=3)
    assert newest.follow().rebuilt.startswith("6 objects, ")
    assert shown(newest.table) == window(source.rows())


def test_another_definition_makes_it_again(source):
    followed(source, {"a1": ("e", (OLD, NEW)), "b1": ("e", (DELETED,))})
    other = Latest(key=("id",), order_by=("n",), slots=7)
    newest = following(NEWEST, source, latest=other)
    assert newest.follow().rebuilt == "its definition is another one"
    assert newest.follow().rebuilt == ""


@pytest.mark.parametrize(
    ("latest", "message"),
    [
        (Latest(key=("no",), order_by=("at",)), "latest: the table has no column 'no': it has n, id, at"),
        (Latest(key=("id",), order_by=("no",)), "latest: the table has no column 'no'"),
    ],
)
def test_columns_that_are_not_there(source, latest, message):
    commit(source, {"a1": ("e", (OLD,))})
    with pytest.raises(UsageError, match=message):
        following(NEWEST, source, latest=latest).follow()


def test_before_there_is_a_row(source):
    newest = following(NEWEST, source)
    assert newest.follow().version == -1
    source.table.opened()
    assert newest.follow().version == -1


def test_requests(source):
    """A round with one row: the changes, its pack, the states of its key, and a commit."""
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


def test_the_newest_rows_have_changes_of_their_own(source):
    followed(source, {"a1": ("e", (OLD, OTHER))})
    before = following(NEWEST, source).table.newest().version
    followed(source, {"a1": ("e", (OLD, OTHER)), "b1": ("e", (NEW,))})
    table = other_table(NEWEST, source.store)
    feed = row_changes(table.reader, before, table.newest().version)
    assert {key: reason for key, (*_, reason) in feed.first.items()} == {"k1": "overwritten"}


def test_beside_compaction(source):
    for n in range(1, 12):
        followed(source, {f"a{m}": ("e", (row(f"k{m % 3}", m % 5),)) for m in range(n)})
    table = other_table(NEWEST, source.store, vectors=source.vectors)
    compact(table)
    assert followed(source, {"a1": ("e", (OLD,))}) == {"k1": OLD}


def test_killed_anywhere_it_goes_on(source):
    """After each of its writes, at the first time and later: no row is lost, none is there twice."""
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
    """A crash after so many writes."""
    seen = 0

    def schedule(call):
        nonlocal seen
        if call.method in ("put", "delete", "create", "replace"):
            seen += 1
            if seen > number:
                return Fault.CRASH_AFTER
        return Fault.NONE

    return schedule


def test_two_at_once(source):
    """One of them is first; the other one finds nothing left to do."""
    followed(source, {"a1": ("e", (OLD,))})
    commit(source, {"a1": ("e", (OLD,)), "b1": ("e", (NEW,))})
    first = following(NEWEST, source)

    class Beaten(DelegatingStore):
        """Another one is first, just before a version is created."""

        def put(self, key, *args, **kwargs):
            if "newest/_delta_log" in key and not done:
                done.append(first.follow())
            return super().put(key, *args, **kwargs)

    done = []
    second = following(NEWEST, source, Beaten(source.store))
    assert second.follow().changed == 0
    assert done[0].version == second.table.newest().version
    assert shown(second.table) == window(source.rows())
