"""Commits to a table: concurrent writers, requests, faults, and logs that are refused."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UsageError,
)
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import CHECKPOINT_EVERY, Committed, NothingLeft, Wanted
from s3notify_platform.table.delta.actions import LogVersion, MetaData, Protocol
from s3notify_platform.table.snapshot import Absent
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore, at
from tests.support.log_tables import LAYOUT, Counts, Table, counts_of, pack, versions


@pytest.fixture
def store():
    return MemoryObjectStore()


def commit(table, *slots, base=None):
    base = base or table.opened()
    change = Counts(base=base, slots=slots)
    found = table.committer.commit(change, base)
    assert isinstance(found, Committed)
    return found.snapshot


def test_missing_table_is_opened_as_absent(store):
    assert isinstance(Table(store=store).reader.open(), Absent)


def test_committed_change_is_visible_to_another_process(store):
    table = Table(store=store)
    commit(table, 1, 2)
    commit(table, 2, 3)
    assert Table(store=store).counted() == {1: 1, 2: 2, 3: 1}


def test_commit_takes_one_write_for_each_file_and_three_more(store):
    counting = CountingStore(store)
    table = Table(store=counting)
    base = table.opened()
    counting.counts.clear()
    commit(table, *range(100), base=base)
    assert counting.counts == {"PUT": 100 + 3}


def test_warm_process_makes_two_requests_in_parallel(store):
    counting = CountingStore(store)
    table = Table(store=counting)
    base = commit(table, 1)
    counting.counts.clear()
    assert table.reader.refresh(base).version == base.version
    assert counting.counts == {"GET": 1, "LIST": 1}


def test_warm_process_reads_each_new_version_and_one_manifest(store):
    counting = CountingStore(store)
    table = Table(store=counting)
    base = commit(table, 1)
    commit(Table(store=store), 1)
    commit(Table(store=store), 2)
    counting.counts.clear()
    assert counts_of(table.reader.refresh(base)) == {1: 2, 2: 1}
    assert counting.counts == {"GET": 1 + 2 + 1, "LIST": 1}


def test_cold_process_reads_the_checkpoint_and_later_versions(store):
    table = Table(store=store)
    for _ in range(CHECKPOINT_EVERY + 2):
        commit(table, 1)
    counting = CountingStore(store)
    found = Table(store=counting).reader.open()
    assert counts_of(found) == {1: CHECKPOINT_EVERY + 2}
    assert found.checkpoint == CHECKPOINT_EVERY
    # one GET each: known, _last_checkpoint, checkpoint, two versions, manifest
    assert counting.counts == {"GET": 6, "LIST": 1}


def test_second_change_of_one_slot_has_nothing_left_to_commit(store):
    one, two = Table(store=store), Table(store=store)
    base = one.opened()
    commit(one, 1, base=base)
    change = Counts(base=base, slots=(1,))
    assert isinstance(two.committer.commit(change, base), NothingLeft)
    assert two.counted() == {1: 1}


def test_second_change_of_overlapping_slots_commits_its_other_slots(store):
    one, two = Table(store=store), Table(store=store)
    base = one.opened()
    commit(one, 1, 2, base=base)
    change = Counts(base=base, slots=(2, 3))
    found = two.committer.commit(change, base)
    assert isinstance(found, Committed)
    assert change.dropped == {2}
    assert two.counted() == counts_of(found.snapshot) == {1: 1, 2: 1, 3: 1}


def test_waiting_changes_of_one_process_become_one_version(store):
    table = Table(store=store)
    base = table.opened()
    changes = [Counts(base=base, slots=(slot,)) for slot in range(5)]
    wanted = [Wanted(change=change, base=base) for change in changes]
    results = table.committer.commit_together(wanted)
    assert all(isinstance(each, Committed) for each in results)
    assert table.counted() == dict.fromkeys(range(5), 1)
    assert len(versions(store)) == 2


def test_only_one_of_two_waiting_changes_of_a_slot_is_committed(store):
    table = Table(store=store)
    base = table.opened()
    wanted = [Wanted(change=Counts(base=base, slots=(1,)), base=base) for _ in range(2)]
    kinds = [type(each) for each in table.committer.commit_together(wanted)]
    assert kinds == [Committed, NothingLeft]
    assert table.counted() == {1: 1}


def test_failing_change_does_not_stop_other_waiting_changes(store):
    class Bad:
        def onto(self, base):
            raise UsageError("this change cannot be made")

    table = Table(store=store)
    base = table.opened()
    wanted = [
        Wanted(change=Bad(), base=base),
        Wanted(change=Counts(base=base, slots=(1,)), base=base),
    ]
    failed, done = table.committer.commit_together(wanted)
    assert isinstance(failed, UsageError)
    assert isinstance(done, Committed)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED])
def test_attempt_in_doubt_is_committed_once(store, fault):
    base = Table(store=store).opened()
    faulty = FaultyStore(store, at("put", fault, key=LAYOUT.version(1)))
    commit(Table(store=faulty), 1, base=base)
    assert Table(store=store).counted() == {1: 1}
    assert len(versions(store)) == 2


def test_throttled_attempt_is_not_committed_and_can_be_repeated(store):
    base = Table(store=store).opened()
    table = Table(store=FaultyStore(store, at("put", Fault.THROTTLED, key=LAYOUT.version(1))))
    with pytest.raises(UnavailableError):
        commit(table, 1, base=base)
    commit(table, 1, base=base)
    assert Table(store=store).counted() == {1: 1}


def test_refusal_of_a_repeated_request_is_not_a_conflict(store):
    """The network may deliver a request twice. The writer then sees only the refusal of the second request. If the
    refusal counted as a conflict, the writer would plan its change again, and would treat its own version as the
    version of another writer.
    """

    class Twice(DelegatingStore):
        def put(self, key, body, **given):
            outcome = store.put(key, body, **given)
            return store.put(key, body, **given) if "_delta_log" in key else outcome

    base = Table(store=store).opened()
    commit(Table(store=Twice(store)), 1, base=base)
    assert Table(store=store).counted() == {1: 1}


def test_commit_on_an_old_snapshot_is_refused(store):
    clock = HandClock()
    table = Table(store=store, clock=clock, more={"max_run_seconds": 100})
    base = table.opened()
    clock.sleep(50)
    with pytest.raises(FencedError, match="plan again"):
        commit(table, 1, base=base)
    assert len(versions(store)) == 1


def test_change_whose_files_were_written_too_slowly_is_not_committed(store):
    clock = HandClock()
    base = Table(store=store, clock=clock).opened()

    class Slow(DelegatingStore):
        def put(self, key, body, **given):
            if key.startswith(LAYOUT.manifests):
                clock.sleep(50)
            return store.put(key, body, **given)

    table = Table(store=Slow(store), clock=clock, more={"max_run_seconds": 100})
    with pytest.raises(FencedError, match="plan again"):
        commit(table, 1, base=base)
    assert len(versions(store)) == 1


def test_late_version_in_the_part_of_the_log_that_was_cut_does_not_count(store):
    """Otherwise a writer would report a commit that no reader sees if the log is cut during the write."""
    clock = HandClock()
    table = Table(store=store, clock=clock, more={"max_run_seconds": 100})
    base = table.opened()

    class Slow(DelegatingStore):
        def put(self, key, body, **given):
            if key == LAYOUT.version(1):
                other = Table(store=store, clock=clock)
                for _ in range(CHECKPOINT_EVERY + 1):
                    commit(other, 2)
                store.delete(LAYOUT.version(1))
                clock.sleep(60)
            return store.put(key, body, **given)

    late = Table(store=Slow(store), clock=clock, more={"max_run_seconds": 100})
    with pytest.raises(FencedError, match="too late"):
        commit(late, 1, base=base)
    assert Table(store=store).counted() == {2: CHECKPOINT_EVERY + 1}


def test_writer_that_is_never_first_gives_up_and_commits_nothing(store):
    clock = HandClock()
    base = Table(store=store, clock=clock).opened()

    class Crowded(DelegatingStore):
        def put(self, key, body, **given):
            if LAYOUT.version_of(key) is not None:
                commit(Table(store=store, clock=clock), 2)
                clock.sleep(10)
            return store.put(key, body, **given)

    with pytest.raises(ConflictError, match="plan again"):
        commit(Table(store=Crowded(store), clock=clock), 1, base=base)
    assert 1 not in Table(store=store).counted()


def test_log_without_its_last_version_is_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    commit(table, 1)
    store.delete(LAYOUT.version(2))
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(CorruptError, match="ends with version 1, but version 2 was committed"):
            read()


def test_missing_log_is_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    for version in (0, 1):
        store.delete(LAYOUT.version(version))
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(CorruptError, match="its log is gone"):
            read()


def test_log_with_a_gap_is_refused(store):
    table = Table(store=store)
    for _ in range(3):
        commit(table, 1)
    store.delete(LAYOUT.version(2))
    with pytest.raises(CorruptError, match="some of the versions 0 to 3 are missing"):
        table.reader.open()


def test_table_without_its_record_is_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    for meta in store.list("_s3notify-known/").objects:
        store.delete(meta.key)
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(CorruptError, match="its record is gone"):
            read()


def test_restored_backup_is_refused_even_with_the_same_number_of_versions(store):
    """Otherwise a log that was restored to version 1, and then got another version 2, would be accepted."""
    table = Table(store=store)
    base = commit(table, 1)
    saved = {meta.key: store.get(meta.key).body for meta in store.list("t/").objects}
    lost = commit(table, 1)
    known = {meta.key: store.get(meta.key).body for meta in store.list("_s3notify-known/").objects}
    for meta in store.list("t/").objects:
        store.delete(meta.key)
    for key, body in saved.items():
        store.put(key, body)
    earlier = LogVersion(number=99, parent=base.number, table=base.table)
    store.put(LAYOUT.version(2), earlier.dumps())
    store.put(LAYOUT.manifest(99), replace(base.manifest, number=99, version=2).dumps())
    assert known
    for read in (table.reader.open, lambda: table.reader.refresh(lost)):
        with pytest.raises(CorruptError, match="version 2 is not the one that was committed"):
            read()


COLUMN = '{"type":"struct","fields":[{"name":"x","type":"long","nullable":true,"metadata":{}}]}'


def foreign(store, version, *, adds=(), removes=(), **given):
    body = LogVersion(adds=adds, removes=removes, **given).dumps().splitlines(keepends=True)
    body = [line for line in body if b'"txn"' not in line]
    store.put(LAYOUT.version(version), b"".join(body))


def optimized(base, more=0, **given):
    """Returns the actions of another engine's OPTIMIZE, which merges all packs into one pack. `more` is the number of
    added rows.
    """
    rows = sum(each.rows for each in base.packs.values()) + more
    one = replace(pack("theirs", 0, rows, label=0, data_change=False), since=0, until=2**63 - 1, **given)
    return {
        "adds": (one,),
        "removes": tuple(each.removed(1, data_change=False) for each in base.packs.values()),
    }


def test_foreign_version_that_changes_no_data_is_adopted(store):
    table = Table(store=store)
    base = commit(table, 1, 2)
    foreign(store, 2, **optimized(base))
    for found in (table.reader.open(), table.reader.refresh(base)):
        assert found.version == 2
        assert [each.path for each in found.packs.values()] == ["data/theirs.parquet"]
        assert next(iter(found.packs.values())).until == 2, "no label exceeds the version"
        assert found.manifest == base.manifest


def test_foreign_version_is_refused_under_leases(store):
    table = Table(store=store, adopt=False)
    base = commit(table, 1)
    foreign(store, 2, **optimized(base))
    with pytest.raises(UsageError, match="under leases"):
        table.reader.refresh(base)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (lambda base: {"removes": tuple(each.removed(1) for each in base.packs.values())}, "changes rows"),
        (lambda base: optimized(base, more=1), "changes rows"),
        (lambda base: optimized(base, data_change=True), "changes rows"),
        (lambda base: {"metadata": replace(base.metadata, schema=COLUMN)}, "adds the column 'x'"),
        (
            lambda base: {"metadata": replace(base.metadata, configuration={"delta.appendOnly": "true"})},
            "sets delta.appendOnly",
        ),
        (lambda _: {"protocol": Protocol(reader=3, writer=7)}, "changes the protocol"),
    ],
)
def test_foreign_version_that_changes_the_table_is_refused_with_the_reason(store, what, why):
    table = Table(store=store)
    base = commit(table, 1, 2)
    foreign(store, 2, **what(base))
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(UsageError, match=why) as refused:
            read()
        assert "rollback NAME --to 1" in str(refused.value)


def test_unknown_actions_are_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    store.put(LAYOUT.version(2), b'{"domainMetadata":{"domain":"x","configuration":"","removed":false}}\n')
    with pytest.raises(UsageError, match="domainMetadata"):
        table.reader.refresh(base)


def test_delta_table_of_another_program_is_refused(store):
    table = Table(store=store)
    foreign(store, 0, metadata=MetaData(id="x", schema="{}", created_ms=1), protocol=Protocol())
    with pytest.raises(UsageError, match="another program made"):
        table.reader.open()


def test_two_writers_create_one_table(store):
    one, two = Table(store=store), Table(store=store)
    assert one.opened().table == two.opened().table
    assert len(versions(store)) == 1


def emptied(store, *numbers):
    """Empties the objects of these versions, as `erase` does."""
    for number in numbers:
        store.put(LAYOUT.version(number), b"")


def test_number_of_an_erased_version_is_not_used_again(store):
    """Otherwise a writer with an old snapshot would create a version in place of an erased version, and no reader would
    see the new version.
    """
    table = Table(store=store)
    base = commit(table, 1)
    newest = commit(table, 1)
    newest = commit(table, 2)
    table.committer.checkpoint(newest)
    emptied(store, 0, 1, 2)
    assert counts_of(commit(Table(store=store), 3, base=base)) == {1: 2, 2: 1, 3: 1}
    assert table.counted() == {1: 2, 2: 1, 3: 1}
    assert counts_of(table.reader.refresh(base)) == {1: 2, 2: 1, 3: 1}
    assert table.reader.as_of(2) is None


def test_change_is_called_again_if_erase_removed_a_file(store):
    """Otherwise a commit would fail although the newest version no longer names the missing file."""

    class Reads(Counts):
        def onto(self, base):
            for path in base.packs:
                if store.head(LAYOUT.file(path)) is None:
                    raise CorruptError(f"{path} is missing")
            return super().onto(base)

    base = commit(Table(store=store), 1)
    commit(Table(store=store), 1)
    for path in base.packs:
        store.delete(LAYOUT.file(path))
    done = Table(store=store).committer.commit(Reads(base=base, slots=(1, 2)), base)
    assert counts_of(done.snapshot) == {1: 2, 2: 1}
    for path in done.snapshot.packs:
        store.delete(LAYOUT.file(path))
    with pytest.raises(CorruptError, match="is missing"):
        Table(store=store).committer.commit(Reads(base=done.snapshot, slots=(3,)), done.snapshot)


def test_checkpoint_in_doubt_is_not_named_in_last_checkpoint(store):
    table = Table(store=store)
    base = commit(table, 1)
    faulty = FaultyStore(store, at("put", Fault.REFUSED, key=LAYOUT.checkpoint(1)))
    with pytest.raises(UnavailableError):
        Table(store=faulty).committer.checkpoint(base)
    assert table.counted() == {1: 1}


def test_waiting_changes_can_read_the_files_of_earlier_changes(store):
    """Otherwise a second change could not replace rows of the first change, because their file would be missing."""

    class Reads(Counts):
        def onto(self, base):
            for path in base.packs:
                assert store.head(LAYOUT.file(path)), path
            return super().onto(base)

    table = Table(store=store)
    base = commit(table, 1)
    wanted = [Wanted(change=Reads(base=base, slots=(slot,)), base=base) for slot in (1, 2)]
    assert all(isinstance(each, Committed) for each in table.committer.commit_together(wanted))
