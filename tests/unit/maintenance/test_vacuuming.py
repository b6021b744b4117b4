"""The objects that vacuum removes. Versions within the retention and files of unfinished runs stay."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from s3notify_platform.kernel.errors import (
    CorruptError,
    FencedError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.vacuuming import FENCE, vacuum
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import CHECKPOINT_EVERY, Committed
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.versions import history, snapshot_of, version_at
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore, at
from tests.support.log_tables import LAYOUT, Counts, Table, beaten, counts_of, foreign, pack, versions

RUN, RETENTION = 100.0, 1000.0


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store(clock):
    return MemoryObjectStore(clock=clock)


@pytest.fixture
def table(store, clock):
    return Table(store=store, clock=clock, more={"max_run_seconds": RUN})


def commit(table, *slots):
    base = table.opened()
    done = table.committer.commit(Counts(base=base, slots=slots, clock=table.clock), base)
    assert isinstance(done, Committed)
    return done.snapshot


def cleaned(table, **given):
    return vacuum(table.committer, table.opened(), retention_seconds=RETENTION, clock=table.clock, **given)


def packs(store):
    return {meta.key for meta in store.list(LAYOUT.data).objects}


def test_retention_shorter_than_a_run_is_refused(table):
    base = commit(table, 1)
    with pytest.raises(UsageError, match="shorter than a run may take"):
        vacuum(table.committer, base, retention_seconds=RUN - 1, clock=table.clock)


def test_objects_within_the_retention_stay(table, store, clock):
    for _ in range(3):
        commit(table, 1)
        clock.sleep(RUN)
    before = packs(store)
    report = cleaned(table)
    assert (report.versions_removed, report.files_removed) == (0, 0)
    assert packs(store) == before
    assert [counts_of(snapshot_of(table.reader, version)).get(1, 0) for version in range(4)] == [0, 1, 2, 3]


def test_file_that_no_version_names_is_removed_when_no_run_can_commit_it_any_more(table, store, clock):
    commit(table, 1)
    store.put(LAYOUT.file("data/orphan.parquet"), b"x")
    store.put(LAYOUT.manifest(77), b"x")
    clock.sleep(RUN - 1)
    assert not cleaned(table).files_removed
    clock.sleep(2)
    dry = cleaned(table, dry_run=True)
    assert set(dry.names) == {LAYOUT.file("data/orphan.parquet"), LAYOUT.manifest(77)}
    assert cleaned(table).names == dry.names
    assert table.counted() == {1: 1}


def test_run_that_slept_does_not_commit_removed_files(table, store, clock):
    """Otherwise the table would name files that do not exist, and readers would fail. Vacuum removes the files of the
    run, since they are old and no version names them. The run's snapshot is then too old for a commit.
    """
    base = commit(table, 1)
    change = Counts(base=base, slots=(2,), clock=clock)
    proposal = change.onto(base)
    for key, body in proposal.files.items():
        store.put(key, body)
    clock.sleep(RUN + 1)
    assert set(cleaned(table).names) == {*proposal.files}
    with pytest.raises(FencedError):
        table.committer.commit(change, base)
    assert table.counted() == {1: 1}


def test_log_is_cut_only_below_a_checkpoint_that_was_named_before_any_present_run_began(table, store, clock):
    for _ in range(2 * CHECKPOINT_EVERY + 1):
        commit(table, 1)
    clock.sleep(RETENTION + 1)
    cleaned(table)  # marks the named checkpoint, and does not cut the log yet
    assert len(versions(store)) >= 2 * CHECKPOINT_EVERY
    clock.sleep(RUN + 1)
    commit(table, 2)
    report = cleaned(table)
    assert report.versions_removed >= CHECKPOINT_EVERY
    numbers = sorted(event.version for event in history(table.reader))
    assert store.head(LAYOUT.checkpoint(numbers[0])), "the log begins with a checkpoint"
    assert table.counted() == {1: 2 * CHECKPOINT_EVERY + 1, 2: 1}
    assert packs(store) == {key for number in numbers for key in _files(snapshot_of(table.reader, number))}


def test_a_delete_without_an_answer_leaves_no_gap_in_the_log(table, store, clock):
    """Otherwise the check of the table would report missing versions."""
    for _ in range(2 * CHECKPOINT_EVERY + 1):
        commit(table, 1)
    clock.sleep(RETENTION + 1)
    cleaned(table)
    clock.sleep(RUN + 1)
    failing = FaultyStore(store, at("delete", Fault.LATE, key=LAYOUT.version(3)))
    beside = Table(store=failing, clock=clock, more={"max_run_seconds": RUN})
    with pytest.raises(UnavailableError, match=LAYOUT.version(3)):
        cleaned(beside)
    assert len(versions(store)) >= 2 * CHECKPOINT_EVERY + 2 - 4
    assert cleaned(table).versions_removed >= CHECKPOINT_EVERY - 4


def test_each_kept_version_is_readable(table, store, clock):
    for _ in range(5 * CHECKPOINT_EVERY):
        commit(table, 1)
        clock.sleep(20)
        if clock.now % 300 < 20:
            cleaned(table)
    kept = sorted(event.version for event in history(table.reader))
    assert kept[0] > 0, "some were removed"
    read = {version: counts_of(snapshot_of(table.reader, version)) for version in kept}
    counted = [counts[1] for _, counts in sorted(read.items())]
    assert all(later in (earlier, earlier + 1) for earlier, later in pairwise(counted))
    live = {key for version in kept for key in _files(snapshot_of(table.reader, version))}
    assert live <= packs(store)
    with pytest.raises(NotFoundError, match=f"versions {kept[0]} to {kept[-1]} are kept"):
        snapshot_of(table.reader, 0)


def _files(snapshot):
    return {LAYOUT.file(path) for path in snapshot.packs}


def test_process_whose_snapshot_is_below_the_cut_opens_the_table_again(table, store, clock):
    kept = commit(table, 1)
    for _ in range(2 * CHECKPOINT_EVERY):
        commit(table, 1)
    clock.sleep(RETENTION + 1)
    cleaned(table)
    clock.sleep(RUN + 1)
    commit(table, 1)
    cleaned(table)
    assert store.head(LAYOUT.version(kept.version)) is None
    assert counts_of(table.reader.refresh(kept)) == {1: 2 * CHECKPOINT_EVERY + 2}
    with pytest.raises(FencedError):
        table.committer.commit(Counts(base=kept, slots=(1,), clock=clock), kept)


def test_version_is_found_by_its_time(table, clock):
    commit(table, 1)
    then = clock.wall_ms()
    clock.sleep(10)
    commit(table, 1)
    assert counts_of(snapshot_of(table.reader, version_at(table.reader, then))) == {1: 1}
    with pytest.raises(NotFoundError):
        version_at(table.reader, then - 10_000_000)


def test_history_lists_versions_newest_first(table):
    commit(table, 1, 2)
    commit(table, 3)
    events = list(history(table.reader))
    assert [(event.version, event.body.note.get("slots")) for event in events] == [
        (2, [3]),
        (1, [1, 2]),
        (0, None),
    ]


# Another writer commits before the vacuum's own version


class Grows:
    """A change that adds a column to the schema."""

    def onto(self, base):
        field = {"name": "x", "type": "long", "nullable": True, "metadata": {}}
        schema = json.dumps({"type": "struct", "fields": [field]})
        return Proposal(metadata=replace(base.metadata, schema=schema))


class Names:
    """A change that adds a pack whose file is stored already."""

    def onto(self, base):
        return Proposal(adds=(pack("old", 5, 1, label=1),), slots={Slot(5): SlotFacts(rows=1)})


def orphaned(table, store, clock):
    """Leaves two files that no version names and that are old enough for a vacuum."""
    commit(table, 1)
    names = {LAYOUT.file(LAYOUT.pack_path(name)) for name in ("old", "orphan")}
    for name in names:
        store.put(name, b"x")
    clock.sleep(RUN + 1)
    return names


@pytest.mark.parametrize(
    ("change", "counts"),
    [(None, {1: 2}), (Grows(), {1: 1}), (Names(), {1: 1, 5: 1})],
    ids=["changed slots", "grew the schema", "names a file"],
)
def test_vacuum_goes_on_after_another_writer_committed(table, store, clock, change, counts):
    """Otherwise a vacuum beside frequent commits would fail. If the vacuum did not read the newest version again, the
    vacuum would delete a file that another writer's version names.
    """
    names = orphaned(table, store, clock)

    def other():
        base = table.opened()
        table.committer.commit(change or Counts(base=base, slots=(1,), clock=clock), base)

    table_of_vacuum = beaten(table.whole, [other])
    report = vacuum(table_of_vacuum.committer, table.opened(), retention_seconds=RETENTION, clock=clock)
    kept = {LAYOUT.file(LAYOUT.pack_path("old"))} if isinstance(change, Names) else set()
    assert set(report.names) == names - kept
    assert kept <= packs(store)
    assert [each.operation for each in versions(store)][-1] == FENCE
    assert table.counted() == counts
    fields = json.loads(table.opened().metadata.schema)["fields"]
    assert bool(fields) == isinstance(change, Grows), "the vacuum keeps the schema"


def test_vacuum_goes_on_after_another_engine_merged_packs(table, store, clock):
    """The other engine's version adds an old file that no version named before. The vacuum must keep this file."""
    names = orphaned(table, store, clock)
    base = table.opened()
    old = replace(pack("old", 1, 1, label=1), data_change=False)

    def other():
        removes = tuple(each.removed(1, data_change=False) for each in base.packs.values())
        foreign(store, base.version + 1, LogVersion(adds=(old,), removes=removes))

    report = vacuum(beaten(table.whole, [other]).committer, base, retention_seconds=RETENTION, clock=clock)
    assert set(report.names) == names - {LAYOUT.file(old.path)}
    assert LAYOUT.file(old.path) in packs(store)
    assert table.counted() == {1: 1}


def test_vacuum_removes_nothing_after_a_refused_version_of_another_engine(table, store, clock):
    names = orphaned(table, store, clock)
    base = table.opened()

    def other():
        removes = tuple(each.removed(1) for each in base.packs.values())
        foreign(store, base.version + 1, LogVersion(removes=removes))

    with pytest.raises(UsageError, match="rollback"):
        vacuum(beaten(table.whole, [other]).committer, base, retention_seconds=RETENTION, clock=clock)
    assert names <= packs(store)


def test_table_with_missing_versions_is_not_vacuumed(table, store, clock):
    commit(table, 1)
    clock.sleep(RETENTION)
    store.delete(LAYOUT.version(1))
    with pytest.raises(CorruptError):
        cleaned(table)
    assert packs(store)
