"""obstore from the same configuration, and the keys it can read."""

from dataclasses import replace

import obstore
import pytest

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ABSENT, Conflict, ETag, IfMatch, Unknown
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.fast import fits_obstore, obstore_store
from s3notify_platform.stores.fast_store import FastObjectStore
from s3notify_platform.stores.s3 import S3ObjectStore
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
def test_keys_that_are_no_path(key):
    """They go the slow way."""
    assert not fits_obstore(key)


@pytest.mark.server
def test_keys_that_fit_are_read_exactly(ministack):
    """Each under its own name, with its own body."""
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
def test_credentials_of_the_environment(ministack, monkeypatch):
    """Without keys in the configuration both clients use boto3's chain; without any, the error says so."""
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
@pytest.mark.parametrize("condition", ["create", "match"])
@pytest.mark.parametrize("fault", ["lose_request", "lose_response", "500", "503", "slow_down", "409"])
def test_a_conditional_put_is_sent_once_and_what_came_of_it_is_not_guessed(ministack, fault, condition):
    """Without an answer that says so, it is unknown; refused only where nothing was applied."""
    bucket = ministack.make_bucket()
    straight = S3ObjectStore(ministack.config(bucket))
    before = straight.put("a", b"before").etag if condition == "match" else None
    with FaultProxy(ministack.endpoint_url) as proxy:
        store = FastObjectStore(replace(ministack.config(bucket), endpoint_url=proxy.url))
        proxy.faults.append(fault)
        outcome = store.put("a", b"new", precondition=ABSENT if before is None else IfMatch(etag=before))
        assert proxy.requests == ["PUT"]
    found = straight.get("a")
    applied = found is not None and found.body == b"new"
    assert applied == (fault == "lose_response")
    assert isinstance(outcome, Unknown) or (isinstance(outcome, Conflict) and fault == "409")
    straight.close()


@pytest.mark.server
def test_what_is_missing_is_told_apart(ministack):
    """A key that is gone is a conflict; a bucket that is not there an error, as soon as something is created in it."""
    store = FastObjectStore(ministack.config(ministack.make_bucket()))
    assert store.put("a", b"1", precondition=IfMatch(etag=ETag("0" * 32))) == Conflict()
    nowhere = FastObjectStore(ministack.config("no-such-bucket-here"))
    for write in (lambda: nowhere.put("a", b"1"), lambda: nowhere.put("a", b"1", precondition=ABSENT)):
        with pytest.raises(UsageError, match="no bucket"):
            write()
