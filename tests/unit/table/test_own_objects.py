"""Listings, publishers and inlets agree which objects are the platform's own, wherever these objects are."""

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.own_objects import own_prefixes
from tests.support.sources import source_of

OURS = (
    "own/table/commits/3/1",
    "own/records/x",
    "signals/7",
    "waiting/topics/orders",
    "_s3notify/queue/topics/orders",
    "_s3notify/other/table/commits/3/1",
    "_s3notify-known/own",
)
PLACES = {"platform_prefix": "own/", "keyspace_prefix": "signals/", "queue_prefix": "waiting/"}


def test_own_objects_are_never_read_from_the_whole_bucket() -> None:
    """Otherwise a source of a whole bucket, or of a platform prefix, would ingest the platform's own objects."""
    source = source_of(name="orders", bucket=S3Config(bucket="b"), hidden_files="read", **PLACES)
    assert [key for key in (*OURS, "raw/1", "ownership/1") if source.choice.covers(key)] == [
        "raw/1",
        "ownership/1",
    ]
    with pytest.raises(UsageError, match="platform's own objects"):
        source_of(name="orders", bucket=S3Config(bucket="b"), prefix="waiting/raw/", **PLACES)


def test_objects_of_other_platforms_are_never_read() -> None:
    """Otherwise the platform objects of another deployment would be ingested, because their names look like names of
    user objects.
    """
    mine = source_of(
        name="all", bucket=S3Config(bucket="b"), other_platform_prefixes="own/|signals/|waiting/"
    )
    assert [key for key in (*OURS, "raw/1") if mine.choice.covers(key)] == ["raw/1"]
    assert {"own/", "signals/", "waiting/"} <= {*mine.own}
    with pytest.raises(UsageError, match="platform's own objects below 'own/'"):
        source_of(name="in", bucket=S3Config(bucket="b"), prefix="own/raw/", other_platform_prefixes="own/")
    with pytest.raises(UsageError, match=r"other_platform_prefixes 'own/\|raw': end each prefix with '/'"):
        source_of(name="all", bucket=S3Config(bucket="b"), other_platform_prefixes="own/|raw")


def test_only_default_prefixes_belong_to_the_platform_in_another_bucket() -> None:
    """Otherwise a source would skip user objects below prefixes that the platform uses only in its own bucket."""
    assert own_prefixes("b", platform_bucket="p", **PLACES) == ("_s3notify/", "_s3notify-known/")
