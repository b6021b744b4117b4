"""A store is probed once for each source, before the first commit."""

import json

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.resources import DynamoTables, SlotSpark
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.protocols.conditional_commit import DynamoCommit, NativeCommit
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.snapshot import Absent
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.tables import create_record_table

PLACE = "_s3notify/orders/store.json"


def manager(monkeypatch, store, **settings):
    monkeypatch.setattr(SourceClients, "store", property(lambda _: store))
    tables = {name: settings.pop(name) for name in ("lease_table", "records_table") if name in settings}
    return SlotIOManager(
        s3=S3Resource(),
        spark=SlotSpark(),
        name="orders",
        bucket="any",
        prefix="in/",
        format="jsonl",
        dynamodb=DynamoTables(**tables),
        **settings,
    )


def test_a_conforming_store_is_probed_once(monkeypatch):
    """If every run probed again, each run would cost about 50 requests instead of one GET."""
    store = CountingStore(MemoryObjectStore())
    io = manager(monkeypatch, store)
    io.settle_commit_mode()
    assert json.loads(store.get(PLACE).body)["mode"] == "native"
    store.counts.clear()
    io.settle_commit_mode()
    assert {kind: count for kind, count in store.counts.items() if count} == {"GET": 1}


def test_each_run_of_a_process_chooses_its_commit_mode_again(monkeypatch):
    """Otherwise a run would keep the commit mode of an earlier run, even if the endpoint now leads to another store."""
    io = manager(monkeypatch, MemoryObjectStore())
    assert io.settle_commit_mode().commit.choice == "native"
    ignoring = IgnoringStore(MemoryObjectStore(), ["create"])
    monkeypatch.setattr(SourceClients, "store", property(lambda _: ignoring))
    with pytest.raises(
        UsageError, match="name a DynamoDB lease_table"
    ):  # a run that kept the mode `native` would not require a lease table
        io.settle_commit_mode()


@pytest.mark.parametrize("ignored", ["create", "match"])
def test_a_store_that_ignores_a_condition_is_refused(monkeypatch, ignored):
    """A refused probe must leave no object behind, and the next run must probe again."""
    store = IgnoringStore(MemoryObjectStore(), [ignored])
    io = manager(monkeypatch, store)
    for _ in range(2):
        with pytest.raises(UsageError, match="If-"):
            io.settle_commit_mode()
    assert list(list_all(store, "")) == []


def test_a_manager_without_tables_uses_the_bucket():
    """An IO manager made by hand, without DynamoDB tables, must keep everything in the bucket."""
    manager = SlotIOManager(s3=S3Resource(), spark=SlotSpark(), name="orders", bucket="b", prefix="in/")
    with dg.build_resources({"io": manager}) as resources:
        source = resources.io.source
        assert isinstance(resources.io.clients.records, ObjectRecordStore)
    assert (source.commit.choice, source.commit.lease_table, source.location.records_table) == (
        "auto",
        None,
        None,
    )


TABLES = {"lease_table": "leases", "records_table": "records"}


@pytest.fixture
def records(moto_aws):
    """Creates the records table that `TABLES` names."""
    create_record_table(DynamoConfig(table="records"))


def test_a_table_can_be_committed_to_only_after_its_mode_is_settled(monkeypatch):
    """Otherwise runs could commit to a store that ignores conditional writes, and could overwrite each
    other's versions. Before the mode is settled, reads are allowed, and no table is created.
    """
    store = MemoryObjectStore()
    io = manager(monkeypatch, store)
    table = io.source.table(store=store)
    assert isinstance(table.newest(), Absent)
    with pytest.raises(UsageError, match="opened without a commit mode"):
        io.source.open_table(store=store)
    assert [meta.key for meta in list_all(store, table.layout.log)] == []
    io.settle_commit_mode()
    assert isinstance(io.source.commit.commits(io.source.location.platform, store), NativeCommit)
    found = io.source.open_table(store=store)
    assert found.snapshot is not None
    assert found.snapshot.version == 0


@pytest.mark.parametrize(
    ("ignores", "commit", "expected"),
    [([], "auto", NativeCommit), ([], "dynamodb", DynamoCommit), (["create", "match"], "auto", DynamoCommit)],
)
def test_the_commit_mode_follows_from_the_store_and_the_setting(
    records, monkeypatch, ignores, commit, expected
):
    """Another process must settle on the same mode, from the stored result of the first probe."""
    store = IgnoringStore(MemoryObjectStore(), ignores)
    for _ in range(2):
        io = manager(monkeypatch, store, commit=commit, **TABLES)
        io.settle_commit_mode()
        assert type(io.source.commit.commits(io.source.location.platform, store)) is expected
    stored = json.loads(store.get(PLACE).body)
    assert stored["commit"] == io.source.commit.choice
    assert stored["lease_table"] == ("leases" if expected is DynamoCommit else None)
    assert isinstance(io.clients.records, DynamoRecordStore)


def test_a_changed_commit_mode_is_refused(records, monkeypatch):
    """Runs in two modes would overwrite each other's commits, so a person must first stop all runs."""
    store = MemoryObjectStore()
    manager(monkeypatch, store).settle_commit_mode()
    reason = r"by dynamodb \(lease table 'leases'\).*by native.*stop all its runs"
    with pytest.raises(UsageError, match=reason):
        manager(monkeypatch, store, commit="dynamodb", **TABLES).settle_commit_mode()
    store.delete(PLACE)
    manager(monkeypatch, store, commit="dynamodb", **TABLES).settle_commit_mode()
    for changed in ({}, {"commit": "dynamodb", **TABLES, "lease_table": "others"}):
        with pytest.raises(UsageError, match="stop all its runs"):
            manager(monkeypatch, store, **changed).settle_commit_mode()


def test_a_removed_lease_or_records_table_is_noticed(records, monkeypatch):
    """The abilities of the store are read from `store.json`. The names of tables are not read from `store.json`, so a
    run whose settings lack a needed table must be refused.
    """
    store = IgnoringStore(MemoryObjectStore(), ["create"])
    manager(monkeypatch, store, **TABLES).settle_commit_mode()
    with pytest.raises(UsageError, match="name a DynamoDB records_table"):
        manager(monkeypatch, store, lease_table="leases").settle_commit_mode()


@pytest.mark.parametrize("removed", ["mode", "commit", "lease_table", "delete_if_match"])
def test_an_invalid_store_json_stops_the_run(monkeypatch, removed):
    """A guessed ability or commit mode could let runs overwrite each other's commits."""
    store = MemoryObjectStore()
    manager(monkeypatch, store).settle_commit_mode()
    body = json.loads(store.get(PLACE).body)
    del body[removed]
    for stored in (json.dumps(body).encode(), b"{}", b"[]", b"\xff"):
        store.put(PLACE, stored)
        with pytest.raises(CorruptError, match="remove it to probe the store again"):
            manager(monkeypatch, store).settle_commit_mode()
