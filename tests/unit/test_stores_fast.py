"""obstore from the same configuration, and the keys it can read."""

import obstore
import pytest

from s3notify_platform.errors import UsageError
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.fast import fits_obstore, obstore_store
from s3notify_platform.stores.s3 import S3ObjectStore

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
