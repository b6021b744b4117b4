"""A table's versions: who commits what on top of which, what it costs, and what is refused."""

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


def test_a_table_that_is_not_there_is_absent(store):
    assert isinstance(Table(store=store).reader.open(), Absent)


def test_what_is_committed_is_read_by_another_process(store):
    table = Table(store=store)
    commit(table, 1, 2)
    commit(table, 2, 3)
    assert Table(store=store).counted() == {1: 1, 2: 2, 3: 1}


def test_a_commit_takes_two_writes_beside_its_files_and_one_of_known(store):
    counting = CountingStore(store)
    table = Table(store=counting)
    base = table.opened()
    counting.counts.clear()
    commit(table, *range(100), base=base)
    assert counting.counts == {"PUT": 100 + 3}


def test_a_warm_process_asks_twice_at_once(store):
    counting = CountingStore(store)
    table = Table(store=counting)
    base = commit(table, 1)
    counting.counts.clear()
    assert table.reader.refresh(base).version == base.version
    assert counting.counts == {"GET": 1, "LIST": 1}


def test_a_warm_process_reads_each_new_version_and_one_manifest(store):
    counting = CountingStore(store)
    table = Table(store=counting)
    base = commit(table, 1)
    commit(Table(store=store), 1)
    commit(Table(store=store), 2)
    counting.counts.clear()
    assert counts_of(table.reader.refresh(base)) == {1: 2, 2: 1}
    assert counting.counts == {"GET": 1 + 2 + 1, "LIST": 1}


def test_a_cold_process_reads_the_checkpoint_and_what_follows(store):
    table = Table(store=store)
    for _ in range(CHECKPOINT_EVERY + 2):
        commit(table, 1)
    counting = CountingStore(store)
    found = Table(store=counting).reader.open()
    assert counts_of(found) == {1: CHECKPOINT_EVERY + 2}
    assert found.checkpoint == CHECKPOINT_EVERY
    # known, _last_checkpoint, checkpoint, two versions, manifest
    assert counting.counts == {"GET": 6, "LIST": 1}


def test_of_two_on_one_slot_the_second_is_left_nothing(store):
    one, two = Table(store=store), Table(store=store)
    base = one.opened()
    commit(one, 1, base=base)
    change = Counts(base=base, slots=(1,))
    assert isinstance(two.committer.commit(change, base), NothingLeft)
    assert two.counted() == {1: 1}


def test_of_two_on_overlapping_slots_the_second_commits_the_rest(store):
    one, two = Table(store=store), Table(store=store)
    base = one.opened()
    commit(one, 1, 2, base=base)
    change = Counts(base=base, slots=(2, 3))
    found = two.committer.commit(change, base)
    assert isinstance(found, Committed)
    assert change.dropped == {2}
    assert two.counted() == counts_of(found.snapshot) == {1: 1, 2: 1, 3: 1}


def test_changes_of_one_process_that_wait_together_become_one_version(store):
    table = Table(store=store)
    base = table.opened()
    changes = [Counts(base=base, slots=(slot,)) for slot in range(5)]
    wanted = [Wanted(change=change, base=base) for change in changes]
    results = table.committer.commit_together(wanted)
    assert all(isinstance(each, Committed) for each in results)
    assert table.counted() == dict.fromkeys(range(5), 1)
    assert len(versions(store)) == 2


def test_together_only_one_of_two_changes_of_a_slot_is_committed(store):
    table = Table(store=store)
    base = table.opened()
    wanted = [Wanted(change=Counts(base=base, slots=(1,)), base=base) for _ in range(2)]
    kinds = [type(each) for each in table.committer.commit_together(wanted)]
    assert kinds == [Committed, NothingLeft]
    assert table.counted() == {1: 1}


def test_a_change_that_cannot_be_made_does_not_stop_those_that_wait_with_it(store):
    class Bad:
        def onto(self, base):
            raise UsageError("it cannot be")

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
def test_an_attempt_in_doubt_is_committed_once(store, fault):
    base = Table(store=store).opened()
    faulty = FaultyStore(store, at("put", fault, key=LAYOUT.version(1)))
    commit(Table(store=faulty), 1, base=base)
    assert Table(store=store).counted() == {1: 1}
    assert len(versions(store)) == 2


def test_a_throttled_attempt_is_not_committed_and_may_be_repeated(store):
    base = Table(store=store).opened()
    table = Table(store=FaultyStore(store, at("put", Fault.THROTTLED, key=LAYOUT.version(1))))
    with pytest.raises(UnavailableError):
        commit(table, 1, base=base)
    commit(table, 1, base=base)
    assert Table(store=store).counted() == {1: 1}


def test_a_refusal_of_a_repeated_request_is_no_conflict(store):
    """The network may deliver a request twice; the answer is then that of the second."""

    class Twice(DelegatingStore):
        def put(self, key, body, **given):
            outcome = store.put(key, body, **given)
            return store.put(key, body, **given) if "_delta_log" in key else outcome

    base = Table(store=store).opened()
    commit(Table(store=Twice(store)), 1, base=base)
    assert Table(store=store).counted() == {1: 1}


def test_nothing_is_committed_on_an_old_look(store):
    clock = HandClock()
    table = Table(store=store, clock=clock, more={"max_run_seconds": 100})
    base = table.opened()
    clock.sleep(50)
    with pytest.raises(FencedError, match="plan again"):
        commit(table, 1, base=base)
    assert len(versions(store)) == 1


def test_nothing_is_committed_whose_files_took_too_long(store):
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


def test_a_version_that_came_late_below_a_newer_history_does_not_count(store):
    """The log was cut below a checkpoint while the write was under way: it lands where a version was."""
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


def test_who_is_never_first_gives_up_and_has_committed_nothing(store):
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


def test_a_log_that_lacks_its_last_version_is_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    commit(table, 1)
    store.delete(LAYOUT.version(2))
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(CorruptError, match="ends with version 1, and version 2 was committed"):
            read()


def test_a_log_that_is_gone_is_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    for version in (0, 1):
        store.delete(LAYOUT.version(version))
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(CorruptError, match="its log is gone"):
            read()


def test_a_log_with_a_gap_is_refused(store):
    table = Table(store=store)
    for _ in range(3):
        commit(table, 1)
    store.delete(LAYOUT.version(2))
    with pytest.raises(CorruptError, match="not all there"):
        table.reader.open()


def test_a_table_whose_record_is_gone_is_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    for meta in store.list("_s3notify-known/").objects:
        store.delete(meta.key)
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(CorruptError, match="its record is gone"):
            read()


def test_a_restored_backup_is_refused_even_if_it_has_as_many_versions(store):
    """Version 2 was committed, the log restored to version 1, and another version 2 created by a stranger."""
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
    """All packs in one, as OPTIMIZE of another engine has it; with `more` rows than they have."""
    rows = sum(each.rows for each in base.packs.values()) + more
    one = replace(pack("theirs", 0, rows, label=0, data_change=False), since=0, until=2**63 - 1, **given)
    return {
        "adds": (one,),
        "removes": tuple(each.removed(1, data_change=False) for each in base.packs.values()),
    }


def test_a_version_of_another_engine_that_changes_no_data_is_adopted(store):
    table = Table(store=store)
    base = commit(table, 1, 2)
    foreign(store, 2, **optimized(base))
    for found in (table.reader.open(), table.reader.refresh(base)):
        assert found.version == 2
        assert [each.path for each in found.packs.values()] == ["data/theirs.parquet"]
        assert next(iter(found.packs.values())).until == 2, "no label is above the version"
        assert found.manifest == base.manifest


def test_under_leases_a_version_of_another_engine_is_refused(store):
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
def test_other_versions_of_another_engine_are_refused_by_name(store, what, why):
    table = Table(store=store)
    base = commit(table, 1, 2)
    foreign(store, 2, **what(base))
    for read in (table.reader.open, lambda: table.reader.refresh(base)):
        with pytest.raises(UsageError, match=why) as refused:
            read()
        assert "--to-version 1" in str(refused.value)


def test_actions_that_nobody_here_knows_are_refused(store):
    table = Table(store=store)
    base = commit(table, 1)
    store.put(LAYOUT.version(2), b'{"domainMetadata":{"domain":"x","configuration":"","removed":false}}\n')
    with pytest.raises(UsageError, match="domainMetadata"):
        table.reader.refresh(base)


def test_a_delta_table_that_another_program_has_made_is_refused(store):
    table = Table(store=store)
    foreign(store, 0, metadata=MetaData(id="x", schema="{}", created_ms=1), protocol=Protocol())
    with pytest.raises(UsageError, match="another program has made"):
        table.reader.open()


def test_two_who_create_a_table_create_one(store):
    one, two = Table(store=store), Table(store=store)
    assert one.opened().table == two.opened().table
    assert len(versions(store)) == 1


def emptied(store, *numbers):
    """As `erase` leaves them."""
    for number in numbers:
        store.put(LAYOUT.version(number), b"")


def test_a_version_that_was_erased_keeps_its_number_taken(store):
    """A writer that looked below it does not create one there: it goes on at the checkpoint."""
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


def test_a_file_that_only_an_older_version_names_may_be_missing(store):
    """The change is asked again on the newest version."""

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


def test_a_checkpoint_that_may_not_be_there_is_not_named(store):
    table = Table(store=store)
    base = commit(table, 1)
    faulty = FaultyStore(store, at("put", Fault.REFUSED, key=LAYOUT.checkpoint(1)))
    with pytest.raises(UnavailableError):
        Table(store=faulty).committer.checkpoint(base)
    assert table.counted() == {1: 1}


def test_changes_that_wait_together_read_each_others_files(store):
    """A second one may replace what the first has just written."""

    class Reads(Counts):
        def onto(self, base):
            for path in base.packs:
                assert store.head(LAYOUT.file(path)), path
            return super().onto(base)

    table = Table(store=store)
    base = commit(table, 1)
    wanted = [Wanted(change=Reads(base=base, slots=(slot,)), base=base) for slot in (1, 2)]
    assert all(isinstance(each, Committed) for each in table.committer.commit_together(wanted))
