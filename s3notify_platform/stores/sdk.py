"""Clients of AWS's SDK, created in one way for every service, and the common part of their error handling."""

from collections import Counter
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.config import Access

SDK_ERRORS: Final = (BotoCoreError, ClientError, ResponseParserError, OSError)
"""All exceptions that a request can raise; `OSError`: a socket failed while a body was read."""

NEVER_SENT: Final = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
"""Errors after which the request was certainly not applied."""

LOST: Final = (HTTPClientError, IncompleteReadError, SSLError, ResponseParserError, OSError)
"""Errors after which the request may have been applied."""

SENT: Final[Counter[tuple[str, str]]] = Counter()
"""Number of requests that this process sent, including repetitions, by service and operation: ("s3", "PutObject")."""

REPEATED: Final[Counter[str]] = Counter()
"""Number of requests, by service, that repeat a failed request or a request with an unknown outcome."""

_COUNTING = Lock()

C = TypeVar("C")


class SdkUser(Generic[C]):
    """An adapter with a boto3 client. The client retries nothing by itself: the adapter decides which requests are sent
    again.

    Thread-safe; before the first call, no request is sent, and no credential is looked up.
    """

    def __init__(self, service: str, config: Access, client: C | None = None, **settings: Any) -> None:
        self._service = service
        self._access = config
        self._settings = settings
        self._client = client
        self._client_lock = Lock()

    @property
    def client(self) -> C:
        """The SDK's client, created at first use. `UsageError` for an invalid configuration."""
        if (client := self._client) is not None:
            return client
        with self._client_lock:
            if self._client is None:
                session, client = _new_client(self._service, self._access, **self._settings)
                if session.get_credentials() is None:
                    raise NoCredentialsError  # no client is kept, because credentials may be found later
                client.meta.events.register(f"before-send.{self._service}", _count_request)
                self._prepare(client)
                self._client = client
            return self._client

    @property
    def endpoint_url(self) -> str:
        """The URL that requests go to. No request. `UsageError` for an invalid configuration or missing credentials."""
        try:
            found: str = self.client.meta.endpoint_url  # type: ignore[attr-defined] # of each of boto3's clients
        except SDK_ERRORS as error:
            raise unusable(error, self._access) from error
        return found

    def _prepare(self, client: C) -> None:
        """Prepares a new client. Subclasses override this method, for example to register handlers."""

    def close(self) -> None:
        """Closes the connections. The object may be used again afterwards."""
        with self._client_lock:
            client: Any = self._client
            self._client = None
        if client is not None:
            client.close()


def _count_request(*, event_name: str, **_request: object) -> None:
    _, service, operation = event_name.split(".")
    count_request(service, operation)


def count_request(service: str, operation: str) -> None:
    """Counts in `SENT` a request that was not sent by a client of the SDK."""
    with _COUNTING:
        SENT[service, operation] += 1


def count_repeated(service: str) -> None:
    """Counts in `REPEATED` a request that is about to be sent again."""
    with _COUNTING:
        REPEATED[service] += 1


def _new_client(
    service: str,
    config: Access,
    *,
    pool_size: int = 32,
    connect_seconds: float = 5.0,
    read_seconds: float = 30.0,
    **settings: Any,
) -> tuple[Any, Any]:
    from botocore.config import Config

    from s3notify_platform.stores.credentials import session_of

    try:
        # A separate session: creating clients from the default session is not thread-safe.
        session = session_of(config)
        return session, session.client(
            service,  # type: ignore[call-overload] # one of many literals
            region_name=config.region,
            endpoint_url=config.endpoint_url,
            config=Config(
                retries={"total_max_attempts": 1, "mode": "standard"},
                max_pool_connections=pool_size,
                connect_timeout=connect_seconds,
                read_timeout=read_seconds,
                **settings,
            ),
        )
    except UsageError:
        raise
    except (ValueError, *SDK_ERRORS) as error:
        raise UsageError(f"{config.place}: {error}") from error


def answer_of(error: ClientError) -> tuple[int, str, str]:
    """Status, code and message of a service's own answer."""
    found = error.response.get("Error", {})
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(found.get("Code", "")), str(found.get("Message", ""))


def unusable(error: Exception, config: Access) -> UsageError:
    """The error for missing credentials, and for other failures that only a person can fix."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return UsageError(
            f"no credentials for {config.place}: name environment variables (access_key_id_env, "
            "secret_access_key_env) or a profile, or give this machine AWS credentials (environment, profile or "
            "instance role)"
        )
    return UsageError(f"{config.place}: {' '.join(str(error).split())[:300]}")
