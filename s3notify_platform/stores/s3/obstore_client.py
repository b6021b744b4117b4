"""The client of the hot read path, by obstore: for many small objects, obstore has several times the throughput of
boto3. `S3ObjectStore` reads the keys that do not fit obstore (`obstore_answers`), more slowly.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, NoCredentialsError

from s3notify_platform.kernel.limits import CREDENTIALS_SECONDS
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.credentials import session_of
from s3notify_platform.stores.sdk import unusable

if TYPE_CHECKING:
    from obstore.store import S3Store


def obstore_store(config: S3Config, *, read_seconds: float = 30.0, attempts: int = 5) -> "S3Store":
    """An obstore client of `config`'s bucket. No request. `UsageError` if no credentials are found.

    obstore's credentials are found in the same way as boto3's, so both clients act as the same user.
    """
    from obstore.store import S3Store

    url = config.endpoint
    arguments: dict[str, Any] = {} if url is None else {"endpoint": url}
    if config.requester_pays:
        arguments["request_payer"] = True
    if config.kms_key_id is not None:
        arguments |= {"server_side_encryption": "aws:kms", "sse_kms_key_id": config.kms_key_id}
    return S3Store(
        config.bucket,
        region=config.region,
        virtual_hosted_style_request=url is None,
        credential_provider=_credentials(config),
        client_options={
            # Plain HTTP only if the configuration's URL says so.
            "allow_http": url is not None and urlsplit(url).scheme == "http",
            "connect_timeout": "5 seconds",
            "timeout": f"{read_seconds:g} seconds",
        },
        retry_config={"max_retries": attempts - 1},
        **arguments,
    )


def _credentials(config: S3Config) -> Any:
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = session_of(config)
        if session.get_credentials() is None:
            raise NoCredentialsError
        # obstore asks for credentials again when at most five minutes of their lifetime are left.
        return Boto3CredentialProvider(session, ttl=timedelta(seconds=300 + CREDENTIALS_SECONDS))
    except BotoCoreError as error:
        raise unusable(error, config) from error
