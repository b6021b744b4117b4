"""Reads of small objects, against a real server: each result has the enumerated version of the object, or the
reason why the object was not read.
"""

import os
from dataclasses import replace
from typing import Any

import obstore
import pytest

from s3notify_platform.engine.read import fetch as fetching
from s3notify_platform.engine.read.fetch import Fetched, fetch
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.support.objects import put

pytestmark = pytest.mark.server


def fetched(config: S3Config, *versions: ObjectVersion) -> list[Fetched]:
    return [one for window in fetch(config, versions) for one in window]


@pytest.mark.thorough
def test_objects_are_fetched_in_order_and_completely(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an object were left out, its rows would be missing from the table. If an object's body came with
    another object's key, the rows in the table would have the wrong key. In this test, the objects fill
    several windows, some objects are empty, and some keys need boto3 in place of obstore.
    """
    monkeypatch.setattr(fetching, "WINDOW_OBJECTS", 3)
    monkeypatch.setattr(fetching, "WINDOW_BYTES", 100)
    bodies = {f"{n}{odd}": os.urandom(n * 20) for n in range(8) for odd in ("", "//x", " +%🙂", "\n")}
    versions = [put(config, key, body) for key, body in bodies.items()]
    found = fetched(config, *versions)
    assert [one.version for one in found] == versions
    assert {one.version.key: one.body for one in found} == bodies
    assert {one.status for one in found} == {"ok"}
    assert fetched(config) == []


@pytest.mark.parametrize("key", ["plain", "odd//key"])
def test_a_changed_or_deleted_object_is_not_read(config: S3Config, key: str) -> None:
    old = put(config, key, b"old")
    put(config, key, b"new")
    assert [one.status for one in fetched(config, old)] == ["superseded"]
    S3ObjectStore(config).delete(key)
    assert [one.status for one in fetched(config, old)] == ["deleted"]


def test_large_objects_are_read_in_ranges_of_one_version(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "CHUNK_BYTES", 1000)
    body = os.urandom(10_500)
    large = put(config, "large", body)
    (found,) = fetched(config, large)
    assert found.body == body
    exact = put(config, "exact", body[:3000])
    assert fetched(config, exact)[0].body == body[:3000]
    put(config, "large", body[::-1])
    assert fetched(config, large)[0].status == "superseded"


def with_a_title(config: S3Config, key: str, body: bytes) -> None:
    obstore.put(obstore_store(config), key, body, attributes={"title": "Zürich"}, use_multipart=False)


@pytest.mark.parametrize("size", [0, 900, 10_500])
def test_objects_whose_metadata_is_not_ascii_are_read(
    config: S3Config, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """obstore cannot read such an object. Otherwise such an object would count as an outage in each run, and never be
    loaded.
    """
    monkeypatch.setattr(fetching, "CHUNK_BYTES", 1000)
    body = os.urandom(size)
    version = put(config, "a", body)
    with_a_title(config, "a", body)
    (found,) = fetched(config, version)
    assert (found.status, found.body) == ("ok", body)
    assert found.meta is not None
    assert found.meta.size == size
    with_a_title(config, "a", b"new")
    assert fetched(config, version)[0].status == "superseded"


def test_an_object_whose_metadata_becomes_non_ascii_in_mid_read_is_read_again_later(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the object would lack the bytes of its later parts. The second write has the same bytes, so the ETag
    does not show the change.
    """
    monkeypatch.setattr(fetching, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(fetching, "TASK_READS_IN_FLIGHT", 1)
    body = os.urandom(2500)
    version, send = put(config, "a", body), fetching._fetch_fast

    def overtaken(*arguments: Any) -> Fetched:
        found = send(*arguments)
        with_a_title(config, "a", body)
        return found

    monkeypatch.setattr(fetching, "_fetch_fast", overtaken)
    (found,) = fetched(config, version)
    assert (found.status, found.outage) == ("failed", True)
    assert fetched(config, version)[0].body == body


@pytest.mark.parametrize("key", ["plain", "odd//key"])
def test_a_failure_has_its_reason(config: S3Config, key: str) -> None:
    version = put(config, key, b"x")
    unknown = replace(config, bucket="no-such-bucket")
    (found,) = fetched(unknown, version)
    assert found.status in ("deleted", "failed")
    huge = replace(version, size=1 << 31)
    assert "larger than" in fetched(config, huge)[0].reason
    assert fetched(config, replace(version, etag=ETag("other")))[0].status == "superseded"
