"""S3ObjectStore under failures, on a real server behind a faulty proxy."""

import io
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import ABSENT, IfMatch, StoredObject, Unknown, Written
from s3notify_platform.protocols.keyspace import Publisher, uploads
from s3notify_platform.protocols.updates import Changed, Stored, Updates
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HurriedClock

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(ministack):
    with FaultProxy(ministack.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def store(ministack, proxy):
    config = replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url)
    store = S3ObjectStore(config, clock=HurriedClock())
    yield store
    store.close()


def test_lost_answer_of_a_conditional_put_is_unknown(store, proxy):
    """The put was applied. The put must be sent only once, because a retry would conflict with the first put."""
    proxy.faults.append("lose_response")
    assert isinstance(store.put("a", b"1", precondition=ABSENT), Unknown)
    assert proxy.requests == ["PUT"]
    assert store.get("a").body == b"1"


@pytest.mark.parametrize("fault", ["lose_request", "409", "500", "503"])
def test_ambiguous_answer_is_unknown(store, proxy, fault):
    """After a lost request, a 409, a 500 or a 503, the store cannot know whether the write was applied. If
    the store reported a conflict, the caller would believe that another writer has won. If the store reported
    success, the caller would rely on a write that never happened.
    """
    first = store.put("a", b"1").etag
    proxy.requests.clear()
    for write in (
        lambda: store.put("b", b"2", precondition=ABSENT),
        lambda: store.put("a", b"2", precondition=IfMatch(etag=first)),
        lambda: store.delete("a", precondition=IfMatch(etag=first)),
        lambda: store.copy("a", "b", precondition=ABSENT),
    ):
        proxy.faults.append(fault)
        assert isinstance(write(), Unknown)
    assert proxy.requests == ["PUT", "PUT", "DELETE", "PUT"]
    assert store.get("a").body == b"1"
    assert store.get("b") is None


def test_lost_answer_of_a_pinned_copy_is_unknown(store, proxy):
    """If the copy's source has changed, a retry is refused. After a refused retry, the caller would believe that
    nothing was copied, although the first request was applied.
    """
    store.put("a", b"1")
    source = store.source("", "a")
    proxy.requests.clear()
    proxy.faults.append("lose_response")
    assert isinstance(store.copy(source, "b"), Unknown)
    assert proxy.requests == ["PUT"]
    assert store.get("b").body == b"1"


def test_only_parts_of_an_upload_are_retried(store, proxy):
    """The requests that begin and complete an upload are sent only once.

    A second begin would make another upload, and a second completion would find no upload.
    """
    proxy.faults.append("lose_response")
    with pytest.raises(UnknownOutcomeError):
        store.begin_upload("a")
    assert len(store.empty_uploads("a")) == 1
    upload = store.begin_upload("a")
    proxy.requests.clear()
    proxy.faults += ["lose_response", "500", "lose_request"]
    etag = store.send_part("a", upload, 1, b"1")
    assert proxy.requests == ["PUT"] * 4
    proxy.requests.clear()
    proxy.faults.append("lose_response")
    assert isinstance(store.complete_upload("a", upload, [etag]), Unknown)
    assert proxy.requests == ["POST"]
    assert store.get("a").body == b"1"


@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "500"])
def test_upload_in_doubt_is_resolved_by_a_head(store, proxy, monkeypatch, fault):
    """The object's metadata has the writer's id. Without the HEAD, the publisher would complete a finished upload a
    second time, and would report a failure, although the object was written.
    """
    monkeypatch.setattr(uploads, "PART_BYTES", 4)
    publisher = Publisher(store, prefix="ks/", clock=HurriedClock(), parallelism=1)
    proxy.faults += ["pass", "pass", fault]
    written = publisher.put_stream("a", io.BytesIO(b"1234"), precondition=ABSENT)
    assert isinstance(written, Written)
    assert proxy.requests[:4] == ["POST", "PUT", "POST", "HEAD"]
    assert store.get("a").meta.etag == written.etag


def test_slow_down_is_retried(store, proxy):
    """SlowDown means that the request was not applied, so a retry is safe, even with a condition. Without a retry,
    each short overload of the store would fail a write.
    """
    proxy.faults.extend(["slow_down", "slow_down"])
    assert isinstance(store.put("a", b"1", precondition=ABSENT), Written)
    assert proxy.requests == ["PUT"] * 3


def test_permanent_slow_down_is_unavailable(store, proxy):
    """Without a limit on retries, a caller would wait for ever. If the outcome were unknown, the caller would
    look for a write that certainly did not happen.
    """
    proxy.faults.extend(["slow_down"] * 5)
    with pytest.raises(UnavailableError, match="SlowDown"):
        store.put("a", b"1", precondition=ABSENT)
    assert len(proxy.requests) == 5
    assert store.get("a") is None


@pytest.mark.parametrize("fault", ["lose_request", "lose_response", "500", "503", "slow_down"])
def test_reads_and_plain_writes_are_retried(store, proxy, fault):
    """Without retries, each short fault of the store or of the network would become an error for the caller."""
    for work in (
        lambda: store.put("a", b"1"),
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: store.list(""),
        lambda: store.copy("a", "b"),
        lambda: store.delete("b"),
    ):
        proxy.faults.extend([fault] * 4)
        assert work() is not None
    assert not proxy.faults


def test_plain_write_without_an_answer_is_unknown(store, proxy):
    """A write and its four retries get no answer, although the server may have applied the write. If the
    store reported an outage, the caller would believe that nothing was written.
    """
    proxy.faults.extend(["lose_request"] * 5)
    assert isinstance(store.put("a", b"1"), Unknown)


def test_read_without_an_answer_is_unavailable(store, proxy):
    """Without a limit on retries, a reader would wait for ever. Without the endpoint in the error, an
    operator would not know which store to check.
    """
    proxy.faults.extend(["500"] * 5)
    with pytest.raises(UnavailableError, match=proxy.url):
        store.get("a")


def test_updates_resolve_a_lost_answer(store, proxy):
    """The record store sends a write only once. If `Updates` did not read the record, a caller would mistake its own
    write for a conflict. If a counter did not resolve the outcome, a caller could count an addition twice.
    """
    records = ObjectRecordStore(store, "r/", clock=HurriedClock())
    updates = Updates(records, HurriedClock())
    proxy.faults.append("lose_response")
    assert isinstance(records.create("p", "once", b"1"), Unknown)
    proxy.faults.append("lose_response")
    created = updates.create("p", "a", b"1")
    assert isinstance(created, Stored)
    version = records.read("p", "a").version
    assert version == created.version
    for fault in ("lose_response", "lose_request", "500", "409"):
        proxy.faults.append(fault)
        assert isinstance(updates.replace("p", "a", fault.encode(), expected=version), Stored)
        version = records.read("p", "a").version
    # The first removal probes if the store evaluates a condition on DELETE.
    updates.remove("p", "once", expected=records.read("p", "once").version)
    proxy.faults.append("lose_response")
    assert updates.remove("p", "a", expected=version) == Changed(record=None, in_doubt=True)
    assert records.read("p", "a") is None
    proxy.faults.append("pass")
    proxy.faults.append("lose_response")
    assert records.add("p", "n", 2) == 2
    assert records.add("p", "n", 0) == 2


@pytest.mark.parametrize("work", ["get", "head", "put", "list", "delete"])
def test_operator_errors_name_a_remedy_and_no_secret(ministack, work):
    """If a missing bucket counted as an outage, callers would repeat the request without success. Without the
    bucket or the endpoint in the error, an operator would not know what to correct. A secret in the error
    would be visible to all readers of the log.
    """
    secret = "s3cr3t-guess"

    def run(config: S3Config):
        store = S3ObjectStore(config, clock=HurriedClock(), attempts=2)
        try:
            return {
                "get": lambda: store.get("a"),
                "head": lambda: store.head("a"),
                "put": lambda: store.put("a", b"1", precondition=ABSENT),
                "list": lambda: store.list(""),
                "delete": lambda: store.delete("a"),
            }[work]()
        finally:
            store.close()

    with pytest.raises(UsageError, match=r"no bucket 'no-such-bucket'.*create the bucket") as missing:
        run(replace(ministack.config("no-such-bucket"), secret_access_key=secret))
    down = S3Config(
        bucket="b", endpoint_url="http://127.0.0.1:9", access_key_id="x", secret_access_key=secret
    )
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:9 is unavailable") as unreachable:
        run(down)
    assert secret not in f"{missing.value} {unreachable.value}"


@pytest.mark.parametrize("work", ["get", "head", "put", "list", "delete"])
@pytest.mark.parametrize("wrong", [{"access_key_id": "nobody"}, {"secret_access_key": "s3cr3t-guess"}])
def test_refused_credentials_name_endpoint_and_bucket(seaweed, work, wrong):
    """Without the endpoint in the error, an operator with several stores would not know which credentials to
    correct. A secret in the error would be visible to all readers of the log.
    """
    store = S3ObjectStore(replace(seaweed.config(seaweed.make_bucket()), **wrong), clock=HurriedClock())
    arguments = {"put": ("a", b"1"), "list": ("",)}.get(work, ("a",))
    with pytest.raises(UsageError, match=r"refused access.*check") as caught:
        getattr(store, work)(*arguments)
    store.close()
    assert seaweed.endpoint_url in str(caught.value)
    assert "s3cr3t-guess" not in str(caught.value)


def test_condition_of_a_read_reaches_the_server(store):
    """If the condition were lost, a batch would read the bytes of a newer object, and would store the rows under the
    former ETag.
    """
    first = store.put("a", b"1").etag
    assert isinstance(store.get("a", if_match=first), StoredObject)
    store.put("a", b"2")
    assert not isinstance(store.get("a", if_match=first), StoredObject)
