"""Where a bucket or a table is and how to reach it: the values that travel to Spark's tasks in place of clients."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import About
from s3notify_platform.stores.kinds import KINDS

OWN: Final = "_s3notify/"
"""Where the platform keeps its own objects, unless a source says otherwise. No source reads them."""

QUEUE_PREFIX: Final = f"{OWN}queue/"
"""Prefix of the notification queue. Outside of the sources' prefixes, so that all sources and writers share one."""


def default_region() -> str:
    """The region that AWS's tools would use in this process: from its environment or profile; else us-east-1."""
    return os.environ.get("AWS_REGION") or _region(*map(os.environ.get, _NAMES)) or "us-east-1"


def aws_partition(region: str) -> str:
    """The part of AWS that a region is in, as ARNs name it. Pure."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


_NAMES = ("AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE")


# A Dagster resource evaluates this often, and creating a session takes milliseconds.
@lru_cache(maxsize=16)
def _region(*_environment: str | None) -> str | None:
    import boto3

    return boto3.session.Session().region_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a service of AWS, or one like it, is reached. Its repr shows no secret, and no secret is ever pickled.

    Credentials are those of the named environment variables, or of the named profile (which may assume a role), else
    of boto3's own chain: environment, default profile, instance role. With `role_arn` they assume that role, with the
    `external_id` that its owner asks for. All are looked up on each machine, where
    a request is sent (`stores.credentials`), so that no secret leaves its machine. Keys given by value are for this
    process alone: pickling them is a `UsageError`.
    """

    service: ClassVar[str]
    """As AWS's variables name it."""

    region: str = ""
    """Default: AWS_REGION, or the profile's."""
    endpoint_url: Annotated[
        str | None, About("Endpoint, like http://127.0.0.1:9000; default: AWS_ENDPOINT_URL, or AWS")
    ] = None
    access_key_id_env: Annotated[
        str | None, About("Environment variable with the key id, like MY_KEY_ID")
    ] = None
    secret_access_key_env: Annotated[
        str | None, About("Environment variable with the secret, like SECRET")
    ] = None
    session_token_env: Annotated[str | None, About("Environment variable with the token, like MY_TOKEN")] = (
        None
    )
    profile: Annotated[str | None, About("Profile of AWS's files, like landing, on every machine")] = None
    role_arn: Annotated[str | None, About("Role to assume, like arn:aws:iam::123456789012:role/landing")] = (
        None
    )
    external_id: Annotated[str | None, About("External id that the role's owner asks for, like acme-7")] = (
        None
    )
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "region", self.region or default_region())
        if self.endpoint_url and not self.endpoint_url.startswith(("http://", "https://")):
            raise UsageError(
                f"endpoint {self.endpoint_url!r}: give its URL, like https://s3.example.com:9000"
            )
        values = (self.access_key_id, self.secret_access_key)
        variables = (self.access_key_id_env, self.secret_access_key_env)
        if any((given[0] is None) != (given[1] is None) for given in (values, variables)):
            raise UsageError(f"{self.place}: give key id and secret, or neither")
        if self.external_id and not self.role_arn:
            raise UsageError(f"{self.place}: external_id is of a role: give role_arn too")
        if sum(given is not None for given in (values[0], variables[0], self.profile)) > 1:
            raise UsageError(f"{self.place}: give its keys in one way: environment variables, or a profile")

    def __reduce__(self) -> tuple[Any, ...]:
        if self.access_key_id is not None:
            raise UsageError(
                f"{self.place}: its keys are given by value, and would travel within Spark's tasks: name environment "
                "variables (access_key_id_env, secret_access_key_env) or a profile that every machine has, or leave "
                "them to boto3's own chain"
            )
        return _unpickled, (type(self), {each.name: getattr(self, each.name) for each in fields(self)})

    @property
    def endpoint(self) -> str | None:
        """The URL that requests go to: the given one, else that of AWS's own variables. None: AWS itself."""
        variables = (f"AWS_ENDPOINT_URL_{self.service}", "AWS_ENDPOINT_URL")
        return self.endpoint_url or next(filter(None, map(os.environ.get, variables)), None)

    @property
    def credentials(self) -> dict[str, str | None]:
        """How its credentials are found, as fields: for a service that is reached as the same user."""
        return {each.name: getattr(self, each.name) for each in fields(Access)[2:]}

    @property
    def place(self) -> str:
        """What is reached, and where, for messages."""
        raise NotImplementedError


def _unpickled(kind: type[Access], given: dict[str, Any]) -> Access:
    return kind(**given)


def _schemes() -> Sequence[str]:
    return (*KINDS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config(Access):
    """One bucket."""

    service: ClassVar[str] = "S3"

    bucket: str
    scheme: Annotated[str, About("Kind of the store: the scheme of its URLs", choices=_schemes)] = "s3"
    requester_pays: Annotated[bool, About("Say with each request that we pay for it")] = False
    kms_key_id: Annotated[
        str | None,
        About("Key of KMS for what the platform writes, like alias/platform; default: the bucket's"),
    ] = None

    def __post_init__(self) -> None:
        Access.__post_init__(self)
        if "/" in self.bucket and not self.bucket.startswith("arn:"):
            raise UsageError(f"bucket {self.bucket!r}: give its name alone; what follows it is the prefix")

    @property
    def place(self) -> str:
        """Bucket and endpoint, for messages."""
        return f"bucket {self.bucket!r} at {self.endpoint or f'AWS S3 ({self.region})'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoConfig(Access):
    """One DynamoDB table."""

    service: ClassVar[str] = "DYNAMODB"

    table: str

    @property
    def place(self) -> str:
        """Table and endpoint, for messages."""
        return f"table {self.table!r} at {self.endpoint or f'AWS DynamoDB ({self.region})'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsConfig(Access):
    """One SQS queue."""

    service: ClassVar[str] = "SQS"

    queue_url: str

    @property
    def place(self) -> str:
        """The queue, for messages."""
        return f"queue {self.queue_url!r}"
