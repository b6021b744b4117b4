"""The data source's options for a lake, its keys by the names of variables."""

from typing import Any

from s3notify_platform.ingest.source import Source

KEY_ID, SECRET = "S3NOTIFY_TEST_KEY_ID", "S3NOTIFY_TEST_SECRET"

ENVIRONMENT = {KEY_ID: "test", SECRET: "test"}
"""What ministack takes. Spark's driver needs them before it starts."""


def options_of(source: Source, **more: Any) -> dict[str, str]:
    """Options that come to the same source."""
    bucket = source.input.bucket
    assert (bucket.access_key_id, bucket.secret_access_key) == ("test", "test")
    given = {
        "name": source.name,
        "bucket": bucket.bucket,
        "prefix": source.input.prefix,
        "format": source.input.format,
        "slots": source.location.slots,
        "endpoint_url": bucket.endpoint_url,
        "access_key_id_env": KEY_ID,
        "secret_access_key_env": SECRET,
        "commit": source.commit.choice,
        "schema": source.input.schema,
    } | more
    return {name: str(value) for name, value in given.items() if value is not None}
