"""Publishers that `open_publisher` opens by the names of source and bucket."""

from typing import Any

import pytest

from s3notify_platform.channels import open_publisher
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.servers import S3Server
from tests.support.sources import source_of


@pytest.mark.server
@pytest.mark.parametrize(
    "given", [{}, {"platform_prefix": "own/"}, {"keyspace_prefix": "signals/"}, {"slots": 7}]
)
def test_the_publisher_moves_the_signals_of_its_source(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """Otherwise the source would not see the changes of a publisher with the same settings."""
    config = ministack.config(ministack.make_bucket())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    location = source_of(name="orders", prefix="raw/", bucket=config, format="jsonl", **given).location
    watcher = Watcher(S3ObjectStore(config), prefix=location.keyspace_prefix, slots=location.slots)
    watcher.poll()
    publisher = open_publisher(
        "orders", bucket=config.bucket, endpoint_url=config.endpoint_url, region=config.region, **given
    )
    publisher.put("raw/1", b"1")
    assert [*watcher.poll().changed] == [slot_of("raw/1", location.slots)]


@pytest.mark.parametrize("key", ["own/table/commits/3/1", "waiting/topics/orders", "_s3notify-known/own"])
def test_the_publisher_writes_no_object_of_the_platform(key: str) -> None:
    """Otherwise a writer could overwrite the source's table or queue. The refusal needs no request."""
    publisher = open_publisher(
        "orders",
        bucket="b",
        endpoint_url="http://127.0.0.1:9",
        platform_prefix="own/",
        queue_prefix="waiting/",
    )
    with pytest.raises(UsageError, match="among the platform's own"):
        publisher.put(key, b"1")
