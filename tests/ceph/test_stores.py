"""The contracts of the ports, the commits, and the findings of `s3notify doctor`, on Ceph RGW."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.ports import Conflict, Written
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.protocols.notification_queue import keys_recur
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.contracts.object_store_suite import ObjectStoreSuite, Traits
from tests.contracts.record_store_suite import RecordStoreSuite

pytestmark = pytest.mark.ceph

WRITERS = 16


class TestObjects(ObjectStoreSuite):
    # RGW ignores conditions on COPY and DELETE without an error.
    traits = Traits(
        copy_conditions=False,
        delete_conditions=False,
        upload_refusals=False,
        upload_conditions=frozenset(),
        source_pinned=False,
    )

    @pytest.fixture
    def store(self, rgw):
        with closing(S3ObjectStore(rgw.config(rgw.make_bucket()))) as store:
            yield store


class TestFast(TestObjects):
    """The store that commits and Spark tasks use."""

    @pytest.fixture
    def store(self, rgw):
        return FastObjectStore(rgw.config(rgw.make_bucket()))


class TestRecords(RecordStoreSuite):
    @pytest.fixture
    def records(self, rgw):
        with closing(S3ObjectStore(rgw.config(rgw.make_bucket()))) as store:
            yield ObjectRecordStore(store, "records/")


class TestQueueRecords(RecordStoreSuite):
    """The queue's records: through obstore, and without tombstones of entries."""

    @pytest.fixture
    def records(self, rgw):
        store = FastObjectStore(rgw.config(rgw.make_bucket()))
        return ObjectRecordStore(store, "records/", keys_recur=keys_recur)


def test_the_doctor_reports_native_commits_and_ignored_conditions(rgw, monkeypatch):
    """Otherwise `s3notify doctor` would refuse Ceph, or hide that COPY and DELETE ignore conditions."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    arguments = ["doctor", "--bucket", rgw.make_bucket(), "--endpoint-url", rgw.endpoint_url]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "commit: native (the store honours If-None-Match and If-Match on PUT)" in result.output
    assert "copy_if_absent: a COPY onto an existing object was applied" in result.output
    assert "upload_if_absent: an upload onto an existing object was applied" in result.output
    assert "delete_if_match: a DELETE under a former ETag was applied" in result.output


@pytest.mark.parametrize("store_of", [S3ObjectStore, FastObjectStore])
def test_one_commit_wins_and_the_others_get_a_conflict(rgw, store_of):
    """RGW answers losing writers with 412 or 500. If two writers won, the later commit would overwrite the earlier
    commit. If a losing writer got an unknown outcome, its caller could not know whether to try again.
    """
    store = store_of(rgw.config(rgw.make_bucket()))
    for number in range(10):
        path = f"commits/{number}"
        assert race(store, lambda commit, body: commit.put_if_absent(path, body)) == 1  # noqa: B023
        head = store.head(path)
        assert race(store, lambda commit, body: commit.put_if_match(path, body, head.etag)) == 1  # noqa: B023


def race(store, write):
    """The number of winners among `WRITERS` commits with different bodies. All other commits must have a conflict."""
    gate = threading.Barrier(WRITERS)

    def one(_):
        gate.wait()
        return write(NativeCommit(store), uuid4().bytes)

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = list(pool.map(one, range(WRITERS)))
    assert all(isinstance(outcome, Written | Conflict) for outcome in outcomes), outcomes
    return sum(isinstance(outcome, Written) for outcome in outcomes)
