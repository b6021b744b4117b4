"""The contract of object stores, for every store."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ABSENT
from s3notify_platform.protocols.conditional_commit import DynamoCommit
from s3notify_platform.stores.conditional import ConditionalStore, leased_store
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.contracts.ignoring_store import IgnoringStore
from tests.contracts.object_store_suite import ObjectStoreSuite, Traits
from tests.support.record_leases import RecordLeases
from tests.support.tables import create_lease_table


def refuses_conditional_uploads(self, store):
    """A conditional upload is refused before anything is sent: its completion may take longer than a lease lasts."""
    with pytest.raises(UsageError, match="under a condition"):
        store.begin_upload("large", precondition=ABSENT)
    assert store.empty_uploads("large") == ()


class TestMemory(ObjectStoreSuite):
    @pytest.fixture
    def store(self):
        return MemoryObjectStore()


class TestCounting(ObjectStoreSuite):
    @pytest.fixture
    def store(self):
        return CountingStore(MemoryObjectStore())


class TestConditionalOverNoConditions(ObjectStoreSuite):
    """A store that ignores every condition fulfils the contract if its commits use leases."""

    @pytest.fixture
    def store(self):
        store = IgnoringStore(MemoryObjectStore(), {"create", "match", "delete", "copy"})
        return ConditionalStore(store, DynamoCommit(store, RecordLeases(MemoryRecordStore())))

    test_upload_if_absent_creates_once = refuses_conditional_uploads
    test_upload_if_match_needs_the_expected_etag = refuses_conditional_uploads


class TestMoto(ObjectStoreSuite):
    """This store runs in the test's process: botocore's requests never leave the process."""

    # A request for a missing upload is a KeyError within moto.
    traits = Traits(
        copy_conditions=False,
        atomic_replace=False,
        upload_conditions=frozenset({"absent"}),
        upload_refusals=False,
        source_pinned=False,
    )

    @pytest.fixture
    def store(self, moto_store):
        return moto_store


@pytest.mark.server
@pytest.mark.thorough
class TestMinistack(ObjectStoreSuite):
    traits = Traits(copy_conditions=False)

    @pytest.fixture
    def store(self, ministack):
        store = S3ObjectStore(ministack.config(ministack.make_bucket()))
        yield store
        store.close()


@pytest.mark.server
@pytest.mark.thorough
class TestLeasedOverNoConditions(ObjectStoreSuite):
    """A real server that ignores conditions of writes, with leases in a real table."""

    @pytest.fixture
    def store(self, ministack):
        leases = ministack.table_config()
        create_lease_table(leases)
        with FaultProxy(ministack.endpoint_url, drops_conditions=True) as proxy:
            bucket = replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url)
            yield leased_store(bucket, leases)

    test_upload_if_absent_creates_once = refuses_conditional_uploads
    test_upload_if_match_needs_the_expected_etag = refuses_conditional_uploads


@pytest.mark.server
@pytest.mark.thorough
class TestSeaweed(ObjectStoreSuite):
    # A filer keeps directories: `a/x` sorts before `a-x`, and a key is a path of names of up to 255 bytes. The filer
    # turns `\\` into `/` and drops empty names silently. The filer refuses all other names that it cannot store.
    traits = Traits(
        refused_keys=frozenset(
            {"backslash", "double slash", "leading slash", "trailing slash", "dots", "long segment"}
        ),
        ordered=False,
    )

    @pytest.fixture
    def store(self, seaweed):
        store = S3ObjectStore(seaweed.config(seaweed.make_bucket()))
        yield store
        store.close()


@pytest.mark.server
@pytest.mark.thorough
class TestFastOnMinistack(TestMinistack):
    """The store that is used for commits, and in Spark tasks."""

    @pytest.fixture
    def store(self, ministack):
        return FastObjectStore(ministack.config(ministack.make_bucket()))


@pytest.mark.server
class TestFastOnSeaweed(TestSeaweed):
    @pytest.fixture
    def store(self, seaweed):
        return FastObjectStore(seaweed.config(seaweed.make_bucket()))
