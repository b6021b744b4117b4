"""Location and access of a bucket, table or queue: values that are sent to Spark's tasks in place of clients."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import About
from s3notify_platform.stores.kinds import KINDS

OWN_PREFIX: Final = "_s3notify/"
"""Prefix of the platform's own objects, unless a source has another prefix. No source reads these objects."""

QUEUE_PREFIX: Final = f"{OWN_PREFIX}queue/"
"""Prefix of the notification queue. The queue is outside of the sources' prefixes, so all sources and writers share
it.
"""


def default_region() -> str:
    """The region of AWS's tools in this process: from the environment or the profile; else us-east-1."""
    return os.environ.get("AWS_REGION") or _region(*map(os.environ.get, _NAMES)) or "us-east-1"


def aws_partition(region: str) -> str:
    """The AWS partition of a region, as ARNs contain it. Pure."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d+)?(/[A-Za-z0-9._~/-]*)?")
_BUCKET = re.compile(r"[A-Za-z0-9._:-]*|arn:[!-~]+")
"""The texts that endpoints and bucket names may have. obstore panics over any other text, and over invalid ports and
addresses.
"""


def _is_endpoint(url: str) -> bool:
    try:
        host, port = (place := urlsplit(url)).hostname or "", place.port
        if host.rpartition(".")[2].isdigit():
            ip_address(host)
        return bool(_URL.fullmatch(url)) and port != 0 and "xn--" not in host.lower()
    except ValueError:  # a port that is not a number, or too large; an address with a part above 255
        return False


_NAMES = ("AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE")


# The result is cached, because a Dagster resource calls this function often, and creating a session takes milliseconds.
@lru_cache(maxsize=16)
def _region(*_environment: str | None) -> str | None:
    import boto3

    return boto3.session.Session().region_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to a service of AWS, or to a compatible one. The repr of an `Access` shows no secret, and no secret is
    ever pickled.

    Credentials are read from the named environment variables, or from the named profile, which may assume a role.
    Without such names, boto3's own chain is used: environment, default profile, instance role. If `role_arn` is given,
    these credentials assume that role, with the `external_id` that the role's owner requires. Each machine looks up the
    credentials when it sends a request (`stores.credentials`), so no secret leaves its machine. Keys in the settings
    themselves work in this process only: pickling such settings is a `UsageError`.
    """

    service: ClassVar[str]
    """The service's name in AWS's environment variables."""

    region: str = ""
    """Default: AWS_REGION, or the profile's region."""
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
    profile: Annotated[str | None, About("Profile in AWS's files on every machine, like landing")] = None
    role_arn: Annotated[str | None, About("Role to assume, like arn:aws:iam::123456789012:role/landing")] = (
        None
    )
    external_id: Annotated[str | None, About("External id that the role's owner requires, like acme-7")] = (
        None
    )
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "region", self.region or default_region())
        for name, value in ((each.name, getattr(self, each.name)) for each in fields(self)):
            if isinstance(value, str) and not value.isprintable():
                raise UsageError(f"{name} has a line break or another control character: remove it")
        if self.endpoint and not _is_endpoint(self.endpoint):
            raise UsageError(f"endpoint {self.endpoint!r}: give its URL, like https://s3.example.com:9000")
        values = (self.access_key_id, self.secret_access_key)
        variables = (self.access_key_id_env, self.secret_access_key_env)
        if any((given[0] is None) != (given[1] is None) for given in (values, variables)):
            raise UsageError(f"{self.place}: give key id and secret, or neither")
        if self.external_id and not self.role_arn:
            raise UsageError(f"{self.place}: external_id needs a role: give role_arn too")
        if sum(given is not None for given in (values[0], variables[0], self.profile)) > 1:
            raise UsageError(
                f"{self.place}: give the keys in one way only: environment variables, or a profile"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        if self.access_key_id is not None:
            raise UsageError(
                f"{self.place}: the settings contain keys, which would be sent with Spark's tasks: name environment "
                "variables (access_key_id_env, secret_access_key_env) or a profile that every machine has, or leave "
                "the keys to boto3's own chain"
            )
        return _unpickled, (type(self), {each.name: getattr(self, each.name) for each in fields(self)})

    @property
    def endpoint(self) -> str | None:
        """The URL that requests go to: `endpoint_url` if given, else the URL in AWS's variables. None means AWS
        itself.
        """
        variables = (f"AWS_ENDPOINT_URL_{self.service}", "AWS_ENDPOINT_URL")
        return self.endpoint_url or next(filter(None, map(os.environ.get, variables)), None)

    @property
    def credentials(self) -> dict[str, str | None]:
        """The fields that say how credentials are found. With these fields, another service is reached as the same
        user.
        """
        return {each.name: getattr(self, each.name) for each in fields(Access)[2:]}

    @property
    def place(self) -> str:
        """The resource and its location, for messages."""
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
    requester_pays: Annotated[
        bool, About("Accept the costs of each request, as a bucket with Requester Pays demands")
    ] = False
    kms_key_id: Annotated[
        str | None,
        About("KMS key for objects that the platform writes, like alias/platform; default: the bucket's"),
    ] = None

    def __post_init__(self) -> None:
        Access.__post_init__(self)
        if not _BUCKET.fullmatch(self.bucket) and "/" not in self.bucket:
            raise UsageError(
                f"bucket {self.bucket!r}: a name has letters, digits, dots, hyphens and underscores"
            )
        if "/" in self.bucket and not self.bucket.startswith("arn:"):
            raise UsageError(f"bucket {self.bucket!r}: give its name alone; the part after '/' is the prefix")

    @property
    def place(self) -> str:
        """Bucket and endpoint, for messages."""
        return f"bucket {self.bucket!r} at {self.endpoint or f'AWS S3 ({self.region})'}"

    def url(self, key: str = "") -> str:
        """The URL of a key or prefix in the bucket, for other engines and for people."""
        return f"{self.scheme}://{self.bucket}/{key}"


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
        """The queue's URL, for messages."""
        return f"queue {self.queue_url!r}"
