"""A store is tried out once for each source, before anything is committed to it."""

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


def test_a_store_that_keeps_its_conditions_is_probed_once(monkeypatch):
    """The first check leaves what it found; later ones cost one GET."""
    store = CountingStore(MemoryObjectStore())
    io = manager(monkeypatch, store)
    io.settle_commit_mode()
    assert json.loads(store.get(PLACE).body)["mode"] == "native"
    store.counts.clear()
    io.settle_commit_mode()
    assert {kind: count for kind, count in store.counts.items() if count} == {"GET": 1}


def test_each_run_of_a_process_settles_by_what_the_source_says(monkeypatch):
    """Not by what an earlier one came to: with `auto`, another store may be found at its place."""
    io = manager(monkeypatch, MemoryObjectStore())
    assert io.settle_commit_mode().commit.choice == "native"
    ignoring = IgnoringStore(MemoryObjectStore(), ["create"])
    monkeypatch.setattr(SourceClients, "store", property(lambda _: ignoring))
    with pytest.raises(
        UsageError, match="name a DynamoDB lease_table"
    ):  # as natively it would not be asked for
        io.settle_commit_mode()


@pytest.mark.parametrize("ignored", ["create", "match"])
def test_a_store_that_ignores_a_condition_is_refused(monkeypatch, ignored):
    """Nothing is left behind, and the next run asks again."""
    store = IgnoringStore(MemoryObjectStore(), [ignored])
    io = manager(monkeypatch, store)
    for _ in range(2):
        with pytest.raises(UsageError, match="If-"):
            io.settle_commit_mode()
    assert list(list_all(store, "")) == []


def test_a_manager_without_tables():
    """Made by hand, as in other people's definitions: the bucket carries everything."""
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
    """The table of records that `TABLES` names."""
    create_record_table(DynamoConfig(table="records"))


def test_a_table_is_committed_to_only_once_that_is_decided(monkeypatch):
    """Read before, yes; the decision is the run's, and then its commits go by it."""
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
def test_commits_follow_the_store_and_the_choice(records, monkeypatch, ignores, commit, expected):
    """Also in another process, which reads what the first one found."""
    store = IgnoringStore(MemoryObjectStore(), ignores)
    for _ in range(2):
        io = manager(monkeypatch, store, commit=commit, **TABLES)
        io.settle_commit_mode()
        assert type(io.source.commit.commits(io.source.location.platform, store)) is expected
    stored = json.loads(store.get(PLACE).body)
    assert stored["commit"] == io.source.commit.choice
    assert stored["lease_table"] == ("leases" if expected is DynamoCommit else None)
    assert isinstance(io.clients.records, DynamoRecordStore)


def test_two_ways_to_commit_are_never_mixed(records, monkeypatch):
    """Each would not see the other's winners: refused until a person has stopped the runs."""
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


def test_a_table_taken_away_is_noticed(records, monkeypatch):
    """What is stored is what the store can do; what follows is decided again each run."""
    store = IgnoringStore(MemoryObjectStore(), ["create"])
    manager(monkeypatch, store, **TABLES).settle_commit_mode()
    with pytest.raises(UsageError, match="name a DynamoDB records_table"):
        manager(monkeypatch, store, lease_table="leases").settle_commit_mode()


def test_what_an_earlier_version_left_means_native(monkeypatch):
    """It knew of no other commit."""
    store = MemoryObjectStore()
    manager(monkeypatch, store).settle_commit_mode()
    body = json.loads(store.get(PLACE).body)
    del body["commit"], body["lease_table"]
    store.put(PLACE, json.dumps(body).encode())
    io = manager(monkeypatch, store)
    io.settle_commit_mode()
    assert io.source.commit.choice == "native"
    store.put(PLACE, b"{}")
    with pytest.raises(CorruptError, match="remove it to try the store again"):
        manager(monkeypatch, store).settle_commit_mode()
