"""Leases in the notation of object_store's setting."""

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.conditional_commit import LeaseText, is_lease_text, lease_text
from s3notify_platform.stores.conditional import leases_of
from s3notify_platform.stores.config import S3Config


@pytest.mark.parametrize(
    ("text", "table", "seconds"),
    [
        ("dynamo:acme-leases", "acme-leases", None),
        ("dynamo:acme-leases:20000", "acme-leases", 20.0),
        ("dynamo:a.b_c:1", "a.b_c", 0.001),
        (" dynamo : acme-leases : 3600000 ", "acme-leases", 3600.0),
    ],
)
def test_a_lease_text_is_parsed(text: str, table: str, seconds: float | None) -> None:
    """Otherwise a setting that object_store accepts would be refused because of white space."""
    assert is_lease_text(text)
    assert lease_text(text) == LeaseText(table=table, timeout_seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "dynamo",
        "dynamo:",
        "dynamo:ab",
        "dynamo:a b c",
        "dynamo:acme:1:2",
        "dynamo:arn:aws:dynamodb:eu-west-1:1:table/acme",
        "dynamo:acme:",
        "dynamo:acme:0",
        "dynamo:acme:-1",
        "dynamo:acme:1.5",
        "dynamo:acme:20s",
        "dynamo:acme:٢٠",
        "dynamo:acme:3600001",
        "dynamo:acme:" + "9" * 10_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_lease_text_is_refused(text: str) -> None:
    """Otherwise a user would not see the right form, or would get an endless message."""
    with pytest.raises(UsageError, match="dynamo:TABLE or dynamo:TABLE:MILLISECONDS") as raised:
        lease_text(text)
    assert repr(text[:100]) in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("text", ["auto", "native", "dynamodb", "dynamodb:acme", ""])
def test_other_words_are_no_lease_texts(text: str) -> None:
    assert not is_lease_text(text)


def test_the_lease_table_uses_the_buckets_connection() -> None:
    """Otherwise this package would look for the table in another region, endpoint or profile than object_store."""
    bucket = S3Config(bucket="b", region="eu-west-1", endpoint_url="http://127.0.0.1:1", profile="landing")
    table, settings = leases_of("dynamo:acme-leases:5000", bucket)
    assert (table.table, table.region, table.endpoint_url) == (
        "acme-leases",
        "eu-west-1",
        "http://127.0.0.1:1",
    )
    assert table.profile == "landing"
    assert settings.timeout_seconds == 5
    assert leases_of("dynamo:acme-leases", bucket)[1].timeout_seconds == 20
