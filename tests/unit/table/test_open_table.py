"""Tables that open, tables that are refused with a remedy, and tables that go on after a loss."""

from contextlib import suppress
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.known import KNOWN, Known
from s3notify_platform.table.open_table import TableName, claim, confirm, forget, open_table
from tests.support.faults import CrashedError, DoubtfulStore, Fault, FaultyStore, scripted
from tests.support.log_tables import IDENTITY, LAYOUT, SCHEMA, Counts, Table, versions

CREATE = (MetaData(id="", schema=SCHEMA, created_ms=1), Protocol())
NAME = TableName(source="orders", command=lambda name, *more: " ".join(("s3notify table", name, *more)))


@pytest.fixture
def store():
    return MemoryObjectStore()


def opened(store, identity=IDENTITY, **given):
    table = Table(store=store)
    return table, open_table(table.whole, NAME, identity, **{"create": CREATE, **given})


def commit(store, *slots):
    table, found = opened(store)
    done = table.committer.commit(Counts(base=found.snapshot, slots=slots), found.snapshot)
    assert isinstance(done, Committed)
    return table


def no_backlog():
    """A backlog that stores nothing."""


def record(store):
    return Table(store=store).known.read()[0]


def lose(store, *versions_):
    for version in versions_:
        store.delete(LAYOUT.version(version))


def test_nothing_is_written_if_a_table_is_opened_without_create(store):
    _, found = opened(store, create=None)
    assert (found.id, found.snapshot) == ("", None)
    assert not store.list("").objects


def test_table_is_created_under_the_id_of_its_record(store):
    _, found = opened(store)
    assert found.id == found.snapshot.table == found.snapshot.metadata.id == record(store).table
    assert record(store).identity == IDENTITY
    assert found.snapshot.version == record(store).version == 0


def test_interrupted_creation_is_finished(store):
    begun = Known(table="0123456789abcdef", identity=IDENTITY)
    Table(store=store).known.change(lambda _: begun)
    _, found = opened(store)
    assert found.id == begun.table
    assert found.snapshot.table == begun.table


def test_table_begins_again_after_the_loss_of_its_first_version(store):
    """Otherwise the remaining versions would stay, and the table would be refused again after `forget`."""
    for _ in range(3):
        commit(store, 1)
    lose(store, 0)
    with pytest.raises(CorruptError, match="table forget"):
        opened(store)
    done = forget(Table(store=store).committer, no_backlog)
    assert opened(store)[1].id == done.table
    commit(store, 2)
    assert Table(store=store).counted() == {2: 1}
    assert {version.table for version in versions(store)} == {done.table}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("dies_at", range(12))
def test_creation_that_is_killed_at_any_request_is_finished(store, dies_at, fault):
    """Otherwise, after a crash, the next run would use another id, or report a loss of versions."""
    with suppress(CrashedError):
        opened(FaultyStore(store, scripted({dies_at: fault})))
    begun = record(store)
    _, found = opened(store)
    assert found.snapshot.table == found.id == (begun.table if begun else found.id)
    assert [version.table for version in versions(store)] == [found.id]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"table":"x"}'])
def test_damaged_record_is_not_taken_for_a_missing_one(store, body):
    """Otherwise all objects would be read again."""
    commit(store, 1)
    records = Table(store=store).known.records
    records.replace(KNOWN, "t", body, expected=records.read(KNOWN, "t").version)
    with pytest.raises(CorruptError, match=r"not the record of a table .* restore it"):
        opened(store)


@pytest.mark.parametrize(
    ("identity", "remedy"),
    [
        (replace(IDENTITY, prefix="raw/new/"), "migrate --to-prefix 'raw/new/'"),
        (replace(IDENTITY, slots=20), "migrate --to-slots 20"),
        (replace(IDENTITY, bucket="other"), "give the source another name (then delete the topic"),
        (replace(IDENTITY, bucket="other"), "`s3notify topics delete orders --served`"),
    ],
)
def test_other_settings_are_refused_and_nothing_is_written(store, identity, remedy):
    commit(store, 1)
    before = {meta.key: meta.etag for meta in store.list("").objects}
    with pytest.raises(UsageError, match="other settings than its table") as refused:
        opened(store, identity)
    assert remedy in str(refused.value)
    assert {meta.key: meta.etag for meta in store.list("").objects} == before


def test_table_without_commits_may_begin_with_other_settings(store):
    opened(store)
    with pytest.raises(UsageError, match="begin with the new settings: s3notify table forget"):
        opened(store, replace(IDENTITY, slots=20))
    forget(Table(store=store).committer, no_backlog)
    _, found = opened(store, replace(IDENTITY, slots=20))
    assert found.known.identity == record(store).identity == replace(IDENTITY, slots=20)
    assert not found.warnings


def test_derived_table_gets_the_identity_of_its_source(store):
    """Otherwise the derived table would be refused after each migration of its source's table. Another slot count is
    refused, because the rows are kept by slot.
    """
    commit(store, 1)
    moved, counted = replace(IDENTITY, prefix="raw/new/"), replace(IDENTITY, slots=20)
    _, found = opened(store, moved, derived=True)
    assert found.known.identity == record(store).identity == moved
    assert (found.snapshot.version, found.warnings) == (1, ())
    with pytest.raises(UsageError, match="other settings than its table"):
        opened(store, counted, derived=True)
    empty = MemoryObjectStore()
    begun = Known(table="0123456789abcdef", identity=IDENTITY)
    Table(store=empty).known.change(lambda _: begun)
    _, found = opened(empty, counted, derived=True)
    assert (found.id, found.known.identity, found.warnings) == (begun.table, counted, ())


def test_another_endpoint_is_noted_with_a_warning(store):
    commit(store, 1)
    _, found = opened(store, endpoint="http://127.0.0.1:1")
    assert "was read at AWS S3 before" in found.warnings[0]
    assert not opened(store, endpoint="http://127.0.0.1:1")[1].warnings


def test_cursor_of_another_table_is_refused(store):
    commit(store, 1)
    with pytest.raises(CorruptError, match="with the id feed, and the present table is"):
        opened(store, expected="feed")


def test_cursor_of_a_deleted_table_is_refused(store):
    """Otherwise the loss of all objects would go unnoticed, because only the cursor shows that there was a table."""
    commit(store, 1)
    was = record(store).table
    for meta in store.list("").objects:
        store.delete(meta.key)
    with pytest.raises(CorruptError, match=f"the id {was}, and no table is left"):
        opened(store, expected=was)
    assert not store.list("").objects
    now = opened(store)[1].id
    with pytest.raises(CorruptError, match=f"the id {was}, and the present table is {now}"):
        opened(store, expected=was)


def test_table_that_is_being_rewritten_is_refused(store):
    table = commit(store, 1)
    table.known.change(lambda known: replace(known, rewriting=True))
    with pytest.raises(UsageError, match="until it succeeds"):
        opened(store)


def test_second_sensor_gets_a_warning(store):
    table, found = opened(store)
    assert not claim(table.reader, found, "one")
    table, found = opened(store)
    assert not claim(table.reader, found, "one")
    assert "two deployments share" in claim(table.reader, found, "two")
    assert record(store).sensor == "two"


def test_confirmation_is_recorded_with_the_newest_version(store):
    commit(store, 1)
    table, found = opened(store)
    assert confirm(table.reader, found) == record(store).confirmed == 1


@pytest.mark.parametrize("beyond", [1, 2, 3])
def test_table_goes_on_under_a_new_id_after_an_accepted_loss(store, beyond):
    """Otherwise rows of versions before the loss would be lost, or versions after the loss would stay."""
    for _ in range(4):
        commit(store, 1, 2)
    was, noted = record(store).table, []
    lose(store, beyond)
    with pytest.raises(CorruptError, match="table forget"):
        opened(store)
    done = forget(Table(store=store).committer, lambda: noted.append("all slots"))
    assert (noted, done.version) == (["all slots"], beyond - 1)
    _, found = opened(store, expected=was)
    assert found.id == done.table != was
    assert found.known.former == (was,)
    assert found.known.identity == IDENTITY
    assert Table(store=store).counted() == ({1: beyond - 1, 2: beyond - 1} if beyond > 1 else {})
    assert [version.table for version in versions(store)] == [was] * beyond + [done.table]


def test_table_keeps_its_rows_after_the_loss_of_its_record(store):
    commit(store, 1)
    for meta in store.list(f"{KNOWN}/").objects:
        store.delete(meta.key)
    with pytest.raises(CorruptError, match="its record is gone"):
        opened(store)
    forget(Table(store=store).committer, no_backlog)
    assert Table(store=store).counted() == {1: 1}
    commit(store, 1)


def test_table_begins_again_after_the_loss_of_all_objects(store):
    commit(store, 1)
    for meta in store.list(LAYOUT.prefix).objects:
        store.delete(meta.key)
    with pytest.raises(CorruptError, match=r"its log is gone \(it had 2 versions\)"):
        opened(store)
    done = forget(Table(store=store).committer, no_backlog)
    assert opened(store)[1].id == done.table
    assert Table(store=store).counted() == {}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("left", ["all", "some", "none"])
def test_table_opens_after_a_killed_forget_only_if_the_loss_is_accepted(store, left, fault):
    """Otherwise, after a crash of `forget` at some request, a table would open although the loss is not completely
    accepted.
    """
    for _ in range(3):
        commit(store, 1)
    lost = {"all": (), "some": (2,), "none": range(4)}[left]
    if left == "all":
        for meta in store.list(f"{KNOWN}/").objects:
            store.delete(meta.key)
    lose(store, *lost)
    before = {meta.key: store.get(meta.key).body for meta in store.list("").objects}
    died, dies_at = True, 0
    while died:
        there, died = MemoryObjectStore(), False
        for key, body in before.items():
            there.put(key, body)
        noted = []
        try:
            dying = Table(store=FaultyStore(there, scripted({dies_at: fault})))
            forget(dying.committer, lambda noted=noted: noted.append("all slots"))
        except CrashedError:
            died = True
        try:
            opened(there)
        except CorruptError:
            forget(Table(store=there).committer, lambda noted=noted: noted.append("all slots"))
        assert noted
        _, found = opened(there)
        assert found.known.identity == IDENTITY
        assert Table(store=there).counted() == {"all": {1: 3}, "some": {1: 1}, "none": {}}[left]
        dies_at += 1
    assert dies_at > 3


def test_forget_fails_if_a_version_after_the_loss_may_still_exist(store):
    """Otherwise the table would continue although a later version of the former table may exist. A second `forget`
    removes this later version.
    """
    for slot in range(4):
        commit(store, slot)
    lose(store, 2)
    doubtful = DoubtfulStore(store, LAYOUT.version(4))
    with pytest.raises(UnavailableError, match="may still exist"):
        forget(Table(store=doubtful).committer, no_backlog)
    with pytest.raises(CorruptError, match="table forget"):
        opened(store)
    assert forget(Table(store=store).committer, no_backlog).version == 1
    assert opened(store)[1].snapshot.version == 2


def test_forget_without_a_table_does_nothing(store):
    assert not forget(Table(store=store).committer, no_backlog).table
    assert not store.list("").objects
