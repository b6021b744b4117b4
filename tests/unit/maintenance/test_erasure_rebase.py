"""Another writer commits before an erasure does. The tests cover each row of the table in the docstring of
`maintenance/table_erasure.py`.
"""

import pytest

from s3notify_platform.kernel.errors import ConflictError, UsageError
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.table_erasure import HOLDER, erase
from s3notify_platform.table.known import RESTARTS
from tests.support.faults import CrashedError, Fault, FaultyStore
from tests.support.log_back import held
from tests.support.log_erasure import KEY, MARKS, A, commit, erasing, filled
from tests.support.log_rounds import slot_of_key
from tests.support.log_tables import beaten
from tests.support.raw_search import holding

ROWS = (471147114712, 471147114711, 8)
"""The numbers in the object's records, as `filled` has last committed them."""


@pytest.fixture
def rounds(store, clock, vectors, monkeypatch):
    return erasing(store, clock, vectors, monkeypatch)


def erased(rounds, clock, *others):
    """Erases the object. Each of the other writers commits once just before the erasure does."""
    left = [*others]
    done = erase(beaten(rounds().whole, left), A, KEY, clock=clock)
    assert not left, "each writer was first"
    return done


def check(rounds, store, clock, bucket):
    """Asserts that nothing of the object is left, and that nothing else is missing.

    The first erasure keeps young files, since they may belong to an uncommitted run. A second erasure removes the young
    files.
    """
    assert rounds().contents() == bucket
    clock.sleep(60)
    erase(rounds().whole, A, KEY, clock=clock)
    assert holding(store, *MARKS) == set()
    assert rounds().contents() == bucket


@pytest.mark.parametrize("key", ["c1", "b1", "a0"], ids=["new slot", "other slot", "object's slot"])
def test_erasure_restarts_after_others_changed_a_slot(rounds, store, clock, key):
    bucket = filled(rounds, clock)
    theirs = {**bucket, key: ("theirs", (1, 2, 3))}

    def other():
        process = rounds()
        process.commit(process.planned({**theirs, KEY: ("etag4711-b", ROWS)}, {slot_of_key(key)}))

    done = erased(rounds, clock, other)
    assert (done.version, done.rows, done.rejects) == (7, 2, 1)
    check(rounds, store, clock, theirs)


@pytest.mark.parametrize("again", [False, True], ids=["removed", "overwritten"])
def test_erasure_removes_what_others_have_done_with_the_object(rounds, store, clock, again):
    """Otherwise rows that the other writer has added would stay, or counts would be reduced twice."""
    bucket = filled(rounds, clock)
    theirs = {**bucket, KEY: ("etag4711-c", (471147114712, 471147114711, 7, 5))} if again else bucket
    done = erased(rounds, clock, lambda: commit(rounds(), theirs))
    assert (done.rows, done.rejects, done.known) == ((3, 1, True) if again else (0, 0, False))
    check(rounds, store, clock, bucket)


def test_erasure_restarts_after_others_merged_packs_and_states(rounds, store, clock):
    bucket = filled(rounds, clock)
    before = rounds().table.opened()
    done = erased(rounds, clock, lambda: compact(rounds().whole))
    assert done.rows == 2
    after = rounds().table.opened()
    assert after.packs.keys().isdisjoint(before.packs.keys()), "the packs were merged"
    check(rounds, store, clock, bucket)


def test_erasure_restarts_after_others_let_the_schema_grow(rounds, store, clock):
    bucket = filled(rounds, clock)
    theirs = {**bucket, "b1": ("theirs", (1, 2))}

    def other():
        process = rounds()
        process.commit(process.grown(process.planned({**theirs, KEY: ("etag4711-b", ROWS)}), "theirs"))

    erased(rounds, clock, other)
    assert rounds().columns() == ["theirs"]
    check(rounds, store, clock, theirs)
    assert rounds().columns() == ["theirs"]


def test_erasure_rewrites_packs_that_another_engine_merged(rounds, store, clock):
    """The other engine's pack has no bounds of keys. If the erasure skipped a pack without bounds, the
    object's rows would stay in the table.
    """
    bucket = filled(rounds, clock)
    done = erased(rounds, clock, lambda: rounds().optimized())
    assert done.rows == 2
    check(rounds, store, clock, bucket)


def test_erasure_fails_at_a_refused_version_of_another_engine(rounds, clock):
    filled(rounds, clock)
    with pytest.raises(UsageError, match="rollback"):
        erased(rounds, clock, lambda: rounds().refused())
    assert held(rounds) == ""


@pytest.mark.parametrize("key", [KEY, "b-person88"], ids=["the same object", "another object"])
def test_two_erasures_at_once_leave_nothing_of_their_objects(rounds, store, clock, key):
    """If the second erasure did not start again on the newest version, its new packs could bring back the rows that the
    first erasure has removed. The first erasure may have emptied the version on which the second erasure was planned.
    """
    bucket = filled(rounds, clock)
    if key != KEY:
        commit(rounds(), {**bucket, KEY: ("etag4711-b", ROWS), key: ("x", (1, 2, 3))})
        clock.sleep(60)
    erased(rounds, clock, lambda: erase(rounds().whole, slot_of_key(key), key, clock=clock))
    check(rounds, store, clock, bucket)
    erase(rounds().whole, slot_of_key(key), key, clock=clock)  # files of the overtaken erasure may have `key`
    assert holding(store, key) == set()
    assert rounds().contents() == bucket


def test_erasure_holds_a_busy_table(rounds, store, clock):
    """Other writers wait while an erasure holds the table. Otherwise an erasure beside many batches would fail after
    `COMMIT_SECONDS`.
    """
    bucket, seen = filled(rounds, clock), []

    def other():
        seen.append(held(rounds))
        if not seen[-1]:
            bucket["b1"] = (f"theirs{len(seen)}", (len(seen),))
            process = rounds()
            process.commit(process.planned({**bucket, KEY: ("etag4711-b", ROWS)}))

    done = erased(rounds, clock, *[other] * (RESTARTS + 1))
    assert seen == [""] * RESTARTS + [HOLDER]
    assert held(rounds) == ""
    assert done.version == 5 + RESTARTS + 1
    check(rounds, store, clock, bucket)


def test_writers_wait_until_a_killed_erasure_is_repeated(rounds, store, clock):
    bucket = filled(rounds, clock)
    dead = FaultyStore(store, lambda _: Fault.CRASH_BEFORE if held(rounds) else Fault.NONE)

    def other(n):
        return lambda: commit(rounds(), {**bucket, "b2": (f"theirs{n}", (1,)), KEY: ("etag4711-b", ROWS)})

    with pytest.raises(CrashedError):
        erase(beaten(rounds(dead).whole, [other(n) for n in range(RESTARTS)]), A, KEY, clock=clock)
    assert held(rounds) == HOLDER
    with pytest.raises(ConflictError, match=r"held by `s3notify erase`.*repeat it"):
        commit(rounds(), {**bucket, "c1": ("mine", (1, 2))})
    erase(rounds().whole, A, KEY, clock=clock)
    assert held(rounds) == ""
    bucket |= {"b2": (f"theirs{RESTARTS - 1}", (1,)), "c1": ("mine", (1, 2))}
    commit(rounds(), bucket)
    check(rounds, store, clock, bucket)
