"""The contract of leases, for every kind of table. Other programs read the table's items, so the attributes of an item
are also tested.
"""

import boto3
import pytest

from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import Unknown, Version
from s3notify_platform.protocols.conditional_commit import Granted, Occupied
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.lease_table import LEASE_TABLE, DynamoLeases
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.contracts.fault_proxy import FaultProxy
from tests.contracts.leases_suite import LEASE, LeasesSuite
from tests.support.record_leases import PARTITION, RecordLeases
from tests.support.tables import create_lease_table

ITEM = {
    "path": {"S": "a/b"},
    "etag": {"S": '"abc-2"'},
    "generation": {"N": "3"},
    "timeout": {"N": "20000"},
    "ttl": {"N": "1700000000"},
}


class TestMemory(LeasesSuite):
    @pytest.fixture
    def leases(self):
        return RecordLeases(MemoryRecordStore())


class TestObjects(LeasesSuite):
    @pytest.fixture
    def leases(self):
        return RecordLeases(ObjectRecordStore(MemoryObjectStore(), "records/"))


@pytest.fixture
def moto_config(moto_aws):
    config = DynamoConfig(table="leases")
    create_lease_table(config)
    return config


class TestMoto(LeasesSuite):
    """Runs in this process, with one writer at a time: moto's conditions are not thread-safe."""

    writers = 1

    @pytest.fixture
    def leases(self, moto_config):
        leases = DynamoLeases(moto_config)
        yield leases
        leases.close()


@pytest.mark.server
class TestMinistack(LeasesSuite):
    @pytest.fixture
    def leases(self, ministack):
        config = ministack.table_config()
        create_lease_table(config)
        leases = DynamoLeases(config)
        yield leases
        leases.close()


def items(config):
    client = boto3.client("dynamodb", region_name=config.region)
    return client, client.scan(TableName=config.table)["Items"]


def test_item_has_the_attributes_of_object_store_and_the_writer(moto_config):
    """With an ETag without quotes, the platform and object_store would use different leases, and both could write at
    the same time. With an attribute that is neither a string nor a number, object_store could not read the lease.
    """
    leases = DynamoLeases(moto_config)
    leases.put(LEASE, seen=None)
    client, (found,) = items(moto_config)
    assert found == {**ITEM, "etag": {"S": "*"}, "generation": {"N": "0"}, "writer": {"S": "w1"}}
    client.put_item(TableName="leases", Item=ITEM)
    theirs = leases.read("a/b", "abc-2")
    assert (theirs.generation, theirs.timeout_ms, theirs.writer) == (3, 20_000, None)
    assert theirs.etag == "abc-2"
    leases.close()


def test_conflicting_item_is_read_if_the_server_does_not_return_it(moto_config, monkeypatch):
    """dynalite does not return the conflicting item. Without another read, a writer would not know for which
    lease to wait, and would give up after a few attempts.
    """
    leases = DynamoLeases(moto_config)
    leases.put(LEASE, seen=None)
    writing = DynamoTable.write

    def forgetful(self, call, **arguments):
        outcome = writing(self, call, **arguments)
        return type(outcome)() if call == "put_item" else outcome

    monkeypatch.setattr(DynamoTable, "write", forgetful)
    assert leases.put(LEASE, seen=None) == Occupied(found=LEASE)


def test_table_has_the_original_schema_and_a_ttl(moto_config):
    """With other keys, object_store could not use the table. Without the TTL, finished leases would accumulate in
    the table. If a second creation failed, an operator could not repeat `s3notify init`.
    """
    client, _ = items(moto_config)
    table = client.describe_table(TableName="leases")["Table"]
    assert [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]] == [
        ("path", "HASH"),
        ("etag", "RANGE"),
    ]
    assert {item["AttributeType"] for item in table["AttributeDefinitions"]} == {"S"}
    ttl = client.describe_time_to_live(TableName="leases")["TimeToLiveDescription"]
    assert (ttl["AttributeName"], ttl["TimeToLiveStatus"]) == (LEASE_TABLE.ttl, "ENABLED")
    assert create_lease_table(moto_config) is False


def test_wrong_table_is_refused_with_a_remedy(moto_config):
    """Without `s3notify init` in the error, an operator would not know how to create a missing table. If an item of
    another program counted as a lease, a writer would wait for a holder that does not exist.
    """
    leases = DynamoLeases(DynamoConfig(table="none"))
    with pytest.raises(UsageError, match="s3notify init"):
        leases.put(LEASE, seen=None)
    client, _ = items(moto_config)
    client.put_item(TableName="leases", Item={"path": {"S": "a/b"}, "etag": {"S": "*"}})
    with pytest.raises(CorruptError, match="is not a lease"):
        DynamoLeases(moto_config).read("a/b", "*")


@pytest.mark.server
def test_lost_answer_is_resolved_by_a_read(ministack):
    """After a lost answer, the writer must find its own lease in the table. Otherwise the writer would wait for its
    own lease as for the lease of another writer.
    """
    config = ministack.table_config()
    create_lease_table(config)
    with FaultProxy(config.endpoint_url) as proxy:
        leases = DynamoLeases(
            DynamoConfig(
                table=config.table, endpoint_url=proxy.url, access_key_id="test", secret_access_key="test"
            )
        )
        proxy.faults.append("lose_response")
        assert isinstance(leases.put(LEASE, seen=None), Unknown)
        assert leases.put(LEASE, seen=None) == Occupied(found=LEASE)
        leases.close()
    gone = DynamoLeases(
        DynamoConfig(table="t", endpoint_url=proxy.url, access_key_id="x", secret_access_key="x")
    )
    with pytest.raises(UnavailableError):
        gone.put(LEASE, seen=None)
    gone.close()


def test_expired_lease_records_are_purged():
    """Without `purge`, expired lease records would accumulate, since nothing else removes these records."""
    leases = RecordLeases(MemoryRecordStore())
    leases.put(LEASE, seen=None)
    assert leases.purge(now_ms=LEASE.ttl * 1000 - 1) == 0
    assert leases.purge(now_ms=LEASE.ttl * 1000) == 1
    assert leases.put(LEASE, seen=None) == Granted()


@pytest.mark.parametrize("value", [b"", b"[]", b'{"v": 1}', b'{"v": 2}'])
def test_invalid_lease_record_is_corrupt(value):
    """A person must check an invalid record."""
    records = MemoryRecordStore()
    leases = RecordLeases(records)
    leases.put(LEASE, seen=None)
    (record,) = records.scan(PARTITION)
    records.replace(PARTITION, record.key, value, expected=Version(record.version))
    with pytest.raises(CorruptError, match="lease"):
        leases.read("a/b", "*")
