"""Where a bucket or a table is and how to reach it: the values that travel to Spark tasks in place of clients."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """One bucket. Pickles; its repr shows no secret.

    Without `access_key_id`, boto3's and obstore's own credential chains apply (environment, profile, instance
    role), on each machine for itself: nothing secret then leaves the machine it belongs to.
    """

    bucket: str
    region: str = "us-east-1"
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoConfig:
    """One DynamoDB table. Pickles; its repr shows no secret. Credentials as for `S3Config`."""

    table: str
    region: str = "us-east-1"
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
