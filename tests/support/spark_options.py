"""Configurations that name environment variables for their credentials, as Spark needs. The module also makes the data
source's options for a lake.
"""

import os
from dataclasses import replace
from typing import Any, TypeVar

from s3notify_platform.source.source import Source
from s3notify_platform.stores.config import Access

KEY_ID, SECRET = "S3NOTIFY_TEST_KEY", "S3NOTIFY_TEST_SECRET"

ENVIRONMENT = {KEY_ID: "test", SECRET: "test"}
"""The credentials that the tests' servers accept. Spark's Java must be started with these variables, because its
workers read them."""


A = TypeVar("A", bound=Access)


def named(config: A) -> A:
    """The same bucket or table, with credentials given by names of variables."""
    if config.access_key_id is None:
        return config
    assert (config.access_key_id, config.secret_access_key) == (os.environ[KEY_ID], os.environ[SECRET])
    return replace(
        config,
        access_key_id=None,
        secret_access_key=None,
        access_key_id_env=KEY_ID,
        secret_access_key_env=SECRET,
    )


def options_of(source: Source, **more: Any) -> dict[str, str]:
    """Options of the data source that give the same source."""
    bucket = source.input.bucket
    assert (bucket.access_key_id_env, bucket.secret_access_key_env) == (KEY_ID, SECRET)
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
