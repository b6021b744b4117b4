"""obstore with the same configuration as boto3, and the keys that obstore can read."""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import obstore
import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ABSENT, Conflict, IfMatch, Unknown, Written
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.obstore_answers import fits_obstore
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.contracts.fault_proxy import FaultProxy

FITS = [
    " a ",
    "a+b",
    "a%20b",
    "%2F",
    "%",
    "a*b",
    "a?b#c",
    "a&b=c",
    "é",
    "e\u0301",
    "\U0001f642",
    "a\\b",
    "...",
    "a/..b",
]
FITS += ["~^`|{}[]<>\"'", "\x80", "\u2028", "a" * 1024]
DOES_NOT = ["", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b", "a\nb", "a\tb", "\x7f", "\x00"]


@pytest.mark.parametrize("key", DOES_NOT)
def test_keys_that_obstore_cannot_read_are_left_to_boto3(key):
    """Otherwise obstore would read another object, or fail."""
    assert not fits_obstore(key)


@pytest.mark.server
def test_keys_that_obstore_can_read_are_read_exactly(ministack):
    """Otherwise another object would be read for a key with unusual characters."""
    config = ministack.config(ministack.make_bucket())
    store, fast = S3ObjectStore(config), obstore_store(config)
    keys = FITS + [f"p/{chr(code)}q" for code in range(32, 127) if chr(code) != "/"]
    for key in keys:
        assert fits_obstore(key)
        store.put(key, key.encode())
    for key in keys:
        assert bytes(obstore.get(fast, key).bytes()) == key.encode()
    store.close()


@pytest.mark.server
@pytest.mark.parametrize("header", ["title", "Content-Disposition", "Content-Type"])
def test_an_object_whose_headers_are_not_ascii_is_read(seaweed, header):
    """obstore cannot represent headers that are not ASCII, so boto3 must read the object. Its title must stay
    unchanged.
    """
    config = seaweed.config(seaweed.make_bucket())
    obstore.put(obstore_store(config), "a", b"1", attributes={header: "Zürich"}, use_multipart=False)
    for store in (FastObjectStore(config), S3ObjectStore(config)):
        assert store.get("a").body == store.get_range("a", 0, 1) == b"1"
        assert store.head("a").metadata == ({"title": "Zürich"} if header == "title" else {})


@pytest.mark.server
def test_both_clients_use_boto3s_credentials(ministack, monkeypatch):
    """Otherwise boto3 and obstore could act as different users, or fail without naming the missing credentials."""
    bucket = ministack.make_bucket()
    config = S3Config(bucket=bucket, endpoint_url=ministack.endpoint_url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    store = S3ObjectStore(config)
    with pytest.raises(UsageError, match=f"no credentials for bucket '{bucket}'"):
        store.get("a")
    with pytest.raises(UsageError, match=f"no credentials for bucket '{bucket}'"):
        obstore_store(config)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    fresh = S3ObjectStore(config)
    fresh.put("a", b"1")
    assert bytes(obstore.get(obstore_store(config), "a").bytes()) == b"1"
    fresh.close()
    store.close()


@pytest.mark.server
@pytest.mark.parametrize("precondition", [None, ABSENT])
def test_a_missing_bucket_is_reported_without_retries(ministack, precondition):
    """Otherwise operations on a missing bucket would be retried, or their errors would look like errors of a missing
    key.
    """
    nowhere = FastObjectStore(ministack.config("no-such-bucket"))
    with pytest.raises(UsageError, match="no bucket 'no-such-bucket'"):
        nowhere.put("a", b"1", precondition=precondition)
    with pytest.raises(UsageError, match="no bucket 'no-such-bucket'"):
        nowhere.delete("a")
    with pytest.raises(UsageError, match="no bucket 'no-such-bucket'"):
        nowhere.head("a")


@pytest.mark.server
@pytest.mark.parametrize("key", ["none", "<Code>NoSuchKey</Code>"])
def test_a_missing_key_needs_one_request(ministack, key):
    """Otherwise a missing key would cost two requests, or a missing bucket would look like a missing key."""
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url)
        assert FastObjectStore(config).get(key) is None
        assert len(proxy.requests) == 1
        with pytest.raises(UsageError, match="no bucket 'no-such-bucket'"):
            FastObjectStore(replace(config, bucket="no-such-bucket")).get(key)


def test_an_etag_that_no_object_can_have_is_a_conflict():
    """Otherwise the client would panic, and its error would end even a program that handles exceptions."""
    config = S3Config(bucket="b", endpoint_url="http://127.0.0.1:9", access_key_id="a", secret_access_key="b")
    assert FastObjectStore(config).put("a", b"1", precondition=IfMatch(etag="a\nb")) == Conflict()


@pytest.mark.server
@pytest.mark.parametrize("fault", ["500", "409", "slow_down", "lose_request", "lose_response"])
def test_a_conditional_write_is_sent_once_and_may_be_unknown(ministack, fault):
    """Otherwise a write with an unknown outcome would be sent twice, or be mistaken for a conflict. The ETag is sent
    without quotes, because RGW refuses quoted ETags.
    """
    with FaultProxy(ministack.endpoint_url) as proxy:
        store = FastObjectStore(replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url))
        first = store.put("a", b"1").etag
        proxy.faults.append(fault)
        sent = len(proxy.requests)
        assert isinstance(store.put("a", b"2", precondition=IfMatch(etag=first)), Unknown)
        assert len(proxy.requests) == sent + 1
        applied = fault == "lose_response"
        again = store.put("a", b"3", precondition=IfMatch(etag=first))
        assert again == Conflict() if applied else isinstance(again, Written)
        assert proxy.answered[-1].headers["if-match"] == first


@pytest.mark.server
@pytest.mark.parametrize("fault", ["pass", "500", "lose_request", "lose_response"])
def test_a_delete_does_not_send_delete_objects_and_is_repeated_if_lost(ministack, fault):
    """Ceph RGW 16 crashes on DeleteObjects (a POST) in a bucket with notifications, so a delete by DeleteObjects would
    stop the user's store. Without the repetition, an object would stay after a lost request.
    """
    with FaultProxy(ministack.endpoint_url) as proxy:
        store = FastObjectStore(replace(ministack.config(ministack.make_bucket()), endpoint_url=proxy.url))
        store.put("a", b"1")
        proxy.requests.clear()
        proxy.faults.append(fault)
        assert store.delete("a") == Written(etag=None)
        assert set(proxy.requests) == {"DELETE"}
        assert store.get("a") is None


class _Refuses(BaseHTTPRequestHandler):
    """Answers each PUT with the next status, or with 403 if no status is left. A PUT with status 500 is applied."""

    protocol_version = "HTTP/1.1"
    statuses: ClassVar[list[int]] = []
    applied: ClassVar[list[bytes]] = []

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = self.statuses.pop(0) if self.statuses else 403
        if status == 500:
            self.applied.append(body)
        self.send_response(status)
        error = b"<Error><Code>%s</Code></Error>"
        answer = error % (b"InternalError" if status == 500 else b"InvalidAccessKeyId")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        """Logs nothing."""


@pytest.mark.parametrize("kind", [FastObjectStore, S3ObjectStore])
def test_a_put_in_doubt_that_is_then_refused_stays_in_doubt(kind, monkeypatch):
    """Otherwise a publisher would withdraw the announcement of an object that was written. The credentials may expire
    between two attempts of a PUT. A PUT that is refused at once is an error.
    """
    monkeypatch.setattr(_Refuses, "statuses", [])
    monkeypatch.setattr(_Refuses, "applied", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        store = kind(S3Config(bucket="b", endpoint_url=url, access_key_id="a", secret_access_key="b"))
        with pytest.raises(UsageError):
            store.put("a", b"1")
        _Refuses.statuses.append(500)
        assert isinstance(store.put("a", b"2"), Unknown)
        assert _Refuses.applied == [b"2"]
        server.shutdown()
