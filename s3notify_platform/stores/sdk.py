"""Clients of AWS's SDK, created in one way for every service."""

from typing import Any, Protocol

from s3notify_platform.errors import UsageError
from s3notify_platform.stores.faults import SDK_ERRORS


class Reached(Protocol):
    """How a service is reached. Without keys boto3's own credential chain applies."""

    @property
    def region(self) -> str: ...  # noqa: D102
    @property
    def endpoint_url(self) -> str | None: ...  # noqa: D102
    @property
    def access_key_id(self) -> str | None: ...  # noqa: D102
    @property
    def secret_access_key(self) -> str | None: ...  # noqa: D102
    @property
    def session_token(self) -> str | None: ...  # noqa: D102


def sdk_client(
    service: str,
    config: Reached,
    where: str,
    *,
    pool_size: int = 10,
    connect_seconds: float = 5.0,
    read_seconds: float = 30.0,
    **settings: Any,
) -> Any:
    """A boto3 client that retries nothing by itself. No request. `UsageError`, naming `where`, for a bad configuration.

    The adapters decide what may be sent again.
    """
    import boto3
    from botocore.config import Config

    try:
        # A separate session: creating clients from the default one is not thread-safe.
        return boto3.session.Session().client(
            service,  # type: ignore[call-overload] # one of many literals
            region_name=config.region,
            endpoint_url=config.endpoint_url,
            aws_access_key_id=config.access_key_id,
            aws_secret_access_key=config.secret_access_key,
            aws_session_token=config.session_token,
            config=Config(
                retries={"total_max_attempts": 1, "mode": "standard"},
                max_pool_connections=pool_size,
                connect_timeout=connect_seconds,
                read_timeout=read_seconds,
                **settings,
            ),
        )
    except (ValueError, *SDK_ERRORS) as error:
        raise UsageError(f"{where}: {error}") from error
