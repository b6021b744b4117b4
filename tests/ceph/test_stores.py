"""The contracts of the ports, the commits and the doctor's verdict, on Ceph RGW."""

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
    # It ignores conditions on COPY and DELETE, and says so by no word.
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
    """What commits and Spark tasks use."""

    @pytest.fixture
    def store(self, rgw):
        return FastObjectStore(rgw.config(rgw.make_bucket()))


class TestRecords(RecordStoreSuite):
    @pytest.fixture
    def records(self, rgw):
        with closing(S3ObjectStore(rgw.config(rgw.make_bucket()))) as store:
            yield ObjectRecordStore(store, "records/")


class TestQueueRecords(RecordStoreSuite):
    """As the queue has them: fast, and no tombstones of entries."""

    @pytest.fixture
    def records(self, rgw):
        store = FastObjectStore(rgw.config(rgw.make_bucket()))
        return ObjectRecordStore(store, "records/", keys_recur=keys_recur)


def test_the_doctor_finds_native_commits_and_says_what_is_ignored(rgw, monkeypatch):
    """Exit code 0: what commits need is there; what COPY and DELETE ignore is printed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    arguments = ["doctor", "--bucket", rgw.make_bucket(), "--endpoint-url", rgw.endpoint_url]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "commit: native (the store keeps If-None-Match and If-Match on PUT)" in result.output
    assert "copy_if_absent: a COPY onto an existing object was applied" in result.output
    assert "upload_if_absent: an upload that ends where an object is was applied" in result.output
    assert "delete_if_match: a DELETE under an ETag that is gone was applied" in result.output


@pytest.mark.parametrize("store_of", [S3ObjectStore, FastObjectStore])
def test_one_commit_wins_and_the_others_know(rgw, store_of):
    """Losers get 412 or 500 here; neither may be taken for a win, or be left in doubt."""
    store = store_of(rgw.config(rgw.make_bucket()))
    for number in range(10):
        path = f"commits/{number}"
        assert race(store, lambda commit, body: commit.put_if_absent(path, body)) == 1  # noqa: B023
        head = store.head(path)
        assert race(store, lambda commit, body: commit.put_if_match(path, body, head.etag)) == 1  # noqa: B023


def race(store, write):
    """How many of `WRITERS` commits won; the others must have lost for certain. No two bodies are equal."""
    gate = threading.Barrier(WRITERS)

    def one(_):
        gate.wait()
        return write(NativeCommit(store), uuid4().bytes)

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = list(pool.map(one, range(WRITERS)))
    assert all(isinstance(outcome, Written | Conflict) for outcome in outcomes), outcomes
    return sum(isinstance(outcome, Written) for outcome in outcomes)
