"""Where a bucket is and how to reach it: the value that travels to Spark tasks in place of a client."""

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
