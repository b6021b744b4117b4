"""Where a bucket or a table is and how to reach it: the values that travel to Spark tasks in place of clients."""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

QUEUE_PREFIX: Final = "_s3notify/queue/"
"""Prefix of the notification queue. Outside of the sources' prefixes, so that all sources and writers share one."""


def default_region() -> str:
    """The region that AWS's tools would use in this process: from its environment or profile; else us-east-1."""
    return os.environ.get("AWS_REGION") or _region(*map(os.environ.get, _NAMES)) or "us-east-1"


_NAMES = ("AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE")


# A Dagster resource evaluates this often, and creating a session takes milliseconds.
@lru_cache(maxsize=16)
def _region(*_environment: str | None) -> str | None:
    import boto3

    return boto3.session.Session().region_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a service of AWS, or one like it, is reached. Pickles; its repr shows no secret.

    Without `access_key_id`, boto3's and obstore's own credential chains apply (environment, profile, instance
    role), on each machine separately: no secret then leaves its machine.
    """

    region: str = field(default_factory=default_region)
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """What is reached, and where, for messages."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config(Access):
    """One bucket."""

    bucket: str

    @property
    def place(self) -> str:
        """Bucket and endpoint, for messages."""
        return f"bucket {self.bucket!r} at {self.endpoint_url or f'AWS S3 ({self.region})'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoConfig(Access):
    """One DynamoDB table."""

    table: str

    @property
    def place(self) -> str:
        """Table and endpoint, for messages."""
        return f"table {self.table!r} at {self.endpoint_url or f'AWS DynamoDB ({self.region})'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsConfig(Access):
    """One SQS queue."""

    queue_url: str

    @property
    def place(self) -> str:
        """The queue, for messages."""
        return f"queue {self.queue_url!r}"
