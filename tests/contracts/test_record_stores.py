"""The contract of record stores, for every store."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import DynamoConfig
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.contracts.record_store_suite import RecordStoreSuite
from tests.support.tables import create_record_table


class TestMemory(RecordStoreSuite):
    @pytest.fixture
    def records(self):
        return MemoryRecordStore()


class TestObjectsInMemory(RecordStoreSuite):
    @pytest.fixture
    def records(self):
        return ObjectRecordStore(MemoryObjectStore(), "records/", parallelism=4)


class TestObjectsWhereDeleteIgnoresConditions(RecordStoreSuite):
    """Ceph RGW behaves like this store."""

    @pytest.fixture
    def records(self):
        return ObjectRecordStore(IgnoringStore(MemoryObjectStore(), ignores={"delete"}), "records/")


@pytest.mark.server
class TestObjectsOnMinistack(RecordStoreSuite):
    @pytest.fixture
    def records(self, ministack):
        store = S3ObjectStore(ministack.config(ministack.make_bucket()))
        yield ObjectRecordStore(store, "records/", parallelism=16)
        store.close()


@pytest.mark.server
class TestObjectsOnSeaweed(RecordStoreSuite):
    @pytest.fixture
    def records(self, seaweed):
        store = S3ObjectStore(seaweed.config(seaweed.make_bucket()))
        yield ObjectRecordStore(store, "records/")
        store.close()


@pytest.mark.server
@pytest.mark.thorough
class TestQueueOnSeaweed(RecordStoreSuite):
    """The store of a bucket's queue, through obstore, with scans that read ahead."""

    @pytest.fixture
    def records(self, seaweed):
        return queue_records(seaweed.config(seaweed.make_bucket()))


class TestDynamoInMoto(RecordStoreSuite):
    """This store runs in the test's process: botocore's requests never leave the process."""

    writers = 1

    @pytest.fixture
    def records(self, moto_aws):
        config = DynamoConfig(table="records")
        create_record_table(config)
        store = DynamoRecordStore(config)
        yield store
        store.close()


class DynamoSuite(RecordStoreSuite):
    """Additional properties of DynamoDB."""

    def test_scopes_of_one_table_are_separate(self, records, config):
        """Two sources use one table. Without separate scopes, a source would read and change the records of the
        other source.
        """
        other = DynamoRecordStore(config, scope="other/")
        records.create("p", "a", b"1")
        assert other.read("p", "a") is None
        other.create("p", "a", b"2")
        assert [record.value for record in other.scan("p")] == [b"2"]
        assert [record.value for record in records.scan("p")] == [b"1"]
        other.close()

    def test_limits_are_checked_before_anything_is_sent(self, records, config):
        """Without the check, DynamoDB would refuse the record by an error that does not name the record. If a limit
        were too low, the store would refuse records that DynamoDB accepts.
        """
        value = b"x" * (400 * 1024 - len("partitionkeyvalueversion") - 32 - len("plarge"))
        records.create("p", "large", value)
        assert records.read("p", "large").value == value
        records.create("p" * 2000, "k" * 1024, b"1")
        assert records.read("p" * 2000, "k" * 1024).value == b"1"
        nowhere = DynamoRecordStore(replace(config, endpoint_url="http://127.0.0.1:9"))
        for partition, key, body in (
            ("p", "large", value + b"x"),
            ("p" * 2049, "a", b""),
            ("p", "k" * 1025, b""),
            ("p", "\ud800", b""),
            ("", "a", b""),
            ("p", "", b""),
        ):
            with pytest.raises(UsageError):
                nowhere.create(partition, key, body)
        nowhere.close()

    def test_scan_continues_over_pages(self, records):
        """DynamoDB returns at most a megabyte for each request. If a scan ended after the first page, a consumer
        would miss the other entries of its queue.
        """
        for number in range(12):
            records.create("p", f"{number:02}", b"x" * 150_000)
        assert [record.key for record in records.scan("p")] == [f"{number:02}" for number in range(12)]


@pytest.mark.server
class TestDynamoOnMinistack(DynamoSuite):
    @pytest.fixture
    def config(self, ministack):
        config = ministack.table_config()
        create_record_table(config)
        return config

    @pytest.fixture
    def records(self, config):
        store = DynamoRecordStore(config)
        yield store
        store.close()
