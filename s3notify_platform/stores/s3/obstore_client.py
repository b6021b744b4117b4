"""The hot read path: obstore, several times the throughput of boto3 for many small objects.

It takes paths, not keys, and some keys are not valid paths. `fits_obstore` says which keys it can read;
`S3ObjectStore` reads the others, more slowly.
"""

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from s3notify_platform.errors import UsageError
from s3notify_platform.stores.config import S3Config

if TYPE_CHECKING:
    from obstore.store import S3Store


def fits_obstore(key: str) -> bool:
    """Whether obstore reads exactly this key. Pure.

    False for control characters, empty segments (so also a `/` at either end) and the segments `.` and `..`.
    All other characters that were tried work: `%`, `*`, `?`, `#`, spaces, emoji.
    """
    if any(character < " " or character == "\x7f" for character in key):
        return False
    return not any(segment in ("", ".", "..") for segment in key.split("/"))


def obstore_store(config: S3Config, *, read_seconds: float = 30.0, attempts: int = 5) -> "S3Store":
    """An obstore store of `config`'s bucket. No request. `UsageError` if no credentials are found.

    Without keys in `config`, boto3's credential chain is used, so that both clients act as the same user.
    """
    from obstore.store import S3Store

    url = config.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    arguments: dict[str, Any] = {} if url is None else {"endpoint": url}
    return S3Store(
        config.bucket,
        region=config.region,
        virtual_hosted_style_request=url is None,
        credential_provider=_boto3_credentials(config) if config.access_key_id is None else _given(config),
        client_options={
            # Plain HTTP only if the configuration's URL says so.
            "allow_http": url is not None and urlsplit(url).scheme == "http",
            "connect_timeout": "5 seconds",
            "timeout": f"{read_seconds:g} seconds",
        },
        retry_config={"max_retries": attempts - 1},
        **arguments,
    )


def _given(config: S3Config) -> Any:
    # Not as plain arguments: obstore would add a session token of the environment to keys that have none.
    def credentials() -> dict[str, str | None]:
        return {
            "access_key_id": config.access_key_id,
            "secret_access_key": config.secret_access_key,
            "token": config.session_token,
            "expires_at": None,
        }

    return credentials


def _boto3_credentials(config: S3Config) -> Any:
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.session.Session(region_name=config.region)
    if session.get_credentials() is None:
        raise UsageError(
            f"no credentials for {config.place}: set access_key_id and secret_access_key, or AWS_*"
        )
    return Boto3CredentialProvider(session)
