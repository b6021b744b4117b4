"""The hot read path, by obstore: for many small objects, obstore has several times the throughput of boto3.

obstore uses paths instead of keys, and some keys are not valid paths. `fits_obstore` says which keys obstore can read;
`S3ObjectStore` reads all other keys, more slowly.
"""

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, NoCredentialsError

from s3notify_platform.kernel.limits import CREDENTIALS_SECONDS
from s3notify_platform.kernel.ports import ETag, ObjectMeta
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.credentials import session_of
from s3notify_platform.stores.sdk import unusable

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import S3Store

_NOT_METADATA: Final = frozenset(
    {
        "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Cache-Control",
        "Storage-Class",
    }
)  # fmt: skip

_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f]|(^|/)\.{0,2}(/|\Z)")


def fits_obstore(key: str) -> bool:
    """True if obstore reads exactly this key. Pure.

    False for control characters, empty segments (so also a `/` at either end) and the segments `.` and `..`.
    All other tested characters work: `%`, `*`, `?`, `#`, spaces, emoji.
    """
    return not _UNFIT.search(key)


def meta_of(key: str, found: "GetResult") -> ObjectMeta:
    """The object's metadata in the headers of a GET, which may have requested only a range. No request."""
    meta = found.meta
    return ObjectMeta(
        key=key,
        etag=ETag(str(meta["e_tag"]).strip('"')),
        size=meta["size"],
        modified_ms=int(meta["last_modified"].timestamp() * 1000),
        metadata={name: value for name, value in found.attributes.items() if name not in _NOT_METADATA},
        version_id=meta["version"],
    )


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
