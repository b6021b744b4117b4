"""The record store contract, over every store there is."""

import pytest

from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.stores.records import ObjectRecordStore
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.contracts.record_store_suite import RecordStoreSuite


class TestMemory(RecordStoreSuite):
    @pytest.fixture
    def records(self):
        return MemoryRecordStore()


class TestObjectsInMemory(RecordStoreSuite):
    @pytest.fixture
    def records(self):
        return ObjectRecordStore(MemoryObjectStore(), "records/")


class TestObjectsWhereDeleteIgnoresConditions(RecordStoreSuite):
    """As on Ceph RGW."""

    @pytest.fixture
    def records(self):
        return ObjectRecordStore(IgnoringStore(MemoryObjectStore(), ignores={"delete"}), "records/")


@pytest.mark.server
class TestObjectsOnMinistack(RecordStoreSuite):
    @pytest.fixture
    def records(self, ministack):
        store = S3ObjectStore(ministack.config(ministack.make_bucket()))
        yield ObjectRecordStore(store, "records/")
        store.close()


@pytest.mark.server
class TestObjectsOnSeaweed(RecordStoreSuite):
    @pytest.fixture
    def records(self, seaweed):
        store = S3ObjectStore(seaweed.config(seaweed.make_bucket()))
        yield ObjectRecordStore(store, "records/")
        store.close()
