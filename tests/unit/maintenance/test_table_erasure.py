"""The erasure of an object from a table: no trace of the object is left anywhere, and nothing else is lost."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.table_erasure import ending, erase
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.versions import history, snapshot_of
from tests.support.faults import WRITES, CrashedError, Fault, FaultyStore, at
from tests.support.log_erasure import KEY, MARKS, RUN, A, commit, erasing, filled
from tests.support.log_tables import LAYOUT
from tests.support.raw_search import holding


@pytest.fixture
def rounds(store, clock, vectors, monkeypatch):
    return erasing(store, clock, vectors, monkeypatch)


class Derived:
    """A stand-in for one slot of a derived table in a round. The stand-in has counts and no rows."""

    def __init__(self, rows):
        self.changes, self.pairs, self.rows = {}, [], rows

    def leaving(self):
        return []

    def facts(self, before):
        return replace(before, rows=before.rows + self.rows, source=7)


def numbers(process):
    return sorted(event.version for event in history(process.table.reader))


def test_erasure_leaves_no_trace_and_loses_nothing_else(rounds, store, clock):
    bucket = filled(rounds, clock)
    assert len(holding(store, *MARKS)) > 8, "the object is in packs, states, manifests, versions"
    process = rounds()
    assert ending(process.whole) == (0, 5)
    done = erase(process.whole, A, KEY, clock=clock)
    assert (done.version, done.begins, done.rows, done.rejects, done.left) == (6, 6, 2, 1, 0)
    assert holding(store, *MARKS) == set()
    assert rounds().contents() == bucket
    assert numbers(process) == [6]
    assert store.head(LAYOUT.checkpoint(6))
    assert process.table.reader.last_checkpoint() == 6
    with pytest.raises(NotFoundError, match="versions 6 to 6 are kept"):
        snapshot_of(process.table.reader, 4)
    commit(process, {**bucket, "c1": ("x", (1,))})
    assert rounds().contents() == {**bucket, "c1": ("x", (1,))}


def test_withdrawn_object_is_erased_from_history(rounds, store, clock):
    """Otherwise the data of a deleted object would stay readable in earlier versions after the erasure. A
    deletion vector hides the object's rows, or the rows are only in earlier versions.
    """
    bucket = filled(rounds, clock)
    commit(rounds(), bucket)
    commit(rounds(), {**bucket, "c1": ("x", (1, 2))})
    clock.sleep(60)
    assert holding(store, *MARKS)
    done = erase(rounds().whole, A, KEY, clock=clock)
    assert (done.rows, done.known) == (0, False)
    assert holding(store, *MARKS) == set()
    assert rounds().contents() == {**bucket, "c1": ("x", (1, 2))}


def test_versions_after_the_last_one_with_the_object_stay_readable(rounds, store, clock):
    """The erasure was killed after its commit, and is repeated after other writers have committed. If the repetition
    cut the log at the newest version, users could no longer go back to the versions in between.
    """
    bucket = filled(rounds, clock)
    killed = FaultyStore(store, at("put", Fault.CRASH_BEFORE, key=LAYOUT.checkpoint(6)))
    with pytest.raises(CrashedError):
        erase(rounds(killed).whole, A, KEY, clock=clock)
    commit(rounds(), {**bucket, "c1": ("x", (1, 2))})
    clock.sleep(60)
    process = rounds()
    done = erase(process.whole, A, KEY, clock=clock)
    assert (done.version, done.begins) == (8, 6)
    assert holding(store, *MARKS) == set()
    assert numbers(process) == [6, 7, 8]
    assert rounds().contents(snapshot_of(process.table.reader, 6)) == bucket
    assert rounds().contents() == {**bucket, "c1": ("x", (1, 2))}


def test_erasing_an_unknown_key_keeps_the_history(rounds, clock):
    bucket = filled(rounds, clock)
    process = rounds()
    done = erase(process.whole, A, "a-other", clock=clock)
    assert not done.found
    assert numbers(process) == [*range(7)]
    assert {key for key in rounds().contents() if key != KEY} == bucket.keys()


def test_repeated_erasure_finds_nothing(rounds, store, clock):
    bucket = filled(rounds, clock)
    first = erase(rounds().whole, A, KEY, clock=clock)
    assert first.found
    assert first.again_ms >= clock.wall_ms() + RUN * 1000
    commit(rounds(), {**bucket, "c1": ("x", (1, 2))})
    clock.sleep(RUN + 60)
    second = erase(rounds().whole, A, KEY, clock=clock)
    assert not second.found
    assert numbers(rounds()) == [6, 7, 8]


def test_erasure_removes_files_of_dead_rounds_and_other_engines(rounds, store, clock):
    """Otherwise unreferenced files, and files made from versions below the log's first version, would still hold the
    object.
    """
    bucket = filled(rounds, clock)
    with_it = {**bucket, KEY: ("etag4711", (471147114711, 471147114712)), "a3": ("e", (1, 2))}
    rounds().planned(with_it)
    pack = next(body for body in map(store.get, packs(store)) if KEY in str(body.body))
    store.put(f"{LAYOUT.prefix}part-1.parquet", pack.body)
    store.put(f"{LAYOUT.log}00000000000000000002.crc", KEY.encode())
    store.put(LAYOUT.staged_version(77), b"471147114711")
    store.put(LAYOUT.manifest(78), store.get(LAYOUT.manifest(rounds().table.opened().number)).body)
    clock.sleep(60)
    erase(rounds().whole, A, KEY, clock=clock)
    assert holding(store, *MARKS) == set()
    assert rounds().contents() == bucket


def packs(store):
    return [meta.key for meta in store.list(LAYOUT.data).objects]


def test_repetition_removes_files_that_a_run_writes_late(rounds, store, clock):
    """A run that was planned before the erasure writes its files after the erasure. If the repetition did not find
    these files, the erased object's data would stay on the store.
    """
    bucket = filled(rounds, clock)
    with_it = {**bucket, KEY: ("etag4711-c", (471147114711, 471147114712)), "c1": ("x", (1, 2))}
    process, before = rounds(), {meta.key for meta in list_all(store, "")}
    planned = process.planned(with_it)
    late = {meta.key: store.get(meta.key).body for meta in [*list_all(store, "")] if meta.key not in before}
    for key in late:
        store.delete(key)
    erase(rounds().whole, A, KEY, clock=clock)
    for key, body in late.items():
        store.put(key, body)
    done = process.commit(planned)
    assert planned.dropped.keys() == {A}
    assert rounds().contents(done.snapshot) == {**bucket, "c1": ("x", (1, 2))}
    assert holding(store, *MARKS), "its files"
    clock.sleep(RUN)
    last = erase(rounds().whole, A, KEY, clock=clock)
    assert (last.found, last.files > 0, last.begins) == (True, True, -1)
    assert holding(store, *MARKS) == set()
    assert rounds().contents() == {**bucket, "c1": ("x", (1, 2))}


def test_late_version_conflicts_with_an_emptied_version(rounds, store, clock):
    """The request that creates the version was in flight during the erasure. This late request must not create a
    version in the part of the log that was cut off.
    """
    bucket = filled(rounds, clock)
    mine = {**bucket, KEY: ("etag4711-b", (471147114712, 471147114711, 8)), "d1": ("mine", (1,))}
    theirs = {**bucket, "c1": ("theirs", (1,))}

    class Slow(DelegatingStore):
        slow = True

        def put(self, key, body, **given):
            if key == LAYOUT.version(6) and self.slow:
                self.slow = False
                commit(rounds(), theirs)
                commit(rounds(), {**theirs, "c1": ("newer", (2,))})
                erase(rounds().whole, A, KEY, clock=clock)
                assert store.head(key).size == 0
            return store.put(key, body, **given)

    process = rounds(Slow(store))
    planned = process.planned(mine, {3})
    assert isinstance(process.commit(planned), Committed)
    assert rounds().contents() == {**bucket, "c1": ("newer", (2,)), "d1": ("mine", (1,))}


def test_young_files_stay_because_a_run_may_name_them(rounds, store, clock):
    """The object is in the bucket again. A run that has begun to ingest the object has written young files.
    If the erasure deleted these files, the run would commit a table with missing files.
    """
    bucket = filled(rounds, clock)
    erase(rounds().whole, A, KEY, clock=clock)
    clock.sleep(60)
    again = {**bucket, KEY: ("etag4711", (471147114711, 471147114712))}
    process = replace(rounds(), small=False)
    planned = process.planned(again)
    clock.sleep(1)
    late = erase(rounds().whole, A, KEY, clock=clock)
    assert late.left
    process.commit(planned)
    assert A in planned.dropped
    assert rounds().contents() == bucket


@pytest.mark.parametrize("planned_on", ["newest", "older"])
def test_round_in_flight_commits_without_the_erased_slot(rounds, store, clock, planned_on):
    """The erasure removes files that the round has written or would read, and empties the earlier versions."""
    bucket = filled(rounds, clock)
    process = rounds()
    base = process.table.opened()
    if planned_on == "older":
        commit(rounds(), {**bucket, KEY: ("etag4711", (471147114711, 471147114712)), "d1": ("d", (1,))})
        bucket["d1"] = ("d", (1,))
    mine = {**bucket, KEY: ("etag4711-c", (471147114711,)), "a0": ("mine", (5,)), "b0": ("mine", (2,))}
    mine |= {f"e{n}": ("mine", (1, 2)) for n in range(3)}
    mine.pop("d1", None)
    planned = process.planned(mine, base=base)
    clock.sleep(60)
    erase(rounds().whole, A, KEY, clock=clock)
    assert holding(store, *MARKS) == set()
    done = process.commit(planned)
    assert A in planned.dropped
    assert holding(store, *MARKS) == set()
    took = {
        key: mine[key]
        for key in mine
        if key[0] in "be" and Slot(ord(key[0]) - ord("a")) not in planned.dropped
    }
    assert rounds().contents(done.snapshot) == {**bucket, **took}
    mine.pop(KEY)
    mine |= {"d1": bucket["d1"]} if planned_on == "older" else {}
    commit(rounds(), mine)
    assert rounds().contents() == mine


def test_warm_process_opens_the_table_again_after_an_erasure(rounds, clock):
    bucket = filled(rounds, clock)
    process = rounds()
    kept = process.whole.newest()
    erase(rounds().whole, A, KEY, clock=clock)
    assert process.contents(process.whole.newest()) == bucket
    assert process.whole.newest().version == kept.version + 1


def after_write(number):
    """Crashes after the write with this number, counted from 0. The process is dead from then on."""
    seen = 0

    def schedule(call):
        nonlocal seen
        if seen > number:
            return Fault.CRASH_BEFORE
        seen += call.method in WRITES
        return Fault.CRASH_AFTER if seen > number else Fault.NONE

    return schedule


def before_request(number):
    """Crashes before the request with this number. Requests that write nothing count, too. The process is dead from
    then on.
    """
    return lambda call: Fault.CRASH_BEFORE if call.number >= number else Fault.NONE


@pytest.mark.parametrize("kills", [after_write, before_request], ids=["after writes", "before requests"])
def test_erasure_that_is_killed_at_any_step_is_completed_by_a_repetition(rounds, store, clock, kills):
    """Otherwise a killed erasure would leave data of the object, or a table with missing files. Rows of other objects
    must stay at each step.
    """
    filled(rounds, clock)
    saved = dict(store._objects)
    steps, killed = 0, True
    while killed:
        store._objects = dict(saved)
        killed = False
        try:
            erase(rounds(FaultyStore(store, kills(steps))).whole, A, KEY, clock=clock)
        except CrashedError:
            killed = True
        between = rounds().contents()
        clock.sleep(60)
        erase(rounds().whole, A, KEY, clock=clock)
        assert holding(store, *MARKS) == set(), steps
        assert rounds().contents() == {key: found for key, found in between.items() if key != KEY}
        steps += 1
    assert steps > 20


def test_vacuum_removes_the_emptied_versions(rounds, store, clock):
    bucket = filled(rounds, clock)
    process = rounds()
    erase(process.whole, A, KEY, clock=clock)

    def cleaned():
        table = process.table
        return vacuum(table.committer, table.opened(), retention_seconds=RUN, clock=clock)

    cleaned()
    assert store.head(LAYOUT.version(0)).size == 0
    clock.sleep(RUN + 1)
    commit(rounds(), {**bucket, "c1": ("x", (1,))})
    cleaned()
    assert store.head(LAYOUT.version(0)) is None
    assert numbers(process)[0] == 6
    assert rounds().contents() == {**bucket, "c1": ("x", (1,))}


@pytest.mark.parametrize("whole_slot", [False, True])
def test_erasure_from_a_derived_table_removes_rows_or_the_slot(rounds, store, clock, whole_slot):
    """Otherwise a slot asset would still have rows that were made from the erased object. If the rows do not name their
    object, only the removal of the whole slot is certain to remove the object's data.
    """
    process = rounds()
    bucket = {KEY: ("etag4711", (471147114711, 471147114712)), "a1": ("e", (1, 2)), "b1": ("e", (4, 5))}
    planned = process.planned(bucket)
    planned.slots = {slot: Derived(rows=2) for slot in planned.slots}
    planned.rejects = ()
    process.commit(planned)
    clock.sleep(60)
    erase(process.whole, A, KEY, whole_slot=whole_slot, clock=clock)
    assert holding(store, *MARKS) == set()
    snapshot = rounds().table.opened()
    rows = [
        row
        for pack in snapshot.packs.values()
        for group in process.data.opened(pack).groups()
        for row in group.to_pylist()
    ]
    assert {row["_key"] for row in rows} == ({"b1"} if whole_slot else {"a1", "b1"})
    facts = snapshot.manifest.slot(A)
    assert facts.generation == snapshot.version
    assert facts.source == (0 if whole_slot else 7)
