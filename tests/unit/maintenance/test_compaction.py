"""A compaction merges the files of a whole table to their target sizes, while batches run. Each row of the table in the
docstring of `maintenance/compaction.py` has a test.
"""

import random
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.maintenance.compaction import LOST, OPERATION, CompactReport, compact
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.states import state_levels as states
from tests.support.log_derived import Derived
from tests.support.log_rounds import SMALL, Rounds
from tests.support.log_tables import beaten, versions

LAZY = PackSizes(target=4000, smallest=1000, fan=2, in_class=1000, group=1000, hidden=1.0)
"""With these pack sizes, rounds merge no packs."""


@pytest.fixture(autouse=True)
def state_files(monkeypatch):
    """Makes each round write a state file."""
    monkeypatch.setattr(states, "STATES_INLINE", 0)


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def rounds(request):
    store = MemoryObjectStore()
    return lambda: Rounds(store=store, vectors=request.param, more={"sizes": LAZY})


def committed(rounds, bucket, slots=None):
    process = rounds()
    done = process.commit(process.planned(bucket, slots))
    assert isinstance(done, Committed)
    return done.snapshot


def filled(rounds, count=9, seed=1):
    """Commits small rounds. Each round overwrites and deletes some objects of earlier rounds."""
    source, bucket = random.Random(seed), {}
    for turn in range(count):
        for _ in range(4):
            key = f"{source.choice('abcd')}{source.randrange(12)}"
            bucket[key] = (
                f"e{turn}",
                tuple(source.randrange(1 << 40) for _ in range(source.randrange(1, 40))),
            )
        if turn % 3 == 2:
            del bucket[min(bucket)]
        committed(rounds, bucket)
    assert rounds().contents() == bucket
    return bucket


def small(snapshot, packs):
    return [pack for pack in packs if LAZY.class_of(pack.size) is not None]


def assert_compact(rounds, bucket):
    process = rounds()
    snapshot = process.table.opened()
    assert process.contents(snapshot) == bucket
    assert len(small(snapshot, snapshot.packs.values())) <= 1
    assert len(small(snapshot, snapshot.manifest.rejects)) <= 1
    assert not snapshot.manifest.states.level(0)
    assert len({file.level for file in snapshot.manifest.states.files}) == 1


def assert_no_rows_of_rounds(store):
    for version in versions(store):
        if version.operation == OPERATION:
            assert not any(each.data_change for each in (*version.adds, *version.removes))
            assert "slots" not in version.note


def test_compaction_merges_small_files_and_readers_see_no_change(rounds):
    bucket = filled(rounds)
    before = rounds().table.opened()
    assert len(small(before, before.packs.values())) > 4
    process = rounds()
    report = compact(process.whole)
    assert report.packs >= 4
    assert report.rejects >= 4
    assert report.state_files >= 2
    assert report.lost == 0
    assert_compact(rounds, bucket)
    assert_no_rows_of_rounds(process.store)
    after = rounds().table.opened()
    assert after.manifest.slots == before.manifest.slots, "no slot has changed"
    assert after.version == before.version + report.versions


def test_second_compaction_has_nothing_to_do(rounds):
    filled(rounds)
    compact(rounds().whole)
    version = rounds().table.opened().version
    assert compact(rounds().whole) == CompactReport()
    assert rounds().table.opened().version == version


def test_compaction_without_a_table_does_nothing():
    assert compact(Rounds(store=MemoryObjectStore()).whole) == CompactReport()


def test_each_version_of_a_compaction_has_bounded_size(rounds):
    bucket = filled(rounds)
    report = compact(rounds().whole, step_bytes=3000)
    assert report.versions > 6
    assert_compact(rounds, bucket)
    for version in versions(rounds().store):
        if version.operation == OPERATION:
            assert sum(each.size for each in version.removes) < 3000 + LAZY.target


def test_dry_run_reports_its_work_and_writes_nothing(rounds):
    filled(rounds)
    process = rounds()
    before = {meta.key: meta.etag for meta in process.store.list("").objects}
    dry = compact(process.whole, dry_run=True)
    assert {meta.key: meta.etag for meta in process.store.list("").objects} == before
    done = compact(process.whole)
    assert (dry.packs, dry.rejects, dry.bytes) == (done.packs, done.rejects, done.bytes)
    assert dry.state_files == done.state_files
    assert dry.versions == done.versions


def test_packs_with_many_hidden_rows_are_rewritten():
    """Full packs are not merged with other packs. If full packs with many hidden rows were not rewritten, readers would
    still have to load these rows.
    """
    process = Rounds(store=MemoryObjectStore(), vectors=True, more={"sizes": LAZY})
    bucket = {f"a{n}": ("e", tuple(random.Random(n).randbytes(9)[1:])) for n in range(300)}
    process.commit(process.planned(bucket))
    bucket = {key: found for key, found in bucket.items() if int(key[1:]) % 2}
    process.commit(process.planned(bucket))
    assert any(pack.vector for pack in process.table.opened().packs.values())
    other = Rounds(store=process.store, vectors=True, more={"sizes": replace(LAZY, hidden=0.25)})
    compact(other.whole)
    assert not any(pack.vector for pack in process.table.opened().packs.values())
    assert process.contents() == bucket


# Other writers


def test_step_is_committed_after_others_changed_slots(rounds):
    """Otherwise a compaction beside frequent batches would drop each step, and would give up after a few attempts.
    Packs that other writers add meanwhile wait for the next compaction.
    """
    bucket = filled(rounds)
    turns = []

    def other():
        turns.append(1)
        bucket[f"e{len(turns)}"] = ("theirs", (1, 2, 3))
        committed(rounds, bucket)

    report = compact(beaten(rounds().whole, [other] * 3))
    assert (report.lost, len(turns)) == (0, 3)
    assert rounds().contents() == bucket
    assert_no_rows_of_rounds(rounds().store)
    compact(rounds().whole)
    assert_compact(rounds, bucket)


def test_step_is_committed_after_others_let_the_schema_grow(rounds):
    """Otherwise the step would remove the new column from the schema, or would be dropped without need."""
    bucket, turns = filled(rounds), []

    def other():
        turns.append(f"column{len(turns)}")
        bucket[f"e{len(turns)}"] = ("theirs", (1, 2))
        process = rounds()
        process.commit(process.grown(process.planned(bucket), turns[-1]))

    report = compact(beaten(rounds().whole, [other] * 3))
    assert (report.lost, len(turns)) == (0, 3)
    assert rounds().columns() == turns
    assert rounds().contents() == bucket


def test_step_is_dropped_after_others_removed_packs_or_hid_rows(rounds):
    """If the compaction committed its step after a batch has replaced rows, the merged packs would bring back
    the replaced rows. The next compaction must merge the remaining packs.
    """
    bucket = filled(rounds)

    def other():
        for key in [*bucket][::3]:
            bucket[key] = ("theirs", (1, 2, 3))
        committed(rounds, bucket)

    report = compact(beaten(rounds().whole, [other]))
    assert report.lost == 1
    assert rounds().contents() == bucket
    assert_no_rows_of_rounds(rounds().store)
    compact(rounds().whole)
    assert_compact(rounds, bucket)


def test_compaction_ends_if_batches_always_commit_first(rounds):
    bucket, turns = filled(rounds), []

    def other():
        turns.append(1)
        for key in [*bucket]:
            bucket[key] = (f"theirs{len(turns)}", (1, 2, 3))
        committed(rounds, bucket)

    report = compact(beaten(rounds().whole, [other] * 50))
    assert report.lost <= 3 * LOST
    assert rounds().contents() == bucket


def test_step_is_dropped_after_others_merged_its_state_files(rounds):
    bucket = filled(rounds)
    one = rounds()
    only = beaten(one.whole, [lambda: None, lambda: None, lambda: compact(rounds().whole)])
    compact(only)
    assert_compact(rounds, bucket)


def test_two_concurrent_compactions_merge_each_file_once(rounds):
    bucket = filled(rounds)
    report = compact(beaten(rounds().whole, [lambda: compact(rounds().whole)]))
    assert report.lost == 1
    assert_compact(rounds, bucket)


def test_round_that_was_planned_before_a_compaction_withdraws_rows_from_the_merged_packs(rounds):
    bucket = filled(rounds)
    process = rounds()
    bucket[min(bucket)] = ("mine", (7, 8, 9))
    del bucket[max(bucket)]
    planned = process.planned(bucket)
    compact(rounds().whole)
    assert isinstance(process.commit(planned), Committed)
    assert not planned.dropped
    assert rounds().contents() == bucket


def test_compaction_fails_at_a_refused_version_of_another_engine(rounds):
    filled(rounds)
    with pytest.raises(UsageError, match="rollback"):
        compact(beaten(rounds().whole, [rounds().refused]))


def test_compaction_continues_after_another_engine_merged_packs(rounds):
    bucket = filled(rounds)
    assert compact(beaten(rounds().whole, [rounds().optimized])).lost == 1
    compact(rounds().whole)
    assert_compact(rounds, bucket)


@pytest.mark.parametrize("vectors", [False, True], ids=["plain", "vectors"])
def test_derived_table_is_compacted(vectors):
    sizes = replace(SMALL, in_class=1000, by_slot=True, own=16_000)
    process = Derived(store=MemoryObjectStore(), vectors=vectors, sizes=sizes)
    held = {}
    for slot in range(12):
        held[slot] = sorted(f"{slot}-{n}" for n in range(1 + 40 * (slot % 3)))
        process.commit(process.planned({slot: held[slot]}))
    assert compact(process.whole).packs >= 12
    snapshot = process.table.opened()
    assert len([pack for pack in snapshot.packs.values() if sizes.class_of(pack.size) is not None]) <= 1
    assert process.contents() == held
    process.commit(process.planned({3: ["new"]}, source=2))
    assert process.contents() == {**held, 3: ["new"]}
